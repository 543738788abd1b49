"""StableLM 2: layernorms, a quarter of each head is rotated, biases on q, k, v, a separate layernorm for every head of q and k."""
from ops import *

VOCAB, D, L, H, G, E, FF, ROTARY = 32, 16, 2, 2, 1, 8, 24, 2


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5), P(p + f"self_attn.{n}_proj.bias", o, std=0.1)
        for n, m in ("q", H), ("k", G):
            for h in range(m):
                P(p + f"self_attn.{n}_layernorm.norms.{h}.weight", E, fill=1)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        for n in "input_layernorm", "post_attention_layernorm":
            P(p + n + ".weight", D, fill=1), P(p + n + ".bias", D, std=0.1)
    P("model.norm.weight", D, fill=1), P("model.norm.bias", D, std=0.1)
    P("lm_head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}"]
        own = lambda x, n: torch.stack([ln(x[:, :, h], w(f"self_attn.{n}_layernorm.norms.{h}.weight")) for h in range(x.shape[2])], 2)
        y = ln(x, w("input_layernorm.weight"), w("input_layernorm.bias"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj.weight").T + w(f"self_attn.{n}_proj.bias"), m) for n, m in (("q", H), ("k", G), ("v", G)))
        q, k = rope_part(own(q, "q"), pos, ROTARY), rope_part(own(k, "k"), pos, ROTARY)
        x = x + attend(scores(q, k), v, causal(pos, seg)) @ w("self_attn.o_proj.weight").T
        y = ln(x, w("post_attention_layernorm.weight"), w("post_attention_layernorm.bias"))
        x = x + swiglu(y, *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")))
    return ln(x, W["model.norm.weight"], W["model.norm.bias"]) @ W["lm_head.weight"].T
