"""Compiling for a GPU, which takes none."""
import json, os

from harness import Skip, check, small


def doctor(run, name):
    return {f["name"]: f for f in json.loads(run("doctor", "--json"))}[name]["found"]


def test_compile(run):
    if not doctor(run, "nvrtc"):
        raise Skip("no NVRTC")
    file, cache = small(run), {"LMC_CACHE": run.path("cache")}
    cold = json.loads(run("compile", file, "--target", "sm_90a", "--json", "-o", run.path("plan"), env=cache))
    warm = json.loads(run("compile", file, "--target", "sm_90a", "--json", env=cache))
    check(cold["kernels_compiled"] == cold["kernels"] and not warm["kernels_compiled"], f"{cold} {warm}")
    check(cold["target"] == "sm_90a" and cold["code_bytes"] > 10000 and cold["code_bytes"] == warm["code_bytes"], "bytes of code")
    code = cold["machine_code"]
    check(len(code) == cold["kernels"] and code == warm["machine_code"], "a line a kernel")
    check(all(8 <= k["registers"] <= 255 and k["threads"] % 32 == 0 for k in code), str(code))
    check(any(k["shared"] > 0 for k in code) and any("llama.lm:26" in k["source"] for k in code), "shared memory, source lines")
    files = os.listdir(run.path("plan/kernels"))
    check(all(k["kernel"] + ".cu" in files for k in code) and "0.cubin" in files, str(files))
    check(open(run.path("plan/kernels/0.cubin"), "rb").read(4) == b"\x7fELF", "machine code")
    table = open(run.path("plan/kernels.txt")).read().splitlines()
    check(len(table) == 1 + len(code), "kernels.txt")


def test_unknown_target(run):
    check("--target is cpu, native, sm_80, sm_89, sm_90a, sm_100a, not 'sm_20'" in run("compile", small(run), "--target", "sm_20", status=1), "names what there is")
