"""Memory: what is not stored whole, what is computed again, what a plan says and what is then taken."""
import json, os, re

import numpy as np

from harness import ROOT, check, distance, small, within


def test_chunked_vocabulary(run):
    """1024 rows of 4608 logits, 512 at a time = four micro-batches that need no such thing"""
    how = dict(steps=2, rows=8, seq=128, depth=1, vocab=4608)
    whole, parts = small(run, micro=256, name="whole.lm", **how), small(run, name="parts.lm", **how)
    a, b = (run.trace(f, "--values", "loss,grads,params") for f in (whole, parts))
    for name in a:
        within(name, distance(a[name], b[name]), 1e-5 if name.startswith("final") else 2e-6)
    run("compile", parts, "-o", run.path("plan"))
    for line in open(run.path("plan", "step.lmir")):
        check("b, t, vocab]" not in line or "b.1" in line, f"logits as a whole: {line}")


def recomputed(run, path, rules):
    """a copy of the program at `path`, beside it, with rules in its first recipe"""
    text = open(path).read()
    text = re.sub(r"(^recipe [^{]*\{)", r"\1 memory { " + rules + " };", text, count=1, flags=re.M)
    text = re.sub(r'"(hf:)?([^":\n]*\.safetensors)"', lambda m: f'"{m[1] or ""}{os.path.join(os.path.dirname(path), m[2])}"', text)
    return run.write("again/again.lm", text)


def same_bits(run, path, rules):
    """gradients and losses with the rules and without; less memory"""
    files = path, recomputed(run, path, rules)
    a, b = (run.trace(f, "--steps", 1, "--values", "loss,grads") for f in files)
    peak = [json.loads(run("compile", f, "--json"))["peak_bytes"] for f in files]
    for name in a:
        check(np.array_equal(a[name], b[name]), f"{rules}: {name} differs by {distance(a[name], b[name]):g}")
    check(peak[1] < peak[0], f"{rules}: {peak[1]} bytes, {peak[0]} without")


def test_recompute_llama(run):
    """packed documents, grouped heads, dropout; all of a layer, or all but what attention gives"""
    file = small(run, steps=1, rows=4, seq=64, depth=6, drop=0.1)
    same_bits(run, file, "recompute @layers.**")
    same_bits(run, file, "recompute @layers.**; save @layers.*.attn.o")


def test_recompute_models(run):
    """latent attention; a bias that all layers share"""
    for model, rules in dict(deepseek="recompute @layers.**", t5="recompute @block_.**").items():
        same_bits(run, f"{ROOT}/tests/models/{model}/reference.lm", rules)
