"""Runs of several ranks over MPI: against one process, killed, stopped, interrupted, resumed with another number of ranks."""
import glob, json, os, random, re, shutil, signal, socket, subprocess, time

import numpy as np
from harness import ROOT, Skip, check, distance, folder_bytes, load, random_batches, save, small, wait_for, within
from test_stages import stages, texts

SANITIZER_BUILD = {"as_one_process", "other_mesh", "trace", "stopped", "interrupted", "restarts", "session_folder",
                   "refused", "rank_fails", "without_mpi", "killed_and_resumed"}

# Open MPI leaves memory of modules that it has unloaded, for which no suppression can be written.
PATIENT = {"LMC_COMM_SILENCE": "300", "LMC_COMM_STUCK": "300", "ASAN_OPTIONS": "detect_leaks=0"}   # on a busy machine a rank may wait for seconds
QUICK = {**PATIENT, "LMC_COMM_SILENCE": "2", "LMC_COMM_STUCK": "10"}    # of tests that lose a rank: the others are ended after the silence
MESH = "parallel { mesh = (dp = 2) }"
SAVE = 'save = checkpoint("run", every = 4 steps, keep = all)'
TP = "parallel { shard tp = [g, ff, vocab] }"


def mpi_needed(run):
    if not os.path.exists(os.path.join(os.path.dirname(run.lmc), "liblm_mpi.so")) or not shutil.which("mpirun"):
        raise Skip("built without MPI, or there is no mpirun")


def ranks(run, n, file, *args, **how):
    mesh = ("--set", f"parallel.mesh=(dp = {n})") if n > 1 else ()
    return run("run", file, *mesh, *(("--ranks", n) if n > 1 else ()), *args, env=PATIENT, **how)


def by_variables(run, n, *args, status=0, names=("RANK", "WORLD_SIZE"), one={}, **env):
    """Standard output and errors of ranks started with the variables of torchrun, or of those names; one: further ones of rank 1."""
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    own = {**PATIENT, names[1]: str(n), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **env}
    started = [run.start(*args, env={**own, names[0]: str(rank), **(one if rank == 1 else {})}) for rank in range(n)]
    said = [p.communicate(timeout=600) for p in started]
    check([p.returncode for p in started] == [status] * n, f"{[p.returncode for p in started]}: {said}")
    return "".join(out for out, _ in said), "".join(err for _, err in said)


def curve(folder, name):
    rows = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
    return [row[name] for row in rows if name in row]


def tensors(folder, step):
    return open(os.path.join(folder, f"step-{step:06d}", "model.safetensors"), "rb").read()


def curves_check(run, one, many, what):
    for name in ("loss", "grad_norm", "tokens"):
        a, b = curve(run.path(one), name), curve(run.path(many), name)
        check(len(a) == len(b) > 0, f"{what}: {len(a)} and {len(b)} steps")
        for step, (x, y) in enumerate(zip(a, b)):
            within(f"{what}: {name} of step {step + 1}", abs(x - y) / abs(x), 2e-6)


def model(run, **how):
    return small(run, **{"steps": 20, "rows": 8, "drop": 0.1, "lr": "1e-3", "more": f"{SAVE}; {TP}", "micro": 64, **how})


def test_as_one_process(run):
    """Loss and gradient norm of 20 steps with dropout, whose mask depends on the row of the whole micro-batch."""
    mpi_needed(run)
    file = model(run)
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    for n in (2, 4):
        ranks(run, n, file, "-q", "--out", run.path(f"ranks{n}"))
        curves_check(run, "one", f"ranks{n}", f"{n} ranks")
    parts = "--disable-pass", "bucket"      # each layer is added beside the last micro-batch, instead of all behind it
    out = run("run", file, "--ranks", 2, "--out", run.path("again"), *parts, env=PATIENT)     # the ranks are along dp
    check("mesh    2 ranks (dp 2); memory is that of one rank\n" in out, out)
    check(tensors(run.path("again"), 20) == tensors(run.path("ranks2"), 20), "two runs of 2 ranks differ")
    check(tensors(run.path("again"), 20) != tensors(run.path("one"), 20), "planted: sums in another order have the same bits")
    check(len(re.findall(r"^step 20/20 ", out, re.M)) == 1, out)
    out, err = by_variables(run, 2, "run", file, "--out", run.path("tcp"))
    check(tensors(run.path("tcp"), 20) == tensors(run.path("ranks2"), 20), "ranks over TCP differ from those over MPI")
    check(len(re.findall(r"^step 20/20 ", out, re.M)) == 1 and not err, out + err)
    slurm = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
    err = by_variables(run, 2, "run", file, "--set", "parallel.mesh=(tp = 2)", "--set", "parallel.shard.tp=[gg]", status=1, names=slurm)[1]
    check(err.count("did you mean g?") == 1, err)


def test_reference(run):
    """The reference that PyTorch computed in float64."""
    mpi_needed(run)
    folder = f"{ROOT}/tests/reference/llama-tiny"
    numbers = json.load(open(f"{folder}/expected.json"))
    ranks(run, 2, f"{folder}/reference.lm", "-q", "--recipe", "Reference", "--set", "precision.compute=f32",
          "--steps", len(numbers["loss"]), "--out", run.path("run"))
    for name in ("loss", "grad_norm"):
        for step, (a, b) in enumerate(zip(curve(run.path("run"), name), numbers[name])):
            within(f"{name} of step {step + 1}", abs(a - b) / abs(b), 2e-6)


MESHES = {"tp2": (2, "tp = 2"), "tp2s": (2, "tp = 2", "--set", "parallel.sequence=tp"), "dp2tp2": (4, "dp = 2, tp = 2"),
          "dp2tp2s": (4, "tp = 2, dp = 2", "--set", "parallel.sequence=tp")}
ZERO_MESHES = {"fsdp4": (4, "fsdp = 4")}
HEADS = ("--set", "parallel.context=heads", "--set", "parallel.shard.cp=[g]")   # an entry that the recipe lacks
RING = ("--set", "parallel.context=ring")
CONTEXT_MESHES = {"cp2": (2, "cp = 2"), "cp4": (4, "cp = 4"), "dp2cp2": (4, "dp = 2, cp = 2"),
                  "cp2h": (2, "cp = 2", *HEADS), "dp2cp2h": (4, "dp = 2, cp = 2", *HEADS),
                  "cp2r": (2, "cp = 2", *RING), "cp4r": (4, "cp = 4", *RING),
                  "cp2tp2sr": (4, "cp = 2, tp = 2", "--set", "parallel.sequence=tp", *RING),
                  "cp2tp2s": (4, "cp = 2, tp = 2", "--set", "parallel.sequence=tp")}


def mesh_run(run, name, file, out, *args):
    n, mesh, *more = {**MESHES, **CONTEXT_MESHES, **ZERO_MESHES}[name]
    return run("run", file, "--set", f"parallel.mesh=({mesh})", *more, "--ranks", n, "--out", run.path(out), *args, env=PATIENT)


def shorten(run, folder):
    """Removes the checkpoints of a run of 20 steps but the first two, so that it resumes at step 8."""
    for step in (12, 16, 20):
        shutil.rmtree(run.path(folder, f"step-{step:06d}"))


def meshes_check(run, names, train, repeated, model=model):
    """train(file, name, folder) on each mesh gives the curves of one process, and the same bits twice on `repeated`. Returns
    the file; the folder `again` is the second run of `repeated`, to be resumed at step 8."""
    mpi_needed(run)
    file = model(run)
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    for name in names:
        train(file, name, name)
        curves_check(run, "one", name, name)
    train(file, repeated, "again")
    check(tensors(run.path("again"), 20) == tensors(run.path(repeated), 20), "two runs differ")
    shorten(run, "again")
    return file


def test_tensor_parallel(run):
    """Parameters divided: loss and gradient norm of 20 steps with dropout; two runs are equal; a run resumes."""
    train = lambda file, name, folder: mesh_run(run, name, file, folder, "-q")
    file = meshes_check(run, MESHES, train, "dp2tp2s")
    mesh_run(run, "dp2tp2s", file, "again", "-q")
    check(tensors(run.path("again"), 20) == tensors(run.path("dp2tp2s"), 20), "the resumed run differs")
    out = mesh_run(run, "tp2", file, "again")
    check("this run is finished" in out, out)


def test_context_parallel(run):
    """Positions divided: loss and gradient norm of 20 steps with dropout; two runs are equal; a run is resumed on another mesh."""
    train = lambda file, name, folder: mesh_run(run, name, file, folder, "-q")
    file = meshes_check(run, [name for name in CONTEXT_MESHES if not name.endswith("r")], train, "dp2cp2")
    mesh_run(run, "cp4", file, "again", "-q")
    curves_check(run, "one", "again", "dp 2 cp 2, then cp 4")


def test_ring(run):
    """Attention in a ring: dropout of its weights, whose random numbers depend on the position in the whole row; blocks of which a
    query sees no key, whose tiles the map skips; two runs have the same bits; bf16."""
    mpi_needed(run)
    file = small(run, steps=6, rows=4, seq=128, drop=0.1, micro=256, more=TP)
    text = open(f"{ROOT}/examples/llama.lm").read()
    plain = "attention(q, ks, vs, expand(pos, s) >= ps & expand(seg, s) == ss)"
    check(plain in text)
    text = text.replace(plain, "attend(f32(dot(q, ks, e)) * 8 ^ -0.5, vs, expand(pos, s) >= ps & expand(seg, s) == ss, 10%)")
    run.write("llama.lm", text.replace(" attention,", " attend,"))
    text = open(file).read().replace(f"{ROOT}/examples/llama.lm", "llama.lm")
    open(file, "w").write(text)
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    for name in ("cp2r", "cp4r", "cp2tp2sr"):
        mesh_run(run, name, file, name, "-q")
        curves_check(run, "one", name, name)
    mesh_run(run, "cp4r", file, "again", "-q")
    check(tensors(run.path("again"), 6) == tensors(run.path("cp4r"), 6), "two runs differ")
    half = "--set", "precision.compute=bf16", "--steps", 2   # further steps would compare how updates enlarge roundings
    ranks(run, 1, file, "-q", *half, "--out", run.path("one-bf16"))
    mesh_run(run, "cp2r", file, "bf16", "-q", *half)
    for name, bound in (("loss", 2e-4), ("grad_norm", 4e-3)):
        for a, b in zip(curve(run.path("one-bf16"), name), curve(run.path("bf16"), name), strict=True):
            within(f"bf16: {name}", abs(a - b) / abs(a), bound)


MUON = """optimizer = lookahead(adamw(lr = 1e-3), k = 4); group @layers.*.{wg,wu,wd} = (optimizer = muon(lr = 0.02))
  group @layers.*.attn.{wq,wk,wv,wo} = (optimizer = lookahead(muon(lr = 0.02), k = 3)); group @embed = (optimizer = lamb(lr = 0.01))"""


ROUTED = """
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = {model}; data = D; seed = 3; run = 6 steps; batch = 256 tokens; micro = 128 tokens
  optimizer = adamw(lr = 1e-3); clip = global_norm(max = 1.0); precision {{ compute = f32 }}
  save = checkpoint("run", every = 3 steps, keep = all); parallel {{ shard tp = [E] }}
}}
"""
F = ("--set", "parallel.shard.tp=[f, vocab]", "--set", "parallel.sequence=tp")   # the hidden axis of each expert
ROUTED_MESHES = {"dp2": (2, "dp = 2"), "tp2": (2, "tp = 2"), "fsdp2tp2f": (4, "fsdp = 2, tp = 2", *F),
                 "ep2": (2, "ep = 2"), "dp2ep2": (4, "dp = 2, ep = 2"), "pp2": (2, "pp = 2"),
                 "pp2ep2": (4, "pp = 2, ep = 2", "--set", "parallel.pipeline=one_f_one_b")}
BALANCED_MESHES = "pp2", "dp2ep2", "pp2ep2"
NIGHTLY_MESHES = "dp2", "pp2"    # of the first model; dp2ep2 and the other model have their parts


def test_routing(run):
    """Experts of models with a balance loss, and with a state that balances their loads: losses, norms and states are those of one
    process, two runs are equal, and a run continues on another mesh."""
    mpi_needed(run)
    save(run.path("batches.safetensors"), random_batches(6, 8, 32, 32))
    for name, instance in (("mixtral", "Mixtral()"), ("deepseekv3", "DeepSeekV3(f = 48)")):
        text = open(f"{ROOT}/tests/models/{name}/reference.lm").read().split("model Start")[0]
        file = run.write(f"{name}.lm", text + ROUTED.format(model=instance))
        one = f"{name}-one"
        run("run", file, "-q", "--out", run.path(one))
        for key in ROUTED_MESHES if name == "mixtral" else BALANCED_MESHES:
            if name == "mixtral" and key in NIGHTLY_MESHES and not run.nightly:
                continue
            n, mesh, *more = ROUTED_MESHES[key]
            out = f"{name}-{key}"
            run("run", file, "-q", "--set", f"parallel.mesh=({mesh})", *more, "--ranks", n, "--out", run.path(out), env=PATIENT)
            curves_check(run, one, out, f"{name} {mesh}")
            if name == "deepseekv3":
                a, b = (load(run.path(folder, "step-000003", "model.safetensors")) for folder in (one, out))
                for tensor in a:
                    if tensor.endswith((".load", ".bias")):
                        check(np.array_equal(a[tensor], b[tensor]), f"{tensor} on {mesh}: {b[tensor]}, expected {a[tensor]}")
    file, ep = run.path("mixtral.lm"), ("--set", "parallel.mesh=(ep = 2)")
    shutil.rmtree(run.path("mixtral-tp2", "step-000006"))
    run("run", file, "-q", *ep, "--ranks", 2, "--out", run.path("mixtral-tp2"), env=PATIENT)
    curves_check(run, "mixtral-one", "mixtral-tp2", "tp 2, then ep 2")
    run("run", file, "-q", *ep, "--ranks", 2, "--out", run.path("again"), env=PATIENT)
    check(tensors(run.path("again"), 6) == tensors(run.path("mixtral-ep2"), 6), "two runs differ")
    # Of 64 positions with 2 experts each, a rank sends half of the rows of 32 numbers: to the experts and back, the same for the
    # cotangents, and once more to the experts for the gradients of their matrices, in 2 layers and 2 micro-batches of a step.
    rows = [x for x in json.loads(run("explain", file, "cost", *ep, "--json"))["collectives"] if x["elements"] == 32]
    check({(x["kind"], x["over"]) for x in rows} == {("exchange_rows", "ep")}, str(rows))
    check(sum(x["times"] for x in rows) == 5 * 4 and sum(x["bytes"] for x in rows) == 5 * 4 * 64 * 32 * 4, str(rows))
    six = run.write("six.lm", open(file).read().replace("model = Mixtral()", "model = Mixtral(E = 6)"))
    err = run("check", six, "--set", "parallel.mesh=(ep = 4)", status=1)
    check("ep = 4 does not divide E = 6: 1, 2, 3 and 6 do" in err and "axis E of @" in err, err)
    for command in (("check", file), ("explain", file, "memory")):      # both refuse the same meshes
        for mesh, parts in (("dp = 4, pp = 2", "dp * pp = 8"), ("ep = 3", "ep = 3")):
            err = run(*command, "--set", f"parallel.mesh=({mesh})", status=1)
            check(f"error[E255]: {parts} does not divide the 4 rows (of 32 tokens)" in err, f"{command} {mesh}: {err}")
        # of eight rows, two micro-batches of four, since pp divides the rows too
        run(*command, "--set", "parallel.mesh=(dp = 2, pp = 2)", "--set", "micro=auto")
    err = run("check", model(run), "--set", "parallel.mesh=(ep = 2)", status=1)
    check("error[E91A]: ep = 2 divides the experts" in err, err)


def with_muon(file):
    """the recipe in the file, changed to train matrices with Muon and the embedding with LAMB"""
    text = re.sub(r"group .*\n", "", open(file).read())
    with open(file, "w") as f:
        f.write(text.replace("optimizer = adamw(lr = 1e-3)", MUON))
    return file


def test_matrix_optimizers(run):
    """Optimizers that compute with whole matrices, of which each rank has a part."""
    mpi_needed(run)
    file = with_muon(model(run))
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    mesh_run(run, "dp2tp2s", file, "parts", "-q")
    curves_check(run, "one", "parts", "muon and lamb")


def test_adapters(run):
    """LoRA, DoRA and bottlenecks on frozen weights: adapters are divided along the axes of the parameters that they adapt."""
    mpi_needed(run)
    file = model(run)
    text = open(file).read()
    edits = ("freeze @**; adapt @layers.*.**.{wq,wv,wo,wg} = lora(rank = 4, alpha = 8, drop = 10%); "
             "adapt @layers.*.wd = dora(rank = 2); after @layers.1.attn = bottleneck(m = 4)")
    instance = re.search(r"model = (Llama\(.*\))", text)[1]
    text = text.replace(f"model = {instance}", "model = Adapted")
    run.write("small.lm", f"import std.adapt: lora, dora, bottleneck\nmodel Adapted = {instance} with {{ {edits} }}\n{text}")
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    held = load(run.path("one/step-000020/model.safetensors"))
    check(all(".lora." in n or ".dora." in n or ".bottleneck." in n for n in held) and held["layers.0.attn.wo.lora.b"].any())
    for n in (2, 4):
        ranks(run, n, file, "-q", "--set", "parallel.zero=3", "--out", run.path(f"ranks{n}"))
        curves_check(run, "one", f"ranks{n}", f"{n} ranks with zero = 3")
    for name in ("tp2", "dp2tp2s"):
        mesh_run(run, name, file, name, "-q")
        curves_check(run, "one", name, name)
        check(set(load(run.path(name, "step-000020/model.safetensors"))) == set(held))


KEEP = """optimizer keep(lr) {
  state m: f32 = p
  update(p: f32, g: f32, k: f32) -> f32 { m = m; return p }
}
"""


def test_other_mesh(run):
    """Parameters and optimizer states of 1, 4, 4, 2 and 1 ranks in turn, which no step changes: the same bytes, in files that the ranks
    write. A micro-batch that one process has chosen is chosen again where the mesh does not divide its rows."""
    mpi_needed(run)
    saved = 'save = checkpoint("run", every = 1 steps, keep = all, max_file = 40 kB, background = on)'
    file = small(run, steps=10, rows=8, more=f"{saved}; {TP}")
    text = open(file).read().replace("recipe Small", KEEP + "recipe Small").replace("adamw(lr = 3e-3)", "keep(lr = 1e-3)")
    open(file, "w").write(re.sub(r"group .*\n", "", text).replace("micro = 128 tokens", "micro = auto"))
    out = run.path("run")
    for i, name in enumerate((None, "fsdp4", "dp2tp2s", "tp2", None)):
        steps = "--steps", 2 + 2 * i
        mesh_run(run, name, file, "run", "-q", *steps) if name else ranks(run, 1, file, "-q", *steps, "--out", out)
        record = json.load(open(run.path("run/run.json")))
        check(record["micro"] == 128 and record["micro_chosen"], str(record))
        if not i:
            open(run.path("run/run.json"), "w").write(json.dumps({**record, "micro": 16}))   # what less memory would have given
    first = folder_bytes(os.path.join(out, "step-000002"))
    check(len(first) > 8, str(sorted(first)))
    for step in range(3, 11):   # the odd ones in the background
        now = folder_bytes(os.path.join(out, f"step-{step:06d}"))
        check(now.keys() == first.keys(), str(sorted(now)))
        for name in now:
            check(now[name] == first[name] or name in ("state.json", "checksums.txt"), f"step {step}: {name} differs")
    mesh = [json.load(open(os.path.join(out, f"step-{step:06d}", "state.json"))).get("mesh") for step in (2, 4, 6, 8, 10)]
    check(mesh == [None, "4 ranks (fsdp 4)", "4 ranks (dp 2, tp 2)", "2 ranks (tp 2)", None], str(mesh))


def collectives(plan, func):
    """The collectives of a function of a plan, by kind and axis, and how often they run."""
    counts, times = {}, [1]
    for line in plan.split(f"func {func} work", 1)[1].split("\nfunc ", 1)[0].splitlines()[1:]:
        step = line.split("//")[0].split()[1:]
        if step[:1] == ["loop"]:
            times.append(times[-1] * int(step[3]))
        elif step[:1] == ["end"]:
            times.pop()
        elif step[:1] == ["start"]:
            when = step[2] if step[1] == "when" else ""                     # 0..22, or 2..: the iterations of the innermost loop
            kind, reduces = step[3:5] if when else step[1:3]
            key = (kind, reduces if reduces in ("sum", "max") else "", step[step.index("over") + 1])
            iterations = (int(when.split("..")[1]) + 1) * times[-2] if when else times[-1]
            counts[key] = counts.get(key, 0) + iterations
    return counts


def test_collectives(run):
    """As many collectives as Megatron-LM has: two a layer in the forward pass and two in the backward pass; for the vocabulary one for the
    embedding, a maximum and two sums of the cross-entropy, and one in the backward pass. With sequence parallelism an all_gather and a
    reduce_scatter each; the gradients of the norms are added once a step."""
    file = model(run, depth=3)
    plans = {}
    for name in ("tp2", "dp2tp2s", "cp2", "cp2h", "cp4r"):
        n, mesh, *more = {**MESHES, **CONTEXT_MESHES}[name]
        run("compile", file, "--set", f"parallel.mesh=({mesh})", *more, "-o", run.path(name))
        plans[name] = open(run.path(name, "plan.txt")).read()
    found = collectives(plans["tp2"], "micro")
    check(found == {("all_reduce", "sum", "tp"): 2 * 3 + 1 + 2 + 2 * 3 + 1, ("all_reduce", "max", "tp"): 1}, str(found))
    for func in ("norm", "reduce"):     # reduce: the norms of queries and keys, which each rank applies to its heads
        found = collectives(plans["tp2"], func)
        check(found == {("all_reduce", "sum", "tp"): 1}, f"{func}: {found}")
    # A layer: two gathers and two scatters in each pass, and two gathers of what the gradients of the weights read.
    found = collectives(plans["dp2tp2s"], "micro")
    check(found == {("all_gather", "", "tp"): 6 * 3 + 4, ("reduce_scatter", "sum", "tp"): 4 * 3 + 4, ("all_reduce", "max", "tp"): 1,
                    ("all_reduce", "sum", "tp"): 1}, str(found))
    # Positions divided: keys and values of a layer are gathered in both passes, or q, k, v and the result are exchanged in both passes.
    found = collectives(plans["cp2"], "micro")
    check(found == {("all_gather", "", "cp"): 2 + 4 * 3, ("reduce_scatter", "sum", "cp"): 2 * 3}, str(found))
    found = collectives(plans["cp2h"], "micro")
    check(found == {("all_gather", "", "cp"): 2, ("all_to_all", "", "cp"): 8 * 3}, str(found))
    # In a ring of four: k and v pass three ranks forwards and backwards, and their cotangents four.
    found = collectives(plans["cp4r"], "micro")
    check(found == {("all_gather", "", "cp"): 2, ("ring_shift", "", "cp"): (2 * 3 + 2 * 3 + 2 * 4) * 3}, str(found))
    for name in ("cp2", "cp2h", "cp4r"):
        check(collectives(plans[name], "reduce") == {("all_reduce", "sum", "cp"): 1}, name)
    found = collectives(plans["dp2tp2s"], "reduce")
    check(found == {("all_reduce", "sum", "dp"): 2, ("all_reduce", "sum", "tp"): 1}, str(found))


def test_sent(run):
    """What a rank sends in a step of two micro-batches, in closed form: the number of elements of a gathered tensor, and of a gradient."""
    file = model(run, depth=3)
    for name, ranks in (("cp2", 2), ("cp4r", 4), ("cp4", 4)):
        n, mesh, *more = CONTEXT_MESHES[name]
        mesh = ("--set", f"parallel.mesh=({mesh})", *more)
        one, cost = (json.loads(run(*command, *mesh, "--json")) for command in (("check", file), ("explain", file, "cost")))
        found = {}
        for x in cost["collectives"]:
            times, messages, sent = found.get(x["kind"], (0, 0, 0))
            found[x["kind"]] = times + x["times"], messages + x["messages"], sent + x["bytes"]
            check(x["over"] == "cp", str(x))
        others, positions = ranks - 1, 4 * 16 // ranks           # of a micro-batch of 4 rows, on each rank
        kv = 4 * positions * 2 * 8                               # bytes of k or of v: two heads of eight elements
        batch = 2 * others * 2 * 4 * positions                   # pos and seg
        gathered = 2 * others * 4 * 3 * kv                       # k and v of three layers in both passes
        gradient = next(x["elements"] for x in cost["collectives"] if x["kind"] == "all_reduce")
        expected = {"all_gather": (28, 28 * others, batch + gathered), "reduce_scatter": (12, 12 * others, 2 * others * 2 * 3 * kv)}
        if name == "cp4r":      # the cotangents arrive at the owner of their part after a whole round
            times = 2 * 3 * (4 * others + 2 * ranks)
            expected = {"all_gather": (4, 4 * others, batch), "ring_shift": (times, times, times * kv)}
        check(found == {**expected, "all_reduce": (1, 2 * others, 2 * others * 4 * gradient // ranks)}, str(found))
        check(gradient >= one[0]["params"] and one[0]["rank_bytes"] > 4 * 4 * gradient, str(one[0]))
        for key, value in (("ranks", ranks), ("messages", sum(x[1] for x in found.values())), ("sent_bytes", sum(x[2] for x in found.values()))):
            check(one[0][key] == value, f"{key}: {one[0][key]} {value}")
    check("each of 4 ranks (cp 4)" in run("check", file, *mesh), "the report of lmc check")


def test_trace(run):
    """Traces of several ranks have the whole tensors of one process."""
    mpi_needed(run)
    file = model(run)
    run("trace", file, "--steps", 2, "--out", run.path("one"))
    one = load(run.path("one"))
    for name in ("dp2tp2", "cp2"):
        n, mesh, *more = {**MESHES, **CONTEXT_MESHES}[name]
        run("trace", file, "--steps", 2, "--set", f"parallel.mesh=({mesh})", *more, "--ranks", n, "--out", run.path(name), env=PATIENT)
        many = load(run.path(name))
        check(list(one) == list(many), str(set(one) ^ set(many)))
        for key in one:
            within(f"{name}: {key}", distance(many[key], one[key]), 3e-6)
    figures = json.loads(run("bench", file, "--steps", 2, "--set", "parallel.mesh=(cp = 2)", "--ranks", 2, "--json", env=PATIENT))
    check(figures["ms_per_step"] > 0 and figures["tokens_per_s"] > 0, str(figures))
    err = run("bench", file, "--ablate", "--set", "parallel.mesh=(cp = 2)", "--ranks", 2, status=1, env=PATIENT)
    check("--ablate is unsupported with several ranks" in err, err)


def test_killed_and_resumed(run):
    """kill -9 of a rank: the others end with one message; the run resumes byte for byte."""
    mpi_needed(run)
    file = model(run)
    ranks(run, 2, file, "-q", "--out", run.path("whole"))
    p = run.start("run", file, "--ranks", "2", "--logs", "--set", "parallel.mesh=(dp = 2)", "--out", run.path("cut"), env=QUICK)
    wait_for(run.path("cut", "step-000004"), p)
    victim = rank_pid(p, 1)
    if victim:
        os.kill(victim, signal.SIGKILL)
    out, err = p.communicate(timeout=600)
    if victim and p.returncode:
        check(p.returncode == 2, f"{p.returncode}: {out}{err}")
        check(len(re.findall(rf"rank 1 \(host {re.escape(socket.gethostname())}, process {victim}\)", err + out)) == 1, err + out)
    ranks(run, 2, file, "-q", "--logs", "--out", run.path("cut"))
    check(tensors(run.path("cut"), 20) == tensors(run.path("whole"), 20), "the resumed run differs")
    for rank in (0, 1) if victim else ():
        log = [json.loads(line) for line in open(run.path("cut", "logs", f"rank-{rank}.jsonl"))]
        starts, ends = [x for x in log if "from" in x], [x["end"] for x in log if "end" in x]
        steps = [x for x in log if "step" in x]
        check([x["rank"] for x in starts] == [rank, rank] and starts[1]["from"] >= 4 and starts[1]["host"] == socket.gethostname(), str(starts))
        check({x["step"] for x in steps} | {starts[1]["from"]} == {*range(1, 21)}, f"{starts} {steps}")    # the saved step may not have ended
        check(all(0 <= x["waited"] <= x["seconds"] for x in steps) and sum(x["waited"] for x in steps) > 0, str(steps))
        check(ends[-1] == "" and all(f"process {victim}" in x for x in ends[:-1]), str(ends))


def test_killed_in_the_background(run):
    """A rank is killed while rank 0 writes its file of a checkpoint in the background: no part of the checkpoint is left, and the message names it."""
    mpi_needed(run)
    file = model(run, steps=12)
    other = run.write("background.lm", open(file).read().replace("keep = all)", "keep = all, background = on)"))
    faulty = os.path.join(os.path.dirname(run.lmc), "lmc_faulty")
    script = run.write("start.sh", f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] || export LM_FAULT=slow=model.safetensors\nexec {faulty} "$@"\n')
    patient = ["--mca", "odls_base_sigkill_timeout", "60"]  # on a busy machine rank 0 takes more than mpirun's second to end
    p = subprocess.Popen(["mpirun", "--allow-run-as-root", "--oversubscribe", "-q", *patient, "-n", "2", "sh", script, "run", other, "-q",
                          "--set", "parallel.mesh=(dp = 2)", "--out", run.path("cut")], text=True, env={**os.environ, **QUICK},
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    mark = run.path("cut", ".writing", "model.safetensors.tmp.waits")
    wait_for(mark, p)
    os.kill(rank_pid(p, 1), signal.SIGKILL)
    os.remove(mark)
    out, err = p.communicate(timeout=600)
    what = f"{p.returncode}: {err}{out}"
    abandoned = "the run failed while the checkpoint of step 4 was written, which is removed" in err
    waited = "checkpoint of step 4: rank 1 (host" in err  # the next checkpoint, of step 8, waits for the one in the background
    check(p.returncode and (abandoned or waited) and "rank 1 (host" in err, what)
    check(not [name for name in os.listdir(run.path("cut")) if name == ".writing" or name.startswith("step-")], what)


def test_full_disk_of_a_rank(run):
    """The disk of rank 1 is full while it writes its file of a checkpoint: in the foreground all ranks end with its message, in the
    background the run continues; in both cases the result has the bits of an undisturbed run."""
    mpi_needed(run)
    file = model(run, steps=12)
    other = run.write("background.lm", open(file).read().replace("keep = all)", "keep = all, background = on)"))
    ranks(run, 2, file, "-q", "--out", run.path("whole"))
    faulty = os.path.join(os.path.dirname(run.lmc), "lmc_faulty")
    script = run.write("start.sh", f'[ "$OMPI_COMM_WORLD_RANK" = 0 ] || export LM_FAULT=file=optimizer.safetensors\nexec {faulty} "$@"\n')
    for text, status in ((file, 2), (other, 0)):
        folder = run.path(f"cut{status}")
        p = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-q", "-n", "2", "sh", script, "run", text, "-q", "--set",
                            "parallel.mesh=(dp = 2)", "--out", folder], text=True, capture_output=True, env={**os.environ, **PATIENT}, timeout=600)
        what = f"{p.returncode}: {p.stderr}{p.stdout}"
        check(p.returncode == status and "checkpoint of step 4: rank 1 (host" in p.stderr and "No space left on device" in p.stderr, what)
        check(("the run continues" in p.stderr) == (status == 0) and ".writing" not in os.listdir(folder), what)
        check(not os.path.exists(os.path.join(folder, "step-000004")), what)
        ranks(run, 2, file, "-q", "--out", folder)
        check(tensors(folder, 12) == tensors(run.path("whole"), 12), "the run after a full disk differs")


def test_restarts(run):
    """A lost rank: the command starts all ranks again, and the run has the bits of one without a loss."""
    mpi_needed(run)
    file = model(run)
    args = ("run", file, "--ranks", "2", "--set", "parallel.mesh=(cp = 2)", "--resume", "never", "--restarts")
    mesh_run(run, "cp2", file, "whole-cp", "-q")
    p = run.start(*args, "2", "--out", run.path("cut"), env=QUICK)
    for step in (4, 12):
        wait_for(run.path("cut", f"step-{step:06d}"), p)
        victim = rank_pid(p, 1)
        if victim:
            os.kill(victim, signal.SIGKILL)
    out, err = p.communicate(timeout=600)
    check(p.returncode == 0, f"{p.returncode}: {out}{err}")
    check(len(re.findall("of 2 restarts", err)) <= 2 and (not victim or "1 of 2 restarts" in err), err)
    check(tensors(run.path("cut"), 20) == tensors(run.path("whole-cp"), 20), "the restarted run differs")
    p = run.start(*args, "1", "--out", run.path("stopped"), env=PATIENT)
    wait_for(run.path("stopped", "step-000004"), p)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=600)[1]
    check(p.returncode in (0, 130) and "restarts" not in err, f"{p.returncode}: {err}")
    err = run("run", file, "--restarts", 1, status=1)
    check("--restarts needs --ranks" in err, err)
    err = run("run", file, "--logs", status=1)
    check("--logs is for several ranks and a run that has a folder: give --ranks N" in err, err)


def test_fewer_ranks(run):
    """Ranks that are lost twice without a checkpoint in between are started as fewer, which resume from the newest checkpoint; fewer
    ranks that another launcher starts do too."""
    mpi_needed(run)
    file = model(run, steps=40)
    fewer = ("run", file, "--set", "parallel.mesh=(dp = 4)", "--out", run.path("cut"), "--min-ranks")
    p = run.start(*fewer, "2", "--ranks", "4", "--restarts", "3", env=QUICK)
    wait_for(run.path("cut", "step-000004"), p)
    first = again = rank_pid(p, 1)
    check(first, "the run ended before a rank was lost")
    os.kill(first, signal.SIGKILL)
    while p.poll() is None and again in (first, None):
        again = rank_pid(p, 1)
    os.kill(again, signal.SIGKILL)
    out, err = p.communicate(timeout=600)
    check(p.returncode == 0 and "started again: 1 of 3 restarts" in err and "started again as 2: 2 of 3 restarts" in err, out + err)
    mesh = lambda step: json.load(open(run.path("cut", f"step-{step:06d}", "state.json"))).get("mesh")
    check((mesh(4), mesh(40)) == ("4 ranks (dp 4)", "2 ranks (dp 2)"), f"{mesh(4)}, {mesh(40)}")
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    curves_check(run, "one", "cut", "4 ranks, then 2")
    shutil.rmtree(run.path("cut", "step-000040"))
    err = run(*fewer, "2", "-q", status=1)
    check("E254" in err, err)
    err = run("run", file, "--ranks", 2, "--min-ranks", 3, status=1, env=PATIENT)     # the mesh is that of the ranks
    check("--min-ranks 3 needs at least 3 ranks, this run has 2" in err, err)
    run(*fewer, "1", "-q")
    check(mesh(40) is None, str(mesh(40)))


def rank_pid(p, rank, variable="OMPI_COMM_WORLD_RANK"):
    """The process of a rank: a descendant of the command; None if it has ended."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{pid}/environ", "rb").read().split(b"\0")
            up = int(pid)
            while up > 1 and up != p.pid:
                up = int(re.search(r"\) \S (\d+)", open(f"/proc/{up}/stat").read())[1])
        except (OSError, TypeError):
            continue
        if up == p.pid and f"{variable}={rank}".encode() in env:
            return int(pid)


def test_stopped(run):
    """SIGSTOP of a rank, after which Open MPI alone waits forever; the same, and SIGKILL, before the ranks have found each other; of all ranks,
    which --ranks notices. There is one message: mpirun continues a stopped process to end it, which then finds that the others have gone."""
    mpi_needed(run)
    file = model(run)
    start = lambda name, **env: run.start("run", file, "--ranks", "2", "--set", "parallel.mesh=(dp = 2)", "-q", "--out", run.path(name), env={**QUICK, **env})
    first = {"killed": (start("killed"), 1, signal.SIGKILL), "stopped at the start": (start("early", LMC_COMM_START="3"), 0, signal.SIGSTOP)}
    for p, rank, how in first.values():
        victim = None
        while not victim and p.poll() is None:
            victim = rank_pid(p, rank)
        os.kill(victim, how)
    p = start("all")
    for rank in (0, 1):
        while p.poll() is None and not (victim := rank_pid(p, rank)):
            pass
        os.kill(victim, signal.SIGSTOP)
    first["all"] = (p, 0, None)
    p = start("run")
    wait_for(run.path("run", "step-000004"), p)
    victim = rank_pid(p, 1)
    if victim:
        os.kill(victim, signal.SIGSTOP)
    words = {"run": "is stopped", "killed": "before all had found each other|its process has ended",
             "stopped at the start": "rank 0 .* has been stopped for .* before all ranks|the ranks did not find each other|is stopped",
             "all": "rank [01] .* has been stopped for .* s: all ranks were ended"}
    for name, (p, _, _) in {"run": (p, 1, None), **first}.items():
        out, err = p.communicate(timeout=600)
        if name != "run" or (victim and p.returncode):
            check(p.returncode == 2 and re.search(words[name], err), f"{name}: {p.returncode}: {out}{err}")
            check(err.count("lmc: ") == 1 or "early" in p.args[-1], f"{name}: {err}")    # mpirun has not ended it within its 5 s


APART = """set -e
step=$1
shift
ip link set lo up
unshare -n sleep 600 &
other=$!
trap 'kill $other' EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link add name near type veth peer name far netns $other
ip addr add 10.0.0.1/24 dev near
ip link set near up
there="nsenter -t $other -n"
$there ip link set lo up
$there ip addr add 10.0.0.2/24 dev far
$there ip link set far up
echo connected
RANK=0 "$@" &
first=$!
RANK=1 $there "$@" &
second=$!
while [ ! -e "$step" ] && kill -0 $first; do sleep 0.01; done
ip link set near down
wait $first || echo "rank 0 ended with $?"
wait $second || echo "rank 1 ended with $?"
"""


def test_unreachable(run):
    """Two ranks in separate networks, whose link is cut: both end, and the message says that the machine does not answer."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        raise Skip("only as root, with ip, unshare and nsenter")
    file, out = model(run, steps=400), run.path("run")
    env = {**os.environ, **QUICK, "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    line = [run.lmc, "run", file, "--set", "parallel.mesh=(dp = 2)", "-q", "--out", out]
    p = subprocess.run(["unshare", "-n", "sh", run.write("apart.sh", APART), f"{out}/step-000004", *line], env=env, text=True, capture_output=True, timeout=600)
    if "connected" not in p.stdout:
        raise Skip(f"this system makes no networks: {p.stderr}")
    check("rank 0 ended with 2" in p.stdout and "rank 1 ended with 2" in p.stdout, p.stdout + p.stderr)
    check(re.search(r"^lmc: (checkpoint of step \d+: )?rank 1 \(host .*silent for .* its machine does not answer", p.stderr, re.M), p.stdout + p.stderr)


def test_session_folder(run):
    """Open MPI keeps the files of each start of ranks in a separate folder, which is removed"""
    mpi_needed(run)
    host = os.uname().nodename
    for name in {host, host.split(".")[0]}:
        run.write(f"tmp/ompi.{name}.{os.getuid()}", "in the way of the folder that all starts share by default")
    before = os.listdir(run.path("tmp"))
    run("trace", small(run, steps=1), "--ranks", 2, "--set", "parallel.mesh=(dp = 2)", "--out", run.path("t"),
        env={**PATIENT, "TMPDIR": run.path("tmp")})
    check(os.listdir(run.path("tmp")) == before)


LINGERS = """#!/bin/sh
while [ "$1" != -n ]; do shift; done
shift 2
if [ -e first ]; then
  rm first
  sleep 1 &
else
  export WORLD_SIZE=2
  RANK=1 "$@" &
  RANK=0 "$@" &
fi
wait
exec sleep 1000
"""


def test_launcher_lingers(run):
    """A stand-in for mpirun that stays when its processes have ended is killed: the ranks' statuses count, and ranks without one are lost."""
    os.chmod(run.write("bin/mpirun", LINGERS), 0o755)
    file = small(run, steps=2, more='save = checkpoint("run", every = 1 steps)')
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    env = {**QUICK, "PATH": run.path("bin") + ":" + os.environ["PATH"], "LMC_COMM_END": "1", "MASTER_ADDR": "localhost",
           "MASTER_PORT": str(port)}
    args = ("run", file, "--ranks", "2", "--set", "parallel.mesh=(dp = 2)")
    run.write("first", "")
    p = run.start(*args, "--restarts", "1", "--out", run.path("run"), env=env, cwd=run.path("."))
    out, err = p.communicate(timeout=600)
    check(p.returncode == 0 and "started again: 1 of 1 restarts" in err and os.path.exists(run.path("run", "step-000002")), f"{p.returncode}: {out}{err}")
    p = run.start(*args, "--set", "lr=-1", "--out", run.path("bad"), env=env, cwd=run.path("."))
    out, err = p.communicate(timeout=600)
    check(p.returncode == 1, f"{p.returncode}: {out}{err}")


def test_launcher_hangs(run):
    """A stand-in for mpirun that starts no process is ended, with a message."""
    os.chmod(run.write("bin/mpirun", "#!/bin/sh\nexec sleep 1000\n"), 0o755)
    env = {**QUICK, "PATH": run.path("bin") + ":" + os.environ["PATH"], "LMC_COMM_START": "1"}
    err = run("run", small(run), "--ranks", "2", "--set", "parallel.mesh=(dp = 2)", status=2, env=env)
    check("lmc: mpirun has started no process in 1 s (LMC_COMM_START) and was ended: start the run again" in err, err)


def test_interrupted(run):
    """SIGINT of the command saves; one process continues where two ranks stopped."""
    mpi_needed(run)
    file = model(run)
    p = run.start("run", file, "--ranks", "2", "--set", "parallel.mesh=(dp = 2)", "--out", run.path("run"), env=PATIENT)
    wait_for(run.path("run", "step-000004"), p)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=600)
    check(p.returncode in (0, 130), f"{p.returncode}: {out}{err}")
    check(p.returncode == 0 or "interrupted after step" in out, out + err)
    err = run.result("run", file, "--out", run.path("run"))[2]
    check(p.returncode == 0 or "the run had 2 ranks (dp 2), now it has 1 rank" in err, err)
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    curves_check(run, "one", "run", "2 ranks, then 1")


def test_interrupted_twice(run):
    """A second signal ends the ranks at once, with the status of the first one and no text of mpirun, and leaves no shared memory.
    SIGHUP is ignored where nohup has ignored it."""
    mpi_needed(run)
    file = model(run, steps=100000)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        p = run.start("run", file, "--ranks", "2", "--set", "parallel.mesh=(dp = 2)", "-q", "--out", run.path("run"), env=PATIENT)
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    wait_for(run.path("run", "step-000004"), p)
    opened = [os.path.realpath(f) for f in glob.glob(f"/proc/{p.pid}/fd/*")]
    own = [path for path in opened if path.startswith("/dev/shm/.lmc-session-")]
    check(own, "planted: the ranks share no memory in a folder of lmc")
    for number in signal.SIGHUP, signal.SIGTERM, signal.SIGINT:
        p.send_signal(number)
        time.sleep(0.05)
    out, err = p.communicate(timeout=600)
    check(p.returncode == 143 and not re.search("mpirun|PRTE|ORTE", err), f"{p.returncode}: {out}{err}")
    check(not any(map(os.path.exists, own)), f"left: {own}")


def test_evaluation(run):
    """Evaluations are divided too, and samples are printed once."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(90)))
    file = run.write("t.lm", f'''import "{ROOT}/examples/llama.lm": Llama
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(30 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256); data = D; seed = 1
  run = 4 steps; batch = 256 tokens; micro = 128 tokens
  optimizer = adamw(lr = 2e-3); precision {{ compute = f32 }}
  eval dev {{ data = D.dev; every = 2 steps; metrics = [loss, bits_per_byte] }}
  save = checkpoint("run", every = 4 steps)
  sample {{ every = 4 steps; prompt = "line"; n = 8 tokens; temperature = 0 }}
  {TP}
}}
''')
    one = ranks(run, 1, file, "--out", run.path("one"))
    two = ranks(run, 2, file, "--out", run.path("two"))
    for name in ("dev.loss", "dev.bits_per_byte"):
        for a, b in zip(curve(run.path("one"), name), curve(run.path("two"), name), strict=True):
            within(name, abs(a - b) / abs(a), 2e-6)
    sample = lambda text: re.search(r"sample after step 4:\n(.*?)\ndone", text, re.S)[1]
    check(sample(one) == sample(two), two)
    check(two.count("sample after step 4") == 1, two)
    parts = mesh_run(run, "tp2s", file, "parts")
    for a, b in zip(curve(run.path("one"), "dev.loss"), curve(run.path("parts"), "dev.loss"), strict=True):
        within("dev.loss of tp", abs(a - b) / abs(a), 2e-6)
    check(sample(one) == sample(parts) and parts.count("sample after step 4") == 1, parts)
    cp = mesh_run(run, "cp2", file, "cp")
    for a, b in zip(curve(run.path("one"), "dev.loss"), curve(run.path("cp"), "dev.loss"), strict=True):
        within("dev.loss of cp", abs(a - b) / abs(a), 2e-6)
    check(sample(one) == sample(cp) and cp.count("sample after step 4") == 1, cp)
    check(run("eval", run.path("one")).split()[:3] == run("eval", run.path("parts")).split()[:3], "the run of parts is read as any other")
    for name in ("parts", "cp"):
        alone, together = (json.loads(run("eval", run.path(name), "--json", *more, env=PATIENT)) for more in ((), ("--ranks", 2)))
        for key, value in alone["dev"].items():
            within(f"eval of {name} by 2 ranks: {key}", abs(together["dev"][key] - value) / abs(value), 2e-6)
    text = [run("generate", run.path("parts"), "--prompt", "line", "-n", 12, "-t", 0, *more, env=PATIENT) for more in ((), ("--ranks", 2))]
    check(text[0] == text[1], str(text))
    text = [run("generate", run.path("parts"), "--prompt", "line", "-n", 12, "--ranks", 2, env=PATIENT) for _ in range(2)]
    check(text[0] == text[1], str(text))
    check("error[E254]" in run("eval", run.path("parts"), "--ranks", 4, status=1, env=PATIENT), "another number of ranks")
    wide = ("generate", run.path("parts"), "--prompt", "line", "-n", 60, "-t", 3)    # has bytes that a terminal would not get
    check(run(*wide) == run(*wide, "--ranks", 2, env=PATIENT), "ranks that write to a pipe write bytes as they are")


def test_refused(run):
    """Ranks and mesh that do not fit each other: nothing is trained."""
    mpi_needed(run)
    file = model(run)
    err = run("run", file, "--set", "parallel.mesh=(dp = 2)", status=1)
    check("error[E254]" in err and "--ranks 2" in err, err)
    err = run("run", file, "--set", "parallel.mesh=(dp = 4)", "--ranks", 2, status=1, env=PATIENT)
    check(err.count("error[E254]") == 1 and "--set 'parallel.mesh=(dp = 2)' fits" in err, err)
    err = run("run", file, "--set", "parallel.mesh=(dp = 4, tp = 2)", "--ranks", 4, status=1, env=PATIENT)
    check("--set 'parallel.mesh=(dp = 2, tp = 2)' fits" in err, err)
    err = run("run", file, "--set", "parallel.mesh=(dp = 3)", "--ranks", 3, status=1, env=PATIENT)
    check(err.count("error[E255]") == 1 and "of the numbers for dp, 1, 2 and 4 do" in err, err)
    for mesh, shard, message in (("tp = 3", "[g, ff, vocab]", "tp = 3 does not divide g = 2: 1 and 2 do"), ("tp = 2", "[gg]", "did you mean g?"),
                                 ("cp = 3", "[g]", "cp = 3 does not divide t = 16: 1, 2, 4, 8 and 16 do"), ("tp = 2", "[]", "error[E258]")):
        err = run.result("check", file, "--set", f"parallel.mesh=({mesh})", "--set", f"parallel.shard.tp={shard}")[2]
        check(message in err, f"{mesh} {shard}: {err}")
    err = run("check", small(run, name="whole.lm"), "--set", "parallel.mesh=(tp = 2)", status=1)
    check("error[E258]" in err and "vocab, d, g, h, e, ff" in err, err)
    for mesh, more, message in (("cp = 4", HEADS, "cp = 4 does not divide g = 2: 1 and 2 do"), ("cp = 2", HEADS[:2], "error[E259]"),
                                ("cp = 2", HEADS[2:], "error[E259]"), ("cp = 2, tp = 2", HEADS, "error[E25A]")):
        err = run("check", file, "--set", f"parallel.mesh=({mesh})", *more, status=1)
        check(message in err, f"{mesh} {more}: {err}")
    one = run.write("one.lm", open(file).read().replace("kv = 2", "kv = 1"))
    err = run("check", one, "--set", "parallel.mesh=(tp = 2)", "--set", "parallel.shard.tp=[g]", status=1)
    check("tp = 2 does not divide g = 1: only 1 does\n" in err, err)
    mixture = f"{ROOT}/tests/models/mixtral/reference.lm"
    rows = "E255]: dp * pp = 4 does not divide the 2 rows (of 16 tokens) of a micro-batch"
    for mesh, message in (("dp = 2, pp = 2", rows), ("tp = 3", "tp = 3 does not divide E = 8")):
        err = run("check", mixture, "--recipe", "Reference", "--set", f"parallel.mesh=({mesh})", "--set", "parallel.shard.tp=[E]", status=1)
        check(message in err, f"{mesh}: {err}")
    err = run("explain", file, "cost", "--measure", "--set", "parallel.mesh=(tp = 2)", status=1)
    check("error[E257]" in err, err)
    err = run("check", file, "--set", "parallel.mesh=(tp = 2)", "--set", 'compile=mode("max-autotune")', status=1)
    check("error[E257]" in err, err)
    for option in (("trace", "--out", run.path("x")), ("bench",)):
        err = run(option[0], file, "--set", "parallel.mesh=(dp = 2)", *option[1:], status=1)
        check("error[E254]" in err, err)
    batch = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}       # of the script that has started them
    two, to = {"WORLD_SIZE": "2"}, {"RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for env, word in ((two, "RANK is no number"), ({**two, **batch, "RANK": "0"}, "MASTER_ADDR is not set"),
                      ({**two, **to, "MASTER_PORT": "x"}, "MASTER_PORT is no port"), ({**two, **to, "RANK": "2"}, "RANK is 2, but WORLD_SIZE is 2"),
                      ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, "srun started, but MASTER_ADDR is not set")):
        err = run("run", file, status=1, env=env)
        check(word in err and ("mpirun -n 2 lmc run FILE" in err or "ranks are 0 to 1" in err), err)
    err = run("run", file, "--ranks", 2, status=2, env={"PATH": run.folder})
    check("--ranks needs Open MPI" in err, err)
    check(not os.path.exists(run.path("run")), "a folder was made")


def test_rank_fails(run):
    """What only one rank cannot do, and another recipe of one rank, ends all ranks, and is reported with its name."""
    mpi_needed(run)
    file = model(run)
    for what, status, words in (("export LMC_CACHE=/proc/none", 2, "rank 1 (host"), ("set -- \"$@\" --set 'save.every=2 steps'", 2, "the recipe of rank 1 (host"),
                                ("set -- \"$@\" --set lr=1", 1, "rank 1 (host")):
        script = run.write("rank.sh", f'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then {what}; fi\nexec "$@"\n')
        p = subprocess.run(["mpirun", "-q", "--oversubscribe", "-n", "2", "sh", script, run.lmc, "run", file, "--set",
                            "parallel.mesh=(dp = 2)", "--out", run.path("run")], text=True, capture_output=True,
                           env={**os.environ, **QUICK, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_orte_tmpdir_base": run.folder}, timeout=600)
        check(p.returncode == status and words in p.stderr, f"{what}: {p.returncode}: {p.stdout}{p.stderr}")


LOSS = """import std.nn: xent
model M(d = 8, vocab = 16) {{
  param embed: real[vocab, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), embed, d) }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let l = xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w
    {loss}
  }}
}}
data D {{ source s = text("t.txt"); pack best_fit(seq = 16 tokens) }}
recipe R {{
  model = M(vocab = 256); data = D; run = 3 steps; batch = 128 tokens; micro = 64 tokens; optimizer = adamw(lr = 1e-3)
  precision {{ compute = f32 }}
}}
"""


def test_losses(run):
    """Losses that are no sum over rows: ranks add what such a loss needs, inside of the micro-batch."""
    mpi_needed(run)
    run.write("t.txt", "".join(f"line {i} of a text, {i * i} and more\n" for i in range(90)))
    for i, loss in enumerate(("emit zero = sum(embed * embed); return (sum(l), sum(bt.w))",
                              "return (sum(l) + f32(sum(embed * embed)), sum(bt.w))",
                              "let s = sum(l); return (s * s, 1.0)",
                              "let m = view(l, (b, t) -> n); return (sum(m), sum(bt.w))",
                              "emit peak = max(max(l, t), b); return (sum(l), sum(bt.w))")):
        file = run.write("loss.lm", LOSS.format(loss=loss))
        for n in (1, 2):
            ranks(run, n, file, "-q", "--out", run.path(f"loss{i}.{n}"))
        mesh_run(run, "cp2", file, f"loss{i}.cp", "-q")
        for other in (f"loss{i}.2", f"loss{i}.cp"):
            curves_check(run, f"loss{i}.1", other, loss)
            for name in ("zero", "peak"):
                for a, b in zip(curve(run.path(f"loss{i}.1"), name), curve(run.path(other), name), strict=True):
                    within(f"{loss}: {name}", abs(a - b) / abs(a), 2e-6)
    err = run("check", file, "--set", "parallel.mesh=(dp = 3)", status=1)
    check("error[E255]" in err, err)


POSITIONS = """import std.nn: xent
model M(d = 8, vocab = 16) {
  param embed: real[vocab, d] = normal(0.5)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = f32(gather(embed, tok, vocab))
    let h = expand(expand(0, b), d)
    for at in t carry h {
      h = select(pos > 0, 0.5 * h, 0) + x
      emit y = h
    }
    return dot(real(permute(y, (b, t, d))), embed, d)
  }
  loss(bt: Batch[b, t], gold: f32[b, t, k], score: f32[b], deep: f32[b, k, t]) -> (f32, f32) {
    let l = xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w
    return (sum(l * sum(gold, k) * score * sum(deep, k)), sum(bt.w))
  }
}
data B { source s = batches("batches.safetensors") }
recipe R {
  model = M(); data = B; run = 3 steps; batch = 128 tokens; micro = 64 tokens
  optimizer = adamw(lr = 1e-2); precision { compute = f32 }
}
"""


def test_positions(run):
    """A loop over the positions, which each rank computes whole, and columns of which each rank has its positions: with the loop
    consecutive ones, else an early and a late part."""
    mpi_needed(run)
    rng, batches = np.random.default_rng(5), random_batches(3, 8, 16, 16)
    for name, more in (("gold", (16, 3)), ("score", ()), ("deep", (3, 16))):
        batches[name] = rng.uniform(0.5, 1, (3, 8, *more)).astype("f4")
    save(run.path("batches.safetensors"), batches)
    plain = re.sub(r"let h = .*?\n    }\n", "let y = x\n", POSITIONS, flags=re.S)
    check("for at" in POSITIONS and "for at" not in plain, plain)
    for text, name, what in ((POSITIONS, "dp2cp2", "ranks along cp have consecutive positions"),
                             (plain, "cp4", "of 8 chunks of the positions, each rank along cp has an early and a late one")):
        file = run.write("positions.lm", text)
        ranks(run, 1, file, "-q", "--out", run.path(f"{name}.one"))
        mesh_run(run, name, file, name, "-q")
        curves_check(run, f"{name}.one", name, name)
        check(what in run("check", file, "--set", f"parallel.mesh=({CONTEXT_MESHES[name][1]})"), what)


def test_lengths(run):
    """Stages of rows of other lengths, each divided among the ranks."""
    mpi_needed(run)
    texts(run)
    file = stages(run, more="precision { compute = f32 }")
    ranks(run, 1, file, "-q", "--out", run.path("one"))
    mesh_run(run, "dp2cp2", file, "parts", "-q")
    curves_check(run, "one", "parts", "stages")


def test_without_mpi(run):
    """A command that was built without MPI names the missing packages."""
    mpi_needed(run)
    file = model(run)
    lmc = run.path("lmc")
    shutil.copy(run.lmc, lmc)
    p = subprocess.run([lmc, "run", file, "--set", "parallel.mesh=(dp = 2)", "--ranks", "2", "--out", run.path("run")], text=True,
                       capture_output=True, env={**os.environ, **PATIENT}, timeout=600)
    check(p.returncode == 2 and "built without MPI" in p.stderr + p.stdout, f"{p.returncode}: {p.stdout}{p.stderr}")


SLURM = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmdPort={port1}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
SelectType=select/cons_tres
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
FirstJobId={job}
TmpFS={folder}
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
"""


def runs(pid):
    """Whether a process has not ended."""
    try:
        return " Z " not in open(f"/proc/{pid}/stat").read()
    except FileNotFoundError:
        return False


class Slurm:
    """A cluster of this machine alone, for the time of a test. The names of Open MPI's shared memory follow from the user and the number of
    the job, so clusters of tests that run at the same time have other numbers."""

    def __init__(self, run):
        self.folder = run.path("slurm")
        for name in ("state", "spool"):
            os.makedirs(os.path.join(self.folder, name))
        with open(os.path.join(self.folder, "key"), "wb") as f:
            f.write(os.urandom(128))
        os.chmod(f.name, 0o400)
        with socket.socket() as s, socket.socket() as s1:
            for one in (s, s1):
                one.bind(("127.0.0.1", 0))
            port, port1 = (one.getsockname()[1] for one in (s, s1))
        self.env = {**os.environ, **PATIENT, "SLURM_CONF": run.write("slurm/slurm.conf", SLURM.format(
            folder=self.folder, host=socket.gethostname().split(".")[0], port=port, port1=port1, cpus=os.cpu_count(), job=random.randrange(1, 60_000_000)))}

    def __enter__(self):
        own = [f"--{name}={self.folder}/{file}" for name, file in (("key-file", "key"), ("socket", "munge.sock"), ("seed-file", "seed"),
                                                                   ("pid-file", "munged.pid"), ("log-file", "munged.log"))]
        for daemon in (["munged", "--force", *own], ["slurmctld", "-i"], ["slurmd"]):
            subprocess.run(daemon, env=self.env, check=True, capture_output=True, timeout=600)
        end = time.time() + 120
        while "idle" not in self.says("sinfo", "-h", "-o", "%T"):
            if time.time() > end:
                self.__exit__()
                logs = [open(os.path.join(self.folder, f"{name}.log")).read()[-2000:] for name in ("slurmctld", "slurmd")]
                raise AssertionError(f"the node of Slurm is not ready: {logs}")
            time.sleep(0.1)
        return self

    def says(self, *command):
        return subprocess.run(command, env=self.env, text=True, capture_output=True, timeout=600).stdout

    def __exit__(self, *_):
        end = time.time() + 60
        while self.says("squeue", "-h").strip() and time.time() < end:      # the steps of a job end behind srun
            time.sleep(0.1)
        for daemon in ("slurmd", "slurmctld", "munged"):
            path = os.path.join(self.folder, daemon + ".pid")
            if os.path.exists(path):
                pid = int(open(path).read())
                os.kill(pid, signal.SIGTERM)
                while runs(pid) and time.time() < end:      # its last files are in the folder
                    time.sleep(0.01)

    def run(self, *command):
        return subprocess.run(["srun", "-n", "2", "--overcommit", *command], env=self.env, text=True, capture_output=True, timeout=600)


def test_srun(run):
    """Slurm starts the ranks: the same bits as mpirun gives; nightly without PMIx too, by TCP, and with a clear error without an address."""
    mpi_needed(run)
    if os.geteuid() or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "srun"))):
        raise Skip("only as root, with slurm-wlm and munge")
    file = model(run, steps=20 if run.nightly else 4)
    started = lambda folder: tensors(run.path(folder), 20 if run.nightly else 4)
    mesh = ("--set", "parallel.mesh=(dp = 2)")
    ranks(run, 2, file, "-q", "--out", run.path("mpirun"))
    with Slurm(run) as slurm:
        p = slurm.run("--mpi=pmix", run.lmc, "run", file, *mesh, "-q", "--out", run.path("srun"))
        check(p.returncode == 0, p.stdout + p.stderr)
        check(started("srun") == started("mpirun"), "srun and mpirun differ")
        if not run.nightly:
            return
        p = slurm.run("--mpi=none", run.lmc, "run", file, *mesh, "-q", "--out", run.path("other"))
        check(p.returncode == 1 and "srun --mpi=pmix" in p.stderr, p.stdout + p.stderr)
        slurm.env |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29517"}
        p = slurm.run("--mpi=none", run.lmc, "run", file, *mesh, "-q", "--out", run.path("other"))
        check(p.returncode == 0 and started("other") == started("mpirun"), p.stdout + p.stderr)


def test_torchrun(run):
    """torchrun starts the ranks, which meet at MASTER_PORT, or behind it where torchrun has a store there; it starts them again when one is killed."""
    if not run.nightly or not shutil.which("torchrun"):
        raise Skip("only nightly, with torchrun")
    file = model(run)
    ranks(run, 2, file, "-q", "--out", run.path("mpirun"))
    for name, how in (("served", ("--master_port", "29518")), ("standalone", ("--standalone", "--nnodes", "1"))):
        command = ["torchrun", "-r", "2", "-t", "2", "--no_python", "--nproc_per_node", "2", "--max_restarts", "1", *how, run.lmc, "run",
                   file, "--set", "parallel.mesh=(dp = 2)", "-q", "--out", run.path(name)]
        p = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **QUICK})
        wait_for(run.path(name, "step-000004"), p)
        victim = rank_pid(p, 1, "RANK")
        if victim:
            os.kill(victim, signal.SIGKILL)
        out = p.communicate(timeout=600)[0]
        check(p.returncode == 0 and tensors(run.path(name), 20) == tensors(run.path("mpirun"), 20), out)


def test_kills(run):
    """A random rank is killed at a random moment, also while it saves: no hang, and the resumed run has the same bits."""
    mpi_needed(run)
    file = model(run)
    ranks(run, 2, file, "-q", "--out", run.path("whole"))
    other = run.write("background.lm", open(file).read().replace("keep = all)", "keep = all, background = on)"))
    for trial in range(200 if run.nightly else 10):
        folder = run.path(f"trial{trial}")
        p = run.start("run", other if trial & 2 else file, "--ranks", "2", "--set", "parallel.mesh=(dp = 2)", "-q", "--out", folder, env=QUICK)
        wait_for(os.path.join(folder, f"step-{4 * (1 + trial % 3):06d}"), p)
        time.sleep(0.003 * (trial * 7 % 11))
        victim = rank_pid(p, trial % 2)
        if victim:
            os.kill(victim, signal.SIGKILL)
        out, err = p.communicate(timeout=60)
        check(p.returncode in (0, 2), f"{p.returncode}: {out}{err}")
        ranks(run, 2, file, "-q", "--out", folder)
        check(tensors(folder, 20) == tensors(run.path("whole"), 20), f"trial {trial}: the resumed run differs")
        shutil.rmtree(folder)
