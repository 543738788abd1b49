"""ALBERT-like decoder: a narrow embedding projected up, one block applied five times, projected down for the head."""
from ops import *

VOCAB, D, N, H, FF, TIMES, CONTEXT = 32, 16, 6, 4, 24, 5, 16


def params(P):
    P("embeddings.word.weight", VOCAB, N, std=0.3)
    P("embeddings.position.weight", CONTEXT, N, std=0.3)
    P("embeddings.norm.weight", N, fill=1), P("embeddings.norm.bias", N, std=0.1)
    P("up.weight", D, N, std=N ** -0.5), P("up.bias", D, std=0.1)
    for n in "query", "key", "value", "dense":
        P(f"layer.attention.{n}.weight", D, D, std=D ** -0.5), P(f"layer.attention.{n}.bias", D, std=0.1)
    P("layer.ffn.weight", FF, D, std=D ** -0.5), P("layer.ffn.bias", FF, std=0.1)
    P("layer.ffn_output.weight", D, FF, std=FF ** -0.5), P("layer.ffn_output.bias", D, std=0.1)
    for n in "layer.norm1", "layer.norm2":
        P(n + ".weight", D, fill=1), P(n + ".bias", D, std=0.1)
    P("down.weight", N, D, std=D ** -0.5), P("down.bias", N, std=0.1)
    P("decoder.bias", VOCAB, std=0.1)


def logits(W, tok, pos, seg):
    lin = lambda x, n: x @ W[n + ".weight"].T + W[n + ".bias"]
    norm = lambda x, n: ln(x, W[n + ".weight"], W[n + ".bias"], 1e-12)
    x = norm(W["embeddings.word.weight"][tok] + W["embeddings.position.weight"][pos], "embeddings.norm")
    x = lin(x, "up")
    for _ in range(TIMES):
        q, k, v = (heads(lin(x, f"layer.attention.{n}"), H) for n in ("query", "key", "value"))
        x = norm(x + lin(attend(scores(q, k), v, causal(pos, seg)), "layer.attention.dense"), "layer.norm1")
        x = norm(x + lin(F.gelu(lin(x, "layer.ffn")), "layer.ffn_output"), "layer.norm2")
    return lin(x, "down") @ W["embeddings.word.weight"].T + W["decoder.bias"]
