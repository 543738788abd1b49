"""Preference pairs: texts and messages, pairs that stay together in packed rows, long ones, DPO from the command line."""
import json, math, os, random, re

from harness import ROOT, check, folder_bytes, remove, within

PROGRAM = """import std.tune: logp, per_document, dpo, is_pair
import std.adapt: lora
import "{root}/examples/llama.lm": Llama
model Dpo(beta = 0.1) {{
  sub policy = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16) from "base"
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return policy(tok, pos, seg) }}
  loss(bt: Batch[b, t], {columns}) -> (f32, f32) {{
    let p = per_document(logp(policy(bt.tok, bt.pos, bt.seg), bt.next) * bt.w, bt.seg, n)
    let r = per_document(logp(policy.bare(bt.tok, bt.pos, bt.seg), bt.next) * bt.w, bt.seg, n)
    emit pairs = sum(is_pair(f32(prefer)))
    emit tokens = sum(f32(prefer) * per_document(bt.w, bt.seg, n)) {more}
    return (sum(dpo(p, r, beta) * is_pair(f32(prefer))), sum(is_pair(f32(prefer))))
  }}
}}
model Tuned = Dpo() with {{ adapt @policy.layers.*.attn.{{wq,wv}} = lora(rank = 4) }}
data Lines {{ source s = text("pairs.jsonl"); pack best_fit(seq = 64 tokens) }}
data Pairs {{ source s = {source}; pack {pack}; {data} }}
recipe Base {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16); data = Lines; run = 2 steps; batch = 128 tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = f32 }}; save = checkpoint("base")
}}
recipe R {{
  model = Tuned; data = Pairs; run = {steps} steps; batch = 256 tokens; optimizer = adamw(lr = 1e-2, decay = 0)
  precision {{ compute = f32 }}; save = checkpoint("run", every = 5 steps, keep = all)
}}
"""
TEXTS = [{"prompt": "Say a vowel:", "chosen": " a", "rejected": " bcd"}, {"prompt": "Say a digit:", "chosen": " 12", "rejected": " x"}]


def program(run, lines=TEXTS, source='pairs("pairs.jsonl")', pack="best_fit(seq = 64 tokens, docs = 4)", data="", columns="prefer: f32[b, n]", steps=5, more=""):
    run.write("pairs.jsonl", "".join(json.dumps(x) + "\n" for x in lines))
    return run.write("p.lm", PROGRAM.format(root=ROOT, source=source, pack=pack, data=data, columns=columns, steps=steps, more=more))


def shown(run, file, rows=100):
    """the rows, each a list of segments as (text, trained text)"""
    found = json.loads(run("data", file, "--recipe", "R", "--show", rows, "--json"))["rows"]
    return [[(s["text"], "".join(s["text"].encode()[a:b].decode() for a, b in s["trained"])) for s in row] for row in found]


def test_pairs_texts(run):
    """texts with and without a template, messages behind a prompt, and messages with a common beginning"""
    check(shown(run, program(run)) == [[("Say a vowel: a", " a"), ("Say a vowel: bcd", " bcd"), ("Say a digit: 12", " 12"), ("Say a digit: x", " x")]])
    say = lambda role, text: {"role": role, "content": text}
    lines = [{"prompt": "q", "chosen": "yes", "rejected": "no"},
             {"prompt": [say("user", "q"), say("assistant", "old"), say("user", "r")], "chosen": [say("assistant", "yes")], "rejected": [say("assistant", "no")]},
             {"chosen": [say("user", "q"), say("assistant", "same"), say("user", "r"), say("assistant", "yes")],
              "rejected": [say("user", "q"), say("assistant", "same"), say("user", "r"), say("assistant", "no")]}]
    file = program(run, lines, 'pairs("pairs.jsonl", template = "plain")', "best_fit(seq = 256 tokens, docs = 6)")
    row = shown(run, file)[0]
    check([t for _, t in row] == [" yes\n", " no\n"] * 3, row)
    check(row[2][0] == "User: q\nAssistant: old\nUser: r\nAssistant: yes\n", row)
    other = program(run, [{"question": "q", "good": "yes", "bad": "no"}], 'pairs("pairs.jsonl", prompt = "question", chosen = "good", rejected = "bad")')
    check(shown(run, other) == [[("qyes", "yes"), ("qno", "no")]])


def test_pairs_together(run):
    """the texts of each of 300 pairs are neighbors, the preferred one first, and no row has more than `docs`"""
    draw = random.Random(3)
    lines = [{"prompt": f"<{i}>", "chosen": "+" * draw.randint(1, 20), "rejected": "-" * draw.randint(1, 20)} for i in range(300)]
    rows = shown(run, program(run, lines, pack="best_fit(seq = 64 tokens, docs = 6)"), 400)
    seen = []
    for row in rows:
        check(len(row) % 2 == 0 and len(row) <= 6, row)
        for (first, good), (second, bad) in zip(row[::2], row[1::2]):
            check(first.split(">")[0] == second.split(">")[0] and set(good) == {"+"} and set(bad) == {"-"}, row)
            seen.append(int(first[1:].split(">")[0]))
    check(sorted(seen) == list(range(300)) and max(map(len, rows)) == 6, (len(seen), len(rows)))


def test_pairs_long(run):
    """a pair that is longer than a row stops, is left out, or loses the end of its longer text"""
    lines = TEXTS + [{"prompt": "p", "chosen": "c" * 70, "rejected": "r" * 10}, {"prompt": "p" * 40, "chosen": "c", "rejected": "r" * 30}]
    error = run("run", program(run, lines), "--recipe", "R", "-q", status=1)
    check("a pair of 82 tokens is longer than a row of 64" in error, error)
    check(len(shown(run, program(run, lines, data="long = drop"))) == 1)
    rows = shown(run, program(run, lines, data="long = cut"))
    check([("p" + "c" * 52, "c" * 52), ("p" + "r" * 10, "r" * 10)] in rows and len(rows) == 2, rows)   # of the other pair, no answer is left
    error = run("check", program(run, lines, data="long = split"), status=1)
    check("error[E272]" in error, error)


def test_pairs_vocabulary(run):
    """a vocabulary is not trained on pairs; the command that the error names trains one on their texts"""
    tokenizer = lambda x: program(run, [{"prompt": "p", "chosen": "the good answer " * 9, "rejected": "r"}], data=f"tokenizer = {x}")
    error = run("check", tokenizer("bpe(train = 300)"), "--recipe", "R", status=1)
    check("error[E263]" in error, error)
    command, name = re.search(r"lmc (tokenizer train .*?); then name it: (.*?\))", error).groups()
    run(*command.split(), cwd=run.folder)
    good, end = "the good answer " * 9, "<|endoftext|>"
    check(shown(run, tokenizer(name)) == [[("p" + good + end, good + end), ("pr" + end, "r" + end)]])


def test_pairs_dpo(run):
    """DPO starts from ln 2 and learns the order; columns of numbers and of integers, resumption byte by byte"""
    file = program(run, steps=20)
    run("run", file, "--recipe", "Base", "-q")
    run("run", file, "--recipe", "R", "-q")
    steps = [json.loads(line) for line in open(run.path("run/metrics.jsonl"))]
    steps = [s for s in steps if "pairs" in s]
    within("first loss", abs(steps[0]["loss"] - math.log(2)), 1e-6)
    check(steps[-1]["loss"] < 0.68 and all(s["pairs"] % 2 == 0 and s["tokens"] == s["pairs"] / 2 * (2 + 3 - 4 - 2) for s in steps), steps)
    out = run("eval", run.path("run"), "--on", "train")
    check("(loss over weight 2, 11 tokens)" in out, out)
    found = json.loads(run("eval", run.path("run"), "--on", "train", "--json"))["train"]
    check(found["weight"] == 2 and found["tokens"] == 11, found)
    whole = folder_bytes(run.path("run/step-000020"))
    remove(run.path("run/step-000020"))
    run("run", file, "--recipe", "R", "-q")
    check(folder_bytes(run.path("run/step-000020")) == whole)
    remove(run.path("run"))
    run("run", program(run, columns="prefer: int[b, n]", steps=20), "--recipe", "R", "-q")
    check(folder_bytes(run.path("run/step-000020"))["model.safetensors"] == whole["model.safetensors"])
    out = run.trace(program(run, columns="prefer: f32[b, n]", more="+ 0 * sum(bt.w)"), "--recipe", "R", "--values", "loss", "--steps", "1")
    within("traced loss", abs(out["loss"][0] - math.log(2)), 1e-6)


def test_pairs_export(run):
    """a policy is exported as the model that it is: its own names, sizes and values of config.json; a frozen sub is left out"""
    files = {}
    text = open(program(run, steps=2)).read().replace("e = 16)", "e = 16, theta = 500k)")
    policy = re.search("sub policy = .*", text)[0]
    file = run.write("e.lm", text.replace(policy, f"{policy}\n  {policy.replace('policy', 'other')}"))
    run("run", file, "--recipe", "Base", "-q")
    run("run", file, "--recipe", "R", "-q")
    for name in "base", "run":
        out = run("export", run.path(name), "-o", run.path(f"{name}-hf"))
        config = json.load(open(run.path(f"{name}-hf/config.json")))
        files[name] = re.findall(r"\d+ tensors", out), {k: v for k, v in config.items() if k != "max_position_embeddings"}
    check(files["run"] == files["base"] and files["run"][1]["rope_theta"] == 500000, files)


def test_pairs_export_of_two(run):
    """of two models that are trained together no config.json is written, and a step of more tokens than an epoch is named"""
    text = open(program(run, steps=2)).read()
    policy = re.search("sub policy = .*", text)[0]
    text = text.replace(policy, f"{policy}\n  {policy.replace('policy', 'other')}").replace("lora(rank = 4) }", "lora(rank = 4); train @other.** }")
    file = run.write("e.lm", text)
    run("run", file, "--recipe", "Base", "-q")
    code, _, err = run.result("run", file, "--recipe", "R", "-q")
    check(code == 0 and "warning[W21C]: a step takes 256 tokens, of which an epoch has 64" in err, err)
    code, out, err = run.result("export", run.path("run"), "-o", run.path("hf"))
    check(code == 0 and "policy and other are both trained" in err and not os.path.exists(run.path("hf/config.json")), out + err)


def test_pairs_mistakes(run):
    """each at its location"""
    texts = lambda **changes: [TEXTS[0] | changes]
    cases = (dict(lines=texts(rejected=None)), 'neither text nor messages in the field "rejected"'), \
        (dict(lines=[{"chosen": "a", "rejected": "b"}]), 'no text in the field "prompt"'), \
        (dict(lines=texts(chosen=[{"role": "assistant", "content": "a"}])), 'the messages in the field "chosen" need a template'), \
        (dict(lines=texts(chosen="a\0b")), "pairs.jsonl:1: contains the character NUL (U+0000), which no text may contain"), \
        (dict(lines=texts(chosen="")), "nothing to train on: an answer that is empty"), \
        (dict(lines=texts(prompt="", chosen="x")), "or one token without a prompt, which nothing predicts"), \
        (dict(pack="best_fit(seq = 64 tokens, docs = 3)"), "error[E273]: docs = 3 would part the two texts of a pair"), \
        (dict(pack="best_fit(seq = 64 tokens)"), "error[E274]: column 'prefer' has a value for each document of a row"), \
        (dict(columns="prefer: f32[b, n], reward: f32[b, n]"), 'pairs.jsonl:1: no number in the field "reward"'), \
        (dict(source='text("pairs.jsonl")'), "error[E275]: the data has no column 'prefer'"), \
        (dict(data='source t = text("pairs.jsonl")'), "error[E271]: source 't' has no pairs"), \
        (dict(source='pairs("pairs.jsonl", template = "tokenizer")'), "error[E264]")
    for changes, message in cases:
        error = run("run", program(run, **changes), "--recipe", "R", "-q", status=1)
        check(message in error, error)
    check("error[E274]" in run("check", program(run, pack="best_fit(seq = 64 tokens)"), status=1))
