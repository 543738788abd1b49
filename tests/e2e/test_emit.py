"""emit: values of loops, layers and functions are in the metrics under names with their indices, and equal the computed values."""
import json

import numpy as np
from harness import check, load, random_batches, save

HEAD = """import std.nn: rmsnorm, xent
data D {{ source s = batches("batches.safetensors") }}
recipe R {{ model = {model}; data = D; run = 2 steps; batch = 32 tokens; micro = 16 tokens; optimizer = adamw(lr = 1e-2); seed = 3; precision {{ compute = f32 }} }}
fn size(x: real[..r]) -> real[] {{
  let s = mean(x * x)
  emit inside = s
  return s
}}
block Layer(d, first = 0) {{
  param w: real[d] = normal(0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] {{
    emit act = mean(x * w)
    return rmsnorm(x + x * w, w)
  }}
}}
"""
MODEL = """model {name}(d = 8, vocab = 64) {{
  param embed: real[vocab, d] = normal(0.5)
  sub layers[i < 3] = Layer(d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    {body}
    return dot({last}, embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
"""
LOOPS = """for l in layers carry x { x = l(x) }
    for n in 2 carry x {
      for m in 3 carry x {
        x = x * 0.5 + 0.25
        emit inner = mean(x)
      }
      emit outer = mean(x) + size(x)
    }"""


def flat():
    """the same without loops around `emit`: a let for every value"""
    lines, x = ["for l in layers carry x { x = l(x) }"], "x"
    for o in range(2):
        for i in range(3):
            lines += [f"let y{o}{i} = {x} * 0.5 + 0.25", f"emit i{o}{i} = mean(y{o}{i})"]
            x = f"y{o}{i}"
        lines += [f"emit s{o} = mean({x} * {x})", f"emit o{o} = mean({x}) + mean({x} * {x})"]
    return "\n    ".join(lines), x


def metrics(run, name, body, last="x"):
    save(run.path("batches.safetensors"), random_batches(2, 2, 16))
    file = run.write(f"{name}.lm", HEAD.format(model=f"{name}()") + MODEL.format(name=name, body=body, last=last))
    run("run", file, "-q", "--out", run.path(name))
    return [json.loads(line) for line in open(run.path(name, "metrics.jsonl"))]


def test_emit_in_loops(run):
    loops, straight = metrics(run, "Loops", LOOPS), metrics(run, "Flat", *flat())
    for a, b in zip(loops, straight):
        check(abs(a["loss"] - b["loss"]) < 1e-5, (a["loss"], b["loss"]))
        for o in range(2):
            pairs = [(f"inner.{o}.{i}", f"i{o}{i}") for i in range(3)] + [(f"outer.{o}", f"o{o}"), (f"inside.{o}", f"s{o}")]
            for mine, theirs in pairs:
                check(abs(a[mine] - b[theirs]) < 1e-5 * max(1, abs(b[theirs])), f"{mine} {a[mine]}, {theirs} {b[theirs]}")
        check(all(abs(a[f"act.{i}"] - b[f"act.{i}"]) < 1e-6 for i in range(3)) and a["act.0"] != a["act.1"], "one value per layer")
        check(set(a) - {f"act.{i}" for i in range(3)} >= {"inner.1.2", "outer.1"} and "act.3" not in a, sorted(a))


def test_emit_in_a_layer(run):
    """the first layer's value, from the parameters and the batch of the first step"""
    save(run.path("batches.safetensors"), random_batches(2, 2, 16))
    file = run.write("one.lm", HEAD.format(model="One()") + MODEL.format(name="One", body="for l in layers carry x { x = l(x) }", last="x"))
    run("run", file, "-q", "--steps", 1, "--set", "optimizer = sgd(lr = 0)", "--out", run.path("run"))
    p, tok = load(run.path("run/step-000001/model.safetensors")), random_batches(2, 2, 16)["tok"][0]
    x = p["embed"][tok].astype("f8")
    got = json.loads(open(run.path("run/metrics.jsonl")).readline())
    for i in range(3):
        w = p[f"layers.{i}.w"].astype("f8")
        check(abs(got[f"act.{i}"] - (x * w).mean()) < 1e-5, f"layer {i}: {got[f'act.{i}']}, {(x * w).mean()}")
        x = x + x * w
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w
