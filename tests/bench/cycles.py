"""Cycles of generated CPU kernels, for rows.py and attend.py: compiles a program, and times its kernels in this process."""
import ctypes, glob, math, os, re, subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SIZES = {"float": 4, "uint16_t": 2, "int32_t": 4, "double": 8}
# run: ns of a kernel, the mean of several runs; cycle: ns of an addition in a chain, which takes one cycle.
TIMER = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>
typedef void kernel(char *const *, const int64_t *, int64_t, int64_t);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
double run(kernel *k, char *const *buf, int64_t points, int times) {
  double from = now();
  for (int i = 0; i < times; i++) k(buf, 0, 0, points);
  return (now() - from) / times;
}
double cycle(void) {
  double from = now();
  uint64_t x = 1;
  for (int i = 0; i < 20000; i++) __asm__ volatile("add %0, %0\nadd %0, %0\nadd %0, %0\nadd %0, %0\nadd %0, %0" : "+r"(x));
  return (now() - from) / 1e5;
}
"""


def timer(folder):
    """The library of TIMER, compiled in the folder."""
    with open(folder + "/timer.c", "w") as f:
        f.write(TIMER)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder + "/timer.so", folder + "/timer.c"], check=True)
    library = ctypes.CDLL(folder + "/timer.so")
    library.run.restype = library.cycle.restype = ctypes.c_double
    return library


def compiled(lmc, file, level, compute, folder):
    """The shared objects of a program's kernels for LMC_CPU = level. The folder then has plan/plan.txt and plan/kernels."""
    env = dict(os.environ, LMC_CACHE=folder + "/cache", LMC_CPU=level)
    subprocess.run([lmc, "compile", file, "--set", f"precision.compute={compute}", "-o", folder + "/plan"],
                   env=env, check=True, stdout=subprocess.DEVNULL)
    return [ctypes.CDLL(os.path.abspath(f)) for f in glob.glob(folder + "/cache/**/*.so", recursive=True)]


def operand_bytes(line):
    """Sizes of the buffers that a line of plan.txt names behind 'over'."""
    return [int(x) for x in re.findall(r"\[[^\]]*: (\d+)\]", line)]


def halves(x):
    """f32 as bf16, cut."""
    return (x.view("u4") >> 16).astype("u2")


def pointers(arrays):
    return (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])


def least_cycles(timer, kernels, buffers, points, spans, times=1):
    """Cycles of each kernel, all in turn: the least time of the spans ÷ the least time of a cycle. The first span is one run."""
    least, cycle = [math.inf] * len(kernels), math.inf
    for span in range(spans):
        cycle = min(cycle, timer.cycle())
        for i, k in enumerate(kernels):
            least[i] = min(least[i], timer.run(k.call, buffers, ctypes.c_int64(points), times if span else 1))
    return [t / cycle for t in least]
