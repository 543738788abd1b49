#!/usr/bin/env python3
"""attend.py [BUILD…] - cycles of attention's kernels, as the lmc of each of these build folders compiles them (default: build).

--levels LIST  values of LMC_CPU (default: native x86-64-v3), --compute LIST (default: bf16 f32), --heads LIST  head dimensions (default: 32 64 128),
--spans N (default: 200). Dimensions of 32 and 64 are those of examples/bench-6m.lm and bench-124m.lm, with their rows of 256 and 512 positions and their
groups of heads; 128 has rows of 512. A kernel runs on one core, for some points of its first row. The kernels of all programs run in turn, in this process;
the figure is the least time of N spans, divided by the time of a chain of additions, each of which takes one cycle, and by the number of tiles
of 32 queries by 32 keys that the causal mask leaves. The bound: one multiply-add (of pairs in bf16 with AVX512-BF16) of 512 bits a cycle in the GEMMs, and
eleven for 16 exponentials, as on a Zen 4. Columns: cycles, the last program ÷ the first, the bound, the last program ÷ the bound.
"""
import argparse, ctypes, os, re, subprocess, tempfile

from cycles import ROOT, SIZES, compiled, halves, least_cycles, operand_bytes, pointers, timer

# By head dimension: batches, positions of a row, heads, keywords of the model.
MODELS = {32: ("bench-6m", 256, 8, "d = 256, vocab = 4096"), 64: ("bench-124m", 512, 12, "d = 768, vocab = 32_000"),
          128: ("bench-124m", 512, 8, "d = 768, vocab = 32_000")}
GROUPS, SIDE = 4, 32
PROGRAM = """import "{root}/examples/llama.lm": Llama
data Random {{ source s = batches("{root}/examples/{batches}.safetensors") }}
recipe Bench {{
  model = Llama(depth = 1, ff = 256, heads = {heads}, kv = {groups}, e = {e}, {sizes})
  data = Random; seed = 1; run = 1 steps; batch = 4Ki tokens; micro = 4Ki tokens; optimizer = sgd(lr = 1e-3)
}}
"""


class Kernel:
    """A kernel of a plan: its function, and the types and sizes of its buffers."""

    def __init__(self, line, folder):
        self.name = re.search(r"kernel (a[0-9a-f]+)", line)[1]
        source = open(f"{folder}/plan/kernels/{self.name}.c").read()
        self.bytes = operand_bytes(line.split("//")[0].split(" over ")[1])
        self.types = re.findall(r"(?:const )?(\w+) \*[ar]\d+ = ", source)
        self.types += ["float"] * (len(self.bytes) - len(self.types))  # the workspace


def tiles(build, level, folder):
    """The address of the functions of tiles that lmc contains for this processor."""
    flags = open("/proc/cpuinfo").read()
    number = {"x86-64-v2": 1, "x86-64-v3": 2, "x86-64-v4": 3}.get(level) or (4 if "avx512_bf16" in flags else 3 if "avx512f" in flags else 2)
    with open(folder + "/given.c", "w") as f:
        f.write(f'extern const char lm_tiles_{number}[] __attribute__((visibility("hidden")));\nconst void *given(void) {{ return lm_tiles_{number}; }}\n')
    library = folder + "/tiles.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder + "/given.c", f"{build}/CMakeFiles/lm_tiles_{number}.dir/gen/tiles.c.o"], check=True)
    given = ctypes.CDLL(library).given
    given.restype = ctypes.c_void_p
    return given()


def kernels_of(build, level, compute, e, folder):
    """The two kernels of attention by their names in the plan."""
    batches, _, heads, sizes = MODELS[e]
    with open(folder + "/m.lm", "w") as f:
        f.write(PROGRAM.format(root=ROOT, batches=batches, heads=heads, groups=GROUPS, e=e, sizes=sizes))
    units = compiled(build + "/lmc", folder + "/m.lm", level, compute, folder)
    given, found = tiles(build, level, folder), {}
    for line in open(folder + "/plan/plan.txt"):
        m = re.search(r"^ +\d+ +kernel a[0-9a-f]+ over .*// (attend\w*) ", line)
        if not m or m[1] in found:
            continue
        k = found[m[1]] = Kernel(line, folder)
        for u in units:
            if hasattr(u, k.name):
                k.call = getattr(u, k.name)
                if hasattr(u, "lm_tiles_given"):
                    ctypes.c_void_p.in_dll(u, "lm_tiles_given").value = given
    return found


def buffers(kernel, seq):
    """Random operands; the block map, positions and segments of rows that are one document."""
    import numpy
    draw, out = numpy.random.default_rng(1), []
    whole = [i for i, t in enumerate(kernel.types) if t == "int32_t"]
    for i, (t, n) in enumerate(zip(kernel.types, kernel.bytes)):
        n //= SIZES[t]
        x = draw.standard_normal(n, dtype="f4")
        if t == "uint16_t":
            x = halves(x)
        elif t == "int32_t" and i == whole[0]:
            side = seq // SIDE
            one = numpy.tril(numpy.full((side, side), SIDE * SIDE), -1) + numpy.diag(numpy.full(side, SIDE * (SIDE + 1) // 2))
            x = numpy.tile(one.reshape(-1), n // one.size).astype("i4")
        elif t == "int32_t":
            x = numpy.tile(numpy.arange(seq), n // seq).astype("i4") if i in whole[1:3] else numpy.zeros(n, "i4")
        out.append(numpy.ascontiguousarray(x))
    return out


def operands(kernels, name, seq, points):
    """Those of the backward pass are v, o, lse, do, the map, q and k; o and lse come from the forward pass, whose operands are v, the map, q and k."""
    arrays = buffers(kernels[name], seq)
    if name == "attend_vjp":
        before = buffers(kernels["attend"], seq)
        before[0][:], before[2][:], before[3][:] = arrays[0], arrays[5], arrays[6]
        kernels["attend"].call(pointers(before), None, ctypes.c_int64(0), ctypes.c_int64(points))
        arrays[1][:], arrays[2][:] = before[-2], before[-1]
    return arrays


def report(clock, name, programs, title, e, multiply, spans):
    _, seq, heads, _ = MODELS[e]
    rows = seq // SIDE
    points = heads // GROUPS * rows  # the heads of a group
    arrays = operands(programs[0], name, seq, points)
    count = 1 if name == "attend_vjp" else points
    kernels = [found[name] for found in programs]
    cycles = [t / (rows * (rows + 1) // 2 * (heads // GROUPS)) for t in least_cycles(clock, kernels, pointers(arrays), count, spans)]
    bound = (5 if name == "attend_vjp" else 2) * SIDE * SIDE * e / multiply + 11 * SIDE * SIDE / 16
    print(f"  {title:32}" + "".join(f"{c:8.0f}" for c in cycles) + f"{cycles[-1] / cycles[0]:8.2f}{bound:8.0f}{cycles[-1] / bound:8.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build", nargs="*", default=[f"{ROOT}/build"])
    p.add_argument("--levels", nargs="+", default=["native", "x86-64-v3"])
    p.add_argument("--compute", nargs="+", default=["bf16", "f32"])
    p.add_argument("--heads", nargs="+", type=int, default=[32, 64, 128], choices=MODELS)
    p.add_argument("--spans", type=int, default=200)
    o = p.parse_args()
    pairs = "avx512_bf16" in open("/proc/cpuinfo").read()
    with tempfile.TemporaryDirectory() as folder:
        clock = timer(folder)
        for level, compute, e in ((a, b, c) for a in o.levels for b in o.compute for c in o.heads):
            programs = []
            for i, build in enumerate(o.build):
                at = f"{folder}/{level}.{compute}.{e}.{i}"
                os.makedirs(at)
                programs.append(kernels_of(os.path.abspath(build), level, compute, e, at))
            multiply = 32 if level == "native" and compute == "bf16" and pairs else 16
            for name in ("attend", "attend_vjp"):
                report(clock, name, programs, f"{level} {compute} {e} {name}", e, multiply, o.spans)


main()
