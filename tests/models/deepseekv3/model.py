"""DeepSeek-V3's experts: sigmoid scores, a bias that only chooses and balances their load, the best groups first, a shared expert; a dense
first layer."""
from ops import *

VOCAB, D, L, H, N, GROUPS, KEPT, K, FF, DENSE, SCALE = 32, 24, 3, 3, 8, 4, 2, 3, 20, 40, 2.5
RATE, STATES = 0.05, r"\.(e_score_correction_bias|load)$"
counted = {}        # by tensor: tokens of each expert in the current step


def path(i):
    return f"model.layers.{i - 1}." if i else "model.first."


def params(P):
    P("model.embed_tokens.weight", VOCAB, D, std=0.5), P("model.norm.weight", D, fill=1), P("lm_head.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = path(i)
        for n in "q", "k", "v", "o":
            P(p + f"self_attn.{n}_proj.weight", D, D, std=D ** -0.5)
        if i:
            P(p + "mlp.gate.weight", N, D, std=D ** -0.5), P(p + "mlp.gate.e_score_correction_bias", N, std=0.2)
            P(p + "mlp.load", N, fill=0)
        for q, f in [("", DENSE)] if not i else [(f"experts.{e}.", FF) for e in range(N)] + [("shared_experts.", FF)]:
            P(p + f"mlp.{q}gate_proj.weight", f, D, std=D ** -0.5), P(p + f"mlp.{q}up_proj.weight", f, D, std=D ** -0.5)
            P(p + f"mlp.{q}down_proj.weight", D, f, std=f ** -0.5)
        P(p + "input_layernorm.weight", D, fill=1), P(p + "post_attention_layernorm.weight", D, fill=1)


def moe(w, y):
    s = (y @ w("mlp.gate.weight").T).sigmoid()
    pick = s + w("mlp.gate.e_score_correction_bias")
    group = best(pick.unflatten(-1, (GROUPS, -1)), 2)[0].sum(-1)
    kept = torch.zeros_like(group).scatter(-1, best(group, KEPT)[1], 1.0)
    id = best(pick * kept.repeat_interleave(N // GROUPS, -1), K)[1]
    if torch.is_grad_enabled():
        load = w("mlp.load")
        counted[load] = counted.get(load, 0) + torch.bincount(id.flatten(), minlength=N)
    c = s.gather(-1, id)
    c = c / (c.sum(-1, keepdim=True) + 1e-20) * SCALE
    own = lambda q: [w(f"mlp.{q}{n}_proj.weight") for n in ("gate", "up", "down")]
    experts = [own(f"experts.{e}.") for e in range(N)]
    return routed(y, id, c, *zip(*experts)) + swiglu(y, *own("shared_experts."))


def after_step(W):
    for i in range(1, L):
        bias, load = (W[path(i) + "mlp." + n] for n in ("gate.e_score_correction_bias", "load"))
        load += counted.pop(load)
        bias += RATE * torch.sign(load.mean() - load)
        load *= 0.5


def logits(W, tok, pos, seg):
    x = W["model.embed_tokens.weight"][tok]
    for i in range(L):
        w = lambda n: W[path(i) + n]
        y = rms(x, w("input_layernorm.weight"))
        q, k, v = (heads(y @ w(f"self_attn.{n}_proj.weight").T, H) for n in "qkv")
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("self_attn.o_proj.weight").T
        y = rms(x, w("post_attention_layernorm.weight")).reshape(-1, D)
        m = moe(w, y) if i else swiglu(y, *(w(f"mlp.{n}_proj.weight") for n in ("gate", "up", "down")))
        x = x + m.reshape(x.shape)
    return rms(x, W["model.norm.weight"]) @ W["lm_head.weight"].T
