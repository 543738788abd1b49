#!/usr/bin/env python3
"""Training steps of recurrent models beside a Llama of about as many parameters, and of a routed model beside a dense one of as many
active parameters, for rows of several lengths.

usage: tests/bench/recurrent.py [build/lmc] [MODEL…] [T…] [--rounds N] [--threads N]

The time of a step is the least processor time of 3 steps behind a first one (`processor_ms` of `lmc bench`), on one thread or N, in the
best of N runs (4) in which the models and lengths alternate, so that other processes hardly count. A step has as many tokens as the longest
row, at least 2,048. `ratio` is to Llama at as many positions, of Mixtral (two of eight experts) to Dense; `repeats` is the second best run's
time divided by the best one's. `of loop` is the ratio to the time without pass chunk_scan, which computes linear recurrences in chunks.
Memory is the plan's without parameters, gradients and optimizer states."""
import json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LMC = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else f"{ROOT}/build/lmc")
WORDS = sys.argv[2:]
ROUNDS, THREADS = (int(WORDS.pop(WORDS.index(w) + 1)) if w in WORDS else n for w, n in (("--rounds", 4), ("--threads", 1)))
NAMES = [w for w in WORDS if not w.isdigit() and not w.startswith("--")]
LENGTHS = sorted(int(w) for w in WORDS if w.isdigit()) or [256, 2048]
TOKENS, STEPS = max(2048, *LENGTHS), 3
sys.path.insert(0, f"{ROOT}/tests/e2e")
LAYERS = "depth = 2, d = 512, ff = 1376, h = 8, k = 64, v = 64, vocab = 256"
ROUTED = "depth = 2, d = 512, heads = 8, kv = 4, f = 688, vocab = 256"      # of each expert; Dense has 2 * 688
PEERS = {"Mixtral": "Dense"}    # of the others: Llama
MODELS = {"Llama": ("examples/zoo/llama.lm", "depth = 2, d = 512, ff = 1376, heads = 8, vocab = 256, tied = true, positions = 4096"),
          "Griffin": ("tests/models/griffin/reference.lm", "depth = 2, d = 512, e = 688, ff = 1376, vocab = 256"),
          "Mamba2": ("examples/zoo/mamba2.lm", "depth = 4, d = 512, groups = 1, n = 64, vocab = 256, tied = true"),
          "RWKV7": ("examples/zoo/rwkv7.lm",
                    "depth = 2, d = 512, ff = 2048, e = 64, decay = 32, rate = 32, gate = 64, rank = 32, vocab = 256"),
          "Gated": ("tests/models/delta/reference.lm", LAYERS),
          "Delta": ("tests/models/delta/reference.lm", LAYERS),
          "Rwkv": ("tests/models/delta/reference.lm", LAYERS),
          "Dense": ("tests/models/mixtral/reference.lm", ROUTED),
          "Mixtral": ("tests/models/mixtral/reference.lm", ROUTED)}
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
  model = {model}({args}); data = D; seed = 1; run = 4 steps; batch = {tokens} tokens; micro = {tokens} tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = f32 }}
}}
"""


def program(folder, name, seq):
    file, args = MODELS[name]
    text = open(f"{ROOT}/{file}").read().split("\nmodel Start")[0]
    model = name
    if name == "Dense":
        from test_route import DENSE
        text, model = DENSE, "Mixtral"
    if "models/delta" in file:
        blocks = text[text.index("block Gated"):text.index("model Recurrent")]
        text, model = STACK.format(blocks=blocks, name=name), name + "Model"
    path = f"{folder}/{name}{seq}.lm"
    open(path, "w").write(text + RECIPE.format(seq=seq, model=model, args=args, tokens=TOKENS))
    return path


def measured(folder, name, seq, *options):
    """figures of `lmc bench`"""
    command = [LMC, "bench", program(folder, name, seq), "--steps", str(STEPS), "--threads", str(THREADS), "--json", *options]
    return json.loads(subprocess.check_output(command, cwd=folder))


def peer(name):
    return PEERS.get(name, "Llama")


def main():
    names = NAMES or list(MODELS)
    peers = list(dict.fromkeys(peer(n) for n in names if n not in ("Llama", "Dense")))
    names = [*peers, *(n for n in names if n not in peers)]
    cases = [(name, seq) for name in names for seq in LENGTHS]
    loops = {name: (name, LENGTHS[-1], "--disable-pass", "chunk_scan") for name in names if name in CHUNKED}
    with tempfile.TemporaryDirectory() as folder:
        open(f"{folder}/text.txt", "w").write("".join(f"the {i % 37} of {i % 11} and {i * i % 29}.\n" for i in range(9000)))
        rest, params = {}, {}
        times = {case: [] for case in [*cases, *loops.values()]}
        for _ in range(ROUNDS):
            for case in times:
                figures = measured(folder, *case)
                times[case] = sorted([*times[case], figures["processor_ms"] / 1e3])
                rest[case] = figures["peak_bytes"] - 16 * figures["params"]
                params[case] = figures["params"]
        print(f"{TOKENS} tokens a step")
        print(f"{'model':8} {'T':>5} {'parameters':>11} {'s/step':>7} {'repeats':>7} {'ratio':>6} {'of loop':>8} {'memory':>9}")
        for case in cases:
            name, seq = case
            best, other = times[case][0], times[name if name in peers else peer(name), seq][0]
            again = times[case][min(1, ROUNDS - 1)] / best
            loop = f"{best / times[loops[name]][0]:8.2f}" if name in loops and seq == LENGTHS[-1] else " " * 8
            print(f"{name:8} {seq:5} {params[case]:11} {best:7.3f} {again:7.2f} {best / other:6.2f} {loop} {rest[case] / 1e6:6.0f} MB")


main()
