"""std.formats: the codes and numbers of each format, and the derivative of qcast, against formulas written here with numpy from the
publications: OCP's MX specification for the floats, the tables of bitsandbytes for nf4 and dyn8, the quantize_row_* functions of
llama.cpp for q8_0 and q4_0. One model rounds the rows of a table in all formats; its logits are the codes and the numbers."""
import ctypes, os

import numpy as np

from harness import check, distance, load, random_batches, remove, save, within
from test_gpu import Fake
from test_moments import dynamic_map

PLAIN_BUILD = {"formats_gpu"}
ROWS, WIDTH = 10, 256
NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
                -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
                0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], "f4")
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], "f4")
f4 = np.float32


def numbers():
    """rows of several magnitudes: one of zeros, one of powers of 2, one of midpoints of whole numbers, one of equal magnitudes"""
    r = np.random.default_rng(5)
    x = r.normal(0, 1, (ROWS, WIDTH)) * 10.0 ** r.uniform(-3, 2, (ROWS, 1))
    x[3] = 0
    x[4] = 2.0 ** r.integers(-20, 12, WIDTH) * r.choice([-1, 1], WIDTH)
    x[5] = r.integers(-127, 127, WIDTH) + 0.5
    x[5, ::32] = 127
    x[6] = r.choice([-3, 3], WIDTH)
    x[7, :64] = 0
    return x.astype("f4")


def near(x, table):
    """index of the nearest number of an ascending table, of two the lower one; midpoints in f32"""
    return np.searchsorted(((table[:-1].astype("f8") + table[1:]) / 2).astype("f4"), x)


def float_code(x, exponent, mantissa, most):
    """code of a float by a search in the table of all its numbers, ties to the even code"""
    codes = np.arange(most + 1)
    e, m = codes >> mantissa, codes & (1 << mantissa) - 1
    bias = (1 << exponent - 1) - 1
    table = np.where(e == 0, m * 2.0 ** (1 - bias - mantissa), (1 + m / (1 << mantissa)) * 2.0 ** (e - bias))
    y = np.abs(x).astype("f8")
    k = np.clip(np.searchsorted(table, y), 1, most)
    low, high = y - table[k - 1], table[k] - y
    code = np.where((low < high) | ((low == high) & (k % 2 == 1)), k - 1, k)
    return code + 128 * (x < 0), np.where(x < 0, -table[code], table[code]).astype("f4")


def half(x):
    return x.astype("f2").astype("f4")


def scaled_float(x, exponent, mantissa, most, greatest):
    top = np.abs(x).max(-1, keepdims=True)
    s = np.where(top == 0, f4(1), top) / f4(greatest)
    code, number = float_code(x / s, exponent, mantissa, most)
    return code, number * s


def integers(x, most):
    top = np.abs(x).max(-1, keepdims=True)
    s = np.where(top == 0, f4(1), top) / f4(most)
    q = np.clip(np.rint(x / s), -most, most)
    return q, q * s


def nf4(x):
    s = np.abs(x).max(-1, keepdims=True)
    q = near(x * (f4(1) / np.where(s == 0, f4(1), s)), NF4)
    return q, NF4[q] * s


def mx(x, emax):
    """the scale: 2^(floor(log2(max)) - emax)"""
    top = np.abs(x).max(-1, keepdims=True)
    return np.where(top == 0, f4(1), np.exp2(np.floor(np.log2(np.where(top == 0, 1, top).astype("f8"))) - emax)).astype("f4")


def mxfp8(x):
    s = mx(x, 8)
    code, number = float_code(x / s, 4, 3, 126)
    return code, number * s


def mxfp4(x):
    s = mx(x, 2)
    y = np.abs(x / s)
    d = np.abs(y[..., None].astype("f8") - FP4)
    code = np.array([[[min(range(8), key=lambda k: (v[k], k % 2)) for v in b] for b in row] for row in d])
    return code + 8 * (x < 0), np.where(x < 0, -FP4[code], FP4[code]) * s


def q8_0(x):
    """quantize_row_q8_0_ref: roundf(x * id), halves away from zero"""
    d = np.abs(x).max(-1, keepdims=True) / f4(127)
    y = x * np.where(d == 0, f4(0), f4(1) / np.where(d == 0, f4(1), d))
    q = np.sign(y) * np.floor(np.abs(y).astype("f8") + 0.5)
    return q, (q * half(d)).astype("f4")


def q4_0(x):
    """quantize_row_q4_0_ref: the greatest magnitude becomes -8"""
    top = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)
    d = top / f4(-8)
    y = x * np.where(d == 0, f4(0), f4(1) / np.where(d == 0, f4(1), d))
    q = np.minimum(15, (y + f4(8.5)).astype("i4"))
    return q, ((q - 8) * half(d)).astype("f4")


def dyn8(x):
    """of equally near numbers that of the lower magnitude; -1 has no code"""
    table = dynamic_map(True).astype("f4")
    s = np.abs(x).max(-1, keepdims=True)
    y = x / np.where(s == 0, f4(1), s)
    rank = near(np.abs(y), table[127:])
    q = np.where(y < 0, np.maximum(127 - rank, 0), 127 + rank)
    return q, table[q] * s


def rounded_scales(s):
    """(codes, numbers, mean) of the second quantization of bitsandbytes' quantize_4bit(compress_statistics=True), in one block"""
    mean = s.mean(dtype="f8").astype("f4")
    code, number = dyn8((s - mean).reshape(1, -1))
    return code[0], number.reshape(s.shape), mean


def nf4_double(x):
    q, _ = nf4(x)
    _, number, mean = rounded_scales(np.abs(x).max(-1, keepdims=True))
    return q, NF4[q] * (number + mean)


# name: (its text, elements of a block, names of what `fit` returns, (codes, numbers) of [rows, blocks, elements])
FORMATS = {
    "e4m3": ("e4m3(block = 64)", 64, "s", lambda x: scaled_float(x, 4, 3, 126, 448)),
    "plain": ("e4m3(block = 64, scaled = false)", 64, "s", lambda x: float_code(x, 4, 3, 126)),
    "e5m2": ("e5m2()", WIDTH, "s", lambda x: scaled_float(x, 5, 2, 123, 57344)),
    "int8": ("int8()", WIDTH, "s", lambda x: integers(x, 127)),
    "int4": ("int4(block = 16)", 16, "s", lambda x: integers(x, 7)),
    "nf4": ("nf4()", 64, "s", nf4),
    "nf4_double": ("nf4_double(scales = 0)", 64, "s d", nf4_double),
    "mxfp8": ("mxfp8()", 32, "s", mxfp8),
    "mxfp4": ("mxfp4()", 32, "s", mxfp4),
    "q8_0": ("q8_0()", 32, "s d", q8_0),
    "q4_0": ("q4_0()", 32, "s d", q4_0),
    "dyn8": ("dyn8()", WIDTH, "s", dyn8),
}
MODEL = """import std.formats: e4m3, e5m2, int8, int4, nf4, nf4_double, mxfp8, mxfp4, q8_0, q4_0, dyn8
model M(r = {rows}, vocab = {width}) {{
  param x: real[r, vocab] = zeros
  rows() -> f32[all, vocab] {{
{lines}
    return {all}
  }}
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    return real(gather(rows(), tok, all))
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let y = f32(apply(bt.tok, bt.pos, bt.seg))
    return (sum(f32(x) * f32(x)) + sum(y * y), sum(bt.w))
  }}
}}
model Start = M() from "start.safetensors"
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Start; data = D; run = 1 steps; micro = {tokens} tokens
  precision {{ compute = f32 }}
  optimizer = sgd(lr = 0)
}}
"""


def model(formats, rows, width, tokens):
    lines, names = [], []
    for k, (text, block, results, _) in enumerate(formats.values()):
        fit = [f"{r}{k}" for r in results.split()]
        bound = f"({', '.join(fit)})" if len(fit) > 1 else fit[0]
        lines += [f"let f{k} = {text}", f"let v{k} = view(f32(x), vocab -> (n{block}, c{block} = {block}))", f"let {bound} = f{k}.fit(v{k})",
                  f"let q{k} = view(f32(f{k}.encode(v{k}, {', '.join(fit)})), (n{block}, c{block}) -> vocab)",
                  f"let y{k} = f32(qcast(x, f{k}, vocab))"]
        names += [f"q{k}", f"y{k}"]
    groups = [names[i:i + 6] for i in range(0, len(names), 6)]
    for k, g in enumerate(groups):
        lines.append(f"let g{k} = view(stack(({', '.join(g)}), m{len(g)}, before = r), (m{len(g)}, r) -> a{k})")
    joined = ", ".join(f"g{k}" for k in range(len(groups)))
    return MODEL.format(rows=rows, width=width, tokens=tokens, lines="\n".join("    " + s for s in lines),
                        all=f"concat(({joined}), ({', '.join(f'a{k}' for k in range(len(groups)))}) -> all)")


def prepared(run, x, formats=FORMATS):
    """a model whose logits are, format by format, the codes and the numbers of the rows of x"""
    tok = np.arange(2 * len(x) * len(formats), dtype="<i4").reshape(1, 1, -1)
    save(run.path("batches.safetensors"), dict(tok=tok, pos=tok, seg=0 * tok, next=0 * tok, w=np.ones(tok.shape, "<f4")))
    save(run.path("start.safetensors"), {"x": x})
    return run.write("m.lm", model(formats, *x.shape, tok.size))


def test_formats(run):
    x = numbers()
    got = run.trace(prepared(run, x))
    gradient = 2.0 * x
    logits = got["logits"].reshape(len(FORMATS), 2, ROWS, WIDTH)
    for k, (name, (_, block, _, reference)) in enumerate(FORMATS.items()):
        with np.errstate(divide="ignore"):
            code, number = (v.reshape(ROWS, WIDTH) for v in reference(x.reshape(ROWS, -1, block)))
        wrong = np.argwhere(logits[k, 0] != code)
        check(not len(wrong), f"{name}: {len(wrong)} codes, first {[(x[tuple(w)], code[tuple(w)], logits[(k, 0, *w)]) for w in wrong[:3]]}")
        within(f"{name}: numbers", np.abs(logits[k, 1] - number).max() / np.abs(number).max(), 2e-7)
        gradient += 2.0 * number * (np.abs(x) <= 464 if name == "plain" else 1)
    check(np.abs(x).max() > 464, "numbers out of the range of e4m3")
    within("gradient", distance(got["grad.x"] * 2 * ROWS * len(FORMATS), gradient), 1e-6)


# cquantize_blockwise_cpu_fp32 of bitsandbytes 0.50.2 for the scales of numbers(), less their mean
OF_BITSANDBYTES = bytes.fromhex(
    "3e3e3e3e3e3e3e3e3e3e3e3e3e3e3e3effffffff515151513e3e3e3e3e3e3e3e3e3e3e3e3e3e3e3e")


def test_bitsandbytes(run):
    """the codes of the scales of nf4_double; at night also those of random scales by the library of LMC_BNB, a folder of its package"""
    code, _, _ = rounded_scales(np.abs(numbers().reshape(-1, 64)).max(1))
    check(code.astype("u1").tobytes() == OF_BITSANDBYTES, "codes of bitsandbytes")
    if not run.nightly or not os.environ.get("LMC_BNB"):
        return
    library = ctypes.CDLL(f"{os.environ['LMC_BNB']}/libbitsandbytes_cpu.so")
    scales = np.abs(np.random.default_rng(7).normal(0, 1, (4096, 64)).astype("f4")).max(1)
    code, number, mean = rounded_scales(scales[:256])
    table, got, top = dynamic_map(True).astype("f4"), np.zeros(256, "u1"), np.zeros(1, "f4")
    at = lambda a: a.ctypes.data_as(ctypes.c_void_p)
    library.cquantize_blockwise_cpu_fp32(at(table), at(scales[:256] - mean), at(top), at(got), ctypes.c_longlong(256), ctypes.c_longlong(256))
    check((got == code).all(), f"{(got != code).sum()} of 256 codes differ")


def test_formats_gpu(run):
    fake = Fake(run)
    file = prepared(run, numbers())
    cpu, gpu = run.trace(file), fake.trace(file)
    for name in cpu:
        within(name, distance(gpu[name], cpu[name]), 2e-7)


EXTREME = """import std.formats: e4m3, e5m2, int8, int4, nf4, dyn8
model M(r = 2, vocab = 256) {
  param x: real[r, vocab] = zeros
  param p: f32[r] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let y = stack((qcast(x, e4m3(), vocab), qcast(x, e5m2(), vocab), qcast(x, int8(), vocab), qcast(x, int4(), vocab),
                   qcast(x, nf4(), vocab), qcast(x, dyn8(), vocab)), m, before = r)
    return gather(view(y, (m, r) -> all), tok, all)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(p) * sum(bt.w), sum(bt.w)) }
}
model Start = M() from "start.safetensors"
data D { source s = batches("batches.safetensors") }
recipe R { model = Start; data = D; run = 1 steps; micro = 12 tokens; precision { compute = f32 }; optimizer = sgd(lr = 0) }
"""



def test_levels(run):
    """the error of too many levels does not list them"""
    levels = ", ".join(str(k) for k in range(257))
    err = run("check", run.write("m.lm", EXTREME.replace("qcast(x, e4m3(), vocab)", f"f32(nearest(x, ({levels})))")), status=1)
    check("error[E400]" in err and "known at compile time, not a tuple of 257" in err and len(err) < 4 * len(levels), err)


def test_extremes(run):
    """NaN stays NaN and changes no other element; a block of numbers without a finite reciprocal becomes 0"""
    x = np.random.default_rng(1).normal(0, 1, (2, 256)).astype("f4")
    x[0, 3], x[1] = np.nan, x[1] * f4(1e-39)
    save(run.path("start.safetensors"), {"x": x, "p": np.ones(2, "f4")})
    tok = np.arange(12, dtype="<i4").reshape(1, 1, -1)
    save(run.path("batches.safetensors"), dict(tok=tok, pos=tok, seg=0 * tok, next=0 * tok, w=np.ones(tok.shape, "<f4")))
    y = run.trace(run.write("m.lm", EXTREME), "--values", "logits")["logits"].reshape(6, 2, 256)
    check((np.isnan(y[:, 0]) == np.isnan(x[0])).all(), f"{np.isnan(y[:, 0]).sum(1)}")
    check((np.abs(y[:, 1]) < 2.0 ** -100).all(), f"{y[:, 1]}")


ADAPTED = """import std.adapt: fake, masked
import std.formats: int4
import std.nn: xent
model M(d = 32, vocab = 24) {{
  param embed: real[vocab, d] = normal(1)
  param w: real[d, vocab] = normal(0.25)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), w, d) }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }}
  map hf {{ @embed = ("embed", [vocab, d]); @w = ("w", [vocab, d]) }}
}}
model Adapted = M() from "base.safetensors" with {{ adapt @w = {adapter} }}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = Adapted; data = D; run = 3 steps; micro = 16 tokens
  precision {{ compute = f32 }}
  optimizer = sgd(lr = 0.5)
  save = checkpoint("run", every = 3 steps)
}}
"""


def largest(w, keep, block):
    """w where a magnitude is among the greatest of its block of inputs, else 0"""
    m = np.abs(w).T.reshape(-1, block)
    least = np.sort(m, 1)[:, block - max(1, int(np.rint(keep * block)))][:, None]
    return np.where((m >= least).reshape(w.T.shape).T, w, 0)


ADAPTERS = {   # text: the weight that is used, of w [d, vocab]
    "fake(int4(block = 8))": lambda w: integers(w.T.reshape(24, -1, 8), 7)[1].reshape(24, 32).T,
    "masked(keep = 50%, block = 4)": lambda w: largest(w, 0.5, 4),
    "masked(keep = 30%)": lambda w: largest(w, 0.3, 32),
}


def test_adapters(run):
    """logits and gradients in float64; the weight trains as if it were not rounded, and a mask never changes"""
    batch = random_batches(3, 2, 8, 24)
    save(run.path("batches.safetensors"), batch)
    r = np.random.default_rng(2)
    base = {"embed": r.normal(0, 1, (24, 32)).astype("f4"), "w": r.normal(0, 0.25, (32, 24)).astype("f4")}
    save(run.path("base.safetensors"), base)
    tok, to, weight = (batch[n][0].reshape(-1) for n in ("tok", "next", "w"))
    for adapter, use in ADAPTERS.items():
        used = use(base["w"]).astype("f8")
        file = run.write("a.lm", ADAPTED.format(adapter=adapter))
        got = run.trace(file)
        x = base["embed"][tok].astype("f8")
        z = x @ used
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        g = (p - np.eye(24)[to]) * weight[:, None] / weight.sum()
        within(f"{adapter}: logits", distance(got["logits"].reshape(-1, 24), z), 1e-6)
        masked = adapter.startswith("masked")
        within(f"{adapter}: gradient", distance(got["grad.w"], x.T @ g * (used != 0 if masked else 1)), 1e-5)
        run("run", file, "-q")
        run("export", run.path("run"), "-o", run.path("out"))
        held, out = load(run.path("run/step-000003/model.safetensors")), load(run.path("out/model.safetensors"))
        trained = held["w"]
        check(np.abs(trained - base["w"]).max() > 0.01, "the weight is trained")
        want = np.where(used != 0, trained, 0) if masked else use(trained)
        within(f"{adapter}: exported", distance(out["w"].T, want), 1e-7)
        if masked:
            check(np.array_equal(held["w.masked.mask"], used != 0) and np.array_equal(out["w"].T == 0, used == 0))
        for name in ("run", "out"):
            remove(run.path(name))
