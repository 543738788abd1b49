"""compute = bf16: operands and activations in bf16, sums, parameters, norms, softmax and the loss in f32."""
import json, os

import numpy as np
from harness import ROOT, check, distance, load, on_one_cpu, random_batches, small, within

PLAIN_BUILD = {"losses"}


def noisy_rule(steps, rows, seq, share=0.7):
    """Tokens that follow a rule with this probability."""
    rng = np.random.default_rng(5)
    b = random_batches(steps, rows, seq, seed=5)
    for t in range(1, seq):
        ruled = rng.random((steps, rows)) < share
        b["tok"][:, :, t] = np.where(ruled, (3 * b["tok"][:, :, t - 1] + 1) % 64, b["tok"][:, :, t])
    b["next"] = np.roll(b["tok"], -1, 2)
    return b


def losses(run, compute, steps, batches, rows=8, seq=32, *options):
    file = small(run, steps=steps, rows=rows, seq=seq, batches=batches, compute=compute)
    return run.trace(file, "--values", "loss", *options)["loss"]


def curve_check(run, steps):
    """mean losses of 20 steps within 1 %; LM_TEST_STEPS sets the number of steps"""
    batches = noisy_rule(steps, 8, 32)
    f32, bf16 = (losses(run, c, steps, batches).reshape(-1, 20).mean(1) for c in ("f32", "bf16"))
    check(f32[-1] < 0.9 * f32[0], f"the loss must fall: {f32[0]} to {f32[-1]}")
    check((f32 != bf16).any(), "bf16 must differ from f32")
    within("loss", float(np.abs(bf16 / f32 - 1).max()), 0.01)


def test_losses(run):
    """the losses of a bf16 run follow an f32 run"""
    curve_check(run, int(os.environ.get("LM_TEST_STEPS", 160)))


def reference_check(run, name, compute="bf16", loss_bar=0.01, bar=0.03):
    """PyTorch's float64 run, within the precision of an 8-bit mantissa, or of that of another type"""
    folder = f"{ROOT}/tests/reference/{name}"
    numbers = json.load(open(f"{folder}/expected.json"))
    got = run.trace(f"{folder}/reference.lm", "--steps", len(numbers["loss"]), "--names", "hf", "--recipe", "Reference",
                    "--set", f"precision.compute={compute}")
    for step, (a, b) in enumerate(zip(got["loss"], numbers["loss"])):
        within(f"loss of step {step + 1}", abs(float(a) - b) / b, loss_bar)
    for tensor, t in load(f"{folder}/expected.safetensors").items():
        if not tensor.startswith("final."):
            floor = bar * 2 / 3 * numbers["grad_norm"][0] if tensor.startswith("grad.") else 0
            within(tensor, distance(got[tensor], t, floor), bar)


def test_reference_llama(run):
    """llama-tiny: grouped queries, rotary positions, SwiGLU"""
    reference_check(run, "llama-tiny")


def test_reference_gpt2(run):
    """gpt2-tiny: layer norm, learned positions, biases, GELU"""
    reference_check(run, "gpt2-tiny")


def test_decoding(run):
    """decoding through the KV cache continues a learned sequence"""
    file = small(run, steps=150, rows=4, seq=32, lr="1e-2", compute="bf16", batches=noisy_rule(150, 4, 32, 1.0), more='save = checkpoint("run")')
    run("run", file, "-q")
    ids = run("generate", run.path("run"), "--prompt-ids", "3,10,31", "--ids", "-n", 12, "--temperature", 0)
    made = [31, *map(int, ids.split())]
    right = sum(b == (3 * a + 1) % 64 for a, b in zip(made, made[1:]))
    check(right >= 10, f"{right} of 12: {ids}")


def test_threads(run):
    """the number of threads changes no bit"""
    file = small(run, rows=8, seq=64, compute="bf16")
    one = on_one_cpu(lambda: run.trace(file, "--steps", 3))
    two = run.trace(file, "--steps", 3)
    check(all((one[name] == two[name]).all() for name in one), "bits differ")
