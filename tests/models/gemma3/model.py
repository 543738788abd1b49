"""Gemma 3: five layers with a window and a short theta to one that sees all with a long one; norms (1 + w) around; qk-norm."""
from ops import *

VOCAB, D, L, H, G, E, FF, NEAR = 32, 16, 8, 2, 1, 8, 16, 5


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=1)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "self_attn.q_norm.weight", E, std=0.1), P(p + "self_attn.k_norm.weight", E, std=0.1)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        for n in "input", "post_attention", "pre_feedforward", "post_feedforward":
            P(p + n + "_layernorm.weight", D, std=0.1)
    P("model.norm.weight", D, std=0.1)


def logits(W, tok, pos, seg):
    norm = lambda x, w: rms(x, 1 + w)
    x = W["model.embed_tokens.weight"][tok] * D ** 0.5
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        all_ = i % 6 == 5
        see, theta = (causal(pos, seg), 1e6) if all_ else (window(pos, seg, NEAR), 1e4)
        y = norm(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, m) for n, m in (("q", H), ("k", G), ("v", G)))
        q, k = rope(norm(q, w("self_attn.q_norm")), pos, theta), rope(norm(k, w("self_attn.k_norm")), pos, theta)
        x = x + norm(attend(scores(q, k), v, see) @ w("self_attn.o_proj").T, w("post_attention_layernorm"))
        y = norm(x, w("pre_feedforward_layernorm"))
        y = (F.gelu(y @ w("mlp.gate_proj").T, approximate="tanh") * (y @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T
        x = x + norm(y, w("post_feedforward_layernorm"))
    return norm(x, W["model.norm.weight"]) @ W["model.embed_tokens.weight"].T
