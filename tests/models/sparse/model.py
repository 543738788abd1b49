"""Sparse attention: of the earlier positions of the document, each attends to the BEST ones by the scores of an indexer (and to equals of the last), or to all if there are fewer."""
from ops import *

VOCAB, D, L, H, FF, INDEX, BEST = 32, 16, 2, 2, 24, 4, 8


def params(P):
    P("embed.weight", VOCAB, D, std=0.5)
    for i in range(L):
        p = f"layers.{i}."
        for n in "qkvo":
            P(p + f"attn.{n}.weight", D, D, std=D ** -0.5)
        for n in "qk":
            P(p + f"index.{n}.weight", INDEX, D, std=D ** -0.5)
        for n, shape in ("gate", (FF, D)), ("up", (FF, D)), ("down", (D, FF)):
            P(p + f"mlp.{n}.weight", *shape, std=shape[1] ** -0.5)
        P(p + "norm1.weight", D, fill=1)
        P(p + "norm2.weight", D, fill=1)
    P("norm.weight", D, fill=1)
    P("head.weight", VOCAB, D, std=0.3)


def logits(W, tok, pos, seg):
    x = W["embed.weight"][tok]
    see = causal(pos, seg)
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}.weight"]
        y = rms(x, w("norm1"))
        q, k = (rope(heads(y @ w(f"attn.{n}").T, H), pos) for n in "qk")
        index = torch.einsum("bti,bsi->bts", y @ w("index.q").T, y @ w("index.k").T)
        least = index.detach().masked_fill(~see, -math.inf).sort(-1, descending=True)[0][..., :BEST][..., -1:]
        a = scores(q, k) + index[:, None]
        x = x + attend(a, heads(y @ w("attn.v").T, H), see & (index >= least)) @ w("attn.o").T
        x = x + swiglu(rms(x, w("norm2")), *(w(f"mlp.{n}") for n in ("gate", "up", "down")))
    return rms(x, W["norm.weight"]) @ W["head.weight"].T
