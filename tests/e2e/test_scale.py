"""lmc check takes time in proportion to the length of a program: four times the statements take far less than sixteen times the
processor time."""
import resource

from harness import check

FILE = """import std.nn: rmsnorm, xent
%s
model M(d = 8, vocab = 256) {
  param embed: real[vocab, d] = normal(0.02)
  param norm: real[d] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let y0 = x
%s
    return dot(y, embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 4 steps; batch = 64 tokens; micro = 64 tokens; optimizer = o(lr = 1e-3) }
optimizer o(lr) {
  update(p: f32, g: f32, k: f32) -> f32 {
%s
    return p - lr * g
  }
}
"""


def program(n, let=None, update=None, carried=None, before=""):
    body = "    let y = x"
    if let:
        body = "\n".join(f"    let y{i + 1} = " + let.format(i=i) for i in range(n)) + f"\n    let y = y{n}"
    if carried:
        body = "    for i in 2 carry y0 {\n" + f"      y0 = {carried}\n" * n + "    }\n    let y = y0"
    return FILE % (before, body, "\n".join(f"    let a{i} = " + update.format(i=i) for i in range(n)) if update else "")


def processor_time(run, text):
    file = run.write("long.lm", text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("check", file)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def linear(run, n, **what):
    some = processor_time(run, program(n, **what))
    many = processor_time(run, program(4 * n, **what))
    check(many < 9 * some, f"{n} statements: {some:.2f} s, {4 * n}: {many:.2f} s: {what}")


def test_statements_that_read_an_early_name(run):
    linear(run, 4000, let="y{i} + x")


def test_calls_of_the_library(run):
    linear(run, 2000, let="rmsnorm(y{i}, norm)")


def test_assignments_in_a_loop(run):
    linear(run, 4000, carried="y0 + x")


def test_numbers_of_an_optimizer(run):
    linear(run, 2000, update="g * (k + {i})")
