"""Bad steps, through the whole command: they are skipped and counted, rolled back, or stop the run with a
message; none of their results is saved."""
import json, math, os

import numpy as np

from harness import check, folder_bytes, load, random_batches, remove, small

SAVE = 'save = checkpoint("run", every = {every} steps, keep = all)'


def metrics(run, folder="run"):
    return {x["step"]: x for x in map(json.loads, open(run.path(folder, "metrics.jsonl"))) if "loss" in x}


def checkpoints(run, folder="run"):
    return sorted(int(x[5:]) for x in os.listdir(run.path(folder)) if x.startswith("step-"))


def all_finite(run, step, folder="run"):
    at = run.path(folder, f"step-{step:06}")
    return all(np.isfinite(t).all() for f in ("model", "optimizer") for t in load(f"{at}/{f}.safetensors").values())


def poisoned(steps, bad, **shape):
    """batches, some with a weight that is NaN"""
    b = random_batches(steps, 4, 16)
    for step in bad:
        b["w"][step - 1, 0, 0] = math.nan
    return b


def test_left_out(run):
    """two batches of NaN: both steps are skipped and counted"""
    file = small(run, steps=12, batches=poisoned(12, (5, 6)), more=SAVE.format(every=4))
    out = run("run", file, "--out", run.path("run"))
    check("step 5: the loss is not a number; its batch is skipped" in out and "2 bad steps were skipped" in out, out)
    m = metrics(run)
    check(m[5]["loss"] is None and m[6]["loss"] is None and all(math.isfinite(m[k]["loss"]) for k in m if k not in (5, 6)), m)
    check("skipped" not in m[4] and m[5]["skipped"] == 1 and m[12]["skipped"] == 2, m)
    check(checkpoints(run) == [4, 8, 12] and all(all_finite(run, k) for k in (4, 8, 12)), checkpoints(run))
    check(json.loads(run("run", file, "--out", run.path("again"), "--json"))["skipped"] == 2, "the count of the JSON result")
    run("run", file, "--out", run.path("short"), "-q", "--steps", 6)
    four, six = (folder_bytes(run.path(f"short/step-{k:06}")) for k in (4, 6))
    check(all(four[f] == six[f] for f in ("model.safetensors", "optimizer.safetensors")), "skipped steps must change nothing")


def test_many_in_a_row(run):
    """more bad batches than `skip` from the first step on: there is no checkpoint to roll back to"""
    file = small(run, steps=8, batches=poisoned(8, range(1, 9)), more=SAVE.format(every=1) + "\n  guard { skip = 2 }")
    err = run("run", file, "--out", run.path("run"), status=1)
    check("step 3: the loss is not a number; training stops and this state is not saved (there is no checkpoint)" in err, err)
    check(checkpoints(run) == [], checkpoints(run))


def test_none_good(run):
    """a run shorter than `skip` in which every step is skipped fails"""
    file = small(run, steps=2, batches=poisoned(2, (1, 2)), more=SAVE.format(every=1))
    err = run("run", file, "--out", run.path("run"), status=1)
    check("No step succeeded" in err and checkpoints(run) == [], (err, checkpoints(run)))


def test_rollback(run):
    """five bad batches after a checkpoint: roll back to it and continue with the next batches"""
    bad = range(7, 12)
    file = small(run, steps=16, batches=poisoned(24, bad), more=SAVE.format(every=4) + "\n  guard { skip = 3 }")
    out = run("run", file, "--out", run.path("run"))
    check("step 10: the loss is not a number; rolling back to step 4 and skipping the batches since then" in out, out)
    m = metrics(run)
    check(sorted(m) == list(range(1, 17)), sorted(m))
    check(m[5]["loss"] is None and all(math.isfinite(m[k]["loss"]) for k in range(6, 17)), "step 5 uses batch 11, which is skipped")
    end = folder_bytes(run.path("run/step-000016"))
    for step in (12, 16):
        remove(run.path(f"run/step-{step:06}"))
    check("resumed at step 8" in run("run", file, "--out", run.path("run")), "the run must continue after the skipped batches")
    check(folder_bytes(run.path("run/step-000016")) == end, "the index of the next batch must be part of a checkpoint")


EXPLODES = """
fn bang(step: f32, run: f32) -> f32 {{ return select(step < {at}, 1, 1e38) }}
"""


def exploding(run, at, more):
    """from step `at` on, the learning rate is infinite"""
    file = small(run, steps=20, batches=random_batches(60, 4, 16), more=more)
    text = open(file).read().replace("schedule = warmup_cosine(warmup = 5 steps)", "schedule = bang()").replace("adamw(lr = 3e-3)", "adamw(lr = 10)")
    first, rest = text.split("\n", 1)
    open(file, "w").write(first + EXPLODES.format(at=at) + rest)
    return file


def test_stops(run):
    """if a rollback does not help, the run stops with the newest checkpoint before the failure"""
    file = exploding(run, 10, SAVE.format(every=4) + "\n  guard { skip = 1; rollback = 2 }")
    err = run("run", file, "--out", run.path("run"), status=1)
    check("also after a rollback to the newest checkpoint; training stops and this state is not saved" in err and "step-000008" in err, err)
    check(checkpoints(run) == [4, 8] and all_finite(run, 8), checkpoints(run))
    check(os.path.exists(run.path("run/metrics.jsonl")), "the losses before the failure must be in metrics.jsonl")


def test_first_update_runs_away(run):
    """a finite first step with an update that is not finite is not blamed on the data"""
    err = run("run", exploding(run, 1, "guard { skip = 2 }"), status=1)
    check("step 4: the loss is not a number" in err and "No step succeeded" not in err and "smaller learning rate" in err, err)


def test_update_runs_away(run):
    """a step with a finite loss whose update makes parameters not finite is not saved"""
    file = exploding(run, 12, SAVE.format(every=4) + "\n  guard { rollback = 1 }")
    err = run("run", file, "--out", run.path("run"), status=1)
    check("is no longer finite" in err and "step-000008" in err, err)
    check(checkpoints(run) == [4, 8] and all_finite(run, 8), checkpoints(run))


def test_spike(run):
    """after training on one text, a batch of another text is skipped with `spike` and trained on without"""
    b = random_batches(40, 4, 16)
    for name in ("tok", "next"):
        b[name][:] = 3
        b[name][29] = 50
    file = small(run, steps=40, lr="3e-2", batches=b, more=SAVE.format(every=20) + "\n  guard { spike = 1.5 }")
    out = run("run", file, "--out", run.path("run"))
    check("step 30: the loss is far above the losses before it; its batch is skipped" in out and "1 bad steps were skipped" in out, out)
    m = metrics(run)
    check(m[30]["loss"] > 1 and m[29]["loss"] < 0.01 and m[31]["loss"] < 0.01 and m[40]["skipped"] == 1, m)
    out = run("run", file, "--out", run.path("other"), "--set", "guard.spike = 0")
    check("left out" not in out and metrics(run, "other")[31]["grad_norm"] != m[31]["grad_norm"], out)
