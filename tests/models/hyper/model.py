"""Hyper-connections (several residual streams, mixed by learned and by input-dependent weights) and value residuals."""
from ops import *

VOCAB, D, L, N, H, FF = 32, 12, 3, 3, 2, 20


def params(P):
    P("embed", VOCAB, D, std=0.5), P("streams", N, D, std=0.7), P("norm", D, fill=1), P("head", VOCAB, D, std=0.3)
    for i in range(L):
        p = f"layers.{i}."
        for n in "q", "k", "v", "o":
            P(p + n, D, D, std=D ** -0.5)
        P(p + "w1", FF, D, std=D ** -0.5), P(p + "w2", D, FF, std=FF ** -0.5), P(p + "lambda", H, fill=0.5)
        for s in "attn", "mlp":
            P(p + s + ".norm", D, fill=1)
            P(p + s + ".read", N, fill=0.4), P(p + s + ".write", N, fill=0.7)
            P(p + s + ".keep", N, N, std=0.1), P(p + s + ".dynamic", D, N, std=0.1)


def logits(W, tok, pos, seg):
    s = W["embed"][tok][:, :, None] + W["streams"]                            # [B, T, N, D]
    first = None
    for i in range(L):
        w = lambda n: W[f"layers.{i}.{n}"]
        for part in "attn", "mlp":
            width = torch.tanh(rms(s, w(part + ".norm")) @ w(part + ".dynamic"))          # [B, T, N, N]
            x = torch.einsum("btnd,n->btd", s, w(part + ".read"))
            y = rms(x, w(part + ".norm"))
            if part == "attn":
                q, k, v = (heads(y @ w(n).T, H) for n in "qkv")
                if first is None:
                    first = v
                v = v + w("lambda")[:, None] * (first - v)
                y = attend(scores(rope(q, pos), rope(k, pos)), v, causal(pos, seg)) @ w("o").T
            else:
                y = F.relu(y @ w("w1").T) ** 2 @ w("w2").T
            s = torch.einsum("btnd,btnm->btmd", s, w(part + ".keep") + width) + y[:, :, None] * w(part + ".write")[:, None]
    return rms(s.sum(2), W["norm"]) @ W["head"].T
