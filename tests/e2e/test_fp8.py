"""matmul = fp8(…): GEMMs of 8-bit floats against a PyTorch model in float32 that rounds the same operands, losses beside
those of bf16, what `lmc check` says, histories in checkpoints, and ranks."""
import json

import numpy as np
from harness import ROOT, check, distance, folder_bytes, load, random_batches, remove, save, small, within
from test_precision import noisy_rule
from test_ranks import PATIENT, curve, mpi_needed

SANITIZER_BUILD = {"check", "never_slower", "checkpoint", "parts"}
DEPTH, VOCAB, HISTORY, BLOCK = 2, 24, 16, 128
BLOCKS = {"block": BLOCK, "mx": 32}
FORMATS = {"e4m3": (4, 3, 448.0), "e5m2": (5, 2, 57344.0)}
MODEL = """import std.nn: rmsnorm, swiglu, xent
block Layer(d, ff) {{
  param n: real[d] = ones
  param wg, wu: real[d, ff] = normal(2 * d ^ -0.5)
  param wd: real[ff, d] = normal(ff ^ -0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] {{ return x + swiglu(rmsnorm(x, n), wg, wu, wd) }}
}}
model M(d = {d}, ff = {ff}, vocab = {vocab}) {{
  param embed: real[vocab, d] = normal(1)
  param head: real[d, vocab] = normal(d ^ -0.5)
  sub layers[i < {depth}] = Layer(d, ff)
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let x = gather(embed, bt.tok, vocab)
    for l in layers carry x {{ x = l(x) }}
    return (sum(xent(dot(x, head, d), bt.next) * bt.w), sum(bt.w))
  }}
}}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = M(); data = D; run = {steps} steps; micro = {micro} tokens
  optimizer = sgd(lr = {lr})
  precision {{ compute = f32; matmul = {matmul} }}
}}
"""


def heads(text, *sizes):
    """the text of MODEL, whose hidden layer has axes of these sizes, of which the last ones are joined for blocks, from weights in start.safetensors"""
    axes = ("g", "h", "e") if len(sizes) == 3 else ("g", "e")
    return (text.replace("block Layer(d, ff) {", f"block Layer(d, ff) {{\n  dim {', '.join(f'{a} = {n}' for a, n in zip(axes, sizes))}")
            .replace("real[d, ff]", f"real[d, {', '.join(axes)}]").replace("real[ff, d]", f"real[{', '.join(axes)}, d]")
            .replace("apply(x: real[b, t, d]) -> real[b, t, d] { return x + swiglu(rmsnorm(x, n), wg, wu, wd) }",
                     f"""apply(x: real[b, t, d]) -> real[b, t, d] {{
    let y = rmsnorm(x, n)
    let h = silu(dot(y, wg, d)) * dot(y, wu, d)
    return x + dot(h, wd, ({', '.join(axes)}))
  }}""").replace("rmsnorm, swiglu, xent", "rmsnorm, silu, xent")
            .replace("data D", 'model Start = M() from "start.safetensors"\ndata D', 1).replace("model = M()", "model = Start"))


def uneven(d, sizes, depth=DEPTH):
    """Weights of that model. Those of every second head are 2^14 times smaller in wu, larger in wd: code(x s) / s depends on s only near 0."""
    rng, ff = np.random.default_rng(7), int(np.prod(sizes))
    by_head = np.exp2(-14 * (np.arange(ff) // sizes[-1] % 2)).astype("f4")
    found = {"embed": rng.normal(0, 1, (VOCAB, d)), "head": rng.normal(0, d ** -0.5, (d, VOCAB))}
    for i in range(depth):
        wg, wu, wd = (rng.normal(0, 2 * d ** -0.5, (d, ff)), rng.normal(0, 2 * d ** -0.5, (d, ff)) * by_head, rng.normal(0, ff ** -0.5, (ff, d)) / by_head[:, None])
        found |= {f"layers.{i}.{k}": v for k, v in (("n", np.ones(d)), ("wg", wg.reshape(d, *sizes)), ("wu", wu.reshape(d, *sizes)), ("wd", wd.reshape(*sizes, d)))}
    return {k: np.ascontiguousarray(v, "f4") for k, v in found.items()}


def matrices(tensors):
    """the weights of the hidden layer as matrices"""
    rows = {"wg": lambda v: v.shape[0], "wu": lambda v: v.shape[0], "wd": lambda v: v.size // v.shape[-1]}
    count = {k: rows.get(k.rsplit(".", 1)[-1]) for k in tensors}
    return {k: v.reshape(count[k](v), -1) if count[k] else v for k, v in tensors.items()}


def rounded(x, scale, name):
    """x * scale to the nearest number of the format, ties to even, and back"""
    exponent, mantissa, most = FORMATS[name]
    y = np.asarray(x, "f8") * np.asarray(scale, "f8")
    least = 2 - 2 ** (exponent - 1)                       # of a normal number
    unit = np.exp2(np.maximum(np.frexp(y)[1] - 1, least) - mantissa)
    return (np.clip(np.rint(y / unit) * unit, -most, most) / scale).astype("f4")


def scale_of(magnitude, name):
    with np.errstate(divide="ignore"):
        s = np.exp2(np.floor(np.log2(FORMATS[name][2] / np.asarray(magnitude, "f8"))))
    return np.where(np.asarray(magnitude) > 0, s, 1.0)


def in_blocks(x, axes, name, size):
    """one scale for `size` elements along each of the axes, and for each element of the others"""
    sizes = [min(size, n) if k in axes else 1 for k, n in enumerate(x.shape)]
    parts = x.reshape(x.shape[0] // sizes[0], sizes[0], x.shape[1] // sizes[1], sizes[1])
    scale = scale_of(np.abs(parts).max((1, 3), keepdims=True), name)
    return rounded(parts, scale, name).reshape(x.shape)


class Site:
    """The scales of one tensor: from itself (current), or from the maxima of the last steps."""

    def __init__(self, how, name, fault=None):
        self.how, self.name, self.fault, self.history, self.now = how, name, fault, [], 0.0

    def __call__(self, x):
        own = float(np.abs(x).max())
        self.now = max(self.now, own)
        magnitude = own if self.how == "current" else max(self.history, default=0.0)
        return rounded(x, 1.0 if self.fault == "scale of 1" else scale_of(magnitude, self.name), self.name)

    def step(self):
        if not (self.fault == "stale history" and self.history):
            self.history = [self.now, *self.history][:HISTORY]
        self.now = 0.0


class Gemm:
    """y = x w and its two derivatives, of rounded operands."""

    def __init__(self, how, fault):
        self.how, self.x, self.dy = how, Site(how, "e4m3", fault), Site(how, "e5m2", fault)
        self.size = 64 if fault == "blocks of 64" else BLOCKS.get(how)

    def __call__(self, x, w):
        import torch
        gemm = self

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w):
                x, w = x.detach().numpy(), w.detach().numpy()
                if gemm.how in BLOCKS:
                    of_w = ((0, 1), (0, 1)) if gemm.how == "block" else ((0,), (1,))
                    here, back = (in_blocks(w, axes, "e4m3", gemm.size) for axes in of_w)
                    ctx.kept = in_blocks(x, (0,), "e4m3", gemm.size), back
                    return torch.from_numpy(in_blocks(x, (1,), "e4m3", gemm.size) @ here)
                ctx.kept = gemm.x(x), rounded(w, scale_of(np.abs(w).max(), "e4m3"), "e4m3")
                return torch.from_numpy(ctx.kept[0] @ ctx.kept[1])

            @staticmethod
            def backward(ctx, dy):
                dy, (x, w) = dy.numpy(), ctx.kept
                if gemm.how in BLOCKS:
                    by_w, by_x = (in_blocks(dy, (axis,), "e5m2", gemm.size) for axis in (1, 0))
                else:
                    by_w = by_x = gemm.dy(dy)
                return torch.from_numpy(by_w @ w.T), torch.from_numpy(x.T @ by_x)

        return Function.apply(x, w)


def in_bf16(x):
    """x and its cotangent, each rounded to bf16"""
    import torch

    class Stored(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.bfloat16().float()

        @staticmethod
        def backward(ctx, dx):
            return dx.bfloat16().float()

    return Stored.apply(x)


def emulated(params, batches, n_micro, lr, how, fault=None, stored=lambda x: x):
    """the losses, the gradients of the first step, and the last weights; stored: how values are rounded between operations"""
    import torch
    torch.set_num_threads(1)
    p = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    gemms = {k: Gemm(how, fault) for k in p if k.rsplit(".", 1)[-1] in ("wg", "wu", "wd")}
    losses, first = [], None
    for tok, nxt, w in zip(batches["tok"], batches["next"], batches["w"]):
        total, weight = 0.0, float(w.sum())
        for rows in np.split(np.arange(len(tok)), n_micro):
            x = stored(p["embed"][torch.from_numpy(tok[rows].reshape(-1).astype("i8"))])
            for i in range(sum(k.endswith(".n") for k in p)):
                at = f"layers.{i}."
                n = stored(x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6) * p[at + "n"])
                g, u = (stored(gemms[at + k](n, p[at + k])) for k in ("wg", "wu"))
                x = stored(x + gemms[at + "wd"](stored(g * torch.sigmoid(g) * u), p[at + "wd"]))
            z = x @ stored(p["head"])
            l = torch.logsumexp(z, 1) - z[torch.arange(len(z)), torch.from_numpy(nxt[rows].reshape(-1).astype("i8"))]
            sum_ = (l * torch.from_numpy(w[rows].reshape(-1))).sum()
            sum_.backward()
            total += float(sum_)
        losses.append(total / weight)
        grads = {k: v.grad.numpy() / np.float32(weight) for k, v in p.items()}
        first = first or grads
        for k, v in p.items():
            v.data -= lr * torch.from_numpy(grads[k])
            v.grad = None
        for g in gemms.values():
            g.x.step()
            g.dy.step()
    return losses, first, {k: v.detach().numpy() for k, v in p.items()}


def distance_of(run, seed, how, d, ff, rows, seq, steps, lr, faults=(), sizes=None):
    """the greatest relative difference from the emulation, and from the emulations with a fault; sizes: of the axes of ff"""
    batches = random_batches(steps, rows, seq, VOCAB, seed)
    save(run.path("batches.safetensors"), batches)
    matmul = f"fp8(scale = {how})"
    text = dict(d=d, ff=ff, vocab=VOCAB, depth=DEPTH, micro=rows * seq // 2, matmul=matmul)
    model = MODEL.format(**text, steps="{steps}", lr="{lr}")
    if sizes:
        model = heads(model, *sizes)
        save(run.path("start.safetensors"), uneven(d, sizes))
    start, got = (matrices(run.trace(run.write("m.lm", model.replace("{steps}", str(a)).replace("{lr}", str(b))), "--values", "loss,grads,params"))
                  for a, b in ((1, 0), (steps, lr)))
    params = {k.removeprefix("final."): v for k, v in start.items() if k.startswith("final.")}

    def norm(fault):
        losses, first, last = emulated(params, batches, 2, lr, how, fault)
        off = [abs(float(a) - b) / abs(b) for a, b in zip(got["loss"], losses)]
        for kind, tensors in (("grad", first), ("final", last)):
            off += [np.linalg.norm(got[f"{kind}.{k}"] - v) / np.linalg.norm(v) for k, v in tensors.items()]
        return max(off)

    return norm(None), {f: norm(f) for f in faults}


def emulation_check(run, *args, faults=(), sizes=None):
    """A number that is halfway between two codes is rounded up or down by the last bit of the sum that it is, so one set of
    batches out of three suffices."""
    found = []
    for seed in (4, 5, 6):
        off, wrong = distance_of(run, seed, *args, faults=faults, sizes=sizes)
        for fault, far in wrong.items():
            check(far > 1e-4, f"the check must find {fault}: {far:.2g}")
        found.append(off)
        if off <= 1e-5:
            return
    within("difference from the emulation", min(found), 1e-5)


def test_current(run):
    """scales of the tensors, against the emulation"""
    emulation_check(run, "current", 24, 40, 4, 8, 3, 0.3, faults=("scale of 1",))


def test_delayed(run):
    """scales of the last steps, over two micro-batches a step, against the emulation"""
    emulation_check(run, "delayed", 24, 40, 4, 8, 5, 0.5, faults=("scale of 1", "stale history"))


def test_block(run):
    """scales of blocks: axes of two blocks, of one and of a part of one"""
    emulation_check(run, "block", 256, 128, 4, 8, 1, 0.3)


def test_joined(run):
    """scales of blocks along several axes of a weight: 128 of 2 x 3 x 64 elements, and one block of 2 x 32"""
    emulation_check(run, "block", 128, 384, 4, 8, 1, 0.3, faults=("blocks of 64",), sizes=(2, 3, 64))
    emulation_check(run, "block", 128, 64, 4, 8, 1, 0.3, sizes=(2, 32))


def test_mx(run):
    """scales of blocks of 32 elements along the axis of the sum, of weights too: axes of several blocks and of one"""
    emulation_check(run, "mx", 64, 96, 2, 64, 2, 0.3)


def test_losses(run):
    """mean losses of 20 steps within 1 % of a bf16 run (test_curves: 1,000 steps of a larger model)"""
    steps, rows, seq = 120, 8, 32
    file = small(run, steps=steps, rows=rows, seq=seq, batches=noisy_rule(steps, rows, seq), compute="bf16")
    curves = {}
    for matmul in ("compute", "fp8(scale = current)", "fp8(scale = delayed)", "fp8(scale = block)", "fp8(scale = mx)"):
        losses = run.trace(file, "--values", "loss", "--set", f"precision.matmul = {matmul}")["loss"]
        curves[matmul] = losses.reshape(-1, 20).mean(1)
    bf16 = curves.pop("compute")
    check(bf16[-1] < 0.9 * bf16[0], f"the loss must fall: {bf16[0]} to {bf16[-1]}")
    for matmul, losses in curves.items():
        check((losses != bf16).any(), f"{matmul} must differ from bf16")
        within(matmul, float(np.abs(losses / bf16 - 1)[-1]), 0.01)


def fp8_of(run, file, *options):
    return json.loads(run("check", file, "--json", *options))[0]["fp8"]


def gathered_check(run, file, *options):
    """lmc explain cost: of two ranks, each sends a byte for an element of the weights that are cast, two for the embedding; the scales of a
    step's weights are computed once, whatever the number of micro-batches"""
    sent = json.loads(run("explain", file, "cost", "--json", *options))["collectives"]
    gathers = {x["times"]: x["bytes"] // x["times"] // x["elements"] for x in sent if x["kind"] == "all_gather"}
    check(gathers == {8: 1, 2: 2}, f"one of 3 weights in 2 layers and 2 micro-batches, forwards and backwards: {sent}")
    if "block" in str(options):
        return
    scales = [x["times"] for x in sent if x["name"].startswith("all_max") and x["elements"] == 1]
    check(scales == [6], f"scales of 3 weights in 2 layers: {sent}")


def test_check(run):
    """lmc check says how many GEMMs are cast and why the others stay"""
    file = small(run, compute="bf16")
    on = ("--set", "precision.matmul = fp8(scale = current)")
    plain = fp8_of(run, file, *on)
    check(plain["cast"] == 14 and plain["gemms"] == 15, plain)
    check([x["why"] for x in plain["stays"]] == ["of the vocabulary"], plain)
    check(fp8_of(run, file, "--set", "precision.matmul = fp8(head = cast)")["cast"] == 15, "head")
    check(fp8_of(run, file, *on, "--set", "parallel { mesh = (fsdp = 2); zero = 3 }")["cast"] == 14, "gathered weights")
    for matmul in "fp8()", "fp8(scale = block)":
        gathered_check(run, file, "--set", f"precision.matmul = {matmul}", "--set", "micro = 32 tokens", "--set", "parallel { mesh = (fsdp = 2); zero = 3 }")
    keep = ("--set", "precision { compute = bf16; matmul = fp8(); keep bf16 = [@layers.*.attn.{wq,wk}, @layers.*.wd] }")
    kept = fp8_of(run, file, *keep)
    check(kept["cast"] == 8, kept)
    check("kept by @layers.*.wd" in run("check", file, *keep), "the reason")
    for setting, message in (("keep bf16 = [@layers.*.wx]", "error[E0B0]: '@layers.*.wx' matches no parameter"),
                             ("keep bf16 = [@layers.0.wd]", "error[E2F1]: '@layers.0.wd' exempts 1 of the 2 repetitions of layers.wd"),
                             ("keep f32 = [@layers.*.wd]", "error[E2F3]: keep f32 needs compute = f32"),
                             ("keep bf16 = [@**]", "error[E2F4]: matmul = fp8(...) casts no GEMM of this model")):
        options = ("--set", f"precision {{ compute = bf16; matmul = fp8(); {setting} }}")
        for command in (("run", file, "--out", run.path("none")), ("check", file)):
            err = run(*command, *options, status=1)
            check(message in err, err)
    for target, setting, message in (("sm_80", "scale = current", "on sm_80"), ("sm_89", "scale = block", "on sm_89 with scale = block"),
                                     ("sm_90a", "scale = mx", "on sm_90a with scale = mx"),
                                     ("sm_103", "scale = block", "on sm_103 with scale = block"), ("sm_120", "scale = block", "on sm_120 with scale = block"),
                                     ("sm_120", "scale = mx", "on sm_120 with scale = mx"),
                                     ("sm_90a", "fwd = e5m2", "on a GPU with fwd = e5m2 and bwd = e5m2")):
        err = run("check", file, "--set", f"precision.matmul = fp8({setting})", "--target", target, status=1)
        check(f"error[E2F2]: matmul = fp8(...) is unsupported {message}" in err, err)
    bench, layers = f"{ROOT}/examples/bench-180m.lm", 16
    on = ("--target", "h100", "--set", "precision.matmul = fp8()")
    err = run("check", bench, *on, status=1)
    check("error[E2F4]" in err and "@layers.wd: 0.224 ms in bf16, 0.291 ms in 8-bit floats, as predicted" in err, err)
    err = run("explain", bench, "memory", *on, status=1)
    check(err.count(" = @") == 8 and "@layers.attn.wv: " in err and "@packed" not in err, "also where GEMMs that stay are merged")
    on += ("--set", f"model = Llama(depth = {layers}, d = 2048, ff = 8192, heads = 32, kv = 8, e = 64, vocab = 128_256)")
    wide = fp8_of(run, bench, *on)
    check(wide["cast"] == 5 * layers and [x["parameter"] for x in wide["stays"]] == ["layers.attn.wk", "layers.attn.wv", "embed"], wide)
    check(sum(x["gemms"] for x in wide["predicted"]) == 5 * layers and all(0 < x["s"] < x["s_without"] for x in wide["predicted"]), wide)
    for more, cast in ((), 5), (("--enable-pass", "fp8"), 7):
        rows = json.loads(run("explain", bench, "cost", *on, *more, "--json"))["rows"]
        check(sum(x["times"] for x in rows if "dot_scaled" in x["name"]) == 3 * cast * layers, f"three GEMMs of each {cast} weights")
    run.trace(small(run, compute="f32"), "--values", "loss", "--steps", 1, "--set",
              "precision { compute = f32; matmul = fp8(); keep f32 = [@layers.*.wd] }")


def step_seconds(run, file, target, *sets):
    """predicted time of a step; None: no GEMM is cast"""
    code, out, err = run.result("explain", file, "cost", "--json", "--target", target, *(word for x in sets for word in ("--set", x)))
    check(code == 0 or "E2F4" in out + err, err)
    return json.loads(out)["predicted_s"] if code == 0 else None


def test_never_slower(run):
    """The GEMMs that are cast, and tf32, are predicted to make no step slower than without: of the whole plan, in which other GEMMs are merged and kernels differ."""
    small, middle, large = (f"{ROOT}/examples/bench-{n}m.lm" for n in (6, 124, 180))
    wide = "model = Llama(depth = 2, d = 2048, ff = 5632, heads = 16, kv = 16, e = 128, vocab = 32_000)"
    cases = [(small, "l4", ""), (middle, "b200", ""), (large, "rtx-4090", ""), (large, "b200", wide)]
    # where the casts that gain by themselves make a longer step: others stay too
    cases += [(large, "b200", "model = Llama(depth = 2, d = 2048, ff = 2048, heads = 8, kv = 8, e = 128, vocab = 50_304); micro = 64Ki tokens; batch = 64Ki tokens")]
    if run.nightly:
        cases = [(file, target, more) for file, more in ((small, ""), (middle, ""), (large, ""), (large, wide)) for target in ("l4", "l40s", "rtx-4090", "rtx-5090", "h100", "h200", "b200")]
    gains = []
    for file, target, more in cases:
        on = more.split("; ") if more else []
        base = step_seconds(run, file, target, *on, "precision.compute = bf16")
        blocks = {"h100": ["block"], "h200": ["block"], "b200": ["mx"]}.get(target, [])
        for scale in ["delayed", "current", *blocks] if run.nightly else blocks or ["delayed"]:
            cast = step_seconds(run, file, target, *on, "precision.compute = bf16", f"precision.matmul = fp8(scale = {scale}, bwd = e4m3, head = cast)")
            gains.append(base / cast if cast else 1)
            check(gains[-1] >= 1, f"{file} on {target}, {scale}: {base} s, with casts {cast} s")
        if run.nightly or target == "l4":
            f32, tf32 = (step_seconds(run, file, target, *on, f"precision {{ compute = f32; matmul = {x} }}") for x in ("compute", "tf32"))
            check(tf32 <= f32, f"{file} on {target}: {f32} s, in tf32 {tf32} s")
    check(max(gains) > 1.1 and len(gains) >= len(cases), f"some are faster: {gains}")


def test_merged(run):
    """GEMMs that stay are merged (fuse_gemms) beside others that are cast: loss and gradients within 1e-6, and those of further steps"""
    file = small(run, compute="f32", steps=3)
    on = ("--set", "precision { compute = f32; matmul = fp8(); keep f32 = [@layers.*.attn.{wq,wk}, @layers.*.{wg,wu}] }")
    merged = ("--enable-pass", "fuse_gemms")
    run("compile", file, *on, *merged, "-o", run.path("plan"))
    text = open(run.path("plan/step.lmir")).read()
    check("(@layers.wg, @layers.wu)" in text and "(side, side.1) -> (pack)" in text and "side.2" not in text, "which are merged: in memory, by a copy")
    a, b = (run.trace(file, "--values", "loss,grads", "--steps", 3, *on, *more, env={"LMC_CPU": "x86-64-v3"}) for more in ((), merged))
    for name in a:
        within(name, distance(b[name], a[name]), 1e-6)


def code_stashes(run, file, *options):
    """bytes of the stashes of codes, and of the arena of activations"""
    plan = json.loads(run("explain", file, "memory", "--json", *options))
    return sum(x["bytes"] for x in plan["holders"] if f"{DEPTH} x e4m3 of" in x["label"]), plan["arenas"]["work"]


def test_stashes(run):
    """activations that only GEMMs of 8-bit floats read again are stashed as codes, which changes no bit; in blocks along the rows too"""
    d, ff, rows, seq = 256, 128, 4, 16
    save(run.path("batches.safetensors"), random_batches(2, rows, seq, VOCAB))
    text = dict(d=d, ff=ff, vocab=VOCAB, depth=DEPTH, micro=rows * seq // 2, steps=2, lr=0.1)
    file = run.write("m.lm", MODEL.format(**text, matmul="fp8()"))
    elements, stash = DEPTH * rows * seq // 2 * (d + ff), ("--enable-pass", "stash_operands")
    for scale in ("delayed", "block"):
        on = ("--set", f"precision {{ compute = bf16; matmul = fp8(scale = {scale}) }}")
        one, two = (run.trace(file, "--values", "loss,grads,params", *on, *more) for more in ((), stash))
        check(all(np.array_equal(one[name], two[name]) for name in one), f"{scale}: a stash must not change a bit")
        codes, arena = code_stashes(run, file, *on, *stash)
        none, less = code_stashes(run, file, *on)
        check(codes == elements and not none and arena < less + 1.5 * elements, f"{scale}: {codes} and {none} bytes of codes, {arena} and {less} of activations")
    with_bf16 = (*on[:1], on[1].replace("}", "; keep bf16 = [@layers.*.wg] }"), *stash)
    check(code_stashes(run, file, *with_bf16)[0] == DEPTH * rows * seq // 2 * ff, "a GEMM of bf16 reads the norm")


def histories(folder):
    found = {k: v for k, v in load(folder + "/optimizer.safetensors").items() if k.startswith("fp8.")}
    check(found, "the checkpoint must have histories")
    return found


def test_checkpoint(run):
    """histories have names in checkpoints; a resumed run has the same bytes; a skipped step enters nothing"""
    on = ("--set", "precision.matmul = fp8(scale = delayed)", "-q")
    whole, parts, last = run.path("whole"), run.path("parts"), "step-000006"
    batches = random_batches(6, 4, 16)
    batches["w"][1] = 0                                     # the step has no loss, so its update changes nothing
    file = small(run, steps=6, micro=32, batches=batches)
    run("run", file, "--out", whole, *on)
    for steps in (3, 6):
        run("run", file, "--out", parts, *on, "--steps", steps)
    check(folder_bytes(f"{whole}/{last}") == folder_bytes(f"{parts}/{last}"), "a resumed run must have the same bytes")
    run("run", file, "-q", "--out", run.path("f32"), "--steps", 3)
    keep = ("--set", "precision { compute = f32; matmul = fp8(scale = delayed); keep f32 = [@layers.*.wd] }", "-q")
    for folder, sets, words in ((run.path("f32"), on, "its histories of scales are of other GEMMs: precision.matmul was compute, is fp8(scale = delayed)"),
                                (parts, ("-q",), "its histories of scales are of other GEMMs: precision.matmul was"),
                                (parts, keep, "its histories of scales are of other GEMMs: precision.keep f32 was absent, is"),
                                (parts, ("-q", "--set", "precision { compute = bf16; master = bf16 }"), "its parameters are stored in another type: precision.master was f32, is bf16")):
        code, _, err = run.result("run", file, "--out", run.path("other"), "--resume", f"{folder}/step-000003", *sets, "--change", "precision")
        check(code == 1 and words in err and "begin another run: --out DIR" in err, err)
    run("run", file, "--out", run.path("other"), "--resume", f"{parts}/step-000003", "-q", "--change", "precision", "--set", "precision.matmul = fp8(bwd = e4m3, scale = delayed)")
    found = histories(f"{whole}/{last}")
    check({"fp8.x.layers.1.attn.wq", "fp8.dy.layers.0.wd"} <= set(found), sorted(found))
    for k, v in found.items():
        check(v.shape == (HISTORY + 1,) and v[0] == 0 and (v[1:6] > 0).all() and not v[6:].any(), f"{k}: {v}")


def test_stages(run):
    """Every scaling on the stages of a pipeline: loss, gradient norm and histories of one process, which are not those of f32."""
    mpi_needed(run)
    file = small(run, steps=3, rows=8, micro=32, depth=4, more='save = checkpoint("run")')
    env = {**PATIENT, "LMC_CPU": "x86-64-v3"}      # a sum in another order may round an element to the next code
    run("run", file, "-q", "--out", run.path("f32"), env=env)
    f32 = curve(run.path("f32"), "grad_norm")
    for scale, pipelines in (("current", ("gpipe",)), ("delayed", ("gpipe", "interleaved(chunks = 2)")), ("block", ("one_f_one_b",))):
        on = ("--set", f"precision.matmul = fp8(scale = {scale})")
        base = run.path(scale)
        run("run", file, "-q", "--out", base, *on, env=env)
        one = curve(base, "grad_norm")
        check(all(abs(a / b - 1) > 1e-3 for a, b in zip(one, f32, strict=True)), f"{scale}: {one} {f32}")
        for pipeline in pipelines:
            mesh = ("--ranks", 2, "--set", f"parallel {{ mesh = (pp = 2); pipeline = {pipeline} }}")
            run("run", file, "-q", "--out", run.path(pipeline), *on, *mesh, env=env)
            for key in ("loss", "grad_norm"):
                for a, b in zip(curve(run.path(pipeline), key), curve(base, key), strict=True):
                    within(f"{key} of {scale} with {pipeline}", abs(a / b - 1), 1e-5)
            if scale == "delayed":
                want, got = histories(f"{base}/step-000003"), histories(f"{run.path(pipeline)}/step-000003")
                check(set(want) == set(got), sorted(got))
                for k, v in want.items():
                    within(f"{k} with {pipeline}", float(np.abs(got[k] / np.maximum(v, 1e-30) - 1)[v > 0].max()), 1e-4)
            remove(run.path(pipeline))


AROUND = """import std.nn: rmsnorm, swiglu, xent
block Layer(d, ff) {{
  param n: real[d] = ones
  param wg, wu: real[d, ff] = normal(2 * d ^ -0.5)
  param wd: real[ff, d] = normal(ff ^ -0.5)
  apply(x: real[b, t, d]) -> real[b, t, d] {{ return 0.5 * (x + swiglu(rmsnorm(x, n), wg, wu, wd)) }}
}}
model M(e = 24, d = 16, ff = 32, vocab = 32) {{
  param embed: real[vocab, e] = normal(1)
  param front: real[e, d] = normal(e ^ -0.5)
  param head: real[d, vocab] = normal(d ^ -0.5)
  sub layers[i < 8] = Layer(d, ff)
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let x = dot(real(bt.w) * gather(embed, bt.tok, vocab), front, e)
    for l in layers carry x {{ x = l(x) }}
    {more}
    return (sum(xent(dot(x, head, d), bt.next) * bt.w), sum(bt.w))
  }}
}}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = M(); data = D; run = 3 steps; micro = 16 tokens; optimizer = sgd(lr = 0.01); save = checkpoint("run", every = 2 steps, keep = all)
  precision {{ compute = f32; matmul = fp8(bwd = e4m3, head = cast) }}
}}
"""
F1B, TWO, MIXED, SHARD = "one_f_one_b", "interleaved(chunks = 2)", "emit top = max(x)", "; shard tp = [ff, vocab]"
AROUND_STAGES = [("current", 2, "pp = 2", "gpipe"), ("current", 2, "pp = 2", F1B), ("delayed", 2, "pp = 2", "gpipe", MIXED), ("delayed", 2, "pp = 2", F1B),
                 ("delayed", 2, "pp = 2", TWO)]
AROUND_MESHES = ((2, "pp = 2"), (4, "pp = 4"), (4, "dp = 2, pp = 2"), (4, "fsdp = 2, pp = 2"), (4, "tp = 2, pp = 2"))


def same_run(base, folder, what, delayed):
    """losses, gradient norms, the last weights and histories of a run are those of another one"""
    for key in ("loss", "grad_norm"):
        for a, b in zip(curve(folder, key), curve(base, key), strict=True):
            within(f"{key} of {what}", abs(a / b - 1), 1e-5)
    last = "step-000003"
    pairs = [[load(f"{x}/{last}/model.safetensors") for x in (base, folder)]]
    if delayed:
        pairs.append([histories(f"{x}/{last}") for x in (base, folder)])
    for want, got in pairs:
        check(set(want) == set(got), f"{what}: {set(want) ^ set(got)}")
        for k, v in want.items():
            within(f"{k} of {what}", float(np.abs(got[k] - v).max() / np.abs(v).max()), 1e-5)


def test_around_stages(run):
    """Scales of a tensor in front of the stages of a pipeline and behind them, for rows of magnitudes from 1e-3 to 10: those of one process,
    also where a run continues in one process."""
    mpi_needed(run)
    cases, bases, env = AROUND_STAGES, {}, {**PATIENT, "LMC_CPU": "x86-64-v3"}
    if run.nightly:
        cases = cases + [(s, n, mesh, p, more) for s in ("current", "delayed") for n, mesh in AROUND_MESHES for p, more in (("gpipe", ""), ("gpipe", MIXED), (F1B, ""), (TWO, ""))]
    batches = random_batches(3, 16, 4, 32)
    batches["w"][:] = 10 ** np.random.default_rng(1).uniform(-3, 1, (3, 16, 1))
    save(run.path("batches.safetensors"), batches)
    file = {more: run.write(f"m{len(more)}.lm", AROUND.format(more=more)) for more in ("", MIXED)}
    for scale, n, mesh, pipeline, *more in cases:
        on = ("-q", "--set", f"precision.matmul = fp8(scale = {scale}, bwd = e4m3, head = cast)")
        if scale not in bases:
            bases[scale] = run.path(f"one {scale}")
            run("run", file[""], "--out", bases[scale], *on, env=env)
        what, stages = f"{scale}, {mesh} and {pipeline}", ("--ranks", n, "--set", f"parallel {{ mesh = ({mesh}); pipeline = {pipeline}{SHARD if 'tp' in mesh else ''} }}")
        out, named = run.path("stages"), file["".join(more)]
        run("run", named, "--out", out, *on, *stages, env=env)
        same_run(bases[scale], out, what, scale == "delayed")
        whole = folder_bytes(f"{out}/step-000003")
        for again in (stages, ()) if (scale, pipeline, mesh) == ("delayed", F1B, "pp = 2") or run.nightly and n == 2 else ():
            remove(f"{out}/step-000003")
            run("run", named, "--out", out, *on, *again, env=env)
            check(not again or folder_bytes(f"{out}/step-000003") == whole, f"{what}: a resumed run must have the same bytes")
            same_run(bases[scale], out, f"{what}, then {'the same' if again else 'one process'}", scale == "delayed")
        remove(out)


TILED = """import std.nn: xent
model M(d = 32, vocab = 4096) {
  param embed: real[vocab, d] = normal(1)
  param head: real[d, vocab] = normal(d ^ -0.5)
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(dot(gather(embed, bt.tok, vocab), head, d), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = batches("batches.safetensors") }
recipe R {
  model = M(); data = D; run = 2 steps; micro = 1152 tokens; optimizer = sgd(lr = 0.1)
  precision { compute = f32; matmul = fp8(head = cast) }
}
"""


def test_tiles(run):
    """The head in tiles of rows (tile_vocab) has the numbers of the whole, for rows of weights from 1e-4 to 10. Where a scale is that of the
    micro-batch, or that of a row's 64 positions, it is one GEMM. 576 rows, the most in a tile without blocks, are no whole blocks of 128."""
    file, off = run.write("m.lm", TILED), ("--disable-pass", "tile_vocab")
    cases = [("current", BLOCK, False), ("delayed", BLOCK, True), ("block", BLOCK, True)]
    for scale, seq, tiled in cases + [("mx", BLOCK, True), ("block", 64, False)] * run.nightly:
        batches = random_batches(2, 9 * BLOCK // seq, seq, 4096)
        batches["w"][:] = 10 ** np.linspace(1, -4, 9 * BLOCK).reshape(batches["w"][0].shape)
        save(run.path("batches.safetensors"), batches)
        on = ("--set", f"precision.matmul = fp8(scale = {scale}, bwd = e4m3, head = cast)")
        tiles, whole = (run.trace(file, "--values", "loss,grads", *on, *more, env={"LMC_CPU": "x86-64-v3"}) for more in ((), off))
        for name in whole:
            within(f"{name} of {scale}", distance(tiles[name], whole[name]), 1e-6)
        less, most = (json.loads(run("explain", file, "memory", "--json", *on, *more))["arenas"]["work"] for more in ((), off))
        check(less < 0.8 * most if tiled else less == most, f"{scale}: {less} and {most} bytes of activations")
        if scale == "delayed":                          # the histories of forward and backward pass do not keep their loops apart
            apart = ("--disable-pass", "fuse_loops")
            two = run.trace(file, "--values", "loss,grads", *on, *apart, env={"LMC_CPU": "x86-64-v3"})
            check(all(np.array_equal(two[name], tiles[name]) for name in tiles), "one loop has the bits of two")
            more = json.loads(run("explain", file, "memory", "--json", *on, *apart))["arenas"]["work"] - less
            check(more >= 4 * 576 * 4096, f"the logits of one of two tiles are {more} bytes less")


def test_ranks(run):
    """on several ranks: the maxima of all ranks, and losses beside those of one process"""
    mpi_needed(run)
    file = small(run, steps=4, rows=8)
    wrong, of_dp = 0.0, None
    for how in ("delayed", "current", "block"):
        base, ranks = run.path("base"), run.path("ranks")
        on = ("-q", "--set", f"precision.matmul = fp8(scale = {how})")
        if how == "block":                              # a rank has whole blocks of wg and wu, and a half of each of wd
            save(run.path("batches.safetensors"), random_batches(4, 4, 16, VOCAB))
            text = dict(d=2 * BLOCK, ff=16, vocab=VOCAB, depth=2 * DEPTH, micro=64, steps=4, lr=0.01, matmul="fp8()")
            file = run.write("blocks.lm", MODEL.format(**text).replace("recipe R {", 'recipe R {\n  save = checkpoint("run")'))
        run("run", file, "--out", base, *on)
        zero = ("mesh = (fsdp = 2); zero = 2",) if how == "current" else ("mesh = (dp = 2); zero = 1", "mesh = (fsdp = 2); zero = 3")
        zero = zero[how == "block":]
        for mesh in ("mesh = (dp = 2)", *zero, *(["mesh = (tp = 2); shard tp = [g, ff]"] if how != "block" else [])):
            run("run", file, "--out", ranks, *on, "--ranks", 2, "--set", f"parallel {{ {mesh} }}", env=PATIENT)
            a, b = ([json.loads(l) for l in open(f"{f}/metrics.jsonl")] for f in (base, ranks))
            for x, y in zip(a, b):
                if "loss" in x:
                    within(f"loss of {how}, {mesh}", abs(x["loss"] / y["loss"] - 1), 1e-3)
            of_dp = np.array(curve(ranks, "loss")) if mesh == "mesh = (dp = 2)" else of_dp
            if "zero" in mesh:                          # the codes that ranks gather are those of the whole weights
                within(f"loss of {how}, {mesh} beside dp", float(np.abs(curve(ranks, "loss") / of_dp - 1).max()), 1e-6)
            if how == "delayed":
                one, two = histories(f"{base}/step-000004"), histories(f"{ranks}/step-000004")
                check(set(one) == set(two), "the names of the histories")
                wrong = max(wrong, max(abs(two[k][4] / v[4] - 1) for k, v in one.items()))
            if how == "delayed" and mesh == zero[-1]:
                run("run", file, "--out", base + "again", *on, "--ranks", 2, "--set", f"parallel {{ {mesh} }}", env=PATIENT)
                check(folder_bytes(f"{base}again/step-000004") == folder_bytes(f"{ranks}/step-000004"), "a run again has the same bytes")
            remove(ranks)
        remove(base)
    within("maxima of the first step", wrong, 1e-4)


def test_joined_ranks(run):
    """Blocks of two heads of 64 on several ranks: ranks along tp have whole blocks of (g, e); those along fsdp gather f32 where they have parts of g."""
    mpi_needed(run)
    d, sizes, env = BLOCK, (4, 64), {**PATIENT, "LMC_CPU": "x86-64-v3"}
    save(run.path("batches.safetensors"), random_batches(2, 4, 16, VOCAB))
    save(run.path("start.safetensors"), uneven(d, sizes))
    text = dict(d=d, ff=256, vocab=VOCAB, depth=DEPTH, micro=64, steps=2, lr=0.01, matmul="fp8(scale = block)")
    file = run.write("m.lm", heads(MODEL.format(**text), *sizes).replace("recipe R {", 'recipe R {\n  save = checkpoint("run")'))
    norms = {}
    for mesh in (None, "mesh = (tp = 2); shard tp = [g]", "mesh = (fsdp = 2); zero = 3"):
        ranks = ("--ranks", 2, "--set", f"parallel {{ {mesh} }}") if mesh else ()
        run("run", file, "-q", "--out", run.path("ranks"), *ranks, env=env)
        norms[mesh] = np.array(curve(run.path("ranks"), "grad_norm") + curve(run.path("ranks"), "loss"))
        within(f"losses and gradient norms of {mesh}", float(np.abs(norms[mesh] / norms[None] - 1).max()), 1e-5)
        remove(run.path("ranks"))


def test_parts(run):
    """A part of an axis that is no whole blocks is an error with the nearest legal numbers: one process would have other scales."""
    save(run.path("batches.safetensors"), random_batches(1, 4, 2 * BLOCK, VOCAB))
    text = dict(d=BLOCK, ff=256, vocab=VOCAB, depth=1, micro=8 * BLOCK, steps=1, lr=0.01, matmul="fp8(scale = block)")
    file = run.write("m.lm", MODEL.format(**text))
    save(run.path("start.safetensors"), uneven(BLOCK, (8, 32), 1))
    joined = run.write("joined.lm", heads(MODEL.format(**text), 8, 32))
    mx = "precision.matmul = fp8(scale = mx)"
    cases = [(file, "mesh = (tp = 4); shard tp = [ff]", (), "tp = 4 gives a rank 64 of the 256 elements along ff, which are no whole blocks of 128", "tp = 2 leaves whole blocks, or ff = 512"),
             (file, "mesh = (tp = 2); shard tp = [ff]", ("model = M(ff = 384)",), "tp = 2 gives a rank 192 of the 384 elements along ff, which are no whole blocks of 128", "tp = 1 or 3 leaves whole blocks, or ff = 256 or 512"),
             (file, "mesh = (tp = 16); shard tp = [ff]", (mx,), "tp = 16 gives a rank 16 of the 256 elements along ff, which are no whole blocks of 32", "tp = 8 leaves whole blocks, or ff = 512"),
             (joined, "mesh = (tp = 4); shard tp = [g]", (), "tp = 4 gives a rank 64 of the 256 elements along (g, e), which are no whole blocks of 128", "tp = 2 leaves whole blocks, or g = 16"),
             (file, "mesh = (tp = 2); shard tp = [ff]", ("model = M(ff = 64)",), "tp = 2 gives a rank 32 of the 64 elements along ff, which are no whole blocks of 128", "tp = 2 leaves whole blocks of ff = 256")]
    for name, mesh, sets, message, hint in cases:
        err = run("check", name, "--set", f"parallel {{ {mesh} }}", *(word for x in sets for word in ("--set", x)), status=1)
        check(f"error[E2FB]: {message}" in err and f"help: {hint}" in err and "of the GEMM of @layers.w" in err and err.count("E2FB") == 1, err)
    for name, mesh, sets in ((file, "mesh = (tp = 2); shard tp = [ff]", ()), (joined, "mesh = (tp = 2); shard tp = [g]", ()), (file, "mesh = (tp = 8); shard tp = [ff]", (mx,)),
                             (file, "mesh = (tp = 4); shard tp = [ff]", ("precision.matmul = fp8(scale = current)",)),
                             (file, "mesh = (tp = 4); shard tp = [ff]", ("precision { compute = f32; matmul = fp8(scale = block, head = cast); keep f32 = [@layers.*.{wg,wu,wd}] }",))):
        run("check", name, "--set", f"parallel {{ {mesh} }}", *(word for x in sets for word in ("--set", x)))


def test_rows(run):
    """With dp and pp, a micro-batch has the rows of that number of each part of the batch: scales of one process that has these rows."""
    mpi_needed(run)
    batches, norms = random_batches(1, 4, 16, VOCAB), {}
    batches["w"] *= (10.0 ** (2 * np.arange(4)))[:, None].astype("f4")      # cotangents that e4m3 rounds by the scale of the micro-batch
    text = dict(d=32, ff=48, vocab=VOCAB, depth=2, micro=32, steps=1, lr=0, matmul="fp8(scale = current, bwd = e4m3)")
    file = run.write("m.lm", MODEL.format(**text))
    mesh = ("--ranks", 4, "--set", "parallel { mesh = (dp = 2, pp = 2) }")
    for name, rows, on in ("one", [0, 1, 2, 3], ()), ("same", [0, 2, 1, 3], ()), ("ranks", [0, 1, 2, 3], mesh):
        save(run.path("batches.safetensors"), {k: v[:, rows] for k, v in batches.items()})
        run("run", file, "-q", "--out", run.path(name), *on, env={**PATIENT, "LMC_CPU": "x86-64-v3"})
        norms[name] = curve(run.path(name), "grad_norm")[0]
    within("gradient norm of the same micro-batches", abs(norms["ranks"] / norms["same"] - 1), 3e-7)
    check(abs(norms["one"] / norms["same"] - 1) > 1.5e-6, f"other micro-batches have other scales: {norms}")
