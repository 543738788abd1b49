"""The same bits on processors with vectors of 8 and of 16 floats, and with bf16 instructions (LMC_CPU)."""

import re

import numpy as np
from harness import Skip, check, save

SANITIZER_BUILD = set()

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


# Attention in bf16 is not the same with AVX512-BF16 or AMX (docs/numerics.md).
WITHOUT_ATTENTION = re.sub(r"let \(ks, vs.*\n.*let o = .*", "let o = q * silu(k) + gather(v, tok, vocab)", MODEL)


def traces(run, compute, levels, model="rows.lm"):
    """Loss, gradients and parameters after two steps at each level that this processor has."""
    out = {}
    for level in levels:
        file = run.path(f"{level}.safetensors")
        code, _, err = run.result("trace", run.path(model), "--steps", 2, "--out", file, "--set", f"precision.compute={compute}",
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
    run.write("simple.lm", WITHOUT_ATTENTION)
    check("attention(" not in WITHOUT_ATTENTION, WITHOUT_ATTENTION)
    cases = (("f32", "rows.lm", ("x86-64-v3", "x86-64-v4", "native")), ("bf16", "rows.lm", ("x86-64-v3", "x86-64-v4")),
             ("bf16", "simple.lm", ("x86-64-v3", "native")))
    compared = 0
    for compute, model, levels in cases:
        got = traces(run, compute, levels, model)
        differing = [level for level in got if got[level] != next(iter(got.values()))]
        check(not differing, f"{compute}: {differing}")
        compared += len(got) - 1
    if not compared:
        raise Skip("a processor with AVX2")
