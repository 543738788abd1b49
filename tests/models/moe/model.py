"""Mixtral's layout with every expert asked: softmax weights, a balance and a z loss added to the cross-entropy."""
from ops import *

VOCAB, D, L, H, N, FF = 32, 12, 2, 2, 4, 16


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.5), P("model.norm.weight", D, fill=1), P("lm_head.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n in "q", "k", "v", "o":
            P(p + f"self_attn.{n}_proj.weight", D, D, std=D ** -0.5)
        P(p + "block_sparse_moe.gate.weight", N, D, std=D ** -0.5)
        for e in range(N):
            q = p + f"block_sparse_moe.experts.{e}."
            P(q + "w1.weight", FF, D, std=D ** -0.5), P(q + "w2.weight", D, FF, std=FF ** -0.5), P(q + "w3.weight", FF, D, std=D ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1), P(p + "post_attention_layernorm.weight", D, fill=1)


def run(W, tok, pos, seg):
    x, balance, z = W["model.embed_tokens.weight"][tok], 0.0, 0.0
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = rms(x, w("input_layernorm"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj").T, H) for n in "qkv")
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("self_attn.o_proj").T
        y = rms(x, w("post_attention_layernorm"))
        r = y @ w("block_sparse_moe.gate").T
        p = r.softmax(-1)
        out = [swiglu(y, *(w(f"block_sparse_moe.experts.{e}.w{n}") for n in (1, 3, 2))) for e in range(N)]
        x = x + (torch.stack(out, -2) * p[..., None]).sum(-2)
        share = p.mean((0, 1))
        balance = balance + N * (share * share).sum()
        z = z + (r.logsumexp(-1) ** 2).mean()
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T, balance, z


def logits(W, tok, pos, seg):
    return run(W, tok, pos, seg)[0]


def loss(W, bt):
    y, balance, z = run(W, bt["tok"], bt["pos"], bt["seg"])
    l = F.cross_entropy(y.transpose(1, 2), bt["next"], reduction="none")
    n = bt["w"].sum()
    return (l * bt["w"]).sum() + (0.02 * balance + 0.001 * z) * n, n
