"""Phi-3: q, k, v in one matrix, gate and up in another; only a part of each head is rotated."""
from ops import *

VOCAB, D, L, H, G, E, FF, ROTARY = 32, 16, 2, 4, 2, 6, 24, 4


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        P(p + "self_attn.qkv_proj.weight", (H + 2 * G) * E, D, std=D ** -0.5)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "mlp.gate_up_proj.weight", 2 * FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
        P(p + "post_attention_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)
    P("lm_head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    see = window(pos, seg, 7)
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        qkv = rms(x, w("input_layernorm"), 1e-5) @ w("self_attn.qkv_proj").T
        q, k, v = (heads(y, n) for y, n in zip(qkv.split([H * E, G * E, G * E], -1), (H, G, G)))
        x = x + attend(scores(rope_part(q, pos, ROTARY), rope_part(k, pos, ROTARY)), v, see) @ w("self_attn.o_proj").T
        gate, up = (rms(x, w("post_attention_layernorm"), 1e-5) @ w("mlp.gate_up_proj").T).chunk(2, -1)
        x = x + (up * F.silu(gate)) @ w("mlp.down_proj").T
    return rms(x, W["model.norm.weight"], 1e-5) @ W["lm_head.weight"].T
