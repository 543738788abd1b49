"""Command R: layernorm without bias, q and k normalised by head, neighbours are rotated together, parallel branches, scaled logits."""
from ops import *

VOCAB, D, L, H, G, E, FF, SCALE = 32, 16, 2, 4, 2, 4, 24, 0.25


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.5)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5)
        P(p + "self_attn.q_norm.weight", H, E, fill=1)
        P(p + "self_attn.k_norm.weight", G, E, fill=1)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)


def norm(x, w):
    m = x - x.mean(-1, keepdim=True)
    return m * torch.rsqrt((m * m).mean(-1, keepdim=True) + 1e-5) * w


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = norm(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, m) for n, m in (("q", H), ("k", G), ("v", G)))
        q, k = rope_pairs(norm(q, w("self_attn.q_norm")), pos), rope_pairs(norm(k, w("self_attn.k_norm")), pos)
        a = attend(scores(q, k), v, causal(pos, seg)) @ w("self_attn.o_proj").T
        x = x + a + swiglu(y, *(w(f"mlp.{n}_proj") for n in ("gate", "up", "down")))
    return norm(x, W["model.norm.weight"]) @ W["model.embed_tokens.weight"].T * SCALE
