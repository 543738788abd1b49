"""Two models of different shape, each with its own names, mixed by a learned weight; a term that pulls them together."""
from ops import *

VOCAB, H = 32, 2
SIZES = dict(a=(12, 2, 16), b=(8, 3, 12))


def params(P):
    P("mix", 1, std=0.5)
    for m, (d, l, ff) in SIZES.items():
        P(m + ".embed", VOCAB, d, std=0.5), P(m + ".norm", d, fill=1)
        for i in range(l):
            p = f"{m}.blocks.{i}."
            for n in "q", "k", "v", "o":
                P(p + n, d, d, std=d ** -0.5)
            P(p + "w1", ff, d, std=d ** -0.5), P(p + "w2", d, ff, std=ff ** -0.5)
            P(p + "n1", d, fill=1), P(p + "n2", d, fill=1)


def one(W, m, tok, pos, seg):
    d, l, ff = SIZES[m]
    x = W[m + ".embed"][tok]
    for i in range(l):
        w = lambda n: W[f"{m}.blocks.{i}.{n}"]
        y = rms(x, w("n1"))
        q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("o").T
        x = x + F.gelu(rms(x, w("n2")) @ w("w1").T) @ w("w2").T
    return rms(x, W[m + ".norm"]) @ W[m + ".embed"].T


def logits(W, tok, pos, seg):
    p = torch.sigmoid(W["mix"].sum())
    return p * one(W, "a", tok, pos, seg) + (1 - p) * one(W, "b", tok, pos, seg)


def loss(W, bt):
    z = logits(W, bt["tok"], bt["pos"], bt["seg"])
    a, b = (one(W, m, bt["tok"], bt["pos"], bt["seg"]).log_softmax(-1) for m in "ab")
    l = F.cross_entropy(z.transpose(1, 2), bt["next"], reduction="none")
    kl = (b.detach().exp() * (b.detach() - a)).sum(-1)
    return ((l + 0.1 * kl) * bt["w"]).sum(), bt["w"].sum()
