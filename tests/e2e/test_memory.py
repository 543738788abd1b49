"""Memory: tiled logits, recomputation, the peak of a plan, and the memory that a run uses."""
import json, os, re, time

import numpy as np

from harness import ROOT, check, distance, folder_bytes, small, wait_for, within

PLAIN_BUILD = {"budget", "budget_of_ticks", "predicted"}


def test_chunked_vocabulary(run):
    """1024 rows of 4608 logits in tiles of 512 give the results of four small micro-batches without tiling"""
    how = dict(steps=2, rows=8, seq=128, depth=1, vocab=4608)
    whole, parts = small(run, micro=256, name="whole.lm", **how), small(run, name="parts.lm", **how)
    a, b = (run.trace(f, "--values", "loss,grads,params") for f in (whole, parts))
    for name in a:
        within(name, distance(a[name], b[name]), 1e-5 if name.startswith("final") else 2e-6)
    run("compile", parts, "-o", run.path("plan"))
    for line in open(run.path("plan", "step.lmir")):
        check("b, t, vocab]" not in line or "b.1" in line, f"logits as a whole: {line}")


def recomputed(run, path, rules):
    """a copy of the program at `path`, beside it, with rules in its first recipe"""
    text = open(path).read()
    text = re.sub(r"(^recipe [^{]*\{)", r"\1 memory { " + rules + " };", text, count=1, flags=re.M)
    text = re.sub(r'"(hf:)?([^":\n]*\.safetensors)"', lambda m: f'"{m[1] or ""}{os.path.join(os.path.dirname(path), m[2])}"', text)
    return run.write("again/again.lm", text)


def same_bits(run, path, rules, divided=False):
    """gradients and losses with the rules and without; less memory, and nothing new to compile unless the rules divide loops"""
    files = path, recomputed(run, path, rules)
    a, b = (run.trace(f, "--steps", 1, "--values", "loss,grads") for f in files)
    plans = [plan_of(run, f) for f in files]
    check(divided or plans[0]["kernels"] + 1 >= plans[1]["kernels"], f"{rules}: {plans}")    # one kernel computes the number of the layer
    peak = [plan["peak_bytes"] for plan in plans]
    for name in a:
        check(np.array_equal(a[name], b[name]), f"{rules}: {name} differs by {distance(a[name], b[name]):g}")
    check(peak[1] < peak[0], f"{rules}: {peak[1]} bytes, {peak[0]} without")


def test_recompute_llama(run):
    """packed documents, grouped heads, dropout; recomputing a whole layer, or all but the result of attention"""
    file = small(run, steps=1, rows=4, seq=64, depth=6, drop=0.1)
    same_bits(run, file, "recompute @layers.**")
    same_bits(run, file, "recompute @layers.**; save @layers.*.attn.o")
    same_bits(run, file, "recompute @layers.{0,1,2,4,5}.**; save @layers.{4,5}.attn.o", divided=True)


def test_recompute_bf16(run):
    """recomputed values are rounded like stored ones"""
    file = small(run, steps=1, rows=4, seq=64, depth=6, drop=0.1, compute="bf16")
    for rules in "recompute @layers.**", "recompute @layers.*.attn.**", "recompute @layers.**; save @layers.*.attn.o":
        same_bits(run, file, rules)


def test_recompute_models(run):
    """latent attention; a bias that all layers share"""
    for model, rules in dict(deepseek="recompute @layers.**", t5="recompute @block_.**").items():
        same_bits(run, f"{ROOT}/tests/models/{model}/reference.lm", rules)


def plan_of(run, file, *args):
    return json.loads(run("compile", file, "--json", *args))


def with_budget(run, budget, micro=None, **how):
    file = small(run, more=f"memory {{ budget = {budget} bytes }}", name="budget.lm", **how)
    text = open(file).read()
    return run.write("budget.lm", re.sub(r"micro = \d+ tokens", f"micro = {micro}", text) if micro else text)


def test_budget(run):
    """24 layers in less than half of their memory give the same bits; in too little memory the error lists the largest values and the budget that fits"""
    how = dict(steps=1, rows=8, seq=64, depth=24)
    file = small(run, **how)
    natural = plan_of(run, file)["peak_bytes"]
    less = with_budget(run, int(0.48 * natural), **how)
    plan = plan_of(run, less)
    check(plan["peak_bytes"] <= 0.48 * natural and plan["recomputed"] > 0 and 1 < plan["slowdown"] < 1.5, f"{plan}")
    check(f"{plan['recomputed']} of" in run("compile", less), "the recomputed values must be reported")
    a, b = (run.trace(f, "--values", "loss,grads") for f in (file, less))
    for name in a:
        check(np.array_equal(a[name], b[name]), f"{name} differs by {distance(a[name], b[name]):g}")
    err = run("compile", with_budget(run, int(0.34 * natural), **how), status=1)
    check("error[E210]" in err and "x carry of loop llama.lm" in err and "it recomputes" in err, err)
    micro = int(re.search(r"micro = (\d+) tokens takes .* and fits", err)[1])
    fits = plan_of(run, with_budget(run, int(0.34 * natural), f"{micro} tokens", **how))
    check(fits["peak_bytes"] <= 0.34 * natural, f"{fits}")
    micro, size, unit = re.search(r"the least, with micro = (\d+) tokens, is ([\d.]+) (\w+)", run("compile", with_budget(run, 1000, **how), status=1)).groups()
    least = round(float(size) * {"kB": 1e3, "MB": 1e6}[unit])
    check(0 <= least - plan_of(run, with_budget(run, least, f"{micro} tokens", **how))["peak_bytes"] < 0.01 * least, "the suggested budget must suffice")


def test_budget_by_time(run):
    """on a GPU, stashes that free the missing bytes in the least time that the cost model predicts, and no more than these"""
    file, ms = f"{ROOT}/examples/bench-180m.lm", {}
    for budget in 20, 9, 8, 6, 5:
        text = run("explain", file, "cost", "--target", "h100", "--set", f"memory.budget={budget} GB")
        ms[budget] = float(re.search(r"a step of \d+ tokens: ([\d.]+) ms", text)[1])
    check(ms[20] < ms[9] < ms[8] < ms[6] <= ms[5] and ms[9] < 1.1 * ms[20] and ms[8] < 1.13 * ms[20], f"{ms}")


def test_budget_of_ticks(run):
    """the two loops over ticks of 1F1B have the same stashes, at different times: those of one free the bytes, and both are recomputed"""
    file = f"{ROOT}/examples/bench-180m.lm"
    pipeline = ("--set", "parallel { mesh = (pp = 2); pipeline = one_f_one_b }", "--set", "micro = 4Ki tokens", "--set", "batch = 64Ki tokens")
    text = run("explain", file, "memory", "--target", "h100", *pipeline, "--set", "memory.budget = 2.7 GB")
    used, chosen, of = re.search(r"^([\d.]+) GB .*; (\d+) of (\d+) stashed values are recomputed", text).groups()
    check(float(used) > 2.6 and (chosen, of) == ("1", "9"), text)


def test_check_budget(run):
    """`lmc check` reports a budget that no plan fits, as a run would, and needs no data for it"""
    file = with_budget(run, 1000, steps=1, rows=8, seq=64, depth=4)
    checked, ran = (run(command, file, status=1) for command in ("check", "run"))
    check("error[E210]" in checked and checked == ran, checked + ran)
    absent = re.sub(r'batches\("[^"]*"\)', 'text("absent/*.txt"); pack best_fit(seq = 64 tokens)', open(file).read().replace("vocab = 64", "vocab = 256"))
    check("error[E210]" in run("check", run.write("text.lm", absent), status=1), "a budget that no plan fits must be reported without the text")
    check("error" not in run("check", with_budget(run, 2**40, steps=1)), "a sufficient budget must be accepted")


def test_budget_bf16(run):
    """the same bits with seven tenths of the memory of the arenas; GEMM workspace depends on the number of cores"""
    how = dict(steps=1, rows=8, seq=64, depth=12, compute="bf16")
    file = small(run, **how)
    said = json.loads(run("explain", file, "memory", "--json"))
    less = with_budget(run, said["workspace"] + sum(said["arenas"].values()) * 7 // 10, **how)
    check(plan_of(run, less)["recomputed"] > 0, "values must be recomputed")
    a, b = (run.trace(f, "--values", "loss,grads") for f in (file, less))
    check(all(np.array_equal(a[name], b[name]) for name in a), "the results differ")


def test_micro_auto(run):
    """the largest micro-batch that fits is chosen; a resumed run keeps it under any other limit"""
    how = dict(steps=4, rows=8, seq=32, depth=2)
    sizes = {micro: plan_of(run, small(run, micro=micro, **how))["peak_bytes"] for micro in (64, 128)}
    check(plan_of(run, with_budget(run, 2**40, "auto", **how))["micro"] == 256, "the whole batch fits")
    tight = with_budget(run, (sizes[64] + sizes[128]) // 2, "auto", **how)
    check(plan_of(run, tight)["micro"] == 64, "the largest micro-batch that fits")
    run("run", tight, "-q", "--out", run.path("whole"))
    run("run", tight, "-q", "--steps", 2, "--out", run.path("parts"))
    run("run", with_budget(run, 2**40, "auto", **how), "-q", "--out", run.path("parts"))
    whole, parts = (folder_bytes(run.path(d, "step-000004")) for d in ("whole", "parts"))
    tensors = [name for name in whole if name.endswith(".safetensors")]
    check(tensors and all(whole[name] == parts[name] for name in tensors), f"{sorted(whole)}")
    check(json.load(open(run.path("parts", "run.json")))["micro"] == 64, "recorded")


def test_explain(run):
    """the values add up to the live bytes at the peak; the picture is valid SVG"""
    file = small(run)
    svg = run.path("memory.svg")
    said = json.loads(run("explain", file, "memory", "--json", "--svg", svg))
    check(said["bytes"] == sum(said["arenas"].values()) + said["workspace"] == plan_of(run, file)["peak_bytes"], f"{said['arenas']}")
    check(sum(h["bytes"] for h in said["holders"] if "func" in h) == said["peak_live"] <= said["arenas"]["work"], "live bytes at the peak")
    check(open(svg).read().count("<rect") > 10, "a picture")
    text = run("explain", file, "memory")
    check("parameters, always" in text and "llama.lm:" in text, text)


def test_one_number(run):
    """compile, explain and run report the same memory, evaluation and samples included, and its parts add up"""
    run.write("t.txt", "\n".join(["the quick brown fox jumps over the lazy dog"] * 40))
    file = run.write("one.lm", f"""import "{ROOT}/examples/llama.lm": Llama
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(docs = 8 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 2, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256); data = D
  run = 2 steps; batch = 256 tokens; micro = 128 tokens
  eval dev {{ data = D.dev; every = 1 steps }}
  sample {{ every = 1 steps; prompt = "the "; n = 300 tokens }}
  save = checkpoint("run")
}}
""")
    said = json.loads(run("explain", file, "memory", "--json"))
    check(said["bytes"] == plan_of(run, file)["peak_bytes"] and said["arenas"]["cache"] > 0, said)
    labels = {h["label"]: h["bytes"] for h in said["holders"]}
    check(labels.get("GEMM workspace", 0) == said["workspace"] and labels["KV cache"] == said["arenas"]["cache"], labels)
    line = re.search(r"^memory  (.*): (.*)$", run("run", file), re.M)
    check(run("explain", file, "memory").startswith(line[1] + " with"), line[0])
    check(f"peak memory {line[1]};" in run("compile", file), line[0])
    size = lambda text: float(text.split()[-2]) * {"B": 1, "kB": 1e3, "MB": 1e6}[text.split()[-1]]
    total, parts = size(line[1]), sum(size(part) for part in line[2].split(", "))
    within("bytes that no part lists", abs(total - parts - said["arenas"]["io"]) / total, 0.02)


def anonymous_bytes(process):
    found = re.search(r"RssAnon:\s+(\d+) kB", open(f"/proc/{process.pid}/status").read())
    return int(found[1]) * 1024 if found else 0


def test_predicted(run):
    """anonymous memory of a run is the plan's plus at most 32 MB"""
    file = small(run, steps=400, rows=128, seq=64)
    predicted = plan_of(run, file)["peak_bytes"]
    p = run.start("run", file, "-q", "--out", run.path("run"))
    wait_for(run.path("run/metrics.jsonl"), p)
    try:
        while p.poll() is None and open(run.path("run/metrics.jsonl")).read().count("\n") < 3:   # by then all of it was written to
            time.sleep(0.005)
        most = anonymous_bytes(p)
    finally:
        p.kill()
        p.communicate()
    check(most > 0.8 * predicted)
    within("MB resident beyond the plan", (most - predicted) / 1e6, 32)
