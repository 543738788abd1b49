"""nGPT: all vectors of unit length; residuals step along the sphere by learned rates; scaled q, k, gate and logits."""
from ops import *

VOCAB, D, L, H, E, FF = 32, 16, 2, 2, 8, 24
RATE, BASE = 0.05, D ** -0.5


def params(P):
    P("embed", VOCAB, D, std=0.3)
    P("head", VOCAB, D, std=0.3)
    P("sz", VOCAB, fill=BASE)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "gate", FF, D, std=D ** -0.5), P(p + "up", FF, D, std=D ** -0.5), P(p + "down", D, FF, std=D ** -0.5)
        P(p + "attn_alpha", D, fill=BASE), P(p + "mlp_alpha", D, fill=BASE)
        P(p + "sqk", D, fill=BASE)
        P(p + "suv_gate", FF, fill=1), P(p + "suv_up", FF, fill=1)


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


def logits(W, tok, pos, seg):
    x = unit(W["embed"][tok])
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        q, k, v = (heads(x @ w(n).T, H) for n in "qkv")
        s = heads(w("sqk") / BASE, H)
        q, k = s * unit(rope(q, pos)), s * unit(rope(k, pos))
        a = unit(attend(scores(q, k, E ** 0.5), v, causal(pos, seg)) @ w("o").T)
        x = unit(x + (w("attn_alpha") * RATE / BASE).abs() * (a - x))
        gate, up = w("suv_gate") * D ** 0.5 * (x @ w("gate").T), w("suv_up") * (x @ w("up").T)
        m = unit((F.silu(gate) * up) @ w("down").T)
        x = unit(x + (w("mlp_alpha") * RATE / BASE).abs() * (m - x))
    return (x @ W["head"].T) * (W["sz"] / BASE)
