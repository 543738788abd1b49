"""OLMo 2: norms after attention and feed-forward, none before; q and k normalised over their whole width."""
from ops import *

VOCAB, D, L, H, G, E, FF = 32, 16, 3, 4, 2, 4, 24


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, o in ("q", H * E), ("k", G * E), ("v", G * E):
            P(p + f"self_attn.{n}_proj.weight", o, D, std=D ** -0.5)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "self_attn.q_norm.weight", H * E, fill=1)
        P(p + "self_attn.k_norm.weight", G * E, fill=1)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "post_attention_layernorm.weight", D, fill=1)
        P(p + "post_feedforward_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)
    P("lm_head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    see = causal(pos, seg)
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        q = heads(rms(x @ w("self_attn.q_proj").T, w("self_attn.q_norm")), H)
        k = heads(rms(x @ w("self_attn.k_proj").T, w("self_attn.k_norm")), G)
        v = heads(x @ w("self_attn.v_proj").T, G)
        o = attend(scores(rope(q, pos, 5e5), rope(k, pos, 5e5)), v, see) @ w("self_attn.o_proj").T
        x = x + rms(o, w("post_attention_layernorm"))
        x = x + rms(swiglu(x, *(w(f"mlp.{n}_proj") for n in ("gate", "up", "down"))), w("post_feedforward_layernorm"))
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T
