"""Prefix language models: the column `prompt` marks positions that see each other in both directions."""
import json
import random

import numpy as np

from harness import check, distance, load, random_batches, remove, save, within
from test_lookahead import causality, drawn

MODEL = """import std.nn: attention, xent
block Attn(d, g, e) {
  param wq, wk, wv: real[d, g, e] = normal(0.5)
  param wo: real[g, e, d] = normal(0.5)
  apply(x: real[b, t, d], pos: int[b, t], seg: int[b, t], prompt: int[b, t]) -> real[b, t, d] {
    let (ks, vs, ps, ss, ms) = history((dot(x, wk, d), dot(x, wv, d), pos, seg, prompt), t -> s)
    let same = expand(seg, s) == ss
    let inside = expand(prompt, s) == 1 & ms == 1
    let mask = MASK
    return 0.1 * x + dot(attention(dot(x, wq, d), ks, vs, mask), wo, (g, e))
  }
}
model M(d = 8, vocab = 256, positions = 256) {
  param embed, head: real[vocab, d] = normal(1.0)
  param order: real[positions, d] = normal(0.5)
  sub layers[i < 2] = Attn(d, 2, d / 2)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t], prompt: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab) + gather(order, pos, positions)
    for l in layers carry x { x = l(x, pos, seg, prompt) }
    return dot(x, head, d)
  }
  loss(bt: Batch[b, t], prompt: int[b, t]) -> (f32, f32) {
    let l = xent(apply(bt.tok, bt.pos, bt.seg, prompt), bt.next)
    return (LOSS, sum(bt.w))
  }
  map hf {
    @embed = ("embed", [vocab, d])
    @head = ("head", [vocab, d])
    @order = ("order", [positions, d])
    @layers.#.wq = ("#.q", [d, (g, e)])
    @layers.#.wk = ("#.k", [d, (g, e)])
    @layers.#.wv = ("#.v", [d, (g, e)])
    @layers.#.wo = ("#.o", [(g, e), d])
    config { model_type = "TYPE" }
  }
}
data D { SOURCE }
recipe R {
  model = M(); data = D; seed = 3; run = 3 steps; batch = BATCH tokens; optimizer = adamw(lr = 1e-2); precision { compute = f32 }
  save = checkpoint("run")
}
"""
RIGHT = "same & (expand(pos, s) >= ps | inside)"
LONG = "".join(chr(32 + (7 * i * i + i) % 89) for i in range(150))
BATCHES = 'source s = batches("batches.safetensors")'
QA = 'source s = prompt("qa.jsonl"); pack best_fit(seq = 192 tokens)'
TEXT = 'source s = text("text.txt"); pack best_fit(seq = 16 tokens)'


def model(mask=RIGHT, loss="sum(l * bt.w)", source=TEXT, batch=32, kind="prefix"):
    return MODEL.replace("MASK", mask).replace("LOSS", loss).replace("SOURCE", source).replace("BATCH", str(batch)).replace("TYPE", kind)


# name: allowed masks, and whether they are proved; or the code of the error
PAST = "(expand(pos, s) >= ps | "
MASKS = (
    (RIGHT, True),
    (f"same & {PAST}expand(prompt, s) > 0 & ms > 0)", True),
    (f"same & {PAST}expand(prompt, s) == ms & ms != 0)", True),
    (f"same & {PAST}expand(prompt, s) + ms == 2)", False),
    (f"same & {PAST}ms == 1)", False),                          # the text behind the prompt sees it in any case
    ("same & expand(pos, s) >= ps", True),
    (f"same & not(ps > expand(pos, s) & not(inside))", True),
    (f"same & {PAST}inside & ps < 7)", True),
    (f"same & (expand(pos, s) >= ps & expand(pos, s) - ps < 9 | inside)", True),
    (f"{PAST}inside) & expand(seg, s) >= ss", "E0D4"),
    (f"expand(pos, s) >= ps & same | inside", "E0D4"),
    (f"same & expand(pos, s) >= ps | expand(pos, s) == 50 & ps == 50", "E0D4"),   # position 50 of any two documents
    (f"same & {PAST}expand(prompt, s) == 1)", "E0D0"),           # a position of the prompt sees the text behind it
    (f"same & {PAST}expand(prompt, s) == ms)", "E0D0"),          # 0 == 0
    (f"same & {PAST}inside | ps - expand(pos, s) == 1)", "E0D0"),
    (f"same & {PAST}expand(prompt, s) >= ms)", "E0D0"),
    (f"same & (expand(pos, s) > ps | inside)", "E0D7"),
)


def test_prompt_masks(run):
    for mask, expected in MASKS:
        code, err, found = causality(run, model(mask))
        if isinstance(expected, str):
            check(code == 1 and f'"code": "{expected}"' in err, f"{mask}: {err}")
        else:
            check(code == 0 and (found["proved"] == found["relations"]) == expected, f"{mask}: {found} {err}")


def test_prompt_random_masks(run):
    """of 10 random masks, 20 at night, those are accepted that never look ahead outside of a prompt, and hide no position from itself"""
    draw, outcomes, far = random.Random(7), set(), 16
    for i in range(20 if run.nightly else 10):
        text, mask = drawn(draw, 1)
        kind = draw.choice(("inside", "expand(prompt, s) == 1", "ms == 1"))
        text = text.replace("same", "(expand(seg, s) == ss)").replace("back", "(expand(pos, s) - ps)")
        text = f"({'expand(pos, s) >= ps' if i % 4 else 'same'} | {kind}) & ({text} | expand(pos, s) == ps) & same"
        text = text.replace("p ==", "expand(pos, s) ==").replace("p >=", "expand(pos, s) >=").replace("idiv(p,", "idiv(expand(pos, s),")

        def allowed(p, q, n, i=i, mask=mask, kind=kind):
            marked = {"inside": p < n and q < n, "expand(prompt, s) == 1": p < n, "ms == 1": q < n}[kind]
            return ((p >= q if i % 4 else True) or marked) and (mask(p, q, True) or p == q)

        triples = [(p, q, n) for p in range(far) for q in range(far) for n in (0, 1, 3, 9, far)]
        ahead = any(allowed(*x) for x in triples if x[1] > x[0] and not (x[0] < x[2] and x[1] < x[2]))
        code, err, found = causality(run, model(text))
        check((code == 0) == (not ahead), f"{text}: ahead {ahead}, {err}")
        outcomes.add((code, found and found["proved"] == found["relations"]))
    check({(0, True), (1, None)} <= outcomes, outcomes)


def reference(p, tok, pos, seg, prompt):
    """logits of one row in float64"""
    x = p["embed"][tok] + p["order"][pos]
    allowed = (seg[:, None] == seg) & ((pos[:, None] >= pos) | (prompt[:, None] * prompt == 1))
    for i in range(2):
        q, k, v = (np.einsum("td,dge->gte", x, p[f"layers.{i}.w{n}"]) for n in "qkv")
        a = np.where(allowed, np.einsum("gte,gse->gts", q, k) / np.sqrt(q.shape[-1]), -np.inf)
        a = np.exp(a - a.max(-1, keepdims=True))
        x = 0.1 * x + np.einsum("gts,gse,ged->td", a / a.sum(-1, keepdims=True), v, p[f"layers.{i}.wo"])
    return x @ p["head"].T


def test_prompt_values(run):
    """logits and loss of training are those of float64; generation continues as they do, with a prompt longer than a chunk"""
    texts = [(f"{'so ' * (i % 3)}give {i}: ", f"it is {i * 3}.") for i in range(30)] + [(LONG, "yes, it is.")]
    run.write("qa.jsonl", "".join(json.dumps(dict(prompt=q, completion=a)) + "\n" for q, a in texts))
    file = run.write("m.lm", model(source=QA, batch=192))
    run("run", file, "-q")
    p = {n: t.astype("f8") for n, t in load(run.path("run/step-000003/model.safetensors")).items()}
    for text in "give 7: ", LONG:
        ids = list(text.encode())
        out = [int(x) for x in run("generate", run.path("run"), "--prompt", text, "-n", 20, "--ids", "--temperature", 0).split()]
        all_ids, n = np.array(ids + out), len(ids)
        z = np.zeros(len(all_ids), "i8")
        logits = reference(p, all_ids, z + np.arange(len(z)), z, z + (np.arange(len(z)) < n))
        check(list(logits[n - 1 : -1].argmax(-1)) == out, f"{text[:9]}: {out}")
        b = dict(tok=all_ids, pos=z + np.arange(len(z)), seg=z, next=np.append(all_ids[1:], 0), prompt=z + (np.arange(len(z)) < n))
        b = {k: v.astype("<i4")[None, None] for k, v in b.items()}
        save(run.path("batches.safetensors"), b | dict(w=(np.arange(len(z)) >= n - 1).astype("<f4")[None, None]))
        of_run = model(source=BATCHES, batch=len(z)).replace("model = M()", "model = Trained").replace("data D", 'model Trained = M() from "run"\ndata D')
        ours = run.trace(run.write("b.lm", of_run), "--steps", 1)
        within("logits", distance(ours["logits"][0], logits), 2e-6)
        l = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, b["next"][0, 0][:, None], 1)[:, 0]
        within("loss", abs(ours["loss"][0] - l[n - 1 :].mean()), 2e-6)
    for kind, code in ("prefix", 0), ("llama", 1):
        named = model(source=QA, batch=192, kind=kind).replace("model = M()", "model = Trained").replace("data D", 'model Trained = M() from "run"\ndata D')
        error = run("export", run.write("e.lm", named), "-o", run.path(kind), status=code)
        check(not code or "error[E32E]: the model sees its prompt in both directions, and transformers' llama does not" in error, error)


def test_prompt_gradients(run):
    """logits, loss and gradients of rows of several documents, each with its own prompt, are those of PyTorch in float64"""
    import torch

    b, rng = random_batches(1, 2, 48, 256), np.random.default_rng(4)
    start = dict(embed=(256, 8), head=(256, 8), order=(256, 8))
    for i in range(2):
        start |= {f"layers.{i}.w{n}": (8, 2, 4) for n in "qkv"} | {f"layers.{i}.wo": (2, 4, 8)}
    start = {name: rng.normal(0, 0.5, shape).astype("<f4") for name, shape in start.items()}
    length = rng.integers(0, 9, (2, 48))                                            # of the prompt, by document
    marked = b["pos"][0] < np.take_along_axis(length, b["seg"][0], 1)
    inner = marked & np.roll(marked, -1, 1) & (np.roll(b["pos"][0], -1, 1) > 0)     # the next one is in the prompt too
    b |= dict(prompt=marked[None].astype("<i4"), w=b["w"] * ~inner)
    check(inner.any() and (marked[:, 1:] & (b["pos"][0, :, 1:] == 0)).any() and (length == 0).any(), "several prompts in a row")
    save(run.path("batches.safetensors"), b)
    save(run.path("start.safetensors"), start)
    text = model(source=BATCHES, batch=96).replace("model = M()", "model = Start; micro = 48 tokens")
    file = run.write("m.lm", text.replace("data D", 'model Start = M() from "start.safetensors"\ndata D'))
    ours = run.trace(file, "--values", "loss,logits,grads", "--steps", 1)

    p = {name: torch.tensor(x.astype("f8"), requires_grad=True) for name, x in start.items()}
    tok, pos, seg, following, prompt = (torch.tensor(b[n][0].astype("i8")) for n in ("tok", "pos", "seg", "next", "prompt"))
    w = torch.tensor(b["w"][0].astype("f8"))
    x = p["embed"][tok] + p["order"][pos]
    both = (prompt[:, :, None] == 1) & (prompt[:, None] == 1)
    hidden = ~((seg[:, :, None] == seg[:, None]) & ((pos[:, :, None] >= pos[:, None]) | both))
    for i in range(2):
        q, k, v = (torch.tensordot(x, p[f"layers.{i}.w{n}"], 1).transpose(1, 2) for n in "qkv")
        a = (q @ k.transpose(-1, -2) / 2).masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        x = 0.1 * x + torch.tensordot((a @ v).transpose(1, 2), p[f"layers.{i}.wo"], 2)
    z = x @ p["head"].T
    loss = (torch.nn.functional.cross_entropy(z.transpose(1, 2), following, reduction="none") * w).sum() / w.sum()
    loss.backward()
    within("loss", abs(ours["loss"][0] / loss.item() - 1), 2e-6)
    within("logits", distance(ours["logits"].reshape(z.shape), z.detach().numpy()), 2e-6)
    for name in p:
        within(name, distance(ours["grad." + name], p[name].grad.numpy()), 1e-5)


COMBINED = (("sum(expand(sum(l, t), t) * bt.w)", 1), ("sum((l - expand(mean(l, t), t)) * bt.w)", 1),
            ("sum(expand(sum(l), (b, t)) * bt.w)", 1), ("sum(sum(l * bt.w, t) / maximum(sum(bt.w, t), 1))", 0), ("sum(dot(l, bt.w, t))", 0))


def test_prompt_mistakes(run):
    """a loss that reads logits of a prompt without `w`, and data whose prompt is none, are errors"""
    for loss, code in ("sum(l)", 1), ("sum(l * f32(bt.seg >= 0))", 1), ("sum(bt.w * (l + 1))", 0), *COMBINED:
        error = run("check", run.write("m.lm", model(loss=loss)), status=code)
        check(("error[E0FF]" in error) == bool(code), error)
    text = model().replace("prompt: int[b, t]) -> (f32", "prompt: f32[b, t]) -> (f32").replace("bt.seg, prompt)", "bt.seg, int(prompt))")
    check("error[E0F2]: 'prompt'" in run("check", run.write("m.lm", text), status=1))
    text = model().replace("prompt", "kind")
    check("error[E275]: the data has no column 'kind'" in run("check", run.write("m.lm", text), status=1))
    b = random_batches(1, 1, 16, 24)
    good = np.zeros((1, 1, 16), "<i4")
    starts = np.flatnonzero(b["pos"][0, 0] == 0)
    good[0, 0, starts[0]] = 1
    file = run.write("b.lm", model(source=BATCHES, batch=16).replace("run = 3", "run = 1"))
    for change, w, ok in ((0, 1, True), (1, 1, False), (1, 0, True), (2, 1, False)):
        prompt, weights = good.copy(), b["w"].copy()
        prompt[0, 0, starts[0] + 1 : starts[0] + 2] = change
        weights[0, 0, starts[0]] *= w
        save(run.path("batches.safetensors"), b | dict(prompt=prompt, w=weights))
        remove(run.path("run"))
        error = run("run", file, "-q", status=0 if ok else 1)
        check(ok or "prompt is not 1 at the first positions" in error, error)
