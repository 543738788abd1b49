"""A hashed embedding of the last two tokens, a mix with the previous position, attention sinks, smoothed labels, a second token predicted."""
from ops import *

VOCAB, D, H, FF, SLOTS = 32, 12, 2, 20, 13
SMOOTH, SECOND = 0.1, 0.3


def params(P):
    P("embed", VOCAB, D, std=0.5), P("pairs", SLOTS, D, std=0.5), P("documents", 5, D, std=0.3)
    P("mix", D, std=0.5), P("norm", D, fill=1), P("head", VOCAB, D, std=0.3), P("second", D, D, std=D ** -0.5)
    for n in "q", "k", "v", "o":
        P(n, D, D, std=D ** -0.5)
    P("w1", FF, D, std=D ** -0.5), P("w2", D, FF, std=FF ** -0.5), P("n1", D, fill=1), P("n2", D, fill=1)


def before(pos, seg):
    """[B, T, S]: s is the position just before t in its document"""
    return (pos[:, :, None] - pos[:, None, :] == 1) & (seg[:, :, None] == seg[:, None, :])


def hidden(W, tok, pos, seg):
    last = before(pos, seg)
    prev = torch.einsum("bts,bs->bt", last.double(), tok.double()).long()
    x = W["embed"][tok] + W["pairs"][(7 * tok + 5 * prev) % SLOTS] + W["documents"][torch.remainder(seg, 5)]
    m = torch.sigmoid(W["mix"])
    x = x + m * torch.einsum("bts,bsd->btd", last.double(), x)
    see = causal(pos, seg) & ((pos[:, :, None] - pos[:, None, :] < 4) | (pos[:, None, :] < 2))
    y = rms(x, W["n1"])
    q, k, v = (heads(y @ W[n].T, H) for n in "qkv")
    x = x + attend(cap(scores(rope(q, pos), rope(k, pos)), 4.0), v, see) @ W["o"].T
    return x + F.silu(rms(x, W["n2"]) @ W["w1"].T) @ W["w2"].T


def logits(W, tok, pos, seg):
    return rms(hidden(W, tok, pos, seg), W["norm"]) @ W["head"].T


def loss(W, bt):
    x = hidden(W, bt["tok"], bt["pos"], bt["seg"])
    z = rms(x, W["norm"]) @ W["head"].T
    l = F.cross_entropy(z.transpose(1, 2), bt["next"], reduction="none")
    l = (1 - SMOOTH) * l - SMOOTH * z.log_softmax(-1).mean(-1)
    z2 = (rms(x, W["norm"]) @ W["second"] @ W["head"].T)[:, :-1]
    l2 = F.cross_entropy(z2.transpose(1, 2), bt["next"][:, 1:], reduction="none")
    w2 = bt["w"][:, :-1] * bt["w"][:, 1:]
    return (l * bt["w"]).sum() + SECOND * (l2 * w2).sum(), bt["w"].sum()
