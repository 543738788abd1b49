"""GPT-OSS without its experts: a learned sink in every head's softmax, windows in every other layer, biases, a clamped gate."""
from ops import *

VOCAB, D, L, H, G, E, FF, NEAR = 32, 16, 4, 4, 2, 4, 24, 5


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        for n, heads_of in ("q", H), ("k", G), ("v", G):
            P(p + f"self_attn.{n}_proj.weight", heads_of * E, D, std=D ** -0.5)
            P(p + f"self_attn.{n}_proj.bias", heads_of * E, std=0.2)
        P(p + "self_attn.o_proj.weight", D, H * E, std=D ** -0.5)
        P(p + "self_attn.o_proj.bias", D, std=0.2)
        P(p + "self_attn.sinks", H, std=1)
        for n in "gate", "up":
            P(p + f"mlp.{n}_proj.weight", FF, D, std=2 * D ** -0.5)
            P(p + f"mlp.{n}_proj.bias", FF, std=0.2)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
        P(p + "post_attention_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)
    P("lm_head.weight", VOCAB, D, std=0.3)


def sunk(a, sinks, v, see):
    """a [b, t, g, h, s]: the sink is one more key, whose value is nothing"""
    a = torch.cat((a.masked_fill(~see[:, :, None, None, :], -1e30), sinks.view(1, 1, G, H // G, 1).expand(*a.shape[:4], 1)), -1)
    return torch.einsum("btghs,bsge->btghe", a.softmax(-1)[..., :-1], v).flatten(2)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}"]
        y = rms(x, w("input_layernorm.weight"), 1e-6)
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj.weight").T + w(f"self_attn.{n}_proj.bias"), m) for n, m in (("q", H), ("k", G), ("v", G)))
        a = torch.einsum("btghe,bsge->btghs", rope_part(q, pos, E).unflatten(2, (G, H // G)), rope_part(k, pos, E)) * E ** -0.5
        o = sunk(a, w("self_attn.sinks"), v, window(pos, seg, NEAR if i % 2 == 0 else 1000))
        x = x + o @ w("self_attn.o_proj.weight").T + w("self_attn.o_proj.bias")
        z = rms(x, w("post_attention_layernorm.weight"), 1e-6)
        gate = (z @ w("mlp.gate_proj.weight").T + w("mlp.gate_proj.bias")).clamp(max=2)
        up = (z @ w("mlp.up_proj.weight").T + w("mlp.up_proj.bias")).clamp(-2, 2)
        x = x + ((up + 1) * gate * torch.sigmoid(1.702 * gate)) @ w("mlp.down_proj.weight").T
    return rms(x, W["model.norm.weight"], 1e-6) @ W["lm_head.weight"].T
