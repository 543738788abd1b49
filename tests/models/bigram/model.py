"""The smallest: a table, a hidden layer; no position depends on another, so decoding has no cache."""
from ops import *

VOCAB, D, FF = 24, 8, 12


def params(P):
    P("embed", VOCAB, D, std=1), P("w1", FF, D, std=D ** -0.5), P("b1", FF, std=0.1), P("head", VOCAB, FF, std=FF ** -0.5)


def logits(W, tok, pos, seg):
    return torch.tanh(W["embed"][tok] @ W["w1"].T + W["b1"]) @ W["head"].T
