"""Parts of a model with separate weights (`sub … = M() from "PATH"`), and `bare`, an instance without its adapters."""
import json, os

import numpy as np

from harness import ROOT, check, folder_bytes, load, random_batches, remove, save

PROGRAM = """import "{root}/examples/zoo/llama.lm": Llama
import std.adapt: lora
model Pair(depth = 1) {{
  sub student = Llama(depth = depth, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 32)
  sub teacher = Llama(depth = 2, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 32) from "{path}"
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return student(tok, pos, seg) }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let y = f32(teacher(bt.tok, bt.pos, bt.seg))
    let z = f32(student(bt.tok, bt.pos, bt.seg))
    emit known = sum(y * y)
    return (sum((y - z) * (y - z)), sum(bt.w))
  }}
}}
model Policy() {{
  sub policy = Llama(depth = 2, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 32) from "{path}"
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let y = f32(policy.bare(bt.tok, bt.pos, bt.seg))
    let z = f32(policy(bt.tok, bt.pos, bt.seg))
    emit known = sum(y * y)
    emit apart = sum((y - z) * (y - z))
    return (sum(z * f32(expand(bt.tok, vocab))), sum(bt.w))
  }}
}}
model Adapted = Policy() with {{ adapt @policy.layers.*.**.{{wq,wv}} = lora(rank = 2) }}
model Base = Llama(depth = 2, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 32)
{more}
data D {{ source s = batches("batches.safetensors") }}
recipe Teacher {{
  model = Base; data = D; run = 2 steps; seed = 3; batch = 64 tokens
  optimizer = adamw(lr = 0.01, decay = 0.1); precision {{ compute = {compute} }}
  save = checkpoint("runs/teacher", every = 2 steps)
}}
recipe Student extends Teacher {{
  model = {model}; run = {steps} steps; seed = 5; batch = 64 tokens; micro = 32 tokens
  save = checkpoint("runs/student", every = 2 steps, keep = all)
}}
"""


TWO = """model Two(vocab = 32) {
  sub a = Llama(depth = 2, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 32) from "runs/teacher"
  param s: f32[vocab] = ones
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let y = a.bare(bt.tok, bt.pos, bt.seg)
    return (sum(f32(y) * s), sum(bt.w))
  }
}"""


def program(run, model="Pair()", path="runs/teacher", steps=4, compute="f32", more="", name="p.lm"):
    if not os.path.exists(run.path("batches.safetensors")):
        one = random_batches(1, 4, 16, 32)
        save(run.path("batches.safetensors"), {n: np.repeat(t, 100, 0) for n, t in one.items()})   # the same batch at each step
    file = run.write(name, PROGRAM.format(root=ROOT, path=path, model=model, steps=steps, compute=compute, more=more))
    if not os.path.exists(run.path("runs/teacher")):
        run("run", file, "--recipe", "Teacher", "-q")
    return file


def metric(run, name):
    rows = [json.loads(line) for line in open(run.path("runs/student/metrics.jsonl"))]
    return [r[name] for r in rows if name in r]


def test_source_frozen(run):
    """a teacher has no gradient, no state and no copy in checkpoints, and computes the same after 100 steps with decay"""
    file = program(run, steps=100)
    run("run", file, "--recipe", "Student", "-q", "--set", "save.every=100 steps")
    known = metric(run, "known")
    check(len(known) == 100 and len(set(known)) == 1, known)
    out = run.trace(file, "--recipe", "Student", "--steps", "2", "--values", "grads,params")
    check(all(n.split(".")[1] == "student" for n in out), list(out))
    check(all(n.startswith("student.") for n in load(run.path("runs/student/step-000100/model.safetensors"))))
    arenas = json.loads(run("explain", file, "memory", "--recipe", "Student", "--json"))["arenas"]
    teacher = sum(t.nbytes for t in load(run.path("runs/teacher/step-000002/model.safetensors")).values())
    check(teacher <= arenas["fixed"] <= teacher + 64 * 32)
    check("trained" in run("check", file, "--recipe", "Student"))


def test_source_dropout(run):
    """a frozen part computes without dropout; one with a trained parameter, with it"""
    text = open(program(run, steps=3)).read()
    dropped = text.replace("apply(tok", "sub noise = Noise()\n  apply(tok").replace("let y = f32(teacher", "let y = noise(f32(teacher") \
        .replace("bt.seg))\n    let z = f32(student", "bt.seg)))\n    let z = f32(student")
    block = "block Noise(vocab = 32) {{ param s: f32[vocab] = ones; apply(x: f32[b, t, vocab]) -> f32[b, t, vocab] {{ return dropout(x, 0.5) * s }} }}\n".replace("{{", "{").replace("}}", "}")
    for source, edits, same in ((' from "noise.safetensors"', "", True), ("", "", False),
                                (' from "noise.safetensors"', "model Trains = Pair() with { train @noise.** }", False)):
        save(run.path("noise.safetensors"), dict(s=np.ones(32, "<f4")))
        remove(run.path("runs/student"))
        file = run.write("n.lm", block + edits + "\n" + dropped.replace("Noise()\n", f"Noise(){source}\n")
                         .replace("model = Pair()", "model = Trains" if edits else "model = Pair()"))
        run("run", file, "--recipe", "Student", "-q")
        check((len(set(metric(run, "known"))) == 1) == same, (source, edits, metric(run, "known")))


def test_source_formats(run):
    """the same numbers from a run, a file of native names and a folder of transformers; in bf16 too"""
    program(run)
    run("export", run.path("runs/teacher"), "-o", run.path("hf"))
    paths = "runs/teacher", "runs/teacher/step-000002/model.safetensors", "hf:hf"
    for compute in "f32", "bf16":
        out = [run.trace(program(run, path=p, compute=compute), "--recipe", "Student", "--values", "loss,grads") for p in paths]
        for other in out[1:]:
            check(all(np.array_equal(other[n], out[0][n]) for n in out[0]), compute)


def test_source_trained(run):
    """`train` trains such a part from its weights; two parts of one file differ by training alone"""
    more = "model Both = Pair(depth = 2) with { train @teacher.** }"
    file = program(run, model="Both", more=more)
    start = run.trace(file, "--recipe", "Student", "--steps", "1", "--values", "params", "--set", "optimizer.lr=0")
    teacher = load(run.path("runs/teacher/step-000002/model.safetensors"))
    check(all(np.array_equal(start["final.teacher." + n], t) for n, t in teacher.items()))
    out = run.trace(file, "--recipe", "Student", "--steps", "2", "--values", "params")
    check(not np.array_equal(out["final.teacher.embed"], teacher["embed"]))


def test_source_resume(run):
    """a resumed run gives the same bytes; another teacher is refused, and named"""
    file = program(run)
    run("run", file, "--recipe", "Student", "-q")
    whole = folder_bytes(run.path("runs/student/step-000004"))
    remove(run.path("runs/student/step-000004"))
    run("run", file, "--recipe", "Student", "-q")
    check(folder_bytes(run.path("runs/student/step-000004")) == whole)
    run("generate", run.path("runs/student"), "--prompt-ids", "1,2", "--ids", "-n", "2", "-t", "0")
    remove(run.path("runs/student/step-000004"))
    remove(run.path("runs/teacher"))
    run("run", file, "--recipe", "Teacher", "-q", "--set", "seed=4")
    error = run("run", file, "--recipe", "Student", "-q", status=1)
    check("was trained on other frozen parameters of teacher: on" in error and "runs/teacher" in error, error)


def test_source_bare(run):
    """`bare` is the model without its adapters: equal at the first step, and unchanged when they have changed"""
    file = program(run, model="Adapted", steps=6)
    run("run", file, "--recipe", "Student", "-q")
    known, apart = metric(run, "known"), metric(run, "apart")
    check(len(set(known)) == 1 and apart[0] == 0 and min(apart[1:]) > 0, (known, apart))
    check(all(".lora." in n for n in load(run.path("runs/student/step-000006/model.safetensors"))))


def test_source_mistakes(run):
    """mistakes are reported where they are"""
    cases = ("Pair()", "no/such", "", "p.lm:5:94: error[E215]: there is no file or folder"), \
        ("Policy()", "runs/teacher", "", "p.lm:34:11: error[E303]: every parameter of Policy is frozen"), \
        ("Two()", "runs/teacher", TWO, "p.lm:30:15: error[E0F6]: `bare` calls an instance without its adapters, and this one of Llama has none"), \
        ("T", "runs/teacher", "model T = Policy() with { train @policy.norm; adapt @policy.layers.*.**.wq = lora(rank = 2) }",
         "p.lm:17:24: error[E0F7]: `bare` calls an instance as it was before training, but policy.norm is trained"), \
        ("T", "runs/teacher", "model T = Pair() with { freeze @** }", "error[E303]"), \
        ("T", "runs/teacher", "model T = Pair() with { freeze @teachers.** }", "error[E0B0]"), \
        ("Pair()", "batches.safetensors", "", "missing: layers.1.wu [16, 32]")
    for model, path, more, message in cases:
        error = run("run", program(run, model=model, path=path, more=more), "--recipe", "Student", "-q", status=1)
        check(message in error, error)
    file = program(run, name="q.lm")
    text = open(file).read().replace('from "runs/teacher"', "from teacher", 1)
    check("error[E22D]: the weights must be a path in quotes" in run("check", run.write("q.lm", text), status=1))
