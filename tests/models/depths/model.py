"""Mixture-of-Depths: in training, odd layers compute the four best positions of 16 in each row; else those that a predictor names."""
from ops import *

VOCAB, D, FF, L, H, SHARE = 24, 8, 12, 4, 2, 4
NO_DECAY = r"n1$|n2$|norm$"


def params(P):
    P("embed", VOCAB, D, std=1), P("norm", D, fill=1)
    for i in range(L):
        q = f"layers.{i}."
        P(q + "qkv", 3 * D, D, std=D ** -0.5), P(q + "o", D, D, std=D ** -0.5)
        P(q + "n1", D, fill=1), P(q + "n2", D, fill=1)
        P(q + "gate", FF, D, std=D ** -0.5), P(q + "up", FF, D, std=D ** -0.5), P(q + "down", D, FF, std=FF ** -0.5)
        if i % 2:
            P(q + "router", D, std=1), P(q + "guess", D, std=1)


def change(W, q, x, pos, mask):
    """attention and a feed-forward layer, without the residual"""
    a, b, v = (heads(y, H) for y in (rms(x, W[q + "n1"]) @ W[q + "qkv"].T).chunk(3, -1))
    z = torch.einsum("bthe,bshe->bhts", rope(a, pos), rope(b, pos)) * (D // H) ** -0.5
    p = z.masked_fill(~mask[:, None], -1e30).softmax(-1)
    u = torch.einsum("bhts,bshe->bthe", p, v).flatten(2) @ W[q + "o"].T
    y = rms(x + u, W[q + "n2"])
    return u + (F.silu(y @ W[q + "gate"].T) * (y @ W[q + "up"].T)) @ W[q + "down"].T


def some(W, q, x, pos, seg, training):
    r, g = x @ W[q + "router"], x.detach() @ W[q + "guess"]
    taken = torch.zeros_like(r)
    if training:
        at = r.masked_fill(seg < 0, -1e30).topk(r.shape[1] // SHARE, -1)[1].sort(-1)[0]
        for b in range(len(x)):             # the chosen positions of a row, as a row by themselves
            i, taken[b, at[b]] = at[b], 1
            p, s = pos[b:b + 1, i], seg[b:b + 1, i]
            y = change(W, q, x[b:b + 1, i], p, causal(p, s))
            y = y * (r[b, i] * (seg[b, i] >= 0))[:, None]
            x = x.index_put((torch.tensor([b]), i), y[0], accumulate=True)
    else:
        open = g > 0
        y = change(W, q, x, pos, causal(pos, seg) & open[:, None])
        x, taken = x + torch.where(open, r, 0)[..., None] * y, open.double()
    return x, F.binary_cross_entropy_with_logits(g, taken, reduction="none")


def run(W, tok, pos, seg, training):
    x, extra = W["embed"][tok], 0
    for i in range(L):
        q = f"layers.{i}."
        if i % 2:
            x, more = some(W, q, x, pos, seg, training)
            extra = extra + more
        else:
            x = x + change(W, q, x, pos, causal(pos, seg))
    return rms(x, W["norm"]) @ W["embed"].T, extra


def logits(W, tok, pos, seg):
    return run(W, tok, pos, seg, False)[0]


def loss(W, bt):
    z, extra = run(W, bt["tok"], bt["pos"], bt["seg"], True)
    l = F.cross_entropy(z.transpose(1, 2), bt["next"], reduction="none")
    return ((l + 0.01 * extra) * bt["w"]).sum(), bt["w"].sum()
