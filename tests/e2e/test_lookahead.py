"""Causal masks are accepted, for any constants in them. Rejected masks: tests/dsl/bad-semantic/look_ahead*."""

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


BODIES = {
    "shift, excluded by pos": """
    let (past, _) = split(x, t -> (u, tail = 1))
    let y = x + select(expand(pos >= 1, d), pad(past, u -> t, 1), 0)""",
    "shift, excluded by seg": """
    let (past, _) = split(x, t -> (u, tail = 1))
    let (segs, _) = split(seg + 1, t -> (u, tail = 1))
    let y = x + select(expand(pad(segs, u -> t, 1) == seg + 1, d), pad(past, u -> t, 1), 0)""",
    "shift in a loop": """
    let y = x
    for n in 50 carry y {
      let (past, _) = split(y, t -> (u, tail = 1))
      y = y + select(expand(pos >= 1, d), pad(past, u -> t, 1), 0)
    }""",
    "there and back": """
    let (past, _) = split(x, t -> (u, tail = 1))
    let y = x + pad(slice(pad(past, u -> t, 1), t -> u, 1), u -> t, 0, 1)""",
}
LOSSES = {
    "sequence": """
    let z = f32(apply(bt.tok, bt.pos, bt.seg))
    let p = sum(exp(z), vocab)
    let l = sum(xent(z, bt.next) * bt.w, t) / maximum(sum(bt.w, t), 1)
    return (sum(l) + 1e-4 * sum(p * p * bt.w) + mean(z) * sum(bt.w) - max(z) * sum(bt.w), sum(bt.w))""",
    "second token": """
    let z = apply(bt.tok, bt.pos, bt.seg)
    let h = gather(embed, bt.tok, vocab) + gather(embed, bt.next, vocab)
    let (second, _) = split(dot(h, embed, d), t -> (u, tail = 1))
    let w = slice(bt.w, t -> u, 1)
    return (sum(xent(z, bt.next) * bt.w) + sum(xent(second, slice(bt.next, t -> u, 1)) * w), sum(bt.w))""",
}
PLAIN = """import std.nn: xent
model M(d = 8, vocab = 256) {
  param embed: real[vocab, d] = normal(1.0)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)%s
    return dot(y, embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {%s
  }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 2 steps; batch = 32 tokens; optimizer = adamw(lr = 1e-3) }
"""


def accepted(run, name, body, loss):
    code, _, err = run.result("check", run.write("m.lm", PLAIN % (body, loss)))
    errors = [line for line in err.splitlines() if "error[" in line]
    check(code == 0 and not errors, f"{name}: {err}")


def test_shifts_that_look_back(run):
    for name, body in BODIES.items():
        accepted(run, name, body, LOSSES["sequence"])


def test_losses_that_combine_positions(run):
    for name, loss in LOSSES.items():
        accepted(run, name, "\n    let y = x", loss)


def test_no_command_trains_a_model_that_looks_ahead(run):
    body = "\n    let y = x + 2 * pad(slice(x, t -> u, 1), u -> t, 0, 1)"
    model = run.write("m.lm", PLAIN % (body, LOSSES["sequence"]))
    run.write("text.txt", "the text of the source " * 100)
    for command in (("check",), ("run",), ("compile", "-o", run.path("plan"))):
        code, _, err = run.result(command[0], model, *command[1:])
        check(code == 1 and "error[E0D0]" in err and "m.lm:6:" in err, f"{command}: {err}")
