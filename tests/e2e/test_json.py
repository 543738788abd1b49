"""--json: every command accepts it, and its JSON has the values of the text."""
import json, math, os, re
from decimal import Decimal

from harness import ROOT, check, small
from test_encdec import SEQ2SEQ, lines, model

PLAIN_BUILD = {"keys"}


def parsed(run, *args, **how):
    return json.loads(run(*args, "--json", **how))


def test_json_everywhere(run):
    commands = [line.split()[0] for line in run("--help").split("usage:")[1].splitlines() if line.startswith("  ")]
    check(len(commands) > 12, commands)
    for c in commands:
        check("--json" in run(c, "--help"), f"lmc {c} has no --json")


def test_json_explain(run):
    file = small(run)
    got = parsed(run, "explain", file, "optimizer.lr", "--set", "optimizer.lr = 1e-4")
    check([v["value"] for v in got["values"][:2]] == ["1e-4", "3e-3"] and got["values"][0]["from"] == "--set", got)
    check(got["values"][1]["file"] == file and got["values"][1]["line"] == 7, got)
    check("Markdown" in run("explain", "--reference", "--json", status=1), "the reference has no JSON form")


def test_json_trace(run):
    got = parsed(run, "trace", small(run), "--steps", 2, "--out", run.path("t.safetensors"))
    check(got["steps"] == 2 and len(got["loss"]) == 2 and 3 < got["loss"][0] < 6, got)


def test_json_opt(run):
    passes = parsed(run, "opt", "--list")
    check(passes["pipeline"][0] in [p["name"] for p in passes["passes"]], passes)
    check(any(op["name"] == "dot" and op["operands"] == 2 for op in parsed(run, "opt", "--ops")), "dot is an operation")
    run("compile", small(run), "-o", run.path("plan"))
    ir = parsed(run, "opt", "--pass=inline,dce", run.path("plan/graph.lmir"))["ir"]
    check(ir == run("opt", "--pass=inline,dce", run.path("plan/graph.lmir")), "the IR as text and as JSON")


def test_json_fmt(run):
    loose, good = run.write("loose.lm", "let  a=1\n"), run.write("good.lm", "let a = 1\n")
    check(parsed(run, "fmt", loose, good) == {"files": 2, "changed": [loose]}, "one file changed")
    check(parsed(run, "fmt", loose, good) == {"files": 2, "changed": []}, "no file changes the second time")


def test_json_tokenizer(run):
    path = run.path("t.json")
    text = run.write("text.txt", "the cat and the hat\n" * 50)
    check(parsed(run, "tokenizer", "train", "-o", path, "--vocab", 280, text)["file"] == path and os.path.exists(path), "a trained file")
    ids = parsed(run, "tokenizer", "encode", f'bpe("{path}")', stdin="the cat")["ids"]
    back = parsed(run, "tokenizer", "decode", f'bpe("{path}")', stdin=" ".join(map(str, ids)))
    check(back == {"text": "the cat"} and len(ids) < 7, (ids, back))


def keys_of(x, at=""):
    """the keys of a document in the notation of docs/json.md: a.b, a[]"""
    if isinstance(x, dict) and x:
        return {k for name, v in x.items() for k in keys_of(v, f"{at}.{name}" if at else name)}
    if isinstance(x, list) and x and isinstance(x[0], (dict, list)):
        return {k for v in x for k in keys_of(v, at + "[]")}
    return {at}


def documented():
    """section -> keys"""
    parts = re.split(r"^## (.*)$", open(f"{ROOT}/docs/json.md").read(), flags=re.M)
    rows = lambda text: [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    return {name: {key for row in rows(text) for key in re.findall(r"`([^`]+)`", row)} for name, text in zip(parts[1::2], parts[2::2])}


TALK = """import "{root}/examples/llama.lm": Llama
data Talk {{ source s = chat("talk.jsonl", template = "plain"); mix = (s = 1); pack best_fit(seq = 32 tokens) }}
recipe R {{ model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16); data = Talk; run = 1 steps; batch = 64 tokens; save = checkpoint("talk") }}
"""
KEYS = """import "{root}/examples/decoders.lm": Llama
data D {{ source a = text("a.txt", split = "\\n"); source b = text("b.txt", split = "\\n"); mix = (a = 3, b = 1); holdout HOLDOUT = sample(docs = 5 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 2, d = 32, ff = 48, heads = 4, kv = 2, vocab = 256); data = D; run = 3 steps; batch = 256 tokens; optimizer = adamw(lr = 1e-3)
  group @**.{{n1,n2}} = (decay = 0)
  eval dev {{ data = D.HOLDOUT; every = 2 steps }}
  sample {{ every = 3 steps; prompt = "the "; n = 4 tokens }}
  save = checkpoint("run")
}}
"""


def span(x):
    """The least and the greatest number that is printed as the Decimal x: half a unit of its last digit around it. Others are exact."""
    half = Decimal(1).scaleb(x.as_tuple().exponent) / 2 if isinstance(x, Decimal) else 0
    return x - half, x + half


def multiply_equal(a, b):
    """True if the numbers of both lists, rounded as printed, may multiply to the same value."""
    (low_a, high_a), (low_b, high_b) = (map(math.prod, zip(*map(span, numbers))) for numbers in (a, b))
    return low_a <= high_b and low_b <= high_a


def test_keys(run):
    """each command prints the keys that docs/json.md names, and no others; numbers that are printed twice agree"""
    for name in "ab":
        run.write(f"{name}.txt", "the cat and the hat\n" * 200)
    file, folder = run.write("keys.lm", KEYS.format(root=ROOT)), run.path("run")
    run("compile", file, "-o", run.path("plan"))
    text = run.path("a.txt")
    run("run", file, "--out", run.path("changed"), "-q")
    run("run", file, "--out", run.path("changed"), "-q", "--steps", 4, "--set", "optimizer.lr=1e-4", "--change", "optimizer.lr")
    run.write("talk.jsonl", json.dumps({"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}) + "\n")
    talk = run.write("talk.lm", TALK.format(root=ROOT))
    run("run", talk, "-q")
    lines(run)
    pairs = run.write("pairs.lm", model(source=SEQ2SEQ, batch=24))
    got = {
        "lmc chat": [parsed(run, "chat", run.path("talk"), "-n", 4, "--context", 64, stdin="ping\n/help\n/history\n")],
        "lmc check": [parsed(run, "check", file)], "lmc run": [parsed(run, "run", file)],
        "lmc generate": [parsed(run, "generate", folder, "--prompt", "the", "-n", 2)], "lmc eval": [parsed(run, "eval", folder)],
        "lmc export": [parsed(run, "export", folder, "-o", run.path("hf"))],
        "lmc import": [parsed(run, "import", "hf", run.path("hf"), "--model", f"{ROOT}/examples/decoders.lm:Llama", "-o", run.path("in"))],
        "lmc data": [parsed(run, "data", file, "--show", 1), parsed(run, "data", talk, "--show", 1), {"rows": parsed(run, "data", pairs, "--show", 1)["rows"]}], "lmc trace": [parsed(run, "trace", file, "--steps", 2, "--out", run.path("t"))],
        "lmc compile": [parsed(run, "compile", file)], "lmc explain KEY": [parsed(run, "explain", file, "optimizer.lr")],
        "lmc explain changes": [parsed(run, "explain", run.path("changed"), "changes")],
        "lmc explain memory": [parsed(run, "explain", file, "memory")],
        "lmc explain CODE": [parsed(run, "explain", "E031")], "lmc explain cost": [parsed(run, "explain", file, "cost", "--measure"), parsed(run, "explain", file, "cost", "--set", "parallel.mesh=(dp = 2)"),
                             parsed(run, "explain", file, "cost", "--target", "h100", "--set", "precision.compute=bf16")], "lmc bench": [json.loads(run("bench", file, "--steps", 2, "--json"), parse_float=Decimal, parse_int=Decimal)],
        "lmc bench --ablate": [parsed(run, "bench", file, "--ablate", "--budget", 2, "--steps", 1)],
        "lmc opt": [parsed(run, "opt", f"--{what}") for what in ("list", "ops")] + [parsed(run, "opt", "--pass=inline", run.path("plan/graph.lmir"))],
        "lmc tokenizer": [parsed(run, "tokenizer", "encode", "bytes()", stdin="a"), parsed(run, "tokenizer", "decode", "bytes()", stdin="97"),
                          parsed(run, "tokenizer", "train", "-o", run.path("tok.json"), "--vocab", 270, text)],
        "lmc new": [parsed(run, "new", "made", "--data", text, "--minutes", 1, cwd=run.folder)],
        "lmc fmt": [parsed(run, "fmt", "--check", file, status=0)] if run.result("fmt", "--check", file)[0] == 0 else [parsed(run, "fmt", file)],
        "lmc doctor": [json.loads(run.result("doctor", "--json")[1])],
        "Diagnostics, of every command": [json.loads(run.result("check", run.write("bad.lm", "let a = (1\nlet b = 2"), "--json")[2]),
                                     json.loads(run.result("run", file, "--steps", "x", "--json")[2])]}
    documented_keys = documented()
    check(set(documented_keys) == set(got), set(documented_keys) ^ set(got))
    for name, documents in got.items():
        keys = {re.sub(r"^dev\.", "HOLDOUT.", re.sub(r"mix\.\w+", "mix.SOURCE", k)) for d in documents for k in keys_of(d)}
        wanted = {k for k in documented_keys[name] if name != "Diagnostics, of every command" or "notes" not in k} | {k for k in keys if ".notes" in k}
        check(keys - {"[]"} == wanted, f"{name}: {sorted(keys ^ wanted)}")
    bench, trained, memory, compiled = (got[f"lmc {name}"][0] for name in ("bench", "run", "explain memory", "compile"))
    ms = bench["ms_per_step"]
    check(multiply_equal([bench["tokens_per_s"], ms], [256, 1000]))
    check(multiply_equal([bench["step_over_gemms"], bench["gemm_ms"]], [ms]))
    check(multiply_equal([bench["mfu"], bench["peak_flops"], ms], [bench["model_flops"], 1000]))
    check(trained["peak_bytes"] == memory["bytes"] == compiled["peak_bytes"] >= bench["peak_bytes"], (trained, memory["bytes"], compiled))
    check(os.path.isdir(trained["checkpoint"]) and trained["step"] == 3, trained)
    for name in "cost", "memory":   # of the program of a run
        check(parsed(run, "explain", folder, name).keys() == got[f"lmc explain {name}"][0].keys(), name)
    again = parsed(run, "run", file)
    check(again["resumed"] == 3 and again["loss"] is None, again)
    check(got["lmc check"][0][0]["params"] == bench["params"] == got["lmc export"][0]["parameters"], "parameters")
