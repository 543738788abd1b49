"""Falcon: one key and value head for all queries, attention and feed-forward side by side on one norm, no biases."""
from ops import *

VOCAB, D, L, H = 32, 16, 2, 4
E = D // H


def params(P):
    P("transformer.word_embeddings.weight", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"transformer.h.{i}."
        P(p + "input_layernorm.weight", D, fill=1), P(p + "input_layernorm.bias", D, std=0.1)
        P(p + "self_attention.query_key_value.weight", (H + 2) * E, D, std=D ** -0.5)
        P(p + "self_attention.dense.weight", D, D, std=D ** -0.5)
        P(p + "mlp.dense_h_to_4h.weight", 4 * D, D, std=D ** -0.5)
        P(p + "mlp.dense_4h_to_h.weight", D, 4 * D, std=(4 * D) ** -0.5)
    P("transformer.ln_f.weight", D, fill=1), P("transformer.ln_f.bias", D, std=0.1)


def logits(W, tok, pos, seg):
    x = W["transformer.word_embeddings.weight"][tok]
    for i in range(L):
        w = lambda n: W[f"transformer.h.{i}.{n}"]
        y = ln(x, w("input_layernorm.weight"), w("input_layernorm.bias"))
        qkv = heads(y @ w("self_attention.query_key_value.weight").T, H + 2)
        q, k, v = qkv[:, :, :-2], qkv[:, :, -2:-1], qkv[:, :, -1:]
        a = attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("self_attention.dense.weight").T
        x = x + a + F.gelu(y @ w("mlp.dense_h_to_4h.weight").T) @ w("mlp.dense_4h_to_h.weight").T
    return ln(x, W["transformer.ln_f.weight"], W["transformer.ln_f.bias"]) @ W["transformer.word_embeddings.weight"].T
