"""Edits of a model (`with { … }`): frozen parameters have no gradient, no state and no copy in a checkpoint, and their bytes do not change."""
import json, os, shutil

import numpy as np

from harness import ROOT, check, distance, folder_bytes, load, random_batches, save, within

PROGRAM = """import "{root}/examples/llama.lm": Llama
model Base = Llama(depth = 4, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 64){source}
model Tuned = Llama(depth = 4, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 64){source} with {{
  {edits}
}}
data Batches {{ source s = batches("batches.safetensors") }}
recipe Whole {{
  model = Base; data = Batches; seed = 7
  run = {steps} steps; batch = 64 tokens; micro = 64 tokens
  optimizer = adamw(lr = 3e-3); precision {{ compute = {compute} }}
  save = checkpoint("runs/whole", every = 2 steps, keep = all)
}}
recipe Part extends Whole {{ model = Tuned; save = checkpoint("runs/part", every = 2 steps, keep = all) }}
"""
EDITS = "freeze @**; train @layers.{2,3}.**.{wq,n1}; train @norm"
TRAINED = {"norm", "layers.2.attn.wq", "layers.3.attn.wq", "layers.2.n1", "layers.3.n1"}


def program(run, edits=EDITS, steps=4, compute="f32", source="", name="p.lm"):
    if not os.path.exists(run.path("batches.safetensors")):
        save(run.path("batches.safetensors"), random_batches(120, 4, 16))
    return run.write(name, PROGRAM.format(root=ROOT, edits=edits, steps=steps, compute=compute, source=source))


def arenas(run, file, recipe):
    return json.loads(run("explain", file, "memory", "--recipe", recipe, "--json"))["arenas"]


def test_frozen_flops(run):
    """FLOPs of a step, for MFU, without the gradients of frozen parameters"""
    flops = lambda file, recipe: json.loads(run("bench", file, "--recipe", recipe, "--steps", "1", "--json"))["model_flops"]
    whole, frozen, last = flops(program(run), "Whole"), flops(program(run, "freeze @layers.**"), "Part"), flops(program(run, "freeze @**; train @norm"), "Part")
    weights = 2 * 64 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64) * 4   # GEMMs of the layers
    check(whole - frozen == weights, f"{whole} less {frozen}, expected {weights}")
    check(last == whole / 3 + 2 * 64 * 32 * 64, f"{last}: forward, and the gradient of the logits' input")


def test_frozen_gradients(run):
    """trained parameters have the gradients that they have without freezing, and frozen ones none"""
    for compute, bar in ("f32", 1e-6), ("bf16", 3e-2):
        file = program(run, compute=compute)
        whole = run.trace(file, "--recipe", "Whole", "--values", "loss,grads", "--steps", "1")
        part = run.trace(file, "--recipe", "Part", "--values", "loss,grads", "--steps", "1")
        check({n[5:] for n in part if n.startswith("grad.")} == TRAINED)
        check(whole["loss"][0] == part["loss"][0])
        for n in TRAINED:
            within(f"{compute} {n}", distance(part["grad." + n], whole["grad." + n]), bar)


def test_frozen_memory(run):
    """a frozen parameter takes the bytes of the type that it is computed with, and nothing else"""
    file = program(run)
    for compute, size in ("f32", 4), ("bf16", 2):
        file = program(run, compute=compute)
        whole, part = arenas(run, file, "Whole"), arenas(run, file, "Part")
        total = json.loads(run("check", file, "--recipe", "Part", "--json"))[0]
        frozen = total["params"] - total["trained"]
        check(part["fixed"] - 64 * 64 <= frozen * size <= part["fixed"])   # tensors are aligned to 64 bytes
        check(part["param"] == part["grad"] == part["state"] // 2 == 5 * 1024 * 4)
        check(whole["fixed"] == 0 and part["copy"] <= whole["copy"])


def test_frozen_bytes(run):
    """after 100 steps the export has the bytes of the base, except the trained tensors; memory is as predicted"""
    run("run", program(run), "--recipe", "Whole", "-q")
    file = program(run, steps=100, source=' from "runs/whole/step-000004"', name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    check(set(load(run.path("runs/part/step-000100/model.safetensors"))) == TRAINED)
    base = load(run.path("runs/whole/step-000004/model.safetensors"))
    out = run.trace(file, "--recipe", "Part", "--values", "params", "--steps", "4")
    check({n[6:] for n in out if n.startswith("final.")} == TRAINED)
    run("export", run.path("runs/part"), "-o", run.path("tuned"))
    run("export", run.path("runs/whole"), "-o", run.path("base"))
    tuned, base = load(run.path("tuned/model.safetensors")), load(run.path("base/model.safetensors"))
    changed = {n for n in base if tuned[n].tobytes() != base[n].tobytes()}
    check(len(changed) == len(TRAINED) and set(tuned) == set(base), changed)


def test_frozen_resume(run):
    """an interrupted run ends with the same bytes; another base is refused by a message that names both"""
    run("run", program(run), "--recipe", "Whole", "-q")
    shutil.copytree(run.path("runs/whole/step-000004"), run.path("base"))
    file = program(run, source=' from "base"', name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    want = folder_bytes(run.path("runs/part/step-000004"))
    shutil.rmtree(run.path("runs/part/step-000004"))
    run("run", file, "--recipe", "Part", "-q")
    check(folder_bytes(run.path("runs/part/step-000004")) == want)
    shutil.rmtree(run.path("base"))
    shutil.copytree(run.path("runs/whole/step-000002"), run.path("base"))
    for command in ("run", file, "--recipe", "Part", "--steps", "6"), ("export", run.path("runs/part"), "-o", run.path("out")):
        message = run(*command, status=1)
        check("was trained on other frozen parameters" in message and message.count("(content ") == 2, message)
    file = program(run, edits="freeze @**; train @norm", source=' from "base"', name="q.lm")
    message = run("run", file, "--recipe", "Part", "--steps", "6", status=1)
    check("parameter layers.attn.wq" in message, message)


def test_frozen_from_seed(run):
    """without `from` the frozen parameters are their initial values, which the seed determines"""
    file = program(run)
    run("run", file, "--recipe", "Part", "-q")
    run("export", run.path("runs/part"), "-o", run.path("a"))
    message = run("export", run.path("runs/part"), "--set", "seed=8", "-o", run.path("b"), status=1)
    check("initial values of seed 7" in message and "initial values of seed 8" in message, message)
    first = run.trace(file, "--recipe", "Whole", "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    out = load(run.path("a/model.safetensors"))
    check(np.array_equal(out["model.embed_tokens.weight"], first["final.embed"]))
