"""The parts that most cases share, as PyTorch formulas; float64, HF layouts: a linear layer's weight is [out, in]."""
import math
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def rms(x, w, eps=1e-6):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * w


def ln(x, w, c=None, eps=1e-5):
    return F.layer_norm(x, w.shape, w, c, eps)


def angles(pos, e, theta):
    """[B, T] -> [B, T, 1, e/2]"""
    return (pos.double()[..., None] * theta ** (-2.0 * torch.arange(e // 2) / e))[:, :, None]


def rope(x, pos, theta=10000.0):
    """x: [B, T, heads, e]; rotates element i with element i + e/2"""
    e = x.shape[-1]
    a = angles(pos, e, theta)
    lo, hi = x[..., : e // 2], x[..., e // 2:]
    return torch.cat((lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin()), -1)


def rope_pairs(x, pos, theta=10000.0):
    """the same, rotates element 2i with element 2i + 1"""
    a = angles(pos, x.shape[-1], theta)
    lo, hi = x[..., 0::2], x[..., 1::2]
    return torch.stack((lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin()), -1).flatten(-2)


def rope_part(x, pos, n, theta=10000.0):
    """rotates the first n elements only"""
    return torch.cat((rope(x[..., :n], pos, theta), x[..., n:]), -1)


def causal(pos, seg):
    """[B, T, S]: s is no later than t, in the same document"""
    return (pos[:, :, None] >= pos[:, None, :]) & (seg[:, :, None] == seg[:, None, :])


def window(pos, seg, n):
    return causal(pos, seg) & (pos[:, :, None] - pos[:, None, :] < n)


def heads(x, n):
    return x.unflatten(-1, (n, -1))


def spread(x, n):
    """[B, T, G, e] -> [B, T, n, e]: head h reads group h // (n / G)"""
    return x.repeat_interleave(n // x.shape[2], dim=2)


def scores(q, k, scale=None):
    """[B, heads, T, S]"""
    k = spread(k, q.shape[2])
    return torch.einsum("bthe,bshe->bhts", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)


def attend(a, v, see):
    """a: [B, heads, T, S]; v: [B, S, G, e]; see: [B, T, S] or [B, heads, T, S] -> [B, T, heads * e]"""
    see = see if see.dim() == 4 else see[:, None]
    p = torch.where(see, a, torch.full_like(a, -1e30)).softmax(-1)
    return torch.einsum("bhts,bshe->bthe", p, spread(v, a.shape[1])).flatten(-2)


def cap(x, most):
    return most * torch.tanh(x / most)


def swiglu(x, g, u, d):
    return (F.silu(x @ g.T) * (x @ u.T)) @ d.T


def best(x, k):
    """values and indices of the k greatest along the last axis, of equal ones the first; rounding must not change which they are"""
    v, i = x.sort(dim=-1, descending=True, stable=True)
    if k < x.shape[-1]:
        gap = float((v[..., k - 1] - v[..., k]).min())
        assert gap > 4e-6, f"routing hangs on {gap:.1e}"
    return v[..., :k], i[..., :k]


def routed(x, id, w, gate, up, down):
    """the sum over the chosen experts of w * swiglu(x): every expert on the tokens that chose it; x: [tokens, d], id, w: [tokens, k]"""
    out = torch.zeros_like(x)
    for e in range(len(gate)):
        t, j = (id == e).nonzero(as_tuple=True)
        out = out.index_add(0, t, swiglu(x[t], gate[e], up[e], down[e]) * w[t, j][:, None])
    return out
