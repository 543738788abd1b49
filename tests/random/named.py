"""Tensors whose axes have names, as the language's rules have them; each is given as (tensor, "names of its axes")."""
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def spread(x, have, want):
    """x over the axes `want`, in that order; those that it has not are of size one"""
    have, want = have.split(), want.split()
    assert x.dim() == len(have) and set(have) <= set(want), (x.shape, have, want)
    x = x.permute([have.index(a) for a in want if a in have])
    for i, a in enumerate(want):
        x = x if a in have else x.unsqueeze(i)
    return x


def dot(x, xa, w, wa, over):
    """sums over `over`; other shared axes are batch axes; x's axes, then w's own"""
    xa, wa, over = xa.split(), wa.split(), over.split()
    every = list(dict.fromkeys(xa + wa))
    out = [a for a in xa if a not in over] + [a for a in wa if a not in over and a not in xa]
    at = lambda axes: [every.index(a) for a in axes]
    return torch.einsum(x, at(xa), w, at(wa), at(out))


def reduce(x, have, f, over):
    at = [have.split().index(a) for a in over.split()]
    return {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}[f](x, at)


def moments(x, have, over):
    at = [have.split().index(a) for a in over.split()]
    return lambda y: y.mean(at, keepdim=True)


def rms(x, have, w, over, eps=1e-6):
    mean = moments(x, have, over)
    return x * (mean(x * x) + eps).rsqrt() * spread(w, over, have)


def layer(x, have, w, over, c, eps=1e-5):
    mean = moments(x, have, over)
    m = x - mean(x)
    return m * (mean(m * m) + eps).rsqrt() * spread(w, over, have) + spread(c, over, have)


def rope(x, have, pos, theta):
    """rotates the last axis, element i with element i + e/2; pos is [b, t]"""
    e = x.shape[-1]
    a = spread(pos.double()[..., None] * theta ** (-2.0 * torch.arange(e // 2) / e), "b t c", " ".join(have.split()[:-1]) + " c")
    lo, hi = x[..., : e // 2], x[..., e // 2:]
    return torch.cat((lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin()), -1)


def masked(a, see, have, other):
    return torch.where(spread(see, "b t s", have), a, torch.full_like(a, other))
