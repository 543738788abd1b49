"""Numbers known at compile time, in sizes and in schedules."""

from harness import check

MODEL = """model M(d = 3) {
  param w: real[d] = const(0.5)
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(bt.w) * sum(f32(w)), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 8 steps; batch = 32 tokens; micro = 32 tokens; optimizer = sgd(lr = 1); schedule = f(%s) }
fn positive(x: f32) -> f32 where x > 0 { return sqrt(x) / x }
fn f(step: f32, run: f32, peak: f32 = 0.5) -> f32 {
  let x = step / run
  return %s
}
"""


def rates(run, body, args=""):
    run.write("text.txt", "a sentence of some bytes. " * 60)
    return [float(x) for x in run.trace(run.write("s.lm", MODEL % (args, body)), "--values", "lr")["lr"]]


def expect(run, body, want, args=""):
    got = rates(run, body, args)
    check(all(abs(a - want(k / 8)) < 1e-6 for k, a in zip(range(1, 9), got)), f"{body}: {got}")


def test_branch_that_is_not_taken(run):
    triangle = "select(x < peak, x / peak, (1 - x) / (1 - peak))"
    expect(run, triangle, lambda x: x / 0.5 if x < 0.5 else (1 - x) / 0.5)
    expect(run, "select(x <= peak, x / peak, (1 - x) / (1 - peak))", lambda x: x, "peak = 1")
    expect(run, "select(x < peak, x / peak, 1 - x)", lambda x: 1 - x, "peak = 0")
    expect(run, "select(peak > 0, 1 / peak, x)", lambda x: x, "peak = 0")
    expect(run, "select(peak > 0, positive(peak), x)", lambda x: x, "peak = 0")
    expect(run, "select(peak == 0, x, log(peak) + idiv(1, peak) + 1 mod peak)", lambda x: x, "peak = 0")
    expect(run, "select(x > 2, select(peak > 0, x, x / peak), x)", lambda x: x, "peak = 0")


def test_branch_that_is_taken(run):
    for body in ("select(peak == 0, 1 / peak, x)", "select(peak == 0, positive(peak), x)"):
        err = run("check", run.write("s.lm", MODEL % ("peak = 0", body)), status=1)
        check("error[E0" in err, err)


POWERS = """import std.nn: xent
model M(d = 2 ^ 3, vocab = 2 ^ 8) {
  param embed: real[vocab, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let z = dot(gather(embed, tok, vocab), embed, d)
    return z + sum(expand(real(0 * f32(pos)), q = %s), q)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 8 steps; batch = 32 tokens; micro = 32 tokens; optimizer = sgd(lr = 1) }
"""


def test_powers_are_whole(run):
    for size in ("2 ^ 16", "3 ^ 10", "(2 ^ 31) ^ 2 / 2 ^ 50", "2 ^ 62 / 2 ^ 60", "10 ^ 18 / 10 ^ 17", "(-1) ^ 1000000000", "d ^ 3 / d"):
        run("check", run.write("p.lm", POWERS % size))
    for size in ("2 ^ 16 + 0.5", "2 ^ 64", "2 ^ -1"):
        err = run("check", run.write("p.lm", POWERS % size), status=1)
        check("E0BC" in err or "E05A" in err, err)


COUNT = """fn repeat(x: real[..r], n: int) -> real[..r] {
  let y = x
  for i in n carry y { y = y * 2 }
  for i in n mod 3 carry y { y = y + i }
  return y
}
"""


def test_count_of_a_definition_that_nothing_reaches(run):
    run("check", run.write("c.lm", COUNT))
    err = run("check", run.write("c.lm", COUNT.replace("n mod 3", "2.5")), status=1)
    check("E02B" in err, err)


NAMED = """import std.nn: activation
block Up(d, f, act) {
  param w: real[d, f] = normal(d ^ -0.5)
  apply(x: real[b, t, d]) -> real[b, t, f] { return activation(dot(x, w, d), act) }
}
"""


def test_text_of_a_definition_that_nothing_reaches(run):
    """a parameter without a default may be a text, which is compared with one"""
    run("check", run.write("t.lm", NAMED))
    ordered = NAMED.replace("activation(dot(x, w, d), act)", 'dot(x, w, d) * (if act < "b" then 1 else 0)')
    err = run("check", run.write("t.lm", ordered), status=1)
    check("E030" in err, err)


SIZED = """import std.nn: xent
let steps = (1, 2, 3)
block L(d, f) where f * 0.5 divides d * 0.5 {
  param w: real[d, f] = normal(d ^ -0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] { return x + dot(dot(x, w, d), w, f) }
}
model M(d = 8, vocab = 256, share = 0.25) {
  param embed: real[vocab, d] = normal(0.02)
  sub one = L(d, d * share)
  sub more[i < 8 * share] = L(d, d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = one(gather(embed, tok, vocab))
    for l in more carry x { x = l(x) }
    for n in 4 * share carry x { x = x * steps[4 * share] }
    let (v, w) = split(x, d -> (v = d * share, rest = d * (1 - share)))
    let y = sum(slice(x, d -> (a = d * share), 4 * share), a) + sum(v, v) + sum(w, rest)
    let z = max(window(x, d -> (d, k = 8 * share), before = 4 * share), k)
    return dot(x + expand(y, d) + z + sum(expand(x, c = d * share), c), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(share = %s); data = D; run = 1 steps; batch = 32 tokens; optimizer = sgd(lr = 1) }
"""


def test_sizes_from_fractions(run):
    """a size that is computed from fractions is a size if it is whole"""
    run("check", run.write("s.lm", SIZED % 0.25))
    err = run("check", run.write("s.lm", SIZED % 0.3), status=1)
    check("E09D" in err and "E087" in err and "got 2.4" in err, err)
    check("E041" not in err, err)
    err = run("check", run.write("s.lm", SIZED.replace("d = 8", "d = 100") % 0.29), status=1)
    check("because it is the size of an axis; got 28.999999999999996" in err, err)
