"""Statements of docs/language.md, each tried by a small program: valid programs are accepted without a message, and
errors have the stated code."""
import re

from harness import ROOT, check

LAYER = "block L(d) { param w: real[d] = ones; apply(x: real[b, d]) -> real[b, d] { return x * w } }\n"
SCAN = """block S(d, v = 8) {
  param e: real[v, d] = ones
  apply(tok: int[b, t], x: real[b, t, d]) -> real[b, t, d] {
    let h = expand(expand(0, b), d)
    for at in t carry h { h = BODY; emit y = h }
    return real(permute(y, (b, t, d))) * gather(e, tok, v)
  }
}
"""

# Section of the page: programs.
RIGHT = {
    "types and axes": (
        "fn f(x: int[c], y: int[c]) -> int[c] { return idiv(x, y) + x mod y }",
        "let n = 2 ^ 3 ^ 2\nfn f(x: f32[c]) -> f32[c, k] { return expand(x, k = n) }",
        "fn f(x: f32[c]) -> f32[c] { let b = (0.9, 0.99); return x * b[1] }",
        LAYER + "block B(d) { sub ls[i < 3] = L(d); apply(x: real[b, d]) -> real[b, d] { return ls[0](ls[2](x)) } }",
        LAYER + "block B(d, n) { sub ls[i < n] = L(d); apply(x: real[b, d]) -> real[b, d] { return ls[0](ls[1](x)) } }",
        "block B(d) { dim h = d / 2; param w: real[d, h] = zeros; apply(x: real[b, d]) -> real[b, h] { return dot(x, w, d) } }",
        "block L(d, f) { param w: real[d, f] = ones; apply(x: real[b, d]) -> real[b] { return sum(dot(x, w, d), f) } }\n"
        "block B(d) { sub l = L(d, floor(d * 0.3)); apply(x: real[b, d]) -> real[b] { return l(x) } }",
    ),
    "declarations": (
        LAYER + "block B(d) { sub p, q = L(d); apply(x: real[b, d]) -> real[b, d] { return p(q(x)) } }",
        "fn f(x: f32[c]) -> f32[c] { let y = x; let y = y + 1; return y }",
        "fn f(x: f32[c], peak: f32 = 0) -> f32[c] { return select(peak > 0, x / peak, 1) }",
    ),
    "loops over positions": (SCAN.replace("BODY", "select(expand(tok, d) > 0, h, 0) + f32(x) * iota(d)"),),
    "windows": (
        "fn f(x: f32[b, y]) -> f32[b, u, k] { return window(x, y -> (u, k = 3), before = 1, after = 1, stride = 2) }",
        "fn f(x: f32[y], z: f32[y]) -> f32[y] { let (a, c) = window((x, z), y -> (y, k = 3), before = 4, dilate = 2); return sum(a + c, k) }",
    ),
    "routing": (
        "fn f(x: f32[a, E]) -> int[a, c] { let (_v, i) = top_k(x, E -> (c = 2)); return i }",
        "fn f(x: f32[a, e]) -> int[a] { return argmax(x, e) }",
        "fn f(x: f32[b, t, d], id: int[b, t, c], w: f32[E, d, f]) -> f32[b, t, c, f] {\n"
        "  let (r, n) = group_by(x, id, (b, t, c) -> m, E)\n  return ungroup(grouped_dot(r, w, n, d), id, m -> (b, t, c))\n}",
    ),
    "formats": (
        "format q(block = 4) { encode(x: f32[..r, c]) -> int[..r, c] { return int(x) }; "
        "decode(q: int[..r, c]) -> f32[..r, c] { return f32(q) } }\nfn f(x: f32[a, c]) -> f32[a, c] { return qcast(x, q(), c) }",
    ),
    "built-in functions": (
        "block B(d) { dim e = round(d / 2.0); param w: real[d, e] = zeros; apply(x: real[b, d]) -> real[b, e] { return dot(x, w, d) } }",
        "fn f(x: f32[a, b, c]) -> f32[b] { return mean(x, (a, c)) + sum(x) }",
        "fn f(x: f32[a, b]) -> f32[a, b] { return sum(x, ()) }",
        "fn f(t: f32[v, a], i: int[a]) -> f32[a] { return gather(t, i, v) }",
        "fn f(x: f32[a, b], y: f32[b, a]) -> f32[a, b] { let (u, v) = rename((x, y), (a, b) -> (c, d)); return rename(u * v, [c, d] -> [a, b]) }",
        "fn f(x: f32[a], y: f32[b]) -> f32[a] { let z = concat((x, y), (a, b) -> e); let (l, _r) = split(z, e -> (a, b)); return l }",
        "fn f(x: f32[a], y: f32[a]) -> f32[a] { let (l, r) = unstack(stack((x, y), two), two); return l - r }",
        "fn f(x: f32[e]) -> f32[e] { let y = slice(x, e -> (a = 2), 1); return sum(pad(y, a -> q, 1, 1), q) + x }",
        "fn f(x: f32[c]) -> f32[c] { return table(nearest(x, (-1, 0, 1)), (-1, 0, 1)) * binade(x) }",
        "fn f(x: int[c]) -> int[c] { return select(x > 0, abs(x), sign(x)) }",
    ),
    "layout": (
        "fn f(add: f32[c]) -> f32[c] { return add + 1 }",
        "fn f(extra: f32[c]) -> f32[c] { let after_step = extra; return after_step }",
    ),
}

# Code: programs.
WRONG = {
    "E038": ("fn f(x: int[c], y: int[c]) -> int[c] { return x / y }",),
    "E010": ("fn f(x: f32[c]) -> bool[c] { return 0 < x < 1 }", "fn f(carry: f32[c]) -> f32[c] { return carry }"),
    "E012": ("fn f(x: f32[c]) -> f32[c] { return x } # \u202e",),
    "E02A": ("fn f(x: f32[c]) -> f32[c] { let y = x; for n in 3 carry y { let y = y + 1 }; return y }",
             "optimizer o(lr) { state m: f32 = 0; update(p: f32, g: f32) -> f32 { let m = g; return p - lr * m } }"),
    "E02C": (SCAN.replace("BODY", "f32(gather(e, tok, v))"),),
    "E032": ("fn f(x: f32[a, b], y: f32[b, c]) -> f32[a, b] { return x + y }",),
    "E036": ("fn f(x: int[c], y: f32[c]) -> f32[c] { return x + y }",),
    "E041": (SCAN.replace("BODY", "h + sum(f32(x), t)"),),
    "E043": ("fn f(x: f32[c]) -> f32[c] { return if x > 0 then x else 0 }",),
    "E045": ("fn f(x: f32[c]) -> f32[c] { let b = (0.9, 0.99); return x * b[2] }",),
    "E056": ("fn f(x: f32[c, c]) -> f32[c, c] { return x }",),
    "E065": ("fn f(t: f32[v, a, b], i: int[a]) -> f32[a, b] { return gather(t, i, v) }",),
    "E0A5": ("fn f(x: f32[c]) -> f32[c] { return f(x) }",),
    "E0B6": ("optimizer o(lr) { update(p: f32, g: f32) -> f32 { return p - lr * sum(g) } }",),
    "E0B7": ("optimizer o(lr) { param q: f32 = zeros; update(p: f32, g: f32) -> f32 { return p - lr * g } }",),
    "E0B8": ("optimizer o(lr) { update(p: f32[..p], g: f32[..p]) -> f32[..p] { return p - lr * dropout(g, 0.5) } }",),
    "E0BC": ("fn f(x: f32[c]) -> f32[c, k] { return expand(x, k = 7 / 2) }",),
    "E0F0": ("optimizer o(lr) { update(g: f32, p: f32) -> f32 { return p - lr * g } }",),
    "E335": ("optimizer o(inner: optimizer) { update(p: f32, g: f32, k: f32) -> f32 { return select(k > 2, inner.update(p, g, k), p) } }",),
    "E904": ("optimizer o(lr) { update(p: f32, g: f32) -> f32 { return eval(p) - lr * g } }",),
    "W001": ("fn f(x: f32[c]) -> f32[c] { let y = x; return x }",),
    "W002": ("fn f(x: f32[c], unused: f32) -> f32[c] { return x }",),
    "W004": ("fn f(x: f32[c]) -> f32[c] { return x; let y = x }",),
}


def test_accepted(run):
    for section, programs in RIGHT.items():
        for text in programs:
            code, _, err = run.result("check", run.write("m.lm", text + "\n"))
            check(code == 0 and not err, f"{section}: {text}\n{err}")


def test_refused(run):
    for expected, programs in WRONG.items():
        for text in programs:
            code, out, err = run.result("check", run.write("m.lm", text + "\n"))
            check(f"[{expected}]" in out + err and (code == 1) == (expected[0] == "E"), f"{text}: {out}{err}, expected {expected}")


WHOLE = """import std.nn: xent
model M(d = 8, vocab = 256) {
  param e: real[vocab, d] = normal(1)
  apply(tok: int[b, t], _pos: int[b, t], _seg: int[b, t]) -> real[b, t, vocab] { return dot(gather(e, tok, vocab), e, d) }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
optimizer o(lr) { update(p: f32, g: f32) -> f32 { return p - lr * g } }
model N = M() with { train @** }
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = N; data = D; run = 2 steps; batch = 32 tokens; optimizer = o(lr = 1e-3) }
"""
# reserved name: a part of WHOLE, and that part with the name
RESERVED = {
    "eval": ("lr * g", "lr * eval(g)"),
    "store": ("train @**", "store @e = bf16"),
    "prune": ("train @**", "prune @e = 50%"),
    "filter": ("pack", 'filter lang(keep = ["en"]); pack'),
    "dedup": ("pack", "dedup minhash(); pack"),
    "zero_bubble": ("run =", "parallel { mesh = (pp = 2); pipeline = zero_bubble }; run ="),
    "pp": ("run =", "parallel { mesh = (pp = 2); sequence = pp }; run ="),
    "only": ("run =", 'save = checkpoint("x", only = [@e]); run ='),
}


def test_reserved(run):
    """the names in "Not available yet" are those of RESERVED, and each is an error where it stands"""
    page = open(f"{ROOT}/docs/language.md").read().split("## Not available yet\n")[1].split("\nModels with `apply`")[0]
    named = set(re.findall(r"`(\w+)`", page)) - {"with", "data", "pipeline", "sequence", "parallel"}
    check(named == set(RESERVED), f"{sorted(named)}")
    run.write("text.txt", "a text")
    run("check", run.write("m.lm", WHOLE))
    for name, (part, use) in RESERVED.items():
        text = WHOLE.replace(part, use, 1)
        line = next(i for i, pair in enumerate(zip(text.split("\n"), WHOLE.split("\n"))) if pair[0] != pair[1])
        column = [*re.finditer(rf"\b{name}\b", text.split("\n")[line])][-1].start()
        at = f"m.lm:{line + 1}:{column + 1}: error[{'E904' if name == 'eval' else 'E900'}]"
        for command in "check", "run":
            err = run(command, run.write("m.lm", text), status=1)
            check(at in err and "is not available yet" in err, f"{name}: {err}, expected {at}")
