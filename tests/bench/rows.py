#!/usr/bin/env python3
"""rows.py [LMC…] - cycles of the row kernels of examples/bench-6m.lm, as each of these programs compiles them (default: build/lmc).

--levels LIST  values of LMC_CPU (default: native x86-64-v3), --compute bf16|f32 (default: bf16), --spans N (default: 200).
A kernel runs on one core on rows that stay in the L2 cache. The kernels of all programs run in turn, in this process; the figure is
the least time of N spans of about 50 us, divided by the time of a chain of additions, each of which takes one cycle. So a busy machine
changes nothing but the time that the script takes. Columns: cycles for 16 elements, then the ratio of the first program to the last.
"""
import argparse, os, re, tempfile

from cycles import ROOT, SIZES, compiled, halves, least_cycles, operand_bytes, pointers, timer

# What the row is, operations in the plan's note, numbers of operands and results; of several kernels, the one of most elements.
ROWS = [("SwiGLU forward", "logistic", 2, 1), ("SwiGLU backward", "logistic", 3, 3), ("RMS norm, rows of 256", "sum+rsqrt", 2, 2),
        ("residual, RMS norm", "sum+rsqrt", 3, 3), ("RMS norm backward, rows of 256", "rsqrt+sum", 7, 3),
        ("q norm + rope, rows of 32", "sum+rsqrt", 4, 2), ("q norm + rope backward, rows of 32", "rsqrt+sum", 6, 2),
        ("softmax + loss, rows of 4096", "max+exp+sum+log", 3, 2), ("sum of squares, rows of 1024", "sum", 1, 1)]


class Kernel:
    """A kernel of a plan: its function, the types of its buffers, and the elements of a point."""

    def __init__(self, line, source):
        self.name = re.search(r"kernel (k[0-9a-f]+)", line)[1]
        self.note = re.search(r"// kernel (\S*)", line)
        self.note = self.note[1] if self.note else ""
        buffers = line.split("//")[0].split(" over ")[1]
        self.points = int(buffers.split()[0])
        types = re.findall(r"(const )?(\w+) \*[ar]\d+ = ", source)
        sizes = operand_bytes(buffers.split(" workspace ")[0])
        self.types = [t for _, t in types]
        self.n_in = sum(bool(c) for c, _ in types)
        self.counts = [n // SIZES[t] for n, t in zip(sizes, self.types)]
        self.elements = max(self.counts) / self.points if self.counts else 0


def kernels_of(lmc, level, compute, folder):
    units = compiled(lmc, f"{ROOT}/examples/bench-6m.lm", level, compute, folder)
    kernels = []
    for line in open(folder + "/plan/plan.txt"):
        found = re.search(r"^ +\d+ +kernel (k[0-9a-f]+) over ", line)
        if not found:
            continue
        kernels.append(Kernel(line, open(f"{folder}/plan/kernels/{found[1]}.c").read()))
        kernels[-1].call = next((getattr(u, found[1]) for u in units if hasattr(u, found[1])), None)
    return kernels


def row_of(kernels, row):
    fits = [k for k in kernels if k.call and k.note == row[1] and k.n_in == row[2] and len(k.types) - k.n_in == row[3]]
    return max(fits, key=lambda k: k.elements * k.points, default=None)


def buffers(kernel, points):
    """Random operands: numbers of a normal distribution, magnitudes of which where there is one for a row; indices below 256."""
    import numpy
    draw, out = numpy.random.default_rng(1), []
    most = max(kernel.counts)
    for i, (t, n) in enumerate(zip(kernel.types, kernel.counts)):
        x = draw.standard_normal(n, dtype="f4")
        if t == "uint16_t":
            x = halves(x)
        elif t == "int32_t":
            x = draw.integers(0, 256, n, dtype="i4")
        elif t == "float" and n < most:
            x = abs(x) + 1
        out.append(numpy.ascontiguousarray(x))
    return out


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("lmc", nargs="*", default=[f"{ROOT}/build/lmc"])
    p.add_argument("--levels", nargs="+", default=["native", "x86-64-v3"])
    p.add_argument("--compute", default="bf16")
    p.add_argument("--spans", type=int, default=200)
    p.add_argument("--only", default="")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clock = timer(folder)
        for level in o.levels:
            programs = []
            for i, lmc in enumerate(o.lmc):
                os.makedirs(f"{folder}/{level}{i}")
                programs.append(kernels_of(os.path.abspath(lmc), level, o.compute, f"{folder}/{level}{i}"))
            print(f"LMC_CPU={level}, {o.compute}: cycles for 16 elements" + (", first / last" if len(o.lmc) > 1 else ""))
            for row in ROWS:
                if o.only not in row[0]:
                    continue
                ks = [row_of(kernels, row) for kernels in programs]
                if not all(ks):
                    print(f"  {row[0]:36}  no such kernel")
                    continue
                report(clock, row[0], ks, o.spans)


def report(clock, name, kernels, spans):
    first = kernels[0]
    points = max(1, min(first.points, int(32768 / first.elements)))
    arrays = buffers(first, points)
    cycles = [t / (points * first.elements) * 16 for t in least_cycles(clock, kernels, pointers(arrays), points, spans, times=3)]
    print(f"  {name:36}" + "".join(f"{c:8.1f}" for c in cycles) + (f"{cycles[0] / cycles[-1]:8.2f}" if len(cycles) > 1 else ""), flush=True)


main()
