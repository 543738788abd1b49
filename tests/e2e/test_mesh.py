"""Meshes of several axes: the bytes of a rank, from the shapes of the parameters and the axes of the mesh alone; eight ranks."""
import json, math, re

from harness import ROOT, check, small
from test_ranks import QUICK, curves_check, mpi_needed, tensors

SANITIZED = {"bytes", "refused"}
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
    """Parameters, gradients, states, copies and the windows of gathered layers, to the byte."""
    for mesh, text in MESHES + (MORE if run.nightly else []):
        for compute in ("bf16",) if run.slow else ("f32", "bf16"):
            for whole in ((), ("layers.wu", "embed")) if mesh == MESHES[3][0] else ((),):
                rule = "; whole @{embed,layers.*.wu}" if whole else ""
                file = larger(run, compute=compute, micro=64, more=f"parallel {{ {text}; shard tp = [g, ff, vocab]{rule} }}")
                found = json.loads(run("explain", file, "memory", "--json", env=CPU))["arenas"]
                want = bytes_of(mesh, compute == "bf16", whole)
                check({k: found[k] for k in want} == want, f"{text} {compute} {whole}: {found}, expected {want}")


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
        check(sample(run(*line, "--out", run.path(name), env=QUICK)) == one, f"{name}: other tokens than {one}")
        curves_check(run, "one", name, name)
        if run.nightly:
            run(*line, "-q", "--out", run.path(f"{name} again"), env=QUICK)
            check(tensors(run.path(name), 20) == tensors(run.path(f"{name} again"), 20), f"{name}: two runs differ")


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
