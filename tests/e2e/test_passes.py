"""Each optimization disabled alone: the same loss and gradients within the tolerance that passes.def states."""
import glob, json, re

import numpy as np

from harness import ROOT, check, distance, doctor, load, on_one_cpu, small, within

SANITIZER_BUILD = {"forced", "refused", "former_name"}


def switchable():
    """name -> tolerance"""
    text = open(f"{ROOT}/compiler/passes/passes.def").read()
    rows = re.findall(r'^PASS\("(\w+)",\s*"[^"]*",[^"]*?,\s*([^\s,]+),\s*lm_pass_\w+\)$', text, re.M)
    check(len(rows) == len(re.findall(r"^PASS\(", text, re.M)), "every row of passes.def is read")
    return {name: float(off) for name, off in rows if off != "NEEDED"}


def agree(what, other, usual, bar):
    """Traced values of two ways to compile a program. A gradient that cancels to rounding errors is measured against the largest gradient."""
    check({k: v.shape for k, v in usual.items()} == {k: v.shape for k, v in other.items()}, f"{what}: the same tensors")
    floor = 1e-3 * max(np.linalg.norm(v) for k, v in usual.items() if k.startswith("grad."))
    for key in usual:
        within(f"{key} {what}", distance(other[key], usual[key], floor if key != "loss" else 0), bar)


def compare(run, file, *args):
    args = (*args, "--steps", 2, "--values", "loss,grads")
    alone = {"OMP_NUM_THREADS": "1"}   # small GEMMs, which are slower with many threads
    whole = run.trace(file, *args, env=alone)
    for name, tolerance in switchable().items():
        part = run.trace(file, *args, "--disable-pass", name, env=alone)
        agree(f"without {name}", part, whole, tolerance)


def test_llama(run):
    """packed documents, grouped heads, dropout, two micro-batches"""
    compare(run, small(run, rows=2, seq=32, micro=32, drop=0.1))


def test_gpt2(run):
    compare(run, f"{ROOT}/tests/reference/gpt2-tiny/reference.lm")


def test_forced(run):
    """passes that the cost model of this target declines are correct if forced: in bf16, with dropout, in two micro-batches, in layers that share
    weights, behind biases"""
    plans = {name: open(declined(run, name)).read() for name in ("fuse_gemms", "prepack")}
    usual = open(plan_of(run, whole_panels(run), "usual")).read()
    check(plans["fuse_gemms"].count(" gemm ") < usual.count(" gemm "))
    vectors = "avx2" in doctor(run, "instructions")["what"]
    check(plans["prepack"].count(" panels=") > 5 or not vectors, plans["prepack"])
    check(" panels=" not in usual, "the default in f32")


def whole_panels(run):
    """A model whose weights are multiples of 32 by 32, so that panels are complete at any vector width."""
    file = small(run, rows=2, seq=32, micro=32, drop=0.1)
    text = open(file).read()
    check("e = 8" in text)
    return run.write("panels.lm", text.replace("e = 8", "e = 16"))


def declined(run, name):
    asked, off = ("--enable-pass", name), ("--disable-pass", name)
    file = whole_panels(run)
    gpt2 = f"{ROOT}/tests/reference/gpt2-tiny/reference.lm"
    albert = f"{ROOT}/tests/models/albert/reference.lm"
    for file, compute, bar in (file, "f32", 1e-5), (file, "bf16", 2e-2), (gpt2, "f32", 1e-5), (albert, "f32", 1e-5):
        args = (file, "--recipe", "Reference", "--steps", 2, "--values", "loss,grads", "--set", f"precision.compute={compute}")
        if file.endswith("panels.lm"):
            args = (file, *args[3:])
        usual, other = run.trace(*args, *off), run.trace(*args, *asked)
        agree(f"of {file} in {compute}, {name}", other, usual, bar)
    return plan_of(run, whole_panels(run), name, *asked)


GPT2 = """import "{root}/examples/gpt2.lm": GPT2
data Batches {{ source s = batches("batches.safetensors") }}
recipe Small {{
  model = GPT2(depth = 2, d = 32, heads = 4, positions = 128, vocab = 64)
  data = Batches; seed = 7
  run = 2 steps; batch = 2048 tokens; micro = 1024 tokens
  optimizer = adamw(lr = 1e-3)
  precision {{ compute = f32 }}
}}
"""


def test_tile_rows(run):
    """rows of half a layer in tiles, with dropout, in bf16, after biases: loss and gradients; the same
    bits for any number of threads, and with recomputed stashes; less memory"""
    asked, off = ("--enable-pass", "tile_rows"), ("--disable-pass", "tile_rows")
    llama = {compute: small(run, rows=16, seq=128, drop=0.1, compute=compute, name=f"{compute}.lm") for compute in ("f32", "bf16")}
    gpt2 = run.write("gpt2.lm", GPT2.format(root=ROOT))
    for file, bar in (llama["f32"], 1e-5), (llama["bf16"], 2e-2), (gpt2, 1e-5):
        args = (file, "--steps", 1, "--values", "loss,grads")
        whole, tiled = run.trace(*args, *off), run.trace(*args, *asked)
        agree(f"of {file}", tiled, whole, bar)
        one = on_one_cpu(lambda: run.trace(*args, *asked))
        check(all(np.array_equal(one[key], tiled[key]) for key in tiled), f"{file} with one thread")
        # The number of rows per tile depends on the processor; without AMX it is less than the rows of these models.
        plans = [open(plan_of(run, file, how, *options, env={"LMC_CPU": "x86-64-v2"})).read() for how, options in (("whole", off), ("tiled", asked))]
        loops, memory = zip(*((p.count(" loop i"), int(re.search("func micro work (\\d+)", p)[1])) for p in plans))
        check(loops[1] >= loops[0] + 4 and memory[1] < memory[0], f"{file}: {loops} loops, {memory} bytes")   # forward 2, backward 2
    budget = int(0.9 * json.loads(run("explain", gpt2, "memory", *asked, "--json"))["bytes"])
    short = run.trace(*args, *asked, "--set", f"memory.budget={budget} bytes")
    check(all(np.array_equal(short[key], tiled[key]) for key in tiled), "with recomputed values")


def test_defer_sums(run):
    """gradients of norms and biases, summed over all layers behind the loop: the same bits, with several micro-batches and
    with recomputed stashes; fewer steps of the plan"""
    llama = small(run, depth=3, rows=32, seq=128, micro=2048)
    gpt2 = run.write("gpt2.lm", GPT2.format(root=ROOT).replace("depth = 2", "depth = 3").replace("2048", "4096").replace("1024", "2048"))
    asked, off = ("--enable-pass", "defer_sums"), ("--disable-pass", "defer_sums")
    for name, file, sums in ("llama", llama, 4), ("gpt2", gpt2, 8):
        plans = [open(plan_of(run, file, f"{name}{i}", *options)).read().split("func micro ")[1] for i, options in enumerate((off, asked))]
        bodies = [re.split(r"\n +\d+ end ", p) for p in plans]
        adds = [[len(re.findall(r" add .*accum", part)) for part in body] for body in bodies]
        check(max(adds[0]) >= sums and max(adds[1][:-1]) <= max(adds[0]) - sums, f"{name}: adds in the loop, {adds}")
        args = (file, "--steps", 2, "--values", "loss,grads,params")
        usual, deferred = run.trace(*args, *off), run.trace(*args, *asked)
        check(all(np.array_equal(usual[k], deferred[k]) for k in usual), f"{name}: the same bits")
        budget = int(0.9 * json.loads(run("explain", file, "memory", *asked, "--json"))["bytes"])
        short = run.trace(*args, *asked, "--set", f"memory.budget={budget} bytes")
        check(all(np.array_equal(short[k], deferred[k]) for k in deferred), f"{name} with recomputed values")


TWICE = """
model Twice(d = 32, f = 64, vocab = 64) {{
  param embed: real[vocab, d] = normal(0.3)
  param g, u: real[d, f] = normal(0.3)
  param down: real[f, d] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    return dot(dot(dot(x, g, d) * dot(x, u, d), down, f), embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let z = apply(bt.tok, bt.pos, bt.seg)
    return (sum(xent(z, bt.next) * bt.w) + sum(bt.w) * sum(f32({used})), sum(bt.w))
  }}
}}
data Batches {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Twice(); data = Batches; seed = 7; run = 2 steps; batch = 512 tokens; micro = 64 tokens
  optimizer = adamw(lr = 1e-2); precision {{ compute = f32 }}
}}
"""


def test_packed_weights(run):
    """weights of merged GEMMs side by side in memory: losses, gradients and parameters as with separate ones, also with an
    optimizer group of some of them, which stay separate, and with further uses of one; checkpoints and resumed runs"""
    file = small(run, rows=32, micro=64, more="", name="wide.lm")
    text = open(file).read().replace("kv = 2", "kv = 4")
    asked, off = ("--enable-pass", "fuse_gemms"), ("--disable-pass", "fuse_gemms")
    for compute, bar in ("f32", 1e-5), ("bf16", 2e-2):
        for name, group, packed in ("one", "", 6), ("two", "group @**.attn.wq = (decay = 0.3)\n", 0):
            body = text.replace("compute = f32", f"compute = {compute}").replace("  clip =", f"  {group}  clip =")
            model = run.write(f"{name}_{compute}.lm", body)
            plan = open(plan_of(run, model, f"{name}{compute}", *asked)).read()
            pieces = re.findall(r"param layers\.\d\.(\S+) .*\n  piece .* by \[(\d+),", plan)
            check(len(pieces) == 4 + packed, f"{name}: pieces of w{pieces}")
            check(all(stride == {"w": "128", "a": "96"}[path[0]] for path, stride in pieces), pieces)
            args = (model, "--steps", 2, "--values", "loss,grads,params")
            apart, merged = run.trace(*args, *off), run.trace(*args, *asked)
            agree(f"of {name} in {compute}", merged, apart, bar)
    for i, used in enumerate(("0.1 * g * g", "sin(u) - 0.1 * g * u", "0.1 * f32(dot(g, u, d)) ^ 2")):
        twice = run.write(f"twice{i}.lm", "import std.nn: xent\n" + TWICE.format(used=used))
        check(open(plan_of(run, twice, f"twice{i}", *asked)).read().count("  piece ") == 2, "g and u are packed")
        args = (twice, "--values", "loss,grads,params")
        apart, merged = run.trace(*args, *off), run.trace(*args, *asked)
        for key in apart:
            within(f"{key} with {used}", distance(merged[key], apart[key], 1e-3), 1e-5)
    model = run.path("one_f32.lm")
    for out, steps, options in ("whole", 3, asked), ("half", 2, asked), ("half", 3, asked), ("apart", 3, off):
        run("run", model, "--steps", steps, "-q", "--out", run.path(out), *options)
    whole, half, apart = ([load(f) for f in sorted(glob.glob(run.path(out) + "/**/*.safetensors", recursive=True))] for out in ("whole", "half", "apart"))
    check(len(whole) == len(apart) and whole, "the same files")
    for x, y in zip(whole, apart):
        check({k: v.shape for k, v in x.items()} == {k: v.shape for k, v in y.items()}, "the same tensors")
        for key in x:
            within(f"{key} of the checkpoint", distance(x[key], y[key], 1e-3), 1e-3)
    last = half[-len(whole):]
    check(all(np.array_equal(x[k], y[k]) for x, y in zip(whole, last) for k in x), "a resumed run has the same bits")


def test_padded(run):
    """logits of a vocabulary that is no multiple of 64, padded in the plan: loss, gradients and parameters, which nothing pads"""
    asked, off = ("--enable-pass", "pad_gemms"), ("--disable-pass", "pad_gemms")
    for compute, bar in ("f32", 1e-5), ("bf16", 2e-2):
        file = small(run, rows=2, seq=16, micro=16, vocab=4100, compute=compute, name=f"{compute}.lm")
        args = (file, "--steps", 3, "--values", "loss,grads,params")
        plain, padded = run.trace(*args, *off), run.trace(*args, *asked)
        agree(f"of {file}", padded, plain, bar)
        plan = open(plan_of(run, file, "padded", *asked)).read()
        check("n=4160(" in plan and "=4100(" not in plan, "every GEMM is padded")


SIGN = """
optimizer sgn(lr) {
  update(p: f32, g: f32) -> f32 { return p - lr * (g / abs(g) + 0 * log(abs(p))) }
}
"""


def test_padding_stays_zero(run):
    """an optimizer that makes NaN of a gradient and a parameter of 0: padding remains 0, so that GEMMs may read it"""
    asked, off = ("--enable-pass", "pad_gemms"), ("--disable-pass", "pad_gemms")
    for compute in "f32", "bf16":
        file = small(run, rows=2, seq=16, micro=16, vocab=4100, compute=compute, name=f"{compute}.lm")
        text = open(file).read()
        other = re.sub(r"  group .*\n", "", re.sub(r"adamw\(.*?\)", "sgn(lr = 1e-4)", text)) + SIGN
        check(other.count("sgn(lr") == 2, text)
        args = (run.write(f"sign_{compute}.lm", other), "--steps", 3, "--values", "loss,grads,params")
        plain, padded = run.trace(*args, *off), run.trace(*args, *asked)
        check(all(np.isfinite(v).all() for v in plain.values()), "the model has no NaN")
        for key in plain:
            check(np.isfinite(padded[key]).all(), f"{key} in {compute} is finite")
            if key == "loss":
                within(f"{key} in {compute}", distance(padded[key], plain[key], 0), 2e-2 if compute == "bf16" else 1e-4)


def plan_of(run, file, name, *options, **how):
    run("compile", file, "--out", run.path(name), *options, **how)
    return run.path(name) + "/plan.txt"


def test_refused(run):
    file = small(run)
    err = run("trace", file, "--out", run.path("x"), "--disable-pass", "cse,inline", status=1)
    check("pass inline cannot be disabled" in err, err)
    err = run("bench", file, "--disable-pass", "frob", status=1)
    check("there is no pass frob" in err, err)
    err = run("trace", file, "--out", run.path("x"), "--disable-pass", "fuse_gemms", "--enable-pass", "fuse_gemms", status=1)
    check("pass fuse_gemms is both disabled and enabled" in err, err)


def test_former_name(run):
    file = small(run)
    plan = plan_of(run, file, "now", "--disable-pass", "fuse_loops,cse")
    code, _, err = run.result("compile", file, "--out", run.path("former"), "--disable-pass", "jam,cse")
    check(code == 0 and "note: pass jam is now called fuse_loops" in err, err)
    check(open(plan).read() == open(run.path("former/plan.txt")).read(), "--disable-pass jam is not fuse_loops")


def test_resume(run):
    """a resumed run refuses options that change bits"""
    file = small(run, steps=3)
    run("run", file, "--steps", 2, "-q", "--out", run.path("run"), "--disable-pass", "fuse")
    err = run("run", file, "-q", "--out", run.path("run"), status=1)
    check("--disable-pass was fuse, is absent" in err, err)
    run("run", file, "-q", "--out", run.path("run"), "--disable-pass", "fuse")


def test_depth(run):
    """96 layers compile to nearly the kernels of 6 layers, in about the same time"""
    shallow, deep = (json.loads(run("compile", small(run, depth=d, name=f"d{d}.lm"), "--json")) for d in (6, 96))
    check(deep["kernels"] == shallow["kernels"], f"{deep['kernels']} kernels, {shallow['kernels']}")
    check(deep["kernels_compiled"] <= 3, f"{deep['kernels_compiled']} differ")
