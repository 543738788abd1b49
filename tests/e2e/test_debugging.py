"""Kernels dumped, edited and loaded: the edit runs; an edit that cannot run is reported."""
import glob, json, os, subprocess

from harness import ROOT, check, small


def test_edited_kernel(run):
    file = small(run)
    loss = list(run.trace(file, "--steps", 2, "--values", "loss", "--dump-dir", run.path("k"))["loss"])
    sources = glob.glob(run.path("k/*.c"))
    check(len(sources) > 5, sources)
    same = run.trace(file, "--steps", 2, "--values", "loss", "--load-dir", run.path("k"))["loss"]
    check(list(same) == loss, "the dumped kernels must give the same results")
    os.makedirs(run.path("one"))
    path = next(p for p in sources if "exp" in open(p).read())
    text = open(path).read()
    at = text.index("{", text.index("void " + os.path.basename(path)[:-2]))
    edited = run.write(f"one/{os.path.basename(path)}", text[: at + 1] + " return;" + text[at + 1 :])
    other = run.trace(file, "--steps", 2, "--values", "loss", "--load-dir", run.path("one"))["loss"]
    check(list(other) != loss, "an empty kernel must change the results")
    open(edited, "w").write("no C\n")
    err = run("trace", file, "--steps", 1, "--out", run.path("t"), "--load-dir", run.path("one"), status=1)
    check("cannot compile" in err and "error:" in err, err)
    os.makedirs(run.path("empty"))
    err = run("trace", file, "--steps", 1, "--out", run.path("t"), "--load-dir", run.path("empty"), status=1)
    check("holds no source" in err, err)


def test_edited_kernel_is_another_run(run):
    file = small(run, steps=4)
    run("run", file, "-q", "--steps", 2, "--out", run.path("run"), "--dump-dir", run.path("k"))
    err = run("run", file, "-q", "--out", run.path("run"), "--load-dir", run.path("k"), status=1)
    check("--load-dir" in err, err)


def test_bad_rows_are_reported_once(run):
    """reported before the training, which may take long, and not repeated after it"""
    run.write("text.jsonl", "".join('{"text": "the cat sat on the mat"}\n' if i != 7 else "no JSON\n" for i in range(200)))
    file = run.write("r.lm", f"""import "{ROOT}/examples/llama.lm": Llama
data D {{ source s = jsonl("text.jsonl"); pack best_fit(seq = 32 tokens) }}
recipe R {{ model = Llama(depth = 1, d = 16, ff = 32, heads = 2, kv = 1, e = 8); data = D; run = 2 steps; batch = 64 tokens }}
""")
    p = subprocess.run([run.lmc, "run", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(p.returncode == 0 and p.stdout.count("W212") == 1 and "text.jsonl:8: not JSON" in p.stdout, p.stdout)
    check(p.stdout.index("W212") < p.stdout.index("step 1/2"), p.stdout)
    err = run.result("run", file, "--json")[2]
    check(len(json.loads(err)) == 1, err)
