"""Pipelines: blocks of a model on several ranks, against one process."""
import json, re

from harness import ROOT, Skip, check, distance, load, small, within
from test_ranks import PATIENT, SAVE, collectives, curve, curves_check, meshes_check, mpi_needed, ranks, shorten, tensors, with_muon

PLAIN_BUILD = {"as_one_process", "interleaved", "one_f_one_b", "trace_and_eval"}
TP = "parallel { shard tp = [g, ff, vocab] }"
PIPELINES = {"pp2": (2, "pp = 2"), "pp4": (4, "pp = 4"), "dp2pp2": (4, "pp = 2, dp = 2"), "pp2tp2s": (4, "pp = 2, tp = 2", "sequence=tp"),
             "zero3pp2": (4, "fsdp = 2, pp = 2"), "pp2dp2tp2s": (8, "pp = 2, dp = 2, tp = 2", "sequence=tp")}
F1B = {"f1b2": (2, "pp = 2", "pipeline=one_f_one_b"), "f1b4": (4, "pp = 4", "pipeline=one_f_one_b"),
             "dp2f1b2": (4, "pp = 2, dp = 2", "pipeline=one_f_one_b"), "zero3f1b2": (4, "pp = 2, fsdp = 2", "pipeline=one_f_one_b"), "f1b2tp2s": (4, "pp = 2, tp = 2", "pipeline=one_f_one_b", "sequence=tp")}
TWO = "pipeline=interleaved(chunks = 2)"
INTERLEAVED = {"int2": (2, "pp = 2", TWO), "dp2int2": (4, "pp = 2, dp = 2", TWO), "zero1int2": (4, "pp = 2, dp = 2", TWO, "zero=1"),
               "zero3int2": (4, "pp = 2, fsdp = 2", TWO), "int2tp2s": (4, "pp = 2, tp = 2", TWO, "sequence=tp")}
MESHES = PIPELINES | F1B | INTERLEAVED
TRAINED = ("dp2pp2", "pp2dp2tp2s", "int2")  # tests/passes/shard_test.c compares all of them, and others, in float64


def sets(name):
    n, mesh, *more = MESHES[name]
    return [word for s in (f"mesh=({mesh})", *more) for word in ("--set", f"parallel.{s}")]


def pipeline(run, name, file, out, *args):
    return run("run", file, *sets(name), "--ranks", MESHES[name][0], "--out", run.path(out), *args, env=PATIENT)


def deep(run, steps=20, **how):
    return small(run, steps=steps, depth=4, drop=0.1, lr="1e-3", more=f"{SAVE}; {TP}", **{"rows": 8, "micro": 32, **how})


def test_as_one_process(run):
    """Loss and gradient norm of 20 steps with dropout on each mesh; two runs are equal; a run resumes on the same mesh, and in one process."""
    train = lambda file, name, folder: pipeline(run, name, file, folder, "-q")
    file = meshes_check(run, [*PIPELINES, "int2"] if run.nightly else TRAINED, train, "dp2pp2", deep)
    pipeline(run, "dp2pp2", file, "again", "-q")
    check(tensors(run.path("again"), 20) == tensors(run.path("dp2pp2"), 20), "the resumed run differs")
    shorten(run, "again")
    code, _, err = run.result("run", file, "--out", run.path("again"), "-q", env=PATIENT)
    check(code == 0 and "now it has 1 rank:" in err and "micro-batch" not in err, f"as many micro-batches as before: {err}")
    curves_check(run, "one", "again", "dp 2 pp 2, then one process")


def test_interleaved(run):
    """The same with two stages on each rank, and with other axes of the mesh."""
    if not run.nightly:
        raise Skip("nightly")
    train = lambda file, name, folder: pipeline(run, name, file, folder, "-q")
    meshes_check(run, INTERLEAVED, train, "int2", lambda run: deep(run, micro=64))


def thrice(run):
    """A step of three micro-batches of four rows."""
    return deep(run, rows=12, micro=64)


def test_one_f_one_b(run):
    """The same for 1F1B, with three micro-batches, of which the number of stages is no divisor."""
    train = lambda file, name, folder: pipeline(run, name, file, folder, "-q")
    file = meshes_check(run, F1B if run.nightly else ("f1b2", "f1b4"), train, "f1b2", thrice)
    more = ("--set", "micro=32 tokens", "--out", run.path("again"), "-q")
    code, _, err = run.result("run", file, *sets("int2"), "--ranks", 2, *more, env=PATIENT)
    check(code == 0 and "up to step 8 a step had 3 micro-batches, now it has 6" in err, f"resumed with another micro-batch: {err}")
    check("had 2 ranks (pp 2) with one_f_one_b, now it has 2 ranks (pp 2) with interleaved 2: sums" in err, f"resumed with another schedule: {err}")
    memory = {}
    for n in (3, 6):
        for name in ("pp2", "f1b2"):
            file = small(run, steps=2, depth=4, rows=4 * n, micro=64, more=TP)
            found = run("check", file, *sets(name), *(("--set", "micro=32 tokens") if (n, name) == (3, "pp2") else ()))
            memory[n, name] = re.search(r"work [\d.]+ .?B", found)[0]
            check(f"the bubble is {100 / (n * (2 if (n, name) == (3, 'pp2') else 1) + 1):.1f} %" in found, found)
    check(memory[3, "f1b2"] == memory[6, "f1b2"], f"1F1B keeps more for more micro-batches: {memory}")


def test_optimizers(run):
    """Optimizers that compute with whole matrices update those of the stage. Muon enlarges roundings with every step."""
    mpi_needed(run)
    file = with_muon(deep(run, steps=8))
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    for name in ("pp2", "int2"):
        pipeline(run, name, file, name, "-q")
        curves_check(run, "one", name, f"muon and lamb, {name}")


def test_trace_and_eval(run):
    """Traces and evaluations of stages are those of one process, of whole tensors."""
    mpi_needed(run)
    file = deep(run)
    run("trace", file, "--steps", 2, "--out", run.path("one"))
    one = load(run.path("one"))
    for name in ("pp4", "dp2pp2"):
        run("trace", file, "--steps", 2, *sets(name), "--ranks", PIPELINES[name][0], "--out", run.path(name), env=PATIENT)
        many = load(run.path(name))
        check(list(one) == list(many), str(set(one) ^ set(many)))
        for key in one:
            within(f"{name}: {key}", distance(many[key], one[key]), 3e-6)
    flops = lambda *mesh: json.loads(run("bench", file, "--steps", 1, "--json", *mesh, env=PATIENT))["model_flops"]
    found = {name: flops(*sets(name), "--ranks", 2) for name in ("pp2", "f1b2", "int2")}
    check(set(found.values()) == {flops()}, f"the ticks of the bubble are no work: {found}")


TEXTS = """import "{root}/examples/llama.lm": Llama
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(30 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 4, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256); data = D; seed = 1
  run = 2 steps; batch = 256 tokens; optimizer = adamw(lr = 2e-3); precision {{ compute = f32 }}
  eval dev {{ data = D.dev; every = 1 steps; metrics = [loss, bits_per_byte] }}
  sample {{ every = 2 steps; prompt = "line"; n = 8 tokens }}
}}
"""


def test_eval(run):
    """Evaluations between updates and by `lmc eval`, samples and `lmc generate`; without `micro` four micro-batches for each stage."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(90)))
    file = run.write("t.lm", TEXTS.format(root=ROOT))
    f32 = ("--set", "precision.compute=f32")
    sample = lambda out: out.split("sample after step 2:")[1].split("done:")[0]
    one = sample(ranks(run, 1, file, "--set", "micro=32 tokens", "--out", run.path("one")))
    check(sample(pipeline(run, "pp2", file, "stages")) == one, "another sample than that of one process")
    for name in ("dev.loss", "dev.bits_per_byte"):
        for a, b in zip(curve(run.path("one"), name), curve(run.path("stages"), name), strict=True):
            within(name, abs(a - b) / abs(a), 2e-6)
    alone, together = (json.loads(run("eval", run.path("stages"), "--json", *more, env=PATIENT))["dev"] for more in ((), ("--ranks", 2)))
    for key, value in alone.items():
        within(f"eval by 2 ranks: {key}", abs(together[key] - value) / abs(value), 2e-6)
    check("8 micro-batches pass through 2 stages: the bubble is 11.1 % of the time" in run("check", file, *sets("pp2")), "the bubble")
    ids = lambda *more: run("generate", run.path("one"), "--prompt", "line 7 of", "-n", 12, "--seed", 3, "--ids", *f32, *more, env=PATIENT)
    one = ids()
    check("4 micro-batches pass through 4 stages: the bubble is 11.1 % of the time" in run("check", file, *sets("int2")), "the bubble of two stages")
    for name in ("pp2", "int2"):
        check(ids(*sets(name), "--ranks", 2) == one, f"{name}: other tokens than one process")
    # A rank has its part of the model, so a size that the ranks do not divide is an error.
    for mesh, message in (("mesh=(pp = 3)",), "E916]: pp = 3"), (("mesh=(tp = 3)", "shard.tp=[ff]"), "E910]: tp = 3"):
        words = [x for line in mesh for x in ("--set", f"parallel.{line}")]
        err = run("generate", run.path("one"), "--prompt", "line", *words, "--ranks", 3, status=1, env=PATIENT)
        check(message in err, f"{mesh}: {err}")


BLOCKS = """import std.nn: xent
block Layer(d, e) {{
  param w: real[d, e] = normal(0.02)
  param v: real[e, d] = normal(0.02)
  apply(x: real[b, t, d]) -> real[b, t, d] {{ return x + dot({inner}, v, e) }}
}}
model M(n = 4, d = 8, vocab = 16) {{
  param embed: real[vocab, d] = normal(0.02)
  sub layers[i < n] = Layer(d, 16)
  {more}
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    for l in layers carry x {{ x = l(x) }}
    {loop}
    return dot(x, embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return ({loss}, {weight}) }}
}}
data D {{ source s = text("t.txt"); pack best_fit(seq = 8 tokens) }}
recipe R {{
  model = M(vocab = 256); data = D; run = 2 steps; batch = 64 tokens; micro = 16 tokens; optimizer = adamw(lr = 1e-3)
  parallel {{ mesh = (pp = 2) }}
}}
"""
LOSS = "sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w)"


def blocks(run, inner="tanh(dot(x, w, d))", more="", loop="", loss=LOSS, weight="sum(bt.w)", adapted=""):
    text = BLOCKS.format(inner=inner, more=more, loop=loop, loss=loss, weight=weight)
    if adapted:
        text = text.replace("model = M(vocab = 256)", "model = Adapted").replace("data D", f"model Adapted = M(vocab = 256) with {{ {adapted} }}\ndata D")
    return run.write("m.lm", text)


def test_metrics(run):
    """Metrics that a model emits are means over the micro-batches, as those of one process. A number of rows is that of a micro-batch, in
    metrics, in the loss and as its weight, which counts once for each micro-batch, also where dp divides the rows, with dropout."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"text {i * i} of a line\n" for i in range(99)))
    f32 = ("-q", "--set", "precision.compute=f32", "--set", "micro=32 tokens")
    sums, others = "emit energy = sum(x * x); emit mean = mean(x * x, (b, t, d))", "; emit size = sqrt(sum(x * x)); emit top = max(x)"
    drop = "tanh(dot(dropout(x, 10%), w, d))"
    loss = "mean(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w, (b, t)) * f32(b)"
    how = {"loss": loss, "weight": "f32(b)"}
    run("run", blocks(run, drop, loop=sums + others, **how), *f32, "--set", "parallel.mesh=(dp = 1)", "--out", run.path("one"))
    for mesh, loop in (("f1b2", sums + others), ("pp2", sums), ("pp2", sums + others), ("dp2f1b2", sums + others)):
        out = f"{mesh}-{len(loop)}"
        pipeline(run, mesh, blocks(run, drop, loop=loop, **how), out, *f32)
        for name in ("loss", "grad_norm", *re.findall(r"emit (\w+)", loop)):
            for a, b in zip(curve(run.path("one"), name), curve(run.path(out), name), strict=True):
                within(f"{out}: {name}", abs(a - b) / abs(a), 2e-6)


def test_adapters(run):
    """Initial values that depend on other parameters, DoRA's norms and the masks of `masked`, are those of one process."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"text {i * i} of a line\n" for i in range(99)))
    for name, adapter, ends in (("pp2", "freeze @**; adapt @layers.*.w = dora(rank = 2)", ".m"), ("int2", "adapt @layers.*.v = masked(keep = 50%)", ".mask")):
        file = blocks(run, adapted=adapter)
        run.write("m.lm", "import std.adapt: dora, masked\n" + open(file).read().replace("run = 2 steps", 'save = checkpoint("x", every = 1 steps); run = 2 steps'))
        f32 = ("-q", "--set", "precision.compute=f32")
        run("run", file, *f32, "--set", "parallel.mesh=(dp = 1)", "--out", run.path(f"{name}.one"))
        run("run", file, *f32, *sets(name), "--ranks", 2, "--out", run.path(name), env=PATIENT)
        one, stages = (load(run.path(f, "step-000002", "model.safetensors")) for f in (f"{name}.one", name))
        check(list(one) == list(stages) and sum(key.endswith(ends) for key in one) == 4, str(list(one)))
        for key in one:
            within(f"{name}: {key}", distance(stages[key], one[key]), 1e-5)


def test_refused(run):
    """Models and sizes that a pipeline does not divide: an error with a line."""
    run.write("t.txt", "some text\n" * 40)
    run("check", blocks(run))
    for more, message in (("parallel.mesh=(pp = 3)", "E916]: pp = 3 does not divide the 4 blocks of the list: 1, 2 and 4 do\n"),
                          ("micro=64 tokens", "E25D]: pp = 2 does not divide the number of micro-batches of a step, 1\n"),
                          ("parallel.pipeline=interleaved(chunks = 3)",
                           "E916]: pp * chunks = 6 does not divide the 4 blocks of the list: 1, 2 and 4 do\n"),
                          ("parallel.pipeline=zero_bubble", "E900]: parallel.pipeline = zero_bubble is not available yet")):
        err = run("check", blocks(run), "--set", more, *(("--set", "micro=8 tokens", "--set", "batch=72 tokens") if "pp = 3" in more else ()), status=1)
        check(f"error[{message}" in err, f"{more}: {err}")
    unlike = open(blocks(run, inner="tanh(r * dot(x, w, d))")).read().replace("Layer(d, e)", "Layer(d, e, r)")
    unlike = unlike.replace("Layer(d, 16)", "Layer(d, 16, if i == 1 then 0.5 else 0.9)")
    err = run("check", run.write("unlike.lm", unlike), status=1)
    check("error[E916]: pp = 2 does not divide the 1 period of the list: only 1 does\n" in err and "a period is 4 consecutive ones" in err, err)
    err = run("check", blocks(run), "--set", "parallel.pipeline=one_f_one_b", "--set", "micro=8 tokens", status=1)
    check("error[E255]: pp = 2 does not divide the 1 rows (of 8 tokens) of a micro-batch" in err, err)
    for changes, what in (({"more": "sub tail[i < n] = Layer(d, 16)", "loop": "for l in tail carry x { x = l(x) }"}, "a model with several lists of blocks"),
                          ({"loop": "let x = layers[0](x)"}, "the use of one block apart from the others"),
                          ({"adapted": "freeze @layers.0.**"}, "a list of blocks that differ, or of which some are frozen or adapted apart,"),
                          ({"inner": "tanh(dot(x - sum(x, b), w, d))"}, "a loss that is no sum over rows"),
                          ({"loss": f"{LOSS} * sum(bt.w)"}, "a loss that is no sum over rows")):
        err = run("check", blocks(run, **changes), status=1)
        check(f"error[E915]: pp cannot divide {what} into the stages of a pipeline" in err and "m.lm:" in err, f"{what}: {err}")
    list_of = "block L{0}(d, e) {{ sub ls[k < 2] = {1}(d, e); apply(x: real[b, t, d]) -> real[b, t, d] {{\n let y = x\n for l in ls carry y {{ y = l(y) }}\n return y }} }}\n"
    lists = "".join(list_of.format(k, f"L{k - 1}" if k else "Layer") for k in range(3))
    text = open(blocks(run)).read().replace("model M", lists + "model M").replace("sub layers[i < n] = Layer", "sub layers[i < n] = L2")
    run("check", file := run.write("m.lm", text))
    err = run("check", file, "--set", f"parallel.{TWO}", status=1)
    check("error[E915]: pp cannot divide lists that nest 4 deep, with several stages on each rank, into" in err and "m.lm:3:" in err, err)


def test_collectives(run):
    """What a pipeline of 4 micro-batches and 2 stages exchanges: neighbours in each tick, the operand and the result of the blocks once."""
    file = deep(run)
    run("compile", file, *sets("pp2"), "-o", run.path("plan"))
    plan = open(run.path("plan", "plan.txt")).read()
    found = collectives(plan, "micro")
    ticks = 4 + 2 - 1
    check(found == {("ring_shift", "", "pp"): 2 * ticks, ("all_gather", "", "pp"): 3, ("reduce_scatter", "sum", "pp"): 1,
                    ("all_to_all", "", "pp"): 2}, str(found))
    check(collectives(plan, "reduce") == {("all_reduce", "sum", "pp"): 1}, "the gradients of embedding and head")
    stages = dict(re.findall(r"^param (layers\.\d)\.wg \S+ : \d+ at pp (\d)$", plan, re.M))
    check(stages == {"layers.0": "0", "layers.1": "0", "layers.2": "1", "layers.3": "1"}, str(stages))
    run("compile", file, *sets("int2"), "-o", run.path("plan"))
    stages = dict(re.findall(r"^param (layers\.\d)\.wg \S+ : \d+ at pp (\d)$", open(run.path("plan", "plan.txt")).read(), re.M))
    check(stages == {"layers.0": "0", "layers.1": "1", "layers.2": "0", "layers.3": "1"}, str(stages))
