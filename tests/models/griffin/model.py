"""Griffin's recurrent block: a gated linear recurrence (RG-LRU) beside a GELU gate, and a gated MLP."""
from ops import *

VOCAB, D, E, L, FF = 32, 16, 24, 2, 24


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        P(p + "x", E, D, std=D ** -0.5), P(p + "y", E, D, std=D ** -0.5), P(p + "o", D, E, std=E ** -0.5)
        P(p + "ga", E, std=0.5), P(p + "gx", E, std=0.5), P(p + "ba", E, std=0.5), P(p + "bx", E, std=0.5)
        P(p + "lambda", E, fill=-2)
        P(p + "n1", D, fill=1), P(p + "n2", D, fill=1)
        P(p + "wg", FF, D, std=D ** -0.5), P(p + "wu", FF, D, std=D ** -0.5), P(p + "wd", D, FF, std=FF ** -0.5)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for l in range(L):
        w = lambda n: W[f"layers.{l}.{n}"]
        z = rms(x, w("n1"))
        u = z @ w("x").T
        r, i = torch.sigmoid(u * w("ga") + w("ba")), torch.sigmoid(u * w("gx") + w("bx"))
        a = torch.exp(-8 * F.softplus(w("lambda")) * r)
        h, y = torch.zeros_like(u[:, 0]), []
        for t in range(u.shape[1]):
            h = a[:, t] * torch.where(pos[:, t, None] > 0, h, torch.zeros_like(h))
            h = h + torch.sqrt(1 - a[:, t] ** 2) * (i[:, t] * u[:, t])
            y.append(h)
        x = x + (torch.stack(y, 1) * F.gelu(z @ w("y").T)) @ w("o").T
        z = rms(x, w("n2"))
        x = x + (F.silu(z @ w("wg").T) * (z @ w("wu").T)) @ w("wd").T
    return rms(x, W["norm"]) @ W["embed"].T
