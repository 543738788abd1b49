"""Masks that look back only are accepted, whatever constants they hold. What is refused: tests/dsl/bad-semantic/look_ahead*."""

from harness import check

MODEL = """import std.nn: attention, xent
model M(d = 8, vocab = 256) {
  dim g = 2, e = d / 2
  param embed: real[vocab, d] = normal(1.0)
  param wq, wk, wv: real[d, g, e] = normal(0.3)
  param wo: real[g, e, d] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let (ks, vs, ps, ss) = history((dot(x, wk, d), dot(x, wv, d), pos, seg), t -> s)
    let back = expand(pos, s) - ps
    let mask = expand(seg, s) == ss & %s
    return dot(x + dot(attention(dot(x, wq, d), ks, vs, mask), wo, (g, e)), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 2 steps; batch = 32 tokens; optimizer = adamw(lr = 1e-3) }
"""
MASKS = (
    "back >= 0",
    "back >= 0 & back < 4096",
    "back >= 0 & (back < 1000 | ps < 4 | back mod 700 == 0)",
    "f32(back) >= 0.5 * f32(ps) * 0 & (idiv(ps, 3000) == idiv(expand(pos, s), 3000) | back < 100000)",
)


def test_masks_that_look_back(run):
    for mask in MASKS:
        code, _, err = run.result("check", run.write("m.lm", MODEL % mask))
        check(code == 0 and not err, f"{mask}: {err}")
