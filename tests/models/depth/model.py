"""Repetitions in repetitions, numbers that differ in every layer, two loops over the same layers."""
from ops import *

VOCAB, D, L, N, H, FF = 32, 12, 7, 3, 2, 12


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"stack.{i}."
        for n in "q", "k", "v", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "norm", D, fill=1)
        for j in range(N):
            P(p + f"experts.{j}.w1", FF, D, std=D ** -0.5), P(p + f"experts.{j}.w2", D, FF, std=FF ** -0.5)
            P(p + f"experts.{j}.bias", D, std=0.1)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for again in range(2):
        for i in range(L):
            w = lambda n: W[f"stack.{i}.{n}"]
            y = rms(x, w("norm"))
            if again == 0:
                q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
                a = scores(rope(q, pos, 100.0 * (i + 1)), rope(k, pos, 100.0 * (i + 1)))
                x = x + attend(a, v, window(pos, seg, 3 + i)) @ w("o").T / (i + 1)
            else:
                for j in range(N):
                    u = torch.tanh(y @ w(f"experts.{j}.w1").T * (0.5 + 0.1 * i * j) if j % 2 else y @ w(f"experts.{j}.w1").T)
                    y = y + (u @ w(f"experts.{j}.w2").T + w(f"experts.{j}.bias")) / ((i + 2) * (j + 1))
                x = x + y * 0.5 ** i
    return rms(x, W["norm"]) @ W["embed"].T
