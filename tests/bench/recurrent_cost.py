#!/usr/bin/env python3
"""Predicted training steps of recurrent models on a GPU that need not be here, beside a Llama of as many parameters.

usage: tests/bench/recurrent_cost.py [build/lmc] [MODEL…] [--target h100]

Steps of 8,192 tokens in bf16, of two layers, in rows of 256, 1,024 and 4,096 positions, by the cost model (`lmc explain FILE cost`)."""
import json, os, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LENGTHS = 256, 1024, 4096
LLAMA = "Llama", "depth = 2, d = {d}, ff = {ff}, heads = {heads}, tied = true, positions = 4096"
# file, model and arguments; the width of the Llama
MODELS = {"griffin": ("recurrent_gemma", "RecurrentGemma", "depth = 2", 2560),
          "mamba2": ("mamba2", "Mamba2", "depth = 2, d = 4096, groups = 8, n = 128", 4096),
          "mamba2-small": ("mamba2", "Mamba2", "depth = 2, d = 1024, groups = 1, n = 128", 1024),
          "xlstm": ("xlstm", "XLSTM", "depth = 2, d = 4096, heads = 8", 4096),
          "xlstm-small": ("xlstm", "XLSTM", "depth = 2, d = 1024, heads = 4", 1024),
          "delta": (None, "Delta", "depth = 2, d = 2048, ff = 5504, g = 16, r = 2", 2048),
          "rwkv7": ("rwkv7", "RWKV7", "depth = 2, d = 4096, decay = 192, rate = 192, gate = 384, rank = 96", 4096),
          "rwkv7-small": ("rwkv7", "RWKV7", "depth = 2, d = 1024, decay = 64, rate = 64, gate = 128, rank = 32", 1024)}
# layers of Gated DeltaNet, of the size that Qwen 3 Next has, with a SwiGLU
DELTA = """import std.nn: rmsnorm, swiglu, xent
import std.layers: GatedDeltaNet
block Layer(d, ff, g, r) {
  sub mix = GatedDeltaNet(d, g, 128, r, 128, 4, 1e-6)
  param n1, n2: real[d] = ones
  param wg, wu: real[d, ff] = normal(d ^ -0.5)
  param wd: real[ff, d] = normal(ff ^ -0.5)
  apply(x: real[b, t, d], pos: int[b, t]) -> real[b, t, d] {
    let u = x + mix(rmsnorm(x, n1), pos)
    return u + swiglu(rmsnorm(u, n2), wg, wu, wd)
  }
}
model Delta(depth, d, ff, g, r, vocab) {
  param embed: real[vocab, d] = normal(0.02)
  param norm: real[d] = ones
  sub layers[i < depth] = Layer(d, ff, g, r)
  apply(tok: int[b, t], pos: int[b, t], _seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    for l in layers carry x { x = l(x, pos) }
    return dot(rmsnorm(x, norm), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
"""
RECIPE = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = {model}({args}, vocab = 256); data = D; seed = 1; run = 4 steps; batch = 8192 tokens; micro = 8192 tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = bf16 }}
}}
"""


class Bench:
    def __init__(self, lmc, folder, target):
        self.lmc, self.folder, self.target = lmc, folder, target
        with open(f"{folder}/text.txt", "w") as f:
            f.write("".join(f"the {i % 37} of {i % 11}.\n" for i in range(9000)))

    def says(self, file, model, args, seq, *what):
        head = f'import "{ROOT}/examples/zoo/{file}.lm": {model}\n' if file else DELTA
        with open(f"{self.folder}/m.lm", "w") as f:
            f.write(head + RECIPE.format(seq=seq, model=model, args=args))
        command = [self.lmc, what[0], f"{self.folder}/m.lm", *what[1:], "--json"]
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    def params(self, *model):
        return self.says(*model, LENGTHS[0], "check")[0]["params"]

    def seconds(self, *model, seq):
        return self.says(*model, seq, "explain", "cost", "--target", self.target)["predicted_s"]

    def llama(self, d, params):
        """the Llama of this width whose number of parameters is nearest, in steps of 128 channels"""
        sized = lambda ff: ("llama", LLAMA[0], LLAMA[1].format(d=d, ff=ff, heads=d // 128))
        least = self.params(*sized(128))
        each = self.params(*sized(256)) - least
        return sized(128 * max(1, 1 + round((params - least) / each)))

    def row(self, name):
        *model, d = MODELS[name]
        peer = self.llama(d, self.params(*model))
        own, other = ([self.seconds(*m, seq=n) for n in LENGTHS] for m in (model, peer))
        ratios = "  ".join(f"{a / b:6.2f} ({1e3 * a:.2f} ms)" for a, b in zip(own, other))
        print(f"{name:13} {self.params(*model) / 1e6:6.1f}M {ratios}  {own[-1] / own[0]:5.2f}", flush=True)


def main():
    words = sys.argv[1:]
    target = words.pop(words.index("--target") + 1) if "--target" in words else "h100"
    lmc = os.path.abspath(words.pop(0)) if words and os.path.exists(words[0]) else f"{ROOT}/build/lmc"
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(lmc, folder, target)
        print("model         parameters, a step beside Llama's in rows of 256, 1,024 and 4,096, and the last one beside the first one")
        for name in [w for w in words if w in MODELS] or MODELS:
            bench.row(name)


main()
