"""Resuming: accepted changes, the files that are kept when a run changes, and how an interrupted run ends."""
import json, os, shutil, signal, subprocess, time

import numpy as np

from harness import check, folder_bytes, random_batches, small, wait_for

PROGRAM = """import std.nn: rmsnorm, swiglu, geglu, xent
optimizer Mine(lr, momentum = 0.9) {
  state m: f32 = 0
  update(p: f32, g: f32, k: f32) -> f32 {
    m = momentum * m + g
    return p - lr * m
  }
}
model M(d = 16, ff = 24, vocab = 256, scale = 1) {
  param embed: real[vocab, d] = normal(0.02)
  param norm: real[d] = ones
  param wg, wu: real[d, ff] = normal(d ^ -0.5)
  param wd: real[ff, d] = normal(ff ^ -0.5)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let u = x + swiglu(rmsnorm(x, norm), wg, wu, wd)
    return dot(u, embed, d) * scale
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }
}
data D { source s = text("t.txt", split = "\\n"); holdout dev = sample(4 docs); pack best_fit(seq = 32 tokens) }
recipe R {
  model = M(); data = D; seed = 1
  run = 4 steps; batch = 128 tokens
  optimizer = Mine(lr = 2e-3); group @norm = (momentum = 0.5)
  schedule = warmup_cosine(warmup = 1 steps, floor = 5%)
  precision { compute = f32 }
  eval dev { data = D.dev; every = 4 steps; metrics = [loss] }
  save = checkpoint("run", every = 2 steps, keep = all)
}
"""


def begin(run, text=PROGRAM, name="p.lm"):
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(60)))
    return run.write(name, text)


def history(run, folder="run"):
    return json.load(open(run.path(folder, "history.json")))


def steps_in(run, folder="run"):
    return sorted(int(x[5:]) for x in os.listdir(run.path(folder)) if x.startswith("step-"))


def changed(run, *pairs, name="p.lm"):
    text = PROGRAM
    for old, new in pairs:
        check(old in text, old)
        text = text.replace(old, new)
    return run.write(name, text)


def resume(run, steps, *args, file="p.lm", status=0):
    return run("run", run.path(file), "--out", run.path("run"), "--steps", steps, "-q", *args, status=status)


DIFFERENT = (
    (("+ swiglu", "+ geglu"), "the loss differs", "p.lm:16: is  let u = x + geglu("),
    (("* scale", "* (0.1 * scale)"), "the loss differs", "p.lm:17: was return dot(u, embed, d) * scale"),
    (("scale = 1)", "scale = 3)"), "the loss in evaluation differs", "p.lm:9: is  model M("),
    (("ff = 24", "ff = 32"), "parameter wg was f32[16, 24] normal(0.25), is f32[16, 32] normal(0.25)", "p.lm:9"),
    (("normal(0.02)", "normal(0.03)"), "parameter embed was f32[256, 16] normal(0.02), is f32[256, 16] normal(0.03)", "p.lm:10"),
    (("m + g", "m + 2 * g"), "the optimizer differs", "p.lm:5: is  m = momentum * m + 2 * g"),
    (("momentum = 0.9)", "momentum = 0.8)"), "the optimizer differs", "p.lm:2"),
    (("  state m: f32 = 0\n", "  state m: f32 = 0\n  state n: f32 = 0\n"), "the optimizer differs", "is  state n: f32 = 0"),
)
UNFIT = (DIFFERENT[3], DIFFERENT[-1])  # --change-model would fail


def test_changed_program(run):
    """a changed model, optimizer or default argument is refused with its lines; the run folder is unchanged"""
    begin(run)
    resume(run, 4)
    before = folder_bytes(run.path("run"))
    for case in DIFFERENT:
        pair, part, line = case
        changed(run, pair)
        err = resume(run, 6, status=1)
        check(part in err and line in err and ("--change-model" in err) == (case not in UNFIT), err)
        check(folder_bytes(run.path("run")) == before, "nothing was written")


SAME = (
    (("let u =", "let changed =  "), ("dot(u,", "dot(changed,")),
    (("model M(", "# a comment\n\nmodel M("),),
    (("x + swiglu(rmsnorm(x, norm), wg, wu, wd)", "swiglu(rmsnorm(x, norm), wg, wu, wd) + x"),),
    (("import std.nn: rmsnorm, swiglu, geglu, xent", "import std.nn"),),
    (("    let x = gather", "    let unused = seg + 1\n    let x = gather"),),
    (("    let u = x + swiglu(rmsnorm(x, norm), wg, wu, wd)", "    let y = rmsnorm(x, norm)\n    let u = x + swiglu(y, wg, wu, wd)"),),
)


def test_same_program(run):
    """changed names, comments, layout and order resume; so do run, micro-batches, mode and evaluations"""
    begin(run)
    resume(run, 2)
    step = 2
    for pairs in SAME:
        changed(run, *pairs)
        step += 1
        resume(run, step)
    begin(run)
    resume(run, step + 1, "--set", "micro = 64 tokens", "--set", "compile = mode(\"max-autotune\", budget = 1 s)", "--set", "eval.dev.every = 3 steps")
    check(not os.path.exists(run.path("run/history.json")), "nothing was changed")


def test_change_model(run):
    """--change-model: the run resumes with the new program, the old one is kept, and the history records it"""
    begin(run)
    resume(run, 4)
    changed(run, ("+ swiglu", "+ geglu"))
    resume(run, 6, "--change-model")
    h = history(run)
    check([(x["step"], x["option"], x["key"], x["program"]) for x in h] ==
          [(4, "--change-model", k, "program-000004") for k in ("loss", "eval")] and h[0]["old"] != h[0]["new"], h)
    check(open(run.path("run/program-000004/program/p.lm")).read() == PROGRAM, "the folder must hold the old program")
    check("+ geglu" in open(run.path("run/program/p.lm")).read(), "the folder must hold the new program")
    out = run("explain", run.path("run"), "changes")
    check("from step 5 on:\n  the loss differs\n" in out and "program-000004" in out, out)
    check("+ swiglu" in out and "+ geglu" in out and h[0]["old"] not in out, "the lines that differ, and no hash")
    check(json.loads(run("explain", run.path("run"), "changes", "--json")) == h, "the same as JSON")
    resume(run, 8)
    check(history(run) == h, "once")
    begin(run)
    err = resume(run, 10, status=1)
    check("p.lm:16: was let u = x + geglu(" in err, err)


def test_change_model_before_a_checkpoint(run):
    """an accepted change without a later checkpoint: the checkpoint still belongs to the old program"""
    begin(run)
    resume(run, 4)
    changed(run, ("+ swiglu", "+ geglu"))
    file, folder = run.path("p.lm"), run.path("run")
    p = run.start("run", file, "--out", folder, "--steps", 100000000, "-q", "--change-model", "--set", "save.every = 100000000 steps")
    while p.poll() is None and "+ geglu" not in open(run.path("run/program/p.lm")).read():
        time.sleep(0.01)
    p.kill()
    p.communicate()
    check(steps_in(run) == [2, 4], "the new program has no checkpoint")
    err = resume(run, 6, status=1)
    check("p.lm:16: was let u = x + swiglu(" in err, err)
    begin(run)
    resume(run, 6)
    check(history(run) == [], "the change must be gone")


def test_old_run(run):
    """a run without the fingerprint of its program: it is computed from the program in its folder"""
    begin(run)
    resume(run, 4)
    state = run.path("run/step-000004/state.json")
    whole = json.load(open(state))
    del whole["model"]
    json.dump(whole, open(state, "w"))
    sums(run.path("run/step-000004"))
    changed(run, ("+ swiglu", "+ geglu"))
    check("the loss differs" in resume(run, 6, status=1), "refused")
    begin(run)
    resume(run, 6)


def fold(a, b):
    m = a * b
    return (m ^ m >> 64) & (1 << 64) - 1


def lm_hash(data, seed):
    """lm_hash of runtime/base/hash.c"""
    k0, k1, k2 = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3
    h = seed ^ k0
    for i in range(0, len(data), 16):
        h = fold(int.from_bytes(data[i : i + 8], "little") ^ k1, int.from_bytes(data[i + 8 : i + 16], "little") ^ h)
    return fold(k2 ^ len(data), fold(h ^ k1, k2 ^ seed))


def sums(folder):
    """checksums.txt for state.json as it is now"""
    path, data = os.path.join(folder, "checksums.txt"), open(os.path.join(folder, "state.json"), "rb").read()
    lines = open(path).read().split("\n")[:-2]
    lines = [f"{len(data)} {lm_hash(data, 0):016x} state.json" if x.endswith(" state.json") else x for x in lines]
    text = "\n".join(lines) + "\n"
    open(path, "w").write(f"{text}{lm_hash(text.encode(), 0):016x}\n")


def test_change(run):
    """--change KEY accepts this value alone; the history holds old and new"""
    begin(run)
    resume(run, 4)
    changed(run, ("lr = 2e-3", "lr = 0.001"), ("floor = 5%", "floor = 6%"))
    err = resume(run, 6, status=1)
    check("optimizer.lr was 2e-3, is 0.001" in err and "--change optimizer.lr --change schedule.floor" in err, err)
    err = resume(run, 6, "--change", "optimizer.lr", status=1)
    check("schedule.floor was 5%, is 6%" in err and "optimizer.lr" not in err, err)
    err = resume(run, 6, "--change", "optimizr.lr", status=1)
    check("did you mean optimizer.lr?" in err, err)
    changed(run, ("lr = 2e-3", "lr = 0.001"), ("floor = 5%", "floor = 6%"), ("+ swiglu", "+ geglu"))
    err = resume(run, 6, "--change", "optimizer", "--change", "schedule.floor", status=1)
    check("the loss differs" in err and "the optimizer differs" not in err, err)
    changed(run, ("lr = 2e-3", "lr = 0.001"), ("floor = 5%", "floor = 6%"))
    resume(run, 6, "--change", "optimizer", "--change", "schedule.floor")
    h = [(x["step"], x["option"], x["key"], x["old"], x["new"], x["program"]) for x in history(run)]
    check(h == [(4, "--change", "optimizer.lr", "2e-3", "0.001", None), (4, "--change", "schedule.floor", "5%", "6%", None)], h)
    changed(run, ("lr = 2e-3", "lr = 1e-3"), ("floor = 5%", "floor = 6%"))
    resume(run, 8, "--disable-pass", "cse", "--change", "--disable-pass")
    err = resume(run, 9, status=1)
    check("--disable-pass was cse, is absent" in err and "new value: --change --disable-pass;" in err, err)
    resume(run, 9, "--change", "--disable-pass")
    check([(x["old"], x["new"]) for x in history(run)[2:]] == [("absent", "cse"), ("cse", "absent")], history(run))


def test_change_of_a_finished_run(run):
    """a finished run computes no step, so an accepted value is not recorded; a longer run can still accept it"""
    begin(run)
    resume(run, 4)
    changed(run, ("lr = 2e-3", "lr = 1e-3"))
    resume(run, 4, "--change", "optimizer.lr")
    check(not os.path.exists(run.path("run/history.json")), "a change without a step")
    resume(run, 6, "--change", "optimizer.lr")
    check([(x["step"], x["key"]) for x in history(run)] == [(4, "optimizer.lr")], history(run))


def test_changed_lr_counts(run):
    """an accepted change takes effect in training"""
    begin(run)
    resume(run, 4)
    changed(run, ("lr = 2e-3", "lr = 0"))
    resume(run, 6, "--change", "optimizer.lr")
    four, six = (open(run.path(f"run/step-{k:06}/model.safetensors"), "rb").read() for k in (4, 6))
    check(four == six, "a rate of 0 changes no parameter")


def test_superseded(run):
    """--resume never, or resuming an older checkpoint, moves the later checkpoints to a complete superseded-N folder; `keep` does not count them"""
    file = begin(run)
    resume(run, 8)
    whole = {k: folder_bytes(run.path(f"run/step-{k:06}")) for k in (2, 4, 6, 8)}
    metrics = open(run.path("run/metrics.jsonl")).read()
    code, out, err = run.result("run", file, "--out", run.path("run"), "-q", "--steps", 6, "--resume", run.path("run/step-000004"), "--set", "save.keep = 1")
    check(code == 0 and "steps 6, 8" in err and "superseded-1" in err, err)
    check(steps_in(run) == [6] and steps_in(run, "run/superseded-1") == [6, 8], os.listdir(run.path("run")))
    check(open(run.path("run/superseded-1/metrics.jsonl")).read() == metrics, "the metrics of superseded steps")
    code, out, err = run.result("run", file, "--out", run.path("run"), "-q", "--steps", 2, "--resume", "never")
    check(code == 0 and "superseded-2" in err and steps_in(run) == [2] and steps_in(run, "run/superseded-2") == [6], err)
    for k in (6, 8):
        check(folder_bytes(run.path(f"run/superseded-1/step-{k:06}")) == whole[k], f"step {k} as it was")
    run("generate", run.path("run/superseded-1"), "-p", "line", "-n", 2)
    run("run", file, "--out", run.path("run"), "-q", "--steps", 4)
    check(steps_in(run) == [2, 4] and not os.path.exists(run.path("run/superseded-3")), "a run that is resumed supersedes nothing")


def weightless(steps, empty, value=0.0):
    b = random_batches(steps, 4, 16)
    for step in empty:
        b["w"][step - 1] = value
    return b


def losses(run, folder="run"):
    return {x["step"]: x for x in map(json.loads, open(run.path(folder, "metrics.jsonl"))) if "loss" in x}


def test_no_weight(run):
    """batches whose weights sum to 0 or less are skipped, counted and reported once; a resumed run gives the same bits"""
    save = 'save = checkpoint("run", every = 1 steps, keep = all)'
    for value in (0.0, -1.0):
        file = small(run, steps=12, batches=weightless(12, (3, 4, 5, 6, 7, 10), value), more=save)
        folder = f"whole{value}"
        out = run("run", file, "--out", run.path(folder))
        check(out.count("all further ones like it are skipped") == 1 and "step 3: the weights of its tokens sum to" in out, out)
        check("6 steps were skipped, since" in out and "bad steps" not in out, out)
        m = losses(run, folder)
        check(all((m[k]["loss"] is None) == (k in (3, 4, 5, 6, 7, 10)) for k in range(1, 13)) and m[12]["empty"] == 6 and "empty" not in m[2], m)
        two, seven, eight = (folder_bytes(run.path(folder, f"step-{k:06}"))["model.safetensors"] for k in (2, 7, 8))
        check(two == seven != eight, "no update")
        result = json.loads(run("run", file, "--out", run.path("json" + folder), "--json"))
        check(result["empty"] == 6 and result["skipped"] == 0, result)


def test_no_weight_resumed(run):
    save = 'save = checkpoint("run", every = 1 steps, keep = all)'
    file = small(run, steps=8, batches=weightless(8, (3, 4, 6)), more=save)
    run("run", file, "--out", run.path("whole"), "-q")
    end = folder_bytes(run.path("whole/step-000008"))
    for step in (3, 5):
        for k in range(step + 1, 9):
            shutil.rmtree(run.path(f"whole/step-{k:06}"))
        run("run", file, "--out", run.path("whole"), "-q")
        check(folder_bytes(run.path("whole/step-000008")) == end, f"resumed at step {step}")


def test_no_weight_in_a_micro_batch(run):
    b = random_batches(4, 4, 16)
    b["w"][1, :2] = 0
    file = small(run, steps=4, micro=32, batches=b)
    out = json.loads(run("run", file, "--json"))
    check(out["empty"] == 0 and out["skipped"] == 0 and out["loss"] > 0, out)


def test_no_weight_at_all(run):
    """if all batches are skipped, the run fails early"""
    for steps in (4, 300):
        batches = random_batches(steps, 4, 16)
        batches["w"] = np.zeros_like(batches["w"])
        file = small(run, steps=steps, batches=batches)
        err = run("run", file, "-q", status=1)
        check(f"step {min(steps, 100)}: the weights of its tokens sum to 0, and no step had a positive sum" in err, err)


def test_exit_status(run):
    """a signal saves a checkpoint and exits with 128 + signal; the same command resumes"""
    file = small(run, steps=100000, rows=2, more='save = checkpoint("run", every = 100000 steps)')
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        folder = run.path(f"run{number}")
        p = run.start("run", file, "--out", folder)
        metrics = os.path.join(folder, "metrics.jsonl")
        wait_for(metrics, p)
        while p.poll() is None and not os.path.getsize(metrics):
            time.sleep(0.01)
        p.send_signal(number)
        out, err = p.communicate()
        check(p.returncode == 128 + number and ", saved" in out, (p.returncode, out, err))
        check(len(steps_in(run, f"run{number}")) == 1, os.listdir(folder))


def test_closed_pipe(run):
    """a closed standard output does not stop the run"""
    file = small(run, steps=30, more='save = checkpoint("run")')
    p = subprocess.run(f"'{run.lmc}' run '{file}' --out '{run.path('run')}' | head -n 1; echo ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash",
                       capture_output=True, text=True)
    check(p.stdout.endswith("\n0\n") and not p.stderr and steps_in(run) == [30] and len(losses(run)) == 30, (p.stdout, p.stderr))
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            p = subprocess.run([run.lmc, "run", file, "--out", run.path("full")], stdout=full, stderr=subprocess.PIPE, text=True)
        check(p.returncode == 2 and "cannot write to standard output" in p.stderr and steps_in(run, "full") == [30], p.stderr)


def test_time_left(run):
    """the estimated time counts the remaining steps only"""
    file = begin(run)
    first = run("run", file, "--out", run.path("run"))
    more = run("run", file, "--out", run.path("run"), "--steps", 10)
    none = run("run", file, "--out", run.path("run"), "--steps", 10)
    check(": 4 steps of 128 tokens" in first and ": 6 further steps of 128 tokens" in more and "\ntime " not in none, (first, more, none))


def test_from_a_run(run):
    """`from` a run's folder takes its newest undamaged checkpoint"""
    begin(run)
    resume(run, 4)
    with open(run.path("run/step-000004/model.safetensors"), "ab") as f:
        f.write(b"x")
    file = changed(run, ("model = M()", "model = N"), ("recipe R {", f'model N = M() from "{run.path("run")}"\nrecipe R {{'), ("lr = 2e-3", "lr = 0"), name="from.lm")
    code, out, err = run.result("run", file, "--out", run.path("new"), "-q")
    check(code == 0 and "step-000002" in err and "model.safetensors has" in err, err)
    was, now = (open(run.path(x, "model.safetensors"), "rb").read() for x in ("run/step-000002", "new/step-000004"))
    check(was == now, "the weights of step 2, because a learning rate of 0 changes nothing")


def test_from_on_resume(run):
    """a run reads `from` when it begins; it is resumed from its own checkpoint, without a note and without those weights"""
    begin(run)
    resume(run, 4)
    file = changed(run, ("model = M()", "model = N"), ("recipe R {", f'model N = M() from "{run.path("run")}"\nrecipe R {{'), name="from.lm")
    first, more = (run.result("run", file, "--out", run.path("new"), "-q", "--steps", n) for n in (1, 2))
    check(first[0] == more[0] == 0 and "the weights are loaded from" in first[2] and more[2] == "", first[2] + more[2])
    os.rename(run.path("run"), run.path("moved"))
    code, out, err = run.result("run", file, "--out", run.path("new"), "-q", "--steps", 3)
    check(code == 0 and err == "", err)
    for command in ("check", "run"):
        err = run(command, file, *(("--out", run.path("other")) if command == "run" else ()), status=1)
        check(f"error[E215]: there is no file or folder {run.path('run')}" in err, err)


def test_check_refuses_what_run_refuses(run):
    """lmc check also reports features that are not available yet"""
    begin(run)
    stages = (("pack best_fit(seq = 32 tokens) }", "pack best_fit(seq = 32 tokens); stage 50% { pack best_fit(seq = 16 tokens) } }"), ("run = 4 steps", "run = 2 epochs"))
    cases = [(changed(run, *stages, name="stages.lm"), ()), *((run.path("p.lm"), ("--set", x)) for x in (
        "parallel { pipeline = zero_bubble }", "parallel { sequence = pp }"))]
    for file, options in cases:
        errors = [run(command, file, *options, status=1) for command in ("check", "run")]
        check("error[E900]" in errors[0] and errors[0] == errors[1], errors)
