"""Talking heads: scores are mixed across heads before the softmax and probabilities after it; a learned slope of distance for
each head; a squared rectifier; separate output weights."""
from ops import *

VOCAB, D, L, H, J, FF = 32, 24, 2, 4, 6, 40
E = D // H
NO_DECAY = r".*(n1|n2|norm|slope)$"


def params(P):
    P("embed", VOCAB, D, std=0.5), P("head", VOCAB, D, std=D ** -0.5), P("norm", D, fill=1)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "before", J, H, std=H ** -0.5), P(p + "after", H, J, std=J ** -0.5), P(p + "slope", H, fill=0.2)
        P(p + "w1", FF, D, std=D ** -0.5), P(p + "w2", D, FF, std=FF ** -0.5)
        P(p + "n1", D, fill=1), P(p + "n2", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    back = (pos[:, None, :, None] - pos[:, None, None, :]).double()
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        y = rms(x, w("n1"))
        q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
        a = scores(q, k) - w("slope")[:, None, None] * back
        a = torch.einsum("bhts,jh->bjts", a, w("before"))
        p = torch.where(causal(pos, seg)[:, None], a, torch.full_like(a, -1e30)).softmax(-1)
        p = torch.einsum("bjts,hj->bhts", p, w("after"))
        x = x + torch.einsum("bhts,bshe->bthe", p, v).flatten(-2) @ w("o").T
        x = x + F.relu(rms(x, w("n2")) @ w("w1").T) ** 2 @ w("w2").T
    return rms(x, W["norm"]) @ W["head"].T
