"""Layers that take their number: kind, window, widths and shifts of a layer are decided by it, in repetitions of repetitions."""
from ops import *

VOCAB, D, L, N, H, FF, TIMES = 32, 12, 7, 2, 2, 8, 3


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "norm", D, fill=1)
        for j in range(N):
            P(p + f"steps.{j}.w1", FF, D, std=D ** -0.5), P(p + f"steps.{j}.w2", D, FF, std=FF ** -0.5)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        y = rms(x, w("norm"))
        if i % 3 == 1 or i > 5:
            q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
            q, k = rope_part(q, pos, 2 + 2 * (i // 4)), rope_part(k, pos, 2 + 2 * (i // 4))
            x = x + attend(scores(q, k), v, window(pos, seg, 2 + i)) @ w("o").T / (i + 1)
        else:
            x = x + F.silu(y @ w("q").T) * (y @ w("v").T)
        for j in range(N):
            u = y @ w(f"steps.{j}.w1").T
            u = F.gelu(u) if (i + j) % 2 else F.silu(u) * (1 + i * j)
            y = y + u @ w(f"steps.{j}.w2").T * (0.1 * (j + 1) + 0.02 * i)
        x = x + y
    for n in range(TIMES):
        x = x + torch.tanh(x) * n if n != 1 else x.roll(1, -1) + x
    return rms(x, W["norm"]) @ W["embed"].T
