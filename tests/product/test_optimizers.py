"""With --nightly, optimizers of the library against the code of their authors: schedulefree's AdamWScheduleFree,
torch.optim.Muon and transformers' Adafactor, in float64 (optimizers_side.py)."""
import json
import os
import subprocess

import numpy as np

from harness import Skip, check, distance, load, within
from test_optimizer_library import MATRICES, OTHERS, STEPS, as_matrices, path_of, prepare, problems, PARAMS, SIZES

HERE = os.path.dirname(os.path.abspath(__file__))
# ours, theirs and its arguments
CASES = (
    ("schedule_free(lr = 0.01)", "schedule_free", dict(lr=0.01, betas=(0.9, 0.999), foreach=False)),
    ("schedule_free(lr = 0.02, betas = (0.95, 0.99), decay = 0.1, r = 1, power = 1)", "schedule_free",
     dict(lr=0.02, betas=(0.95, 0.99), weight_decay=0.1, r=1, weight_lr_power=1, foreach=False)),
    ("muon(lr = 0.02)", "muon", dict(lr=0.02, weight_decay=0)),
    ("muon(lr = 0.01, momentum = 0.9, nesterov = false, match_rms = true, decay = 0.1)", "muon",
     dict(lr=0.01, momentum=0.9, nesterov=False, adjust_lr_fn="match_rms_adamw", weight_decay=0.1)),
    ("adafactor(lr = 0.02)", "adafactor", dict(lr=0.02, relative_step=False, scale_parameter=True)),
    ("adafactor(lr = 0.01, relative = false, decay = 0.1, clip = 0.5)", "adafactor",
     dict(lr=0.01, relative_step=False, scale_parameter=False, weight_decay=0.1, clip_threshold=0.5)),
)


def matrices():
    """p, x and y of each matrix: the rows of x are the inputs, and y = x p"""
    out = {}
    for name in MATRICES:
        w, x, y = (a.astype("f8") for a in problems()[name])
        batch, n = PARAMS[name][2], SIZES["c"]
        size = int(np.prod([SIZES[a] for a in batch]))
        for k, m in enumerate(as_matrices(name, w)):
            out[f"p.{name}.{k}"] = m
            out[f"x.{name}.{k}"] = x.reshape(size, n, -1)[k]
            out[f"y.{name}.{k}"] = y.reshape(size, n, -1)[k]
    return out


def finals(run, use, folder):
    """the trained weights, and those of evaluations"""
    groups = OTHERS if "schedule" not in use else ""
    run("run", prepare(run, f"optimizer = {use}; {groups}"), "--out", run.path(folder))
    step = run.path(folder, f"step-{STEPS:06d}")
    seen, states = load(f"{step}/model.safetensors"), load(f"{step}/optimizer.safetensors")
    return {n: states.get("trained-weights." + n, t) for n, t in seen.items()}, seen


def test_authors_packages(run):
    """they compute in float64, so the distance after all steps is the rounding of f32 here: at most 3.5e-7, and the bound is that of
    the formulas in float64, 1e-6"""
    if not run.nightly or not os.environ.get("LMC_OPTIMIZERS"):
        raise Skip("only nightly, with a Python that has schedulefree, and torch's file of Muon, in LMC_OPTIMIZERS")
    python, muon = os.environ["LMC_OPTIMIZERS"].split()
    np.savez(run.path("problems.npz"), **matrices())
    cases = json.dumps([[name, args, STEPS] for _, name, args in CASES])
    p = subprocess.run([python, f"{HERE}/optimizers_side.py", muon, run.path("problems.npz"), cases, run.path("out.npz")],
                       capture_output=True, text=True)
    check(p.returncode == 0, p.stderr[-2000:])
    theirs = np.load(run.path("out.npz"))
    for at, (use, kind, _) in enumerate(CASES):
        trained, seen = finals(run, use, f"run{at}")
        for name in MATRICES:
            for suffix, held in (("", trained), (".eval", seen)):
                if suffix and kind != "schedule_free":
                    continue
                for k, m in enumerate(as_matrices(name, held[path_of(name)])):
                    want = theirs[f"{at}.{name}.{k}{suffix}"]
                    start = as_matrices(name, problems()[name][0])[k]
                    check(distance(start, want) > 1e-3, f"{use}: {name} moves")
                    within(f"{use}: {name}.{k}{suffix}", distance(m, want), 1e-6)
