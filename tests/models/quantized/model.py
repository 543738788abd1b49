"""Weights and activations rounded to formats of few bits in every use, with the derivative of the values before rounding. Tables of
numbers are searched; only the tables come from formulas. Weights are [out, in], so the last axis is the one that a GEMM sums."""
from ops import *

VOCAB, D, L, FF = 24, 16, 3, 32
NF4 = torch.tensor([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0])
E4M3 = torch.tensor([m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7) for e in range(16) for m in range(8)][:127])
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def params(P):
    P("embed", VOCAB, D, std=1), P("head", VOCAB, D, std=D ** -0.5)
    for i in range(L):
        P(f"layers.{i}.n", D, fill=1), P(f"layers.{i}.wg", FF, D, std=D ** -0.5), P(f"layers.{i}.wu", FF, D, std=D ** -0.5)
        P(f"layers.{i}.wd", D, FF, std=FF ** -0.5)


def nearest(x, table):
    return table[(x[..., None] - table).abs().argmin(-1)]


def signed(x, table):
    return x.sign() * nearest(x.abs(), table)


def straight(x, block, rounded, inside=None):
    """x rounded in blocks along the last axis; the derivative is 1, and 0 where `inside` is false"""
    y = rounded(x.detach().reshape(*x.shape[:-1], -1, block)).reshape(x.shape)
    own = x if inside is None else torch.where(inside, x, x.detach())
    return own + (y - own).detach()


def top(x):
    return x.abs().amax(-1, keepdim=True)


def nf4(x):
    return straight(x, x.shape[-1], lambda v: nearest(v / top(v), NF4) * top(v))


def int4(x):
    return straight(x, 8, lambda v: (v * 7 / top(v)).round() * top(v) / 7)


def mxfp4(x):
    scale = lambda v: torch.exp2(torch.floor(torch.log2(top(v))) - 2)
    return straight(x, 32, lambda v: signed(v / scale(v), FP4) * scale(v))


def e4m3(x):
    return straight(x, x.shape[-1], lambda v: signed(v * 448 / top(v), E4M3) * top(v) / 448)


def plain(x):
    return straight(x, x.shape[-1], lambda v: signed(v, E4M3), x.abs() <= 464)


def logits(W, tok, pos, seg):
    x = W["embed"][tok]
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        x = x + swiglu(plain(rms(x, w("n"))), nf4(w("wg")), int4(w("wu")), mxfp4(w("wd")))
    return x @ e4m3(W["head"]).T
