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
    check("cannot be resumed: the content of its data has changed since step 2" in run("run", file, "-q", status=1))
    code, out, err = run.result("run", file, "-q", "--change", "data.source")
    check(code == 0 and "the data differs from the data that this run was trained on" in err, err)


def test_columns_mistakes(run):
    """a column that the file lacks, of another type or size, or an index outside of its table, is an error"""
    cases = (dict(reward=None), "no tensor reward, which is a column of the model's `loss`"), \
        (dict(pick=np.zeros((4, 4, 5), "<f4")), "pick is F32, and a column of `loss` of type int"), \
        (dict(reward=np.zeros((4, 3), "<f4")), "reward is not [steps, rows, ...], as tok is"), \
        (dict(pick=np.zeros((4, 4, 0), "<i4")), "pick has an axis of size 0"), \
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


FIELDS = """import std.tune: per_document
model M(d = 8, vocab = 256, classes = {classes}) {{
  param embed: real[vocab, d] = normal(0.3)
  param value: real[classes] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), embed, d) }}
  loss(bt: Batch[b, t], reward: f32[b, t], class: int[b, n], liked: f32[b, n]) -> (f32, f32) {{
    let count = per_document(f32(bt.seg >= 0), bt.seg, n)
    emit reward = sum(reward)
    emit class = sum(f32(class) * count)
    emit liked = sum(liked * count)
    return (sum(f32(apply(bt.tok, bt.pos, bt.seg))) + sum(f32(gather(value, class, classes))), sum(bt.w))
  }}
}}
data D {{ source s = {source}; pack best_fit(seq = 16 tokens, docs = 3); {more} }}
recipe R {{ model = M(); data = D; run = 1 epochs; batch = {batch} tokens; micro = 16 tokens; optimizer = sgd(lr = 0); precision {{ compute = f32 }}; save = checkpoint("run") }}
"""


def fields(run, lines, batch=16, classes=9, source='jsonl("lines.jsonl")', more=""):
    run.write("lines.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
    return run.write("f.lm", FIELDS.format(batch=batch, classes=classes, source=source, more=more))


def test_columns_of_json(run):
    """numbers of lines of JSON, at each position or for each document of packed rows"""
    lines = [{"text": "x" * (1 + i % 7), "reward": i / 4, "class": i % 9, "liked": i % 3 == 0} for i in range(60)]
    file = fields(run, lines)
    run("run", file, "-q")
    steps = [json.loads(line) for line in open(run.path("run/metrics.jsonl"))]
    tokens = lambda x: len(x["text"])
    for name, weight in ("reward", lambda x: x["reward"]), ("class", lambda x: x["class"]), ("liked", lambda x: x["liked"]):
        total = sum(s.get(name, 0) for s in steps)
        within(name, abs(total - sum(weight(x) * tokens(x) for x in lines)), 1e-3)
    remove(run.path("run"))
    chat = [{"prompt": x["text"][:1], "completion": x["text"]} | {n: x[n] for n in ("reward", "class", "liked")} for x in lines]
    run("run", fields(run, chat, source='prompt("lines.jsonl")'), "-q")


def test_columns_of_json_mistakes(run):
    """a line without its number is an unusable document; an index outside of its table, or plain text, is an error"""
    good = {"text": "x", "reward": 1, "class": 2, "liked": True}
    for change, message in (dict(reward="1"), 'lines.jsonl:2: no number in the field "reward"'), (dict(reward=1e99), 'the number 1e+99 in the field "reward" is too large for 32 bits'), \
            (dict({"class": 1.5}), 'the number 1.5 in the field "class" is not a whole number'), \
            (dict({"class": -3e9}), 'the number -3000000000 in the field "class" is too large for 32 bits'), \
            (dict(text="a\0b"), 'lines.jsonl:2: contains the character NUL (U+0000), which no text may contain'), \
            (dict({"class": None}), 'no whole number in the field "class"'):
        error = run("run", fields(run, [good, good | change]), "-q", status=1)
        check(message in error, error)
    check("error[E270]: column class indexes a table of 2 rows, and the data holds 2" in run("run", fields(run, [good], classes=2), "-q", status=1))
    err = run("run", fields(run, [good | {"class": -100}]), "-q", status=1)
    check("the data holds -100" in err and "to leave out -100, read select(class >= 0, class, 0) and multiply by f32(class >= 0)" in err, err)
    check("error[E275]: the data has no column 'reward'" in run("check", fields(run, [good], source='text("lines.jsonl")'), status=1))
    text = open(fields(run, [good])).read()
    err = run("check", run.write("rows.lm", text.replace("reward: f32[b, t]", "reward: f32[b]")), status=1)
    check("help: of lines of JSON, `reward: f32[b, t]` is the number for each position" in err, err)
