"""Loops over positions: memory and operations for longer rows, other lengths, decoding in chunks. Against PyTorch: tests/models."""
import json

import numpy as np

from harness import ROOT, check, distance, within
from test_memory import same_bits

MODEL = open(f"{ROOT}/tests/models/mamba/reference.lm").read().split("model Start")[0]
PROGRAM = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = Mamba(depth = {depth}, d = {d}, e = {d}, vocab = 256); data = D; seed = 3; run = {steps} steps
  batch = {batch} tokens; micro = {batch} tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = {compute} }}
}}
"""
TEXT = "".join(f"{chr(97 + i * 7 % 26)}{chr(97 + i * i % 26)} the {i % 37} of {i % 11}.\n" for i in range(900))


def program(run, seq, rows=1, depth=2, d=16, steps=2, compute="f32"):
    run.write("text.txt", TEXT)
    return run.write(f"m{seq}.lm", MODEL + PROGRAM.format(seq=seq, batch=seq * rows, depth=depth, d=d, steps=steps, compute=compute))


def planned(run, file, *args):
    return json.loads(run("compile", file, "--json", *args))


def test_growth(run):
    """16 times as many positions: memory and operations grow by this factor, launches by that of the tiles"""
    short, long = (planned(run, program(run, seq, d=32)) for seq in (256, 4096))
    fixed = planned(run, program(run, 16, d=32))    # parameters, and columns of the batch
    bytes_ = [p["peak_bytes"] - fixed["peak_bytes"] for p in (short, long)]
    check(bytes_[1] <= 18 * bytes_[0], f"bytes: {bytes_}")
    check(long["flops"] <= 16.2 * short["flops"], f"operations: {short['flops']}, {long['flops']}")
    check(long["launches"] <= 4.5 * short["launches"], f"launches: {short['launches']}, {long['launches']}")


def test_tiles(run):
    """tiles change the results by rounding only; a prime number of positions has no tiles"""
    for seq in 48, 61:
        file = program(run, seq, rows=2)
        a, b = (run.trace(file, "--values", "loss,grads", *off) for off in ((), ("--disable-pass", "tile_scan")))
        for name in a:
            within(f"{seq} {name}", distance(a[name], b[name]), 1e-5)


def test_recompute(run):
    for model in "griffin", "mamba":
        same_bits(run, f"{ROOT}/tests/models/{model}/reference.lm", "recompute @layers.**")


def test_bf16(run):
    """the carries are f32: bf16 changes the loss a little"""
    loss = [run.trace(program(run, 64, rows=2, compute=c), "--values", "loss")["loss"] for c in ("f32", "bf16")]
    within("loss", distance(*loss), 5e-3)


def test_decoding(run):
    """a token at a time, and prompts of several chunks: the same continuation"""
    file = program(run, 64, rows=4, d=32, steps=150)
    run("run", file, "-q", "--out", run.path("out"))

    def ids(prompt, n):
        return json.loads(run("generate", run.path("out"), "--json", "--ids", "--prompt-ids", ",".join(map(str, prompt)), "-n", n,
                              "--temperature", 0))["ids"]

    start = list(TEXT[:40].encode())
    whole = ids(start, 400)
    check(len(set(whole)) > 3, f"the continuation is too plain: {whole}")
    for n in 1, 130, 390:
        rest = ids(start + whole[:n], 400 - n)
        check(rest == whole[n:], f"after {n} tokens: {rest[:20]}, expected {whole[n : n + 20]}")
