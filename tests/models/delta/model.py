"""Gated linear attention, the gated delta rule and RWKV-7's time mixing, one layer each, a position at a time."""
from ops import *

VOCAB, D, H, K, V, T, STEPS = 32, 12, 2, 4, 5, 32, 3


def params(P):
    P("embed", VOCAB, D, std=0.5)
    for n in "norm", "n1", "n2", "n3":
        P(n, D, fill=1)
    for n in "g.q", "g.k", "g.a", "d.q", "d.k", "r.r", "r.k", "r.w", "r.a":
        P(n, H * K, D, std=D ** -0.5)
    for n in "g.v", "d.v", "r.v":
        P(n, H * V, D, std=D ** -0.5)
    for n in "g.o", "d.o", "r.o":
        P(n, D, H * V, std=(H * V) ** -0.5)
    P("d.a", H, D, std=D ** -0.5), P("d.b", H, D, std=D ** -0.5), P("r.bonus", H, K, std=0.5)


def each(x, pos, step):
    """the outputs of step(state [B, H, V, K], t) -> (state, output [B, H, V]) for all positions, with heads side by side"""
    s = torch.zeros(x.shape[0], H, V, K)
    y = []
    for t in range(x.shape[1]):
        s = torch.where((pos[:, t] == 0)[:, None, None, None], torch.zeros_like(s), s)
        s, o = step(s, t)
        y.append(o)
    return torch.stack(y, 1).flatten(-2)


def read(s, q):
    return torch.einsum("bhvk,bhk->bhv", s, q)


def outer(v, k):
    return v[..., :, None] * k[..., None, :]


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    part = lambda x, n, e: (x @ W[n].T).reshape(*x.shape[:2], H, e)

    z = rms(x, W["n1"])
    q, k, a, v = part(z, "g.q", K), part(z, "g.k", K), torch.sigmoid(part(z, "g.a", K)), part(z, "g.v", V)

    def gated(s, t):
        s = s * a[:, t, :, None] + outer(v[:, t], k[:, t])
        return s, read(s, q[:, t])
    x = x + each(x, pos, gated) @ W["g.o"].T

    z = rms(x, W["n2"])
    q2, k2, v2 = part(z, "d.q", K), unit(F.silu(part(z, "d.k", K))), part(z, "d.v", V)
    a2, b2 = torch.sigmoid(z @ W["d.a"].T), 2 * torch.sigmoid(z @ W["d.b"].T)
    eye = torch.eye(K)

    def delta(s, t):
        kk = outer(k2[:, t], k2[:, t])
        s = a2[:, t, :, None, None] * s @ (eye - b2[:, t, :, None, None] * kk) + outer(b2[:, t, :, None] * v2[:, t], k2[:, t])
        return s, read(s, q2[:, t])
    x = x + each(x, pos, delta) @ W["d.o"].T

    z = rms(x, W["n3"])
    r, k3, v3 = part(z, "r.r", K), part(z, "r.k", K), part(z, "r.v", V)
    lost, rate, w = unit(k3), torch.sigmoid(part(z, "r.a", K)), torch.exp(-0.606531 * torch.sigmoid(part(z, "r.w", K)))

    def rwkv(s, t):
        move = torch.diag_embed(w[:, t]) - outer(lost[:, t], lost[:, t] * rate[:, t])
        s = s @ move + outer(v3[:, t], k3[:, t])
        return s, read(s, r[:, t]) + (r[:, t] * W["r.bonus"] * k3[:, t]).sum(-1, keepdim=True) * v3[:, t]
    x = x + each(x, pos, rwkv) @ W["r.o"].T
    return rms(x, W["norm"]) @ W["embed"].T
