"""User-defined optimizers combine values of the step with values of an element. The model's loss is linear in its
parameters, so each gradient is a constant (2 for w, -3 for u) and the weights follow from a formula."""
import math

from harness import check

MODEL = """model M(d = 3) {
  param w: real[d] = const(0.5)
  param u: real[d] = const(-0.25)
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(bt.w) * (sum(f32(w) * 2) - sum(f32(u) * 3)), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 6 steps; batch = 32 tokens; micro = 32 tokens; optimizer = %s }
optimizer o(lr, betas = (0.9, 0.99)) {
  state m, v: f32 = 0
  update(p: f32, g: f32, k: f32) -> f32 {
    let (b1, b2) = betas
%s
  }
}
"""
STEPS = range(1, 7)


def trained(run, body, use="o(lr = 0.1)"):
    run.write("text.txt", "a sentence of some bytes. " * 60)
    final = run.trace(run.write("o.lm", MODEL % (use, body)), "--values", "params")
    return float(final["final.w"][0]), float(final["final.u"][0])


def expect(run, body, step, use="o(lr = 0.1)"):
    """step(g, k): the amount subtracted in step k from a weight whose gradient is g"""
    got = trained(run, body, use)
    want = [p - sum(step(g, k) for k in STEPS) for p, g in ((0.5, 2), (-0.25, -3))]
    check(all(abs(a - b) <= 2e-6 * max(1, abs(b)) for a, b in zip(got, want)), f"{body}: {got}, expected {want}")


def test_condition_on_step_meets_element(run):
    expect(run, "return p - lr * select(k > 2, g, 0)", lambda g, k: 0.1 * g * (k > 2))
    expect(run, "return p - lr * g * f32(k > 2)", lambda g, k: 0.1 * g * (k > 2))
    expect(run, "return p - lr * select(k > 2 & g > 0, g, -g)", lambda g, k: 0.1 * (g if k > 2 and g > 0 else -g))
    expect(run, "return p - lr * select((not (k == 1) | k > 99) == (g > 0), g, 0)", lambda g, k: 0.1 * g * ((k != 1) == (g > 0)))


def test_whole_numbers_of_the_step_meet_element(run):
    expect(run, "return p - lr * select(int(k) mod 2 == 0, g, 0)", lambda g, k: 0.1 * g * (k % 2 == 0))
    expect(run, "return p - lr * select(int(g) < int(k), g, 0)", lambda g, k: 0.1 * g * (int(g) < k))


def test_doubles_of_the_step_meet_element(run):
    expect(run, "return p - lr * select(g > 0, k, -k)", lambda g, k: 0.1 * math.copysign(k, g))
    expect(run, "return p - lr * select(g > 0, 1, -1)", lambda g, k: 0.1 * math.copysign(1, g))


def test_loop_in_update(run):
    body = "let s = 0 * g; for i in 3 carry s { s = s + select(i < k, g * k, 0) }; return p - lr * s / 3"
    expect(run, body, lambda g, k: 0.1 * g * k * min(k, 3) / 3)


def test_many_numbers_of_the_step(run):
    lets = "\n".join(f"let s{i + 1} = s{i} + g * (k + {i})" for i in range(100))
    expect(run, f"let s0 = 0 * g\n{lets}\nreturn p - 1e-3 * s100", lambda g, k: 1e-3 * g * sum(k + i for i in range(100)))


RADAM = """    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    let most = 2 / (1 - b2) - 1
    let rho = most - 2 * k * b2 ^ k / (1 - b2 ^ k)
    let r = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    let mh = m / (1 - b1 ^ k)
    return p - lr * select(rho > 5, r * mh / (sqrt(v / (1 - b2 ^ k)) + 1e-8), mh)"""


def radam(g, k, b1=0.9, b2=0.99):
    """with a constant gradient both moments, corrected, are g and g * g"""
    most = 2 / (1 - b2) - 1
    rho = most - 2 * k * b2**k / (1 - b2**k)
    if rho <= 5:
        return 0.1 * g
    return 0.1 * math.copysign(math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho)), g)


def test_radam(run):
    expect(run, RADAM, radam)


def test_group_with_its_own_tuple(run):
    use = "o(lr = 0.1); group @w = (betas = (0.5, 0.25)); group @u = (betas = (0.75, 0.125))"
    body = "return p - lr * g * (b1 + b2 * k)"
    expect(run, body, lambda g, k: 0.1 * g * (0.5 + 0.25 * k if g > 0 else 0.75 + 0.125 * k), use)


def test_negative_learning_rate_stops_the_run(run):
    run.write("text.txt", "a sentence of some bytes. " * 60)
    path = run.write("o.lm", MODEL % ("o(lr = -0.1)", "return p - lr * g"))
    code, _, err = run.result("run", path)
    check(code == 1 and "step 1: the learning rate is -0.1" in err, f"exit status {code}: {err}")
