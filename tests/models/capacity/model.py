"""Two of four experts for each token, each of which takes as many tokens of a row as its capacity in training: GShard's algorithm 1."""
import math

from ops import *

VOCAB, D, L, N, K, FF, FACTOR = 24, 8, 2, 4, 2, 8, 0.75


def params(P):
    P("embed", VOCAB, D, std=1), P("head", VOCAB, D, std=0.5)
    for i in range(L):
        P(f"layers.{i}.gate", N, D, std=1)
        for e in range(N):
            q = f"layers.{i}.experts.{e}."
            P(q + "w1", FF, D, std=D ** -0.5), P(q + "w2", D, FF, std=FF ** -0.5), P(q + "w3", FF, D, std=D ** -0.5)


def kept(id):
    """True for the choices that their expert takes: all first choices of a row by position, then all second ones; id: [rows, positions, k]"""
    limit, keep = math.ceil(id.shape[1] * K / N * FACTOR), torch.zeros_like(id, dtype=torch.bool)
    for b in range(id.shape[0]):
        load = [0] * N
        for k in range(K):
            for t in range(id.shape[1]):
                e = int(id[b, t, k])
                keep[b, t, k] = load[e] < limit
                load[e] += 1
    return keep


def run(W, tok, training):
    x, dropped = W["embed"][tok], []
    for i in range(L):
        p = (x @ W[f"layers.{i}.gate"].T).softmax(-1)
        c, id = best(p, K)
        keep = kept(id) if training else torch.ones_like(id, dtype=torch.bool)
        dropped.append(float((~keep).double().mean()))
        c = c / c.sum(-1, keepdim=True) * keep
        expert = lambda n: [W[f"layers.{i}.experts.{e}.w{n}"] for e in range(N)]
        x = x + routed(x.reshape(-1, D), id.reshape(-1, K), c.reshape(-1, K), expert(1), expert(3), expert(2)).reshape(x.shape)
    return x @ W["head"].T, dropped


def logits(W, tok, pos, seg):
    return run(W, tok, False)[0]


def loss(W, bt):
    y, dropped = run(W, bt["tok"], True)
    assert min(dropped) > 0.1, f"nothing is dropped: {dropped}"
    l = F.cross_entropy(y.transpose(1, 2), bt["next"], reduction="none")
    return (l * bt["w"]).sum(), bt["w"].sum()
