"""Layers of three kinds: dense MLPs first, then a recurrence before each two layers with experts; two more recurrences."""
from ops import *

VOCAB, D, H, FF, N, EF, E, L = 32, 16, 2, 20, 3, 12, 10, 8


def kind(i):
    return "dense" if i < 2 else "recurrent" if i % 3 == 2 else "experts"


def params(P):
    P("embed", VOCAB, D, std=0.3), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        P(p + "n1", D, fill=1)
        if kind(i) == "recurrent":
            P(p + "decay", E, D, std=D ** -0.5), P(p + "in", E, D, std=D ** -0.5), P(p + "out", D, E, std=E ** -0.5)
            continue
        P(p + "n2", D, fill=1)
        for n in "qkvo":
            P(p + n, D, D, std=D ** -0.5)
        if kind(i) == "experts":
            P(p + "router", N, D, std=D ** -0.5)
        for q, f in [(p, FF)] if kind(i) == "dense" else [(f"{p}experts.{k}.", EF) for k in range(N)]:
            P(q + "gate", f, D, std=D ** -0.5), P(q + "up", f, D, std=D ** -0.5), P(q + "down", D, f, std=f ** -0.5)
    for i, e in (L, E + 2), (L + 1, E):
        p = f"layers.{i}."
        P(p + "n1", D, fill=1), P(p + "first", e, D, std=D ** -0.5), P(p + "second", e, D, std=D ** -0.5), P(p + "last", D, e, std=e ** -0.5)


def recurrence(x, pos, n, decay, inner, out):
    y = rms(x, n)
    a, u = torch.sigmoid(y @ decay.T), y @ inner.T
    h, z = torch.zeros_like(u[:, 0]), []
    for t in range(u.shape[1]):
        h = a[:, t] * h * (pos[:, t, None] > 0) + (1 - a[:, t]) * u[:, t]
        z.append(h)
    return torch.stack(z, 1) @ out.T


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        if kind(i) == "recurrent":
            x = x + recurrence(x, pos, w("n1"), w("decay"), w("in"), w("out"))
            continue
        y = rms(x, w("n1"))
        q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("o").T
        y = rms(x, w("n2"))
        if kind(i) == "dense":
            x = x + swiglu(y, w("gate"), w("up"), w("down"))
            continue
        p = (y @ w("router").T).softmax(-1)
        out = [swiglu(y, *(w(f"experts.{j}.{n}") for n in ("gate", "up", "down"))) for j in range(N)]
        x = x + (1 + 0.05 * i) * (torch.stack(out, -2) * p[..., None]).sum(-2)
    for i, gain in (L, 0.5), (L + 1, 1):
        w = lambda n: W[f"layers.{i}.{n}"]
        x = x + gain * recurrence(x, pos, w("n1"), w("first"), w("second"), w("last"))
    return rms(x, W["norm"]) @ W["embed"].T
