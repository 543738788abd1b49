"""lmc new: the recipe that it writes for a text is complete, canonical, and trains; an error leaves no file."""
import gzip, json, os, random, shutil, subprocess

import numpy as np
from harness import ROOT, Skip, check
from test_hf import side

SANITIZER_BUILD = {"new_trains", "new_says_why", "new_documents", "new_kinds_of_files",
                   "new_beside_programs_and_runs", "new_gzip", "new_refuses", "new_links", "new_leaves_out",
                   "new_decides_per_file"}

WORDS = "the a cat dog house river and of to in was went saw said old new light water hill stone".split()


def prose(n, seed=1):
    rng = random.Random(seed)
    return "\n".join(" ".join(rng.choice(WORDS) for _ in range(12)) + "." for _ in range(n)) + "\n"


def made(run, name, data, minutes=0.1):
    facts = json.loads(run("new", name, "--data", data, "--minutes", minutes, "--json", cwd=run.folder))
    run("fmt", "--check", f"{name}.lm", cwd=run.folder)
    run("check", f"{name}.lm", cwd=run.folder)
    bound = facts["model"]["bound"]
    check(bound == "memory" or (bound == "text") == facts["run"]["text_ends"], f"the reported limit must be the actual one: {facts}")
    return facts, open(run.path(f"{name}.lm")).read()


def test_new_trains(run):
    """bytes of a small text: new, check, a few steps, text"""
    run.write("small.txt", prose(600))
    facts, text = made(run, "small", "small.txt")
    check('source files = text("small.txt")' in text and "tokenizer = bytes()" in text, text)
    check(facts["text"]["bytes"] == os.path.getsize(run.path("small.txt")), facts)
    plan = facts["run"]
    seconds = plan["steps"] * plan["batch"] / plan["tokens_per_s"]
    check(abs(plan["seconds"] - seconds) < 0.1 + 1e-3 * seconds, facts)   # printed with one decimal
    run("run", "small.lm", "--steps", 4, "-q", cwd=run.folder)
    out = run("generate", "runs/small", "--prompt", "the ", "-n", 8, cwd=run.folder)
    check(out.startswith("the ") and len(out) > 5, out)


def test_new_more_time(run):
    """more time than a small text can use: a larger model, not too large for it, and a run that ends before"""
    run.write("small.txt", prose(600))
    little, much = made(run, "little", "small.txt")[0], made(run, "much", "small.txt", 500)[0]
    check(little["model"]["params"] <= much["model"]["params"] <= 4e6, (little, much))
    check(much["model"]["bound"] == "text" and much["run"]["text_ends"], (little, much))
    check(much["run"]["steps"] * much["run"]["batch"] <= 4 * much["text"]["tokens"], "at most four epochs")


def test_new_says_why(run):
    run.write("two words.txt", prose(400))
    out = run("new", "small-2.lm", "--data", "two words.txt", "-m", 0.1, cwd=run.folder)
    for word in ("text      two words.txt", "machine", "tokens", "model", "run", "lmc run small-2.lm", "| "):
        check(word in out, f"no '{word}' in\n{out}")


def test_new_without_memory(run):
    """an address space too small for the measurement is an error of the environment, no crash"""
    run.write("small.txt", prose(600))
    for kb in (60000, 62000, 90000):
        limited = f'ulimit -v {kb}; exec "$0" new x --data small.txt -m 0.1'
        p = subprocess.run(["bash", "-c", limited, run.lmc], cwd=run.folder, capture_output=True, text=True)
        loaded = "shared libraries" not in p.stderr                # those of the system may need more
        check(not loaded or p.returncode == 2 and "memory" in p.stderr, f"{kb} kB: {p.returncode} {p.stderr}")


def test_new_byte_pairs_of_lines(run):
    """JSON lines in a folder, compressed if zstd is installed: the field is found and a vocabulary trained"""
    lines = [json.dumps({"id": str(i), "url": "u", "body": prose(20, i)}) for i in range(320)]
    path = run.write("texts/part.jsonl", "\n".join(lines) + "\n")
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", "--rm", path], check=True)
        path += ".zst"
    facts, text = made(run, "lines", "texts")
    check(f'jsonl("texts/*{path[path.index(".jsonl"):]}", field = "body")' in text, text)
    check("bpe(train = 1024)" in text and abs(facts["text"]["documents"] - 320) < 20, facts)
    run("run", "lines.lm", "--steps", 2, "-q", cwd=run.folder)
    said = run("new", "again", "--data", "texts", "--minutes", 0.1, cwd=run.folder)
    check("field     'body' of each line of texts/*.jsonl" in said, said)


def test_new_many_files(run):
    """files so large that a small share of each holds no complete line"""
    for i in range(300):
        run.write(f"many/{i:03}.jsonl", json.dumps({"text": prose(60, i)}) + "\n" + json.dumps({"text": prose(60, -i)}) + "\n")
    facts = json.loads(run("new", "many", "--data", "many", "--minutes", 0.05, "--json", cwd=run.folder))
    check(facts["text"]["files"] == 300 and abs(facts["text"]["documents"] - 600) < 60, facts)
    size = sum(len(prose(60, i)) for i in range(300)) * 2
    check(abs(facts["text"]["bytes"] / size - 1) < 0.1, (facts, size))


def test_new_unreadable_folder(run):
    """a folder that may not be read is named, by lmc new and by a pattern"""
    for folder in "texts/a/closed", "home":
        os.makedirs(run.path(folder))
    run.write("texts/a.txt", prose(600))
    run.write("whole.lm", open(ROOT + "/examples/quickstart.lm").read().replace("../data/bible.txt", "texts/**").replace('"llama.lm"', f'"{ROOT}/examples/llama.lm"'))
    for path, mode in (".", 0o755), ("home", 0o777), ("texts/a/closed", 0):
        os.chmod(run.path(path), mode)
    shutil.copy(run.lmc, run.path("lmc"))
    who = dict(user=65534, group=65534, extra_groups=[]) if not os.geteuid() else {}

    def fails(*args):
        p = subprocess.run([run.path("lmc"), *args], cwd=run.folder, env={**os.environ, "LMC_CACHE": run.path("home/cache")}, capture_output=True, text=True, **who)
        return p.stderr if p.returncode else f"exit status 0: {p.stdout}"
    if "--nothing" not in fails("new", "--nothing"):
        raise Skip("another user cannot reach this build")
    check("cannot open folder texts/a/closed: Permission denied" in fails("new", "x", "--data", "texts"), "lmc new")
    for command in ("data", "whole.lm"), ("new", "x", "--data", "texts/**"):
        err = fails(*command)
        check("cannot search for " in err and "texts/**: in " in err and "texts/a/closed/: Permission denied" in err, err)


def test_new_documents(run):
    run.write("a/one.txt", prose(50) + "<|endoftext|>" + prose(50, 2))
    run.write("a/b/more.md", prose(50, 3))
    _, text = made(run, "docs", "a")
    check('files = text("a/**/*.md")' in text and 'more1 = text("a/**/*.txt", split = "<|endoftext|>")' in text, text)


def test_new_of_a_table(run):
    """a table is plain text, which the report says"""
    run.write("a.csv", "id,text\n" + "".join(f"{i},a line with the number {i * i}\n" for i in range(200)))
    check("a.csv is read as plain text" in run("new", "table", "--data", "a.csv", "--minutes", 0.05, cwd=run.folder), "no word about it")


def test_new_kinds_of_files(run):
    """text is recognized by content under any name; other files are listed with their number and the reason"""
    for i in range(60):
        run.write(f"tree/a{i}.py", prose(20, i))
        run.write(f"tree/sub/b{i}.weird", prose(20, -i))
    run.write("tree/sub/deep/c.py", "x = 1\n")
    run.write("tree/README", "words\n")
    run.write("tree/empty.md", "")
    open(run.path("tree/latin.md"), "wb").write(b"caf\xe9\n")
    run.write("tree/pretty.json", '{\n "a": 1\n}\n')
    for name, data in (("image.png", b"\x89PNG\0\xff"), ("page.xz", b"\xfd7zXZ\0"), ("latin.py", b"caf\xe9 " * 400)):
        open(run.path(f"tree/{name}"), "wb").write(data)
    facts, text = made(run, "kinds", "tree")
    check('text("tree/**/*.py")' in text and 'text("tree/**/*.weird")' in text, text)
    check(facts["text"]["files"] == 121, facts)
    for part in ("2 .md (empty or not UTF-8 text)", "1 .png (not UTF-8 text)", "1 .xz (packed", "1 (without an extension", "1 .json (not one JSON object a line)"):
        check(part in facts["text"]["not_read"], (part, facts))
    check("bad = 2%" in text or "bad = 3%" in text, text)         # latin.py is not UTF-8
    check("sample(5 docs)" in text or "sample(" in text, text)    # of many documents, some by chance
    run("run", "kinds.lm", "--steps", 1, "-q", cwd=run.folder)


def test_new_beside_programs_and_runs(run):
    """of a folder, programs and runs of lmc are not text: a second recipe for it reads what the first one read"""
    run.write("work/a.txt", prose(300))
    for name in ("first", "second"):
        out = json.loads(run("new", name, "--data", ".", "--minutes", 0.05, "--json", cwd=run.path("work")))
        text = open(run.path(f"work/{name}.lm")).read()
        check('text("./*.txt")' in text and text.count(" = text(") == 1, text)
        run("run", f"{name}.lm", "--steps", 1, "--out", f"{name}-run", "-q", cwd=run.path("work"))
    check(out["text"]["not_read"] == "1 .lm (programs of lmc; a pattern can name them), 1 folder of runs", out)


def test_new_gzip(run):
    """gzip files, also of several members, hold the same documents as plain ones; damaged ones are an error"""
    for i in range(4):
        text = prose(200, i).encode()
        run.write(f"plain/page{i}.1", text.decode())
        os.makedirs(run.path("packed"), exist_ok=True)
        open(run.path(f"packed/page{i}.1.gz"), "wb").write(gzip.compress(text[:700]) + gzip.compress(text[700:]))
    (plain, _), (packed, recipe) = made(run, "plain1", "plain"), made(run, "packed1", "packed")
    check('text("packed/*.1.gz")' in recipe and packed["text"]["not_read"] == "", recipe)
    check(packed["text"]["documents"] == plain["text"]["documents"] == 4, (plain, packed))
    for x in ("plain", "packed"):
        run("tokenizer", "train", "-o", f"{x}.json", "--vocab", 300, *sorted(os.listdir(run.path(x))), cwd=run.path(x))
    check(open(run.path("plain/plain.json")).read() == open(run.path("packed/packed.json")).read(), "the same vocabulary")
    with open(run.path("packed/page0.1.gz"), "r+b") as f:
        f.truncate(os.path.getsize(f.name) - 20)
    err = run("tokenizer", "train", "-o", "again.json", "--vocab", 300, "page0.1.gz", cwd=run.path("packed"), status=1)
    check("page0.1.gz" in err and "truncated" in err, err)


def test_new_minutes(run):
    run.write("small.txt", prose(600))
    for i, (written, meant) in enumerate([("6 s", "6.0 s"), ("0.002h", "7.2 s"), ("0.05m 4s", "7.0 s")]):
        run("new", f"time{i}", "--data", "small.txt", "--minutes", written, cwd=run.folder)
        first = open(run.path(f"time{i}.lm")).readline()
        check(f"run of at most {meant} on" in first, first)


def test_new_vocabulary(run):
    """a model that the time makes small has no vocabulary that takes nearly all of its parameters"""
    rng = random.Random(3)
    words = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(3, 9))) for _ in range(8000)]
    run.write("big.txt", "\n".join(" ".join(rng.choice(words) for _ in range(12)) for _ in range(60000)))
    facts, _ = made(run, "big", "big.txt", "4 s")
    model = facts["model"]
    check(model["vocab"] == 1024 or model["vocab"] * model["d"] <= 2 / 3 * model["params"], model)
    said = run("new", "big2", "--data", "big.txt", "--minutes", "4s", cwd=run.folder)
    check("byte pairs, 4096 of them" in said or "would suit the text" in said, said)   # each call times the machine again


def test_new_refuses(run):
    run.write("good.txt", prose(100))
    run.write("there.lm", "# mine\n")
    run.write("empty.txt", "")
    run.write("blank.txt", " \n\n")
    run.write("hi.txt", "hi\n")
    run.write("fields.jsonl", '{"id": 3}\n')
    for name in ("x.bin", "y.bin", "z.xz"):
        os.makedirs(run.path("folder"), exist_ok=True)
        open(run.path(f"folder/{name}"), "wb").write(b"\x1f\x8b\0\xff" * 1000)
    with open(run.path("noise.txt"), "wb") as f:
        f.write(b"\xff\xfe\x00\x80" * 1000)
    for args, message in [
        (["x"], "which text?"), (["x", "--data", "nowhere.txt"], "there is no file or folder nowhere.txt"), (["x", "--data", "empty.txt"], "empty.txt is empty"),
        (["x", "--data", "blank.txt"], "holds no text"), (["x", "--data", "hi.txt"], "3 bytes of text"), (["x", "--data", "noise.txt"], "is UTF-16 text, expected UTF-8"), (["x", "--data", "*.log"], "no file matches"),
        (["x", "--data", "fields.jsonl"], "JSON object with a text"), (["x", "--data", "folder"], "found: 2 .bin (not UTF-8 text), 1 .xz (packed"), (["x", "--data", "a.xz"], ".xz"),
        (["x", "--data", ""], "needs a value"), (["x", "--data", "good.txt", "--minutes", "0"], "--minutes"), (["x", "--data", "good.txt", "--minutes", "1w"], "--minutes"),
        (["x", "--data", "good.txt", "--minutes", "1h 30"], "--minutes"), (["x", "--data", "good.txt", "--minutes", "-5"], "--minutes"),
        (["there", "--data", "good.txt"], "already"),
        (["../x", "--data", "good.txt"], "not a name"), (['a"b', "--data", "good.txt"], "not a name"), (["", "--data", "good.txt"], "not a name"),
        (["x" * 65, "--data", "good.txt"], "not a name"), (["x", "y", "--data", "good.txt"], "too many")]:
        err = run("new", *args, status=1, cwd=run.folder)
        check(message in err, f"lmc new {args}: {err!r}, expected '{message}'")
    check(not os.path.exists(run.path("x.lm")), "an error must leave no file")
    check(open(run.path("there.lm")).read() == "# mine\n", "an existing file must be unchanged")
    if os.getuid():
        os.chmod(run.path("good.txt"), 0)
        check("good.txt" in run("new", "x", "--data", "good.txt", status=1, cwd=run.folder), "a file that cannot be read is named")


def archs(run):
    """the models of examples/zoo, as the message for an unknown one names them"""
    return run("new", "x", "--data", "small.txt", "--arch", "none", status=1, cwd=run.folder).split("examples/zoo: ")[1].strip().split(", ")


PERIODS = {"gemma3": 6, "smollm3": 4, "recurrent_gemma": 3}   # layers after which kinds of layers repeat, if more than two


def test_new_arch(run):
    """lmc new --arch writes a recipe that imports a zoo model with about --params parameters and at least one layer of each kind"""
    run.write("small.txt", prose(600))
    names = archs(run)
    files = [f[:-3] for f in os.listdir(f"{ROOT}/examples/zoo") if f.endswith(".lm")]
    check(sorted(names + ["bart", "bert", "clip", "efficientnet", "mobilenet", "t5", "vit", "whisper"]) == sorted(files), f"{names} and {files}")   # which predict no next token
    for i, arch in enumerate(names if run.nightly else ["gptoss", "qwen3"]):
        facts = json.loads(run("new", f"a{i}", "--data", "small.txt", "--arch", arch, "--params", "500k", "-m", 0.1, "--json", cwd=run.folder))
        run("fmt", "--check", f"a{i}.lm", cwd=run.folder)
        check("warning" not in run("check", f"a{i}.lm", cwd=run.folder), arch)
        check(0.85 < facts["model"]["params"] / 500e3 < 1.15 and facts["model"]["bound"] == "asked", (arch, facts))
        check(all(len(line) <= 100 for line in open(run.path(f"a{i}.lm")).read().split("recipe Train")[1].split("\n")), f"{arch}: a long line")
        run("run", f"a{i}.lm", "--steps", 2, "-q", cwd=run.folder)
    for size, params in (("250k", 25e4), ("3M", 3e6)):
        for arch in names if run.nightly else ["recurrent_gemma"] if size == "250k" else []:
            facts = json.loads(run("new", f"b-{arch}-{size}", "--data", "small.txt", "--arch", arch, "--params", size, "-m", "3 s", "--json", cwd=run.folder))
            check(0.85 < facts["model"]["params"] / params < 1.15 and facts["model"]["depth"] >= PERIODS.get(arch, 2), (arch, facts))
    text = open(run.path("a1.lm")).read()
    check(open(f"{ROOT}/examples/zoo/{names[1] if run.nightly else 'qwen3'}.lm").read() in text, "the file of the zoo")


def test_new_few_positions(run):
    """the sample of a model with as many positions as a row has, here 64, fits into them"""
    run.write("small.txt", prose(100))
    run("new", "few", "--data", "small.txt", "--arch", "gpt2", "--params", "100K", "-m", 0.1, cwd=run.folder)
    check("positions = 64" in open(run.path("few.lm")).read())
    check("sample after step 1:" in run("run", "few.lm", "--steps", 1, cwd=run.folder))


def test_new_arch_of_50M(run):
    """50 million parameters of each model, within 5 %, as `lmc check` of the file counts them"""
    if not run.nightly:
        raise Skip("for --nightly; test_new_arch has small models")
    run.write("small.txt", prose(600))
    for arch in archs(run):
        run("new", f"m-{arch}", "--data", "small.txt", "--arch", arch, "--params", "50M", "-m", "3 s", cwd=run.folder)
        found = json.loads(run("check", f"m-{arch}.lm", "--json", cwd=run.folder))[0]
        check(0.95 < found["params"] / 50e6 < 1.05, (arch, found["params"]))
        check(found["params"] == sum(p["elements"] for p in found["parameters"]), arch)


def test_new_params(run):
    """parameters without a model of the zoo, and a model without a number of parameters"""
    run.write("small.txt", prose(600))
    facts = json.loads(run("new", "plain", "--data", "small.txt", "--params", "0.3M", "-m", 0.1, "--json", cwd=run.folder))
    check(0.85 < facts["model"]["params"] / 300e3 < 1.15 and facts["model"]["name"] == "Llama", facts)
    facts = json.loads(run("new", "free", "--data", "small.txt", "--arch", "smollm3", "-m", 0.1, "--json", cwd=run.folder))
    check(facts["model"]["name"] == "SmolLM3" and facts["model"]["depth"] >= PERIODS["smollm3"] and facts["model"]["bound"] in ("time", "text", "memory"), facts)
    table = run("check", "free.lm", cwd=run.folder)
    check(f" {facts['model']['params']}\n" in table, "the number of parameters is that of the model")
    for args, message in [(["--arch", "qwen33"], "is none of the language models of examples/zoo (did you mean qwen3?): bloom, "),
                          (["--arch", "bert"], "Bert is trained on text with hidden tokens"), (["--arch", "whisper"], "Whisper is trained on batches of frames"),
                          (["--arch", "mobilenet_v2"], "MobileNetV2 is trained on batches of images"), (["--params", "1X"], "--params"), (["--params", "0"], "--params"),
                          (["--params", "-3M"], "--params"), (["--params", "nan"], "--params"), (["--params", "1"], "the nearest has"),
                          (["--params", "500B"], "this machine has"), (["--params", "9999T"], "--params")]:
        err = run("new", "bad", "--data", "small.txt", *args, status=1, cwd=run.folder)
        check(message in err, f"lmc new {args}: {err!r}, expected '{message}'")
        check(not os.path.exists(run.path("bad.lm")), "an error must leave no file")


def test_new_pairs(run):
    """for models of pairs the message holds a recipe, which trains as it is written there"""
    run.write("pairs.jsonl", "".join(json.dumps({"source": prose(2, i), "target": prose(1, i)}) + "\n" for i in range(40)))
    for arch in ("t5", "bart") if run.nightly else ("t5",):
        said = run("new", "x", "--data", "pairs.jsonl", "--arch", arch, status=1, cwd=run.folder)
        shutil.copy(f"{ROOT}/examples/zoo/{arch}.lm", run.folder)
        file = run.write(f"my-{arch}.lm", said.split("\n\n", 1)[1])
        run("tokenizer", *said.split("# lmc tokenizer ")[1].split("\n")[0].split(), cwd=run.folder)
        run("check", file)
        out = run("run", file, "--steps", 1, "--set", "model.d=32", "--set", "model.ff=64", "--set", "batch=128 tokens", "--out", run.path(arch))
        check("step 1/1" in out, out)


def test_new_in_transformers(run):
    """the template's `map hf` is right: the exported model gives the same logits in transformers"""
    run.write("small.txt", prose(600))
    made(run, "small", "small.txt")
    run("run", "small.lm", "--steps", 3, "-q", cwd=run.folder)
    run("export", "runs/small", "--format", "hf", "-o", "there", cwd=run.folder)
    ids = list(b"the old house")
    side("logits", run.path("there"), json.dumps(ids), run.path("logits.npy"))
    theirs = np.load(run.path("logits.npy"))[-1].astype("f8")
    ours = run("generate", "runs/small", "--prompt", bytes(ids).decode(), "--ids", "-n", 1, "-t", 0, "--set", "precision.compute=f32",
               cwd=run.folder)
    check(theirs.max() - theirs[int(ours)] < 1e-4 and np.ptp(theirs) > 0.1, (ours, theirs.argmax()))   # 1e-4: a tie, in f32


def test_new_links(run):
    """links that lead back are not followed, nothing is counted twice, and the run reads the counted files"""
    run.write("texts/a.txt", prose(200))
    run.write("texts/sub/b.txt", prose(200, 2))
    run.write("elsewhere/c.txt", prose(200, 3))
    size = sum(os.path.getsize(run.path(p)) for p in ("texts/a.txt", "texts/sub/b.txt", "elsewhere/c.txt"))
    for name, to in (("texts/loop", "."), ("texts/sub/up", ".."), ("texts/again", "sub"), ("texts/outside", "../elsewhere"), ("texts/copy.txt", "a.txt")):
        os.symlink(to, run.path(name))
    facts, text = made(run, "linked", "texts")
    check(facts["text"]["bytes"] == size and facts["text"]["files"] == 3, facts)
    rows = json.loads(run("data", "linked.lm", "--json", cwd=run.folder))["parts"]
    check(sum(p["tokens"] for p in rows) >= 0.99 * size and sum(p["documents"] for p in rows) == 3, (rows, size))
    run.write("texts/.hidden/d.txt", prose(200, 4))
    tree = text[:text.index("  source files")] + '  source files = text("texts/**/*.txt")\n' + text[text.index("  holdout"):]
    rows = json.loads(run("data", run.write("tree.lm", tree), "--json", cwd=run.folder))["parts"]
    check(sum(p["documents"] for p in rows) == 2, ("** follows no links to folders and finds nothing hidden", rows))


def test_new_names_that_are_patterns(run):
    """brackets, stars and question marks in names of files and folders stand for themselves"""
    for data, files in (("a[1].txt", ["a[1].txt", "a1.txt"]), ("w*[t]", ["w*[t]/x.txt", "wet/y.txt"])):
        for i, f in enumerate(files):
            run.write(f, prose(200 + 50 * i, i))
        name = f"named{len(data)}"
        facts, text = made(run, name, data)
        check(facts["text"]["files"] == 1 and facts["text"]["bytes"] == os.path.getsize(run.path(files[0])), (data, facts))
        run("data", f"{name}.lm", cwd=run.folder)


def test_new_decides_per_file(run):
    """every good file of a kind is read, however many others of that kind are not; those are counted and named"""
    for i in range(40):
        run.write(f"mixed/good{i}.txt", ("\ufeff" if i % 2 else "") + prose(30, i))
        if i < 20:
            open(run.path(f"mixed/bad{i}.txt"), "wb").write(b"caf\xe9 " * 400)
    facts, text = made(run, "mixed", "mixed")
    check(facts["text"]["files"] == 40 and "20 .txt (not UTF-8 text)" in facts["text"]["not_read"], facts)
    check('text("mixed/*.txt")' in text and "bad = 35%" in text, text)
    run("run", "mixed.lm", "--steps", 1, "-q", cwd=run.folder)
    # of a pattern too, whose source is all that it matches
    open(run.path("mixed/program"), "wb").write(bytes(range(256)) * 400)
    facts, text = made(run, "pattern", "mixed/**")
    check(facts["text"]["files"] == 40 and "20 .txt (not UTF-8 text), 1 (not UTF-8 text)" in facts["text"]["not_read"], facts)
    check('text("mixed/**")' in text and "bad = 36%" in text and "bytes()" not in text, text)
    rows = json.loads(run("data", "pattern.lm", "--json", cwd=run.folder))["parts"]
    check(sum(p["documents"] for p in rows) == 40, rows)


def test_new_skips_what_is_not_a_file(run):
    """links that lead nowhere, FIFOs and folders beside good files are skipped and listed, not errors; named, they are errors"""
    run.write("odd/a.txt", prose(200))
    run.write("odd/d.txt/b.txt", prose(200, 2))
    os.symlink("nowhere", run.path("odd/gone.txt"))
    os.symlink("loop.txt", run.path("odd/loop.txt"))
    os.mkfifo(run.path("odd/pipe.txt"))
    for name, data, files, skipped in (("whole", "odd", 2, 3), ("pattern", "odd/*.txt", 1, 4)):
        facts, text = made(run, name, data)
        check(facts["text"]["files"] == files and facts["text"]["not_read"].startswith(f"{skipped} not regular files"), facts)
        run("data", f"{name}.lm", cwd=run.folder)
    for named, why in (("odd/gone.txt", "there is no file or folder odd/gone.txt"), ("odd/pipe.txt", "neither a file nor a folder"), ("odd/[gp]*.txt", "odd/gone.txt")):
        out = run("new", "--data", named, "no.lm", cwd=run.folder, status=1)
        check(why in out, (named, out))


def test_new_leaves_out(run):
    """of a folder, files of conversations are left out and named; text behind a full sample is text; many kinds are summed up"""
    talk = json.dumps({"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}) + "\n"
    run.write("mixed/talk.jsonl", talk * 20)
    for kind in ("a", "b", "c"):
        run.write(f"mixed/{kind}.{kind}", (prose(2200, ord(kind)) * 32)[:2_300_000])
    for i in range(12):
        run.write(f"mixed/empty.{i}", "")
    facts, text = made(run, "mixed", "mixed")
    check(all(f'text("mixed/*.{kind}")' in text for kind in "abc") and "jsonl" not in text, text)
    left = facts["text"]["not_read"]
    check('source talk = chat("mixed/*.jsonl", template = "plain")' in left and left.count("(empty)") == 8 and "files of 4 other kinds" in left, left)
    for form, source in ((talk, "chat("), ('{"prompt": "a", "completion": "b"}\n', "prompt("), ('{"prompt": "a", "chosen": "b", "rejected": "c"}\n', "pairs(")):
        run.write("one.jsonl", form * 400)
        err = run("new", "one", "--data", "one.jsonl", cwd=run.folder, status=1)
        check(f"a recipe reads it by `source talk = {source}" in err, err)


def test_new_limits_the_walk(run):
    """a folder of very many files is refused; a pattern names them"""
    if not run.nightly:
        raise Skip("it makes 100,001 files (--nightly)")
    first = run.write("many/0.txt", prose(30))
    other = run.write("many/b/0.txt", prose(30))
    for i in range(1, 100_000):
        os.link(first if i <= 50_000 else other, run.path(f"many/{'b/' if i > 50_000 else ''}{i}.txt"))
    err = run("new", "all", "--data", "many", cwd=run.folder, status=1)
    check("many holds more than 100000 files" in err and "--data 'many/**/*.txt'" in err, err)
