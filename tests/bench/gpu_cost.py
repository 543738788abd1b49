#!/usr/bin/env python3
"""Scans and grouped GEMMs of recurrent and routed models at production sizes, as kernels for GPUs: registers, spilled bytes, and the time
and FLOP/s that the cost model predicts. Needs NVRTC, no GPU.

usage: tests/bench/gpu_cost.py [build/lmc] [MODEL…] [--target sm_90a]…

`ms` is of all calls in a step. Chunks of linear recurrences are GEMMs of cuBLASLt (`lmc explain FILE cost` lists them) and the scans
between chunks."""
import json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TARGETS = "sm_80", "sm_90a", "sm_100a"
# file and name of the model, arguments, positions of a row, tokens of a micro-batch
MODELS = {"mamba2": ("mamba2", "Mamba2", "depth = {depth}, d = 1024, groups = 1, n = 128, vocab = 50_280, tied = true", 48, 2048, 16384),
          "griffin": ("recurrent_gemma", "RecurrentGemma", "depth = {depth}", 26, 2048, 8192),
          "mixtral": ("mixtral", "Mixtral", "depth = {depth}, d = 4096, ff = 14_336", 4, 4096, 8192)}
PROGRAM = """import "{root}/examples/zoo/{file}.lm": {model}
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = {model}({args}); data = D; seed = 1; run = 1 steps; batch = {tokens} tokens; micro = {tokens} tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = bf16 }}
}}
"""


def program(folder, name, depth=None):
    """the recipe of a model with all its layers, or with `depth` of them; the kernels are the same"""
    file, model, args, layers, seq, tokens = MODELS[name]
    with open(f"{folder}/text.txt", "w") as f:
        f.write("".join(f"the {i % 37} of {i % 11}.\n" for i in range(9000)))
    text = PROGRAM.format(root=ROOT, file=file, model=model, args=args.format(depth=depth or layers), seq=seq, tokens=tokens)
    path = f"{folder}/{name}.lm"
    with open(path, "w") as f:
        f.write(text)
    return path


def spilled(code):
    """kernels that spill registers: name, bytes. `code`: of `lmc compile --json`"""
    return [(k["kernel"], k["spilled"]) for k in code["machine_code"] if k["spilled"]]


def listed(row):
    return "kernel" in row and row["name"].startswith(("scan", "grouped", "kernel grouped"))


def show(lmc, folder, name, target):
    file = program(folder, name)
    code = json.loads(subprocess.check_output([lmc, "compile", file, "--target", target, "--json"], cwd=folder))
    cost = json.loads(subprocess.check_output([lmc, "explain", file, "cost", "--target", target, "--json"], cwd=folder))
    kernels = {k["kernel"]: k for k in code["machine_code"]}
    most = max(k["registers"] for k in kernels.values())
    print(f"{name} {target}: {len(kernels)} kernels, at most {most} registers, spilled: {spilled(code) or 'none'}; "
          f"a step {1e3 * cost['predicted_s']:.0f} ms, {1e-12 * sum(r['flops'] for r in cost['rows']) / cost['predicted_s']:.0f} TFLOP/s")
    print(f"  {'ms':>7} {'TFLOP/s':>7} {'GB/s':>6} {'calls':>5} {'registers':>9}  what")
    for r in filter(listed, cost["rows"]):
        s = r["predicted_s"]
        print(f"  {1e3 * s:7.2f} {1e-12 * r['flops'] / s:7.1f} {1e-9 * r['bytes'] / s:6.0f} {r['times']:5} "
              f"{kernels[r['kernel']]['registers']:9}  {r['name']}", flush=True)


def main():
    words = sys.argv[1:]
    targets = [words.pop(i + 1) for i in reversed(range(len(words) - 1)) if words[i] == "--target"]
    words = [w for w in words if w != "--target"]
    lmc = os.path.abspath(words[0] if words else f"{ROOT}/build/lmc")
    with tempfile.TemporaryDirectory() as folder:
        for name in words[1:] or MODELS:
            for target in targets or TARGETS:
                show(lmc, folder, name, target)


if __name__ == "__main__":
    main()
