"""Stages that change the length of rows: one plan for all of them, and the same bits after a kill at any border."""
import json

import numpy as np
from harness import ROOT, check, folder_bytes, remove

STAGES = """import "{root}/examples/llama.lm": Llama
data Text {{
  source a = text("a.txt", split = "\\n"); source b = text("b.txt", split = "\\n")
  mix = (a = 3, b = 1); {holdout}
  pack best_fit(seq = 16 tokens)
  {stages}
}}
recipe R {{
  model = Llama(depth = 2, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256, drop = 0.1)
  data = Text; seed = 3
  run = 24 steps; batch = 256 tokens; micro = 128 tokens
  optimizer = adamw(lr = 3e-3)
  {more}
  save = checkpoint("run", every = 3 steps, keep = all)
}}
"""
LENGTHS = "stage 25% { pack best_fit(seq = 64 tokens) }; stage 50% { mix = (a = 1, b = 3); pack best_fit(seq = 16 tokens) }; stage 75% { pack best_fit(seq = 32 tokens) }"


def texts(run):
    for name, words in (("a", "the river stone light under morning"), ("b", "would because nothing window between people")):
        words = words.split()
        run.write(f"{name}.txt", "\n".join(" ".join(words[(i * k + k // 3) % len(words)] for k in range(1, 3 + i * 7 % 23)) for i in range(1, 260)))


def stages(run, stages=LENGTHS, name="stages.lm", holdout="", more=""):
    return run.write(name, STAGES.format(root=ROOT, stages=stages, holdout=holdout, more=more))


def losses(run, folder):
    return {x["step"]: x for x in map(json.loads, open(run.path(folder, "metrics.jsonl")))}


def test_kill_and_resume(run):
    """resuming before, at and after the start of a stage (6, 12, 18) gives the same final bits"""
    texts(run)
    file = stages(run)
    run("run", file, "--out", run.path("whole"), "-q")
    end = folder_bytes(run.path("whole/step-000024"))
    for step in range(3, 24, 3) if run.nightly else (3, 6, 12):
        for later in range(step + 1, 25):
            remove(run.path(f"whole/step-{later:06}"))
        out = run("run", file, "--out", run.path("whole"))
        check(f"resumed at step {step}" in out, out)
        check(folder_bytes(run.path("whole/step-000024")) == end, f"resumed at step {step}: the final checkpoint differs")
    check(sorted(losses(run, "whole")) == list(range(1, 25)), "metrics.jsonl must have every step once")


def test_first_stage(run):
    """the first stage gives the losses of a recipe without later stages; a step has equal numbers of positions at each length"""
    texts(run)
    run("run", stages(run), "--out", run.path("staged"), "-q")
    run("run", stages(run, "", "plain.lm"), "--out", run.path("plain"), "-q")
    a, b = losses(run, "staged"), losses(run, "plain")
    check(all(a[k]["loss"] == b[k]["loss"] for k in range(1, 7)) and a[7]["loss"] != b[7]["loss"], "losses of the first six steps alone are equal")
    x, y = (folder_bytes(run.path(f"{folder}/step-000006")) for folder in ("staged", "plain"))
    check(all(x[f] == y[f] for f in ("model.safetensors", "optimizer.safetensors")), "the parameters must be equal")
    check(all(a[k]["tokens"] - a[k - 1]["tokens"] > 0.8 * 256 for k in range(2, 25)), "batches are full at each length")


def test_document_partly_held_out(run):
    """a source of one document that a tail divides has no row in a stage of another length: the message says why"""
    texts(run)
    run.write("a.txt", "one long line of words " * 500)
    file = stages(run, holdout="holdout dev = tail(10%)", stages="stage 50% { pack best_fit(seq = 32 tokens) }")
    code, _, err = run.result("run", file)
    check(code == 1 and "partly in a `tail` holdout is left out" in err and "no row of 16 tokens" in err, err)


def test_evaluation(run):
    """holdouts are rows of the last length, of documents that no stage trains on"""
    texts(run)
    file = stages(run, holdout="holdout dev = tail(10%)", more="eval dev { data = Text.dev; every = 8 steps }")
    out = run("run", file, "--out", run.path("run"))
    check(out.count("dev loss") == 3, out)
    check("rows of 32 tokens" in run("data", file), "holdouts must have rows of the last length")


def test_trace(run):
    """two steps, one of each length: the losses of the run, and the logits of the first step's rows"""
    texts(run)
    for name, (first, then) in {"up": (16, 64), "down": (64, 16)}.items():
        file = stages(run, f"stage 0% {{ pack best_fit(seq = {first} tokens) }}; stage 50% {{ pack best_fit(seq = {then} tokens) }}", f"{name}.lm")
        run("run", file, "--out", run.path(name), "-q", "--set", "run = 2 steps")
        t = run.trace(file, "--set", "run = 2 steps", "--steps", 2)
        check(t["logits"].shape == (256 // first, first, 256), t["logits"].shape)
        check([float(x) for x in t["loss"]] == [float(np.float32(losses(run, name)[k]["loss"])) for k in (1, 2)], t["loss"])


def test_all_compiled(run):
    """the plan has a function for each length, and its text parses"""
    texts(run)
    file = stages(run)
    run("compile", file, "-o", run.path("plan"), "--emit", "ir,dot")
    check('digraph "micro.64" {' in open(run.path("plan/micro.64.dot")).read(), "a name with a point must be quoted")
    plan = open(run.path("plan/plan.txt")).read()
    check(all(f"func {f} " in plan for f in ("micro", "micro.16", "micro.64")), "lengths 32, 16, 64")
    check("func @micro.64" in run("opt", run.path("plan/kernel.lmir")), "kernel.lmir")


def test_changed(run):
    """a resumed run keeps its lengths"""
    texts(run)
    file = stages(run)
    run("run", file, "--out", run.path("run"), "-q", "--steps", 2)
    other = stages(run, LENGTHS.replace("64 tokens", "128 tokens"), "other.lm")
    err = run("run", other, "--out", run.path("run"), status=1)
    check("data.stage.25%.pack.seq was 64 tokens, is 128 tokens" in err, err)


def test_data(run):
    """each stage is reported: its steps, rows and mix"""
    texts(run)
    file = stages(run)
    out = run("data", file)
    for line in ("steps 1 to 6: 16 rows of 16 tokens; a 75 %, b 25 %", "steps 7 to 12: 4 rows of 64 tokens; a 75 %, b 25 %",
                 "steps 13 to 18: 16 rows of 16 tokens; a 25 %, b 75 %", "steps 19 to 24: 8 rows of 32 tokens; a 25 %, b 75 %"):
        check(line in out, out)
    shown = run("data", file, "--show", 1)
    check("rows of the last stage, of 32 tokens" in shown and shown.index("rows of the last stage") < shown.index("row 0"), shown)
    reported = json.loads(run("data", file, "--json"))["stages"]
    check([(x["first"], x["last"], x["seq"], x["rows"], x["mix"]["a"]) for x in reported] ==
          [(1, 6, 16, 16, 0.75), (7, 12, 64, 4, 0.75), (13, 18, 16, 16, 0.25), (19, 24, 32, 8, 0.25)], reported)
