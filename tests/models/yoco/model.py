"""YOCO (Sun et al. 2024): layers with a window of attention, and above them layers that all attend to one set of keys and values."""
from ops import *

VOCAB, D, L, H, E, FF, NEAR = 32, 16, 2, 2, 8, 24, 4


def params(P):
    P("embed.weight", VOCAB, D, std=0.5)
    for part, projections in ("lower", "qkv"), ("upper", "q"):
        for i in range(L):
            p = f"{part}.{i}."
            for n in projections:
                P(p + f"attn.{n}.weight", D, D, std=D ** -0.5)
            P(p + "attn.o.weight", D, D, std=D ** -0.5)
            for n, shape in ("gate", (FF, D)), ("up", (FF, D)), ("down", (D, FF)):
                P(p + f"mlp.{n}.weight", *shape, std=shape[1] ** -0.5)
            P(p + "norm1.weight", D, fill=1)
            P(p + "norm2.weight", D, fill=1)
    for n in "kv":
        P(f"shared.{n}.weight", D, D, std=D ** -0.5)
    P("shared.norm.weight", D, fill=1)
    P("norm.weight", D, fill=1)
    P("head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["embed.weight"][tok]
    for part, see in ("lower", window(pos, seg, NEAR)), ("upper", window(pos, seg, 1 << 20)):
        if part == "upper":
            y = rms(x, W["shared.norm.weight"])
            k, v = (heads(y @ W[f"shared.{n}.weight"].T, H) for n in "kv")
            k = rope(k, pos)
        for i in range(L):
            w = lambda n: W[f"{part}.{i}.{n}.weight"]
            y = rms(x, w("norm1"))
            q = rope(heads(y @ w("attn.q").T, H), pos)
            if part == "lower":
                k, v = rope(heads(y @ w("attn.k").T, H), pos), heads(y @ w("attn.v").T, H)
            x = x + attend(scores(q, k), v, see) @ w("attn.o").T
            x = x + swiglu(rms(x, w("norm2")), *(w(f"mlp.{n}") for n in ("gate", "up", "down")))
    return rms(x, W["norm.weight"]) @ W["head.weight"].T
