"""compute = f16 with dynamic loss scaling: gradients against PyTorch's float64, casts against numpy, losses beside those of
bf16, the scale through overflows, checkpoints, ranks and the fake GPU."""
import json, math, os, signal

import numpy as np
from harness import check, distance, folder_bytes, load, random_batches, remove, small, wait_for, within
from test_gpu import Fake, routed, tiny
from test_guard import metrics
from test_precision import losses, noisy_rule, reference_check
from test_ranks import PATIENT, QUICK, mpi_needed, rank_pid

SANITIZER_BUILD = {"overflow", "settings"}
FIRST = 2.0 ** 15
SAVE = 'save = checkpoint("run", every = 1 steps, keep = all)'


def test_reference(run):
    """a Llama, at night a GPT-2 too, within the precision of an 11-bit mantissa"""
    for name in ("llama-tiny", "gpt2-tiny")[:2 if run.nightly else 1]:
        reference_check(run, name, "f16", 0.002, 0.004)


def test_casts(run):
    """the copies of parameters in f16, from subnormals to infinities, are numpy's"""
    file = run.write("m.lm", """model M(vocab = 64, d = 40) {
  param small: real[vocab, d] = normal(1e-6)
  param plain: real[vocab, d] = normal(1)
  param large: real[vocab, d] = normal(5e4)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, d] {
    let (x, y, z) = (gather(small, tok, vocab), gather(plain, tok, vocab), gather(large, tok, vocab))
    return select(pos mod 3 == 0, x, select(pos mod 3 == 1, y, z))
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(f32(gather(plain, bt.tok, vocab)) * 0) + sum(bt.w), sum(bt.w)) }
}
data D { source s = batches("batches.safetensors") }
recipe R {
  model = M(); data = D; run = 1 steps; optimizer = sgd(lr = 0)
  precision { compute = f16 }
}
""")
    batches = random_batches(1, 8, 60)
    batches["pos"][:] = np.arange(60)
    small(run, batches=batches)
    got = run.trace(file, "--values", "logits,params", "--steps", 1)
    with np.errstate(over="ignore"):
        tables = np.stack([got[f"final.{k}"].astype("f2").astype("f4") for k in ("small", "plain", "large")])
    want = tables[batches["pos"][0] % 3, batches["tok"][0]]
    check(np.isinf(want).any() and ((want != 0) & (np.abs(want) < 2.0 ** -14)).any(), "the check needs all kinds of numbers")
    check((got["logits"] == want).all(), f"{(got['logits'] != want).sum()} of {want.size} differ")


def test_losses(run):
    """mean losses of 20 steps within 1 % of a bf16 run (test_curves: 1,000 steps of a larger model)"""
    batches = noisy_rule(60, 8, 32)
    bf16, f16 = (losses(run, c, 60, batches).reshape(-1, 20).mean(1) for c in ("bf16", "f16"))
    check(bf16[-1] < 0.95 * bf16[0] and (bf16 != f16).any(), f"{bf16} {f16}")
    within("f16", abs(float(f16[-1] / bf16[-1]) - 1), 0.01)


def overflowing(steps, bad, rows=4, seq=16):
    """batches; in some the loss is finite and its gradient exceeds f16 at any scale of the run"""
    b = random_batches(steps, rows, seq)
    for step in bad:
        b["w"][step - 1] *= 1e6
    return b


def scales_expected(m):
    """by the rule of GradScaler, from the steps that overflowed"""
    scale, count = FIRST, 0
    for step in sorted(m):
        check(m[step]["loss_scale"] == scale, f"step {step}: {m[step]}, not {scale}")
        if m[step].get("overflows", 0) > count:
            scale, count = scale / 2, count + 1
    return count


def test_overflow(run):
    """an injected overflow halves the scale, changes nothing else and does not count for the guard; a resumed run has the same
    bytes, wherever it was interrupted"""
    steps, bad = 8, (4, 5)
    file = small(run, steps=steps, batches=overflowing(steps, bad), compute="f16", more=SAVE + "\n  guard { skip = 0; rollback = 0 }")
    out = run("run", file, "--out", run.path("whole"))
    check("step 4: the gradient overflows at a loss scale of" in out and "to halve the loss scale" in out, out)
    m = metrics(run, "whole")
    before = m[3].get("overflows", 0)
    check(scales_expected(m) == m[8]["overflows"] == before + 2, m)
    check(all(math.isfinite(x["loss"]) for x in m.values()) and m[4]["grad_norm"] is None, m)
    check("skipped" not in m[8], "an overflow is no bad step")
    at = [folder_bytes(run.path("whole", f"step-{k:06}")) for k in (3, 5)]
    check(all(at[0][f] == at[1][f] for f in ("model.safetensors", "optimizer.safetensors")), "a skipped step must change nothing")
    state = json.loads(at[1]["state.json"])
    check(state["loss_scale"] == m[6]["loss_scale"] and state["overflows"] == m[5]["overflows"] and state["skipped"] == 0, state)
    for stop in (3, 4):
        for n in (stop, steps):
            run("run", file, "--out", run.path("parts"), "-q", "--steps", n)
        check(folder_bytes(run.path("whole/step-000008")) == folder_bytes(run.path("parts/step-000008")), f"stopped at {stop}: other bytes")
        remove(run.path("parts"))


def cut(run, how, of_rank):
    """a run that is killed (SIGKILL) behind step 10 and before the checkpoint of step 50; the step of its last checkpoint"""
    for _ in range(20):
        remove(run.path("cut"))
        p = run.start(*how, "--out", run.path("cut"), env=QUICK)
        wait_for(run.path("cut", "step-000010"), p)
        victim = rank_pid(p, 1) if of_rank else p.pid
        if victim and p.poll() is None:
            os.kill(victim, signal.SIGKILL)
        p.communicate(timeout=600)
        left = max(int(x.removeprefix("step-")) for x in os.listdir(run.path("cut")) if x.startswith("step-"))
        if left < 50:
            return left
    check(False, "every run ended before the signal came")


def test_killed(run):
    """a kill between overflows, of the run or of one of two ranks: the resumed run has the same bytes, also of the scale and its counts"""
    file = small(run, steps=80, batches=overflowing(80, (5, 57)), compute="f16", more=SAVE.replace("1 steps", "10 steps"))
    for name, mesh in ("one", ()), ("dp", ("--ranks", 2, "--set", "parallel { mesh = (dp = 2) }")):
        if mesh:
            mpi_needed(run)
        how = ("run", file, "-q", *mesh)
        run(*how, "--out", run.path(name), env=PATIENT)
        left = cut(run, how, bool(mesh))
        run(*how, "--out", run.path("cut"), env=PATIENT)
        for step in range(left, 81, 10):
            whole, resumed = (folder_bytes(run.path(folder, f"step-{step:06}")) for folder in (name, "cut"))
            check(whole == resumed, f"{name}, step {step}: {[x for x in whole if whole[x] != resumed.get(x)]} differ")
        m = metrics(run, name)
        check(0 < m[50]["overflows"] < m[80]["overflows"], m)


def test_ranks(run):
    """all ranks agree on overflows: the scales of one process, and its losses"""
    mpi_needed(run)
    file = small(run, steps=4, rows=8, batches=overflowing(4, (3,), rows=8), compute="f16", more='save = checkpoint("run")')
    run("run", file, "--out", run.path("base"), "-q")
    base = metrics(run, "base")
    for mesh in ("mesh = (dp = 2)", "mesh = (tp = 2); shard tp = [g, ff]"):
        out = run.path("ranks")
        run("run", file, "--out", out, "-q", "--ranks", 2, "--set", f"parallel {{ {mesh} }}", env=PATIENT)
        got = metrics(run, "ranks")
        for step, x in base.items():
            y = got[step]
            check([x[k] for k in ("loss_scale", "overflows") if k in x] == [y[k] for k in ("loss_scale", "overflows") if k in y], f"{mesh}: {x} {y}")
            within(f"loss of {mesh}", abs(x["loss"] / y["loss"] - 1), 1e-3)
        last = load(out + "/step-000004/model.safetensors")
        for k, v in load(run.path("base/step-000004/model.safetensors")).items():
            within(f"{k} of {mesh}", float(np.abs(last[k] - v).max()), 0.01)
        remove(out)


def test_gpu(run):
    """kernels, attention and GEMMs of f16 on the fake GPU, and an overflow that the device skips; at night experts too"""
    fake, file = Fake(run), tiny(run, compute="f16")
    cpu, gpu = run.trace(file), fake.trace(file)
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-2), 5e-3)
    more = "guard { skip = 0; rollback = 0 }"
    file = tiny(run, steps=3, batches=overflowing(3, (2,), 2, 8), compute="f16", more=more)
    run("run", file, "--out", run.path("cpu"), "-q")
    fake("run", file, "--out", run.path("gpu"), "-q", "--target", "cuda")
    of_cpu, of_gpu = metrics(run, "cpu"), metrics(run, "gpu")
    check(scales_expected(of_gpu) > 0 and of_gpu[2]["grad_norm"] is None, of_gpu)
    for step, x in of_cpu.items():
        check(of_gpu[step]["loss_scale"] == x["loss_scale"], f"{x} {of_gpu[step]}")
        within("loss", abs(of_gpu[step]["loss"] / x["loss"] - 1), 1e-3)
    if run.nightly:
        file, how = routed(run, "qwen3moe"), ("--recipe", "Reference", "--set", "micro=64 tokens", "--steps", 1, "--values", "loss,grads")
        cpu, gpu = run.trace(file, *how), fake.trace(file, *how, "--set", "precision.compute=f16")
        for name in cpu:
            within(name, distance(gpu[name], cpu[name], 1e-2), 5e-3 if name == "loss" else 2e-2)


def test_settings(run):
    """what f16 does not combine with is an error"""
    file = small(run, compute="f16")
    err = run("check", file, "--set", "precision { compute = f16; matmul = fp8() }", status=1)
    check("error[E2F5]: matmul = fp8(...) needs compute = f32 or bf16, and compute is f16" in err, err)
