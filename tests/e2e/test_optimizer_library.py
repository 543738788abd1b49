"""The optimizers of std.optim against their formulas in float64, written here with numpy: 50 steps of least-squares problems, whose
gradients are known, over parameters of several shapes. The problems are frozen parameters of the model."""
import json
import re

import numpy as np

from harness import ROOT, check, distance, folder_bytes, load, random_batches, save, small, within
from test_ranks import PATIENT, mpi_needed

PLAIN_BUILD = {"resume_with_one_optimizer", "sampled_labels"}
STEPS = 50
SIZES = dict(c=12, d=6, f=10, g=2, e=5, n=3)
# parameter: its axes, and of these the ones that its use sums over, batch axes, and output axes
PARAMS = {
    "wide": ("df", "d", "", "f"),
    "tall": ("fd", "f", "", "d"),
    "heads": ("gde", "d", "", "ge"),      # no matrix in memory: d is between g and e
    "merged": ("ged", "ge", "", "d"),
    "experts": ("nde", "d", "n", "e"),
    "layers.0.w": ("df", "d", "", "f"),
    "layers.1.w": ("df", "d", "", "f"),
    "layers.2.w": ("df", "d", "", "f"),
    "bias": ("d", "", "", "d"),
}
MATRICES = [p for p in PARAMS if p != "bias"]


def axes_of(name):
    """of the parameter, of the input x and of the target y of the loss sum((x w - y)^2) / 2"""
    own, i, b, o = PARAMS[name]
    return own, b + "c" + i, b + "c" + o


def term(name):
    """the declarations of x and y and the expression of the loss, of the parameter w"""
    own, x, y = axes_of(name)
    over = ", ".join(PARAMS[name][1])
    own, x, y = (", ".join(a) for a in (own, x, y))
    y_of_x = f"dot(x, w, ({over}))" if over else "w * sum(x) / 12"
    return f"""  param w: real[{own}] = zeros
  param x: real[{x}] = zeros
  param y: real[{y}] = zeros
  apply() -> f32 {{ let r = {'' if over else 'expand('}{y_of_x}{'' if over else ', c, before = d)'} - y; return 0.5 * f32(sum(r * r)) }}
"""


def model():
    blocks, subs = [], []
    for name in PARAMS:
        if name.startswith("layers.") and name != "layers.0.w":
            continue
        block = "B_" + name.replace(".", "_")
        blocks.append(f"block {block}(c, d, f, g, e, n) {{\n{term(name)}}}\n")
        args = ", ".join(f"{k} = {k}" for k in SIZES)
        subs.append(f"  sub layers[i < 3] = {block}({args})" if name == "layers.0.w" else f"  sub {name} = {block}({args})")
    calls = " + ".join(f"{n}()" for n in PARAMS if "." not in n)
    sizes = ", ".join(f"{k} = {v}" for k, v in SIZES.items())
    return "".join(blocks) + f"""model M({sizes}) {{
{chr(10).join(subs)}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let s = {calls}
    for l in layers carry s {{ s = s + l() }}
    return (sum(bt.w) * s, sum(bt.w))
  }}
  sampled(bt: Batch[b, t]) -> (f32, f32) {{
    let (s, w) = loss(bt)
    return (3 * s, w)
  }}
}}
model Start = M() from "start.safetensors" with {{ freeze @**.{{x,y}} }}
data D {{ source s = text("text.txt"); pack best_fit(seq = 16 tokens) }}
"""


RECIPE = """recipe R {{
  model = Start; data = D; run = {steps} steps; batch = 32 tokens; micro = 32 tokens; precision {{ compute = f32 }}
  {optimizer}
  save = checkpoint("run", every = {every} steps)
}}
"""


def path_of(name):
    return name if "." in name else name + ".w"


def problems():
    """by parameter: w, x and y, in f32"""
    r, out = np.random.default_rng(5), {}
    for name in PARAMS:
        shapes = [tuple(SIZES[a] for a in axes) for axes in axes_of(name)]
        out[name] = [r.normal(0, s, n).astype("f4") for s, n in zip((0.5, 0.5, 1), shapes)]
    return out


def prepare(run, optimizer, steps=STEPS, every=STEPS):
    start = {}
    for name, (w, x, y) in problems().items():
        base = path_of(name)[:-1]
        start.update({base + "w": w, base + "x": x, base + "y": y})
    save(run.path("start.safetensors"), start)
    run.write("text.txt", "a sentence of some bytes. " * 2000)
    return run.write("o.lm", model() + WRAPPERS + RECIPE.format(optimizer=optimizer, steps=steps, every=every))


def gradient(name, w, x, y):
    own, x_axes, y_axes = axes_of(name)
    if name == "bias":
        return (x.sum() / 12) * ((x.sum() / 12) * w[None] - y).sum(0)
    r = np.einsum(f"{x_axes},{own}->{y_axes}", x, w) - y
    return np.einsum(f"{x_axes},{y_axes}->{own}", x, r)


def loss(weights):
    total = 0
    for name, (_, x, y) in problems().items():
        own, x_axes, y_axes = axes_of(name)
        w = weights[path_of(name)].astype("f8")
        z = x.sum() / 12 * w[None] if name == "bias" else np.einsum(f"{x_axes},{own}->{y_axes}", x, w)
        total += 0.5 * np.sum((z - y) ** 2)
    return total


def as_matrices(name, w):
    own, (_, i, b, o) = PARAMS[name][0], PARAMS[name]
    w = np.einsum(f"{own}->{b + i + o}", w)
    size = lambda axes: int(np.prod([SIZES[a] for a in axes]))
    return w.reshape(size(b), size(i), size(o))


def from_matrices(name, m):
    own, i, b, o = PARAMS[name]
    return np.einsum(f"{b + i + o}->{own}", m.reshape([SIZES[a] for a in b + i + o]))


def train(name, rule, steps=STEPS, view=False):
    """rule(): a function (p, g, k) -> p with its own states, of a whole parameter; view: the weights of evaluations"""
    w, x, y = (a.astype("f8") for a in problems()[name])
    step = rule()
    for k in range(1, steps + 1):
        w = step(w, gradient(name, w, x, y), k)
    return step.view(w) if view else w


def by_matrix(name, rule):
    """the rule of a matrix [i, o] for each matrix of the parameter"""
    def whole():
        rules = [rule() for _ in as_matrices(name, problems()[name][0])]
        return lambda p, g, k: from_matrices(name, np.stack(
            [r(a, b, k) for r, a, b in zip(rules, as_matrices(name, p), as_matrices(name, g))]))
    return whole


# ---- the formulas

def adam_moments(b1, b2):
    s = dict(m=0.0, v=0.0)

    def step(g, k):
        s["m"] = b1 * s["m"] + (1 - b1) * g
        s["v"] = b2 * s["v"] + (1 - b2) * g * g
        return s["m"] / (1 - b1**k), s["v"] / (1 - b2**k)
    return step


def adamw(lr, b1=0.9, b2=0.95, eps=1e-8, decay=0.1):
    def rule():
        moments = adam_moments(b1, b2)

        def step(p, g, k):
            m, v = moments(g, k)
            return p - lr * (m / (np.sqrt(v) + eps) + decay * p)
        return step
    return rule


def lamb(lr, b1=0.9, b2=0.999, eps=1e-6, decay=0.01):
    def rule():
        moments = adam_moments(b1, b2)

        def step(p, g, k):
            m, v = moments(g, k)
            u = m / (np.sqrt(v) + eps) + decay * p
            return p - lr * np.linalg.norm(p) / np.linalg.norm(u) * u
        return step
    return rule


def rms(x):
    return np.sqrt(np.mean(x * x))


def adafactor(lr, relative=True, clip=1.0, rate=0.8, factored=True, decay=0.0):
    def rule():
        s = dict(r=0.0, c=0.0, v=0.0)

        def step(p, g, k):
            b = 1 - k**-rate
            g2 = g * g + 1e-30
            if factored:
                s["r"] = b * s["r"] + (1 - b) * g2.mean(1)
                s["c"] = b * s["c"] + (1 - b) * g2.mean(0)
                u = g / np.sqrt(np.outer(s["r"], s["c"]) / s["r"].mean())
            else:
                s["v"] = b * s["v"] + (1 - b) * g2
                u = g / np.sqrt(s["v"])
            size = lr * max(rms(p), 1e-3) if relative else lr
            return p - size * (u / max(rms(u) / clip, 1) + decay * p)
        return step
    return rule


def newton_schulz(x, n=5):
    if x.shape[0] > x.shape[1]:
        return newton_schulz(x.T, n).T
    for _ in range(n):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def muon(lr, beta=0.95, nesterov=True, decay=0.0, match_rms=False):
    def rule():
        s = dict(m=0.0)

        def step(p, g, k):
            s["m"] = beta * s["m"] + (1 - beta) * g
            u = beta * s["m"] + (1 - beta) * g if nesterov else s["m"]
            i, o = p.shape
            scale = 0.2 * np.sqrt(max(i, o)) if match_rms else np.sqrt(max(1, o / i))
            return p - lr * (scale * newton_schulz(u / (np.linalg.norm(u) + 1e-7)) + decay * p)
        return step
    return rule


def inverse_root(a, ridge):
    """(a + ridge |a|)^(-1/4) by its eigenvalues, not by the library's iteration"""
    w, q = np.linalg.eigh(a + ridge * np.linalg.norm(a) * np.eye(len(a)))
    return (q * w**-0.25) @ q.T


def shampoo(lr, b1=0.9, b2=0.95, ridge=1e-4, decay=0.1):
    def rule():
        moments, s = adam_moments(b1, b2), dict(l=0.0, r=0.0)

        def step(p, g, k):
            m, v = moments(g, k)
            s["l"] = b2 * s["l"] + (1 - b2) * g @ g.T
            s["r"] = b2 * s["r"] + (1 - b2) * g.T @ g
            u = inverse_root(s["l"] / (1 - b2**k), ridge) @ m @ inverse_root(s["r"] / (1 - b2**k), ridge)
            w = m / (np.sqrt(v) + 1e-8)
            return p - lr * (np.linalg.norm(w) / np.linalg.norm(u) * u + decay * p)
        return step
    return rule


def ademamix(lr, b1=0.9, b2=0.999, b3=0.9999, alpha=5.0, warmup=0, eps=1e-8, decay=0.1):
    def rule():
        moments, s = adam_moments(b1, b2), dict(s=0.0)

        def step(p, g, k):
            m, v = moments(g, k)
            t = min(k / warmup, 1) if warmup else 1
            b = min(np.exp(np.log(b1) * np.log(b3) / ((1 - t) * np.log(b3) + t * np.log(b1))), b3)
            s["s"] = b * s["s"] + (1 - b) * g
            return p - lr * ((m + t * alpha * s["s"]) / (np.sqrt(v) + eps) + decay * p)
        return step
    return rule


def schedule_free(lr, b1=0.9, b2=0.999, eps=1e-8, decay=0.0):
    """the rule, whose attribute gives the weights of evaluations"""
    def rule():
        s = dict(z=None, v=0.0, total=0.0)

        def step(y, g, k):
            s["z"] = y if s["z"] is None else s["z"]
            s["v"] = b2 * s["v"] + (1 - b2) * g * g
            u = g / (np.sqrt(s["v"] / (1 - b2**k)) + eps) + decay * y
            s["total"] += lr**2
            c = lr**2 / s["total"]
            y = (1 - c) * y + c * s["z"] + lr * (b1 * (1 - c) - 1) * u
            s["z"] = s["z"] - lr * u
            return y
        step.view = lambda y: y + (1 - 1 / b1) * (s["z"] - y)
        return step
    return rule


def ema(inner, rate):
    def rule():
        s, own = dict(a=None), inner()

        def step(p, g, k):
            q = own(p, g, k)
            s["a"] = rate * (p if s["a"] is None else s["a"]) + (1 - rate) * q
            return q
        step.view = lambda p: s["a"]
        return step
    return rule


def lookahead(inner, k=5, alpha=0.5):
    def rule():
        s, own = dict(slow=None), inner()

        def step(p, g, i):
            s["slow"] = p if s["slow"] is None else s["slow"]
            q = own(p, g, i)
            if i % k == 0:
                q = s["slow"] = s["slow"] + alpha * (q - s["slow"])
            return q
        step.view = getattr(own, "view", None)
        return step
    return rule


def cautious(inner):
    def rule():
        own = inner()

        def step(p, g, k):
            u = p - own(p, g, k)
            mask = (u * g > 0) * 1.0
            return p - u * mask / max(mask.mean(), 1e-3)
        return step
    return rule


def centred(name, inner):
    """inner sees elements; the wrapper the matrices, whose columns of the gradient get the mean 0"""
    def rule():
        own = inner()
        centre = lambda g: from_matrices(name, (lambda m: m - m.mean(1, keepdims=True))(as_matrices(name, g)))
        return lambda p, g, k: own(p, centre(g), k)
    return rule


def grafted(size, direction, share=1.0):
    """the step of one optimizer with the norm of that of another one"""
    def rule():
        a, b = size(), direction()

        def step(p, g, k):
            x, y = a(p, g, k) - p, b(p, g, k) - p
            return p + share * np.linalg.norm(x) / np.linalg.norm(y) * y
        return step
    return rule


# ---- the comparison

def expect(run, optimizer, rules, bar=1e-6):
    """rules: by parameter a rule of the whole parameter, or (rule,) of its matrices"""
    final = run.trace(prepare(run, optimizer), "--values", "params", "--steps", STEPS)
    for name in PARAMS:
        rule = rules(name)
        want = train(name, by_matrix(name, rule[0]) if isinstance(rule, tuple) else rule)
        moved = distance(problems()[name][0], want)
        check(moved > 1e-3, f"{name} moved by {moved}")
        within(f"{optimizer}: {name}", distance(final["final." + path_of(name)], want), bar)


def test_lamb(run):
    expect(run, "optimizer = lamb(lr = 0.01)", lambda name: lamb(0.01))


def test_ademamix(run):
    expect(run, "optimizer = ademamix(lr = 1e-3, warmup = 20 steps)", lambda name: ademamix(1e-3, warmup=20))


OTHERS = "group @bias.w = (optimizer = adamw(lr = 1e-3))"


def test_muon(run):
    expect(run, f"optimizer = muon(lr = 0.02); {OTHERS}",
           lambda name: adamw(1e-3) if name == "bias" else (muon(0.02),))


def test_shampoo(run):
    expect(run, f"optimizer = shampoo(lr = 1e-3); {OTHERS}",
           lambda name: adamw(1e-3) if name == "bias" else (shampoo(1e-3),))
    file = prepare(run, f"optimizer = shampoo(lr = 1e-3, eps = 1e-20); {OTHERS}")   # gradients whose fourth powers f32 does not hold
    finals = []
    for scale in "1", "1e14", "1e-13":
        text = open(file).read().replace("sum(bt.w) * s,", f"{scale} * sum(bt.w) * s,")
        finals.append(run.trace(run.write("scaled.lm", text), "--values", "params", "--steps", 8))
    for name in PARAMS:
        for found in finals[1:] if name != "bias" else ():
            key = "final." + path_of(name)
            within(f"{name} of a scaled loss", distance(found[key], finals[0][key]), 1e-6)


def test_muon_variants(run):
    use = "muon(lr = 0.01, momentum = 0.9, nesterov = false, match_rms = true, decay = 0.1)"
    expect(run, f"optimizer = {use}; {OTHERS}",
           lambda name: adamw(1e-3) if name == "bias" else (muon(0.01, 0.9, False, 0.1, True),))


def test_adafactor(run):
    expect(run, "optimizer = adafactor(lr = 0.02); group @bias.w = (optimizer = adafactor_full(lr = 0.01, relative = false))",
           lambda name: adafactor(0.01, False, factored=False) if name == "bias" else (adafactor(0.02),))


WRAPPERS = """
optimizer centred(inner: optimizer) {
  update(p: f32[i, o], g: f32[i, o], k: f32) -> f32[i, o] { return inner.update(p, g - mean(g, i), k) }
}
optimizer row(lr) {
  state seen: f32[o] = 0
  update(p: f32[i, o], g: f32[i, o]) -> f32[i, o] { seen = seen + sum(g * g, i); return p - lr * g / sqrt(seen + 1) }
}
optimizer unchanged(inner: optimizer) { update(p: f32, g: f32, k: f32) -> f32 { return inner.update(p, g, k) } }
optimizer grafted(size: optimizer, direction: optimizer, share = 1) {
  update(p: f32[..p], g: f32[..p], k: f32) -> f32[..p] {
    let (x, y) = (size.update(p, g, k) - p, direction.update(p, g, k) - p)
    return p + share * sqrt(sum(x * x)) / sqrt(sum(y * y)) * y
  }
}
"""


def test_wrappers_of_elements(run):
    expect(run, "optimizer = lookahead(adamw(lr = 1e-3), k = 4, alpha = 0.3); group @tall.w = (lr = 2e-3, alpha = 0.8)",
           lambda name: lookahead(adamw(2e-3), 4, 0.8) if name == "tall" else lookahead(adamw(1e-3), 4, 0.3))


def test_wrappers_of_other_forms(run):
    """optimizers of elements, parameters and matrices around each other, in groups of one recipe"""
    def rules(name):
        whole_muon = by_matrix(name, muon(0.02)) if name in MATRICES else None
        return {"bias": lookahead(lookahead(adamw(1e-3), 2), 3), "wide": cautious(adamw(1e-3, decay=0)), "tall": cautious(whole_muon),
                "merged": centred(name, adamw(1e-3)), "heads": grafted(adamw(1e-3), whole_muon, 0.5),
                "layers.1.w": lookahead(by_matrix(name, shampoo(1e-3)), 3), "layers.2.w": lookahead(lamb(0.01), 3),
                "experts": centred(name, by_matrix(name, shampoo(1e-3)))}.get(name, lookahead(adamw(1e-3), 7))
    expect(run, """optimizer = lookahead(adamw(lr = 1e-3), k = 7)
  group @bias.w = (optimizer = lookahead(lookahead(adamw(lr = 1e-3), k = 2), k = 3))
  group @wide.w = (optimizer = cautious(adamw(lr = 1e-3, decay = 0))); group @tall.w = (optimizer = cautious(muon(lr = 0.02)))
  group @merged.w = (optimizer = centred(adamw(lr = 1e-3))); group @experts.w = (optimizer = centred(shampoo(lr = 1e-3)))
  group @heads.w = (optimizer = grafted(adamw(lr = 1e-3), muon(lr = 0.02), share = 0.5))
  group @layers.1.w = (optimizer = lookahead(shampoo(lr = 1e-3), k = 3))
  group @layers.2.w = (optimizer = lookahead(lamb(lr = 0.01), k = 3))""", rules)


def test_wrapped_states(run):
    """their names in a checkpoint, and their first values"""
    run("run", prepare(run, "optimizer = lookahead(ema(adamw(lr = 1e-3)), k = 9); group @tall.w = (optimizer = centred(row(lr = 1e-3)))",
                       steps=2, every=2))
    held = load(run.path("run/step-000002/optimizer.safetensors"))
    want = {s + "wide.w" for s in ("slow.", "inner.a.", "inner.inner.m.", "inner.inner.v.", "trained-weights.")}
    check({n for n in held if n.endswith("wide.w")} == want, f"{sorted(held)}")
    within("slow weights", distance(held["slow.wide.w"], problems()["wide"][0]), 1e-9)
    check({n: held[n].shape for n in held if n.endswith("tall.w")} == {"inner.seen.tall.w": (SIZES["d"],)}, f"{sorted(held)}")


BAD = (  # the optimizer, the body of w, the code of the diagnostic, a part of its text
    ("lookahead()", "", "E204", "lookahead needs 'inner'"),
    ("lookahead(adamw)", "", "E23B", "inner of lookahead must be a call of an optimizer"),
    ("lookahead(warmup_cosine())", "", "E20D", "'warmup_cosine' is not an optimizer"),
    ("adamw(lr = sgd(lr = 1))", "", "E33B", "'lr' of adamw is not declared as an optimizer"),
    ("lookahead(adamw(lr = -1))", "", "E073", "adamw requires lr >= 0; got -1"),
    ("centred(lamb(lr = 1))", "", "E337", "centred sees the matrices of a parameter, so its argument lamb cannot"),
    ("lookahead(muon(lr = 1))", "", "E0EF", "group @bias.w = (optimizer"),
    ("lookahead(adamw(lr = 1)); group @bias.w = (rho = 3)", "", "E203", "'rho'"),
    ("lookahead(adamw(lr = 1)); group @bias.w = (inner = sgd(lr = 3))", "", "E33A", "'inner' of lookahead"),
    ("ema(schedule_free(lr = 1))", "", "E336", "inner is this schedule_free"),
    ("grafted(sam(lr = 1), sam(lr = 1))", "", "E338", "sam and sam both take an extra gradient"),
    ("grafted(ema(sgd(lr = 1)), schedule_free(lr = 1))", "", "E338", "ema and schedule_free both have `eval`"),
    ("w(sgd(lr = 1))", "return f(inner, g)", "E334", "o.update(p, g, k) in update"),
    ("w(sgd(lr = 1))", "return inner.update(p, g, g)", "E0B5", "expected number, got f32"),
    ("w(sgd(lr = 1))", "return inner.eval(p)", "E334", "inner.update(p, g, k) in update"),
    ("w(sgd(lr = 1))", "return inner.m", "E042", "optimizer sgd has no field 'm'"),
    ("w(sgd(lr = 1))", "return update(p, inner.update(p, g, k), k)", "E334", "inner.update(p, g, k) in update"),
)


def test_mistakes(run):
    for use, body, code, text in BAD:
        file = prepare(run, "optimizer = " + use)
        kind = "f32" if "expected number" in text else "f32[..p]"
        f = "fn f(o, x: f32[..r]) -> f32[..r] { return o.update(x, x, 1) }\n" if "f(inner" in body else ""
        run.write("bad.lm", f"{open(file).read()}{f}"
                  f"optimizer w(inner: optimizer) {{ update(p: {kind}, g: {kind}, k: f32) -> {kind} {{ {body or 'return inner.update(p, g, k)'} }} }}\n")
        err = run("check", run.path("bad.lm"), status=1)
        check(f"error[{code}]" in err and text in err and "bad.lm:" in err, f"{use}, {body}: {err}")
    nested = ("--set", "optimizer.inner.lr=2e-3")
    err = run("check", prepare(run, "optimizer = lookahead(adamw(lr = 1))"), *nested, status=1)
    check('E24B' in err and 'help: set the whole argument: "optimizer.inner=…"' in err, err)


def test_groups_with_optimizers(run):
    """an instance of a repetition has its own optimizer, another one its own arguments"""
    rules = {"layers.1.w": (muon(0.02),), "layers.2.w": adamw(1e-3, decay=0.0), "bias": lamb(0.01), "tall": adamw(2e-3)}
    expect(run, """optimizer = adamw(lr = 1e-3)
  group @layers.1.w = (optimizer = muon(lr = 0.02)); group @layers.2.w = (decay = 0)
  group @{bias,tall}.w = (lr = 2e-3); group @bias.w = (optimizer = lamb(lr = 0.01))""",
           lambda name: rules.get(name, adamw(1e-3)))


def expect_views(run, optimizer, rule):
    """a checkpoint has the weights of evaluations; the trained ones are a state of the optimizer"""
    run("run", prepare(run, optimizer, steps=20, every=20))
    views = load(run.path("run/step-000020/model.safetensors"))
    trained = load(run.path("run/step-000020/optimizer.safetensors"))
    for name in PARAMS:
        path = path_of(name)
        want, seen = train(name, rule, 20), train(name, rule, 20, view=True)
        check(distance(want, seen) > 1e-3, f"{name} has two views")
        within(f"{optimizer}: {name}", distance(trained["trained-weights." + path], want), 1e-6)
        within(f"{optimizer}: evaluations of {name}", distance(views[path], seen), 1e-6)


def test_schedule_free(run):
    use = "optimizer = schedule_free(lr = 0.01, decay = 0.1)"
    expect(run, use, lambda name: schedule_free(0.01, decay=0.1))
    expect_views(run, use, schedule_free(0.01, decay=0.1))


def test_average_of_weights(run):
    expect_views(run, "optimizer = ema(lookahead(adamw(lr = 0.01), k = 3), rate = 0.9)",
                 ema(lookahead(adamw(0.01), 3), 0.9))


def test_evaluations_use_the_average(run):
    """the loss of an evaluation in the run is that of the weights in the checkpoint, and not that of the trained ones"""
    file = prepare(run, "optimizer = schedule_free(lr = 0.05); eval dev { data = D.dev; every = 10 steps }", steps=10, every=10)
    text = open(file).read().replace('text("text.txt");', 'text("text.txt"); holdout dev = tail(10%);')
    run.write("o.lm", text)
    run("run", file)
    logged = json.loads(open(run.path("run/metrics.jsonl")).read().splitlines()[-1])["dev.loss"]
    weights = load(run.path("run/step-000010/model.safetensors"))
    states = load(run.path("run/step-000010/optimizer.safetensors"))
    within("the loss in the run", abs(logged / loss(weights) - 1), 1e-5)
    trained = {path_of(n): states["trained-weights." + path_of(n)] for n in PARAMS}
    check(abs(logged / loss(trained) - 1) > 1e-3, "the trained weights have another loss")


IN_GROUPS = """optimizer = grafted(adam(lr = 1e-3), grafted(sgd(lr = 1e-3, momentum = 0.9, nesterov = true), lion(lr = 1e-3)))
  group @{wide,experts}.w = (optimizer = cautious(muon(lr = 0.02))); group @heads.w = (optimizer = adafactor_full(lr = 0.02))
  group @layers.1.w = (optimizer = adafactor(lr = 0.02)); group @bias.w = (optimizer = lamb(lr = 0.01))
  group @layers.2.w = (optimizer = centred(shampoo(lr = 1e-3)))
  group @tall.w = (optimizer = lookahead(schedule_free(lr = 0.01), k = 2)); group @merged.w = (optimizer = ema(adamw(lr = 0.01)))"""
ALONE = ("schedule_free(lr = 0.01)", "ademamix(lr = 1e-3, warmup = 4 steps)", "lookahead(sophia(lr = 1e-3, every = 2 steps), k = 2)",
         "lookahead(adamw(lr = 1e-3), k = 2)", "unchanged(sam(lr = 1e-3, rho = 1))")


def test_resume_gives_the_same_bytes(run):
    resume(run, IN_GROUPS)


def test_resume_with_one_optimizer(run):
    """and each optimizer of the library is in a test of resuming"""
    for k, use in enumerate(ALONE):
        resume(run, f"optimizer = {use}", f"{k}/")
    library = re.findall(r"^optimizer (\w+)\(", open(f"{ROOT}/stdlib/optim.lm").read(), re.M)
    tried = set(re.findall(r"(\w+)\(", " ".join((IN_GROUPS, *ALONE))))
    check(len(library) > 12 and set(library) <= tried, f"{set(library) - tried} have no test")


def resume(run, optimizer, folder=""):
    file = prepare(run, optimizer, steps=6, every=3)
    run("run", file, "--out", run.path(folder + "one"), env={"OMP_NUM_THREADS": "1"})
    whole = folder_bytes(run.path(folder + "one/step-000006"))
    run("run", file, "--out", run.path(folder + "two"), env={"OMP_NUM_THREADS": "2"})
    check(whole == folder_bytes(run.path(folder + "two/step-000006")), "two threads")
    run("run", file, "--out", run.path(folder + "part"), "--steps", 3)
    run("run", file, "--out", run.path(folder + "part"))
    check(whole == folder_bytes(run.path(folder + "part/step-000006")), "resumed")


def sophia(lr, every, b1=0.96, b2=0.99, gamma=0.05, eps=1e-12, decay=0.1, weight=32):
    """the gradient of the test's `sampled` is three times that of the loss"""
    def rule():
        s = dict(m=0.0, h=0.0)

        def step(p, g, k):
            if (k - 1) % every == 0:
                s["h"] = b2 * s["h"] + (1 - b2) * weight * (3 * g) ** 2
            s["m"] = b1 * s["m"] + (1 - b1) * g
            return p - lr * (np.clip(s["m"] / np.maximum(gamma * s["h"], eps), -1, 1) + decay * p)
        return step
    return rule


def sam(lr, rho, momentum, decay, every):
    """the weights after STEPS; the norm is that of all parameters"""
    w = {n: p[0].astype("f8") for n, p in problems().items()}
    m = {n: 0.0 for n in w}
    data = {n: [a.astype("f8") for a in p[1:]] for n, p in problems().items()}
    for k in range(STEPS):
        at = w
        if k % every == 0:
            g = {n: gradient(n, w[n], *data[n]) for n in w}
            norm = np.sqrt(sum(np.sum(x * x) for x in g.values()))
            at = {n: w[n] + rho * g[n] / norm for n in w}
        m = {n: momentum * m[n] + gradient(n, at[n], *data[n]) + decay * w[n] for n in w}
        w = {n: w[n] - lr * m[n] for n in w}
    return w


def test_extra_gradients(run):
    expect(run, "optimizer = lookahead(sophia(lr = 1e-3, gamma = 1e-3, every = 4 steps), k = 7)",
           lambda name: lookahead(sophia(1e-3, 4, gamma=1e-3), 7))
    for every in 1, 3:
        use = f"sam(lr = 1e-4, rho = 2, momentum = 0.8, decay = 0.1, every = {every} steps)"
        use = use if every == 1 else f"unchanged(unchanged({use}))"
        want = sam(1e-4, 2, 0.8, 0.1, every)
        final = run.trace(prepare(run, "optimizer = " + use), "--values", "params", "--steps", STEPS)
        for name in PARAMS:
            within(f"{use}: {name}", distance(final["final." + path_of(name)], want[name]), 1e-6)
        plain = sam(1e-4, 0, 0.8, 0.1, every)
        check(distance(plain["wide"], want["wide"]) > 1e-4, "rho has an effect")


def philox(key, counter):
    """Philox4x32-10: counter: four arrays of uint64"""
    x = [np.asarray(c, "u8") for c in counter]
    k, low = [key & 0xFFFFFFFF, key >> 32], np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [(b >> np.uint64(32)) ^ x[1] ^ np.uint64(k[0]), b & low, (a >> np.uint64(32)) ^ x[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(x, -1)


BIGRAMS = """import std.nn: xent, sample
model Bigrams(vocab = 24, d = vocab) {
  param w: real[vocab, d] = normal(1)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, d] { return gather(w, tok, vocab) }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
  sampled(bt: Batch[b, t]) -> (f32, f32) {
    let z = apply(bt.tok, bt.pos, bt.seg)
    return (sum(xent(z, sample(z)) * bt.w), sum(bt.w))
  }
}
model Start = Bigrams() from "start.safetensors"
data Batches { source s = batches("batches.safetensors") }
recipe R {
  model = Start; data = Batches; seed = 1; run = 4 steps; batch = 64 tokens; micro = 64 tokens
  optimizer = sophia(lr = 1e-3, every = 2 steps); save = checkpoint("run", every = 1 steps, keep = all)
  precision { compute = f32 }
}
"""


def test_sampled_labels(run):
    """the Gauss-Newton-Bartlett estimate of logits w, by labels drawn as docs/language.md says; and on 4 micro-batches, on two ranks"""
    batches, w = random_batches(4, 4, 16, 24), np.random.default_rng(3).normal(0, 1, (24, 24)).astype("f4")
    save(run.path("batches.safetensors"), batches)
    save(run.path("start.safetensors"), dict(w=w))
    file = run.write("b.lm", BIGRAMS)
    out = run("run", file)
    check("step 1/4" in out, out)
    key, i = 0x9C9635209AA95D33, np.arange(4 * 16 * 24, dtype="u8")             # of seed 1 and the first draw of the model
    words = philox(key, (i // np.uint64(4), 0 * i, 0 * i, 0 * i + np.uint64(1)))[np.arange(len(i)), i % np.uint64(4)]
    u = ((words >> np.uint64(9)).astype("f8") + 0.5) * 2.0**-23
    tok, weight = batches["tok"][0].ravel(), batches["w"][0].ravel().astype("f8")
    z = w.astype("f8")[tok]
    label = np.argmax(z - np.log(-np.log(u.reshape(z.shape))), 1)
    r = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    r[np.arange(len(label)), label] -= 1
    g = np.zeros((24, 24))
    np.add.at(g, tok, r * weight[:, None] / weight.sum())
    states = lambda folder, step: load(run.path(folder, f"step-{step:06d}/optimizer.safetensors"))
    within("h of step 1", distance(states("run", 1)["h.w"], 0.01 * weight.sum() * g * g), 1e-6)
    check(np.array_equal(states("run", 2)["h.w"], states("run", 1)["h.w"]), "step 2 changes h")
    run("run", file, "--out", run.path("micro"), "--set", "micro=16 tokens")
    mpi_needed(run)
    run("run", file, "--out", run.path("ranks"), "--ranks", 2, env=PATIENT)
    for folder in "micro", "ranks":
        within(f"h of step 4, {folder}", distance(states(folder, 4)["h.w"], states("run", 4)["h.w"]), 1e-6)


def test_ranks(run):
    """two processes that divide the rows train as one does"""
    mpi_needed(run)
    text = open(small(run, steps=3, rows=4)).read().replace("optimizer = adamw(lr = 3e-3)", """optimizer = muon(lr = 0.02)
  group @{embed,**.n1,**.n2,**.qn,**.kn,norm} = (optimizer = schedule_free(lr = 1e-3)); save = checkpoint("run")""")
    run("run", run.write("one.lm", text))
    two = text.replace("data = Batches;", "data = Batches; parallel { mesh = (dp = 2) };")
    run("run", run.write("two.lm", two), "--ranks", 2, "--out", run.path("two"), env=PATIENT)
    one, two = (load(run.path(x, "step-000003/model.safetensors")) for x in ("run", "two"))
    for name in one:
        within(name, distance(two[name], one[name]), 1e-5)
