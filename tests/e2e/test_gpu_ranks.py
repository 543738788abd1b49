"""Runs of several ranks with a GPU each, on the fakes of NVIDIA's libraries (tests/cuda/fake): against ranks on CPUs; failures."""
import json, os, re, shutil, signal, time
from concurrent.futures import ThreadPoolExecutor

from harness import ROOT, Skip, check, folder_bytes, random_batches, save, small, within
from test_gpu import STACK, Fake, copies_of
from test_ranks import PATIENT, QUICK as QUICK_ON_CPUS, by_variables, curve, curves_check, mpi_needed, rank_pid, tensors, wait_for

SANITIZER_BUILD = {"missing", "connecting"}
QUICK = {**QUICK_ON_CPUS, "LMC_COMM_STUCK": "60"}      # kernels run under an emulator, and the fake driver runs one stream at a time
MESHES = {"dp": "dp = 2", "tp": "tp = 2"}


def model(run, **how):
    return small(run, **{**dict(steps=3, rows=4, seq=8, micro=16, drop=0.1), **how},
                 more='save = checkpoint("run", every = 4 steps, keep = all); parallel { shard tp = [g, ff, vocab] }')


def command(file, mesh, out, *args):
    return "run", file, "-q", "--set", f"parallel.mesh=({mesh})", "--ranks", 2, "--out", out, *args


def without_ranks(words):
    """the command for a launcher"""
    at = words.index("--ranks")
    return words[:at] + words[at + 2:]


def failing(run, file, how="devices=2", sets=(), **env):
    """standard error of a run on two GPUs that ends with status 2"""
    fake = Fake(run)
    line = command(file, "dp = 2", run.path("fails" + env.get("FAKE_NCCL", "")), "--target", "cuda", *sets)
    code, out, err = run.result(*line, env={**fake.env, **QUICK, "FAKE_CUDA": how, **env})
    check(code == 2 and not re.search("fake (CUDA|NCCL)", err), f"exit status {code}\n{out}{err}")
    return err


def test_as_ranks_on_cpus(run):
    """data and tensor parallelism, with dropout: the loss of ranks on CPUs, and the same bits twice"""
    mpi_needed(run)
    fake, file = Fake(run), model(run)
    for name, mesh in MESHES.items():
        run(*command(file, mesh, run.path(f"cpu-{name}")), env=PATIENT)
        fake(*command(file, mesh, run.path(f"gpu-{name}"), "--target", "cuda"), how="devices=2", **PATIENT)
        curves_check(run, f"cpu-{name}", f"gpu-{name}", name)
    divided = ("--target", "cuda", "--set", "parallel.zero = 1", "--set", "memory { offload states }")
    fake(*command(file, MESHES["dp"], run.path("gpu-zero"), *divided), how="devices=2", **PATIENT)
    curves_check(run, "cpu-dp", "gpu-zero", "zero, with states in the host's memory")
    by_variables(run, 2, *without_ranks(command(file, MESHES["tp"], run.path("again"), "--target", "cuda")), **fake.env, FAKE_CUDA="devices=2")
    check(tensors(run.path("again"), 3) == tensors(run.path("gpu-tp"), 3), "two runs differ, of mpirun and with torchrun's variables")


def test_stages(run):
    """two stages on each GPU (interleaved 1F1B), with dropout: loss and gradient norm of ranks on CPUs"""
    mpi_needed(run)
    fake, file = Fake(run), model(run, steps=1, depth=4)
    stages = ("--set", "parallel.pipeline = interleaved(chunks = 2)")
    run(*command(file, "pp = 2", run.path("cpu"), *stages), env=PATIENT)
    fake(*command(file, "pp = 2", run.path("gpu"), *stages, "--target", "cuda"), how="devices=2", **PATIENT)
    curves_check(run, "cpu", "gpu", "two stages on each rank")


def test_offload(run):
    """activations in the host's memory, in 1F1B (nightly: with each schedule): the same bits; the predicted memory; copies beside kernels; a missing wait is found"""
    mpi_needed(run)
    fake = Fake(run)
    save(run.path("batches.safetensors"), random_batches(1, 8, 4, 64))
    text = STACK.replace("depth = 24, d = 64", "depth = 16, d = 16").replace("run = 2 steps; batch = 16 tokens; micro = 16", "run = 1 steps; batch = 32 tokens; micro = 8")
    file = run.write("s.lm", text.replace("compute = bf16", "compute = f32"))
    schedules = {"1f1b": "one_f_one_b", "gpipe": "gpipe", "chunks": "interleaved(chunks = 2)"}

    def trained(name, words, *sets, status=(0,)):
        limits = PATIENT if status == (0,) else QUICK
        code, out, err = run.result(*command(file, "pp = 2", run.path(name), "--target", "cuda", *sets), env={**fake.env, **limits, "LMC_COMM_END": "1", "FAKE_CUDA": f"devices=2,{words}"})
        check(code in status, f"{name} {words}: {code} {out} {err}")
        return err

    def planned(*sets):
        return json.loads(fake("explain", file, "memory", "--json", "--target", "cuda", "--set", "parallel.mesh=(pp = 2)", *sets))

    for name, schedule in schedules.items():
        if name != "1f1b" and not run.nightly:
            continue
        how = "--set", f"parallel.pipeline = {schedule}"
        rule = *how, "--set", "memory { offload @layers.** }"
        natural, there = planned(*how), planned(*rule)
        saved, moved = natural["bytes"] - there["bytes"], there["host_bytes"]
        check(saved > 0 and moved == there["arenas"]["stash"] > 0 and there["copied_bytes"] >= 2 * moved, f"{name}: {natural} {there}")
        before, after = trained(f"{name}-before", "counts", *how), trained(f"{name}-after", "counts,eager", *rule)
        check("fake CUDA" not in after, after)
        a, b = (folder_bytes(run.path(f"{name}-{when}/step-000001")) for when in ("before", "after"))
        check(all(a[part] == b[part] for part in ("model.safetensors", "optimizer.safetensors")), f"{name}: the results differ")
        (messages, device, host), (copies, less, more) = copies_of(before), copies_of(after)
        lanes = [stream for stream, (n, _) in copies.items() if n not in [n for n, _ in messages.values()]]
        check(device - less == saved and more - host == moved, f"{name}: {device} {less} {host} {more} {natural} {there}")
        check(len(lanes) == 2 and copies[lanes[0]][0] == copies[lanes[1]][0] >= 8 and all(copies[stream][1] >= 0.8 * copies[stream][0] for stream in lanes), f"{name}: {copies}")
        for words in [f"{word}={stream}" for word in ("unseen", "blind") for stream in lanes] if run.nightly else (f"unseen={lanes[1]}",):
            said = trained("x", f"eager,{words}", *rule, status=(2, 99))
            check("of a copy that nothing orders" in said or "of a stream for which nothing waits" in said, f"{name}, {words}: {said}")


def test_offload_parameters(run):
    """nightly: parameters of zero = 3 in the host's memory, gathered a layer ahead: the same bits"""
    if not run.nightly:
        raise Skip("nightly")
    mpi_needed(run)
    fake, file = Fake(run), model(run, steps=2, depth=3, compute="bf16")
    for name, rule in ("device", ()), ("host", ("--set", "memory { offload states; offload masters }")):
        fake(*command(file, "dp = 2", run.path(name), "--target", "cuda", "--set", "parallel.zero = 3", *rule), how="devices=2,eager", **PATIENT)
    check(tensors(run.path("host"), 2) == tensors(run.path("device"), 2), "the results differ")


EXPERTS = """
data D { source s = text("t.txt", split = "\\n"); holdout dev = sample(2 docs); pack best_fit(seq = 8 tokens) }
recipe R {
  model = Mixtral(d = 16, f = 16, E = 4, vocab = 256); data = D; seed = 3; run = 1 steps; batch = 32 tokens; micro = 16 tokens
  optimizer = adamw(lr = 1e-3); clip = global_norm(max = 1.0); precision { compute = f32 }
  eval dev { data = D.dev; every = 1 steps; metrics = [loss] }; save = checkpoint("run", every = 4 steps)
  sample { every = 1 steps; prompt = "line"; n = 3 tokens; temperature = 0 }
}
"""


def test_experts(run):
    """rows that are routed to experts on other GPUs: losses, gradient norms, evaluations and text of one process on a CPU"""
    mpi_needed(run)
    fake = Fake(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(24)))
    file = run.write("mixtral.lm", open(f"{ROOT}/tests/models/mixtral/reference.lm").read().split("model Start")[0] + EXPERTS)
    sample = lambda text: re.search(r"sample after step 1:\n(.*?)\ndone", text, re.S)[1]
    one = run("run", file, "--out", run.path("cpu"))
    many = fake(*[x for x in command(file, "ep = 2", run.path("gpu"), "--target", "cuda") if x != "-q"], how="devices=2", **PATIENT)
    curves_check(run, "cpu", "gpu", "ep = 2")
    check(sample(one) == sample(many), one + many)
    for a, b in zip(curve(run.path("cpu"), "dev.loss"), curve(run.path("gpu"), "dev.loss"), strict=True):
        within("dev.loss", abs(a - b) / abs(a), 2e-6)


def messages(err):
    """by stream: the messages of both ranks, and those that are concurrent to kernels"""
    sums = {}
    for stream, n, beside in re.findall(r"^stream (\d+): (\d+) copies, (\d+) beside kernels", err, re.M):
        a, b = sums.get(int(stream), (0, 0))
        sums[int(stream)] = a + int(n), b + int(beside)
    return sums


def lanes_check(run, file, how, beside, *sets, apart=()):
    """with collectives on lanes: the bits without lanes, and messages beside kernels on all streams of `beside`"""
    fake = Fake(run)
    names = f"{how} {sets}", f"{how} {sets} alone"
    both = [command(file, "dp = 2", run.path(out), "--target", "cuda", *sets) for out in names]
    code, out, err = run.result(*both[0], *apart, env={**fake.env, **PATIENT, "FAKE_CUDA": f"devices=2,counts,{how}"})
    check(code == 0 and "fake CUDA" not in err, f"{sets}: {out}{err}")
    found = messages(err)
    check(all(n == alone > 0 for n, alone in (found.get(stream, (0, 0)) for stream in beside)), f"{sets}: {err}")
    fake(*both[1], "--disable-pass", "overlap,bucket", how="devices=2", **PATIENT)
    for part in ("model", "optimizer"):
        a, b = (folder_bytes(run.path(out, "step-000001"))[f"{part}.safetensors"] for out in names)
        check(a == b, f"{sets}, {how}: the {part} has other bits without lanes")


def test_lanes(run):
    """collectives on separate streams, as early as events allow: the same bits; a missing event is found"""
    mpi_needed(run)
    file, third = model(run, steps=1), ("--set", "parallel.zero = 3")
    lanes_check(run, file, "eager", (2, 3), *third)             # sums, and gathers a layer ahead
    missing = ("eager,unseen=3", "eager,blind=2") + (("eager,blind=3", "eager,unseen=2", "seed=5,unseen=3") if run.nightly else ())
    for words in missing:
        code, out, err = run.result(*command(file, "dp = 2", run.path("x"), "--target", "cuda", *third),
                                    env={**Fake(run).env, **QUICK, "FAKE_CUDA": f"devices=2,{words}"})
        check(code and "the memory of a copy that nothing orders before or after it" in err, f"{words}: {out}{err}")
    for zero in (0, 1, 2) if run.nightly else ():
        for seed in (1, 2, 3):
            sets = "--set", f"parallel.zero = {zero}", "--set", "precision.compute = bf16"
            lanes_check(run, file, f"seed={seed}", (2,), *sets, apart=("--disable-pass", "bucket"))


def test_missing(run):
    """a machine with too few GPUs, without NCCL, and with an old one"""
    mpi_needed(run)
    file = model(run, steps=1)
    err = failing(run, file, how="")
    check("each rank needs a GPU, and this is rank 1 of its machine, which has 1" in err, err)
    err = failing(run, file, FAKE_NCCL="version=21705")
    check("NCCL 2.17.5 is too old; 2.18 is the oldest supported" in err, err)
    nccl = next(row for row in json.loads(run.result("doctor", "--json", env=Fake(run).env)[1]) if row["name"] == "nccl")
    check(nccl["found"], str(nccl))
    folder = run.path("libraries")
    shutil.copytree(Fake(run).env["LD_LIBRARY_PATH"], folder, symlinks=True)
    os.remove(os.path.join(folder, "libnccl.so.2"))
    err = failing(run, file, LD_LIBRARY_PATH=folder)
    check("NCCL, which several GPUs need, was not found (tried libnccl.so.2)" in err or "NCCL says: " in err, err)   # a real one may be installed


def test_failed_message(run):
    """NCCL loses a rank, a collective on a lane stalls, a rank is killed in one: all ranks end, with one message that names the collective"""
    mpi_needed(run)
    file, sets = model(run), ("--set", "parallel.zero = 3")
    ends = lambda how: failing(run, file, sets=sets, FAKE_NCCL=f"{how},on=1", LMC_COMM_STUCK="6")
    with ThreadPoolExecutor() as pool:      # mpirun sleeps for seconds before it ends
        error, stall, dead, stall_in_graph, dead_in_graph = pool.map(ends, ("error=10", "stall=10", "die=10", "stall=50", "die=50"))
    check("NCCL says: remote process exited or there was a network error" in error, error)
    for err in (stall, stall_in_graph):
        ranks = re.search(r"all ranks have waited for each other for \S+ s: rank 0 \(host .*?\) in '(.*?)', rank 1 \(host .*?\) in '(.*?)'", err)
        check(ranks and ranks[1] == ranks[2] and "over dp" in ranks[1], err)
    for err in (dead, dead_in_graph):
        check(re.search(r"^lmc: rank 1 \(host .*, process \d+\) .* over dp", err, re.M), err)
    for err in (error, stall, dead, stall_in_graph, dead_in_graph):
        check(len(re.findall(r"^lmc: ", err, re.M)) == 1, err)


def graphs_run(run, file, name, mesh, *sets, how="devices=2,counts", **env):
    """the launches of graphs of both ranks, which are equal; of a run in the folder of that name"""
    fake = Fake(run)
    line = command(file, mesh, run.path(name), "--target", "cuda", *sets)
    code, out, err = run.result(*line, env={**fake.env, **PATIENT, "FAKE_CUDA": how, **env})
    check(code == 0 and "fake" not in err, f"{name}: {code} {out}{err}")
    counts = [int(n) for n in re.findall(r"^(\d+) graphs were launched", err, re.M)]
    check(len(counts) == 2 and counts[0] == counts[1], f"{name}: {counts}")
    return counts[0]


def same_bits(run, *names, step=4):
    parts = [tensors(run.path(name), step) for name in names]
    check(all(x == parts[0] for x in parts), f"other bits: {names}")


def test_graphs(run):
    """collectives in graphs: a launch for each function from its second run on, and the bits of single steps; with an NCCL that does not
    order communicators, each waits for the one before; where one rank records nothing, no rank records a collective"""
    mpi_needed(run)
    file, third = model(run, steps=2), ("--set", "parallel.zero = 3")
    # In step 2: copies of the parameters, two micro-batches, the sums of gradients, the norm, the update. In step 1, in which all run for
    # the first time, the second micro-batch, and the rates of step 2.
    ran = graphs_run(run, file, "graphs", "dp = 2", *third, how="devices=2,counts,eager")
    check(ran == 6 + 1, f"launches of graphs: {ran}")
    check(graphs_run(run, file, "steps", "dp = 2", *third, LMC_CUDA_GRAPHS="0") == 0, "LMC_CUDA_GRAPHS=0")
    graphs_run(run, file, "old", "dp = 2", *third, how="devices=2,counts,seed=3", FAKE_NCCL="version=21801")
    same_bits(run, "graphs", "steps", "old", step=2)
    alone = without_ranks(command(file, "dp = 2", run.path("apart"), "--target", "cuda", *third))
    by_variables(run, 2, *alone, one={"LMC_CUDA_GRAPHS": "0"}, **Fake(run).env, FAKE_CUDA="devices=2")
    same_bits(run, "graphs", "apart", step=2)
    if run.nightly:
        graphs_run(run, file, "other", "dp = 2", *third, NCCL_LAUNCH_ORDER_IMPLICIT="0")
        same_bits(run, "graphs", "other", step=2)
        planted = {**Fake(run).env, **PATIENT, "FAKE_CUDA": "devices=2,eager", "FAKE_NCCL": "unordered"}      # though it says that it orders
        err = run.result(*command(file, "dp = 2", run.path("x"), "--target", "cuda", *third), env=planted)[2]
        check("is not ordered before or after one of another communicator" in err, err)


def test_split_graphs(run):
    """rows that are routed to other GPUs are exchanged between graphs, as `explain` says: the bits of single steps"""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(24)))
    routed = "\n".join(line for line in EXPERTS.splitlines() if not line.strip().startswith("sample")).replace("run = 1 steps", "run = 2 steps")
    file = run.write("mixtral.lm", open(f"{ROOT}/tests/models/mixtral/reference.lm").read().split("model Start")[0] + routed)
    n = graphs_run(run, file, "graphs", "ep = 2")
    check(graphs_run(run, file, "steps", "ep = 2", LMC_CUDA_GRAPHS="0") == 0, "LMC_CUDA_GRAPHS=0")
    check(n > 2 * 8, f"parts of graphs: {n}")
    same_bits(run, "graphs", "steps", step=2)
    said = run("explain", file, "cost", "--target", "h100", "--set", "parallel.mesh=(ep = 2)")
    check("exchanges of rows are between CUDA graphs: the host waits for their sizes" in said, said)


def test_connecting(run):
    """a rank that hangs in a call of NCCL by which the GPUs connect, or in a thread of NCCL: one message, with the host and the call of each"""
    mpi_needed(run)
    file = model(run, steps=1)
    ends = lambda how: failing(run, file, FAKE_NCCL=f"hang={how},on=1", LMC_COMM_CONNECT="2", LMC_COMM_STUCK="1")
    with ThreadPoolExecutor() as pool:
        call, join = pool.map(ends, ("call", "join"))
    waits = r"all ranks have waited for each other for \S+ s: rank 0 \(host \S+\) in 'connecting the GPUs', rank 1 \(host \S+\) in "
    check(re.search(waits + "'a call of ncclCommInitRankConfig'", call), call)
    check(re.search(waits + "'connecting the GPUs'", join), join)
    for err in (call, join):
        check(len(re.findall(r"^lmc: ", err, re.M)) == 1, err)


def test_kills(run):
    """a rank is killed at a random moment, also in a graph and while it saves: no hang, and the resumed run has the same bits"""
    mpi_needed(run)
    fake, file = Fake(run), model(run, steps=4)
    gpu = ("--target", "cuda", "--set", "parallel.zero = 3", "--set", "save = checkpoint(\"run\", every = 2 steps, keep = all)")
    fake(*command(file, "dp = 2", run.path("whole"), *gpu), how="devices=2", **PATIENT)
    for trial in range(20 if run.nightly else 1):
        folder = run.path(f"trial{trial}")
        p = run.start(*command(file, "dp = 2", folder, *gpu), env={**fake.env, **QUICK, "FAKE_CUDA": "devices=2"})
        wait_for(os.path.join(folder, "step-000002"), p)
        time.sleep(0.01 * (trial * 7 % 11))
        victim = rank_pid(p, trial % 2)
        if victim:
            os.kill(victim, signal.SIGKILL)
        out, err = p.communicate(timeout=120)
        check(p.returncode in (0, 2) and "fake" not in err, f"{p.returncode}: {out}{err}")
        fake(*command(file, "dp = 2", folder, *gpu), how="devices=2", **PATIENT)
        check(tensors(folder, 4) == tensors(run.path("whole"), 4), f"trial {trial}: the resumed run differs")
        shutil.rmtree(folder)
