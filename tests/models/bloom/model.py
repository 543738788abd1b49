"""BLOOM: ALiBi, a layernorm on the embedding, q, k, v of each head side by side in one matrix."""
from ops import *

VOCAB, D, L, H = 32, 16, 2, 4
E = D // H


def params(P):
    P("transformer.word_embeddings.weight", VOCAB, D, std=0.3)
    for n in "transformer.word_embeddings_layernorm", "transformer.ln_f":
        P(n + ".weight", D, fill=1), P(n + ".bias", D, std=0.1)
    for i in range(L):
        p = f"transformer.h.{i}."
        for n in "input_layernorm", "post_attention_layernorm":
            P(p + n + ".weight", D, fill=1), P(p + n + ".bias", D, std=0.1)
        for n, o, i_ in (("self_attention.query_key_value", 3 * D, D), ("self_attention.dense", D, D),
                         ("mlp.dense_h_to_4h", 4 * D, D), ("mlp.dense_4h_to_h", D, 4 * D)):
            P(p + n + ".weight", o, i_, std=i_ ** -0.5), P(p + n + ".bias", o, std=0.1)


def logits(W, tok, pos, seg):
    norm = lambda x, n: ln(x, W[n + ".weight"], W[n + ".bias"])
    lin = lambda x, n: x @ W[n + ".weight"].T + W[n + ".bias"]
    x = norm(W["transformer.word_embeddings.weight"][tok], "transformer.word_embeddings_layernorm")
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / H) for h in range(H)])
    bias = slopes[:, None, None] * (pos[:, None, None, :] - pos[:, None, :, None])
    for i in range(L):
        p = f"transformer.h.{i}."
        qkv = lin(norm(x, p + "input_layernorm"), p + "self_attention.query_key_value").unflatten(-1, (H, 3, E))
        q, k, v = qkv.unbind(-2)
        x = x + lin(attend(scores(q, k) + bias, v, causal(pos, seg)), p + "self_attention.dense")
        y = F.gelu(lin(norm(x, p + "post_attention_layernorm"), p + "mlp.dense_h_to_4h"), approximate="tanh")
        x = x + lin(y, p + "mlp.dense_4h_to_h")
    return norm(x, "transformer.ln_f") @ W["transformer.word_embeddings.weight"].T
