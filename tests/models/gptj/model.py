"""GPT-J: neighbours are rotated together, in a part of each head; attention and feed-forward side by side; a bias on the head."""
from ops import *

VOCAB, D, L, H, E, ROTARY = 32, 16, 2, 2, 8, 4


def params(P):
    P("transformer.wte.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"transformer.h.{i}."
        P(p + "ln_1.weight", D, fill=1), P(p + "ln_1.bias", D, std=0.1)
        for n in "q_proj", "k_proj", "v_proj", "out_proj":
            P(p + f"attn.{n}.weight", D, D, std=D ** -0.5)
        P(p + "mlp.fc_in.weight", 4 * D, D, std=D ** -0.5), P(p + "mlp.fc_in.bias", 4 * D, std=0.1)
        P(p + "mlp.fc_out.weight", D, 4 * D, std=(4 * D) ** -0.5), P(p + "mlp.fc_out.bias", D, std=0.1)
    P("transformer.ln_f.weight", D, fill=1), P("transformer.ln_f.bias", D, std=0.1)
    P("lm_head.weight", VOCAB, D, std=0.3), P("lm_head.bias", VOCAB, std=0.1)


def logits(W, tok, pos, seg):
    x = W["transformer.wte.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"transformer.h.{i}.{n}"]
        y = ln(x, w("ln_1.weight"), w("ln_1.bias"))
        q, k, v = (heads(y @ w(f"attn.{n}_proj.weight").T, H) for n in "qkv")
        q, k = (torch.cat((rope_pairs(z[..., :ROTARY], pos), z[..., ROTARY:]), -1) for z in (q, k))
        a = attend(scores(q, k), v, causal(pos, seg)) @ w("attn.out_proj.weight").T
        y = F.gelu(y @ w("mlp.fc_in.weight").T + w("mlp.fc_in.bias"), approximate="tanh")
        x = x + a + y @ w("mlp.fc_out.weight").T + w("mlp.fc_out.bias")
    return ln(x, W["transformer.ln_f.weight"], W["transformer.ln_f.bias"]) @ W["lm_head.weight"].T + W["lm_head.bias"]
