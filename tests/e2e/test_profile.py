"""Profiles of a run: the kernels and their times."""
import json, os, re, shutil, subprocess

from harness import ROOT, Skip, check, small
from test_passes import switchable

PLAIN_BUILD = {"ablate"}
SAVED = 'save = checkpoint("run", every = 2 steps, keep = all)'


def spans(trace, row):
    tid = next(e["tid"] for e in trace if e["name"] == "thread_name" and e["args"]["name"] == row)
    return [e for e in trace if e["ph"] == "X" and e["tid"] == tid]


def inside(inner, outer):
    """every span of inner is inside a span of outer, up to a microsecond of rounding"""
    return all(any(o["ts"] - 1 <= i["ts"] and i["ts"] + i["dur"] <= o["ts"] + o["dur"] + 1 for o in outer) for i in inner)


def test_trace(run):
    file = small(run, steps=4, micro=32, more=SAVED)
    out = run("run", file, "--out", run.path("run"), "--profile")
    check("profile.json" in out, out)
    trace = json.load(open(run.path("run/profile.json")))["traceEvents"]
    steps, functions, kernels = (spans(trace, row) for row in ("training", "functions", "kernels"))
    check([e["name"] for e in steps] == [f"{what} of step {i}" for i in range(1, 5) for what in ("gradients", "update")], "every step")
    check(sum(e["name"] == "micro" for e in functions) == 8, "two micro-batches a step")
    check(len(spans(trace, "data")) == 8 and len(spans(trace, "checkpoints")) == 2, "rows and checkpoints")
    check(inside(functions, steps) and inside(kernels, functions), "spans must be nested")
    # kernels name their source lines and their bytes
    named = [e for e in kernels if re.search(r"\.lm:\d+", e["name"])]
    check(len(named) > 0.8 * len(kernels), f"{len(named)} of {len(kernels)} kernels name a line")
    for e in kernels:
        check(e["args"]["bytes"] > 0 and e["args"]["bound_us"] > 0 and e["args"]["bound"] in ("memory", "arithmetic"), str(e))
    check(any(e["args"]["flops"] > 1e5 for e in kernels), "GEMMs must report their FLOPs")


def test_finished(run):
    """no step is left to profile: an error, and an earlier profile is kept"""
    file = small(run, steps=4, micro=32, more=SAVED)
    run("run", file, "-q", "--out", run.path("run"), "--steps", "2", "--profile")
    run.write("mine.json", "mine")
    before = open(run.path("run/profile.json")).read()
    for option in ("--profile", f"--profile={run.path('mine.json')}", f"--profile={run.path('new.json')}"):
        err = run("run", file, "--out", run.path("run"), "--steps", "2", option, status=1)
        check("--profile: the run had finished with step 2" in err and "--steps N" in err, err)
    check(open(run.path("run/profile.json")).read() == before, "the profile was replaced")
    check(open(run.path("mine.json")).read() == "mine", "the file was replaced")
    check(not os.path.exists(run.path("new.json")), "an empty file was made")
    run("run", file, "-q", "--out", run.path("run"), "--steps", "3", "--profile")
    trace = json.load(open(run.path("run/profile.json")))["traceEvents"]
    check([e["name"] for e in spans(trace, "training")] == ["gradients of step 3", "update of step 3"], "the step that was left")


def test_threads_of_trace(run):
    """a row for each thread: its part of a step, then the wait at the barrier"""
    file = small(run, steps=2, rows=32, seq=64)
    run("run", file, "-q", "--out", run.path("run"), "--profile", env={"OMP_NUM_THREADS": "2"})
    trace = json.load(open(run.path("run/profile.json")))["traceEvents"]
    if len(os.sched_getaffinity(0)) == 1:
        raise Skip("one processor")
    rows = [spans(trace, f"thread {i}") for i in (0, 1)]
    check(rows[0] and len(rows[0]) == len(rows[1]), f"{[len(r) for r in rows]} spans")
    for row in rows:
        check(all((e["name"] == "wait") == (i % 2 == 1) for i, e in enumerate(row)), "work and waiting alternate")
        check(all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in zip(row, row[1:])), "spans of a thread do not overlap")
    check([e["name"] for e in rows[0]] == [e["name"] for e in rows[1]], "threads do the same steps")
    check(inside(rows[1], spans(trace, "functions")), "threads work in functions")
    # both have begun a step before either has passed its barrier
    for a, b in zip(zip(rows[0][::2], rows[0][1::2]), zip(rows[1][::2], rows[1][1::2])):
        begun, passed = max(a[0]["ts"], b[0]["ts"]), min(x[1]["ts"] + x[1]["dur"] for x in (a, b))
        check(begun <= passed + 1, f"{a[0]['name']} begun at {begun}, passed at {passed}")
    # the time of a step is that of both threads, even if the first one has been suspended before it
    ends = lambda e: e["ts"] + e["dur"]
    kernels = spans(trace, "kernels")
    for a, b in zip(rows[0][::2], rows[1][::2]):
        begun, done = min(a["ts"], b["ts"]), max(ends(a), ends(b))
        check(any(k["ts"] <= begun + 1 and abs(ends(k) - done) <= 1 for k in kernels), f"{a['name']} from {begun} to {done}")


def test_elsewhere(run):
    """profiling writes the named file and changes no bit of the run"""
    file = small(run, steps=2)
    run("run", file, "-q", "--out", run.path("a"), f"--profile={run.path('p.json')}")
    run("run", file, "-q", "--out", run.path("b"))
    check(json.load(open(run.path("p.json"))), "the trace must be written")
    a, b = (open(run.path(x, "step-000002/model.safetensors"), "rb").read() for x in "ab")
    check(a == b, "the same weights")
    # reported before the run
    err = run("run", file, "-q", "--out", run.path("c"), f"--profile={run.path('none/p.json')}", status=2)
    check("none/p.json" in err, err)


def quiet(table, facts):
    """the lines of a report without the one that says that other processes use the processors"""
    check(facts["cores"] >= 1 and facts["busy"] == (facts["load"] > 0.5 * facts["cores"]), facts)
    if not table[-1].startswith("busy: "):
        return table
    check(re.fullmatch(r"busy: load average [\d.]+ on \d+ cores?; the least of several timings counts", table[-1]), table[-1])
    return table[:-1]


def test_cost(run):
    """each kernel beside its roofline bound, predicted and measured"""
    file = small(run, steps=4, micro=32)
    cost = json.loads(run("explain", file, "cost", "--json"))
    check(cost["peak_flops"] > 1e8 and len(cost["bandwidth"]) == 6 and cost["measured_s"] == 0, "the machine")
    names = [row["name"] for row in cost["rows"]]
    check(len(set((row["name"], row.get("kernel")) for row in cost["rows"])) == len(names), "one row for each")
    # the GEMM of the vocabulary, 2 micro-batches of 32 positions: 2 * 64 * 32 * 64 FLOPs
    check(any(row["flops"] == 2 * 64 * 32 * 64 and row["times"] == 2 and name.endswith("32x64x32") for name, row in zip(names, cost["rows"])), str(names))
    for row in cost["rows"]:
        bandwidth = max(cost["bandwidth"])
        check(row["least_s"] == row["lower_bound_s"] >= max(row["flops"] / cost["peak_flops"], row["bytes"] / bandwidth) * 0.999, str(row))
        check(row["predicted_s"] > 0 and row["bound"] in ("launch", "memory", "instructions", "arithmetic"), str(row))
        check(("kernel" in row and not row["name"].startswith("attend")) == (row["instructions"] > 0), f"kernels must have instructions: {row}")
    check(abs(sum(row["lower_bound_s"] for row in cost["rows"]) / cost["lower_bound_s"] - 1) < 1e-3, "the bounds of the rows must add up to the bound of the step")
    check(sum(row["predicted_s"] for row in cost["rows"]) <= cost["predicted_s"] * 1.05, "a step must have the gaps too")
    head, *rows = run("explain", file, "cost").splitlines()[2:3 + len(names)]
    check("GFLOP/s" in head and max(float(row.split()[3]) for row in rows) > 0.1, "rates must be in GFLOP/s: " + "\n".join([head, *rows]))
    functions = {f["name"]: f for f in cost["functions"]}
    check(functions["micro"]["calls"] == 2 and functions["update"]["calls"] == 1, str(functions))
    check(abs(cost["tokens"] / cost["predicted_s"] / cost["tokens_per_s"] - 1) < 1e-3 and cost["tokens"] == 64, "tokens must be the tokens of a step")
    measured = json.loads(run("explain", file, "cost", "--measure", "--json"))
    check(all(row["measured_s"] > 0 for row in measured["rows"]) and measured["rows"][0]["measured_s"] == max(r["measured_s"] for r in measured["rows"]), "all rows must be measured")
    table = quiet(run("explain", file, "cost", "--measure").splitlines(), measured)
    check(len(table) == len(names) + 7 + len(functions) and table[len(names) + 3].startswith("100.0%"), "one row per kernel and one per function")
    check(max(map(len, table)) <= 80, "lines must have at most 80 columns")


def test_cost_elsewhere(run):
    """bounds of other machines come from their published figures; an architecture selects its first machine"""
    file, bf16 = small(run), ("--set", "precision.compute=bf16")
    costs = {}
    for target, peak, bandwidth in ("h100", 989.4e12, 3350e9), ("sm_90a", 989.4e12, 3350e9), ("rtx-4090", 165.2e12, 1008e9), ("b200", 2250e12, 7700e9):
        costs[target] = json.loads(run("explain", file, "cost", "--target", target, *bf16, "--json"))
        check(costs[target]["peak_flops"] == peak and costs[target]["bandwidth"] == [bandwidth] * 6, f"{target}: {costs[target]['peak_flops']}")
        for row in costs[target]["rows"]:
            lower = row["times"] * max(row["flops"] / row["times"] / peak, row["bytes"] / row["times"] / bandwidth)
            check(abs(row["lower_bound_s"] / lower - 1) < 1e-3, f"{target}: {row}")
        for row in costs[target]["rows"]:
            check(row["predicted_s"] >= 2e-6 * row["times"], f"a launch must take 2 us or more: {row}")
    check(costs["h100"]["rows"] == costs["sm_90a"]["rows"], "the first machine of the architecture must be used")
    # Most of it is launches; the plan of sm_90a has some less.
    check(costs["b200"]["predicted_s"] <= 1.15 * costs["h100"]["predicted_s"] <= 1.2 * costs["rtx-4090"]["predicted_s"], "faster machines must take less time")
    check(run("explain", file, "cost", "--target", "h100", *bf16).startswith("NVIDIA H100 SXM, sm_90a: 989.4 TFLOP/s; 3350 GB/s from memory"), "names the machine")
    rounded = json.loads(run("explain", file, "cost", "--target", "h100", "--set", "precision.compute=f32", "--set", "precision.matmul=tf32", "--json"))
    check(rounded["peak_flops"] == 494.7e12, f"f32 in TF32: {rounded['peak_flops']}")


def test_threads(run):
    """threads are limited by OMP_NUM_THREADS and by the number of processors"""
    file, cores = small(run), len(os.sched_getaffinity(0))
    for threads, used in ("1", 1), ("1,4", 1), ("1000", cores), ("0", cores), ("some", cores):
        cost = json.loads(run("explain", file, "cost", "--json", env={"OMP_NUM_THREADS": threads}))
        check(cost["threads"] == used, f"{threads}: {cost['threads']}")


def test_ablate(run):
    """a row for each pass that can be disabled"""
    file = small(run, steps=4)
    rows = json.loads(run("bench", file, "--ablate", "--steps", 2, "--json"))
    check([r["pass"] for r in rows] == list(switchable()), str(rows))
    for r in rows:
        check(r["measured"] and r["with_ms"] > 0 and abs(r["ratio"] - r["without_ms"] / r["with_ms"]) < 1e-2 * r["ratio"], str(r))
    fuse = next(r for r in rows if r["pass"] == "fuse")
    check(fuse["without_bytes"] > fuse["with_bytes"], "without fusion values inside of kernels must go through memory")
    check(all(r["ratio"] == 1 and r["with_bytes"] == r["without_bytes"] for r in rows if r["same"]) and not fuse["same"], "equal plans must have equal memory")
    pack = next(r for r in rows if r["pass"] == "fuse_gemms")
    check(not pack["default"] and not pack["same"] and fuse["default"], "a declined pass must be measured as if forced")
    check(any(r["same"] for r in rows) and {r["micro"] for r in rows} == {64}, "a pass without effect must be reported as the same plan")
    table = quiet(run("bench", file, "--ablate", "--steps", 1).splitlines(), rows[0])
    check(len(table) == 1 + len(rows) and table[-1].startswith(rows[-1]["pass"]), str(table))
    short = json.loads(run("bench", small(run, steps=4, rows=64, seq=64, name="large.lm"), "--ablate", "--budget", 1, "--steps", 2, "--json"))
    check(short[0]["micro"] == 64, "with a short budget a smaller micro-batch must be timed")


def test_drawing(run):
    """every edge of a graph joins existing nodes; unreachable nodes are left out"""
    file = small(run)
    run("compile", file, "-o", run.path("plan"), "--emit", "dot")
    text = open(run.path("plan/micro.dot")).read()
    nodes, edges = set(re.findall(r"^(\w+) \[", text, re.M)), re.findall(r"^(\w+) -> (\w+) \[", text, re.M)
    check(len(edges) > 50 and all(a in nodes and b in nodes for a, b in edges), "edges must join existing nodes")
    check("<b>attend</b>" in text and "llama.lm:" in text and text.count("subgraph cluster") == 2, "the graph must show attention, its source lines and two loops")
    if shutil.which("dot"):
        p = subprocess.run(["dot", "-Tsvg", run.path("plan/micro.dot")], capture_output=True, text=True)
        check(p.returncode == 0 and not p.stderr and "</svg>" in p.stdout, p.stderr)


def test_ablate_warns_once(run):
    """a warning about the data is printed once, for any number of plans that read the data"""
    run.write("text.jsonl", '{"text": "the cat sat on the mat"}\n' * 200 + "not JSON\n")
    file = run.write("warns.lm", f"""import "{ROOT}/examples/llama.lm": Llama
data Text {{ tokenizer = bytes(); bad = 90%; source s = jsonl("text.jsonl", field = "text"); pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 256)
  data = Text; run = 4 steps; batch = 128 tokens; optimizer = adamw(lr = 1e-2)
}}
""")
    code, out, err = run.result("bench", file, "--ablate", "--budget", 1, "--steps", 1)
    check(code == 0 and err.count("W212") == 1, (code, err))
