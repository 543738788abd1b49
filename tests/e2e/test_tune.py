"""std.tune: each loss and its gradients are those of TRL's formulas (1.16), in float64; gradients by central differences."""
import numpy as np

from harness import distance, save, within

PROGRAM = """import std.tune: {names}
model M(d = 4, vocab = 12) {{
  param embed, ref_embed: real[vocab, d] = normal(0.7)
  param head, ref_head: real[d, vocab] = normal(0.7)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), head, d) }}
  loss(bt: Batch[b, t]{columns}) -> (f32, f32) {{
    let z = f32(apply(bt.tok, bt.pos, bt.seg))
    let s = f32(dot(gather(ref_embed, bt.tok, vocab), ref_head, d))
    {body}
  }}
}}
model Trained = M() with {{ freeze @{{ref_embed,ref_head}} }}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{ model = {model}; data = D; run = 1 steps; seed = 3; batch = 48 tokens; optimizer = sgd(lr = {lr}); precision {{ compute = f32 }} }}
"""
DOCUMENTS = """let p = per_document(logp(z, bt.next) * bt.w, bt.seg, n)
    let r = per_document(logp(s, bt.next) * bt.w, bt.seg, n)
    let count = per_document(bt.w, bt.seg, n)
    """
ROWS, SEQ, VOCAB, N, K = 4, 12, 12, 6, 3
PAIRED = DOCUMENTS + "return (sum({} * is_pair(prefer)), sum(is_pair(prefer)))"
TOKENS = "return (sum({} * bt.w), sum(bt.w))"


def data():
    """rows of two or three pairs of documents; one row ends with padding"""
    rng = np.random.default_rng(5)
    b = {n: np.zeros((1, ROWS, SEQ), "<i4") for n in ("tok", "pos", "seg", "next")} | {"w": np.zeros((1, ROWS, SEQ), "<f4")}
    b |= {n: np.zeros((1, ROWS, N), "<f4") for n in ("prefer", "mismatched")}
    b["seg"][:] = -1
    for r in range(ROWS):
        t = 0
        for k in range(6 if r % 2 else 4):
            n = 2 if r % 2 else 2 + (k + r) % 2
            at, tok = (0, r, slice(t, t + n)), rng.integers(0, VOCAB, n + 1)
            b["tok"][at], b["next"][at], b["pos"][at], b["seg"][at], t = tok[:n], tok[1:], range(n), k, t + n
            b["w"][0, r, t - n : t - 1] = 1
            b["prefer"][0, r, k], b["mismatched"][0, r, k] = 1 - 2 * (k % 2), rng.integers(0, 2)
    shape = (1, ROWS, SEQ)
    b["advantage"], b["old"] = rng.normal(size=shape).astype("<f4"), (rng.normal(size=shape) * 0.3 - 2.5).astype("<f4")
    b["y"] = rng.normal(size=(*shape, K)).astype("<f4")
    b["id"] = np.stack([rng.permutation(VOCAB)[:K] for _ in range(ROWS * SEQ)]).reshape(*shape, K).astype("<i4")
    return b


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Values:
    """logits, log-probabilities and their sums over documents: of the policy (z, lp, p) and the reference (s, lr, r)"""
    def __init__(v, b, policy, reference):
        v.b = {n: t[0].astype("f8") if t.dtype.kind == "f" else t[0] for n, t in b.items()}
        v.w, pick = v.b["w"], lambda x: np.take_along_axis(log_softmax(x), v.b["next"][..., None], -1)[..., 0]
        v.z, v.s = (m["embed"][v.b["tok"]] @ m["head"] for m in (policy, reference))
        v.lp, v.lr = pick(v.z), pick(v.s)
        of = lambda x: np.stack([(x * v.w * (v.b["seg"] == k)).sum(-1) for k in range(N)], -1)
        v.p, v.r, v.count = of(v.lp), of(v.lr), of(np.ones_like(v.lp))
        there = v.b["prefer"][:, 0::2] > 0
        v.chosen = lambda x: (x[:, 0::2][there], x[:, 1::2][there])
        v.pairs, v.tokens = there.sum(), v.w.sum()


def dpo(v):
    c, r = v.chosen(v.p - v.r)
    x = 0.3 * (c - r)
    return -(0.9 * np.log(sigmoid(x)) + 0.1 * np.log(sigmoid(-x))).sum() / v.pairs


def ipo(v):
    c, r = v.chosen((v.p - v.r) / np.maximum(v.count, 1))
    return ((c - r - 1 / (2 * 0.2)) ** 2).sum() / v.pairs


def orpo(v):
    c, r = v.chosen(v.p / np.maximum(v.count, 1))
    return -0.4 * np.log(sigmoid((c - r) - (np.log1p(-np.exp(c)) - np.log1p(-np.exp(r))))).sum() / v.pairs


def kto(point):
    def of(v):
        x = 0.2 * (v.p - v.r - point)   # the point has no gradient
        good, bad = v.b["prefer"] > 0, v.b["prefer"] < 0
        return (1.5 * (1 - sigmoid(x[good])).sum() + 0.7 * (1 - sigmoid(-x[bad])).sum()) / v.tokens
    return of


def grpo(v):
    ratio, a = np.exp(v.lp - v.b["old"]), v.b["advantage"]
    kl = np.exp(v.lr - v.lp) - (v.lr - v.lp) - 1
    return ((-np.minimum(ratio * a, np.clip(ratio, 0.8, 1.3) * a) + 0.05 * kl) * v.w).sum() / v.tokens


def distill(v):
    y, z = log_softmax(v.s / 2), log_softmax(v.z / 2)
    return 4 * ((np.exp(y) * (y - z)).sum(-1) * v.w).sum() / v.tokens


def distill_top(v):
    y, z = log_softmax(v.b["y"] / 1.5), np.take_along_axis(log_softmax(v.z / 1.5), v.b["id"], -1)
    return 2.25 * ((np.exp(y) * (y - z)).sum(-1) * v.w).sum() / v.tokens


def jsd(v):
    p, q = log_softmax(v.s), log_softmax(v.z)
    m = np.log(0.3 * np.exp(p) + 0.7 * np.exp(q))
    return ((0.3 * np.exp(p) * (p - m) + 0.7 * np.exp(q) * (q - m)).sum(-1) * v.w).sum() / v.tokens


def compare(run, names, columns, body, formula):
    b = data()
    save(run.path("batches.safetensors"), b)
    text = lambda model, lr: PROGRAM.format(names=names, columns=columns, body=body, model=model, lr=lr)
    start = run.trace(run.write("i.lm", text("M()", 0)), "--values", "params", "--steps", "1")
    out = run.trace(run.write("p.lm", text("Trained", 0.1)), "--values", "loss,grads", "--steps", "1")
    p = {n[6:]: np.array(t, "f8") for n, t in start.items()}
    reference = {n[4:]: t for n, t in p.items() if n.startswith("ref_")}
    value = lambda: formula(Values(b, p, reference))
    if formula is kto:
        v = Values(b, p, reference)
        mismatched = v.b["mismatched"] > 0
        formula = kto(max(0, (v.p - v.r)[mismatched].mean()))
    within("loss", abs(value() - out["loss"][0]) / abs(value()), 1e-5)
    for n in "embed", "head":
        grad, e = np.zeros_like(p[n]), 1e-5
        for i in np.ndindex(*grad.shape):
            was = p[n][i]
            p[n][i] = was + e
            up = value()
            p[n][i] = was - e
            grad[i], p[n][i] = (up - value()) / (2 * e), was
        within(f"gradient of {n}", distance(out["grad." + n], grad), 1e-5)


def test_tune_dpo(run):
    compare(run, "logp, per_document, dpo, is_pair", ", prefer: f32[b, n]", PAIRED.format("dpo(p, r, 0.3, 0.1)").replace("let count = per_document(bt.w, bt.seg, n)\n", "\n"), dpo)


def test_tune_ipo(run):
    compare(run, "logp, per_document, ipo, is_pair", ", prefer: f32[b, n]", PAIRED.format("ipo(p, r, count, 0.2)"), ipo)


def test_tune_orpo(run):
    compare(run, "logp, per_document, orpo, is_pair", ", prefer: f32[b, n]", PAIRED.format("orpo(p, count, 0.4)"), orpo)


def test_tune_kto(run):
    compare(run, "logp, per_document, kto, kto_point", ", prefer: f32[b, n], mismatched: f32[b, n]",
            DOCUMENTS + "return (sum(kto(p, r, prefer, kto_point(p, r, mismatched), 0.2, 1.5, 0.7)), sum(bt.w))", kto)


def test_tune_grpo(run):
    compare(run, "logp, grpo, kl_estimate", ", advantage: f32[b, t], old: f32[b, t]",
            "let lp = logp(z, bt.next)\n    " + TOKENS.format("(grpo(lp, old, advantage, 0.2, 0.3) + 0.05 * kl_estimate(lp, logp(s, bt.next)))"), grpo)


def test_tune_distill(run):
    compare(run, "distill", "", TOKENS.format("distill(z, s, 2.0)"), distill)


def test_tune_distill_top(run):
    """offline logits of a teacher: the largest of each position, and their ids"""
    compare(run, "distill_top", ", y: f32[b, t, k], id: int[b, t, k]", TOKENS.format("distill_top(z, y, id, 1.5)"), distill_top)


def test_tune_jsd(run):
    compare(run, "jsd", "", TOKENS.format("jsd(z, s, 0.3)"), jsd)
