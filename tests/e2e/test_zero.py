"""ZeRO and FSDP: parameters, gradients and optimizer states divided among ranks that compute other rows."""
import collections, json, re

from harness import ROOT, check, small, within
from test_ranks import PATIENT, collectives, curve, curves_check, meshes_check, model, mpi_needed, ranks, shorten, tensors, with_muon

SANITIZER_BUILD = {"sent", "samples", "refused"}


def blocks(n):
    return -(-n // 1024)


def arenas(text):
    return {name: int(bytes) for name, bytes in re.findall(r"^arena (\w+) (\d+)$", text, re.M)}


def plan_of(run, file, name, *sets):
    run("compile", file, *(word for s in sets for word in ("--set", s)), "-o", run.path(name))
    return open(run.path(name, "plan.txt")).read()


def divided(plan, parts):
    """elements -> whether ZeRO divides it, of each parameter of a plan of one process"""
    sizes = [int(n) for n in re.findall(r"^param \S+ (?:\[.*\]|\d+) : (\d+)", plan, re.M)]
    return [(n, blocks(n) != blocks(n // parts)) for n in sizes]


ZERO = {"zero1": (4, "dp = 4", "zero=1"), "zero2": (4, "dp = 4", "zero=2"), "zero3": (4, "dp = 4", "zero=3"), "hsdp": (4, "dp = 2, fsdp = 2"),
        "zero3tp": (4, "dp = 2, tp = 2", "zero=3", "sequence=tp"), "zero1tp": (4, "dp = 2, tp = 2", "zero=1")}


def zero_sets(name):
    return [f"parallel.{s}" for s in (f"mesh=({ZERO[name][1]})", *ZERO[name][2:])]


def zero_run(run, name, file, out, *args):
    sets = [word for s in zero_sets(name) for word in ("--set", s)]
    return run("run", file, *sets, "--ranks", ZERO[name][0], "--out", run.path(out), *args, env=PATIENT)


def test_stages(run):
    """Optimizer states, gradients and parameters divided: the numbers of one process; two runs are equal; a run is resumed on another mesh."""
    apart = lambda folder: ("--disable-pass", "overlap,bucket") if folder == "again" else ()     # changes no bit
    file = meshes_check(run, ZERO, lambda file, name, folder: zero_run(run, name, file, folder, "-q", *apart(folder)), "hsdp")
    zero_run(run, "hsdp", file, "again", "-q", *apart("again"))
    check(tensors(run.path("again"), 20) == tensors(run.path("hsdp"), 20), "the resumed run differs")
    shorten(run, "again")
    zero_run(run, "zero1tp", file, "again", "-q", *apart("again"))
    curves_check(run, "one", "again", "hsdp, then zero1tp")


def test_memory(run):
    """Bytes of a rank, as docs/parallel.md gives them, and collectives of a step."""
    file = model(run, depth=3)
    sizes = divided(plan_of(run, file, "one"), 4)
    whole = sum(blocks(n) for n, parts in sizes if not parts)
    own = whole + sum(blocks(n // 4) for n, parts in sizes if parts)
    all_ = sum(n for n, parts in sizes if parts)
    check(sum(parts for _, parts in sizes) == 3 * 3 + 1, "wg, wu and wd of three layers and embed are divided")
    for stage in (1, 2, 3):
        plan = plan_of(run, file, f"zero{stage}", "parallel.mesh=(dp = 4)", f"parallel.zero={stage}")
        found = arenas(plan)
        want = {"param": 4096 * own, "grad": 4096 * own + (4 * all_ if stage == 1 else 0), "state": 2 * 4096 * own,
                "copy": 4 * all_ if stage < 3 else 0}
        for name, value in want.items():
            check(found[name] == value, f"zero = {stage}: {name} has {found[name]} bytes, expected {value}")
        scatters = ("reduce_scatter", "sum", "dp")
        counts = {func: collectives(plan, func) for func in ("micro", "micro_last", "reduce", "copies") if f"func {func} work" in plan}
        check(counts["micro"].get(scatters, 0) == (4 if stage > 1 else 0), f"{stage}: {counts}")     # one of each layer
        once = counts["micro_last" if stage == 1 else "reduce"]        # beside the last micro-batch, or behind it: a few bytes
        check(once == {**({scatters: 4} if stage == 1 else {}), ("all_reduce", "sum", "dp"): 1}, f"{stage}: {counts}")
        gathers = ("all_gather", "", "dp")
        check(counts["micro"].get(gathers, 0) == (2 * 3 + 1 if stage == 3 else 0), f"{stage}: {counts}")     # of each layer, in each pass
        check(counts.get("copies", {}).get(gathers, 0) == (3 + 1 if stage < 3 else 0), f"{stage}: {counts}")
        windows = collections.Counter()         # bytes, by the steps in which they are live: of the loops forwards and backwards
        for bytes, steps in re.findall(r"^  live \d+: work\[\d+ : (\d+)\] steps (\S+) two of all_gather over dp", plan, re.M):
            windows[steps] += int(bytes)
        layer = 3 * 32 * 64                     # elements of wg, wu and wd
        check(sorted(windows.values()) == ([2 * 4 * layer] * 2 if stage == 3 else []), f"zero = {stage}: two layers are gathered at a time: {windows}")
    whole = plan_of(run, small(run, rows=8, name="whole.lm", more="parallel { mesh = (dp = 4); zero = 3; whole @embed }"), "whole")
    check(re.search(r"^param embed \d+ : 2048$", whole, re.M), "embed is whole")


ADAPTED = "freeze @layers.*.{wg,wd}; adapt @layers.*.attn.{wq,wv} = lora(rank = 8, alpha = 16)"
HALF, FP8 = "precision.compute=bf16", "precision.matmul=fp8(scale = current)"
# name: ranks, mesh, settings, edits of the model; gathers of a layer in both passes
BUCKETS = {"bf16": (2, "fsdp = 2", [HALF, "parallel { whole @layers.*.wu }"], ""),
           "adapted": (2, "fsdp = 2", [], ADAPTED),
           "tp": (4, "fsdp = 2, tp = 2", [HALF], "")}
MORE_BUCKETS = {"zero1": (2, "dp = 2", [HALF, "parallel.zero=1"], ""), "zero2": (2, "dp = 2", [HALF, "parallel.zero=2"], ""),
                "hsdp": (4, "dp = 2, fsdp = 2", [HALF, "precision.reduce=bf16"], ""), "fp8": (2, "fsdp = 2", [HALF, FP8], "")}


def test_buckets(run):
    """One exchange for the parameters of a layer changes no bit."""
    mpi_needed(run)
    file = model(run, depth=3, steps=3)
    text = "import std.adapt: lora\n" + open(file).read()
    made = re.search(r"model = (Llama\(.*\))", text)[1]
    for name, (n, mesh, sets, edits) in {**BUCKETS, **(MORE_BUCKETS if run.nightly else {})}.items():
        part = f"model Part = {made} with {{ {edits} }}\nrecipe Small"
        open(file, "w").write(text.replace(f"model = {made}", "model = Part").replace("recipe Small", part) if edits else text)
        words = [word for s in (f"parallel.mesh=({mesh})", *sets) for word in ("--set", s)]
        for disabled in ("", "bucket", "overlap", "bucket,overlap"):
            apart = ("--disable-pass", disabled) if disabled else ()
            run("run", file, *words, "--ranks", n, "-q", "--out", run.path(name + disabled), *apart, env=PATIENT)
            check(tensors(run.path(name), 3) == tensors(run.path(name + disabled), 3), f"{name}: {disabled or 'two runs'}")


DEEP = """import "{root}/examples/llama.lm": Llama
data Batches {{ source s = batches("batches.safetensors") }}
recipe Deep {{
  model = Llama(depth = 24, d = 64, ff = 256, heads = 4, kv = 2, e = 16, vocab = 64); data = Batches; seed = 7
  run = 4 steps; batch = 64 tokens; precision {{ compute = f32 }}
  optimizer = adamw(lr = 1e-3); schedule = warmup_cosine(warmup = 4 steps); clip = global_norm(max = 1.0)
  memory {{ budget = 12 MiB }}
}}
"""


def test_budget(run):
    """A model of 24 layers that fits the budget of a rank only if the parameters are divided."""
    mpi_needed(run)
    small(run, steps=4, rows=4)
    file = run.write("deep.lm", DEEP.format(root=ROOT))
    run.write("free.lm", open(file).read().replace("memory { budget = 12 MiB }", ""))
    mesh = ("--set", "parallel.mesh=(dp = 4)")
    for stage in (0, 1, 2):
        err = run("check", file, *mesh, "--set", f"parallel.zero={stage}", status=1)
        check("budget" in err, err)
    ranks(run, 1, run.path("free.lm"), "-q", "--out", run.path("one"))
    run("run", file, *mesh, "--set", "parallel.zero=3", "--ranks", 4, "-q", "--out", run.path("deep"), env=PATIENT)
    curves_check(run, "one", "deep", "24 layers")


def times_check(cost, link, latency, rate):
    """Milliseconds of transfers: the latency of each phase, and the bytes at the rate, in bytes per millisecond."""
    check(cost["link"] == link, cost["link"])
    for x in cost["collectives"]:
        phases = 2 if x["kind"] == "all_reduce" else 1
        want = x["times"] * phases * latency + x["bytes"] / rate
        check(abs(x["transfer_ms"] - want) < 1e-5 and x["exposed_ms"] <= x["transfer_ms"] + 1e-6, f"{want}: {x}")
        check(x["lane"] or x["exposed_ms"] == x["transfer_ms"], f"nothing runs beside it: {x}")


def test_sent(run):
    """What a rank sends in a step of two micro-batches, in closed form, as `lmc explain cost` and `lmc check` say."""
    file = model(run, depth=3, micro=64)
    matrices, embed = 4 * 3 * 3 * 32 * 64, 4 * 32 * 64       # bytes of wg, wu and wd, and of the embedding, which is outside of the loop
    whole = matrices + embed
    want = {1: (whole, whole), 2: (2 * whole, whole), 3: (2 * whole, 2 * (2 * matrices + embed))}
    for stage, (scattered, gathered) in want.items():
        sets = ("--set", "parallel.mesh=(dp = 4)", "--set", f"parallel.zero={stage}", "--json")
        cost, one = json.loads(run("explain", file, "cost", *sets)), json.loads(run("check", file, *sets))[0]
        sent = lambda kind: sum(x["bytes"] for x in cost["collectives"] if x["kind"] == kind)
        check((sent("reduce_scatter"), sent("all_gather")) == (scattered * 3 // 4, gathered * 3 // 4), f"zero = {stage}: {cost['collectives']}")
        check(one["sent_bytes"] == sum(x["bytes"] for x in cost["collectives"]), f"zero = {stage}: {one['sent_bytes']}")
        check(all((x["beside_ms"] > 0) == (x["lane"] > 0) for x in cost["collectives"]), f"zero = {stage}: {cost['collectives']}")
        check(all((x["beside"] != "") == (x["beside_ms"] > 0) for x in cost["collectives"]), f"zero = {stage}: {cost['collectives']}")
        beside = {x["kind"] for x in cost["collectives"] if x["lane"]}
        check(beside == {1: {"reduce_scatter", "all_reduce"}, 2: {"reduce_scatter"}, 3: {"reduce_scatter", "all_gather"}}[stage], f"zero = {stage}: {beside}")
        scatters = [x for x in cost["collectives"] if x["kind"] == "reduce_scatter"]
        check(sum(x["times"] for x in scatters) == 4 * min(stage, 2), f"wg, wu and wd of a layer are one exchange: {scatters}")
        check(sum(x["messages"] for x in scatters) == 3 * 10 * min(stage, 2), f"{scatters}")
        times_check(cost, "memory", 5e-3, 5e6)
        check(cost["exposed_ms"] < cost["transfer_ms"], f"zero = {stage}: {cost}")
    overlapped = cost["transfer_ms"]
    cost = json.loads(run("explain", file, "cost", *sets, "--disable-pass", "overlap"))
    check(cost["exposed_ms"] == cost["transfer_ms"] == overlapped, f"without overlap all is exposed: {cost['exposed_ms']}, {overlapped}")
    cost = json.loads(run("explain", file, "cost", *sets, "--target", "a100"))
    times_check(cost, "nvlink3", 3.4e-3, 300e6)
    check(cost["exposed_ms"] < cost["transfer_ms"], f"a GPU runs collectives beside its kernels: {cost['exposed_ms']}")
    check("did you mean nvlink4?" in run("explain", file, "cost", *sets[:4], "--link", "nvlnk4", status=1), "--link")
    cost = json.loads(run("explain", file, "cost", *sets, "--disable-pass", "overlap,bucket", "--link", "ethernet10"))
    times_check(cost, "ethernet10", 30e-3, 1.25e6)
    check(not any(x["lane"] or x["beside_ms"] for x in cost["collectives"]), str(cost["collectives"]))
    times = sum(x["times"] for x in cost["collectives"] if x["kind"] == "reduce_scatter")
    check(times == 2 * 10 and one["sent_bytes"] == sum(x["bytes"] for x in cost["collectives"]), str(cost["collectives"]))


SAMPLES = """import "{root}/examples/llama.lm": Llama
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(30 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256); data = D; seed = 1
  run = 2 steps; batch = 256 tokens; micro = 128 tokens; optimizer = adamw(lr = 2e-3); precision {{ compute = f32 }}
  eval dev {{ data = D.dev; every = 1 steps; metrics = [loss] }}
  sample {{ every = 1 steps; prompt = "line"; n = 8 tokens; temperature = 0 }}
}}
"""


def test_samples(run):
    """Evaluations and samples between updates, for which all ranks gather parameters."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(90)))
    file = run.write("t.lm", SAMPLES.format(root=ROOT))
    samples = lambda text: re.findall(r"sample after step \d:\n(.*?)\n(?=step|done)", text, re.S)
    one = ranks(run, 1, file, "--out", run.path("one"))
    for stage in (2, 3):
        many = ranks(run, 2, file, "--set", f"parallel.zero={stage}", "--out", run.path(f"zero{stage}"))
        check(len(samples(one)) == 2 and samples(one) == samples(many), f"zero = {stage}: {many}")
        for a, b in zip(curve(run.path("one"), "dev.loss"), curve(run.path(f"zero{stage}"), "dev.loss"), strict=True):
            within(f"zero = {stage}: dev.loss", abs(a - b) / abs(a), 2e-6)


def test_optimizers(run):
    """Optimizers that compute with whole matrices gather them; frozen parameters are divided too."""
    mpi_needed(run)
    file = model(run)
    text = open(file).read()
    with_muon(file)
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    for name in ("zero1", "hsdp"):
        zero_run(run, name, file, name, "-q")
        curves_check(run, "one", name, f"muon and lamb with {name}")
    made = re.search(r"model = (Llama\(.*\))", text)[1]
    part = f"model Part = {made} with {{ freeze @layers.*.{{wg,wd}} }}\nrecipe Small"
    open(file, "w").write(text.replace(f"model = {made}", "model = Part").replace("recipe Small", part))
    ranks(run, 1, file, "-q", "--out", run.path("frozen"))
    for name in ("zero2", "hsdp"):
        zero_run(run, name, file, f"frozen.{name}", "-q")
        curves_check(run, "frozen", f"frozen.{name}", f"frozen parameters with {name}")
    found = arenas(plan_of(run, file, "plan", *zero_sets("hsdp")))
    check(found["fixed"] == 2 * 2 * 4 * 2048 // 2, f"{found['fixed']} bytes of frozen parameters: half of two matrices in two layers")


def test_refused(run):
    """Patterns and stages that divide nothing."""
    for more, code, message in (("mesh = (fsdp = 2); zero = 0", "E25B", "fsdp = 2 has no parameters to divide"),
                                ("mesh = (dp = 2); zero = 3; whole @layers.0.wg", "E25C", "1 of the 2 instances of 'layers.wg'"),
                                ("mesh = (dp = 2); zero = 3; whole @layers.*.wx", "E0B0", "layers.*.wx")):
        err = run("check", small(run, more=f"parallel {{ {more} }}"), status=1)
        check(f"error[{code}]" in err and message in err, err)
    err = run("check", small(run, more="parallel { mesh = (dp = 2); zero = 4 }"), status=1)
    check("zero" in err and "3" in err, err)
    mpi_needed(run)
    err = run("run", small(run, more="parallel { mesh = (dp = 2, fsdp = 3) }"), "--ranks", 6, status=1, env=PATIENT)
    check("error[E255]" in err and "dp * fsdp = 6 does not divide the 4 rows" in err, err)
