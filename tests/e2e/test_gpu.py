"""GPUs: compiling without a GPU, and running on the fake NVIDIA libraries of tests/cuda/fake."""
import glob, importlib.util, json, math, os, re, shutil, signal, subprocess, sys, tarfile, time

import numpy as np

from test_fp8 import MODEL, emulated, heads, in_bf16, uneven
from test_lookahead import model as windowed
from test_master import model_of, prepare
from harness import ROOT, Skip, check, distance, doctor, folder_bytes, load, random_batches, save, small, within

SANITIZER_BUILD = {"compile", "unknown_target", "check", "trace", "in_place", "generate", "ranges",
                   "allocation_fails", "failures", "no_driver"}


def test_compile(run):
    if not doctor(run, "nvrtc")["found"]:
        raise Skip("no NVRTC")
    file, cache = small(run), {"LMC_CACHE": run.path("cache")}
    cold = json.loads(run("compile", file, "--target", "sm_90a", "--json", "-o", run.path("plan"), env=cache))
    warm = json.loads(run("compile", file, "--target", "sm_90a", "--json", env=cache))
    check(cold["kernels_compiled"] == cold["kernels"] and not warm["kernels_compiled"], f"{cold} {warm}")
    check(cold["target"] == "sm_90a" and cold["code_bytes"] > 10000 and cold["code_bytes"] == warm["code_bytes"], "bytes of code")
    code = cold["machine_code"]
    check(len(code) == cold["kernels"] and code == warm["machine_code"], "one line per kernel")
    check(all(8 <= k["registers"] <= 255 and k["threads"] % 32 == 0 for k in code), str(code))
    check(any(k["shared"] > 0 for k in code) and any("llama.lm:26" in k["source"] for k in code), "shared memory, source lines")
    files = os.listdir(run.path("plan/kernels"))
    check(all(k["kernel"] + ".cu" in files for k in code) and "0.cubin" in files, str(files))
    check(open(run.path("plan/kernels/0.cubin"), "rb").read(4) == b"\x7fELF", "machine code")
    table = open(run.path("plan/kernels.txt")).read().splitlines()
    notes = [f"{k['kernel']}: {k['note']}" for k in code if "note" in k]
    check(len(table) == 1 + len(code) + len(notes) and table[1 + len(code):] == notes, "kernels.txt")
    check(len(notes) == 2 and all("operands that are not bf16" in n for n in notes), str(notes))   # forward, backward


def test_spills(run):
    """no kernel of models with scans and experts spills registers; nightly at production sizes, for each generation of GPUs"""
    if not doctor(run, "nvrtc")["found"]:
        raise Skip("no NVRTC")
    sys.path.insert(0, f"{ROOT}/tests/bench")
    import gpu_cost
    cases = [(f"{ROOT}/tests/models/kinds/reference.lm", "sm_90a")]
    if run.nightly:
        cases = [(gpu_cost.program(run.folder, name, 3 if name == "griffin" else 1), t) for name in gpu_cost.MODELS for t in gpu_cost.TARGETS]
    for file, target in cases:
        code = json.loads(run("compile", file, "--target", target, "--json", "--set", "precision.compute=bf16"))
        check(code["machine_code"], "no kernels")
        if run.nightly and "mixtral" in file:
            rows = json.loads(run("explain", file, "cost", "--target", target, "--json"))["rows"]
            rates = [row["flops"] / row["predicted_s"] for row in rows if row["name"].startswith(("grouped", "kernel grouped"))]
            check(len(rates) == 6 and 2e14 < min(rates) and max(rates) < 8e14, f"{target}: {rates}")
        found = gpu_cost.spilled(code)
        check(not found, f"{file}, {target}: {found}")


def test_training_kernels(run):
    """nightly: no loop of a training step of the benchmarks' models accesses spilled registers, and loops over vectors issue fewer instructions
    than their bytes allow, for each generation of GPUs"""
    if not run.nightly:
        raise Skip("nightly")
    if not doctor(run, "nvrtc")["found"]:
        raise Skip("no NVRTC")
    sys.path.insert(0, f"{ROOT}/tests/bench")
    import gpu_cost, gpu_recipes
    files = [f"{ROOT}/examples/bench-180m.lm", f"{ROOT}/examples/bench-124m.lm", gpu_recipes.gpt2(run.folder, "gpt2", 64, 1024)[0],
             gpu_recipes.llama(run.folder, "1b", 8, 2048, 16, 2048, 8192, 32, 8, 64, 128_256)[0]]
    for file in files:
        for target in gpu_cost.TARGETS:
            code = json.loads(run("compile", file, "--target", target, "--json"))
            found = gpu_cost.spilled(code)
            check(not found and max(k["registers"] for k in code["machine_code"]) <= 255, f"{file}, {target}: {found}")
    p = subprocess.run([f"{ROOT}/scripts/sass", *files, "--lmc", run.lmc, "--check", *(x for t in gpu_cost.TARGETS for x in ("--target", t))],
                       cwd=ROOT, capture_output=True, text=True)
    if "nvdisasm was not found" in p.stderr:
        raise Skip("no nvdisasm: spilled bytes are checked, loops are not")
    check(not p.returncode, p.stderr)
    # an H100 executes 11 instructions of a lane in the time of a byte; loops of single elements move few bytes in all
    loops = [(int(n) / int(b), line) for line in p.stdout.splitlines() for n, b in re.findall(r"loop: +(\d+) instructions +(\d+) bytes", line) if int(b) >= 32]
    check(len(loops) > 150 and max(loops)[0] < 11, f"{len(loops)} loops: {max(loops)}")


def test_unknown_target(run):
    said = run("compile", small(run), "--target", "sm_20", status=1)
    check("--target is cpu, cuda, native, sm_80, sm_89, sm_90a, sm_100a, sm_103, sm_120, h100, " in said and "not 'sm_20': kernels need the bf16" in said, "the error must list the accepted names")
    check("not 'sm_99'" in run("compile", small(run), "--target", "sm_99", status=1).strip().splitlines()[-1][-12:], "no reason that is not one")


def test_toolkit_folder(run):
    """NVRTC in a folder that only CUDA_HOME names, outside of the loader's cache and path"""
    found = doctor(run, "nvrtc")
    loader = "/lib64/ld-linux-x86-64.so.2"
    path = re.search(r"\S*libnvrtc\.so\.\d+", found["what"])
    builtins = glob.glob(os.path.join(os.path.dirname(path[0]), "libnvrtc-builtins.so.*.*")) if path else []
    if not builtins or not os.path.exists(loader):
        raise Skip("no NVRTC")
    folder = run.path("toolkit", "lib64")
    os.makedirs(folder)
    command = [loader, "--inhibit-cache", run.lmc, "compile", small(run), "--target", "sm_90a"]
    env = {**os.environ, "CUDA_HOME": run.path("toolkit"), "LD_LIBRARY_PATH": "", "LMC_CACHE": run.path("cache")}

    def compiled(status):
        p = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        check(p.returncode == status, f"exit status {p.returncode}, not {status}\n{p.stdout}{p.stderr}")
        return p.stdout + p.stderr

    os.symlink(path[0], os.path.join(folder, os.path.basename(path[0])))
    text = compiled(2)
    check(f"{folder}/libnvrtc.so" in text and "cannot load libnvrtc-builtins.so." in text and "bug" not in text, text)
    for file in builtins:
        os.symlink(file, os.path.join(folder, os.path.basename(file)))
    check("for sm_90a in" in compiled(0), "compiled")


def test_check(run):
    """a recipe compiled for a GPU that is not present"""
    file = small(run, compute="auto")
    check("computed in bf16, which `auto` chooses on this target" in run("check", file, "--target", "sm_90a"), "bf16 on a GPU")


# ---- running on the fake NVIDIA libraries of tests/cuda/fake: the real runtime, with kernels under the SIMT shim


class Fake:
    """lmc with the fake libraries; how= words of FAKE_CUDA"""

    def __init__(self, run):
        folder = os.path.join(os.path.dirname(run.lmc), "fake")
        if not os.path.exists(os.path.join(folder, "libcuda.so.1")):
            raise Skip("no fake libraries beside lmc")
        self.run = run
        self.env = {"LD_LIBRARY_PATH": folder}

    def __call__(self, *args, how="", status=0, **env):
        code, out, err = self.run.result(*args, env={**self.env, "FAKE_CUDA": how, **env})
        check(code == status, f"lmc {' '.join(map(str, args))}: exit status {code}\n{out}{err}")
        check("fake CUDA" not in err, err)
        return out if status == 0 else err

    def trace(self, file, *options, **env):
        out = self.run.path("gpu.safetensors")
        self("trace", file, "--target", "cuda", "--out", out, *options, **env)
        return load(out)


def tiny(run, **how):
    return small(run, **{**dict(steps=2, rows=2, seq=8, micro=8), **how})


def test_trace(run):
    fake, file = Fake(run), tiny(run)
    cpu, gpu = run.trace(file), fake.trace(file)
    check(cpu.keys() == gpu.keys(), "the same tensors")
    fake("compile", file, "--target", "cuda", "-o", run.path("plan"))
    scatters = [line for line in open(run.path("plan/plan.txt")) if "llama.lm:37, accumulated" in line]
    check(len(scatters) == 1 and "-> grad[0 : " in scatters[0], f"rows of the embedding's gradient are added where they are: {scatters}")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-3), 1e-5)


BY_LAYER = "--disable-pass", "defer_gemms"      # the cotangents of all layers are the first memory that is given up
STACK = """import std.nn: rmsnorm, xent
block Layer(d) {
  param n: real[d] = ones
  dim f = d
  param w: real[d, f] = normal(0.1)
  apply(x: real[b, t, d]) -> real[b, t, d] { return x + tanh(rename(dot(rmsnorm(x, n), w, d), f -> d)) }
}
model Stack(depth = 24, d = 64, vocab = 64) {
  param embed: real[vocab, d] = normal(0.1)
  sub layers[i < depth] = Layer(d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    for l in layers carry x { x = l(x) }
    return dot(x, embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data Batches { source s = batches("batches.safetensors") }
recipe Small {
  model = Stack(); data = Batches; seed = 7; run = 2 steps; batch = 16 tokens; micro = 16 tokens; optimizer = adamw(lr = 3e-3); schedule = none
  precision { compute = bf16 }; save = checkpoint("run")
}
"""


def copies_of(text):
    """by stream: copies between host and device, and those that are concurrent to kernels; the most bytes of the device and of the host"""
    sent = {int(a): (int(b), int(c)) for a, b, c in re.findall(r"stream (\d+): (\d+) copies, (\d+) beside", text)}
    return sent, *map(int, re.search(r"(\d+) bytes of the device, (\d+) of pinned", text).groups())


def test_offload(run):
    """24 layers whose states or activations exceed the budget: the same bits; the predicted memory; copies beside kernels; a missing wait is found"""
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(2, 2, 8))
    file = run.write("s.lm", STACK)

    def plan(*rules):
        return json.loads(fake("explain", file, "memory", "--json", "--target", "cuda", *BY_LAYER, "--set", f"memory {{ {'; '.join(rules)} }}"))

    def trained(name, words, *rules, status=(0,)):
        how = ("--set", f"memory {{ {'; '.join(rules)} }}") if rules else ()
        code, out, err = run.result("run", file, "--target", "cuda", "--out", run.path(name), *BY_LAYER, *how, env={**fake.env, "FAKE_CUDA": words})
        check(code in status, f"{words}: {code} {out} {err}")
        return err

    natural, said = plan(), trained("plain", "counts")
    before = folder_bytes(run.path("plain/step-000002"))
    copies, device, host = copies_of(said)
    check(natural["host_bytes"] == 0 and 2 not in copies, f"nothing is offloaded: {natural} {copies}")
    check("E256" in run("check", file, "--set", "memory { offload activations }", status=1), "a CPU has nothing to offload")
    check("E25E" in fake("compile", file, "--target", "cuda", "--set", "memory { offload @layers.**; save @layers.** }", status=1), "no stash")
    stored = ("--set", "precision { compute = bf16; master = bf16 }", "--set", "memory { offload masters }")
    check("E25F" in fake("compile", file, "--target", "cuda", *stored, status=1), "there are no copies")
    again, inputs = plan("recompute @layers.**"), plan("recompute @layers.**", "offload @x")
    check(again["arenas"]["work"] - inputs["arenas"]["work"] > 0.8 * inputs["host_bytes"] > 0, f"the inputs of the layers are offloaded: {again} {inputs}")
    huge = "--target", "cuda", "--out", run.path("huge"), "--set", "model = Stack(d = 512, vocab = 1Gi)", "--set", "memory { offload states }"
    said = fake("run", file, *huge, how=f"memory={10 ** 14}", status=1)
    check("error[E253]: the plan needs" in said and "of the host's memory, this machine has" in said, said)
    for arena, rule in (("state", "offload states"), ("param", "offload masters"), ("stash", "offload @layers.**")):
        there = plan(rule)
        saved, moved = natural["bytes"] - there["bytes"], there["arenas"][arena]
        check(there["host_bytes"] == moved and there["copied_bytes"] == 2 * moved and (there["exposed_s"] > 0 or arena == "stash"), str(there))
        check(saved > 0.6 * moved and not there["recomputed"], f"{rule}: {natural} {there}")
        budget = f"budget = {there['bytes'] + saved // 2} bytes"
        if arena != "stash":
            check("E210" in fake("compile", file, "--target", "cuda", "--set", f"memory {{ {budget} }}", status=1), "too little memory")
        else:
            alone, both = plan(budget), plan(budget, "offload activations")
            check(alone["recomputed"] and not alone["offloaded"] and both["offloaded"] and both["host_bytes"] > 0, f"{alone} {both}")
        said = trained(arena, "counts,eager", budget, rule)
        check("fake CUDA" not in said, said)
        after = folder_bytes(run.path(f"{arena}/step-000002"))
        check(all(before[part] == after[part] for part in ("model.safetensors", "optimizer.safetensors")), f"{rule}: the results differ")
        copies, less, more = copies_of(said)
        check(device - less == saved and more - host in range(moved, moved + 4096), f"{rule}: {said} {natural} {there}")
        once = 2 if arena == "param" else 1            # @copies reads the masters before the first step
        check(copies[2][0] == once * copies[3][0] >= 32 and all(beside >= 0.8 * n for n, beside in (copies[2], copies[3])), f"{rule}: {copies}")
        late = ("unseen=2", "unseen=3") if arena == "state" else ()
        for words in (*late, "eager,unseen=2", "eager,unseen=3", "eager,blind=2", "eager,blind=3"):
            said = trained("x", words, budget, rule, status=(2, 99))
            check("of a copy that nothing orders" in said or "of a stream for which nothing waits" in said, f"{rule}: {words}: {said}")


def test_optimizers(run):
    """optimizers of matrices and of whole parameters, several in a recipe, and the weights of evaluations; states in the host's memory"""
    fake = Fake(run)
    groups = """optimizer = muon(lr = 0.02)
  group @embed = (optimizer = schedule_free(lr = 1e-2)); group @**.{n1,n2,qn,kn,norm} = (optimizer = lamb(lr = 1e-2))
  group @layers.1.**.{wg,wd} = (optimizer = adafactor(lr = 1e-2))"""
    text = open(tiny(run, steps=3)).read().replace("optimizer = adamw(lr = 3e-3)", groups)
    file = run.write("optimizers.lm", text.replace("data = Batches", 'save = checkpoint("run"); data = Batches'))
    cpu, gpu = run.trace(file, "--values", "params"), fake.trace(file, "--values", "params")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name]), 2e-5)
    fake("run", file, "--target", "cuda", "--out", run.path("gpu"), "--set", "memory { offload states }")
    run("run", file, "--out", run.path("cpu"))
    for part in ("model", "optimizer"):
        here, there = (load(run.path(x, "step-000003", part + ".safetensors")) for x in ("cpu", "gpu"))
        check(here.keys() == there.keys(), "the same tensors")
        for name in here:
            within(name, distance(there[name], here[name], 1e-6), 1e-4)


def test_optimizer_states_in_8_bits(run):
    """some parameters end with a part of a block; a run on the GPU stores what a CPU stores"""
    fake = Fake(run)
    model = "model = Llama(depth = 1, d = 66, ff = 64, heads = 2, kv = 2, e = 32, vocab = 66, drop = 0)"
    more = f"recipe S extends Small {{ {model}; precision {{ compute = f32; moments = dyn8() }}; save = checkpoint(\"run\") }}\n"
    file = run.write("s.lm", open(tiny(run, vocab=66)).read() + more)
    fake("run", file, "--recipe", "S", "--target", "cuda", "--out", run.path("gpu"))
    run("run", file, "--recipe", "S", "--out", run.path("cpu"))
    here, there = ({**load(run.path(x, "step-000002/optimizer.safetensors")), **load(run.path(x, "step-000002/model.safetensors"))}
                   for x in ("cpu", "gpu"))
    check(here.keys() == there.keys() and any(t.dtype == "u1" for t in here.values()), f"{here.keys()}")
    for name in here:
        codes = here[name].dtype == "u1"
        within(name, np.mean(here[name] != there[name]) if codes else distance(there[name], here[name], 1e-6), 2e-3)


def test_parameters_in_bf16(run):
    """a run on the GPU rounds at random as a CPU does"""
    fake, file = Fake(run), prepare(run)
    fake("run", file, "--target", "cuda", "--steps", 2, "--out", run.path("gpu"))
    run("run", file, "--steps", 2, "--out", run.path("cpu"))
    here, there = (model_of(run.path(x), 2) for x in ("cpu", "gpu"))
    for name in here:
        within(name, np.mean(here[name] != there[name]), 1e-3)


def test_packed(run):
    """concatenated weights, as at large micro-batches, and padded logits, while parameters change between steps"""
    fake, file = Fake(run), tiny(run, vocab=4100)
    cpu, gpu = run.trace(file), fake.trace(file, "--enable-pass", "fuse_gemms")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-3), 1e-5)


def test_packing_pays(run):
    """fewer launches and bytes at a large micro-batch"""
    if not doctor(run, "nvrtc")["found"]:
        raise Skip("no NVRTC")
    def cost(micro, *options):
        out = json.loads(run("compile", f"{ROOT}/examples/bench-180m.lm", "--target", "sm_90a", "--json", "--set", f"micro={micro} tokens", *options))
        return out["launches"], out["bytes"]
    packed, apart = cost("16Ki"), cost("16Ki", "--disable-pass", "fuse_gemms")
    check(packed[0] < apart[0] and packed[1] < 0.985 * apart[1], f"{packed} {apart}")


def test_gemm_kernels_pay(run):
    """SwiGLU, its derivative, norms and rotations of queries and keys and the sums of heads in attention's backward pass are computed in GEMMs where the cost model expects less time, gradients of a layer's weights in one launch, and the report says how much"""
    def cost(*options):
        return json.loads(run("explain", f"{ROOT}/examples/bench-180m.lm", "cost", "--target", "h100", "--json", *options))
    whole, fused, apart = cost(), cost(*BY_LAYER), cost("--disable-pass", "gemm_kernels,defer_gemms")
    deferred = [row["times"] for row in whole["rows"] if "accumulated 24 of " in row["name"]]
    check(deferred == [1] * 4 and whole["predicted_s"] < fused["predicted_s"] - 5e-4, f"GEMMs of the weights of all layers: {deferred}")
    rows, joined = ([row for row in fused["rows"] if "apart_s" in row and row["name"].startswith(word)] for word in ("kernel", "dot"))
    check(len(joined) == 1 and joined[0]["times"] == 24 and joined[0]["predicted_s"] < joined[0]["apart_s"], joined)
    names = sorted(row["name"].split()[1] for row in rows)
    check(names == ["dot+logistic", "dot+logistic", "dot+sum", "dot+sum+rsqrt"] and all(row["predicted_s"] < row["apart_s"] for row in rows), rows)
    check([row["kernel"] for row in apart["rows"] if "apart_s" in row] == [joined[0]["kernel"]], "without the pass")
    gain, expected = apart["predicted_s"] - fused["predicted_s"], sum(row["apart_s"] - row["predicted_s"] for row in rows)
    check(abs(gain - expected) < 0.1 * expected, f"a step must gain what its kernels gain: {gain} {expected}")
    text, token = run("explain", f"{ROOT}/examples/bench-180m.lm", "cost", "--target", "h100", *BY_LAYER), fused["decoding"]
    # 175,670,272 weights in bf16; keys and values of 24 layers of 2,048 positions of 4 heads, with a position and a document each
    read = 2 * 175_670_272 + 24 * 2048 * (2 * 4 * 64 * 2 + 8)
    check(abs(token["bytes"] / read - 1) < 0.01 and f'in {token["launches"]} launches' in text, token)
    check(abs(token["tokens_per_s"] * token["predicted_s"] - 1) < 1e-4 and token["lower_bound_s"] < token["predicted_s"], token)
    draw = token["draw_s"]      # 0, 1, 2, 2 and 3 searches
    check(0 < draw["greedy"] < draw["temperature"] < draw["top_k"] < draw["both"] and draw["temperature"] < draw["top_p"] < draw["both"], draw)
    check(f'drawing it: greedy {1e3 * draw["greedy"]:.3f}, temperature' in text, text)
    check("one kernel  library and kernel  what" in text and max(map(len, text.splitlines())) <= 80, text)
    columns, first = text.splitlines()[2].split(), text.splitlines()[3].split()
    shown, top = float(first[columns.index("TFLOP/s") - 2]), fused["rows"][0]      # the names of two columns have two words
    check(abs(shown - 1e-12 * top["flops"] / top["predicted_s"]) < 0.06, f"{shown}: {top}")


def wide(run, compute):
    """one layer with heads of 64, 96 positions"""
    file = small(run, steps=1, rows=1, seq=96, depth=1, compute=compute, name=f"{compute}.lm")
    text = open(file).read()
    return run.write(f"{compute}.lm", text.replace("d = 32, ff = 64, heads = 4, kv = 2, e = 8", "d = 64, ff = 64, heads = 2, kv = 1, e = 64"))


def test_trace_groups(run):
    """attention by warpgroups, forward and backward, of values that are columns of one GEMM's result; SwiGLU and its derivative in GEMMs by warpgroups"""
    fake, merged = Fake(run), ("--enable-pass", "fuse_gemms")
    text = fake("compile", wide(run, "bf16"), "--target", "cuda", "-o", run.path("plan"), *merged)
    groups = [line[0] for line in text.splitlines() if " 384 " in line]
    check(groups.count("a") == 2 and groups.count("g") >= 2, text)
    copies = [line for line in open(run.path("plan/plan.txt")) if " copy " in line and "attend" in line]
    check(not copies, "".join(copies))
    cpu, gpu = run.trace(wide(run, "f32")), fake.trace(wide(run, "bf16"), *merged)
    within("loss", distance(gpu["loss"], cpu["loss"]), 5e-3)
    for name in cpu:
        if name.startswith("grad."):
            within(name, distance(gpu[name], cpu[name], 1e-2), 4e-2)


def test_strided_results(run):
    """attention by warpgroups writes the gradients of queries, keys and values beside each other: no copy, one pass over them less"""
    fake, text = Fake(run), open(small(run, steps=1, rows=1, seq=96, compute="bf16")).read()
    text = re.sub(r" *group @.*", "", re.sub(r"model = Llama.*", "model = GPT2(depth = 1, d = 128, heads = 2, positions = 96, vocab = 64)", text))
    file, apart = run.write("gpt2.lm", re.sub("import .*", f'import "{ROOT}/examples/gpt2.lm": GPT2', text)), ("--disable-pass", "strided_results")
    kernels, bytes_moved = zip(*(attention_of(fake, run, file, *how) for how in ((), apart)))
    check(kernels[0] != kernels[1] and bytes_moved[1] - bytes_moved[0] == 2 * 96 * 3 * 128 * 2, f"{kernels} {bytes_moved}")
    here, there = fake.trace(file), fake.trace(file, *apart)
    check(here.keys() == there.keys() and all(np.array_equal(here[name], there[name]) for name in here), "the results differ")


def attention_of(fake, run, file, *how):
    """the kernels of attention by warpgroups, and the bytes that a step moves"""
    plan = json.loads(fake("compile", file, "--target", "cuda", "--json", *how))
    kernels = [k["kernel"] for k in plan["machine_code"] if "wgmma" in k.get("note", "") and k["kernel"].startswith("a")]
    check(len(kernels) == 2, plan)
    return kernels, plan["bytes"]


def routed(run, model):
    """one layer of a mixture of experts of tests/models"""
    text = open(f"{ROOT}/tests/models/{model}/reference.lm").read()
    name = re.search(r"^model (\w+)\(depth", text, re.M)[1]
    text = text.replace("model = Start", f"model = {name}(depth = 1)").replace('"batches.', f'"{ROOT}/tests/models/{model}/batches.')
    return run.write(f"{model}.lm", text)


def test_routed(run):
    """rows sorted by expert, and GEMMs whose sizes are data, of which the second micro-batch adds to gradients"""
    fake, file, how = Fake(run), routed(run, "mixtral"), ("--recipe", "Reference", "--steps", 2)
    cpu, gpu = run.trace(file, *how), fake.trace(file, *how)
    check(cpu.keys() == gpu.keys(), "the same tensors")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-3), 1e-5)


def test_routed_bf16(run):
    fake, file, how = Fake(run), routed(run, "qwen3moe"), ("--recipe", "Reference", "--set", "micro=64 tokens", "--steps", 1, "--values", "loss,grads")
    cpu, gpu = run.trace(file, *how), fake.trace(file, *how, "--set", "precision.compute=bf16")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-2), 5e-3 if name == "loss" else 8e-2)


WIDE = """
data D { source s = batches("batches.safetensors") }
recipe R {
  model = Mixtral(depth = 1, d = 128, f = 128, E = 2, heads = 2, kv = 1); data = D; seed = 3; run = 1 steps
  batch = 144 tokens; micro = 72 tokens; optimizer = adamw(lr = 1e-2); precision { compute = bf16 }
}
"""


def test_routed_warpgroups(run):
    """experts of so many rows that warpgroups multiply them, gate and up as one GEMM, whose sums SwiGLU reads in registers; the second
    micro-batch adds to gradients"""
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(1, 2, 72, vocab=32))
    file = run.write("wide.lm", open(f"{ROOT}/tests/models/mixtral/reference.lm").read().split("model Start")[0] + WIDE)
    names = [r["name"] for r in json.loads(run("explain", file, "cost", "--target", "h100", "--json"))["rows"]]
    check(sum("kernel grouped_dot+logistic" in n for n in names) == 2 and any("grouped_outer" in n and "128x256x144" in n for n in names), f"{names}")
    cpu, gpu = (r.trace(file, "--values", "loss,grads") for r in (run, fake))
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-2), 1e-3 if name == "loss" else 2e-2)


# models with loops over positions
SCANS = {"mamba2": ("examples/zoo/mamba2.lm", "Mamba2(depth = 1, d = 8, groups = 1, p = 8, n = 4"),
         "griffin": ("tests/models/griffin/reference.lm", "Griffin(depth = 1")}
SCAN = """
data D { source s = batches("batches.safetensors") }
recipe R {
  model = MODEL, vocab = 32); data = D; run = 2 steps; batch = 390 tokens; micro = 195 tokens; optimizer = adamw(lr = 1e-2)
  precision { compute = f32 }; save = checkpoint("run", every = 2 steps)
}
"""


def test_scans(run):
    """Mamba-2 and Griffin in rows of 3 to 5 chunks: loss, gradients and trained parameters of the loop and of its chunks; the tokens of
    decoding"""
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(2, 2, 195, vocab=32))
    for name, (file, model) in SCANS.items():
        text = open(f"{ROOT}/{file}").read().split("\nmodel Start")[0]
        file = run.write(f"{name}.lm", text + SCAN.replace("MODEL", model).replace('"run"', f'"{name}"'))
        cpu = run.trace(file)
        for how in ((), ("--enable-pass", "chunk_scan")) if name == "mamba2" else ((),):
            gpu = fake.trace(file, *how)
            check(cpu.keys() == gpu.keys(), "the same tensors")
            for tensor in cpu:
                within(f"{name} {how}: {tensor}", distance(gpu[tensor], cpu[tensor]), 2e-5)
        rounded = fake.trace(file, "--values", "loss,grads", "--set", "precision.compute = bf16", "--enable-pass", "chunk_scan")
        for tensor in rounded:
            within(f"{name} in bf16: {tensor}", distance(rounded[tensor], cpu[tensor]), 5e-3 if tensor == "loss" else 6e-2)
        run("run", file, "--quiet")
        ids = ("generate", run.path(name), "--prompt-ids", "1,2,3,4,5,6,7", "-n", "6", "-t", "0", "--ids")
        check(fake(*ids, "--target", "cuda") == run(*ids), f"{name}: the tokens differ")


def test_mixing_kernels(run):
    """Mamba-2 in bf16, whose chunks have 80 positions, not 120, and so are tiles of tensor cores: gradients as without mixing kernels, whose weights
    and their cotangents are rounded in memory, and without scans that multiply, which do not round what chunks add to states"""
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(2, 2, 240, vocab=32))
    text = open(f"{ROOT}/examples/zoo/mamba2.lm").read()
    model = "Mamba2(depth = 1, d = 32, groups = 1, p = 16, n = 16"
    file = run.write("mixes.lm", text + SCAN.replace("MODEL", model).replace("195", "240").replace("390", "480"))
    how = "--values", "loss,grads", "--set", "precision.compute = bf16", "--enable-pass", "chunk_scan"
    exact, mixed = run.trace(file, "--values", "loss,grads"), fake.trace(file, *how)
    for off, what in ("mix_kernels", "a kernel computes weights"), ("scan_gemms", "scans multiply"):
        apart = fake.trace(file, *how, "--disable-pass", off)
        check(any((mixed[n] != apart[n]).any() for n in exact), what)
        for n in exact:
            within(f"{n}, without {off}", distance(mixed[n], exact[n]), 2 * distance(apart[n], exact[n]) + 1e-3)


MOE = """import "{root}/examples/zoo/mixtral.lm": Mixtral
data D {{ source s = text("text.txt"); pack best_fit(seq = 128 tokens) }}
recipe R {{
  model = Mixtral(depth = 1, d = 128, ff = 256, heads = 2, kv = 1, vocab = 256); data = D; run = 1 steps; batch = 512 tokens; micro = 512 tokens
  optimizer = adamw(lr = 1e-2); precision {{ compute = bf16 }}; sample {{ every = 1 steps; prompt = "a"; n = 4 tokens }}
}}
"""


def test_kernels_beside_decoding(run):
    """experts are trained by wgmma though the recipe samples, so that its plan has GEMMs with a run-time number of rows"""
    fake = Fake(run)
    run.write("text.txt", "a text of some words\n" * 100)
    text = fake("compile", run.write("moe.lm", MOE.format(root=ROOT)), "--target", "cuda")
    notes = [line.split(": ")[1] for line in text.splitlines() if "GEMM" in line]
    counts = [notes.count(note) for note in ("grouped GEMMs by wgmma on tiles that TMA copies",
                                             "a GEMM by wgmma on tiles that TMA copies, with the kernel in its epilogue")]
    check(counts == [4, 4], f"{counts}: {notes}")


def test_chain_kernels(run):
    """Gated DeltaNet, with --nightly also the state of RWKV-7, in bf16, in two chunks of 64 positions: gradients as where a loop passes
    the state on"""
    from test_scan import RECURRENT_LAYERS

    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(2, 1, 128, vocab=32))
    recipe = SCAN.replace("MODEL", "Recurrent(d = 32").replace("195", "128").replace("390", "128")
    how = "--values", "loss,grads", "--set", "precision.compute = bf16", "--enable-pass", "chunk_scan"
    for layer in ("GatedDeltaNet(d, 1, 64, 2, 32, 4, 1e-2)", "Rwkv(d, 2, 64)")[: 2 if run.nightly else 1]:
        file = run.write("layer.lm", RECURRENT_LAYERS.replace("LAYER", layer) + recipe)
        exact, chained = run.trace(file, "--values", "loss,grads"), fake.trace(file, *how)
        apart = fake.trace(file, *how, "--disable-pass", "chain_kernels")
        steps = run("explain", file, "cost", "--target", "h100", *how[2:])
        check("scan dot" in steps, f"a kernel passes the state of {layer} on\n{steps}")
        for n in exact:
            within(f"{layer}: {n}", distance(chained[n], exact[n]), 2 * distance(apart[n], exact[n]) + 1e-3)
        if run.nightly and layer.startswith("Gated"):   # of which RWKV-7 has no chunks of 64 positions in f32
            full = fake.trace(file, "--values", "loss,grads", "--enable-pass", "chunk_scan")
            for n in exact:
                within(f"{layer} in f32: {n}", distance(full[n], exact[n]), 2e-5)


def test_trace_bf16(run):
    fake = Fake(run)
    cpu, gpu = run.trace(tiny(run)), fake.trace(tiny(run, compute="bf16"))
    within("loss", distance(gpu["loss"], cpu["loss"]), 5e-3)
    for name in cpu:
        if name.startswith("grad."):
            within(name, distance(gpu[name], cpu[name], 1e-2), 8e-2)


def test_epilogues(run):
    """biases, gelu and residuals that GEMMs compute, by the library's epilogues or by builtin kernels"""
    fake, file = Fake(run), f"{ROOT}/tests/reference/gpt2-tiny/reference.lm"
    how = ("--recipe", "Reference", "--steps", "1", "--values", "loss,grads")
    out, cpu, near = run.path("gpu.safetensors"), run.trace(file, *how), {"f32": 2e-6, "bf16": 3e-2}
    for compute, library in (("f32", ""), ("bf16", ""), ("bf16", "plain")):
        what = ("--set", f"precision.compute={compute}", "--target", "cuda")
        fake("trace", file, *how, *what, "--out", out, how=library)
        gpu = load(out)
        for name in cpu:
            within(f"{name} in {compute} {library}", distance(gpu[name], cpu[name], 1e-3), near[compute])
    fake("compile", file, "--set", "precision.compute=bf16", "--target", "cuda", "-o", run.path("plan"))
    plan = open(run.path("plan/plan.txt")).read()
    check(all(f"gemm m=128({k},0,{c}) n={c}(0,1,1) k={k}(1,{c},0) {what} " in plan for c, k, what in ((64, 64, "residual bias"), (256, 64, "bias gelu"), (64, 256, "residual bias"))), plan)


def test_in_place(run):
    """a model whose auxiliary losses are added to a scalar that a block reads and writes in place"""
    fake, file = Fake(run), f"{ROOT}/tests/models/moe/reference.lm"
    how = ("--recipe", "Reference", "--steps", "1", "--values", "loss")
    out = run.path("gpu.safetensors")
    fake("trace", file, *how, "--target", "cuda", "--out", out)
    within("loss", distance(load(out)["loss"], run.trace(file, *how)["loss"]), 2e-6)


def test_tf32(run):
    """operands of TF32 GEMMs lose 13 bits on a GPU, none on a CPU"""
    fake, how = Fake(run), ("--set", "precision.matmul=tf32", "--values", "loss,grads")
    file, out = tiny(run, steps=1), run.path("gpu.safetensors")
    cpu = run.trace(file, *how)
    check(all((cpu[k] == x).all() for k, x in run.trace(file, "--values", "loss,grads").items()), "the processor's bits")
    fake("trace", file, *how, "--target", "cuda", "--out", out)
    far = [distance(x, cpu[k], 1e-3) for k, x in load(out).items() if k.startswith("grad.")]
    check(1e-5 < max(far) < 1e-2, f"rounded by {max(far)}")
    check("it needs compute = f32" in run("check", file, "--set", "precision.matmul=tf32", "--set", "precision.compute=bf16", status=1), "TF32 requires f32")


def test_same_bits(run):
    """kernels one by one, synchronously or as graphs; the whole run or in two parts"""
    fake, ways = Fake(run), {"graphs": {}, "steps": {"LMC_CUDA_GRAPHS": "0"}, "waiting": {"LMC_CUDA_SYNC": "1"}}
    file, files = tiny(run, drop=0.1, steps=4, seq=4, micro=4), {}   # the second step records graphs, the third one replays them
    for way, env in ways.items():
        fake("run", file, "--target", "cuda", "--out", run.path(way), "--quiet", **env)
    fake("run", file, "--target", "cuda", "--out", run.path("parts"), "--quiet", "--steps", "1")
    fake("run", file, "--target", "cuda", "--out", run.path("parts"), "--quiet")
    for way in (*ways, "parts"):
        files[way] = {k: v for k, v in folder_bytes(run.path(way, "step-000004")).items() if k.endswith(".safetensors")}
        check(files[way] and files[way] == files["graphs"], f"{way}: the results differ")


BIGRAM = """import std.nn: xent
model Bigram(d = 8, vocab = 16) {
  param embed: real[vocab, d] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] { return dot(gather(embed, tok, vocab), embed, d) }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data Batches { source s = batches("batches.safetensors") }
recipe Small {
  model = Bigram()
  data = Batches
  run = 1 steps; batch = 144 tokens; micro = 48 tokens
  optimizer = adamw(lr = 1e-2)
  precision { compute = f32 }
}
"""


def test_arguments_ahead(run):
    """batches are copied during the computation of earlier ones, with copies as late or as early as allowed"""
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(1, 9, 16, 16))
    file = run.write("bigram.lm", BIGRAM)
    late, early, cpu = fake.trace(file), fake.trace(file, how="eager"), run.trace(file)
    for name in cpu:
        check(np.array_equal(late[name], early[name]), f"{name}: the results differ")
        within(name, distance(late[name], cpu[name], 1e-3), 1e-5)


def test_tuned(run):
    """max-autotune: algorithms of GEMMs are measured once, stored with the run and in the cache, and used on resume"""
    fake = Fake(run)
    file = small(run, steps=2, rows=1, seq=8, depth=1, more='save = checkpoint("run", every = 1 steps)\n  compile = mode("max-autotune", budget = 3600 s)')
    own, options = {"LMC_CACHE": run.path("cache")}, ("--target", "cuda", "--enable-pass", "cse")   # passes are given by an option, so no variant of the step is tried

    def train(folder, *args):
        return json.loads(fake("run", file, *options, "--out", run.path(folder), "--json", "-q", *args, **own).splitlines()[-1])

    first, again = train("parts", "--steps", "1"), train("whole")
    check(first["measured"] > 3 and again["measured"] == 0, f"{first} {again}")
    lock = run.path("parts", "tuned.json")
    kept = json.load(open(lock))
    check(kept["gpu"] == "Fake GPU" and len(kept["gemms"]) == first["measured"] and all(len(p["algorithm"]) == 128 for p in kept["gemms"]), kept)
    shutil.rmtree(run.path("cache"))
    check(train("parts")["measured"] == 0, "the algorithms of tuned.json must be used")
    files = [folder_bytes(run.path(f, "step-000002")) for f in ("parts", "whole")]
    check(all(files[0][k] == files[1][k] for k in files[0] if k.endswith(".safetensors")), "the results differ")
    json.dump({**kept, "gpu": "NVIDIA H100 80GB HBM3"}, open(lock, "w"))
    shutil.rmtree(run.path("parts", "step-000002"))
    err = fake("run", file, *options, "--out", run.path("parts"), status=1, **own)
    check("chosen on NVIDIA H100 80GB HBM3" in err and "not on Fake GPU" in err, err)


def test_bad_step(run):
    """a batch of NaN: the device skips the step and the host reports it"""
    fake, batches = Fake(run), random_batches(3, 2, 8)
    batches["w"][1, 0, 0] = math.nan
    file = tiny(run, steps=3, batches=batches, more='save = checkpoint("run", every = 1 steps, keep = all)')
    out = fake("run", file, "--target", "cuda", "--out", run.path("run"), "--steps", "2")
    check("step 2: the loss is not a number; its batch is skipped" in out and "1 bad steps were skipped" in out, out)
    fake("run", file, "--target", "cuda", "--out", run.path("run"))
    one, two, three = (load(run.path("run", f"step-{k:06}", "model.safetensors")) for k in (1, 2, 3))
    check(all(np.array_equal(one[k], two[k]) and np.isfinite(three[k]).all() for k in one), "a skipped step must change nothing")
    check(any(not np.array_equal(two[k], three[k]) for k in two), "parameters must change in later steps")


def test_generate(run):
    """a token is one launch of a graph, for all positions"""
    fake, file = Fake(run), tiny(run, more='save = checkpoint("run", every = 2 steps)')
    run("run", file, "--quiet")
    how = ("generate", run.path("run"), "--prompt-ids", "1,2,3,4,5", "-n", "5", "-t", "0", "--ids")
    code, out, err = run.result(*how, "--target", "cuda", env={**fake.env, "FAKE_CUDA": "counts"})
    check(code == 0 and "fake CUDA" not in err and out == run(*how), f"the tokens differ\n{out}{err}")
    # four tokens after the prompt: the first one step by step, the others as one graph each, at other positions
    check(int(re.search(r"(\d+) graphs were launched", err)[1]) == 3, err)
    # behind another kernel of the plan a kernel may begin early, of which the emulator checks that it waits
    early, all = map(int, re.search(r"(\d+) of (\d+) kernels may begin early", err).groups())
    check(early > all // 3, err)
    for words, off in (("counts,cc=80", {}), ("counts", {"LMC_CUDA_EARLY": "0"})):
        code, out, err = run.result(*how, "--target", "cuda", env={**fake.env, "FAKE_CUDA": words, **off})
        check(code == 0 and "\n0 of " in err, f"{words}: {err}")


def test_ring_cache(run):
    """decoding with attention over the last 40 positions, whose ring cache has 512: prompts longer than one call, and positions beyond 512, which wrap around"""
    fake, drawn = Fake(run), {}
    run.write("text.txt", "a text. " * 400)
    prompt = [(7 * i * i + 3 * i + i // 5) % 256 for i in range(600)]
    for window in (40, 20):
        text = windowed(f"same & back >= 0 & back < {window}").replace("dot(x + ", "dot(0.5 * x + 6 * ")
        for old, new in (("seq = 16", "seq = 1024"), ("run = 2 steps; batch = 32", "seed = 2; run = 1 steps; batch = 1024"),
                         ("lr = 1e-3)", f'lr = 0); precision {{ compute = f32 }}; save = checkpoint("run{window}", every = 1 steps)')):
            text = text.replace(old, new)
        file = run.write("ring.lm", text)
        found = json.loads(run("check", file, "--json", "--target", "sm_90a"))[0]["cache_bytes"]
        check(found["position"] == 0 and found["constant"] > 0, f"the cache is a ring: {found}")
        run("run", file, "--quiet")
        for n in (600, 506):
            how = ("generate", run.path(f"run{window}"), "--prompt-ids", ",".join(map(str, prompt[:n])), "-n", "12", "--seed", "5", "--ids")
            drawn[window, n] = run(*how)
            check(fake(*how, "--target", "cuda") == drawn[window, n], f"window {window}, {n} tokens: the tokens differ")
    check(all(drawn[40, n] != drawn[20, n] for n in (600, 506)), f"the tokens do not depend on the window: {drawn}")


def test_sampling(run):
    """the device draws each token from all logits, by top_p too, and sends its id alone"""
    fake, vocab, n = Fake(run), 20_000, 4
    file = tiny(run, vocab=vocab, depth=1, more='save = checkpoint("run", every = 2 steps)')
    run("run", file, "--quiet")
    how = ("generate", run.path("run"), "--prompt-ids", "1,2,3,4,5,6", "-n", str(n), "--ids")
    for options in ("-t", "2"), ("-t", "2", "--top-p", "0.9", "--seed", "3"), ("-t", "2", "--top-k", "2000"):
        code, out, err = run.result(*how, *options, "--target", "cuda", env={**fake.env, "FAKE_CUDA": "counts"})
        check(code == 0 and "fake CUDA" not in err and out == run(*how, *options), f"{options}: the tokens differ\n{out}{err}")
        sent = int(re.search(r"(\d+) bytes were copied", err)[1])
        check(n * 4 <= sent < n * 4 + 64, f"{options}: {sent} bytes")


def test_profile(run):
    fake = Fake(run)
    out = fake("run", tiny(run), "--target", "cuda", "--out", run.path("run"), "--profile", "-q")
    spans = [x for x in json.load(open(run.path("run/profile.json")))["traceEvents"] if x.get("ph") == "X"]
    check(any("llama.lm" in json.dumps(x) for x in spans) and any(x["name"] == "micro" for x in spans), out)


def test_ranges(run):
    """the NVTX ranges that NVIDIA's profilers show: the rates of a step are computed at the end of the step before,
    and a step of two micro-batches is two graphs"""
    fake, tool = Fake(run), {"FAKE_CUDA": "counts", "NVTX_INJECTION64_PATH": os.path.abspath(os.path.join(os.path.dirname(run.lmc), "fake", "libnvtxtool.so"))}
    _, _, err = run.result("bench", tiny(run), "--target", "cuda", "--steps", "1", env={**fake.env, **tool})
    lines = [line.removeprefix("range ") for line in err.splitlines() if line.startswith("range ")]
    step = ["  micro", "  micro", "  norm", "  update", "  rates"]
    check(lines[:9] == ["step 1", "  rates", "  copies", *step, "step 2"], err)
    second = lines[lines.index("step 2") + 1:]
    check(second[:2] == ["  copies … micro", "  micro … update"], err)     # the run's last step
    check("\n2 graphs were launched" in err, err)


MEMORY = dict(steps=2, rows=8, seq=32, depth=2)   # a batch of 256 tokens


def automatic(run, fake):
    """a small recipe with micro = auto, and the bytes that its plans with other micro-batches take, without the stashes of stash_operands and defer_gemms"""
    file = run.write("auto.lm", re.sub(r"micro = \d+ tokens", "micro = auto", open(small(run, **MEMORY)).read()))
    bytes_of = lambda micro: json.loads(fake("compile", file, "--target", "cuda", "--json", "--disable-pass", "stash_operands,defer_gemms", "--set", f"micro={micro} tokens"))["peak_bytes"]
    return file, {micro: bytes_of(micro) for micro in (32, 64, 128, 256)}


def test_memory_of_the_device(run):
    """micro = auto takes the largest micro-batch that the GPU has memory for; a given one recomputes, or is refused before kernels are compiled"""
    fake = Fake(run)
    file, sizes = automatic(run, fake)
    room = (sizes[64] + sizes[128]) / 2
    how = f"memory={int(room / 0.95)}"
    check(json.loads(fake("compile", file, "--target", "cuda", "--json", how=how))["micro"] == 64, "the largest that fits")
    check(json.loads(fake("compile", file, "--target", "cuda", "--json"))["micro"] == 256, "the whole batch fits")
    given = (file, "--target", "cuda", "--set", "micro=256 tokens")
    peak_bytes = lambda how: json.loads(fake("compile", *given, "--json", how=how))["peak_bytes"]
    most = peak_bytes("")
    check(most > sizes[256] == peak_bytes(f"memory={int((sizes[256] + 1) / 0.95)}"), "without stashes of operands where they do not fit")
    less = 0.1 * sizes[64] + 0.9 * sizes[256]
    check(json.loads(fake("compile", *given, "--json", how=f"memory={int(less / 0.95)}"))["recomputed"] > 0, "recomputed to fit")
    err = fake("run", *given, "--out", run.path("none"), how=f"memory={sizes[32] // 2}", status=1)
    check("error[E253]" in err and "Fake GPU" in err and "of memory" in err, err)


def test_allocation_fails(run):
    """the next smaller plan is used, with a warning, if the driver cannot allocate memory that it reports as free"""
    fake = Fake(run)
    file, _ = automatic(run, fake)
    code, out, err = run.result("run", file, "--target", "cuda", "--out", run.path("run"), "-q", env={**fake.env, "FAKE_CUDA": "alloc=3"})
    check(code == 0 and "could not allocate" in err and "is used instead" in err, f"{code}: {out}{err}")
    record = json.load(open(run.path("run", "run.json")))
    check(record["micro"] == 256 and record["by_layer"] and not record["less_memory"], f"{record}: the smaller plan of the same micro-batch")


def test_stash_operands(run):
    """the same loss and gradients, with and without recomputation and in whatever kernel a GEMM is; a run keeps the plan with which it began"""
    fake = Fake(run)
    file, hopper = tiny(run, compute="bf16", rows=4, micro=32), {"how": "cc=90"}
    fused, again = ("--enable-pass", "gemm_kernels"), ("--set", "memory { recompute @layers.** }")
    kept, lean, apart = (fake.trace(file, *fused, *o, **hopper) for o in ((), ("--disable-pass", "stash_operands"), again))
    for name in kept:
        check(np.array_equal(kept[name], lean[name]) and np.array_equal(kept[name], apart[name]), f"the emulator contracts nothing: {name}")
    codes = [fake.trace(file, "--steps", 1, "--set", "precision.attend = fp8", *fused, *how, **hopper) for how in ((), again)]
    check(all(np.array_equal(codes[0][name], codes[1][name]) for name in kept), "recomputation must not change a bit of attention in 8-bit floats")
    check(not np.array_equal(kept["loss"][:1], codes[0]["loss"]), "attention in 8-bit floats")
    plans = []
    for name, how in ("kept", ()), ("apart", again):
        fake("compile", file, "--target", "cuda", "-o", run.path(name), *fused, *how, **hopper)
        plans.append({os.path.basename(x) for x in glob.glob(run.path(name, "kernels", "g*"))})
    check(len(plans[0] & plans[1]) >= 1 and plans[0] != plans[1], f"other GEMMs are in kernels where values are recomputed: {plans}")
    file = tiny(run, compute="bf16")
    sizes = [json.loads(fake("compile", file, "--target", "cuda", "--json", *o))["peak_bytes"] for o in (BY_LAYER, ("--disable-pass", "stash_operands,defer_gemms"))]
    less = {"how": f"memory={int((sizes[0] - 1) / 0.95)}"}
    for name, hows in ("whole", [less]), ("parts", [less, {}]), ("most", [{}]):
        for steps, how in enumerate(hows, 3 - len(hows)):
            fake("run", file, "--target", "cuda", "--out", run.path(name), "--quiet", "--steps", steps, **how)
        record = json.load(open(run.path(name, "run.json")))
        check(record["less_memory"] == record["by_layer"] == (name != "most"), f"{name}: {record}")
    check(sizes[0] > sizes[1], f"{sizes}")


def test_defer_gemms(run):
    """gradients of the weights of all layers by one GEMM each: the bits of gradients layer by layer, in two micro-batches, also where only some operands are stashed; none if the stashes are
    in the host's memory, or if ranks add the gradients meanwhile"""
    fake, file = Fake(run), tiny(run, depth=4)
    args = file, "--steps", 1, "--values", "loss,grads"
    usual = fake.trace(*args, *BY_LAYER)
    for name, rules, n in ("all", (), 3), ("some", ("--set", "memory { recompute @layers.**; save @layers.**.attn.o }"), 1), ("far", ("--set", "memory { offload @layers.** }"), 0), ("ranks", ("--set", "parallel.mesh = (dp = 2)", "--set", "micro = 16 tokens"), 0):
        fake("compile", file, "--target", "cuda", "-o", run.path("plan"), *rules)
        micro = open(run.path("plan/plan.txt")).read().split("func micro ")[1].split("\nfunc ")[0]
        whole = re.findall(r" gemm init .* batch=4\(\d+,\d+,\d+\) accumulate .*-> grad", micro)
        check(len(whole) == n, f"{name}: {micro}")
        deferred = fake.trace(*args, *rules) if n else usual
        check(all(np.array_equal(usual[k], deferred[k]) for k in usual), f"{name}: the sums of the fake have one order")


def test_failures(run):
    fake, file = Fake(run), tiny(run)
    how = ("run", file, "--target", "cuda", "--out", run.path("run"), "--quiet")
    check("there is no NVIDIA GPU" in fake(*how, how="none", status=2), "no device")
    check("Fake GPU has compute capability 7.5; there is code for 8.0, 8.6, " in fake(*how, how="cc=75", status=2), "an old device")
    gpu = next(x for x in json.loads(run.result("doctor", "--json", env={**fake.env, "FAKE_CUDA": "cc=75"})[1]) if x["name"] == "gpu")
    check(not gpu["found"] and "of compute capability 8.0 to 12.1; Fake GPU has 7.5" in gpu["what"], str(gpu))
    check("(tried libnvrtc.so.12)" in fake(*how, how="driver=12040", status=2), "a driver that does not support CUDA 13")
    check("knows CUDA 11.8; CUDA 12 is the oldest" in fake(*how, how="driver=11080", status=2), "an old driver")
    for cc, arch in ("103", "sm_103"), ("120", "sm_120"), ("121", "sm_120"):
        check(f"makes no code for {arch}" in fake(*how, how=f"cc={cc},old", status=2), f"the code of {cc}")
    check("makes no code for sm_100a" in fake(*how, how="cc=100,old", status=2), "a compiler older than the device")
    check("the plan is compiled for sm_90a, but" in fake("run", file, "--target", "sm_90a", how="cc=80", status=2), "another device")
    wide = run.write("wide.lm", f'''import "{ROOT}/examples/zoo/mamba2.lm": Mamba2
data D {{ source s = text("wide.txt"); pack best_fit(seq = 128 tokens) }}
recipe R {{
  model = Mamba2(depth = 1, d = 128, p = 128, n = 128, groups = 1, vocab = 512); data = D; seed = 1; run = 1 steps
  batch = 128 tokens; micro = 128 tokens; optimizer = adamw(lr = 1e-3); precision {{ compute = bf16 }}
}}''')
    run.write("wide.txt", "some words of a text\n" * 200)
    err = fake("run", wide, "--target", "a100", "--quiet", "--out", run.path("wide"), how="cc=86", status=2)
    check(re.search(r"takes 1\d{5} bytes of shared memory, of which one on Fake GPU can have 101376; compile for it with --target cuda", err), err)
    for n in (1, 2, 3):   # the second is the runtime's own, the third an arena: no plan takes less
        err = fake(*how, "--set", "model.depth=1", how=f"alloc={n}", status=2)
        check("CUDA_ERROR_OUT_OF_MEMORY" in err, f"allocation {n}: {err}")
    err = fake(*how, how="launch=12", status=2)
    check("micro: kernel k" in err and "llama.lm:" in err, f"a launch: {err}")
    err = fake(*how, how="fault=12", status=2)
    check("copies … rates failed on Fake GPU" in err and "CUDA_ERROR_ILLEGAL_ADDRESS" in err, f"a fault: {err}")
    err = fake(*how, how="fault=12", status=2, LMC_CUDA_SYNC="1")
    check("micro: kernel k" in err and "llama.lm:" in err, f"a fault, waiting: {err}")
    check(not os.path.exists(run.path("run")) or not any(f.startswith("step-") for f in os.listdir(run.path("run"))), "nothing must be saved")


def test_slow_kernels(run):
    """what NVRTC reports about a kernel is a warning of the run and a line under the table of kernels"""
    fake, file = Fake(run), tiny(run, steps=1)
    how = dict(how="serialized", LMC_CACHE=run.path("cache"))
    code, out, err = run.result("run", file, "--target", "cuda", "--out", run.path("run"), env={**fake.env, "FAKE_CUDA": "serialized", "LMC_CACHE": how["LMC_CACHE"]})
    check(code == 0 and re.search(r"warning: kernel a[0-9a-f]{16} \(.*llama.lm:.*\) is slow on Fake GPU: NVRTC serialized its warpgroup GEMMs", err), err)
    table = fake("compile", file, "--target", "cuda", **how)
    check(re.search(r"\na[0-9a-f]{16}: warning: NVRTC serialized", table), table)
    code = json.loads(fake("compile", file, "--target", "cuda", "--json", **how))["machine_code"]
    check([k["serialized"] for k in code] == [k["kernel"][0] == "a" for k in code], str(code))
    check(all(k["registers"] == 168 for k in code if k["serialized"]), "registers, behind the warnings")


def test_refused_gemms(run):
    """a large GEMM for which cuBLASLt has no algorithm, so that a loop computes it, is named by one warning"""
    more = 'compile = mode("max-autotune", budget = 1 ms)'      # algorithms are chosen before anything runs
    fake, file = Fake(run), tiny(run, steps=1, depth=1, rows=64, seq=64, micro=64 * 64, vocab=512, compute="bf16", more=more)
    how = ("run", file, "--target", "cuda", "--enable-pass", "cse", "--out", run.path("run"), "--quiet")
    own = dict(status=2, LMC_CACHE=run.path("cache"))           # algorithms that other tests have measured are in the user's
    err = fake(*how, how="refuse,launch=1", **own)
    found = re.findall(r"warning: the GEMM of (.*) is slow on Fake GPU: cuBLASLt 130000 has no algorithm for it \(bf16, m = (\d+), n = (\d+), "
                       r"k = (\d+)\); a loop without tensor cores computes it, in ([0-9.e+]+) ms or more instead of about ([0-9.e+-]+) ms", err)
    check(len(found) > 3 and len(found) == err.count("the GEMM of") and all("llama.lm:" in name for name, *_ in found), err)
    check(all(float(loop) - float(usual) > 0.09 for *_, loop, usual in found), err)
    check(all(int(m) * int(n) * int(k) >= 4096 * 32 * 32 for _, m, n, k, *_ in found), f"those of 0.1 ms: {err}")
    check("the GEMM of" not in fake(*how, how="launch=1", **own), "the library computes them")


def test_older_nvrtc(run):
    """nightly: the kernels of warpgroups by the NVRTC that PyTorch has brought, which may be older than the machine's"""
    python = os.environ.get("LMC_HF_PYTHON", sys.executable)
    where = subprocess.run([python, "-c", "import nvidia.cuda_nvrtc as n; print(*n.__path__)"], capture_output=True, text=True).stdout.strip()
    found = glob.glob(f"{where}/lib/libnvrtc*.so.12*") if where else []
    if not run.nightly or not found:
        raise Skip("nightly, with NVRTC 12 of PyTorch")
    os.makedirs(run.path("nvrtc"))
    for file in found:
        os.symlink(file, run.path("nvrtc", os.path.basename(file).replace("libnvrtc.so.12", "libnvrtc.so.13")))     # which is tried first
    env = {"LD_LIBRARY_PATH": run.path("nvrtc"), "LMC_CACHE": run.path("cache")}
    code = json.loads(run("compile", f"{ROOT}/examples/bench-180m.lm", "--target", "sm_90a", "--json", env=env))["machine_code"]
    wide = [k for k in code if k["threads"] == 384]
    check(len(wide) == 6 and all(k["registers"] == 168 and not k["serialized"] and not k["spilled"] for k in wide), str(wide))


def test_no_driver(run):
    err = run("run", small(run), "--target", "cuda", "--quiet", status=2, env={"LD_LIBRARY_PATH": ""})
    check("the NVIDIA driver was not found" in err, err)


def gpu_program(run, name, *args, how=""):
    """one case of scripts/gpu-check"""
    program = os.path.join(os.path.dirname(run.lmc), name)
    if not os.path.exists(program):
        raise Skip("not built")
    p = subprocess.run([program, *args], cwd=ROOT, env={**os.environ, **Fake(run).env, "FAKE_CUDA": how}, capture_output=True, text=True)
    check(p.returncode == 0 and "fake CUDA" not in p.stderr, p.stderr)


def test_random_kernels(run):
    """programs of tests/codegen/kernel_random_test.c through the runtime"""
    gpu_program(run, "gpu_random_check", "100", "6")


def test_gemms(run):
    """random strides, batch axes and sums, with and without epilogues of the library, bit for bit"""
    gpu_program(run, "gpu_gemm_check", "1", "150")
    gpu_program(run, "gpu_gemm_check", "2", "150", how="plain")


def test_codes(run):
    """GEMMs of 8-bit floats by the fake cuBLASLt, bit for bit; it refuses each of a list of mistakes, and scales that are not floats on the device"""
    gpu_program(run, "gpu_codes_check", how="cc=90")
    gpu_program(run, "gpu_codes_check", how="cc=100")
    env = {**os.environ, **Fake(run).env, "FAKE_CUDA": "cc=100,untiled"}
    p = subprocess.run([os.path.join(os.path.dirname(run.lmc), "gpu_codes_check")], env=env, capture_output=True, text=True)
    check(p.returncode and "memcmp" in p.stderr, f"scales of blocks in another layout: {p.returncode} {p.stderr}")
    for mistake, status, text in (("host-scale", 99, "the scale of a GEMM: an address that is not on the device"), ("odd-scale", 7, "")):
        p = subprocess.run([os.path.join(os.path.dirname(run.lmc), "gpu_codes_check"), mistake], env=Fake(run).env, capture_output=True, text=True)
        check(p.returncode == status and text in p.stderr, f"{mistake}: {p.returncode} {p.stderr}")


def test_fp8(run):
    """matmul = fp8: all three GEMMs of each cast weight multiply codes, and training is that of a CPU up to the order of sums"""
    fake, what, on = Fake(run), ("--values", "loss,grads,params"), ("--enable-pass", "fp8")
    save(run.path("batches.safetensors"), random_batches(2, 2, 16, 24))
    how = dict(d=32, ff=48, vocab=24, depth=2, steps=2, lr=0.1)
    file = run.write("fp8.lm", MODEL.format(**how, micro=16, matmul="fp8()"))
    cpu, gpu = run.trace(file, *what), fake.trace(file, *what, *on)
    check(cpu.keys() == gpu.keys(), "the same tensors")
    for name in cpu:
        within(name, distance(gpu[name], cpu[name], 1e-3), 1e-5)
    for name, more in ("device", ()), ("host", ("--set", "memory { offload states }")):
        more += "--set", "optimizer = adamw(lr = 0.1)"
        fake("run", file, "--target", "cuda", "-q", "--out", run.path(name), *on, *more)
    saved = [{k: v for k, v in folder_bytes(run.path(name, "step-000002")).items() if k.endswith(".safetensors")} for name in ("device", "host")]
    check(len(saved[0]) == 2 and saved[0] == saved[1], "weights and states of states in the host's memory")
    fake("compile", file, "--target", "cuda", "-o", run.path("plan"), *on, *more)
    copies = [line for line in open(run.path("plan/plan.txt")) if " copy lane " in line]
    check(len(copies) == 4 and all("state[" in line and "small[" not in line for line in copies), f"both moments, and no history of a scale: {copies}")
    late = ("run", file, "--target", "cuda", "-q", "--out", run.path("late"), *on, *more)
    code, _, err = run.result(*late, env={**fake.env, "FAKE_CUDA": "unseen=3"})
    check(code == 2 and "operations of a stream for which nothing waits" in err, f"a wait is missing: {code} {err}")
    fake("compile", file, "--target", "cuda", "-o", run.path("plan"), *on)
    gemms = [line for line in open(run.path("plan/plan.txt")) if " gemm " in line]
    check(sum(" scaled number number " in line for line in gemms) == 3 * 3, f"the GEMMs of a layer: {gemms}")
    check(sum(" scaled number number fast " in line for line in gemms) == 3, f"fast accumulation in the forward pass alone: {gemms}")
    other = run.write("e5m2.lm", MODEL.format(**{**how, "steps": 1}, micro=16, matmul="fp8(fwd = e5m2, bwd = e4m3, scale = current)"))
    cpu, gpu = run.trace(other, *what), fake.trace(other, *what, *on)
    for name in cpu:
        within(f"{name} with fwd = e5m2", distance(gpu[name], cpu[name], 1e-3), 1e-5)
    fake("compile", other, "--target", "cuda", "-o", run.path("plan"), *on)
    codes = open(run.path("plan/plan.txt")).read().count(" scaled number number ")
    check(codes == 2 * 3 and " fast " not in open(run.path("plan/plan.txt")).read(), f"the GEMMs of the gradients: {codes}")
    err = fake("check", run.write("odd.lm", MODEL.format(**{**how, "ff": 40}, micro=16, matmul="fp8()")), "--target", "cuda", status=1)
    check("error[E2F4]" in err and "@layers.wg: 40 is no multiple of 16" in err, err)


def block_scales_check(run, cc, rows, positions, d, ff, scale, sizes=None):
    """A model trains by codes and scales of blocks as a CPU does, and a fake that reads scales row by row, without padding, is found.
    sizes: of the axes of ff. Returns the plan."""
    fake, what = Fake(run), ("--values", "loss,grads,params")
    save(run.path("batches.safetensors"), random_batches(1, rows, positions, 24))
    text = MODEL.format(d=d, ff=ff, vocab=24, depth=1, steps=1, lr=0.1, micro=rows * positions, matmul=f"fp8(scale = {scale})")
    if sizes:
        text = heads(text, *sizes)
        save(run.path("start.safetensors"), uneven(d, sizes, 1))
    file = run.write("blocks.lm", text)
    cpu = run.trace(file, *what)
    right, wrong = (fake.trace(file, *what, "--enable-pass", "fp8", how=how) for how in (f"cc={cc}", f"cc={cc},untiled"))
    for name in cpu:
        within(name, distance(right[name], cpu[name], 1e-3), 1e-5)
    far = max(distance(wrong[name], cpu[name], 1e-3) for name in cpu)
    check(far > 1e-2, f"the check must find scales in another layout: {far:.2g}")
    fake("compile", file, "--target", "cuda", "-o", run.path("plan"), "--enable-pass", "fp8", how=f"cc={cc}")
    return open(run.path("plan/plan.txt")).read()


def test_fp8_mx(run):
    """scales for 32 elements on sm_100a, in tiles whose rows are padded, as cuBLAS documents them"""
    plan = block_scales_check(run, 100, 2, 96, 64, 160, "mx")
    check(plan.count(" scaled vec32 vec32 ") == 3 * 3, f"the GEMMs of a layer: {plan}")


def test_fp8_block(run):
    """scales for 128 elements, and for 128 of 128 rows, on sm_90a, as cuBLAS documents them"""
    plan = block_scales_check(run, 90, 1, 128, 128, 256, "block")
    for plan in plan, block_scales_check(run, 90, 1, 128, 128, 256, "block", (2, 2, 64)):    # also two heads of 64 to a block
        check(plan.count(" scaled vec128 vec128 ") == 3 and len(re.findall(" scaled (vec128 blk128|blk128 vec128) ", plan)) == 6, f"the GEMMs of a layer: {plan}")


def test_fp8_bf16(run):
    """matmul = fp8 in bf16: operands are rounded to bf16, then to codes, as in PyTorch and on a CPU, whatever is stashed"""
    fake, what, on = Fake(run), ("--values", "loss,grads,params"), ("--set", "precision { compute = bf16; matmul = fp8(scale = current) }")
    batches = random_batches(1, 2, 16, 24)
    save(run.path("batches.safetensors"), batches)
    file = run.write("fp8.lm", MODEL.format(d=32, ff=48, vocab=24, depth=2, steps=1, lr=0, micro=16, matmul="compute"))
    cpu = run.trace(file, *what, *on)
    gpu, again = (fake.trace(file, *what, *on, "--enable-pass", "fp8", *how) for how in ((), ("--set", "memory { recompute @layers.** }")))
    check(all(np.array_equal(gpu[name], again[name]) for name in gpu), "recomputation must not change a bit")
    plan = json.loads(fake("compile", file, "--target", "cuda", "--json", "-o", run.path("plan"), *on, "--enable-pass", "fp8"))
    how = ("--target", "cuda", "-q", "--out", run.path("run"), *on, "--enable-pass", "fp8")
    _, device, _ = copies_of(run.result("run", file, *how, env={**fake.env, "FAKE_CUDA": "counts"})[2])
    check(device - plan["peak_bytes"] in range(2048), f"predicted {plan['peak_bytes']}, allocated {device}")
    codes = re.findall(r" : (\d+)\] steps .* 2 x e4m3 of ", open(run.path("plan/plan.txt")).read())
    check(sorted(map(int, codes)) == [2 * 16 * 32, 2 * 16 * 48], f"stashes of the norm and of silu(g) u of two layers: {codes}")
    params = {k.removeprefix("final."): v for k, v in cpu.items() if k.startswith("final.")}
    of_bf16, of_f32 = (emulated(params, batches, 2, 0, "current", **how)[1] for how in ({"stored": in_bf16}, {}))
    for name, grad in of_bf16.items():
        here, there = (x[f"grad.{name}"] for x in (gpu, cpu))
        within(f"{name} from PyTorch", distance(here, grad), 0.13)
        within(f"{name} from a CPU", distance(here, there), 1e-4)
    far = max(distance(gpu[f"grad.{k}"], v) for k, v in of_f32.items())
    check(far > 0.16, f"the check must find operands that are not rounded to bf16: {far:.2g}")


def bare_machine(run, build):
    """a copy of the packed folder, with no commands but Python and the compiler of the fake NVRTC"""
    for part in ("scripts", "examples", "tests/bench", "tests/e2e", "tests/cuda/fake", "tests/models/bigram"):
        shutil.copytree(os.path.join(ROOT, part), run.path("copy", part), ignore=shutil.ignore_patterns("__pycache__"))
    os.makedirs(run.path("bin"))
    for name in ("cc", "as", "ld", "sh"):
        os.symlink(shutil.which(name), run.path("bin", name))
    script = run.path("copy", "scripts", "gpu-check")
    p = subprocess.run([sys.executable, script, "--pack", "--build", os.path.abspath(build)], capture_output=True, text=True)
    check(p.returncode == 0, p.stdout + p.stderr)
    return [sys.executable, script, "--fake", os.path.abspath(os.path.join(build, "fake"))]


def without(archive, name):
    """removes a file from it"""
    with tarfile.open(archive) as old, tarfile.open(archive + ".new", "w:gz", compresslevel=1) as new:
        for member in old:
            if member.name != name:
                new.addfile(member, old.extractfile(member))
    os.replace(archive + ".new", archive)


def packed_alone(run):
    """the packed programs find all but the system's libraries in their folder, without development packages"""
    folder = run.path("copy/build/gpu-check/unpacked")
    out = subprocess.run(["ldd", f"{folder}/lmc"], capture_output=True, text=True, env={"LD_LIBRARY_PATH": f"{folder}/lib"}).stdout
    found = dict(re.findall(r"(\S+) => (\S+)", out))
    check(found and all(at.startswith(folder) or name.startswith(("libc.", "libm.", "libgcc_s.", "libstdc++.")) for name, at in found.items()), out)


def torch_is_old():
    """PyTorch 1, which the comparing benchmarks do not run on"""
    if not importlib.util.find_spec("torch"):
        return False
    return not hasattr(importlib.import_module("torch.nn.functional"), "scaled_dot_product_attention")


def test_gpu_check(run):
    """the script on the fake libraries, without a build; a failure does not hide other results"""
    Fake(run)
    build = os.path.dirname(run.lmc)
    if not os.path.exists(os.path.join(build, "gpu_attend_check")):
        raise Skip("not built")
    command, env = bare_machine(run, build), {"PATH": run.path("bin"), "HOME": run.path("home"), "OUT": run.path("out")}
    without(run.path("copy/build/gpu-check/pack.tar.gz"), "gpu_random_check")
    p = subprocess.run([*command, *([] if run.nightly else ["--only", "kernels"])], capture_output=True, text=True, env=env)
    parts = [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]
    check(p.returncode == 1 and [x["part"] for x in parts] == [1, 2, 3] and all(len(json.dumps(x)) < 500 for x in parts), p.stdout + p.stderr)
    check([x["failed"] for x in parts] == [["random kernels"], ["bench-180m"] if run.nightly and torch_is_old() else [], []], p.stdout + p.stderr)
    packed_alone(run)
    check(sorted(os.listdir(run.path("out"))) == [f"gpu-check-{i}.{kind}" for i in (1, 2, 3) for kind in ("json", "log")], str(os.listdir(run.path("out"))))
    checks = json.load(open(run.path("out/gpu-check-1.json")))["checks"]
    check(checks["GEMMs"]["ok"] and checks["kernels"]["ok"] and not checks["random kernels"]["ok"], str(checks))
    check("gpu_random_check: No such file" in open(run.path("out/gpu-check-1.log")).read(), "the log")


def test_wrong_case(run):
    """a failing case of gpu-check is reported with its output, and the others run"""
    fake = Fake(run)
    env = {**os.environ, **fake.env, "FAKE_CUDA": "fault=2", "OUT": run.path("out")}
    command = [sys.executable, f"{ROOT}/scripts/gpu-check", "1", "--build", os.path.abspath(os.path.dirname(run.lmc)), "--only", "attention", "--fake"]
    p = subprocess.run(command, capture_output=True, text=True, env=env)
    check(p.returncode == 1 and re.search(r"^f32, biased: .*micro: kernel .*CUDA_ERROR_ILLEGAL_ADDRESS", p.stdout, re.M), p.stdout + p.stderr)


HANGS = """#!/bin/sh
case "$1" in
doctor) echo '[%s]' ;;
*) sleep 100 ;;
esac
""" % ", ".join('{"name": "%s", "found": true, "what": "a GPU"}' % n for n in ("cuda driver", "nvrtc", "cublaslt", "gpu"))


def test_check_ended(run):
    """gpu-check ends a program whose time is over, and all of them at a signal, with all files; what Python lacks is skipped"""
    for name, text in ("lmc", HANGS), ("python", f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n'):
        os.chmod(run.write(f"build/{name}", text), 0o755)
    command = [sys.executable, f"{ROOT}/scripts/gpu-check", "1", "--build", run.path("build"), "--python", run.path("build/python"), "--fake", run.path("none")]
    env, log = {**os.environ, "OUT": run.path("out")}, run.path("out/gpu-check-1.log")

    def checks():
        return json.load(open(run.path("out/gpu-check-1.json")))

    p = subprocess.run([*command, "--seconds", "4"], capture_output=True, text=True, env=env)
    last = json.loads(p.stdout.splitlines()[-1])
    check(p.returncode == 1 and last["failed"] == ["headline"] and "profile" in last["skipped"], p.stdout + p.stderr)
    check(checks()["running"] is None and checks()["checks"]["profile"]["ok"] is None and "not done in" in open(log).read(), p.stdout)
    p = subprocess.run([*command, "--seconds", "60", "--only", "references"], capture_output=True, text=True, env=env)
    check(p.returncode == 0 and "has no numpy" in p.stdout, p.stdout + p.stderr)

    p = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    while "machine" not in p.stdout.readline():
        pass
    while "begins: " + run.path("build/lmc bench") not in open(log).read():
        time.sleep(0.05)
    check(checks()["running"] == "headline" and checks()["checks"]["machine"]["ok"], "the file of a check that is killed")
    p.send_signal(signal.SIGTERM)
    last = json.loads(p.communicate(timeout=60)[0].splitlines()[-1])
    check(p.returncode == 1 and last["failed"] == ["headline"] and not last["ok"], str(last))
    check("ended by a signal" in open(log).read(), "the program that ran is in the log")
