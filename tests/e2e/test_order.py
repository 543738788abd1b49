"""precision { order = library }: sums of ranks by MPI or NCCL, in the order that the library chooses."""
import os

from harness import check, folder_bytes
from test_gpu import Fake
from test_ranks import PATIENT, by_variables, curves_check, model, mpi_needed

SANITIZER_BUILD = set()
LIBRARY = ("--set", "precision.order=library")
MESHES = {"zero2": (4, ("--set", "parallel.mesh=(dp = 4)", "--set", "parallel.zero=2")),
          "dp2tp2": (4, ("--set", "parallel.mesh=(dp = 2, tp = 2)", "--set", "precision.compute=bf16"))}
SUMS = {"zero2": ("reduce_scatter library_sum f32 ", "all_reduce library_sum f32 "), "dp2tp2": ("all_reduce library_sum bf16 ",)}


def train(run, file, name, out, *args):
    n, mesh = MESHES[name]
    return run("run", file, *mesh, "--ranks", n, "-q", "--out", run.path(out), *args, env=PATIENT)


def test_sums(run):
    """MPI adds: all sums of floats in the plan, the curves of sums in the order of the ranks; TCP has no sums."""
    mpi_needed(run)
    file = model(run, steps=6)
    for name, kinds in SUMS.items():
        run("compile", file, *MESHES[name][1], *LIBRARY, "-o", run.path("plan"))
        plan = open(run.path("plan", "plan.txt")).read()
        check(all(kind in plan for kind in kinds) and "_scatter sum" not in plan and "_reduce sum " not in plan.replace("sum int", ""), plan)
    train(run, file, "zero2", "ranks")
    train(run, file, "zero2", "library", *LIBRARY)
    curves_check(run, "ranks", "library", "sums by MPI")
    err = by_variables(run, 2, "run", file, "-q", "--set", "parallel.mesh=(dp = 2)", *LIBRARY, "--out", run.path("tcp"), status=1)[1]
    check(err.count("error[E266]: `order = library`: ranks that exchange tensors by TCP have no library of sums") == 1, err)
    check(not os.path.exists(run.path("tcp")), "the run has begun")


def test_sums_of_gpus(run):
    """NCCL adds, in graphs too: the curve of ranks on CPUs; nightly, the same bits twice, and other ones than in the order of three ranks."""
    mpi_needed(run)
    fake, file = Fake(run), model(run, steps=2, rows=6, seq=8, micro=24)
    words = "run", file, "-q", "--set", "parallel.mesh=(dp = 3)", "--set", "parallel.zero=2", "--ranks", 3
    gpu = lambda name, *more: fake(*words, *more, "--target", "cuda", "--out", run.path(name), how="devices=3", **PATIENT)
    run(*words, "--out", run.path("cpu"), env=PATIENT)
    gpu("library", *LIBRARY)
    curves_check(run, "cpu", "library", "sums by NCCL")
    if run.nightly:
        gpu("again", *LIBRARY)
        gpu("ranks")
        bits = {name: folder_bytes(run.path(name, "step-000002"))["model.safetensors"] for name in ("library", "again", "ranks")}
        check(bits["library"] == bits["again"], "two runs differ")
        check(bits["library"] != bits["ranks"], "order = library and order = ranks give the same bits, although the stand-in for NCCL adds in reverse order")
