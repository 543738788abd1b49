"""Granite: multipliers on the embedding, the scores, the residual branches and (dividing) the logits."""
from ops import *

VOCAB, D, L, H, G, E, FF = 32, 16, 3, 4, 2, 4, 24
EMBED, SCORE, RESIDUAL, LOGITS = 3.0, 0.4, 0.22, 2.5


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
        P(p + "post_attention_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok] * EMBED
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = rms(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, m) for n, m in (("q", H), ("k", G), ("v", G)))
        x = x + RESIDUAL * (attend(scores(rope(q, pos), rope(k, pos), SCORE), v, causal(pos, seg)) @ w("self_attn.o_proj").T)
        y = rms(x, w("post_attention_layernorm"))
        x = x + RESIDUAL * swiglu(y, *(w(f"mlp.{n}_proj") for n in ("gate", "up", "down")))
    return rms(x, W["model.norm.weight"]) @ W["model.embed_tokens.weight"].T / LOGITS
