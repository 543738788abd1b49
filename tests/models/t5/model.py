"""The decoder of T5: a bias on the scores by the bucket of the distance, one table for all layers; unscaled scores; relu."""
from ops import *

VOCAB, D, L, H, E, FF, BUCKETS, FAR = 32, 16, 2, 4, 4, 24, 8, 12


def params(P):
    P("shared.weight", VOCAB, D, std=0.5)
    P("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", BUCKETS, H, std=0.5)
    for i in range(L):
        a, m = f"decoder.block.{i}.layer.0.", f"decoder.block.{i}.layer.2."
        for n in "q", "k", "v":
            P(a + f"SelfAttention.{n}.weight", H * E, D, std=D ** -0.5)
        P(a + "SelfAttention.o.weight", D, H * E, std=D ** -0.5)
        P(a + "layer_norm.weight", D, fill=1)
        P(m + "DenseReluDense.wi.weight", FF, D, std=D ** -0.5)
        P(m + "DenseReluDense.wo.weight", D, FF, std=FF ** -0.5)
        P(m + "layer_norm.weight", D, fill=1)
    P("decoder.final_layer_norm.weight", D, fill=1)


def bucket(back):
    """distances of 0.. -> buckets: the first half of them exact, the rest logarithmic up to FAR"""
    back = back.clamp(min=0)
    exact = BUCKETS // 2
    far = exact + ((back.clamp(min=1).double() / exact).log() / math.log(FAR / exact) * (BUCKETS - exact)).long()
    return torch.where(back < exact, back, far.clamp(max=BUCKETS - 1))


def logits(W, tok, pos, seg):
    x = W["shared.weight"][tok]
    table = W["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = table[bucket(pos[:, :, None] - pos[:, None, :])].permute(0, 3, 1, 2)
    for i in range(L):
        a, m = f"decoder.block.{i}.layer.0.", f"decoder.block.{i}.layer.2."
        y = rms(x, W[a + "layer_norm.weight"])
        q, k, v = (heads(y @ W[a + f"SelfAttention.{n}.weight"].T, H) for n in "qkv")
        x = x + attend(scores(q, k, 1) + bias, v, causal(pos, seg)) @ W[a + "SelfAttention.o.weight"].T
        y = rms(x, W[m + "layer_norm.weight"])
        x = x + F.relu(y @ W[m + "DenseReluDense.wi.weight"].T) @ W[m + "DenseReluDense.wo.weight"].T
    return rms(x, W["decoder.final_layer_norm.weight"]) * D ** -0.5 @ W["shared.weight"].T
