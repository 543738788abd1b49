"""DeepSeek's multi-head latent attention: keys and values from a narrow latent, one shared rotary key beside it."""
from ops import *

VOCAB, D, L, H, FF = 32, 16, 2, 4, 24
NOPE, ROPE, VALUE, QR, KR = 4, 4, 6, 12, 8


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"model.layers.{i}."
        a = p + "self_attn."
        P(a + "q_a_proj.weight", QR, D, std=D ** -0.5)
        P(a + "q_a_layernorm.weight", QR, fill=1)
        P(a + "q_b_proj.weight", H * (NOPE + ROPE), QR, std=QR ** -0.5)
        P(a + "kv_a_proj_with_mqa.weight", KR + ROPE, D, std=D ** -0.5)
        P(a + "kv_a_layernorm.weight", KR, fill=1)
        P(a + "kv_b_proj.weight", H * (NOPE + VALUE), KR, std=KR ** -0.5)
        P(a + "o_proj.weight", D, H * VALUE, std=(H * VALUE) ** -0.5)
        P(p + "mlp.gate_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.up_proj.weight", FF, D, std=D ** -0.5)
        P(p + "mlp.down_proj.weight", D, FF, std=FF ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1)
        P(p + "post_attention_layernorm.weight", D, fill=1)
    P("model.norm.weight", D, fill=1)
    P("lm_head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"model.layers.{i}.{n}.weight"]
        y = rms(x, w("input_layernorm"))
        q = heads(rms(y @ w("self_attn.q_a_proj").T, w("self_attn.q_a_layernorm")) @ w("self_attn.q_b_proj").T, H)
        latent, kr = (y @ w("self_attn.kv_a_proj_with_mqa").T).split([KR, ROPE], -1)
        kv = heads(rms(latent, w("self_attn.kv_a_layernorm")) @ w("self_attn.kv_b_proj").T, H)
        k, v = kv.split([NOPE, VALUE], -1)
        kr = rope_pairs(kr[:, :, None], pos).expand(-1, -1, H, -1)
        q = torch.cat((q[..., :NOPE], rope_pairs(q[..., NOPE:], pos)), -1)
        x = x + attend(scores(q, torch.cat((k, kr), -1)), v, causal(pos, seg)) @ w("self_attn.o_proj").T
        x = x + swiglu(rms(x, w("post_attention_layernorm")), *(w(f"mlp.{n}_proj") for n in ("gate", "up", "down")))
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T
