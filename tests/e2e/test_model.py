"""Properties of every model: results do not depend on packing and accumulation, nor kernels on depth."""
import json

import numpy as np
from harness import ROOT, check, children_seconds, distance, random_batches, small, within

PLAIN_BUILD = {"depth", "many_parameters"}


def test_accumulation(run):
    """8 micro-batches of one row give the loss of one of 8 rows"""
    a = run.trace(small(run, rows=8, micro=16))
    b = run.trace(small(run, rows=8, micro=128))
    for name in a:
        within(name, distance(a[name], b[name]), 1e-5 if name.startswith("final") else 2e-6)


def test_accumulation_of_dropout(run):
    """the random numbers of a row do not depend on the micro-batch that it is in"""
    a = run.trace(small(run, rows=8, micro=16, drop=0.2, steps=2), "--values", "loss,grads")
    b = run.trace(small(run, rows=8, micro=128, drop=0.2, steps=2), "--values", "loss,grads")
    for name in a:
        within(name, distance(a[name], b[name]), 2e-6)


def test_packed_as_apart(run):
    """two documents packed in a row give the losses of separate rows"""
    rng = np.random.default_rng(3)
    n, seq = 16, 32
    docs = rng.integers(0, 64, (2, n + 1))
    z = lambda rows, t="<i4": np.zeros((1, rows, seq), t)
    packed, apart = dict(tok=z(2), pos=z(2), seg=z(2) - 1, next=z(2), w=z(2, "<f4")), dict(tok=z(2), pos=z(2), seg=z(2) - 1, next=z(2), w=z(2, "<f4"))
    for i, doc in enumerate(docs):
        for batch, row, at in ((packed, 0, i * n), (apart, i, 0)):
            part = (0, row, slice(at, at + n))
            batch["tok"][part], batch["next"][part], batch["pos"][part] = doc[:-1], doc[1:], np.arange(n)
            batch["seg"][part], batch["w"][part] = i if batch is packed else 0, 1
    a = run.trace(small(run, steps=1, rows=2, seq=seq, batches=packed))
    b = run.trace(small(run, steps=1, rows=2, seq=seq, batches=apart))
    within("logits", max(distance(a["logits"][0, :n], b["logits"][0, :n]), distance(a["logits"][0, n:], b["logits"][1, :n])), 1e-6)
    for name in a:
        if name != "logits":
            within(name, distance(a[name], b[name]), 1e-5)


def test_depth(run):
    """depth 2 and 96: the same kernels, IR of the same length, compiled in about the same processor time"""
    files = {depth: small(run, depth=depth, name=f"{depth}.lm") for depth in (2, 96)}
    kernels, lines, seconds = {}, {}, {depth: [] for depth in files}
    for depth, file in files.items():
        plan = run.path(f"plan-{depth}")
        run("compile", file, "-o", plan)
        lines[depth] = {s: len(open(f"{plan}/{s}.lmir").readlines()) for s in ("graph", "step", "kernel")}
        kernels[depth] = json.loads(run("compile", file, "--json"))["kernels"]
    check(kernels[2] == kernels[96])
    check(lines[2] == lines[96])
    for depth in [2, 96] * 6:
        before = children_seconds()
        run("compile", files[depth], "--json")
        seconds[depth].append(children_seconds() - before)
    # A pass that visits each layer separately would take 48 times as long.
    within("processor time of compiling 96 layers over 2", min(seconds[96]) / min(seconds[2]), 3)


def test_many_parameters(run):
    """a model with too many parameters is refused in a processor time about linear in its lines"""
    program, seconds = open(f"{ROOT}/examples/llama.lm").read(), {n: [] for n in (10000, 40000)}
    for n in [*seconds] * 2:
        more = "".join(f"  param p{i}: real[d] = ones\n" for i in range(n))
        file = run.write(f"{n}.lm", program.replace("  param embed", more + "  param embed", 1))
        before = children_seconds()
        check("E090" in run("check", file, status=1))
        seconds[n].append(children_seconds() - before)
    # 16 if each parameter is compared with all others
    within("processor time of 40,000 parameters over 10,000", min(seconds[40000]) / min(seconds[10000]), 8)


def test_stages_parse_back(run):
    """lmc opt parses the text of each stage and prints the same text"""
    run("compile", small(run), "-o", run.path("plan"))
    for stage in ("graph", "step", "kernel"):
        path = run.path("plan", f"{stage}.lmir")
        check(run("opt", path) == open(path).read(), f"{stage}.lmir")


def test_learns(run):
    """a deterministic sequence is learned to a loss near 0"""
    b = random_batches(200, 4, 32)
    for batch in range(200):
        for r in range(4):
            for t in range(1, 32):
                b["tok"][batch, r, t] = (3 * b["tok"][batch, r, t - 1] + 1) % 64
            b["next"][batch, r] = (3 * b["tok"][batch, r] + 1) % 64
    loss = run.trace(small(run, steps=200, rows=4, seq=32, lr="1e-2", batches=b), "--values", "loss")["loss"]
    within("loss", float(loss[-10:].mean()), 0.3)


TABLES = """import std.nn: xent
model M(d = 8, f = 6, vocab = 64) {
  param a: real[vocab, d] = normal(0.5)
  param c: real[vocab, f] = normal(0.5)
  param w: real[f, d] = normal(0.5)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let wide = gather(a, tok, vocab)
    let narrow = gather(c, tok, vocab)
    return dot(wide + dot(narrow, w, f), a, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; run = 1 steps; batch = 64 tokens; optimizer = sgd(lr = 0); precision { compute = f32 } }
"""


def test_two_tables(run):
    """two tables made from one value with different axes do not share axes"""
    batches = random_batches(1, 4, 16)
    small(run, batches=batches)
    t = run.trace(run.write("tables.lm", TABLES))
    a, c, w = (t[f"final.{name}"].astype("f8") for name in "acw")
    x = a[batches["tok"][0]] + c[batches["tok"][0]] @ w
    within("logits", distance(t["logits"], x @ a.T), 1e-6)


SCATTERED = """model M(vocab = 64, d = 3) {
  param a: real[vocab, d] = normal(1)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] { return dot(gather(a, tok, vocab), a, d) }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let x = gather(a, bt.tok, vocab)
    let r = scatter_add(permute(x, (t, d, b)), bt.tok, vocab)
    return (sum(f32(r * r * r)), 1)
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; run = 1 steps; batch = 64 tokens; optimizer = sgd(lr = 0); precision { compute = f32 } }
"""


def test_scattered(run):
    """updates of scatter_add whose axes have another order than the axes of the index"""
    import torch
    batches = random_batches(1, 4, 16)
    small(run, batches=batches)
    t = run.trace(run.write("scattered.lm", SCATTERED))
    a = torch.tensor(t["final.a"], dtype=torch.float64, requires_grad=True)
    tok = torch.tensor(batches["tok"][0]).long().flatten()
    loss = (torch.zeros_like(a).index_add(0, tok, a[tok]) ** 3).sum()
    loss.backward()
    within("loss", abs(float(t["loss"][0]) - float(loss)) / abs(float(loss)), 1e-5)
    within("a", distance(t["grad.a"], a.grad.numpy()), 1e-5)


ROUNDING = """import std.nn: softplus
model M(vocab = round(63.5)) {
  param a: real[vocab] = normal(3)
  param c: real[vocab] = normal(2)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return expand(gather(a, tok, vocab), vocab)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let x = gather(a, bt.tok, vocab)
    let y = gather(c, bt.tok, vocab)
    let whole = floor(x) * y + round(x) * x + floor(2 * y)
    let parts = log1p(x * x) + x mod (y * y + 0.5) + softplus(x - 20)
    return (sum(f32(whole + parts) * bt.w), sum(bt.w))
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; run = 1 steps; batch = 64 tokens; optimizer = sgd(lr = 0); precision { compute = f32 } }
"""


def test_rounding(run):
    """floor, round, log1p, mod: values and gradients equal PyTorch's"""
    import torch
    batches = random_batches(1, 4, 16)
    small(run, batches=batches)
    t = run.trace(run.write("rounding.lm", ROUNDING))
    a, c = (torch.tensor(t[f"final.{name}"], dtype=torch.float64, requires_grad=True) for name in "ac")
    tok, w = torch.tensor(batches["tok"][0]).long(), torch.tensor(batches["w"][0])
    x, y = a[tok], c[tok]
    whole = x.floor() * y + x.round() * x + (2 * y).floor()
    parts = (x * x).log1p() + torch.remainder(x, y * y + 0.5) + torch.nn.functional.softplus(x - 20)
    loss = ((whole + parts) * w).sum() / w.sum()
    loss.backward()
    within("loss", abs(float(t["loss"][0]) - float(loss)) / abs(float(loss)), 1e-6)
    for name, p in ("a", a), ("c", c):
        within(name, distance(t[f"grad.{name}"], p.grad.numpy()), 1e-6)
