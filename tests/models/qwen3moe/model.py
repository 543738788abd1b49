"""Qwen3-MoE: norms of queries and keys, four of sixteen narrow experts, their weights of the softmax over all, made one."""
from ops import *

VOCAB, D, L, H, G, N, K, FF = 32, 32, 2, 4, 2, 16, 4, 16


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.5), P("model.norm.weight", D, fill=1), P("lm_head.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, out in ("q", D), ("k", D // 2), ("v", D // 2), ("o", D):
            P(p + f"self_attn.{n}_proj.weight", out, D, std=D ** -0.5)
        P(p + "self_attn.q_norm.weight", D // H, fill=1), P(p + "self_attn.k_norm.weight", D // H, fill=1)
        P(p + "mlp.gate.weight", N, D, std=D ** -0.5)
        for e in range(N):
            q = p + f"mlp.experts.{e}."
            P(q + "gate_proj.weight", FF, D, std=D ** -0.5), P(q + "up_proj.weight", FF, D, std=D ** -0.5)
            P(q + "down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1), P(p + "post_attention_layernorm.weight", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = rms(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, m) for n, m in (("q", H), ("k", G), ("v", G)))
        q, k = rope(rms(q, w("self_attn.q_norm")), pos), rope(rms(k, w("self_attn.k_norm")), pos)
        x = x + attend(scores(q, k), v, causal(pos, seg)) @ w("self_attn.o_proj").T
        y = rms(x, w("post_attention_layernorm")).reshape(-1, D)
        c, id = best((y @ w("mlp.gate").T).softmax(-1), K)
        expert = lambda n: [w(f"mlp.experts.{e}.{n}_proj") for e in range(N)]
        x = x + routed(y, id, c / c.sum(-1, keepdim=True), expert("gate"), expert("up"), expert("down")).reshape(x.shape)
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T
