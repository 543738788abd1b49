"""Blocks from another file: gelu and silu layers in rotary, a user-defined optimizer that computes AdamW."""
from ops import *

VOCAB, D, L, H, FF = 32, 12, 4, 3, 20
NO_DECAY = "norm"


def params(P):
    P("wte", VOCAB, D, std=0.5), P("wpe", 16, D, std=0.3), P("norm", D, fill=1), P("norm_b", D, std=0.1)
    for i in range(L):
        p = f"h.{i}."
        P(p + "attn.c_attn", D, 3 * D, std=D ** -0.5), P(p + "attn.c_proj", D, D, std=D ** -0.5)
        P(p + "mlp.c_fc", D, FF, std=D ** -0.5), P(p + "mlp.c_proj", FF, D, std=FF ** -0.5)
        P(p + "norm1", D, fill=1), P(p + "norm2", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["wte"][tok] + W["wpe"][pos]
    for i in range(L):
        w = lambda n: W[f"h.{i}.{n}"]
        q, k, v = (heads(y, H) for y in (rms(x, w("norm1")) @ w("attn.c_attn")).split(D, -1))
        x = x + attend(scores(q, k), v, causal(pos, seg)) @ w("attn.c_proj")
        act = F.silu if i % 2 else F.gelu
        x = x + act(rms(x, w("norm2")) @ w("mlp.c_fc")) @ w("mlp.c_proj")
    return ln(x, W["norm"], W["norm_b"]) @ W["wte"].T
