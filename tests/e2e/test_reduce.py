"""precision { reduce = bf16 }: gradients that ranks send each other in half of the bytes."""
import json, re

import numpy as np
from harness import check, load, random_batches, small, within
from test_ranks import PATIENT, curve, model, mpi_needed, tensors

SANITIZER_BUILD = set()
MESHES = {"dp4": (4, "mesh=(dp = 4)"), "zero1": (4, "mesh=(dp = 4)", "zero=1"), "hsdp": (4, "mesh=(dp = 2, fsdp = 2)"),
          "dp2tp2": (4, "mesh=(dp = 2, tp = 2)"), "cp2": (2, "mesh=(cp = 2)"), "pp2": (2, "mesh=(pp = 2)"),
          "dp2": (2, "mesh=(dp = 2)"), "zero2": (2, "mesh=(dp = 2)", "zero=2")}


def sets(name, reduce):
    return [word for s in [f"parallel.{s}" for s in MESHES[name][1:]] + [f"precision.reduce={reduce}"] for word in ("--set", s)]


def train(run, file, name, reduce, folder):
    return run("run", file, *sets(name, reduce), "--ranks", MESHES[name][0], "--out", run.path(folder), "-q", env=PATIENT)


def of_gradients(x):
    return x["name"].startswith("the sum of the gradients") or (x["kind"] == "reduce_scatter" and x["over"] in ("dp", "fsdp"))


def test_sent(run):
    """Gradients are sent in half of the bytes and as many messages, everything else as before, in `lmc explain cost` and `lmc check`."""
    file = model(run, depth=2, micro=64)
    elements = {"dp4": ({"all_reduce": 31744}), "zero1": ({"all_reduce": 17408, "reduce_scatter": 7 * 512})}
    for name in ("dp4", "zero1", "hsdp", "dp2tp2", "cp2", "pp2"):
        cost, one = ([json.loads(run(*command, *sets(name, r), "--json")) for r in ("f32", "bf16")]
                     for command in (("explain", file, "cost"), ("check", file)))
        wide, narrow = (sorted(c["collectives"], key=lambda x: (x["name"], x["elements"])) for c in cost)
        saved = 0
        for a, b in zip(wide, narrow, strict=True):
            half = a["bytes"] // 2 if of_gradients(a) else a["bytes"]
            check(b == {**a, "bytes": half, **{key: b[key] for key in ("lane", "beside", "beside_ms", "transfer_ms", "exposed_ms")}}, f"{name}: {a} became {b}")
            check((b["transfer_ms"] < a["transfer_ms"]) == (half < a["bytes"]), f"{name}: {a} became {b}")
            saved += a["bytes"] - half
        check(saved > 0 and one[0][0]["sent_bytes"] - one[1][0]["sent_bytes"] == saved, f"{name}: {saved} {one}")
        for kind, n in elements.get(name, {}).items():
            found = sum(x["elements"] * x["times"] for x in narrow if x["kind"] == kind and of_gradients(x))
            check(found == n, f"{name}: {kind} of {found} elements, expected {n}")
            sent = sum(x["bytes"] for x in narrow if x["kind"] == kind and of_gradients(x))
            check(sent == (2 * 2 * n * 3 // 4 if kind == "all_reduce" else 2 * n * 3), f"{name}: {kind} sends {sent} bytes")
    run("compile", file, *sets("dp4", "bf16"), "-o", run.path("plan"))
    reduce = open(run.path("plan", "plan.txt")).read().split("func reduce ")[1].split("\nfunc ")[0]
    check(re.search(r"start all_reduce sum bf16 31744 over dp .* work\[0 : 63488\] -> work\[0 : 63488\]", reduce), reduce)
    one = [run.path("one", r, "plan.txt") for r in ("f32", "bf16") if run("compile", file, "--set", f"precision.reduce={r}", "-o", run.path("one", r))]
    check(open(one[0]).read() == open(one[1]).read(), "one process sends nothing")


def test_curves(run):
    """20 steps: the gradient norm of the first within 2^-8 of f32's, the losses within 1 %; two runs are equal."""
    mpi_needed(run)
    file = model(run)
    for name in ("dp4", "hsdp"):
        train(run, file, name, "f32", f"{name}.f32")
        train(run, file, name, "bf16", name)
        norms, losses = (list(zip(curve(run.path(name), key), curve(run.path(f"{name}.f32"), key), strict=True)) for key in ("grad_norm", "loss"))
        check(0 < abs(norms[0][0] / norms[0][1] - 1) <= 2 ** -8, f"{name}: the norms of the first step: {norms[0]}")
        for step, (a, b) in enumerate(losses):
            within(f"{name}: loss of step {step + 1}", abs(a - b) / b, 0.01)
    train(run, file, "hsdp", "bf16", "again")
    check(tensors(run.path("again"), 20) == tensors(run.path("hsdp"), 20), "two runs differ")


def test_rounding(run):
    """Each element of a gradient: the terms of two ranks rounded to bf16, and their sum. A step of sgd shows a gradient, and one process
    the term of each rank: of half of the rows."""
    mpi_needed(run)
    batches = random_batches(1, 4, 16)
    weight = [batches["w"][:, rows].sum() for rows in (slice(0, 2), slice(2, 4))]

    def step(name, rows, lr, *mesh):
        part = {key: np.ascontiguousarray(x[:, rows]) for key, x in batches.items()}
        file = small(run, steps=1, rows=part["tok"].shape[1], batches=part, more='save = checkpoint("run", every = 1 steps)')
        text = open(file).read()
        for old, new in (("adamw(lr = 3e-3)", f"sgd(lr = {lr})"), (re.search(r"; schedule = \S+ = \d+ steps\)", text)[0], ""),
                         ("clip = global_norm(max = 1.0)", "clip = none")):
            check(old in text, text)
            text = text.replace(old, new)
        open(file, "w").write(re.sub(r"  group .*\n", "", text))
        train(run, file, *mesh, name) if mesh else run("run", file, "--out", run.path(name), "-q")
        return {k: x.astype("f8") for k, x in load(run.path(name, "step-000001", "model.safetensors")).items()}

    first = step("first", slice(0, 4), 0)
    halves = [step(f"half{k}", slice(2 * k, 2 * k + 2), 1) for k in (0, 1)]
    for mesh in ("dp2", "zero2"):
        after = step(mesh, slice(0, 4), 1, mesh, "bf16")
        rounded = 0
        for name, p in first.items():
            terms = [(p - halves[k][name]) * weight[k] / sum(weight) for k in (0, 1)]
            error = np.abs(p - after[name] - terms[0] - terms[1])
            size = np.abs(terms[0]) + np.abs(terms[1])
            noise = 2.0 ** -22 * (np.abs(p) + 2 * size)     # of the f32 parameters from which the gradients follow
            check((error <= 2.0 ** -7 * (1 + 2.0 ** -8) * size + noise).all(), f"{mesh}: {name} is off by {(error / (size + noise)).max()}")
            rounded += ((error > 2.0 ** -11 * size + noise)).mean() / len(first)
        check(rounded > 0.25, f"{mesh}: {rounded:.0%} of the elements are rounded")
