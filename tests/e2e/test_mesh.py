"""Meshes of several axes: the bytes of a rank, from the shapes of the parameters and the axes of the mesh alone; eight ranks."""
import json, math, re

import numpy as np
from harness import ROOT, check, save, small
from test_ranks import PATIENT, curves_check, mpi_needed, tensors

SANITIZER_BUILD = {"refused"}
DEPTH = 4
CPU = {"LMC_CPU": "x86-64-v3"}     # which weights are prepacked depends on the processor
SIZES = {"vocab": 64, "d": 64, "ff": 256, "g": 2, "h": 2, "e": 8}
LAYER = {"attn.wq": "d g h e", "attn.wk": "d g e", "attn.wv": "d g e", "attn.wo": "g h e d", "attn.qn": "e", "attn.kn": "e",
         "n1": "d", "n2": "d", "wg": "d ff", "wu": "d ff", "wd": "ff d"}
OUTSIDE = {"embed": "vocab d", "norm": "d"}
TP = "g", "ff", "vocab"           # shard tp, in order of preference


def blocks(n):
    return -(-n // 1024)


def aligned(n):
    return -(-n // 64) * 64


def parts_of(mesh, whole):
    """of each parameter of a rank: name, instances, elements along tp, and ranks among which ZeRO divides it (1: it is whole)"""
    over = mesh.get("fsdp", mesh.get("dp", 1)) if mesh["zero"] else 1
    for name, axes in {**OUTSIDE, **{f"layers.{k}": v for k, v in LAYER.items()}}.items():
        sizes = [SIZES[x] for x in axes.split()]
        cut = next((x for x in TP if x in axes.split()), None)
        if cut and "tp" in mesh:
            sizes[axes.split().index(cut)] //= mesh["tp"]
        n = math.prod(sizes)
        divides = any(size % over == 0 for size in sizes) and blocks(n // over) < blocks(n) and name not in whole
        yield name, DEPTH // mesh.get("pp", 1) if name in [f"layers.{k}" for k in LAYER] else 1, n, over if divides else 1


def bytes_of(mesh, half, whole=()):
    """the bytes of a rank: section "ZeRO" of docs/parallel.md, with blocks of 1,024 elements"""
    c, zero, parts = 2 if half else 4, mesh["zero"], list(parts_of(mesh, whole))
    own = sum(times * blocks(n // over) for _, times, n, over in parts)
    cut = sum(times * n for _, times, n, over in parts if over > 1)
    out = {"param": 4096 * own, "grad": 4096 * own + (4 * cut if zero == 1 else 0), "state": 2 * 4096 * own}
    if not zero:
        out["copy"] = 2048 * own if half else 0
    else:               # gathered: up to stage 2; parameters that are whole: casts
        out["copy"] = sum(aligned(times * n * c) for _, times, n, over in parts if (over > 1 and zero < 3) or (over == 1 and half))
    return out


def windows_of(mesh, half, whole=()):
    """the windows of a layer that `zero` divides: gathered parameters, their casts, gradients before and behind their sum"""
    c, zero = 2 if half else 4, mesh["zero"]
    divided = [(n, over) for name, _, n, over in parts_of(mesh, whole) if over > 1 and name.startswith("layers.")]
    size, part = sum(n for n, _ in divided), sum(n // over for n, over in divided)
    return {"gathered": [2 * c * size] * 2 if zero == 3 else [], "casts": [2 * c * part] * 2 if zero == 3 and half else [],
            "sums": [(4 * size, 4 * part)] if zero > 1 else []}


def windows_found(plan, axis):
    """the same windows in the function `micro` of a plan, for each of its passes"""
    micro = plan.split("\nfunc micro work", 1)[1].split("\nfunc ", 1)[0]
    found = {"gathered": {}, "casts": {}}
    for size, steps, label in re.findall(r"^  live \d+: work\[\d+ : (\d+)\] steps (\S+) two of (.*)", micro, re.M):
        kind = found["gathered" if label.startswith(f"all_gather over {axis} ") else "casts"]
        kind[steps.split("..")[1]] = kind.get(steps.split("..")[1], 0) + int(size)
    sums = re.findall(rf"start reduce_scatter sum f32 \d+ over {axis} of .*? as \d+ (.*?) -> (.*?)(?: //|$)", micro, re.M)
    bytes_in = lambda text: sum(int(n) for n in re.findall(r"work\[\S+ : (\d+)\]", text))
    return {**{kind: list(sizes.values()) for kind, sizes in found.items()}, "sums": [(bytes_in(a), bytes_in(b)) for a, b in sums]}


MESHES = [(dict(dp=4, zero=0), "mesh = (dp = 4)"), (dict(dp=4, zero=1), "mesh = (dp = 4); zero = 1"), (dict(dp=4, zero=2), "mesh = (dp = 4); zero = 2"),
          (dict(fsdp=4, zero=3), "mesh = (fsdp = 4)"), (dict(dp=2, fsdp=2, zero=3), "mesh = (dp = 2, fsdp = 2)"),
          (dict(fsdp=2, tp=2, pp=2, zero=3), "mesh = (pp = 2, fsdp = 2, tp = 2)")]
MORE = [(dict(dp=2, tp=2, zero=zero), f"mesh = (dp = 2, tp = 2); zero = {zero}") for zero in range(4)] + [(dict(dp=2, pp=2, zero=1), "mesh = (dp = 2, pp = 2); zero = 1")]


def larger(run, **how):
    """a model whose matrices have parts of whole blocks on each rank"""
    file = small(run, rows=8, depth=DEPTH, **how)
    text = open(file).read()
    open(file, "w").write(text.replace("d = 32, ff = 64,", "d = 64, ff = 256,"))
    return file


def test_bytes(run):
    """Parameters, gradients, states, copies, and the windows of gathered layers and of gradients that are added, to the byte."""
    for mesh, text in MESHES + (MORE if run.nightly else []):
        for compute in ("f32", "bf16"):
            for whole in ((), ("layers.wu", "embed")) if mesh == MESHES[3][0] else ((),):
                rule = "; whole @{embed,layers.*.wu}" if whole else ""
                file = larger(run, compute=compute, micro=64, more=f"parallel {{ {text}; shard tp = [g, ff, vocab]{rule} }}")
                found = json.loads(run("explain", file, "memory", "--json", env=CPU))["arenas"]
                want = bytes_of(mesh, compute == "bf16", whole)
                check({k: found[k] for k in want} == want, f"{text} {compute} {whole}: {found}, expected {want}")
                run("compile", file, "-o", run.path("plan"), env=CPU)
                found = windows_found(open(run.path("plan", "plan.txt")).read(), "fsdp" if "fsdp" in mesh else "dp")
                want = windows_of(mesh, compute == "bf16", whole)
                check(found == want, f"the windows of {text} {compute} {whole}: {found}, expected {want}")


TEXT = """import "{root}/examples/llama.lm": Llama
data D {{ source s = text("t.txt", split = "\\n"); pack best_fit(seq = 16 tokens) }}
recipe R {{
  model = Llama(depth = 2, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256, drop = 0.1); data = D; seed = 1
  run = 20 steps; batch = 256 tokens; micro = 128 tokens; optimizer = adamw(lr = 1e-3); clip = global_norm(max = 1.0)
  precision {{ compute = f32 }}; parallel {{ shard tp = [g, ff, vocab] }}
  sample {{ every = 20 steps; prompt = "line"; n = 24 tokens; temperature = 0 }}; save = checkpoint("run", every = 20 steps)
}}
"""
EIGHT = {"fsdp 2 tp 2 pp 2": "mesh = (pp = 2, fsdp = 2, tp = 2)", "dp 8": "mesh = (dp = 8)"}


def test_eight_ranks(run):
    """20 steps with dropout: loss and gradient norm of one process, the same greedy tokens; nightly, two runs have the same bits, and dp 8."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(400)))
    file = run.write("t.lm", TEXT.format(root=ROOT))
    sample = lambda text: re.search(r"sample after step 20:\n(.*?)\n(?=step|done)", text, re.S)[1]
    one = sample(run("run", file, "--out", run.path("one")))
    check(len(one) > 20, one)
    for name, mesh in EIGHT.items() if run.nightly else list(EIGHT.items())[:1]:
        line = "run", file, "--set", f"parallel.{mesh}", "--ranks", 8
        check(sample(run(*line, "--out", run.path(name), env=PATIENT)) == one, f"{name}: other tokens than {one}")
        curves_check(run, "one", name, name)
        if run.nightly:
            run(*line, "-q", "--out", run.path(f"{name} again"), env=PATIENT)
            check(tensors(run.path(name), 20) == tensors(run.path(f"{name} again"), 20), f"{name}: two runs differ")


MASKS = """import std.nn: dropout
block Layer(d, vocab) {
  param w: real[vocab, d] = normal(0.02)
  apply(x: real[b, t, d], tok: int[b, t]) -> real[b, t, d] { return x + dropout(gather(w, tok, vocab), 25%) }
}
model M(n = 4, d = 8, vocab = 64) {
  param embed: real[vocab, d] = normal(0.02)
  sub layers[i < n] = Layer(d, vocab)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = dropout(gather(embed, tok, vocab), 25%)
    for l in layers carry x { x = l(x, tok) }
    return expand(sum(x, d), vocab)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(f32(apply(bt.tok, bt.pos, bt.seg))), sum(bt.w)) }
}
data Batches { source s = batches("batches.safetensors") }
recipe R {
  model = M(); data = Batches; seed = 7; run = 1 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = adamw(lr = 1e-3); precision { compute = f32 }; parallel { shard tp = [d] }
}
"""
SEQUENCE = "shard.tp=[vocab]", "sequence=tp"
MASKED = ("mesh=(dp = 2, cp = 2, tp = 2)",), ("mesh=(pp = 2, dp = 2, tp = 2)", *SEQUENCE)
MORE_MASKED = (("mesh=(fsdp = 2, cp = 2, tp = 2)", *SEQUENCE), ("mesh=(pp = 2, dp = 2, cp = 2)", "pipeline=one_f_one_b"),
               ("mesh=(pp = 2, fsdp = 2, tp = 2)", "pipeline=interleaved(chunks = 2)"))


def test_masks(run):
    """The mask of each element of dropout, on eight ranks along three axes, is that of one process. Each token is in the batch once, so the
    gradient of its row of a table is the mask of its position: 0, or 1 / 0.75."""
    mpi_needed(run)
    tok = np.random.default_rng(3).permutation(64).astype("<i4").reshape(1, 8, 8)
    pos = np.broadcast_to(np.arange(8, dtype="<i4"), tok.shape)
    save(run.path("batches.safetensors"), dict(tok=tok, pos=pos, seg=np.zeros_like(tok), next=tok, w=np.ones(tok.shape, "<f4")))
    file = run.write("masks.lm", MASKS)
    masks = lambda *words: {name: x for name, x in run.trace(file, "--steps", 1, *words, env=PATIENT).items() if name.startswith("grad.")}
    one = masks()
    check(len(one) == 5 and all(np.unique(x).tolist() == [0, float(np.float32(4 / 3))] for x in one.values()), str(one))
    check(len({x.tobytes() for x in one.values()}) == 5, "two sites have the same mask")
    for mesh in MASKED + (MORE_MASKED if run.nightly else ()):
        many = masks(*(word for s in mesh for word in ("--set", f"parallel.{s}")), "--ranks", 8)
        for name, mask in one.items():
            check(np.array_equal(many[name], mask), f"{mesh}: {name}: {many[name]}, expected {mask}")


def test_refused(run):
    """Sizes that the ranks do not divide: the nearest that they do, of the mesh and of the model."""
    file = larger(run, micro=64, more="parallel { shard tp = [ff, vocab] }")
    text = open(file).read()
    open(run.path("many.lm"), "w").write(text.replace("ff = 256", "ff = 5040"))
    for name, mesh, message in (("small", "tp = 3", "tp = 3 divides ff = 255 or 258"), ("small", "dp = 3", "of the numbers for dp, 1, 2 and 4 do"),
                                ("small", "pp = 4", "of the numbers for pp, 1 and 2 do"), ("small", "tp = 512", "tp = 512 divides ff = 512"),
                                ("many", "tp = 11", "tp = 11 does not divide ff = 5040: 6, 7, 8, 9, 10, 12, 14, 15, 16 and 18 do")):
        err = run("check", run.path(f"{name}.lm"), "--set", f"parallel.mesh=({mesh})", status=1)
        check(f"{message}\n" in err, err)
    both = "--set", "parallel.mesh=(cp = 8, tp = 4)", "--set", "parallel.sequence=tp"
    err = run("check", file, *both, "--set", "parallel.shard.tp=[ff]", status=1)
    check("cp * tp = 32 divides t = 32\n" in err, err)
