#!/usr/bin/env python3
"""Training steps of recurrent models beside a Llama of about as many parameters, for rows of several lengths.

usage: tests/bench/recurrent.py [build/lmc] [MODEL…]

The time of a step is the processor time of runs of 3 steps less that of runs of 1, on one thread, each the least of ROUNDS runs in which the
models and lengths alternate, so that other processes hardly count. `of Llama` is the ratio to Llama at as many positions, `of loop` to
the time without pass chunk_scan, which computes linear recurrences in chunks. Memory is the plan's without parameters, gradients
and optimizer states."""
import json, os, resource, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMC = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/lmc")
TOKENS, LENGTHS, ROUNDS, LOOP_LENGTH = 2048, (256, 2048), 4, 2048
LAYERS = "depth = 2, d = 512, ff = 1376, h = 8, k = 64, v = 64, vocab = 256"
MODELS = {"Llama": ("examples/zoo/llama.lm", "depth = 2, d = 512, ff = 1376, heads = 8, vocab = 256, tied = true, positions = 4096"),
          "Griffin": ("tests/models/griffin/reference.lm", "depth = 2, d = 512, e = 688, ff = 1376, vocab = 256"),
          "Mamba2": ("examples/zoo/mamba2.lm", "depth = 4, d = 512, groups = 1, n = 64, vocab = 256, tied = true"),
          "RWKV7": ("examples/zoo/rwkv7.lm",
                    "depth = 2, d = 512, ff = 2048, e = 64, decay = 32, rate = 32, gate = 64, rank = 32, vocab = 256"),
          "Gated": ("tests/models/delta/reference.lm", LAYERS),
          "Delta": ("tests/models/delta/reference.lm", LAYERS),
          "Rwkv": ("tests/models/delta/reference.lm", LAYERS)}
CHUNKED = "Mamba2", "RWKV7", "Gated", "Delta", "Rwkv"
# a block of tests/models/delta instead of attention in a layer of Llama
STACK = """import std.nn: rmsnorm, swiglu, silu, xent
{blocks}
block Layer(d, ff, h, k, v) {{
  sub mix = {name}(d, h, k, v)
  param n1, n2: real[d] = ones
  param wg, wu: real[d, ff] = normal(d ^ -0.5)
  param wd: real[ff, d] = normal(ff ^ -0.5)
  apply(x: real[b, t, d], pos: int[b, t]) -> real[b, t, d] {{
    let u = x + mix(rmsnorm(x, n1), pos)
    return u + swiglu(rmsnorm(u, n2), wg, wu, wd)
  }}
}}
model {name}Model(depth, d, ff, h, k, v, vocab) {{
  param embed: real[vocab, d] = normal(0.02)
  param norm: real[d] = ones
  sub layers[i < depth] = Layer(d, ff, h, k, v)
  apply(tok: int[b, t], pos: int[b, t], _seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    for l in layers carry x {{ x = l(x, pos) }}
    return dot(rmsnorm(x, norm), embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
"""
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
    model = name
    if "models/delta" in file:
        blocks = text[text.index("block Gated"):text.index("model Recurrent")]
        text, model = STACK.format(blocks=blocks, name=name), name + "Model"
    path = f"{folder}/{name}{seq}-{steps}.lm"
    open(path, "w").write(text + RECIPE.format(seq=seq, model=model, args=args, steps=steps, tokens=TOKENS))
    return path


def seconds(folder, name, seq, steps, *options):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([LMC, "run", program(folder, name, seq, steps), "-q", "--out", f"{folder}/out", *options], cwd=folder, check=True,
                   env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["rm", "-r", f"{folder}/out"], check=True)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    names = sys.argv[2:] or list(MODELS)
    cases = [(name, seq) for name in ["Llama", *(n for n in names if n != "Llama")] for seq in LENGTHS]
    loops = {name: (name, LOOP_LENGTH, "--disable-pass", "chunk_scan") for name in names if name in CHUNKED}
    with tempfile.TemporaryDirectory() as folder:
        open(f"{folder}/text.txt", "w").write("".join(f"the {i % 37} of {i % 11} and {i * i % 29}.\n" for i in range(9000)))
        least = {}
        for case in [*cases, *loops.values()]:
            seconds(folder, case[0], case[1], 1, *case[2:])  # compiles the kernels
        for _ in range(ROUNDS):
            for case in [*cases, *loops.values()]:
                for n in 1, 3:
                    least[case, n] = min(least.get((case, n), 1e9), seconds(folder, case[0], case[1], n, *case[2:]))
        best = {case: (least[case, 3] - least[case, 1]) / 2 for case, n in least if n == 3}
        print(f"{'model':8} {'T':>5} {'parameters':>11} {'s/step':>7} {'of Llama':>9} {'of loop':>8} {'memory':>9}")
        for name, seq in cases:
            plan = json.loads(subprocess.check_output([LMC, "compile", program(folder, name, seq, 3), "--json"], cwd=folder))
            facts = json.loads(subprocess.check_output([LMC, "check", program(folder, name, seq, 3), "--json"], cwd=folder))[0]
            rest = plan["peak_bytes"] - 16 * facts["params"]
            loop = f"{best[name, seq] / best[loops[name]]:8.2f}" if name in loops and seq == LOOP_LENGTH else " " * 8
            print(f"{name:8} {seq:5} {facts['params']:11} {best[name, seq]:7.2f} {best[name, seq] / best['Llama', seq]:9.2f} {loop} "
                  f"{rest / 1e6:6.0f} MB", flush=True)


main()
