"""Mamba: a short convolution, then a selective scan: a state for each channel, whose decay, input and output depend on the token; a gate."""
from ops import *

VOCAB, D, E, N, R, K, L = 32, 16, 24, 4, 2, 4, 2


def params(P):
    P("embed", VOCAB, D, std=0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        P(p + "i", E, D, std=D ** -0.5), P(p + "z", E, D, std=D ** -0.5), P(p + "o", D, E, std=E ** -0.5)
        P(p + "b", N, E, std=E ** -0.5), P(p + "c", N, E, std=E ** -0.5)
        P(p + "d1", R, E, std=E ** -0.5), P(p + "d2", E, R, std=R ** -0.5)
        P(p + "conv", E, 1, K, std=K ** -0.5), P(p + "shift", E, fill=0)
        P(p + "bias", E, fill=-1), P(p + "skip", E, fill=1), P(p + "a", E, N, fill=0), P(p + "norm", D, fill=1)


def conv(x, w, bias, seg):
    """torch's convolution of each document by itself"""
    out = torch.zeros_like(x)
    for r in range(x.shape[0]):
        for s in seg[r].unique():
            at = (seg[r] == s).nonzero()[:, 0]
            y = F.conv1d(x[r, at].T[None], w, bias, padding=w.shape[-1] - 1, groups=w.shape[0])
            out = out.index_put((torch.tensor(r), at), y[0, :, :len(at)].T)
    return out


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for l in range(L):
        w = lambda n: W[f"layers.{l}.{n}"]
        z = rms(x, w("norm"))
        u = F.silu(conv(z @ w("i").T, w("conv"), w("shift"), seg))
        delta = F.softplus(u @ w("d1").T @ w("d2").T + w("bias"))
        b, c = u @ w("b").T, u @ w("c").T
        h, y = torch.zeros(*u[:, 0].shape, N), []
        for t in range(u.shape[1]):
            keep = torch.exp(-delta[:, t, :, None] * torch.exp(w("a")))
            h = keep * torch.where(pos[:, t, None, None] > 0, h, torch.zeros_like(h))
            h = h + (delta[:, t] * u[:, t])[:, :, None] * b[:, t, None]
            y.append((h * c[:, t, None]).sum(-1) + w("skip") * u[:, t])
        x = x + (torch.stack(y, 1) * F.silu(z @ w("z").T)) @ w("o").T
    return rms(x, W["norm"]) @ W["embed"].T
