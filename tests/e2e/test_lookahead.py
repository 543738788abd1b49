"""Causal masks are accepted, for any constants in them. Rejected masks: tests/dsl/bad-semantic/look_ahead*."""
import glob
import json
import os
import random
import re

import numpy as np

from harness import ROOT, check, random_batches, save

MODEL = """import std.nn: attention, xent
model M(d = 8, vocab = 256) {
  dim g = 2, e = d / 2
  param embed: real[vocab, d] = normal(1.0)
  param wq, wk, wv: real[d, g, e] = normal(0.3)
  param wo: real[g, e, d] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let (ks, vs, ps, ss) = history((dot(x, wk, d), dot(x, wv, d), pos, seg), t -> s)
    let mask = %s
    return dot(x + dot(attention(dot(x, wq, d), ks, vs, mask), wo, (g, e)), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = M(); data = D; run = 2 steps; batch = 32 tokens; optimizer = adamw(lr = 1e-3) }
"""
NAMES = {"back": "(expand(pos, s) - ps)", "same": "(expand(seg, s) == ss)", "p": "expand(pos, s)", "seg_t": "expand(seg, s)"}


def model(mask):
    """The model with this mask, with NAMES replaced."""
    return MODEL % re.sub(r"\b(back|same|p|seg_t)\b", lambda m: NAMES[m[0]], mask)


MASKS = (
    "back >= 0",
    "back >= 0 & back < 4096",
    "back >= 0 & (back < 1000 | ps < 4 | back mod 700 == 0)",
    "f32(back) >= 0.5 * f32(ps) * 0 & (idiv(ps, 3000) == idiv(p, 3000) | back < 100000)",
)


def test_masks_that_look_back(run):
    run.write("text.txt", "a text\n")
    for mask in MASKS:
        code, _, err = run.result("check", run.write("m.lm", model(f"same & {mask}")))
        check(code == 0 and not err, f"{mask}: {err}")


# A head that reads the token at `next` predicts the one after it, a tap of a window that looks ahead.
AHEAD = """let y = dot(gather(embed, bt.tok, vocab) + gather(embed, bt.next, vocab), embed, d)
    let taps = window(bt.next, t -> (t, m = 2), after = 1)
    let at = expand(expand(iota(m), b, before = m), t, before = m)
    return (sum(xent(y, %s) * bt.w), sum(bt.w)) }"""
AFTER = "sum(taps * at, m)", "sum(select(at == 1, taps, 0), m)", "sum(select(at == 0, 0, taps), m)"
NEXT = "sum(taps * (1 - at), m)", "sum(select(at == 0, taps, 0), m)", "sum(select(at == 1, 0, taps), m)", "sum(taps, m)"


def test_taps_of_targets(run):
    run.write("text.txt", "a text\n")
    for taps, status in [(x, 0) for x in AFTER] + [(x, 1) for x in NEXT]:
        text = re.sub(r"return \(sum\(xent\(apply.*", lambda _: AHEAD % taps, model("same & back >= 0"))
        err = run("check", run.write("m.lm", text), status=status)
        check(not status or "E0D0]" in err, f"{taps}: {err}")


# The mask, and whether it is proved for every position; else it is checked at the positions of the probe.
PROVED = (
    ("p >= ps & same", True),
    ("same & not(ps > p)", True),
    ("back >= 0 & back < 4096 & same", True),
    ("same & (back == 0 | back == 5 | p - 17 > ps)", True),
    ("same & idiv(p, 48) == idiv(ps, 48) & back >= 0", True),
    ("same & back >= 0 & (ps < 4 | back < 64 | ps mod 8 == 0)", True),
    ("ps <= p & seg_t >= ss & ss >= seg_t", True),
    ("if 1 < 2 then p >= ps & same else same", True),
    ("select(p > 70, back >= 0 & back < 64, back >= 0) & same", True),
    ("same & f32(p) >= f32(ps)", False),
    ("same & 2 * p >= 2 * ps", False),
    ("same & back >= 0 & back * back >= 0", False),
    ("same & back >= 0 & idiv(p, 3) == idiv(ps, 3) & ps mod 3 == 0", False),     # 1023 is not on the probe, 1024 is
)


def causality(run, text):
    code, out, err = run.result("check", "--json", run.write("m.lm", text))
    return code, err, json.loads(out)[0]["causality"] if code == 0 else None


def test_proofs(run):
    for mask, proved in PROVED:
        code, err, found = causality(run, model(mask))
        check(code == 0, f"{mask}: {err}")
        check(found["relations"] == 3 and (found["proved"] == 3) == proved, f"{mask}: {found}")
        check((found["file"] is None) == proved, f"{mask}: {found}")


# Masked scores that are scaled after the mask: no later position has a weight.
SCALED = (
    "softmax(scores * e ^ -0.5, s)",
    "softmax(scores / 16, s)",
    "softmax(0.5 * (scores + 3), s)",
    "exp((scores - max(scores, s)) * 4)",
)


# Weights that are not 0 at later positions.
UNMASKED = (
    "exp((scores - max(scores, s)) * -0.5)",
    "exp((scores - max(scores, s)) * 0)",
    "exp(scores + 1e30)",
    "exp(minimum(scores + 1e30, 0))",
    "exp(minimum(scores - select(mask, 0, -1e30), 0))",
    "exp(real(int(scores)) * 1e-9)",
    "softmax(real(int(scores)), s)",
    "softmax(select(mask, unmasked - 1e31, -1e30), s)",   # visible scores are below those of later positions
)


def test_scaled_scores(run):
    """Masked scores stay masked when they are multiplied by a positive constant, not when a constant cancels them."""
    text = model("p >= ps & same").replace("attention, xent", "softmax, xent").replace(
        "    return dot(x", "    let unmasked = dot(dot(x, wq, d), ks, e)\n    let scores = select(mask, unmasked, -1e30)\n    return dot(x")
    of = lambda weights: text.replace("attention(dot(x, wq, d), ks, vs, mask)", f"dot({weights}, vs, s)")
    for weights in SCALED:
        code, err, found = causality(run, of(weights))
        check(code == 0 and found["proved"] == found["relations"], f"{weights}: {found} {err}")
    for weights in UNMASKED:
        code, err, _ = causality(run, of(weights))
        check(code == 1, f"{weights}: {code} {err}")


# Attention to the best of the earlier positions: the operand of top_k, and a mask by its results.
BEST = "select(mask, scores, -1e30)"
KEPT = "mask & %s >= expand(least, s)" % BEST
SPARSE = (
    (BEST, KEPT, None),
    (BEST, "mask & scores >= expand(least, s)", None),
    ("stop_grad(%s)" % BEST, KEPT, None),
    ("-select(mask, -scores, 1e30)", KEPT, "top_k reads all"),                          # -1e30, but not as a constant
    ("scores", KEPT, "top_k reads all"),
    ("select(mask, scores, 0)", KEPT, "top_k reads all"),                              # a score may be lower
    ("select(same, scores, -1e30)", KEPT, "top_k reads all"),
    ("select(back >= 0, scores, -1e30)", KEPT, "top_k reads all"),
    ("select(same, select(back >= 0, scores, -1e30), -1e29)", KEPT, "top_k reads all"),  # how many are later counts
    ("scores + select(mask, 0, -1e26)", KEPT, "top_k reads all"),                      # -1e26 does not absorb a score
    ("select(not(mask), -1e30, select(scores > 0, scores, -1e35))", KEPT, "top_k reads all"),          # -1e35 is below -1e30
    ("select(mask, -select(scores > 0, scores, 1e35), -1e30)", KEPT, "top_k reads all"),
    ("select(mask, scores - 1e31, -1e30)", KEPT, "top_k reads all"),
    (BEST, "mask & expand(max(at, best) > 3, s)", "reads the indices"),
    (BEST, "mask & expand(sum(f32(at), best) > 3, s)", "reads the indices"),
    (BEST, "select(mask, real(scores), -1e30) > expand(real(least) - 1, s)", "depends on"),   # -1e30 > -1e30
)


def test_best_positions(run):
    """A mask by the values of a top_k over the history is accepted where later positions and other documents change none of them."""
    text = model("p >= ps & same").replace("attention(dot(x, wq, d), ks, vs, mask)", "attention(dot(x, wq, d), ks, vs, kept)")
    for scores, kept, refused in SPARSE:
        more = f"""    let scores = f32(sum(dot(dot(x, wq, d), ks, e), g))
    let (top, at) = top_k({scores}, s -> (best = 4))
    let least = -max(-top, best)
    let kept = {kept}
    return dot(x"""
        code, err, found = causality(run, re.sub(r"\b(back|same)\b", lambda m: NAMES[m[0]], text.replace("    return dot(x", more)))
        if refused:
            check(code == 1 and '"E0D0"' in err and refused in err, f"{scores}, {kept}: {code} {err}")
        else:
            check(code == 0, f"{scores}, {kept}: {err}")


def drawn(draw, depth):
    """A random condition, and a function of the position, that of the history and whether the document is the same."""
    c = draw.randrange(1, 7)
    leaves = (
        (f"back >= {c - 3}", lambda p, q, same: p - q >= c - 3),
        (f"back < {c}", lambda p, q, same: p - q < c),
        ("p >= ps", lambda p, q, same: p >= q),
        ("same", lambda p, q, same: same),
        (f"ps < {c}", lambda p, q, same: q < c),
        (f"p == {c}", lambda p, q, same: p == c),
        (f"idiv(p, {c}) == idiv(ps, {c})", lambda p, q, same: p // c == q // c),
        (f"ps mod {c} == 0", lambda p, q, same: q % c == 0),
    )
    if depth == 0:
        return draw.choice(leaves)
    (x, f), (y, g) = drawn(draw, depth - 1), drawn(draw, depth - 1)
    if draw.random() < 0.7:
        return f"({x} & {y})", lambda *a: f(*a) and g(*a)
    return f"({x} | {y})", lambda *a: f(*a) or g(*a)


def test_random_masks(run):
    """Masks that are accepted never look ahead, by the mask itself; rejected ones do, or hide every position of a row."""
    draw, outcomes, far = random.Random(3), set(), 30
    for i in range(30 if run.nightly else 15):
        text, mask = drawn(draw, 2)
        if i % 3:
            text, mask = f"{text} & p >= ps & same", lambda *a, mask=mask: mask(*a) and a[0] >= a[1] and a[2]
        pairs = [(p, q, same) for p in range(far) for q in range(far) for same in (True, False)]
        ahead = any(mask(*x) for x in pairs if x[1] > x[0] or not x[2])
        empty = any(not any(mask(p, q, True) for q in range(p + 1)) for p in range(far))
        code, err, found = causality(run, model(text))
        check((code == 0) == (not ahead and not empty), f"{text}: ahead {ahead}, empty {empty}, {err}")
        outcomes.add((code, found and found["proved"] == found["relations"]))
    check(outcomes == {(0, True), (0, False), (1, None)}, outcomes)


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


# Losses of l, the cross-entropy, and p, its exp(-l), and whether a position of weight 0 counts in them.
WEIGHTED = (
    ("sum(l * select(p > 0.5, bt.w, 0))", False),
    ("sum(l * bt.w / (1 + p))", False),
    ("sum(l * (bt.w - bt.w * p))", False),
    ("sum(l * sqrt(bt.w * p))", False),
    ("sum(dot(l, bt.w, t))", False),
    ("sum(slice(l, t -> u, 1) * slice(bt.w * p, t -> u, 1))", False),
    ("sum(l * bt.w, t) / maximum(sum(bt.w, t), 1)", False),
    ("a = 0.5 * a + l * bt.w", False),
    ("a = 0.5 * a + l", True),
    ("a = 0.5 * a + bt.w; emit g = a; l * g", False),
    ("mean(l) * sum(bt.w)", True),
    ("sum(sum(l, t) * max(bt.w, t))", True),
    ("sum(l * expand(max(bt.w, t), t))", True),
    ("sum(l) * (sum(bt.w) / 16)", True),
    ("sum(l * (bt.w + p))", True),
)


def test_losses_that_count_padding(run):
    """W219 is given for a loss in which a position of weight 0 counts, and for no other."""
    run.write("text.txt", "a text\n")
    for loss, counted in WEIGHTED:
        scan, *rest = loss.split("; ")
        text = f"return (sum({loss}), sum(bt.w))" if not scan.startswith("a =") else (
            f"let a = sum(bt.w, t) * 0\n    for at in t carry a {{ {loss.rsplit('; ', 1)[0]} }}\n"
            f"    return (sum({rest[-1] if rest else 'a'}), sum(bt.w))")
        head = "\n    let l = xent(apply(bt.tok, bt.pos, bt.seg), bt.next)\n    let p = exp(-l)\n    "
        code, _, err = run.result("check", run.write("m.lm", PLAIN % ("\n    let y = x", head + text)))
        check(code == 0 and ("W219" in err) == counted, f"{loss}: {err}")


def test_large_constants_of_later_positions(run):
    """A constant such as -1e30 does not hide one that a later position chooses."""
    for z in ("-1e30 + select(n > 0, real(1e30), 0)", "1e30 + select(n > 0, real(1e30), real(-1e30))", "-1e30 - select(n > 0, real(-1e30), 0)"):
        body = f"\n    let n = pad(slice(x, t -> u, 1), u -> t, 0, 1)\n    let y = x + logistic({z})"
        err = run("check", run.write("m.lm", PLAIN % (body, LOSSES["sequence"])), status=1)
        check("E0D0]" in err, f"{z}: {err}")


def test_no_command_trains_a_model_that_looks_ahead(run):
    body = "\n    let y = x + 2 * pad(slice(x, t -> u, 1), u -> t, 0, 1)"
    model = run.write("m.lm", PLAIN % (body, LOSSES["sequence"]))
    run.write("text.txt", "the text of the source " * 100)
    for command in (("check",), ("run",), ("compile", "-o", run.path("plan"))):
        code, _, err = run.result(command[0], model, *command[1:])
        check(code == 1 and "error[E0D0]" in err and "m.lm:6:" in err, f"{command}: {err}")


# Models of examples/zoo whose data is no text: smaller sizes, and the shapes of the columns in a row.
IMAGE = "size = 32", dict(image=(3, 32, 32), label=())
SOURCE = "", dict(source=(8,), source_pos=(8,), source_seg=(8,))
OTHER_DATA = {"mobilenet": IMAGE, "efficientnet": IMAGE, "vit": IMAGE, "bart": SOURCE, "t5": SOURCE, "whisper": ("span = 8", dict(frames=(80, 16))),
              "clip": ("size = 32, patch = 8", dict(pixels=(3, 32, 32)))}
IMAGES = "mobilenet", "efficientnet", "vit", "clip"
# Those in which choices of rows are checked at the positions of the probe, because there is no mask to prove.
ROUTED = "mixtral", "olmoe", "qwen3moe", "deepseekv2", "deepseekv3", "gptoss", "llama4", "qwen3next"
ZOO = """data D {{ source s = {source} }}
recipe Z {{ model = {model}({size}); data = D; run = 1 steps; batch = 32 tokens; optimizer = adamw(lr = 1e-3) }}
"""


def checked(run, name, text):
    """what `lmc check` says of the causality of a model"""
    size, columns = OTHER_DATA.get(name, ("", {}))
    values = {n: np.zeros((1, 2, *shape), "<f4" if n in ("image", "pixels", "frames") else "<i4") for n, shape in columns.items()}
    save(run.path("batches.safetensors"), random_batches(1, 2, 16) | values)
    source = 'batches("batches.safetensors")' if columns else 'text("text.txt"); pack best_fit(seq = 16 tokens)'
    model = re.search(r"^model (\w+)\(", text, re.M)[1]
    return causality(run, text + ZOO.format(source=source, model=model, size=size))


# Faults: a mask that sees the next position or other documents, a carry that is not reset.
FAULTS = ((r"expand\(pos, s\) >= ps\b", "expand(pos, s) >= ps - 1"), (r"causal\(pos, ps,", "causal(pos + 1, ps,"),
          (r"select\(pos > 0, (\w+), 0\)", r"\1"), (r"expand\(seg, s\) == ss", "expand(seg, s) >= ss"))
FAULTLESS = "mobilenet", "efficientnet", "vit", "deepseekv2", "deepseekv3", "rwkv7"   # no masks, or those of std.layers
FAULTS_BY_DAY = "llama", "mamba", "mistral", "bert"


def test_zoo(run):
    """no model of examples/zoo is refused; masks and loops over positions are proved, and choices of rows are checked at positions.
    With a fault each is refused that has its own mask or loop; models of images relate no positions"""
    run.write("text.txt", "a text\n")
    files = {os.path.basename(f)[:-3]: open(f).read() for f in glob.glob(f"{ROOT}/examples/zoo/*.lm")}
    check(len(files) >= 40)
    for name, text in files.items():
        if name in ROUTED[1:] and not run.nightly:
            continue
        code, err, found = checked(run, name, text)
        check(code == 0 and "error" not in err, f"{name}: {err}")
        check((found["proved"] == found["relations"]) == (name not in ROUTED), f"{name}: {found}")
        check((found["relations"] == 0) == (name in IMAGES), f"{name}: {found}")
        fault = next((f for f in FAULTS if re.search(f[0], text)), None)
        check(bool(fault) == (name not in FAULTLESS), name)
        if fault and name not in IMAGES and (run.nightly or name in FAULTS_BY_DAY):
            code, err, _ = checked(run, name, re.sub(*fault, text))
            check(code == 1 and re.search(r"E0D\d", err), f"{name}, {fault}: {err}")
