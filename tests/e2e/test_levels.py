"""The same bits on processors with vectors of 8 and of 16 floats, and with bf16 instructions (LMC_CPU)."""

import numpy as np
from harness import Skip, check, save

# No GEMM: the library uses another order of summation at each level. Rows of 24, 40 and 5000 elements leave a remainder at every vector width.
MODEL = """import std.nn: rmsnorm, layernorm, rope, attention, silu, gelu, gelu_tanh, xent
model Rows(g = 2, e = 40, f = 24, vocab = 5000) {
  param q, k, v: real[vocab, g, e] = normal(1)
  param wide: real[vocab, f] = normal(1)
  param head: real[vocab] = normal(1)
  param n: real[e] = ones
  param m, c: real[f] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let q = rope(rmsnorm(gather(q, tok, vocab), n), pos, 10k)
    let k = rope(rmsnorm(gather(k, tok, vocab), n), pos, 10k)
    let (ks, vs, ps, ss) = history((k, gather(v, tok, vocab), pos, seg), t -> s)
    let o = attention(q, ks, vs, expand(pos, s) >= ps & expand(seg, s) == ss)
    let x = layernorm(gather(wide, tok, vocab), m, c)
    let y = sum(silu(x) * gelu(x) + gelu_tanh(x) + max(x, f), f)
    return expand(sum(o * silu(o), (g, e)) + y, vocab) * head
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }
}
data Batches { source s = batches("batches.safetensors") }
recipe R {
  model = Rows(); data = Batches; seed = 3; run = 2 steps; batch = 96 tokens; micro = 96 tokens
  optimizer = adamw(lr = 1e-3); schedule = warmup_cosine(warmup = 1 steps); clip = global_norm(max = 1.0)
}
"""


def batches(run):
    draw = np.random.default_rng(5)
    shape = (2, 2, 48)
    ints = lambda x: np.ascontiguousarray(np.broadcast_to(x, shape), "i4")
    save(run.path("batches.safetensors"), {"tok": ints(draw.integers(0, 5000, shape)), "next": ints(draw.integers(0, 5000, shape)),
                                           "pos": ints(np.arange(48)), "seg": ints(np.ones(1)), "w": np.ones(shape, "f4")})


def traces(run, compute, levels):
    """Loss, gradients and parameters after two steps at each level that this processor has."""
    out = {}
    for level in levels:
        file = run.path(f"{level}.safetensors")
        code, _, err = run.result("trace", run.path("rows.lm"), "--steps", 2, "--out", file, "--set", f"precision.compute={compute}",
                                  env={"LMC_CPU": level})
        if code == 0:
            out[level] = open(file, "rb").read()
        else:
            check("which this processor does not support" in err, err)
    return out


def test_levels_agree(run):
    """sums, maxima, functions, attention and the optimizer, bit for bit"""
    run.write("rows.lm", MODEL)
    batches(run)
    for compute in ("f32", "bf16"):
        got = traces(run, compute, ("x86-64-v3", "x86-64-v4", "native"))
        if len(got) < 2:
            raise Skip("a processor with AVX2")
        first, *rest = got
        check(all(got[level] == got[first] for level in rest), f"{compute}: " + " ".join(level for level in rest if got[level] != got[first]))
