"""Evaluations: perplexity and bits per byte are computed from the tokens alone, for any further terms of the loss; compared with NumPy in float64."""
import json, math

import numpy as np
from harness import ROOT, check, load, within

TEXT = "the quick brown fox jumps over the lazy dog, and over it"
MODEL = """import std.nn: rmsnorm, xent
block Layer(d) {{
  param w: real[d] = normal(0.5)
  apply(x: real[b, t, d]) -> (real[b, t, d], f32) {{ return (rmsnorm(x + x * w, w), mean(f32(w * w))) }}
}}
model M(d = 8, vocab = 256) {{
  param embed: real[vocab, d] = normal(0.5)
  sub layers[i < 3] = Layer(d)
  run(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> (real[b, t, vocab], f32) {{
    let x = gather(embed, tok, vocab)
    let pull = f32(0)
    for l in layers carry x, pull {{
      let (y, more) = l(x)
      x = y
      pull = pull + more
    }}
    return (dot(x, embed, d), pull)
  }}
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let (z, _) = run(tok, pos, seg)
    return z
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    {loss}
  }}
}}
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(10 docs); pack best_fit(seq = 64 tokens) }}
recipe R {{
  model = M(); data = D; run = 3 steps; batch = 4 seqs; optimizer = adamw(lr = 1e-2); seed = 3; precision {{ compute = f32 }}
  eval dev {{ data = D.dev; every = 3 steps; metrics = [loss, perplexity, bits_per_byte] }}
}}
"""
# a penalty on the scale of logits and on parameters, smoothed targets; and a weight of 0.5, so that the mean is not over tokens
AUX = """let (z, pull) = run(bt.tok, bt.pos, bt.seg)
    let zf = f32(z)
    let lse = log(sum(exp(zf), vocab))
    let l = 0.9 * xent(z, bt.next) + 0.1 * (lse - mean(zf, vocab)) + 0.01 * lse * lse
    let n = sum(bt.w) * 2
    return (sum(l * bt.w) + 0.5 * pull * n, n)"""
PLAIN = "return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))"


def expected(path):
    """loss and perplexity of the text under the weights of a checkpoint"""
    p = {k: v.astype("f8") for k, v in load(path).items()}
    text = np.frombuffer(TEXT.encode(), np.uint8)
    x, pull = p["embed"][text[:-1]], 0
    for i in range(3):
        w = p[f"layers.{i}.w"]
        x = x + x * w
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w
        pull += (w * w).mean()
    z = x @ p["embed"].T
    lse = np.log(np.exp(z).sum(1))
    xent = lse - z[np.arange(len(z)), text[1:]]
    whole = 0.9 * xent + 0.1 * (lse - z.mean(1)) + 0.01 * lse * lse
    return whole.mean() / 2 + 0.5 * pull, xent.mean()


def test_perplexity_of_tokens(run):
    run.write("t.txt", "\n".join([TEXT] * 60))
    file = run.write("aux.lm", MODEL.format(loss=AUX))
    run("run", file, "-q", "--out", run.path("run"))
    loss, nats = expected(run.path("run/step-000003/model.safetensors"))
    check(abs(loss - nats) > 0.1, "the loss must differ from the cross-entropy")
    line = [json.loads(x) for x in open(run.path("run/metrics.jsonl"))][-1]
    now = json.loads(run("eval", run.path("run"), "--json"))["dev"]
    for got in (now, {k[4:]: v for k, v in line.items() if k.startswith("dev.")}):
        within("loss", abs(got["loss"] / loss - 1), 1e-5)
        within("perplexity", abs(got["perplexity"] / math.exp(nats) - 1), 1e-5)
        within("bits a byte", abs(got["bits_per_byte"] / (nats / math.log(2)) - 1), 1e-5)


def flop_lines(run, name, loss):
    plan = run.path(name)
    run("compile", run.write(name + ".lm", MODEL.format(loss=loss)), "-o", plan)
    text = open(plan + "/kernel.lmir").read()
    start = text.index("func @eval")
    body = text[start : text.find("\nfunc ", start + 1)] if "\nfunc " in text[start + 1 :] else text[start:]
    return body.count(" dot "), body.count(" loop ")


def test_logits_are_made_once(run):
    """the evaluation of a loss with further terms computes the model once"""
    run.write("t.txt", "\n".join([TEXT] * 60))
    for name, loss in (("plain", PLAIN), ("aux", AUX)):
        dots, loops = flop_lines(run, name, loss)
        check(dots == 1 and loops == 1, f"{name}: {dots} dots, {loops} loops of layers")


def test_metrics_need_logits(run):
    """a model without apply is trained and evaluated by its loss alone"""
    run.write("t.txt", "\n".join([TEXT] * 60))
    text = MODEL.format(loss=AUX)
    a, b = text.index("  apply(tok"), text.index("  loss(bt")
    file = run.write("none.lm", text[:a] + text[b:])
    for command in ("check", "run"):
        err = run(command, file, status=1)
        check("error[E0CE]: perplexity is computed from the logits, but M has no method 'apply'" in err, err)
    file = run.write("loss.lm", open(file).read().replace("[loss, perplexity, bits_per_byte]", "[loss]"))
    out = run("run", file, "--out", run.path("run"))
    check("dev loss" in out, out)
    out = run("eval", run.path("run"))
    check("perplexity" not in out and "loss" in out, out)
    check(json.loads(run("eval", run.path("run"), "--json"))["dev"]["perplexity"] is None, "the metric must be null")


ENDED = """import "{root}/examples/llama.lm": Llama
data Text {{ tokenizer = bpe("tok/tokenizer.json"); source s = text("t.txt", split = "\\n"); holdout dev = tail(20%); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 320); data = Text; run = 4 steps; batch = 128 tokens
  optimizer = adamw(lr = 3e-2); eval dev {{ data = Text.dev; every = 4 steps }}; save = checkpoint("run")
}}
"""


def test_end_of_document(run):
    """the run folder keeps tokenizer_config.json, which names the end-of-document token"""
    run.write("t.txt", "\n".join([TEXT] * 60))
    path = run.path("tok/tokenizer.json")
    run("tokenizer", "train", "--vocab", 280, "-o", run.write("tok/tokenizer.json", ""), run.path("t.txt"))
    vocabulary = json.load(open(path))
    end = dict(vocabulary["added_tokens"][0], id=len(vocabulary["model"]["vocab"]), content="<|im_end|>")
    vocabulary["added_tokens"].append(end)
    run.write("tok/tokenizer.json", json.dumps(vocabulary))
    run.write("tok/tokenizer_config.json", json.dumps({"eos_token": "<|im_end|>"}))
    run("run", run.write("ended.lm", ENDED.format(root=ROOT)), "-q")
    during = json.loads(open(run.path("run/metrics.jsonl")).readlines()[-1])["dev.loss"]
    after = json.loads(run("eval", run.path("run"), "--json"))["dev"]["loss"]
    within("the loss of the run and of an evaluation of its folder", abs(after / during - 1), 1e-12)
    run.write("tok/tokenizer_config.json", json.dumps({"eos_token": "<|gone|>"}))
    err = run("data", run.path("ended.lm"), status=1)
    check('tok/tokenizer.json has no token "<|gone|>", which eos_token of tokenizer_config.json names' in err, err)


def test_tokenizer_of_the_run(run):
    """eval, generate and export of a run refuse another tokenizer than the one that its checkpoint records"""
    run.write("t.txt", "\n".join([TEXT] * 60))
    train = lambda size, path: run("tokenizer", "train", "--vocab", size, "-o", run.write(path, ""), run.path("t.txt"))
    train(280, "tok/tokenizer.json")
    train(300, "other.json")
    run("run", run.write("ended.lm", ENDED.format(root=ROOT)), "-q")
    own = open(run.path("run/tokenizer.json")).read()
    commands = [("eval", run.path("run")), ("generate", run.path("run"), "--prompt-ids", "1,2", "-n", 1),
                ("export", run.path("run"), "-o", run.path("hf"))]
    for command in commands[:2]:
        run(*command)
    for name, text in (("tokenizer.json", open(run.path("other.json")).read()), ("tokenizer_config.json", '{"eos_token": "e"}')):
        run.write("run/tokenizer.json", own)
        run.write("run/" + name, text)
        for command in commands:
            err = run(*command, status=1)
            check("trained with another tokenizer" in err and f"run/{name} has changed" in err and "restore that file" in err, err)


def test_nothing_to_predict(run):
    """a part whose weights sum to 0: no metric has a value, the other parts are reported, and the exit status is 1"""
    weight = "let w = select(bt.tok == 113, bt.w, 0)\n    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * w), sum(w))"   # q
    text = run.write("t.txt", "the quick brown fox\n" * 8 + "zzzz zzzz zzzz zzzz\n" * 2)
    file = run.write("m.lm", MODEL.format(loss=weight).replace("sample(10 docs)", "tail(10%)").replace("t.txt", text)
                     .replace("eval dev", 'save = checkpoint("run")\n  eval dev'))
    out = run("run", file, "--out", run.path("run"))
    check("dev: the weights of its tokens sum to 0, so there is nothing to evaluate" in out, out)
    parts = ("eval", run.path("run"), "--on", "dev", "--on", "train")
    code, out, err = run.result(*parts)
    check(code == 1 and out.startswith("dev          nothing to predict\ntrain        loss ") and "part dev of the data has nothing to predict" in err, out + err)
    code, out, err = run.result(*parts, "--json")
    values = json.loads(out)
    check(code == 1 and values["dev"] == dict(tokens=18, weight=0, loss=None, bits_per_byte=None, perplexity=None), out)
    check(values["train"]["loss"] > 0 and "nothing to predict" in err, out + err)
