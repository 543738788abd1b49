#!/usr/bin/env python3
"""Draws a model at random and writes it twice, as .lm text and as PyTorch: a case for tests/models/generate.py and compare.py.

usage: model.py SEED FOLDER       writes FOLDER/reference.lm and FOLDER/model.py

Blocks have own axes whose names occur in their callers too; a repetition carries one tensor or two, changes with its
index, holds a block that holds another; weights have foreign layouts; a loss has terms beside the cross-entropy.
"""
import math, os, random, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from body import Body, Var

B = 4
HEAD = "import std.nn: softmax, rmsnorm, layernorm, silu, gelu, softplus, rope, attend, xent\n"
LOSSES = {                                  # a line before, the sum in the language, the same in PyTorch
    "": ("", "sum(l * bt.w)", "(l * w).sum()"),
    "z": ("let n = log(sum(exp(f32(z)), vocab))", "sum((l + 0.01 * n * n) * bt.w)", "((l + 0.01 * z.logsumexp(-1) ** 2) * w).sum()"),
    "aux": ("", "sum(l * bt.w) + 0.1 * mean(f32(norm) ^ 2) * sum(bt.w)", "(l * w).sum() + 0.1 * (W['norm'] ** 2).mean() * w.sum()"),
    "smooth": ("let n = log(sum(exp(f32(z)), vocab)) - mean(f32(z), vocab)", "sum((0.9 * l + 0.1 * n) * bt.w)",
               "((0.9 * l + 0.1 * (z.logsumexp(-1) - z.mean(-1))) * w).sum()"),
}


class Block:
    """block NAME(d, scale, odd): x[b, t, d] to x, by way of drawn operations; `pair`: with a second tensor y[b, t, m] beside it"""
    def __init__(self, rng, name, d, pair=False, inner=None):
        self.name, self.inner, self.pair = name, inner, pair
        s = self.body = Body(rng, {"d": d, **({"m": 3} if pair else {})})
        x = Var("x", ["b", "t", "d"])
        s.dims += ["m"] if pair else []
        s.values += [Var("y", ["b", "t", "m"])] if pair else []
        s.values.append(x)
        w = s.param(["d"], fill=1)
        first = s.let(f"rmsnorm(x, {w.name})", f"rms({x.text}, {w.text})", x.axes)
        s.draw(rng.randint(2, 8))
        if inner:
            v = s.to(s.values[-1], ["d"])
            s.let(f"part({v.name}, pos, seg)", f"{inner.name}(W, p + 'part.', 0.5, False, {v.name}, pos, seg)", x.axes)
            s.draw(rng.randint(0, 2))
        out = s.to(s.values[-1], ["d"])                     # beside what went in: the norm of one number times a vector says nothing
        out = s.let(f"{out.name} + {first.name}", f"{out.name} + {first.name}", x.axes)
        w = s.param(["d"], fill=1)
        o = s.let(f"rmsnorm({out.name}, {w.name})", f"rms({out.text}, {w.text})", x.axes)
        if rng.random() < 0.4:
            o = s.let(f"if odd then {o.name} * scale else tanh({o.name})", f"{o.name} * scale if odd else {o.name}.tanh()", x.axes)
        else:
            o = s.let(f"{o.name} * scale", f"{o.name} * scale", x.axes)
        self.result = [(f"x + {o.name}", f"x + {o.name}")]
        if pair:
            more = s.to(rng.choice(s.values), ["m"])
            self.result.append((f"0.5 * y + tanh({more.name})", f"0.5 * y + {more.name}.tanh()"))

    def lm(self):
        s, real, y = self.body, ["real[b, t, d]"] + ["real[b, t, m]"] * self.pair, "y: real[b, t, m], " if self.pair else ""
        yield f"block {self.name}(d, scale, odd) {{"
        yield from (f"  dim {a} = {s.size[a]}" for a in dict.fromkeys(s.dims))
        for name, axes, _, std, fill in s.params:
            yield f"  param {name}: real[{', '.join(axes)}] = " + (f"normal({std:.6f})" if fill is None else "ones" if fill else "zeros")
        if self.inner:
            yield f"  sub part = {self.inner.name}(d, 0.5, 1 == 2)"
        pack = lambda q: q[0] if len(q) == 1 else f"({', '.join(q)})"
        yield f"  apply(x: real[b, t, d], {y}pos: int[b, t], seg: int[b, t]) -> {pack(real)} {{"
        yield from ("    " + q for q in s.lm)
        yield f"    return {pack([r[0] for r in self.result])}"
        yield "  }\n}\n"

    def py(self):
        yield f"def {self.name}(W, p, scale, odd, x, {'y, ' if self.pair else ''}pos, seg):"
        yield from ("    " + q for q in self.body.py)
        yield f"    return {', '.join(r[1] for r in self.result)}\n\n"

    def weights(self, path=""):
        """(path, foreign layout, foreign shape, how it begins) of each parameter"""
        size = self.body.size
        for name, _, groups, std, fill in self.body.params:
            layout = ", ".join(g[0] if len(g) == 1 else f"({', '.join(g)})" for g in groups)
            shape = ", ".join(str(math.prod(size[a] for a in g)) for g in groups)
            yield path + name, layout, shape, f"fill={fill}" if fill is not None else f"std={std}"
        if self.inner:
            yield from self.inner.weights(path + "part.")


class Model:
    def __init__(self, seed):
        r = random.Random(seed)
        self.seed, self.d, self.depth, self.pair = seed, r.choice((6, 8, 12, 20)), r.randint(1, 3), r.random() < 0.3
        self.t, self.vocab = r.choice((12, 12, 31, 70)), r.choice((24, 24, 100, 515))
        self.tied, self.loss = r.random() < 0.5, r.choice(("", *LOSSES))
        inner = Block(r, "Inner", self.d) if r.random() < 0.3 else None
        self.blocks = [Block(r, n, self.d, self.pair, inner if n == "First" else None) for n in ["First", "Second"][: r.randint(1, 2)]]
        self.every = ([inner] if inner else []) + self.blocks
        self.scales = [r.choice(("0.5", "1 / (i + 1)")) for _ in self.blocks]
        self.again = r.random() < 0.2                       # the last block is one instance, run `depth` times
        memory = r.choice(("", "", "recompute @**", "recompute @**; save @**.v2"))
        self.memory = memory if self.depth > 1 else ""      # it is for what repetitions keep

    def runs(self):
        """(name of the sub, block, scale, whether it is one instance that runs again and again)"""
        for k, (b, scale) in enumerate(zip(self.blocks, self.scales)):
            once = self.again and k == len(self.blocks) - 1
            yield b.name.lower() + ("" if once else "s"), b, "0.5" if once else scale, once

    def lm(self):
        yield HEAD
        for b in self.every:
            yield from b.lm()
        yield f"model Random(d = {self.d}, vocab = {self.vocab}) {{"
        yield "  param embed: real[vocab, d] = normal(0.5)\n  param norm: real[d] = ones"
        yield from [] if self.tied else ["  param head: real[d, vocab] = normal(0.3)"]
        yield from ["  dim m = minimum(d, 3)"] if self.pair else []
        for sub, b, scale, once in self.runs():
            yield f"  sub {sub} = {b.name}(d, {scale}, 1 == 2)" if once else f"  sub {sub}[i < {self.depth}] = {b.name}(d, {scale}, i mod 2 == 1)"
        yield "  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {\n    let x = gather(embed, tok, vocab)"
        yield from ["    let y = expand(0.1 * real(tok mod 3), m)"] if self.pair else []
        for sub, _, _, once in self.runs():
            call = f"{sub if once else 'l'}({'x, y' if self.pair else 'x'}, pos, seg)"
            step = f"let (u, v) = {call}; x = u; y = v" if self.pair else f"x = {call}"
            yield f"    for l in {self.depth if once else sub} carry {'x, y' if self.pair else 'x'} {{ {step} }}"
        yield f"    return dot(rmsnorm(x, norm), {'embed' if self.tied else 'head'}, d)\n  }}"
        before, total, _ = LOSSES[self.loss]
        yield "  loss(bt: Batch[b, t]) -> (f32, f32) {\n    let z = apply(bt.tok, bt.pos, bt.seg)\n    let l = xent(z, bt.next)"
        yield from ["    " + before] if before else []
        yield f"    return ({total}, sum(bt.w))\n  }}"
        yield '  map hf {\n    @embed = ("embed", [vocab, d]); @norm = ("norm", [d])'
        yield from [] if self.tied else ['    @head = ("head", [vocab, d])']
        for sub, b, _, once in self.runs():
            for path, layout, _, _ in b.weights(sub + ("." if once else ".#.")):
                yield f'    @{path} = ("{path}", [{layout}])'
        yield "  }\n}\n"
        yield from self.recipe()

    def recipe(self):
        yield 'model Start = Random() from "hf:weights.safetensors"\ndata Replay { source s = batches("batches.safetensors") }'
        yield "recipe Reference {\n  model = Start; data = Replay; seed = 0"
        yield f"  run = 3 steps; batch = {B * self.t} tokens; micro = {B // 2 * self.t} tokens"
        yield "  optimizer = adamw(lr = 3e-3, betas = (0.9, 0.95), eps = 1e-6, decay = 0.1)"
        yield "  schedule = warmup_cosine(warmup = 2 steps, floor = 10%)\n  clip = global_norm(max = 1.0)\n  precision { compute = f32 }"
        yield from [f"  memory {{ {self.memory} }}"] if self.memory else []
        yield "}"

    def py(self):
        yield f'"""Drawn by model.py {self.seed}."""\nfrom named import *\n\nVOCAB, B, T, MICRO, STEPS = {self.vocab}, {B}, {self.t}, {B // 2}, 3\n\n'
        for b in self.every:
            yield from b.py()
        yield f"def params(P):\n    P('embed', VOCAB, {self.d}, std=0.5), P('norm', {self.d}, fill=1)"
        yield from [] if self.tied else [f"    P('head', VOCAB, {self.d}, std=0.3)"]
        for sub, b, _, once in self.runs():
            for path, _, shape, how in b.weights(sub + ("." if once else ".{i}.")):
                yield f"    for i in range({1 if once else self.depth}): P(f'{path}', {shape}, {how})"
        yield "\n\ndef logits(W, tok, pos, seg):\n    x = W['embed'][tok]"
        yield from ["    y = (0.1 * (tok % 3).double())[..., None].expand(*tok.shape, 3)"] if self.pair else []
        xs = "x, y" if self.pair else "x"
        for sub, b, scale, once in self.runs():
            path, odd = (f"'{sub}.'", "False") if once else (f"f'{sub}.{{i}}.'", "i % 2 == 1")
            yield f"    for i in range({self.depth}):\n        {xs} = {b.name}(W, {path}, {scale}, {odd}, {xs}, pos, seg)"
        yield f"    return rms(x, 'b t d', W['norm'], 'd') @ W['{'embed' if self.tied else 'head'}'].T"
        yield "\n\ndef loss(W, bt):\n    z, w = logits(W, bt['tok'], bt['pos'], bt['seg']), bt['w']"
        yield f"    l = F.cross_entropy(z.transpose(1, 2), bt['next'], reduction='none')\n    return {LOSSES[self.loss][2]}, w.sum()"

    def write(self, folder):
        os.makedirs(folder, exist_ok=True)
        for name, lines in ("reference.lm", self.lm()), ("model.py", self.py()):
            with open(f"{folder}/{name}", "w") as f:
                f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    Model(int(sys.argv[1])).write(sys.argv[2])
