#!/usr/bin/env python3
"""Training steps of recurrent models beside a Llama of as many parameters, for rows of several lengths.

usage: tests/bench/recurrent.py [build/lmc]

The time of a step is the processor time of runs of 5 steps less that of runs of 1, so that other processes hardly count. Memory is
the plan's without parameters, gradients and optimizer states."""
import json, os, resource, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMC = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/lmc")
TOKENS, LENGTHS = 4096, (256, 1024, 4096)
MODELS = {"Llama": ("examples/zoo/llama.lm", "depth = 2, d = 512, ff = 1376, heads = 8, vocab = 256, tied = true, positions = 4096"),
          "Griffin": ("tests/models/griffin/reference.lm", "depth = 2, d = 512, e = 688, ff = 1376, vocab = 256"),
          "Mamba2": ("examples/zoo/mamba2.lm", "depth = 4, d = 512, groups = 1, n = 64, vocab = 256, tied = true")}
RECIPE = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = {model}({args}); data = D; seed = 1; run = {steps} steps; batch = {tokens} tokens; micro = {tokens} tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = f32 }}
}}
"""


def program(folder, name, seq, steps):
    file, args = MODELS[name]
    text = open(f"{ROOT}/{file}").read().split("\nmodel Start")[0]
    path = f"{folder}/{name}{seq}-{steps}.lm"
    open(path, "w").write(text + RECIPE.format(seq=seq, model=name, args=args, steps=steps, tokens=TOKENS))
    return path


def seconds(folder, name, seq, steps):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([LMC, "run", program(folder, name, seq, steps), "-q", "--out", f"{folder}/out-{name}-{seq}-{steps}"], cwd=folder, check=True)
    subprocess.run(["rm", "-r", f"{folder}/out-{name}-{seq}-{steps}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    with tempfile.TemporaryDirectory() as folder:
        open(f"{folder}/text.txt", "w").write("".join(f"the {i % 37} of {i % 11} and {i * i % 29}.\n" for i in range(9000)))
        base = None
        print(f"{'model':8} {'T':>5} {'parameters':>11} {'s/step':>7} {'of Llama':>9} {'memory':>9}")
        for name in MODELS:
            for seq in LENGTHS:
                seconds(folder, name, seq, 1)  # compiles the kernels
                step = min((seconds(folder, name, seq, 5) - seconds(folder, name, seq, 1)) / 4 for _ in range(2))
                base = base or step
                plan = json.loads(subprocess.check_output([LMC, "compile", program(folder, name, seq, 5), "--json"], cwd=folder))
                facts = json.loads(subprocess.check_output([LMC, "check", program(folder, name, seq, 5), "--json"], cwd=folder))[0]
                rest = plan["peak_bytes"] - 16 * facts["params"]
                print(f"{name:8} {seq:5} {facts['params']:11} {step:7.2f} {step / base:9.2f} {rest / 1e6:6.0f} MB", flush=True)


main()
