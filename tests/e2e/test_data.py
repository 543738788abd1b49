"""Large texts: every document occurs once an epoch for any number of processes (tests/bench/data_bench.c)."""
import json, os, re, struct, subprocess

from harness import ROOT, check, small

PLAIN_BUILD = {"memory"}


def test_every_document_once(run):
    bench = os.path.join(os.path.dirname(run.lmc), "data_bench")
    file = run.path("docs.jsonl")
    subprocess.run([bench, "make", file, "0.002" if run.slow else "0.008"], check=True, stdout=subprocess.DEVNULL)
    p = subprocess.run([bench, "read", file, run.path("cache"), "256"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(p.returncode == 0, p.stdout)
    for workers in (1, 2, 4):
        check(re.search(rf"  {workers} workers: .* 0 documents missing, 0 twice, .*: every one once", p.stdout), p.stdout)


def test_memory(run):
    """memory does not grow with the size of the text"""
    bench = os.path.join(os.path.dirname(run.lmc), "data_bench")
    own = []
    for size in ("0.002", "0.02"):
        subprocess.run([bench, "make", run.path("docs.jsonl"), size], check=True, stdout=subprocess.DEVNULL)
        p = subprocess.run([bench, "read", run.path("docs.jsonl"), run.path("cache"), "256"], stdout=subprocess.PIPE, text=True)
        own.append(max(int(x) for x in re.findall(r"(\d+) MB private", p.stdout)))
    check(own[1] <= own[0] + 16, f"{own} MB")


BAD = """import "{root}/examples/llama.lm": Llama
data Lines {{ source s = jsonl("docs.jsonl"); pack best_fit(seq = 16 tokens); bad = {share} }}
recipe R {{ model = Llama(depth = 1, d = 16, ff = 16, heads = 2, kv = 1, e = 8); data = Lines; run = 2 steps; batch = 64 tokens; save = checkpoint("run") }}
"""
FAULTS = {3: b'{"text": "\xff\xfe"}', 10: b'{"text": "no end', 11: b"\x00\x00", 20: b'{"text": 7}', 21: b"[]", 40: b'{"id": 1}', 41: b'{"text": "a\\u0000"}',
          77: b'{"text": "' + b"x" * (33 << 20) + b'"}'}


def test_bad_rows(run):
    """unusable lines are reported with file and line; above the declared share the run does not start"""
    lines = [b'{"text": "a good document"}'] * 100
    for line, text in FAULTS.items():
        lines[line - 1] = text
    with open(run.path("docs.jsonl"), "wb") as f:
        f.write(b"\n".join(lines))
    strict, patient = (run.write(f"{name}.lm", BAD.format(root=ROOT, share=share)) for name, share in (("strict", "7%"), ("patient", "8%")))
    err = run("run", strict, status=1)
    check("strict.lm:2:31: error[E214]: invalid data: 8 of 100 documents cannot be used, more than the 7% that `bad` allows" in err, err)
    check("= help: fix those documents, or let data Lines leave out more of them: bad = " in err, err)
    for line in FAULTS:
        check(f"docs.jsonl:{line}: " in err, err)
    check(not os.path.exists(run.path("run")), "the run must not begin")
    code, _, err = run.result("run", patient, "-q")
    check(code == 0 and "8 of 100 documents are unusable and were left out" in err and "docs.jsonl:3: " in err and "= … and 4 more" in err, err)
    run.write("docs.jsonl", '{"id": 1, "body": "words"}\n' * 9)
    check('= help: name the field that holds the text: jsonl(…, field = "…")' in run("data", strict, status=1))


def test_batches_of_other_types(run):
    """a tensor of another type in a file of batches is refused, with the list of types"""
    file = small(run, steps=1)
    raw = open(run.path("batches.safetensors"), "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8 : 8 + n])
    for name, to in (("tok", "F32"), ("w", "I32")):
        text = json.dumps({**head, name: {**head[name], "dtype": to}}).encode().ljust(n)
        with open(run.path("batches.safetensors"), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + raw[8 + n :])
        err = run("run", file, status=1)
        check(f"{name} is {to}; a file of batches holds tok I32, pos I32, seg I32, next I32, w F32" in err, err)


def test_vocabulary_stops_early(run):
    """tokenizer train says when the text has fewer pairs than the vocabulary was asked to have, and how large it is"""
    text = run.write("t.txt", "some text here of words\n" * 300)
    code, out, err = run.result("tokenizer", "train", "--vocab", 5000, "-o", run.path("t.json"), text)
    size = len(json.load(open(run.path("t.json")))["model"]["vocab"])
    check(code == 0 and f"note: the vocabulary has {size} tokens, fewer than the 5000 that --vocab asks for" in err, err)
    code, out, err = run.result("tokenizer", "train", "--vocab", 260, "-o", run.path("t.json"), text)
    check(code == 0 and err == "", err)


def test_vocabulary_of_unusable_documents(run):
    """tokenizer train stops, and writes nothing, where more documents than --bad allows cannot be used"""
    lines = ['{"text": "some words"}'] * 93 + ['{"txt": "no text"}'] * 7
    run.write("t.jsonl", "\n".join(lines))
    train = lambda *more: run.result("tokenizer", "train", "--vocab", 260, "-o", run.path("t.json"), run.path("t.jsonl"), *more)
    for more, percent in ((), 1), (("--bad", 6.5), 6.5):
        code, out, err = train(*more)
        check(code == 1 and f"7 of 100 documents cannot be used, more than the {percent}% that --bad allows\n" in err, err)
        check("t.jsonl:94: " in err and not os.path.exists(run.path("t.json")), err)
    code, out, err = train("--bad", 7)
    check(code == 0 and "warning: 7 of 100 documents cannot be used and were left out" in err and os.path.exists(run.path("t.json")), err)


def test_vocabulary_of_a_recipe_stops_early(run):
    """a vocabulary that a recipe trains is reported the same way, and once: a resumed run has it already"""
    run.write("t.txt", "some text here of words\n" * 300)
    for kind in ("bpe", "unigram"):
        model = "Llama(depth = 1, d = 8, ff = 8, heads = 1, kv = 1, e = 8, vocab = 900)"
        file = run.write(f"{kind}.lm", f"""import "{ROOT}/examples/llama.lm": Llama
data D {{ tokenizer = {kind}(train = 900); source s = text("t.txt"); pack best_fit(seq = 16 tokens) }}
recipe R {{ model = {model}; data = D; run = 1 steps; batch = 64 tokens; save = checkpoint("{kind}") }}
""")
        code, out, err = run.result("run", file)
        size = len(json.load(open(run.path(kind, "tokenizer.json")))["model"]["vocab"])
        check(code == 0 and err.count(f"note: the vocabulary has {size} tokens, fewer than the 900 that train asks for") == 1, (size, err))
        check("vocabulary" not in run.result("run", file, "--steps", 2)[2], "a resumed run trains no vocabulary")
    code, out, err = run.result("run", run.path("bpe.lm"), "--set", "data.tokenizer=bpe(train=257)", "--out", run.path("least"))
    check(code == 0 and "fewer" not in err, err)
