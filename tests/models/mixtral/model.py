"""Mixtral: grouped-query attention, two of eight experts for each token, the load-balancing loss of Switch Transformers."""
from ops import *

VOCAB, D, L, H, G, N, K, FF = 32, 32, 2, 4, 2, 8, 2, 48


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.5), P("model.norm.weight", D, fill=1), P("lm_head.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, out, inner in ("q", D, D), ("k", D // 2, D), ("v", D // 2, D), ("o", D, D):
            P(p + f"self_attn.{n}_proj.weight", out, inner, std=inner ** -0.5)
        P(p + "block_sparse_moe.gate.weight", N, D, std=D ** -0.5)
        for e in range(N):
            q = p + f"block_sparse_moe.experts.{e}."
            P(q + "w1.weight", FF, D, std=D ** -0.5), P(q + "w2.weight", D, FF, std=FF ** -0.5), P(q + "w3.weight", FF, D, std=D ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1), P(p + "post_attention_layernorm.weight", D, fill=1)


def run(W, tok, pos, seg):
    x, balance = W["model.embed_tokens.weight"][tok], 0.0
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = rms(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, m) for n, m in (("q", H), ("k", G), ("v", G)))
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("self_attn.o_proj").T
        y = rms(x, w("post_attention_layernorm")).reshape(-1, D)
        p = (y @ w("block_sparse_moe.gate").T).softmax(-1)
        c, id = best(p, K)
        expert = lambda n: [w(f"block_sparse_moe.experts.{e}.w{n}") for e in range(N)]
        x = x + routed(y, id, c / c.sum(-1, keepdim=True), expert(1), expert(3), expert(2)).reshape(x.shape)
        balance = balance + N * (p.mean(0) * F.one_hot(id, N).double().mean((0, 1))).sum()
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T, balance


def logits(W, tok, pos, seg):
    return run(W, tok, pos, seg)[0]


def loss(W, bt):
    y, balance = run(W, bt["tok"], bt["pos"], bt["seg"])
    l = F.cross_entropy(y.transpose(1, 2), bt["next"], reduction="none")
    n = bt["w"].sum()
    return (l * bt["w"]).sum() + 0.02 * balance * n, n
