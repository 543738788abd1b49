"""--json: every command has it, and what it prints is JSON of what the text says."""
import json, os

from harness import check, small


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
    check("Markdown" in run("explain", "--reference", "--json", status=1), "no JSON of the reference")


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
    check(parsed(run, "fmt", loose, good) == {"files": 2, "changed": []}, "now none does")


def test_json_tokenizer(run):
    path = run.path("t.json")
    text = run.write("text.txt", "the cat and the hat\n" * 50)
    check(parsed(run, "tokenizer", "train", "-o", path, "--vocab", 280, text)["file"] == path and os.path.exists(path), "a trained file")
    ids = parsed(run, "tokenizer", "encode", f'bpe("{path}")', stdin="the cat")["ids"]
    back = parsed(run, "tokenizer", "decode", f'bpe("{path}")', stdin=" ".join(map(str, ids)))
    check(back == {"text": "the cat"} and len(ids) < 7, (ids, back))
