"""A universal transformer: one block applied again and again, a vector for each time, a learned halting weight."""
from ops import *

VOCAB, D, H, FF, TIMES = 32, 16, 2, 24, 6


def params(P):
    P("embed", VOCAB, D, std=0.5), P("times", TIMES, D, std=0.3), P("norm", D, fill=1)
    P("halt.w", D, std=D ** -0.5), P("halt.b", 1, std=0.1)
    for n in "q", "k", "v", "o":
        P(f"block.{n}", D, D, std=D ** -0.5)
    P("block.w1", FF, D, std=D ** -0.5), P("block.w2", D, FF, std=FF ** -0.5)
    P("block.n1", D, fill=1), P("block.n2", D, fill=1)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    out, left = torch.zeros_like(x), torch.ones_like(x[..., 0])
    for n in range(TIMES):
        y = rms(x + W["times"][n], W["block.n1"])
        q, k, v = (heads(y @ W[f"block.{m}"].T, H) for m in "qkv")
        x = x + attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ W["block.o"].T
        y = rms(x, W["block.n2"])
        x = x + F.softplus(y @ W["block.w1"].T) @ W["block.w2"].T
        p = torch.sigmoid(x @ W["halt.w"] + W["halt.b"])
        out, left = out + (left * p)[..., None] * x, left * (1 - p)
    return rms(out + left[..., None] * x, W["norm"]) @ W["embed"].T
