"""Routing: the cost of the chosen experts, threads, passes, decoding in chunks. Against PyTorch: tests/models."""
import json

import numpy as np

from harness import ROOT, check, distance, within
from test_memory import same_bits

MODEL = open(f"{ROOT}/tests/models/mixtral/reference.lm").read().split("model Start")[0]
DENSE = MODEL[:MODEL.index("block Moe")] + """
import std.nn: swiglu
block Moe(d, E, k, f) {
  dim all = k * f
  param w1, w3: real[d, all] = normal(d ^ -0.5)
  param w2: real[all, d] = normal(f ^ -0.5)
  apply(x: real[b, t, d]) -> (real[b, t, d], f32) { return (swiglu(x, w1, w3, w2), f32(0)) }
}
""" + MODEL[MODEL.index("block Layer"):MODEL.index("  map hf")] + "}\n"
PROGRAM = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = Mixtral(depth = 2, d = {d}, f = {f}, vocab = 256); data = D; seed = 3; run = {steps} steps
  batch = {batch} tokens; micro = {batch} tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = {compute} }}
}}
"""
TEXT = "".join(f"{chr(97 + i * 7 % 26)}{chr(97 + i * i % 26)} the {i % 37} of {i % 11}.\n" for i in range(900))


def program(run, model=MODEL, name="m", seq=64, rows=2, d=64, f=96, steps=2, compute="f32"):
    run.write("text.txt", TEXT)
    text = model + PROGRAM.format(seq=seq, batch=seq * rows, d=d, f=f, steps=steps, compute=compute)
    return run.write(f"{name}.lm", text)


def test_cost(run):
    """a step with two of eight experts, beside a dense layer of as many active parameters: operations"""
    sizes = dict(seq=256, rows=8, d=128, f=256)
    routed, dense = (json.loads(run("compile", program(run, m, n, **sizes), "--json")) for m, n in ((MODEL, "m"), (DENSE, "d")))
    check(routed["flops"] <= 1.1 * dense["flops"], f"operations: {routed['flops']}, {dense['flops']} dense")


def test_passes(run):
    """the same in tiles of rows, without fusion of GEMMs, with one thread"""
    file = program(run)
    want = run.trace(file, "--values", "loss,grads")
    for off in ("--enable-pass", "tile_rows"), ("--disable-pass", "fuse"), ("--disable-pass", "simplify,cse,licm"):
        got = run.trace(file, "--values", "loss,grads", *off)
        for name in want:
            within(f"{' '.join(off)}, {name}", distance(got[name], want[name]), 1e-5)
    alone = run.trace(file, "--values", "loss,grads", env={"OMP_NUM_THREADS": "1"})
    for name in want:
        check(np.array_equal(alone[name], want[name]), f"one thread: {name}")


def test_recompute(run):
    same_bits(run, f"{ROOT}/tests/models/mixtral/reference.lm", "recompute @layers.**")


def test_bf16(run):
    loss = [run.trace(program(run, compute=c), "--values", "loss", "--steps", 1)["loss"] for c in ("f32", "bf16")]
    within("loss", distance(*loss), 2e-3)


def test_decoding(run):
    """a token at a time, and prompts of several chunks: the same continuation"""
    file = program(run, d=32, f=32, steps=60)
    run("run", file, "-q", "--out", run.path("out"))

    def ids(prompt, n):
        return json.loads(run("generate", run.path("out"), "--json", "--ids", "--prompt-ids", ",".join(map(str, prompt)), "-n", n,
                              "--temperature", 0))["ids"]

    start = list(TEXT[:40].encode())
    whole = ids(start, 300)
    check(len(set(whole)) > 3, f"the continuation is too plain: {whole}")
    for n in 1, 130, 290:
        rest = ids(start + whole[:n], 300 - n)
        check(rest == whole[n:], f"after {n} tokens: {rest[:20]}, expected {whole[n : n + 20]}")
