"""lmc for aarch64, cross-compiled, under qemu-user (scripts/aarch64): every instruction is emulated, none ran on such a processor.
Kernels are compiled by the cross compiler, which runs as it is."""
import glob, json, os, platform, re, shutil, subprocess

import test_levels as levels
from harness import ROOT, Run, Skip, check, distance, load, small, within

SANITIZER_BUILD = set()
BUILD = f"{ROOT}/build-aarch64"
PRELUDES = ("codegen/common/prelude", "codegen/cpu/prelude")
FLAGS = "-std=gnu11 -O2 -ftree-vectorize -fno-math-errno -ffp-contract=off -fno-trapping-math -fPIC -w -S".split()   # as kernels.c
# Loops of tiles: the function, -march, the instruction, and how often it occurs in the loop.
LOOPS = (("lm_tile_sum_f32", "armv8-a", "fmla", 24), ("lm_tile_blocks", "armv8.2-a+bf16", "bfmmla", 24))


class Emulated(Run):
    """That of the tests with lmc for aarch64, which knows no level of this processor that LMC_CPU may name."""

    def start(self, *args, env=None, **how):
        return super().start(*args, env={"LMC_CPU": "native", **(env or {})}, **how)


def emulated(run):
    """The tests' Run with that lmc."""
    if platform.machine() == "aarch64":
        raise Skip("all tests run on aarch64 here")
    if not os.path.exists(f"{BUILD}/lmc") or not shutil.which("qemu-aarch64"):
        raise Skip("no build-aarch64 or no qemu-aarch64: scripts/aarch64 build installs and builds them")
    lmc = run.write("lmc-aarch64", f'#!/bin/sh\nexec "{ROOT}/scripts/aarch64" run "{BUILD}/lmc" "$@"\n')
    os.chmod(lmc, 0o755)
    return Emulated(lmc, run.folder, run.slow, run.nightly)


def program(name, level):
    def test(run):
        emulated(run)
        p = subprocess.run([f"{ROOT}/scripts/aarch64", "run", f"{BUILD}/{name}"], capture_output=True, text=True, errors="replace", cwd=ROOT,
                           env={**os.environ, "LMC_CPU": level, **({} if run.nightly else {"LM_TEST_BRIEF": "1"})})
        check(p.returncode == 0, f"{name}: exit status {p.returncode}\n{p.stdout}{p.stderr}")
    return test


def cases():
    """Programs that generate kernels: some of their cases with bf16 instructions; at night all, and without these instructions too."""
    out = [(f"{name} on aarch64", program(name, "native")) for name in ("prelude_test", "kernel_test", "gemm_kernel_test", "attend_kernel_test")]
    if os.environ.get("LM_TEST_NIGHTLY"):
        out += [(f"{name} on armv8-a", program(name, "armv8-a")) for name in ("gemm_kernel_test", "attend_kernel_test")]
    return out


def test_doctor(run):
    """its processor, instructions and levels"""
    arm = emulated(run)
    rows = lambda **env: arm("doctor", env=env)
    check("neon bf16; lmc was tested on aarch64 under emulation only" in rows(), "instructions")
    check("neon; " in rows(LMC_CPU="armv8-a"), "armv8-a")
    err = arm("trace", f"{ROOT}/tests/reference/gemma2/reference.lm", "--steps", 1, "--out", run.path("x"), env={"LMC_CPU": "x86-64-v3"}, status=2)
    check("LMC_CPU is 'x86-64-v3'; expected native, armv8-a or armv8.2-a+bf16" in err, err)


def test_same_bits(run):
    """sums, maxima, functions, attention and the optimizer: bit for bit those of x86-64 with AVX2"""
    arm = emulated(run)
    run.write("rows.lm", levels.MODEL)
    levels.batches(run)
    for compute in ("f32", "bf16"):
        here = levels.traces(run, compute, ["x86-64-v3"])
        if not here:
            raise Skip("a processor with AVX2")
        there = levels.traces(arm, compute, ["native"])
        check(here["x86-64-v3"] == there["native"], f"{compute}: bits differ")


def test_same_gemms(run):
    """few rows, which generated GEMMs compute, with several blocks of k: the bits of x86-64 with AVX2"""
    arm = emulated(run)
    file = small(run, steps=1, rows=1, seq=16)
    text = open(file).read()
    check("d = 32, ff = 64" in text, text)
    run.write("small.lm", text.replace("d = 32, ff = 64", "d = 288, ff = 544"))
    level = {"LMC_CPU": "x86-64-v3"}
    code, _, err = run.result("trace", file, "--out", run.path("x"), "--values", "logits", env=level)
    if "which this processor does not support" in err:
        raise Skip("a processor with AVX2")
    check(code == 0, err)
    check((load(run.path("x"))["logits"] == arm.trace(file, "--values", "logits")["logits"]).all(), "bits differ")


def training_check(run, compute, bars, level="native"):
    """Two steps of a run that PyTorch computed in float64: losses, logits, gradients."""
    folder = f"{ROOT}/tests/reference/llama-tiny"
    numbers = json.load(open(f"{folder}/expected.json"))
    got = emulated(run).trace(f"{folder}/reference.lm", "--steps", 2, "--names", "hf", "--recipe", "Reference", "--set",
                              f"precision.compute={compute}", env={"LMC_CPU": level})
    for step, (a, b) in enumerate(zip(got["loss"], numbers["loss"])):
        within(f"loss of step {step + 1}", abs(float(a) - b) / b, bars["loss"])
    for name, t in load(f"{folder}/expected.safetensors").items():
        if not name.startswith("final."):
            floor = bars["floor"] * numbers["grad_norm"][0] if name.startswith("grad.") else 0
            within(name, distance(got[name], t, floor), bars["tensor"])


def test_training_f32(run):
    """in f32, as exactly as on x86-64"""
    training_check(run, "f32", dict(loss=2e-6, tensor=1e-5, floor=1e-3))


def test_training_bf16(run):
    """in bf16 by BFMMLA; the largest distance is 0.0300, and 0.0299 on x86-64 and without BFMMLA"""
    training_check(run, "bf16", dict(loss=0.01, tensor=0.031, floor=0.02))


def test_training_widened(run):
    """in bf16 on a processor without its instructions"""
    training_check(run, "bf16", dict(loss=0.01, tensor=0.03, floor=0.02), "armv8-a")


def test_threads(run):
    """the number of threads changes no bit (nightly; the division of work among threads is the same code on every processor)"""
    if not run.nightly:
        raise Skip("nightly")
    arm = emulated(run)
    for compute in ("f32", "bf16"):
        file = small(run, rows=8, seq=32, depth=1, compute=compute)
        traces = []
        for threads in 1, 2:
            out = run.path(f"{compute}-{threads}")
            arm("trace", file, "--out", out, env={"OMP_NUM_THREADS": str(threads)})
            traces.append(load(out))
        check(all((traces[0][name] == traces[1][name]).all() for name in traces[0]), f"{compute}: bits differ")


def loop_of(listing, function, instruction):
    """The instructions from the last label before `instruction` to the branch back to it."""
    body = re.search(rf"^{function}:$(.*?)^\t\.size\t{function}", listing, re.M | re.S)[1]
    for part in re.split(r"^(?=\.L\d+:)", body, flags=re.M):
        lines = [line.split() for line in part.splitlines() if line.startswith("\t") and not line.startswith("\t.")]
        if any(line[0] == instruction for line in lines):
            return lines
    return []


def test_registers(run):
    """the loops of tiles keep their sums in registers: nothing is stored, and operands are loaded as whole vectors"""
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if not compiler:
        raise Skip("no aarch64-linux-gnu-gcc: scripts/aarch64 build installs it")
    prelude = "".join(open(f).read() for folder in PRELUDES for f in sorted(glob.glob(f"{ROOT}/{folder}/*.h")))
    uses = "".join(f"void {t}(char *const *b, const int64_t *v, int64_t lo, int64_t hi) {{ lm_gemm_{t}(b, v, lo, hi); }}\n" for t in ("f32", "bf16"))
    source = run.write("kernels.c", prelude + uses)
    for function, march, instruction, times in LOOPS:
        listing = subprocess.run([compiler, *FLAGS, f"-march={march}", source, "-o", "-"], capture_output=True, text=True, check=True).stdout
        loop = [line[0] for line in loop_of(listing, function, instruction)]
        check(loop.count(instruction) == times, f"{function}: {loop}")
        check(not any(op.startswith("st") or op in ("dup", "ins", "mov", "ld1r") for op in loop), f"{function}: {loop}")
        check(sum(op.startswith("ld") for op in loop) <= times / 4, f"{function}: {loop}")
