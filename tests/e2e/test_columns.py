"""Further columns of the data: parameters of `loss` beside the batch, from a file of batches."""
import json

import numpy as np

from harness import check, distance, folder_bytes, random_batches, remove, save, within

PROGRAM = """import std.nn: log_softmax, softmax
model Off(d = 8, vocab = 24, choices = 24) {{
  param embed: real[vocab, d] = normal(0.3)
  param head: real[d, vocab] = normal(0.3)
  param value: real[choices] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), head, d) }}
  loss(bt: Batch[b, t], {columns}) -> (f32, f32) {{
    let z = f32(apply(bt.tok, bt.pos, bt.seg))
    let p = softmax(logits, vocab)
    let kl = sum(p * (log_softmax(logits, vocab) - log_softmax(z, vocab)), vocab)
    let e = sum(f32(gather(value, pick, choices)), k)
    return (sum(kl * bt.w * f32(share)) + sum(reward * e), sum(bt.w))
  }}
}}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Off({args}); data = D; run = 4 steps; seed = 3; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = 0.1); precision {{ compute = f32 }}
  save = checkpoint("run", every = 2 steps, keep = all)
}}
"""
COLUMNS = "share: real[b, t], logits: f32[b, t, vocab], reward: f32[b], pick: int[b, k]"


def program(run, columns=COLUMNS, args="", **changes):
    rng = np.random.default_rng(1)
    batches = random_batches(4, 4, 16, 24)
    batches |= dict(logits=rng.normal(size=(4, 4, 16, 24)).astype("<f4"), reward=rng.normal(size=(4, 4)).astype("<f4"),
                    pick=rng.integers(0, 24, (4, 4, 5)).astype("<i4"), share=rng.random((4, 4, 16)).astype("<f4"))
    batches |= changes
    save(run.path("batches.safetensors"), {n: t for n, t in batches.items() if t is not None})
    return run.write("p.lm", PROGRAM.format(columns=columns, args=args)), batches


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def reference(p, b):
    """the loss of one step and its gradients, in float64"""
    x = p["embed"][b["tok"]]
    z, t = softmax(x @ p["head"]), softmax(b["logits"].astype("f8"))
    weight = (b["w"] * b["share"].astype("f8"))[..., None]
    loss = (t * (np.log(t) - np.log(z)) * weight).sum() + (b["reward"] * p["value"][b["pick"]].sum(-1)).sum()
    dz, n = (z - t) * weight, b["w"].sum()
    grads = {name: np.zeros_like(v) for name, v in p.items()}
    np.add.at(grads["embed"], b["tok"], dz @ p["head"].T)
    np.add.at(grads["value"], b["pick"], np.broadcast_to(b["reward"].astype("f8")[..., None], b["pick"].shape))
    grads["head"] = np.einsum("rtd,rtv->dv", x, dz)
    return loss / n, {name: g / n for name, g in grads.items()}


def test_columns_values(run):
    """losses, gradients and steps are those of a float64 computation, in two micro-batches"""
    file, b = program(run)
    start = run.trace(file, "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    out = run.trace(file)
    p = {n[6:]: np.array(v, "f8") for n, v in start.items()}
    for s in range(4):
        loss, grads = reference(p, {n: t[s] for n, t in b.items()})
        within(f"loss {s}", abs(loss - out["loss"][s]), 2e-6)
        for n in p:
            if s == 0:
                within(f"gradient of {n}", distance(out["grad." + n], grads[n]), 1e-6)
            p[n] -= 0.1 * grads[n]
    for n in p:
        within(n, distance(out["final." + n], p[n]), 1e-6)


def test_columns_resume(run):
    """a resumed run gives the same bytes; other values of a column are reported"""
    file, b = program(run)
    run("run", file, "-q")
    whole = folder_bytes(run.path("run/step-000004"))
    remove(run.path("run/step-000004"))
    run("run", file, "-q")
    check(folder_bytes(run.path("run/step-000004")) == whole)
    remove(run.path("run/step-000004"))
    program(run, reward=b["reward"] + 1)
    code, out, err = run.result("run", file, "-q")
    check(code == 0 and "the data differs from the data that this run was trained on" in err, err)


def test_columns_mistakes(run):
    """a column that the file lacks, of another type or size, or an index outside of its table, is an error"""
    cases = (dict(reward=None), "no tensor reward, which is a column of the model's `loss`"), \
        (dict(pick=np.zeros((4, 4, 5), "<f4")), "pick is F32, and a column of `loss` of type int"), \
        (dict(reward=np.zeros((4, 3), "<f4")), "reward is not [steps, rows, ...], as tok is"), \
        (dict(reward=np.zeros((4, 4, 2), "<f4")), "error[E0F4]: column 'reward' has 2 axes in the data, and 1 in the model"), \
        (dict(logits=np.zeros((4, 4, 16, 25), "<f4")), "error[E0F3]: column 'logits' has 25 values along axis 'vocab' in the data, and 24 in the model"), \
        (dict(share=np.zeros((4, 4, 8), "<f4")), "error[E0F3]: column 'share' has 8 values along axis 't' in the data, and 16 in the model")
    for changes, message in cases:
        file, _ = program(run, **changes)
        error = run("run", file, "-q", status=1)
        check(message in error, error)
    file, _ = program(run, args="choices = 9")
    check("error[E270]: column pick indexes a table of 9 rows, and the data holds 23" in run("run", file, "-q", status=1))
    file, _ = program(run, columns=COLUMNS.replace("f32[b]", "f32[k]"))
    check("error[E0F2]: 'reward' is not a column of the data" in run("check", file, status=1))
