"""attend = fp8: attention with queries, keys, values and weights in e4m3, against float64 with the same roundings, on the CPU and
the fake GPU. Each token is one row of tables of queries, keys, values and of the cotangent of o, so their gradients are those of
single positions, and that of the last table is o."""
import numpy as np
from harness import check, distance, random_batches, remove, save, small, within
from test_fp8 import rounded, scale_of
from test_gpu import Fake
from test_ranks import PATIENT, curve, mpi_needed

SANITIZER_BUILD = {"refused"}
ROWS, SEQ, GROUPS, HEADS, WIDTH = 2, 70, 2, 2, 16
TABLES = ("q", "k", "v", "c")
MASKS = {"causal": "expand(pos, s) >= ps & expand(seg, s) == ss",
         "window": "expand(pos, s) >= ps & expand(seg, s) == ss & ps + 9 > expand(pos, s)",
         "documents": "expand(seg, s) == ss"}
MODEL = """import std.nn: attention
model M(n = {n}, g = {g}, h = {h}, e = {e}) {{
  param q, c: real[n, g, h, e] = zeros
  param k, v: real[n, g, e] = zeros
  heads(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, g, h, e] {{
    let (ks, vs, ps, ss) = history((gather(k, tok, n) * 1, gather(v, tok, n) * 1, pos, seg), t -> s)
    return attention(gather(q, tok, n), ks, vs, {mask}) {more}
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    return (sum(f32(heads(bt.tok, bt.pos, bt.seg)) * f32(gather(c, bt.tok, n))), sum(bt.w))
  }}
}}
model Start = M() from "start.safetensors"
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Start; data = D; run = 1 steps; optimizer = sgd(lr = 0)
  precision {{ compute = {compute}; attend = fp8 }}
}}
"""


def model(run, mask, compute, more=""):
    batches = random_batches(1, ROWS, SEQ, seed=3)
    batches["tok"][:] = np.arange(ROWS * SEQ).reshape(1, ROWS, SEQ)
    save(run.path("batches.safetensors"), batches)
    rng, n = np.random.default_rng(4), ROWS * SEQ
    tables = {t: rng.normal(0, 1, (n, GROUPS, *([HEADS] if t in "qc" else []), WIDTH)).astype("f4") for t in TABLES}
    tables["q"] *= 2
    tables["v"][:, 1] *= 2**-14           # the heads of the groups have other magnitudes
    save(run.path("start.safetensors"), tables)
    text = MODEL.format(n=n, g=GROUPS, h=HEADS, e=WIDTH, mask=MASKS[mask], compute=compute, more=more)
    return run.write("m.lm", text), batches, tables


def bf16(x):
    u = np.asarray(x, "f4").view("u4").astype("u8")
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16 << 16).astype("u4").view("f4").astype("f8")


def by_head(x, axes, fault):
    """x with a scale for each index of the axes"""
    reduced = tuple(i for i in range(x.ndim) if i not in axes)
    top = np.abs(x).max(tuple(range(x.ndim)) if fault == "one scale" else reduced, keepdims=True)
    return rounded(x, 1.0 if fault == "a scale of 1" else scale_of(top, "e4m3"), "e4m3").astype("f8")


def expected(tables, batches, mask, compute, fault=None):
    """the gradients of the tables"""
    cut = bf16 if compute == "bf16" else lambda x: np.asarray(x, "f8")
    q, k, v, c = (cut(tables[t]).reshape(ROWS, SEQ, *tables[t].shape[1:]) for t in TABLES)
    q, k, v = by_head(q, (0, 2, 3), fault), by_head(k, (0, 2), fault), by_head(v, (0, 2), fault)
    pos, seg = batches["pos"][0], batches["seg"][0]
    seen = seg[:, :, None] == seg[:, None, :]
    if mask != "documents":
        seen &= pos[:, :, None] >= pos[:, None, :]
    if mask == "window":
        seen &= pos[:, None, :] + 9 > pos[:, :, None]
    x = np.einsum("btghe,bsge->bghts", q, k) * WIDTH**-0.5
    x = np.where(seen[:, None, None], x, -1e30)
    w = np.exp(x - np.log(2) * np.rint(x.max(-1, keepdims=True) / np.log(2)))
    p = w / w.sum(-1, keepdims=True)
    r = w if fault == "whole weights" else rounded(w, 256.0, "e4m3").astype("f8")
    o = np.einsum("bghts,bsge->btghe", r / w.sum(-1, keepdims=True), v)
    dp = np.einsum("btghe,bsge->bghts", c, v)
    delta = np.einsum("btghe,btghe->bght", c, o)[..., None]
    dx = p * (dp - delta) * WIDTH**-0.5
    found = {"q": np.einsum("bghts,bsge->btghe", dx, k), "k": np.einsum("bghts,btghe->bsge", dx, q),
             "v": np.einsum("bghts,btghe->bsge", p, c), "c": o}
    return {t: g.reshape(tables[t].shape) for t, g in found.items()}


def errors(got, want):
    """the greatest error of a group of heads"""
    return {t: max(distance(want[t][:, g], got[t][:, g]) for g in range(GROUPS)) for t in TABLES}


def numbers_check(run, trace, mask, compute, most):
    file, batches, tables = model(run, mask, compute)
    traced = trace(file, "--values", "loss,grads")
    got = {t: traced[f"grad.{t}"] * float(batches["w"].sum()) for t in TABLES}
    off = errors(got, expected(tables, batches, mask, compute))
    for t, x in off.items():
        within(f"{mask}, {compute}: gradient of {t}", x, most)
    for fault in ("a scale of 1", "one scale", "whole weights"):
        far = max(errors(got, expected(tables, batches, mask, compute, fault)).values())
        check(far > 2 * most, f"{mask}, {compute}: the check must find {fault}: {far:.2g}")


def test_numbers(run):
    """every mask in f32, one in bf16"""
    for mask, compute, most in (("causal", "f32", 2e-5), ("window", "f32", 2e-5), ("documents", "f32", 2e-5), ("causal", "bf16", 5e-3)):
        numbers_check(run, run.trace, mask, compute, most)


def test_gpu(run):
    fake = Fake(run)
    for mask, compute, most in (("causal", "f32", 2e-5), ("window", "bf16", 5e-3)):
        numbers_check(run, fake.trace, mask, compute, most)


def test_ranks(run):
    """Ranks that divide heads or positions, and stages: losses and gradient norms of one process, which are not those of f32."""
    mpi_needed(run)
    file = small(run, steps=2, rows=8, seq=32, micro=128, more='save = checkpoint("run")')
    env = {**PATIENT, "LMC_CPU": "x86-64-v3"}
    on = ("-q", "--set", "precision.attend = fp8")
    run("run", file, "-q", "--out", run.path("f32"), env=env)
    run("run", file, *on, "--out", run.path("one"), env=env)
    f32, one = (curve(run.path(f), "grad_norm") for f in ("f32", "one"))
    check(all(abs(a / b - 1) > 1e-4 for a, b in zip(one, f32, strict=True)), f"{one} {f32}")
    # Each part of the ring subtracts its own maximum, so that the smallest weights round to other numbers; an update would let them grow.
    still = ("--set", "optimizer = sgd(lr = 0)")
    run("run", file, *on, *still, "--out", run.path("still"), env=env)
    for mesh, as_run, more in (("mesh = (tp = 2); shard tp = [g, ff]", "one", ()), ("mesh = (cp = 2)", "one", ()),
                               ("mesh = (cp = 2); context = ring", "still", still), ("mesh = (pp = 2)", "one", ())):
        run("run", file, *on, *more, "--ranks", 2, "--set", f"parallel {{ {mesh} }}", "--out", run.path("ranks"), env=env)
        for key in ("loss", "grad_norm"):
            for a, b in zip(curve(run.path("ranks"), key), curve(run.path(as_run), key), strict=True):
                within(f"{key} with {mesh}", abs(a / b - 1), 1e-5)
        remove(run.path("ranks"))


def test_refused(run):
    """what attention of 8-bit floats does not support is an error"""
    file, *_ = model(run, "causal", "f32")
    text = open(file).read()
    cases = {"E2F8]: attend = fp8 does not support weights with a factor": text.replace(MASKS["causal"] + ")", MASKS["causal"] + ", drop = 0.1)")
             .replace("attention(gather(q, tok, n), ks, vs", "attend(f32(dot(gather(q, tok, n), ks, e)), vs").replace("nn: attention", "nn: attend"),
             "E2F9]: attend = fp8 finds no softmax attention": text.replace("attention(gather(q, tok, n), ks, vs, " + MASKS["causal"] + ")",
                                                                            "gather(q, tok, n) * gather(v, tok, n)"),
             "E2FA]: attend = fp8 needs compute = f32 or bf16": text.replace("compute = f32", "compute = f16")}
    for message, changed in cases.items():
        check(changed != text, "the case must differ")
        err = run("check", run.write("refused.lm", changed), status=1)
        check(f"error[{message}" in err, err)
