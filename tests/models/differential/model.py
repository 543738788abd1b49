"""Differential transformer: the difference of two softmaxes, weighted by a learned lambda that depends on depth."""
from ops import *

VOCAB, D, L, H, E, FF = 32, 16, 3, 2, 4, 24


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v":
            P(p + n, 2 * H * E, D, std=D ** -0.5)
        P(p + "o", D, 2 * H * E, std=D ** -0.5)
        for n in "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2":
            P(p + n, E, std=0.3)
        P(p + "subln", 2 * E, fill=1)
        P(p + "gate", FF, D, std=D ** -0.5), P(p + "up", FF, D, std=D ** -0.5), P(p + "down", D, FF, std=FF ** -0.5)
        P(p + "n1", D, fill=1), P(p + "n2", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    see = causal(pos, seg)[:, None]
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        start = 0.8 - 0.6 * math.exp(-0.3 * i)
        lam = (w("lambda_q1") @ w("lambda_k1")).exp() - (w("lambda_q2") @ w("lambda_k2")).exp() + start
        y = rms(x, w("n1"))
        q, k = (rope(heads(y @ w(n).T, 2 * H), pos) for n in "qk")
        v = heads(y @ w("v").T, H)                                            # [B, T, H, 2E]
        a = scores(q, k)
        p = torch.where(see, a, torch.full_like(a, -1e30)).softmax(-1).unflatten(1, (H, 2))
        p = p[:, :, 0] - lam * p[:, :, 1]
        o = rms(torch.einsum("bhts,bshe->bthe", p, v), w("subln"), 1e-5) * (1 - start)
        x = x + o.flatten(-2) @ w("o").T
        x = x + swiglu(rms(x, w("n2")), w("gate"), w("up"), w("down"))
    return rms(x, W["norm"]) @ W["embed"].T
