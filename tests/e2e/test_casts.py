"""Casts between f32 and narrower types against code that others wrote: CUDA's headers, compiled for the host, and at night the package
ml_dtypes. Every code, every input of 16 bits, every midpoint of two codes with its neighbors, and random bits."""
import ctypes, os, subprocess

import numpy as np
from harness import ROOT, Skip, check, module_of
from test_formats import prepared

SANITIZER_BUILD = set()
CODES = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8}
OURS = """#include "runtime/base/dtype.h"
#include "codegen/common/prelude/inline.h"
#include "codegen/common/prelude/types.h"
void encode_bf16_cpu(int n, const float *x, uint32_t *to) { for (int i = 0; i < n; i++) to[i] = lm_bf16_round(x[i]); }
#define TYPE(NAME, ID) \\
  void encode_##NAME(int n, const float *x, uint32_t *to) { for (int i = 0; i < n; i++) to[i] = lm_dtype_bits(ID, x[i]); } \\
  void decode_##NAME(int n, const uint32_t *x, float *to) { for (int i = 0; i < n; i++) to[i] = lm_dtype_value(ID, x[i]); }
TYPE(f16, LM_F16)
TYPE(bf16, LM_BF16)
TYPE(e4m3, LM_E4M3)
TYPE(e5m2, LM_E5M2)
TYPE(e8m0, LM_E8M0)
"""
CUDA = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#define TYPE(NAME, ENCODE, DECODE) \\
  extern "C" void encode_##NAME(int n, const float *x, unsigned *to) { for (int i = 0; i < n; i++) to[i] = ENCODE; } \\
  extern "C" void decode_##NAME(int n, const unsigned *x, float *to) { for (int i = 0; i < n; i++) to[i] = DECODE; }
#define FP8(NAME, ID) TYPE(NAME, __nv_cvt_float_to_fp8(x[i], __NV_SATFINITE, ID), __half2float(__half(__nv_cvt_fp8_to_halfraw(x[i], ID))))
TYPE(f16, __half_as_ushort(__float2half_rn(x[i])), __half2float(__ushort_as_half(x[i])))
TYPE(bf16, __bfloat16_as_ushort(__float2bfloat16_rn(x[i])), __bfloat162float(__ushort_as_bfloat16(x[i])))
FP8(e4m3, __NV_E4M3)
FP8(e5m2, __NV_E5M2)
TYPE(e8m0, __nv_cvt_float_to_e8m0(x[i], __NV_SATFINITE, cudaRoundPosInf), __bfloat162float(__nv_bfloat16(__nv_cvt_e8m0_to_bf16raw(x[i]))))
"""


class Library:
    """encode(type, f32) and decode(type, codes) of C or C++ text"""

    def __init__(self, run, name, text, compiler, include):
        source, out = run.write(name, text), run.path(name + ".so")
        subprocess.run([compiler, "-O1", "-w", "-shared", "-fPIC", "-isystem", include, source, "-o", out, "-lm"], check=True)
        self.library = ctypes.CDLL(out)

    def call(self, name, x, to):
        at = (a.ctypes.data_as(ctypes.c_void_p) for a in (x, to))
        getattr(self.library, name)(ctypes.c_int(x.size), *at)
        return to

    def encode(self, name, x):
        return self.call("encode_" + name, np.ascontiguousarray(x, "f4"), np.zeros(x.shape, "u4"))

    def decode(self, name, codes):
        return self.call("decode_" + name, np.ascontiguousarray(codes, "u4"), np.zeros(codes.shape, "f4"))


def ours(run):
    return Library(run, "ours.c", OURS, "cc", ROOT)


def numbers_of(name, of):
    """of every code"""
    return of.decode(name, np.arange(1 << CODES[name], dtype="u4"))


def inputs(name, of):
    all16 = np.arange(1 << 16, dtype="u4")
    finite = np.unique(numbers_of(name, of))
    finite = finite[np.isfinite(finite)].astype("f8")
    with np.errstate(over="ignore"):
        middle = ((finite[1:] + finite[:-1]) / 2).astype("f4")
        beyond = np.array([1, -1]) * (finite[-1] + (finite[-1] - finite[-2]) / 2)
        near = np.concatenate([middle, beyond.astype("f4")])
        sides = [np.nextafter(near, np.float32(side)) for side in (-np.inf, np.inf)]
    random = np.random.default_rng(3).integers(0, 1 << 32, 1 << 20, dtype="u4")
    x = [(all16 << 16).view("f4"), all16.astype("u2").view("f2").astype("f4"), near, *sides, random.view("f4")]
    return np.concatenate(x)


def codes_check(what, got, want, x):
    wrong = np.flatnonzero(got != want)
    examples = [(float(x[i]).hex(), hex(int(got[i])), hex(int(want[i]))) for i in wrong[:3]]
    check(not wrong.size, f"{what}: {wrong.size} of {x.size} codes differ, as {examples}")


def numbers_check(what, got, want):
    """equal bits, or two NaN"""
    same = (got.view("u4") == want.view("u4")) | (np.isnan(got) & np.isnan(want))
    check(same.all(), f"{what}: codes {np.flatnonzero(~same)[:5]} have other numbers")


def compare(who, own, name, x, encoded, numbers):
    """The codes of x and the numbers of all codes are those of another implementation. Its NaN may have another sign or other digits, but not those
    of 8 bits in CUDA, whose header uses the instructions of a GPU there."""
    got = own.encode(name, x)
    known = ~np.isnan(x) if CODES[name] == 16 or who != "CUDA" else np.ones(x.shape, bool)
    codes_check(f"{name} of {who}", got[known], encoded[known], x[known])
    of_nan = own.decode(name, got[np.isnan(x)])
    same = CODES[name] == 8 or (np.signbit(of_nan) == np.signbit(x[np.isnan(x)])).all()
    check(np.isnan(of_nan).all() and same, f"{name}: NaN must stay, those of 16 bits of either sign")
    check(np.isnan(numbers[encoded[np.isnan(x)]]).all(), f"{name} of {who}: NaN")
    numbers_check(f"{name} of {who}", numbers_of(name, own), numbers)


def cuda_include():
    for folder in (os.environ.get("CUDA_HOME", "") + "/include", "/usr/local/cuda/include", "/usr/include"):
        if os.path.exists(f"{folder}/cuda_fp8.h"):
            return folder
    raise Skip("CUDA's header cuda_fp8.h is not installed")


def test_cuda_header(run):
    """codes and numbers of CUDA's headers, for f32 to f16, bf16, e4m3 and e5m2 (saturating)"""
    cuda, own = Library(run, "cuda.cpp", CUDA, "c++", cuda_include()), ours(run)
    for name in CODES:
        x = inputs(name, own)
        compare("CUDA", own, name, x, cuda.encode(name, x), numbers_of(name, cuda))
    powers = np.exp2(np.arange(-127.0, 128)).astype("f4")
    codes_check("e8m0 of CUDA", own.encode("e8m0", powers), cuda.encode("e8m0", powers), powers)
    numbers_check("e8m0 of CUDA", own.decode("e8m0", np.arange(256)), cuda.decode("e8m0", np.arange(256)))
    x = inputs("bf16", own)
    tiny = np.abs(x) < 2.0 ** -126
    want = np.where(tiny, np.signbit(x).astype("u4") << 15, cuda.encode("bf16", x))[~np.isnan(x)]
    codes_check("bf16 of a CPU, without subnormals", own.encode("bf16_cpu", x)[~np.isnan(x)], want, x[~np.isnan(x)])


def of_package(package, name):
    """the type of ml_dtypes or numpy, and its codes"""
    named = {"f16": np.float16, "bf16": package.bfloat16, "e4m3": package.float8_e4m3fn, "e5m2": package.float8_e5m2}
    return named[name], f"u{CODES[name] // 8}"


def saturated(name, codes, x):
    """e4m3 of ml_dtypes becomes NaN, and e5m2 infinite, where the types of lmc have their largest number"""
    most = {"e4m3": 0x7e, "e5m2": 0x7b}.get(name)
    if most is None:
        return codes
    return np.where(~np.isnan(x) & (codes & 0x7f > most), codes & 0x80 | most, codes)


def test_ml_dtypes(run):
    """codes and numbers of ml_dtypes (f16: of numpy)"""
    package, own = module_of(run, "ml_dtypes", "0.5.4"), ours(run)
    for name in CODES:
        x = inputs(name, own)
        kind, code = of_package(package, name)
        with np.errstate(over="ignore", invalid="ignore"):
            encoded = saturated(name, x.astype(kind).view(code).astype("u4"), x)
        numbers = np.arange(1 << CODES[name]).astype(code).view(kind).astype("f4")
        compare("ml_dtypes", own, name, x, encoded, numbers)
    x = np.abs(inputs("bf16", own))
    x = x[(x >= 2.0 ** -126) & (x < 2.0 ** 127) & (np.frexp(x)[0] != 0.75)]     # ml_dtypes rounds ties up, and subnormal numbers
    codes_check("e8m0 of ml_dtypes", own.encode("e8m0", x), x.astype(package.float8_e8m0fnu).view("u1").astype("u4"), x)


WIDTH = 64
# name: (its text, elements of a block, names of what `fit` returns)
FORMATS = {"e4m3": ("e4m3(scaled = false)", WIDTH, "s"), "e5m2": ("e5m2(scaled = false)", WIDTH, "s"),
           "mxfp8": ("mxfp8()", 32, "s"), "mxfp4": ("mxfp4()", 32, "s")}


def test_std_formats(run):
    """codes and numbers of std.formats for all inputs of f16, in blocks of random ones, against ml_dtypes: its e4m3fn, e5m2, and for the
    formats of OCP's MX its e2m1fn, with scales that are numbers of e8m0"""
    package = module_of(run, "ml_dtypes", "0.5.4")
    x = np.arange(1 << 16, dtype="u2").view("f2").astype("f4")
    x = np.random.default_rng(8).permutation(np.where(np.isfinite(x), x, 0)).reshape(-1, WIDTH)
    file = prepared(run, x, {k: (*v, None) for k, v in FORMATS.items()})
    logits = run.trace(file, "--values", "logits")["logits"].reshape(len(FORMATS), 2, -1)
    blocks = x.reshape(-1, 32)
    exponents = np.floor(np.log2(np.abs(blocks).max(1, keepdims=True)))
    scales = {"mxfp8": 2 ** (exponents - 8), "mxfp4": 2 ** (exponents - 2)}
    for (name, (got, number)) in zip(FORMATS, logits):
        s = scales.get(name, np.ones((len(blocks), 1))).astype("f4")
        check((s.astype(package.float8_e8m0fnu).astype("f4") == s).all(), f"{name}: a scale must be a number of e8m0")
        kind = package.float4_e2m1fn if name == "mxfp4" else of_package(package, "e5m2" if name == "e5m2" else "e4m3")[0]
        y = blocks / s
        want = saturated({"mxfp8": "e4m3"}.get(name, name), y.astype(kind).view("u1"), y)
        codes = np.where(y == 0, 0, want)                         # the sign of -0 is lost
        codes_check(f"std.formats.{name}", got, codes.reshape(-1), x.reshape(-1))
        numbers = want.view(kind).astype("f4") * s
        check((number == numbers.reshape(-1)).all(), f"std.formats.{name}: other numbers")
