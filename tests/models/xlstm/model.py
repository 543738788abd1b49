"""xLSTM: a layer of scalar memories (sLSTM) and a layer of matrix memories (mLSTM), with stabilized exponential gates."""
from ops import *

VOCAB, D, G = 32, 16, 2
E = D // G


def params(P):
    P("embed", VOCAB, D, std=0.5)
    for n in "norm", "n1", "n2":
        P(n, D, fill=1)
    for n in "wz", "wi", "wf", "wo", "out":
        P("s." + n, D, D, std=D ** -0.5)
    for n in "rz", "ri", "rf", "ro":
        P("s." + n, G, E, E, std=E ** -0.5)
    P("s.bi", G, E, std=0.3), P("s.bf", G, E, fill=2)
    for n in "wq", "wk", "wv", "wo", "out":
        P("m." + n, D, D, std=D ** -0.5)
    P("m.wi", G, D, std=D ** -0.5), P("m.wf", G, D, std=D ** -0.5), P("m.bi", G, std=0.3), P("m.bf", G, fill=2)


def kept(pos, t, x):
    first = (pos[:, t] == 0).reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(first, torch.zeros_like(x), x)


def scalar(w, x, pos):
    z, i, f, o = (heads4(x @ w("s.w" + n).T) for n in "zifo")
    i, f = i + w("s.bi"), f + w("s.bf")
    c = n = h = m = torch.zeros(x.shape[0], G, E)
    y = []
    for t in range(x.shape[1]):
        h, m = kept(pos, t, h), kept(pos, t, m)
        r = lambda name: torch.einsum("bge,gek->bgk", h, w("s.r" + name))
        lf, li = F.logsigmoid(f[:, t] + r("f")) + m, i[:, t] + r("i")
        zt, ot = torch.tanh(z[:, t] + r("z")), torch.sigmoid(o[:, t] + r("o"))
        m = torch.maximum(lf, li)
        c = torch.exp(lf - m) * kept(pos, t, c) + torch.exp(li - m) * zt
        n = torch.exp(lf - m) * kept(pos, t, n) + torch.exp(li - m)
        h = ot * c / n
        y.append(h)
    return torch.stack(y, 1).flatten(-2) @ w("s.out").T


def heads4(x):
    return x.reshape(*x.shape[:-1], G, E)


def matrix(w, x, pos):
    q, k, v = heads4(x @ w("m.wq").T), heads4(x @ w("m.wk").T) * E ** -0.5, heads4(x @ w("m.wv").T)
    i, f = x @ w("m.wi").T + w("m.bi"), F.logsigmoid(x @ w("m.wf").T + w("m.bf"))
    c, n, m = torch.zeros(x.shape[0], G, E, E), torch.zeros(x.shape[0], G, E), torch.zeros(x.shape[0], G)
    y = []
    for t in range(x.shape[1]):
        lf = f[:, t] + kept(pos, t, m)
        m = torch.maximum(lf, i[:, t])
        keep, add = torch.exp(lf - m)[..., None], torch.exp(i[:, t] - m)[..., None]
        c = keep[..., None] * kept(pos, t, c) + (add * v[:, t])[..., None] * k[:, t, :, None]
        n = keep * kept(pos, t, n) + add * k[:, t]
        down = torch.maximum((n * q[:, t]).sum(-1).abs(), torch.exp(-m))
        y.append(torch.einsum("bgek,bgk->bge", c, q[:, t]) / down[..., None])
    return (torch.stack(y, 1).flatten(-2) * torch.sigmoid(x @ w("m.wo").T)) @ w("m.out").T


def logits(W, tok, pos, seg):
    w = lambda n: W[n]
    x = W["embed"][tok]
    x = x + scalar(w, rms(x, W["n1"]), pos)
    x = x + matrix(w, rms(x, W["n2"]), pos)
    return rms(x, W["norm"]) @ W["embed"].T
