"""Encoder-decoder models: `apply` reads columns that have no positions, here the tokens of a source text. T5 and BART: test_zoo.py."""
import json
import os
import re

import numpy as np

from harness import check, distance, load, random_batches, remove, save, within

MODEL = """import std.nn: rmsnorm, attention, xent
block Enc(d, heads) {
  dim g = heads, e = d / heads
  param n: real[d] = ones
  param wq, wk, wv: real[d, g, e] = normal(0.3)
  param wo: real[g, e, d] = normal(0.3)
  apply(x: real[b, m, d], seg: int[b, m]) -> real[b, m, d] {
    let y = rmsnorm(x, n)
    let (k, v) = rename((dot(y, wk, d), dot(y, wv, d)), m -> s)
    return x + dot(attention(dot(y, wq, d), k, v, expand(seg, s) == rename(seg, m -> s)), wo, (g, e))
  }
}
block Dec(d, heads) {
  dim g = heads, e = d / heads
  param n1, n2: real[d] = ones
  param wq, wk, wv, xq, xk, xv: real[d, g, e] = normal(0.3)
  param wo, xo: real[g, e, d] = normal(0.3)
  apply(x: real[b, t, d], y: real[b, m, d], pos: int[b, t], seg: int[b, t], source_seg: int[b, m]) -> real[b, t, d] {
    let z = rmsnorm(x, n1)
    let (k, v, ps, ss) = history((dot(z, wk, d), dot(z, wv, d), pos, seg), t -> s)
    let u = x + dot(attention(dot(z, wq, d), k, v, expand(pos, s) >= ps & expand(seg, s) == ss), wo, (g, e))
    let q = dot(rmsnorm(u, n2), xq, d)
    return u + dot(attention(q, dot(y, xk, d), dot(y, xv, d), expand(seg, m) == source_seg), xo, (g, e))
  }
}
model Pair(depth = 2, d = 16, heads = 2, vocab = 256, positions = 256) {
  param embed, head: real[vocab, d] = normal(0.5)
  param order: real[positions, d] = normal(0.5)
  sub encoder[i < depth] = Enc(d, heads)
  sub decoder[i < depth] = Dec(d, heads)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t], source: int[b, m], source_pos: int[b, m], source_seg: int[b, m]) -> real[b, t, vocab] {
    let y = gather(embed, source, vocab) + gather(order, source_pos, positions)
    for l in encoder carry y { y = l(y, source_seg) }
    let x = gather(embed, tok, vocab) + gather(order, pos, positions)
    for l in decoder carry x { x = l(x, y, pos, seg, source_seg) }
    return dot(x, head, d)
  }
  loss(bt: Batch[b, t], source: int[b, m], source_pos: int[b, m], source_seg: int[b, m]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg, source, source_pos, source_seg), bt.next) * bt.w), sum(bt.w))
  }
}
data D { SOURCE }
recipe R {
  model = Pair(); data = D; seed = 3; run = 4 steps; batch = BATCH tokens; optimizer = adamw(lr = 1e-2); precision { compute = f32 }
  save = checkpoint("run"); MORE
}
"""
BATCHES = 'source s = batches("batches.safetensors")'


def model(source=BATCHES, batch=32, more=""):
    return MODEL.replace("SOURCE", source).replace("BATCH", str(batch)).replace("MORE", more)


def batches(steps=4, rows=2, seq=16, long=12):
    """rows of packed documents, each with a part of a row of sources; the last two tokens of that row are padding"""
    rng, b = np.random.default_rng(5), random_batches(steps, rows, seq, 256)
    seg = np.full((steps, rows, long), -1, "<i4")
    for s in range(steps):
        for r in range(rows):
            docs = b["seg"][s, r].max() + 1
            seg[s, r, : long - 2] = np.sort(np.append(np.arange(docs), rng.integers(0, docs, max(0, long - 2 - docs))))[: long - 2]
    first = np.argmax(seg[..., None] == seg[..., None, :], -1)
    pos = np.where(seg < 0, 0, np.arange(long) - first).astype("<i4")
    return b | dict(source=np.where(seg < 0, 0, rng.integers(0, 256, seg.shape)).astype("<i4"), source_pos=pos, source_seg=seg)


def norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w


def attend(q, k, v, allowed):
    a = np.where(allowed, np.einsum("tge,sge->gts", q, k) / np.sqrt(q.shape[-1]), -np.inf)
    a = np.where(allowed.any(-1)[:, None], np.exp(a - np.maximum(a.max(-1, keepdims=True), -1e9)), 1)
    return np.einsum("gts,sge->tge", a / a.sum(-1, keepdims=True), v)


def reference(p, tok, pos, seg, source, source_pos, source_seg):
    """logits of one row in float64"""
    def sub(name, x, w):
        return np.einsum("td,dge->tge", x, p[name + w])

    y = p["embed"][source] + p["order"][source_pos]
    for n in "encoder.0.", "encoder.1.":
        z = norm(y, p[n + "n"])
        o = attend(sub(n, z, "wq"), sub(n, z, "wk"), sub(n, z, "wv"), source_seg[:, None] == source_seg)
        y = y + np.einsum("tge,ged->td", o, p[n + "wo"])
    x = p["embed"][tok] + p["order"][pos]
    for n in "decoder.0.", "decoder.1.":
        z = norm(x, p[n + "n1"])
        o = attend(sub(n, z, "wq"), sub(n, z, "wk"), sub(n, z, "wv"), (seg[:, None] == seg) & (pos[:, None] >= pos))
        x = x + np.einsum("tge,ged->td", o, p[n + "wo"])
        o = attend(sub(n, norm(x, p[n + "n2"]), "xq"), sub(n, y, "xk"), sub(n, y, "xv"), seg[:, None] == source_seg)
        x = x + np.einsum("tge,ged->td", o, p[n + "xo"])
    return x @ p["head"].T


NAMES = "tok", "pos", "seg", "source", "source_pos", "source_seg"


def loss_of(p, b):
    total = 0
    for r in range(b["tok"].shape[0]):
        z = reference(p, *(b[n][r] for n in NAMES))
        z = z - z.max(-1, keepdims=True)
        l = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, b["next"][r][:, None], 1)[:, 0]
        total += (l * b["w"][r]).sum()
    return total / b["w"].sum()


def test_encdec_values(run):
    """the loss and its gradient are those of float64, over packed documents that see their own source only"""
    b = batches()
    save(run.path("batches.safetensors"), b)
    file = run.write("m.lm", model())
    start = run.trace(file, "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    p = {n.removeprefix("final."): np.array(v, "f8") for n, v in start.items()}
    found = run.trace(file, "--values", "loss,grads,logits", "--steps", "1")
    one, draw = {n: x[0] for n, x in b.items()}, np.random.default_rng(2)
    logits = np.stack([reference(p, *(one[n][r] for n in NAMES)) for r in range(2)])
    known = one["seg"] >= 0
    within("logits", distance(found["logits"].reshape(logits.shape)[known], logits[known]), 2e-6)
    within("loss", abs(found["loss"][0] - loss_of(p, one)), 2e-6)
    for name in "encoder.1.wk", "decoder.0.xk", "decoder.1.wq", "embed":   # along a random direction
        by = draw.normal(size=p[name].shape) * 1e-5
        up, down = (loss_of(p | {name: p[name] + sign * by}, one) for sign in (1, -1))
        exact, scale = (up - down) / 2, np.linalg.norm(found["grad." + name]) * np.linalg.norm(by)
        within(f"gradient of {name}", abs((found["grad." + name] * by).sum() - exact) / scale, 3e-5)


def greedy(run, p, source, prompt, n):
    ids, pos = list(prompt), np.arange(len(source))
    for _ in range(n):
        z = np.arange(len(ids))
        ids.append(int(reference(p, np.array(ids), z, 0 * z, np.array(source), pos, 0 * pos)[-1].argmax()))
    return ids[len(prompt):]


def plan(run, file):
    """the operations of each function after pass `once`, and the steps of its plan"""
    ir = run("compile", file, "-o", run.path("plan"), "--print-after", "once")
    steps = open(run.path("plan/plan.txt")).read()
    pick = lambda text, name: re.search(rf"^func @?{name}\b.*?(?=^func |\Z)", text, re.M | re.S)[0]
    return {name: (pick(ir, name), pick(steps, name)) for name in ("request", "prefill", "decode")}


def test_encdec_generate(run):
    """greedy tokens of training's weights are those of float64; the encoder and the keys and values that the decoder reads of it are
    computed once for each request"""
    save(run.path("batches.safetensors"), batches(long=40))
    sample = 'sample { every = 4 steps; prompt = "a"; source = "some text"; n = 6 tokens; temperature = 0 }'
    file = run.write("m.lm", model(more=sample))
    out = run("run", file).split("sample after step 4:\n")[1].split("\n\ndone")[0]
    p = {n: t.astype("f8") for n, t in load(run.path("run/step-000004/model.safetensors")).items()}
    check(out.encode("latin-1", "replace")[:1] == b"a", out)
    prompt, expected = list(b"a"), {}
    for source in (list(range(3, 40)), list(b"some text"), [7]):
        joined = ",".join(map(str, source))
        ours = run("generate", run.path("run"), "--source-ids", joined, "--prompt-ids", "97", "--ids", "-n", 9, "-t", 0).split()
        check(list(map(int, ours)) == greedy(run, p, source, prompt, 9), f"{source}: {ours}")
        expected[len(source)] = ours
    check(len(set(map(tuple, expected.values()))) > 1, f"the source matters: {expected}")
    text = run("generate", run.path("run"), "--source", "some text", "--prompt", "a", "--ids", "-n", 9, "-t", 0).split()
    check(text == expected[9], text)
    z = np.arange(9, dtype="<i4")
    save(run.path("one.safetensors"), dict(source=np.array([list(b"some text")], "<i4"), source_pos=z[None], source_seg=0 * z[None]))
    check(run("generate", run.path("run"), "--columns", run.path("one.safetensors"), "--prompt", "a", "--ids", "-n", 9, "-t", 0).split() == text)
    functions = plan(run, file)
    once, again = functions["request"][0], functions["prefill"][0] + functions["decode"][0]
    check("@encoder.wk" in once and "@decoder.xk" in once and "retain" in once and "@decoder.xq" not in once, once)
    check("@encoder" not in again and "@decoder.xk" not in again and "@decoder.xv" not in again and "source" not in again.split("{")[0], again)
    for kind in "prefill", "decode":   # the caches are read in place
        check(not re.search(r"copy [^>\n]*cache\[", functions[kind][1]), functions[kind][1])


def test_encdec_mistakes(run):
    """what a request lacks or has too much of is an error, and so are columns with positions"""
    save(run.path("batches.safetensors"), batches())
    run("run", run.write("m.lm", model()), "-q")
    for args, message in (
        (("--prompt", "a"), "the model takes the column 'source': give --source TEXT"),
        (("--prompt", "a", "--source", ""), "the source is empty"),
        (("--prompt", "a", "--source-ids", "1,256"), "column 'source' indexes a table of 256 rows, and the request holds 256"),
        (("--prompt", "a", "--source", "x" * 300), "column 'source_pos' indexes a table of 256 rows"),
        (("--prompt", "a", "--source", "a", "--source-ids", "1"), "give one of --source TEXT"),
    ):
        check(message in run("generate", run.path("run"), *args, status=1), message)
    error = run("chat", run.path("run"), status=1)
    check("Pair is an encoder-decoder model" in error and "use lmc generate with --source" in error, error)
    z = np.zeros((1, 4), "<i4")
    for tensors, message in (
        (dict(source=z, source_pos=z), "the model takes the column 'source_seg', which the given columns lack"),
        (dict(source=z, source_pos=z, source_seg=z[:, :3]), "error[E0F3]"),
        (dict(source=z.astype("<f4")), "source is F32, and a column of `apply` of type int"),
        (dict(source=np.zeros((2, 4), "<i4")), "source is not one row"),
        (dict(other=z), "the model has no column 'other'"),
    ):
        save(run.path("one.safetensors"), tensors)
        error = run("generate", run.path("run"), "--prompt", "a", "--columns", run.path("one.safetensors"), status=1)
        check(message in error, error)
    sample = 'sample { every = 4 steps; prompt = "a"; n = 6 tokens }'
    check("error[E0DA]" in run("run", run.write("s.lm", model(more=sample)), status=1))
    long = sample.replace("n =", f'source = "{"x" * 13}"; n =')
    error = run("run", run.write("s.lm", model(more=long)), status=1)
    check("s.lm:45:" in error and "error: the source has 13 tokens, and a row of the data 12" in error, error)


LINES = [(f"{'very ' * (i % 4)}item {i}: {chr(65 + i % 26) * (i % 7 + 1)}", f"<{i % 10}{'ab' * (i % 6)}>") for i in range(60)]
SEQ2SEQ = 'source s = seq2seq("lines.jsonl", source = "q", target = "a", start = "\\n"); pack best_fit(seq = 24 tokens, source = 64 tokens)'

WORDS = dict(version="1.0", added_tokens=[dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
                                          for i, t in enumerate(("[UNK]", "[PAD]"))],
             pre_tokenizer=dict(type="BertPreTokenizer"), decoder=dict(type="WordPiece", prefix="##", cleanup=True),
             model=dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100,
                        vocab={"[UNK]": 0, "[PAD]": 1, "x": 2}))


def lines(run, pairs=LINES):
    run.write("lines.jsonl", "".join(json.dumps(dict(q=q, a=a)) + "\n" for q, a in pairs))


def test_encdec_seq2seq(run):
    """each target is in one row, behind the start token, with the tokens of its source beside it: the losses of an epoch are those
    of the documents one by one; generation begins with the start token"""
    lines(run)
    sample = 'sample { every = 1 epochs; source = "item 3: D"; n = 5 tokens; temperature = 0 }'   # a prompt that is the start token
    text = model(source=SEQ2SEQ, batch=24, more=sample).replace("run = 4 steps", "run = 1 epochs").replace("1e-2", "0")
    file = run.write("m.lm", text.replace("    return (sum(xent", "    emit tokens = sum(bt.w)\n    return (sum(xent"))
    out = run("run", file)
    check(out.rstrip().endswith(f"next: lmc generate {run.path('run')} --source 'item 3: D'") and "sample after step" in out, out)
    steps = [json.loads(line) for line in open(run.path("run/metrics.jsonl"))]
    folder = next(f for f in os.listdir(run.path("run")) if f.startswith("step-"))
    p = {n: t.astype("f8") for n, t in load(run.path("run", folder, "model.safetensors")).items()}
    total, tokens = 0, 0
    for q, a in LINES:
        source, ids = np.frombuffer(q.encode(), "u1").astype("i8"), np.array([10, *a.encode()])
        z, at = np.zeros(len(ids) - 1, "i8"), np.arange(len(source))
        logits = reference(p, ids[:-1], z + np.arange(len(z)), z, source, at, 0 * at)
        total += (np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(z)), ids[1:]]).sum()
        tokens += len(z)
    check(sum(s["tokens"] for s in steps) == tokens, f"{steps} and {tokens} tokens")
    within("the sum of the losses", abs(sum(s["loss"] * s["tokens"] for s in steps) / total - 1), 2e-6)
    check(len(steps) < 40, f"{len(steps)} rows of 60 documents")
    shown = run("data", file, "--show", 100)
    for q, a in LINES:
        target = f": {len(a) + 1} tokens, {len(a)} predicted: \\n«{a}»\n"
        check(f"{target}    source: {len(q)} tokens: {q}\n" in shown, f"{target}{q}\n{shown}")
    rows = json.loads(run("data", file, "--show", 100, "--json"))["rows"]
    pairs = [(x["source"]["text"], x["text"][1:]) for row in rows for x in row]
    check(sorted(pairs) == sorted(LINES), f"{pairs}")
    ours = run("generate", run.path("run"), "--source", "item 3: D", "--ids", "-n", 5, "-t", 0).split()
    check(list(map(int, ours)) == greedy(run, p, list(b"item 3: D"), [10], 5), ours)
    text = run("generate", run.path("run"), "--source", "item 3: D", "-n", 5, "-t", 0)
    check(not text.startswith("\n") and text.strip("\n") == bytes(map(int, ours)).decode("utf-8", "replace").strip("\n"), f"{text!r}")


def test_encdec_seq2seq_mistakes(run):
    """documents that are too long for one of the two rows, a start of several tokens, an empty text, and mixed sources"""
    lines(run, LINES[:4] + [("x" * 65, "y")])

    def ran(change=("", ""), more=""):
        remove(run.path("run"))
        text = model(source=f"{SEQ2SEQ.replace(*change)}; {more}", batch=48).replace("run = 4", "run = 1")
        return run.result("run", run.write("m.lm", text), "-q")

    code, out, err = ran((', start = "\\n"', ""), 'long = drop')
    check(code == 1 and "E248" in err and "E276" not in err, err)   # pack's `source` is no further error
    for change, more, status, message in (
        (("", ""), "", 1, "a source of 65 tokens with a target of 2 is longer than a row of 64 and 24"),
        (("", ""), "long = drop", 0, "1 documents of more than 24 tokens, or with a source of more than 64, are left out"),
        (("", ""), "long = cut", 0, "1 documents of more than 24 tokens, or with a source of more than 64, are cut"),
        (("", ""), "long = split", 1, "error[E272]"),
        (("\\n", "no"), "long = drop", 1, 'error[E277]: start = "no" is 2 tokens'),
        (("", ""), 'source t = text("t.txt"); long = drop', 1, "error[E271]"),
        (('seq2seq("lines.jsonl", source = "q", target = "a", start = "\\n")', 'text("t.txt")'), "", 1, "error[E276]"),
        (('seq2seq("lines.jsonl", source = "q", target = "a", start = "\\n")', 'prompt("lines.jsonl", prompt = "q", completion = "a")'),
         "", 1, "error[E276]"),
    ):
        code, out, err = ran(change, more)
        check(code == status and message in err, f"{message}: {err}")
        if "E277" in message:
            check(message in run("check", run.path("m.lm"), status=1), "lmc check finds it, too")
    text = model(source=SEQ2SEQ, batch=48).replace(", source_seg: int[b, m]) -> real[b, t, vocab]", ") -> real[b, t, vocab]")
    text = text.replace(", source_seg: int[b, m]) -> (f32", ") -> (f32").replace("source_pos, source_seg)", "source_pos)").replace("source_seg) }", "source) }")
    check("m.lm:31:57: error[E278]" in run("check", run.write("m.lm", text), status=1))
    lines(run, [("", "y"), ("x", "y")])
    check("the source is empty" in ran()[2])
    lines(run, [("x", ""), ("x", "y")])
    check("the target is empty" in ran()[2])
    bert = dict(WORDS, normalizer=dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True))
    run.write("words.json", json.dumps(bert))
    for pair, message in ((" ", "x"), "the source has no tokens"), (("x", " "), "the target has no tokens"):   # the normalizer removes spaces
        lines(run, [pair])
        check(message in ran(("\\n", "[PAD]"), 'tokenizer = wordpiece("words.json")')[2], message)
