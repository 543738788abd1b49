"""Conversations: trained tokens, the template in the run, its export and resume, long documents, lmc chat."""
import json, os, subprocess

from harness import ROOT, check

PROGRAM = """import "{root}/examples/llama.lm": Llama
data Talk {{ source s = {source}; pack best_fit(seq = 48 tokens); {more} }}
recipe R {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16)
  data = Talk; run = {steps} steps; batch = 96 tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = f32 }}
  save = checkpoint("run")
}}
"""
TALKS = [("ping", "pong"), ("tick", "tock")]


def program(run, source='chat("talk.jsonl", template = "plain")', more="", steps=2):
    with open(run.path("talk.jsonl"), "w") as f:
        for question, answer in TALKS:
            roles = ("user", "assistant")
            f.write(json.dumps({"messages": [{"role": r, "content": t} for r, t in zip(roles, (question, answer))]}) + "\n")
    return run.write("talk.lm", PROGRAM.format(root=ROOT, source=source, more=more, steps=steps))


def say(run, text, *args):
    p = run.start("chat", run.path("run"), *args, stdin=subprocess.PIPE)
    out, err = p.communicate(text)
    check(p.returncode == 0, err)
    return out


def test_answers(run):
    """a model learns its answers, through a pipe, with the commands of the conversation"""
    check("next: lmc chat " in run("run", program(run, steps=150)))
    for question, answer in TALKS:
        out = say(run, f"{question}\n", "-t", 0, "-n", 8, "--context", 128)
        check(out == f" {answer}\n", repr(out))
    out = run("generate", run.path("run"), "--chat", "ping", "--temperature", 0)
    check(out == " pong\n", repr(out))
    out = say(run, "ping\n/again\n/history\n/reset\n/system be\n/history\n//x\n/exit\nping\n", "-t", 0, "-n", 8, "--context", 128)
    lines = out.splitlines()
    check(lines[:2] == [" pong", " pong"], out)
    check(out.count('"content": "ping"') == 1 and out.count('"content": "be"') == 1, out)
    p = run.start("chat", run.path("run"), stdin=subprocess.PIPE)
    _, err = p.communicate("/nothing\n")
    check(p.returncode == 1 and "there is no command /nothing" in err, err)
    p = run.start("chat", run.path("run"), "-n", 8, "--context", 80, stdin=subprocess.PIPE)
    out, err = p.communicate("ping\n" * 5)
    check(p.returncode == 0 and out.count("\n") == 5 and "messages are no longer in the context" in err, out + err)


def test_few_positions(run):
    """a model with 64 positions: the conversation is cut to them, and a larger context is an error"""
    text = open(program(run)).read().replace("examples/llama.lm\": Llama", "examples/zoo/gpt2.lm\": GPT2")
    text = text.replace("Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16)", "GPT2(depth = 1, d = 32, heads = 2, positions = 64, vocab = 256)")
    run("run", run.write("talk.lm", text), "-q")
    p = run.start("chat", run.path("run"), "-t", 0, "-n", 8, stdin=subprocess.PIPE)
    out, err = p.communicate("ping\n" * 5)
    check(p.returncode == 0 and "messages are no longer in the context" in err, out + err)
    p = run.start("chat", run.path("run"), "--json", stdin=subprocess.PIPE)
    out, err = p.communicate("ping\n")
    check(p.returncode == 0 and len(json.loads(out)["messages"]) == 2, out + err)
    check("the model has 64 positions, fewer than --context 65" in run("chat", run.path("run"), "--context", 65, status=1))


def test_marks(run):
    """lmc data shows the trained text; prompts and completions"""
    out = run("data", program(run), "--show", 1)
    check("User: ping\\nAssistant:« pong\\n»" in out, out)
    x = json.loads(run("data", program(run), "--show", 1, "--json"))
    seg = x["rows"][0][0]
    check(seg["text"][slice(*seg["trained"][0])] == " pong\n" and len(seg["trained"]) == 1, seg)
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}]
    run.write("w.jsonl", json.dumps({"messages": talk}) + "\n")
    out = run("data", program(run, 'chat("w.jsonl", template = "plain")'), "--show", 1)
    check("Assistant: b\\nUser: c\\nAssistant:« d\\n»" in out, out)
    shared = [{"from": {"user": "human", "assistant": "gpt"}[m["role"]], "value": m["content"], "weight": m.get("weight")} for m in talk]
    run.write("w.jsonl", json.dumps({"conversations": shared}) + "\n")
    out = run("data", program(run, 'chat("w.jsonl", template = "plain")'), "--show", 1)
    check("Assistant: b\\nUser: c\\nAssistant:« d\\n»" in out, out)
    run.write("g.jinja", "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}")
    err = run("data", program(run, 'chat("w.jsonl", template = "g.jinja")'), status=1)
    check("message 1 has the weight 0, but the template marks the trained text by {% generation %}" in err, err)
    run.write("qa.jsonl", '{"q": "2+2=", "a": "4"}\n')
    out = run("data", program(run, 'prompt("qa.jsonl", prompt = "q", completion = "a")'), "--show", 1)
    check("seg 0: 5 tokens, 1 predicted: 2+2=«4»" in out, out)
    out = run("data", program(run, 'prompt("qa.jsonl", prompt = "q", completion = "a", template = "plain")'), "--show", 1)
    check("User: 2+2=\\nAssistant:« 4\\n»" in out, out)


def test_completions_then_chat(run):
    """after training on completions, lmc chat uses the tokenizer's template; without one it says what to do"""
    file = program(run, 'prompt("talk.jsonl", prompt = "q", completion = "a")')
    run.write("talk.jsonl", '{"q": "ping", "a": "pong"}\n')
    run("run", file, "-q")
    err = run("chat", run.path("run"), status=1)
    check("it was not trained on conversations" in err and "lmc generate --prompt" in err, err)
    run.write("t/chat_template.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}")
    run("tokenizer", "train", run.path("talk.jsonl"), "--field", "q", "--vocab", 257, "--out", run.path("t/tokenizer.json"))
    run("run", run.write("talk.lm", open(file).read().replace("pack", 'tokenizer = bpe("t/tokenizer.json"); pack').replace("e = 16", "e = 16, vocab = 257")), "-q", "--out", run.path("b"))
    p = run.start("chat", run.path("b"), "-n", 4, stdin=subprocess.PIPE)
    out, err = p.communicate("ping\n")
    check(p.returncode == 0 and out.endswith("\n"), err)


def test_markers_of_no_token(run):
    """a template whose markers the tokenizer does not have is named; one without markers, and a tokenizer that has them, are not"""
    said = "warning[W21D]: the template ends answers with <|im_end|>, which is not a special token of this tokenizer"
    check(said in run.result("data", program(run, 'chat("talk.jsonl", template = "chatml")'))[2])
    check("W21D" not in run.result("data", program(run, 'chat("talk.jsonl", template = "plain")'))[2])
    tokenizer = run.write("t/tokenizer.json", "")
    run("tokenizer", "train", run.write("t.txt", "ping"), "--vocab", 257, "--out", tokenizer)
    made = json.load(open(tokenizer))
    made["added_tokens"] += [{"id": 257 + i, "content": x, "special": True} for i, x in enumerate(["<|im_start|>", "<|im_end|>"])]
    json.dump(made, open(tokenizer, "w"))
    file = program(run, 'chat("talk.jsonl", template = "chatml")')
    code, out, err = run.result("data", run.write("special.lm", open(file).read().replace("pack", 'tokenizer = bpe("t/tokenizer.json"); pack')))
    check(code == 0 and "W21D" not in err, err)


def test_template_in_run(run):
    """the run keeps the template; export writes it; another one is another run"""
    run.write("my.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}")
    file = program(run, 'chat("talk.jsonl", template = "my.jinja")')
    run("run", file, "-q")
    text = open(run.path("run", "chat_template.jinja")).read()
    check(text == open(run.path("my.jinja")).read())
    run.write("my.jinja", text.replace("</>", "</x>"))
    err = run("run", program(run, 'chat("talk.jsonl", template = "my.jinja")', steps=4), status=1)
    check("it was trained with another chat template; the content of chat_template.jinja has changed" in err, err)
    run("run", program(run, 'chat("talk.jsonl", template = "my.jinja")', steps=4), "-q", "--change", "data.source")
    run.write("my.jinja", "{% include 'x' %}")
    for command in "check", "data":
        err = run(command, program(run, 'chat("talk.jsonl", template = "my.jinja")'), status=1)
        check("talk.lm:2:" in err and "error[E264]: cannot use the chat template: my.jinja:1: {% include %} is unsupported" in err, err)
    err = run("data", program(run, 'chat("talk.jsonl")'), status=1)
    check("error[E264]: cannot use the chat template: none comes with the tokenizer" in err, err)


def test_long(run):
    """long conversations: an error by default, left out, or cut"""
    TALKS.append(("why?" * 3, "because " * 9))
    try:
        err = run("data", program(run), status=1)
        check("is longer than a row of 48: `long = drop` leaves out such documents" in err, err)
        check("talk.lm:2:29: error[E214]" in err and "(document 3 of source s, the only one)" in err, err)
        TALKS.append(TALKS[-1])
        err = run("data", program(run), status=1)
        TALKS.pop()
        check("(document 3 of source s, the first of 2)" in err, err)
        code, out, err = run.result("data", program(run, more="long = drop;"))
        check(code == 0 and "1 documents of more than 48 tokens are left out (long = drop)" in err, err)
        run.write("long.txt", "x" * 100)
        err = run("data", program(run, more='long = drop; source w = text("long.txt"); mix = (s = 1, w = 1);'), status=1)
        check("source w has a weight in the mix but no row to train on: `long` leaves out its 1 documents of more than 48 tokens" in err, err)
        code, out, err = run.result("data", program(run, more="long = cut;"), "--show", 3)
        check(code == 0 and "1 documents of more than 48 tokens are cut" in err and "« because because " in out, out + err)
    finally:
        TALKS.pop()


def test_bad_conversations(run):
    """a conversation that the template refuses is an unusable document"""
    file = program(run)
    with open(run.path("talk.jsonl"), "a") as f:
        f.write('{"messages": [{"role": "me", "content": "x"}]}\n{"text": 1}\n{"messages": [{"role": "user", "content": "x"}]}\n'
                '{"messages": [{"role": "user", "content": null}, {"role": "assistant", "content": "x"}]}\n'
                '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x", "weight": "0"}]}\n'
                '{"messages": [{"role": "user", "content": null, "tool_calls": [], "refusal": ""}, {"role": "assistant", "content": "x"}]}\n')
    err = run("data", file, status=1)
    for line, why in ((3, "the template refuses the conversation: the template plain has no role me"), (4, 'no field "messages"'), (5, "nothing to train on"),
                      (6, 'message 0 has no "content"'), (7, 'message 1 has a "weight" that is neither 0 nor 1'),
                      (8, 'message 0 has no "content"')):
        check(f"talk.jsonl:{line}: " in err and why in err, err)


ZOO = """import "{root}/examples/zoo/qwen3.lm": Qwen3
data Talk {{ source s = chat("talk.jsonl", template = "chatml"); pack best_fit(seq = 96 tokens) }}
recipe R {{
  model = Qwen3(depth = 1, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 256)
  data = Talk; run = 2 steps; batch = 96 tokens; save = checkpoint("run")
}}
"""


def test_export(run):
    """an exported model has the template in both of its files, and an imported one keeps it"""
    program(run)
    run("run", run.write("zoo.lm", ZOO.format(root=ROOT)), "-q")
    run("export", run.path("run"), "-o", run.path("hf"))
    text = open(run.path("run", "chat_template.jinja")).read()
    check("<|im_start|>" in text and text == open(run.path("hf", "chat_template.jinja")).read())
    check(json.load(open(run.path("hf", "tokenizer_config.json")))["chat_template"] == text)
    run("import", "hf", run.path("hf"), "-o", run.path("base"))
    check(open(run.path("base", "chat_template.jinja")).read() == text)
    p = run.start("chat", run.path("base"), "-n", 2, "--context", 128, stdin=subprocess.PIPE)
    out, err = p.communicate("ping\n")
    check(p.returncode == 0 and out.endswith("\n"), err)
