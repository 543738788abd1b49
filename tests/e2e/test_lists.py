"""Lists of several blocks (`sub xs[i < n] = if … then A(…) else B(…)`): names, loops of fixed size, checkpoints, edits of some elements,
elements of several sizes."""
import re, shutil

import numpy as np

from harness import check, distance, folder_bytes, load, random_batches, save, within

PROGRAM = """import std.nn: rmsnorm, silu, xent
block Narrow(d, f) {{
  param w: real[d, f] = normal(d ^ -0.5)
  param o: real[f, d] = normal(f ^ -0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] {{ return x + dot(silu(dot(x, w, d)), o, f) }}
}}
block Scale(d) {{
  param w: real[d] = normal(0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] {{ return x + 0.1 * x * w }}
}}
block Pair(d, f, j) {{
  sub one = if j == 1 then Scale(d) else Narrow(d, f)
  sub two[i < 2] = if i == j then Narrow(d, f + 2) else Scale(d)
  apply(x: real[b, t, d]) -> real[b, t, d] {{
    let x = one(x)
    for l in two carry x {{ x = l(x) }}
    return x
  }}
}}
block Unit(c, f) {{
  param w: real[c, f] = normal(c ^ -0.5)
  apply(x: real[b, t, c]) -> real[b, t, f] {{ return dot(x, w, c) }}
}}
let widths = (8, 8, 8, 5, 5, 5, 8)
model M(depth = {depth}, d = 8, f = 6, vocab = 32) {{
  param embed: real[vocab, d] = normal(0.3)
  param norm: real[d] = ones
  sub layers[i < depth] = if i < 2 then Narrow(d, f) else if i mod 4 == 3 then Scale(d) else Narrow(d, f + 1)
  sub pairs[j < 3] = Pair(d, f, j)
  sub units[j < 6] = Unit(widths[j], widths[j + 1])
  sub before, after = Scale(d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    for l in layers carry x {{ x = l(x) }}
    for l in pairs carry x {{ x = l(x) }}
    let y = before(x)
    for l in units carry y {{ y = l(y) }}
    return dot(rmsnorm(after(rename(y, f -> d)), norm), embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
model Start = M() from "w.safetensors"
model Part = M() from "w.safetensors" with {{ {edits} }}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Start; data = D; seed = 3; run = 4 steps; batch = 64 tokens; micro = 64 tokens
  optimizer = adamw(lr = 1e-2); precision {{ compute = f32 }}
  save = checkpoint("runs/r", every = 2 steps, keep = all)
}}
recipe P extends R {{ model = Part; save = checkpoint("runs/p", every = 2 steps, keep = all) }}
"""
SHAPES = dict(embed=(32, 8), norm=(8,))
for i in range(6):
    f = 6 if i < 2 else 7
    SHAPES.update({f"layers.{i}.w": (8,)} if i == 3 else {f"layers.{i}.w": (8, f), f"layers.{i}.o": (f, 8)})
for j in range(3):
    for part, wide, f in ("one", j != 1, 6), ("two.0", j == 0, 8), ("two.1", j == 1, 8):
        SHAPES.update({f"pairs.{j}.{part}.w": (8, f), f"pairs.{j}.{part}.o": (f, 8)} if wide else {f"pairs.{j}.{part}.w": (8,)})
WIDTHS = 8, 8, 8, 5, 5, 5, 8
SHAPES.update({f"units.{j}.w": WIDTHS[j:j + 2] for j in range(6)}, **{"before.w": (8,), "after.w": (8,)})


def program(run, edits="freeze @norm", depth=6):
    rng = np.random.default_rng(2)
    w = {n: (0.5 * rng.standard_normal(s)).astype("<f4") for n, s in SHAPES.items()}
    save(run.path("w.safetensors"), w)
    save(run.path("batches.safetensors"), random_batches(5, 4, 16, vocab=32))
    return run.write("p.lm", PROGRAM.format(depth=depth, edits=edits)), {n: v.astype(np.float64) for n, v in w.items()}


def logits(w, tok):
    x = w["embed"][tok]
    for p in [f"layers.{i}" for i in range(6)] + [f"pairs.{j}.{q}" for j in range(3) for q in ("one", "two.0", "two.1")]:
        a = x @ w[p + ".w"] if p + ".o" in w else 0.1 * x * w[p + ".w"]
        x = x + (a / (1 + np.exp(-a)) @ w[p + ".o"] if p + ".o" in w else a)
    for p in ["before"] + [f"units.{j}" for j in range(6)] + ["after"]:
        x = x @ w[p + ".w"] if p.startswith("units") else x + 0.1 * x * w[p + ".w"]
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w["norm"] @ w["embed"].T


def test_lists_of_blocks(run):
    """each element has the parameters of its block under its index, and computes what numpy does; a resumed run is byte-equal"""
    file, w = program(run)
    got = run.trace(file, "--recipe", "R", "--steps", "1", "--values", "logits,params")
    check({n[6:]: v.shape for n, v in got.items() if n.startswith("final.")} == SHAPES)
    within("logits", distance(got["logits"], logits(w, load(run.path("batches.safetensors"))["tok"][0])), 1e-6)
    run("run", file, "--recipe", "R")
    whole = folder_bytes(run.path("runs/r/step-000004"))["model.safetensors"]
    shutil.rmtree(run.path("runs/r/step-000004"))
    run("run", file, "--recipe", "R")
    check(folder_bytes(run.path("runs/r/step-000004"))["model.safetensors"] == whole)


def test_lists_with_edits(run):
    """frozen elements keep their values and the others' gradients do not change, also where two indices decide which they are"""
    kept = {"layers.1.w", "layers.1.o", "layers.4.w", "layers.4.o", "pairs.1.two.0.w", "pairs.2.two.0.w", "pairs.2.two.1.w"}
    file, w = program(run, "freeze @layers.{1,4}.*; freeze @pairs.1.two.0.w; freeze @pairs.2.two.*.w")
    whole = run.trace(file, "--recipe", "R", "--steps", "2")
    part = run.trace(file, "--recipe", "P", "--steps", "2")
    check({n for n in SHAPES if "grad." + n not in part} == kept)
    for n in set(SHAPES) - kept:
        within(n, distance(part["grad." + n], whole["grad." + n]), 1e-6)


def test_lists_compile(run):
    """the number of loops does not depend on the length of a periodic list"""
    def graph(depth):
        file, _ = program(run, depth=depth)
        file = run.write("p.lm", open(file).read().replace('from "w.safetensors"', ""))
        run("compile", file, "--recipe", "R", "-o", run.path("out"))
        return re.sub(r"\d+", "", open(run.path("out/graph.lmir")).read().split("func @loss")[1]).count("\n")

    check(graph(10) == graph(50))
    text = open(run.path("out/graph.lmir")).read().split("func @loss")[1]
    check(len(re.findall(r"loop \d+ over.*units", text)) == 1, "units 3 and 4; units 0 renames an axis, 1, 2 and 5 are alone")
