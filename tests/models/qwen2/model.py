"""Qwen2: biases on q, k and v, tied embeddings, theta 1M; no decay on norms and biases."""
from ops import *

VOCAB, D, L, H, G, E, FF = 32, 16, 2, 4, 2, 4, 24
NO_DECAY = "norm|bias"


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5)
            P(p + f"self_attn.{n}_proj.bias", o, std=0.3)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
        P(p + "post_attention_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    see = causal(pos, seg)
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}"]
        y = rms(x, w("input_layernorm.weight"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj.weight").T + w(f"self_attn.{n}_proj.bias"), m)
                   for n, m in (("q", H), ("k", G), ("v", G)))
        x = x + attend(scores(rope(q, pos, 1e6), rope(k, pos, 1e6)), v, see) @ w("self_attn.o_proj.weight").T
        x = x + swiglu(rms(x, w("post_attention_layernorm.weight")), *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")))
    return rms(x, W["model.norm.weight"]) @ W["model.embed_tokens.weight"].T
