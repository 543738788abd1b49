"""RetNet: attention without softmax, scores fading with distance by a rate of each head, a norm for each head, a gate."""
from ops import *

VOCAB, D, L, H, FF = 32, 16, 2, 4, 24
E = D // H


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v", "g", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "w1", FF, D, std=D ** -0.5), P(p + "w2", D, FF, std=FF ** -0.5)
        P(p + "n1", D, fill=1), P(p + "n2", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    gamma = 1 - 2.0 ** (-2 - torch.arange(H).double())
    back = (pos[:, None, :, None] - pos[:, None, None, :]).clamp(min=0)
    fade = gamma[:, None, None] ** back
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        y = rms(x, w("n1"))
        q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
        a = scores(rope(q, pos), rope(k, pos)) * fade
        a = torch.where(causal(pos, seg)[:, None], a, torch.zeros_like(a))
        o = rms(torch.einsum("bhts,bshe->bthe", a, v), torch.ones(E)).flatten(-2)
        x = x + (F.silu(y @ w("g").T) * o) @ w("o").T
        x = x + F.gelu(rms(x, w("n2")) @ w("w1").T) @ w("w2").T
    return rms(x, W["norm"]) @ W["embed"].T
