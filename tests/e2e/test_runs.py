"""Interrupted runs give the bits of uninterrupted ones, and a run that cannot resume reports why."""
import contextlib, fcntl, json, os, random, re, resource, shutil, signal, subprocess, time

from harness import ROOT, Skip, check, folder_bytes, load, on_one_cpu, random_batches, remove, save, sharded, small, wait_for

BOTH_BUILDS = {"kill_and_resume", "kills_while_saving"}
SAVED = 'save = checkpoint("run", every = {every} steps, keep = {keep})'


def in_background(saved):
    return saved.replace(")", ", background = on)")


def checkpoint(run, folder, step):
    return folder_bytes(run.path(folder, f"step-{step:06}"))


def same(a, b, what):
    check(a.keys() == b.keys() and a, f"{what}: files {sorted(a)} and {sorted(b)}")
    for name in a:
        check(a[name] == b[name], f"{what}: {name} differs")


def train(run, file, folder, *args, **how):
    run("run", file, "--out", run.path(folder), "-q", *args, **how)


def test_two_runs(run):
    file = small(run, drop=0.1)
    train(run, file, "a")
    train(run, file, "b")
    same(checkpoint(run, "a", 8), checkpoint(run, "b", 8), "two runs")


def test_threads(run):
    file = small(run, rows=8, seq=64, micro=256, drop=0.1)
    on_one_cpu(lambda: train(run, file, "one"))
    train(run, file, "all")
    same(checkpoint(run, "one", 8), checkpoint(run, "all", 8), "one thread and all")


STEPS = 300              # enough steps that a signal arrives before the last one; a faster run is repeated


def signal_sent(run, file, folder, path, number):
    """The output of a run of STEPS steps that received the signal after it had written this file, before its last step."""
    for _ in range(20):
        remove(run.path(folder))
        p = run.start("run", file, "--out", run.path(folder))
        wait_for(run.path(folder, path), p)
        p.send_signal(number)
        out, err = p.communicate()
        if not os.path.exists(run.path(folder, f"step-{STEPS:06}")):
            return p.returncode, out, err
    check(False, "every run ended before the signal came")


def test_kill_and_resume(run):
    """a run that is killed (SIGKILL) and resumed gives the bits of an uninterrupted one"""
    file = small(run, steps=STEPS, rows=2, drop=0.1, more=SAVED.format(every=STEPS // 10, keep="all"))
    train(run, file, "whole")
    signal_sent(run, file, "killed", f"step-{STEPS // 10:06}", signal.SIGKILL)
    train(run, file, "killed")
    same(checkpoint(run, "whole", STEPS), checkpoint(run, "killed", STEPS), "after a kill")
    lines = [json.loads(x)["step"] for x in open(run.path("killed/metrics.jsonl"))]
    check(lines == list(range(1, STEPS + 1)), "metrics.jsonl has every step once")


def test_kills_while_saving(run):
    """a run killed at random moments, while it saves in the foreground or in the background, always leaves a checkpoint that loads"""
    steps = 24
    saved = SAVED.format(every=1, keep=2)
    file = small(run, steps=steps, rows=2, more=saved)
    other = small(run, steps=steps, rows=2, more=in_background(saved), name="background.lm")
    train(run, file, "whole")
    rng = random.Random(1)
    for i in range(6 if run.slow else 20):
        p = run.start("run", other if i % 2 else file, "--out", run.path("killed"), "-q")
        time.sleep(rng.random() * (1.0 if run.slow else 0.15))
        p.kill()
        _, err = p.communicate()
        check(not err, err)
    train(run, file, "killed")
    same(checkpoint(run, "whole", steps), checkpoint(run, "killed", steps), "after many kills")


def test_interrupt(run):
    """SIGINT saves and stops; the same command resumes"""
    file = small(run, steps=STEPS, rows=2, more=SAVED.format(every=10 * STEPS, keep="all"))
    train(run, file, "whole")
    file = small(run, steps=STEPS, rows=2, more=in_background(SAVED.format(every=3, keep="all")))
    code, out, err = signal_sent(run, file, "stopped", "metrics.jsonl", signal.SIGINT)
    check(code == 130 and "interrupted after step" in out and "resumes from" in out, out + err)
    step = int(re.search(r"interrupted after step (\d+), saved", out)[1])
    there = {int(x[5:]) for x in os.listdir(run.path("stopped")) if x.startswith("step-")}
    check(there == {*range(3, step + 1, 3), step} and ".writing" not in os.listdir(run.path("stopped")), f"{step}: {there}")
    train(run, file, "stopped")
    same(checkpoint(run, "whole", STEPS), checkpoint(run, "stopped", STEPS), "after an interruption")


def stopped_while_training(run, file, folder, number):
    """The output of a long run that received the signal after its first step."""
    p = run.start("run", file, "--out", run.path(folder))
    metrics = run.path(folder, "metrics.jsonl")
    wait_for(metrics, p)
    while p.poll() is None and not os.path.getsize(metrics):
        time.sleep(0.01)
    p.send_signal(number)
    out, err = p.communicate()
    return p.returncode, out, err


def test_hangup(run):
    """SIGHUP saves and stops the run; under nohup it continues"""
    file = small(run, steps=100000, rows=2, more=SAVED.format(every=1000, keep=2))
    code, out, err = stopped_while_training(run, file, "closed", signal.SIGHUP)
    check(code == 129 and "interrupted after step" in out and ", saved" in out, out + err)
    ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    p = subprocess.Popen([run.lmc, "run", file, "-q", "--out", run.path("nohup")], preexec_fn=ignore)
    wait_for(run.path("nohup/metrics.jsonl"), p)
    p.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    check(p.poll() is None, "the run continues")
    p.kill()
    p.wait()


def test_user_signal(run):
    """SIGUSR1, which batch systems send before the end of a job's time, saves and stops the run"""
    file = small(run, steps=100000, rows=2, more=SAVED.format(every=1000, keep=2))
    code, out, err = stopped_while_training(run, file, "run", signal.SIGUSR1)
    check(code == 128 + signal.SIGUSR1 and "interrupted after step" in out and ", saved" in out, out + err)


def test_missing_parts(run):
    """a missing checkpoint, part or folder is reported with the existing ones"""
    file = small(run, steps=4, more=SAVED.format(every=2, keep="all"))
    train(run, file, "run")
    ids = ("--prompt-ids", "1", "-n", 1)
    check("no checkpoint of step 3, only of steps 4, 2" in run("generate", run.path("run"), *ids, "--step", 3, status=1), "steps")
    err = run("generate", run.path("run/step-000004"), *ids, status=1)
    check("is a checkpoint of the run" in err and "with --step 4" in err, err)
    os.remove(run.path("run/metrics.jsonl"))
    os.symlink("/dev/zero", run.path("run/metrics.jsonl"))
    check("metrics.jsonl exists and is not a regular file" in run("run", file, "--out", run.path("run"), status=2), "a device")
    os.remove(run.path("run/metrics.jsonl"))
    shutil.rmtree(run.path("run/step-000004"))
    run.write("run/step-000004", "a file")
    code, out, err = run.result("run", file, "--out", run.path("run"), "-q")
    check(code == 0 and "is from step 2: 2 steps are repeated" in err, err)
    check(os.path.isdir(run.path("run/step-000004")), "the checkpoint must be written")


def test_one_at_a_time(run):
    """a second run in the folder of a run in progress is refused"""
    file = small(run, steps=20000, more=SAVED.format(every=1, keep=1))
    first = run.start("run", file, "-q")
    wait_for(run.path("run/metrics.jsonl"), first)
    try:
        check("another run is using" in run("run", file, "-q", status=1), "the second one")
        check(first.poll() is None, "the first run must continue")
    finally:
        first.kill()
        first.communicate()
    run("run", file, "-q", "--steps", 1, "--out", run.path("other"))
    folder = os.path.dirname(run.write("begun/unit.tmp", ""))   # as by a run that writes its first files
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    check("another run is using" in run("run", file, "-q", "--out", folder, status=1), "a folder that is not complete yet")
    os.close(held)
    check("and is not the folder of a run" in run("run", file, "-q", "--out", folder, status=1), "a folder of something else")


def test_file_limit(run):
    """a file size limit is a write error, not the death of the process"""
    file = small(run, steps=2, more='save = checkpoint("run")')
    run("run", file, "-q", "--out", run.path("warm"))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    p = subprocess.run([run.lmc, "run", file, "-q"], preexec_fn=limit, capture_output=True, text=True)
    check(p.returncode == 2 and "File too large" in p.stderr, (p.returncode, p.stderr))


LEARNED = """import "{root}/examples/llama.lm": Llama
data Text {{ tokenizer = bpe(train = 290); source s = text("text.txt"); pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 300)
  data = Text; run = 4 steps; batch = 128 tokens; save = checkpoint("run")
}}
"""


def test_learned_vocabulary(run):
    """a resumed run keeps its vocabulary when the text changes; a new run trains its own"""
    file = run.write("learned.lm", LEARNED.format(root=ROOT))
    run.write("text.txt", "the cat sat on the mat and the dog sat by the door\n" * 40)
    vocabulary = lambda folder: open(run.path(folder, "tokenizer.json")).read()
    train(run, file, "run")
    first = vocabulary("run")
    run.write("text.txt", "zebras quiz oxen, quick zebras quiz lazy oxen\n" * 40)
    train(run, file, "run", "--steps", 6, "--change", "data.source")
    train(run, file, "branch", "--steps", 6, "--resume", run.path("run"))
    train(run, file, "new")
    check(first == vocabulary("run") == vocabulary("branch"), "a resumed run must keep its vocabulary")
    check(first != vocabulary("new"), "a new run must train its own")
    model = re.search(r"model = (Llama.*)", LEARNED)[1]
    tuned = lambda tokenizer: run.write("tuned.lm", re.sub("model = .*", "model = Tuned", open(file).read()).replace("bpe(train = 290)", tokenizer)
                                        + f'model Tuned = {model} from "run"\n')
    for tokenizer, command in ("bpe(train = 290)", ("run", "--out", run.path("tuned"))), ("bytes()", ("check",)):
        err = run(*command, tuned(tokenizer), status=1)
        check("error[E265]" in err and f'= help: tokenizer = bpe("{run.path("run")}/tokenizer.json")' in err, err)
    train(run, tuned('bpe("run/tokenizer.json")'), "tuned")


def test_learned_vocabulary_gone(run):
    """a resumed run does not train its vocabulary again"""
    file = run.write("learned.lm", LEARNED.format(root=ROOT))
    run.write("text.txt", "the cat sat on the mat and the dog sat by the door\n" * 40)
    train(run, file, "run")
    os.remove(run.path("run/tokenizer.json"))
    folder = run.path("run")
    for args in (("generate", folder, "--prompt", "the"), ("eval", folder), ("export", folder, "--out", run.path("hf")), ("run", file, "--out", folder, "--steps", 6)):
        err = run(*args, status=1)
        check("run/tokenizer.json is missing: the vocabulary that this run learned" in err, (args, err))
    train(run, file, "run", "--resume", "never")
    check(os.path.exists(run.path("run/tokenizer.json")), "a new run must train its own vocabulary")


RESUMED = """import "{root}/examples/llama.lm": Llama
data Text {{ source a = text("a.txt", split = "\\n"); source b = text("b.txt", split = "\\n"); {more}; pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 256)
  data = Text; run = 12 steps; batch = 128 tokens; save = checkpoint("run", every = 6 steps)
}}
"""
OTHER_DATA = "the data differs from the data that this run was trained on up to step 6"


def test_resumed_over_other_data(run):
    """changed text is an error, or with --change data.source a warning; a changed modification time is not a change"""
    lines = lambda word, n: "".join(f"{word} number {i} of some lines\n" for i in range(n))
    for name, more in (("plain", "bad = 0%"), ("mixed", "mix = (a = 0.5, b = 0.5); stage 50% { pack best_fit(seq = 16 tokens); mix = (a = 1, b = 0) }")):
        file = run.write("resumed.lm", RESUMED.format(root=ROOT, more=more))
        run.write("a.txt", lines("one", 60))
        run.write("b.txt", lines("two", 60))
        train(run, file, name, "--steps", 6)
        shutil.copytree(run.path(name), run.path(name + "moved"))
        os.utime(run.path("a.txt"), (1, 1))
        code, out, err = run.result("run", file, "--out", run.path(name + "moved"))
        check(code == 0 and "resumed at step 6" in out and OTHER_DATA not in err, err)
        run.write("a.txt", lines("one", 40))
        err = run("run", file, "--out", run.path(name), "--steps", 9, status=1)
        check("cannot be resumed: the content of its data has changed since step 6" in err and "to resume with the new data: --change data.source" in err, err)
        check(sorted(f for f in os.listdir(run.path(name)) if f.startswith("step-")) == ["step-000006"], "nothing was trained")
        code, out, err = run.result("run", file, "--out", run.path(name), "--json", "--steps", 9, "--change", "data.source")
        check(code == 0 and json.loads(out)["resumed"] == 6 and err.count(OTHER_DATA) == 1, out + err)
        code, out, err = run.result("run", file, "--out", run.path(name))
        check(code == 0 and "resumed at step 9" in out and "differs from the data that this run" not in err, err)
        check("from step 7 on:\n  data.source was other content, is the present content" in run("explain", run.path(name), "changes"))


def test_resumed_over_more_batches(run):
    """batches may be appended to a file; the trained ones must be unchanged"""
    batches = random_batches(12, 4, 16)
    first = {k: v[:8] for k, v in batches.items()}
    file = small(run, steps=6, batches=first, more=SAVED.format(every=6, keep="all"))
    train(run, file, "run")
    for warned, tensors in ((False, batches), (True, {**batches, "tok": batches["tok"][::-1].copy()})):
        save(run.path("batches.safetensors"), tensors)
        shutil.copytree(run.path("run"), run.path(f"more{warned}"))
        accepted = ["--change", "data.source"] if warned else []
        code, out, err = run.result("run", file, "--out", run.path(f"more{warned}"), "--steps", 10, *accepted)
        check(code == 0 and "resumed at step 6" in out and (OTHER_DATA in err) == warned, err)


def test_resumed_with_another_micro(run):
    file = small(run, steps=8, more=SAVED.format(every=4, keep="all"))
    train(run, file, "run", "--steps", 4)
    code, out, err = run.result("run", file, "--out", run.path("run"), "-q", "--set", "micro = 32 tokens")
    check(code == 0 and "up to step 4 a step had 1 micro-batch, now it has 2" in err, err)
    check("is not what" not in err, err)


def test_longer(run):
    """a finished run resumes when `run` is raised"""
    file = small(run, steps=12, more="schedule = none")
    text = open(file).read().replace("schedule = warmup_cosine(warmup = 5 steps)", "").replace("optimizer = adamw(lr = 3e-3);", "optimizer = adamw(lr = 3e-3)")
    open(file, "w").write(text)
    train(run, file, "whole")
    train(run, file, "parts", "--steps", 5)
    train(run, file, "parts", "--set", "run = 12 steps")
    same(checkpoint(run, "whole", 12), checkpoint(run, "parts", 12), "5 + 7 steps")


STOPS = """import std.nn: xent
model M(d = 8, vocab = 256) {{
  param embed: real[vocab, d] = normal(0.5)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{ return dot(gather(embed, tok, vocab), embed, d) }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
data D {{ source s = text("t.txt", split = "\\n"); holdout dev = sample(10 docs); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = M(); data = D; run = 40 steps; batch = 4 seqs; optimizer = adamw(lr = 1e-2)
  eval dev {{ data = D.dev; every = 2 steps }}
  stop = early(on = dev.loss, patience = {patience}, min_delta = 100)
  save = checkpoint("run", best = dev.loss)
}}
"""


def test_stopped_early(run):
    """a run that stopped early reports it when it is started again, and resumes if its stopping rule changes"""
    run.write("t.txt", "\n".join(["the quick brown fox"] * 40))
    file = run.write("stop.lm", STOPS.format(patience=2))
    run("run", file, "--steps", 1, "-q", "--out", run.path("short"), "--set", 'save = checkpoint("run")')
    err = run("eval", run.path("short"), "--step", "best", status=1)
    check("up to step 1 no evaluation has selected a best checkpoint" in err, err)
    check("stopped after step 6, saved: 2 evaluations without a dev.loss by 100 below" in run("run", file), "the first time")
    before = folder_bytes(run.path("run/step-000006"))
    for steps, evaluated in (5, [2, 4, 5]), (40, [2, 4, 5, 6]):   # early stopping does not count the evaluation of the last step
        run("run", file, "--steps", steps, "-q", "--out", run.path("parts"))
        lines = map(json.loads, open(run.path("parts/metrics.jsonl")))
        check([x["step"] for x in lines if "dev.loss" in x] == evaluated, "the last step is evaluated, each step at most once")
    for name in "model.safetensors", "optimizer.safetensors":
        check(before[name] == checkpoint(run, "parts", 6)[name], "an evaluation changes nothing of the training")
    out = run("run", file)
    check("this run is finished: it stopped after step 6 of 40, 2 evaluations without" in out, out)
    check(json.loads(run("run", file, "--json"))["stopped_early"] is True, "as JSON")
    check(before == folder_bytes(run.path("run/step-000006")), "nothing was trained")
    run("run", file, "--set", "optimizer.lr = 2e-2", "--change", "optimizer.lr")
    check(not os.path.exists(run.path("run/history.json")), "a change without a step")
    run.write("stop.lm", STOPS.format(patience=3))
    check("stopped after step 12, saved: 3 evaluations" in run("run", file), "with more patience")
    out = run("run", file, "--steps", 8)
    check("this run is finished: it has 8 steps, and step 12 is done" in out, out)
    out = run("run", file, "--steps", 14)
    check("resumed at step 12" in out and "step-000014" in out, out)


def test_changed_recipe(run):
    file = small(run, steps=9, more=SAVED.format(every=4, keep="all"))
    train(run, file, "run", "--steps", 8)
    err = run("run", file, "--set", "optimizer.lr = 1e-4", "--set", "seed = 8", "--out", run.path("run"), status=1)
    check("these may not change" in err and "optimizer.lr was 3e-3, is 1e-4" in err and "seed was 7, is 8" in err, err)
    before = folder_bytes(run.path("run"))
    err = run("run", file, "--set", "model = Llama(depth = 3)", "--out", run.path("run"), status=1)
    check("model.depth was 2, is 3" in err, err)
    err = run("run", file, "--set", "optimizer.lr = abc", "--out", run.path("run"), status=1)
    check("error[E020]: unknown name 'abc'" in err and "--change" not in err, err)
    check(before == folder_bytes(run.path("run")), "a refused run leaves the folder as it was")


def test_wrong_tensors(run):
    file = small(run, steps=9)
    train(run, file, "run", "--steps", 8)
    path = run.path("run/step-000008/model.safetensors")
    data = open(path, "rb").read()
    open(path, "wb").write(data[: len(data) // 2])
    err = run("run", file, "--out", run.path("run"), status=2)
    check("all checkpoints of" in err and f"model.safetensors has {len(data) // 2} bytes, expected {len(data)}" in err, err)
    check("to restart in this folder, use lmc run with --resume never" in err, err)
    train(run, file, "run", "--resume", "never")
    check(os.path.exists(run.path("run/step-000009")), "the run must resume")


def flip(path):
    data = bytearray(open(path, "rb").read())
    data[len(data) // 2] ^= 1
    open(path, "wb").write(data)


def truncate(path):
    os.truncate(path, os.path.getsize(path) - 1)


def test_damaged(run):
    """each kind of damage to each file of the newest checkpoint is reported, and the run ends with the same bits from the previous checkpoint"""
    file = small(run, steps=9, rows=2, drop=0.1, more=SAVED.format(every=4, keep="all"))
    train(run, file, "whole")
    train(run, file, "run", "--steps", 8)
    good = checkpoint(run, "run", 8)
    for name in sorted(good):
        for harm in (flip, truncate, os.remove):
            shutil.rmtree(run.path("hurt"), ignore_errors=True)
            shutil.copytree(run.path("run"), run.path("hurt"))
            harm(run.path("hurt/step-000008", name))
            code, out, err = run.result("run", file, "--out", run.path("hurt"), "-q")
            what = f"{harm.__name__} {name}: {err}"
            check(code == 0 and f"step-000008/{name}" in err and "is from step 4: 4 steps are repeated" in err, what)
            same(checkpoint(run, "whole", 9), checkpoint(run, "hurt", 9), what)
            lines = [json.loads(x)["step"] for x in open(run.path("hurt/metrics.jsonl"))]
            check(lines == list(range(1, 10)), what)


def test_background(run):
    """a checkpoint that is written while the run continues has the bytes of one that is written between the steps, at every step; its copy
    is part of the predicted memory, and of the budget"""
    saved = SAVED.format(every=1, keep="all").replace(")", ", max_file = 30 kB)")
    file = small(run, steps=12, rows=2, drop=0.1, more=saved)
    train(run, file, "foreground")
    plan = json.loads(run("explain", file, "memory", "--json"))
    file = small(run, steps=12, rows=2, drop=0.1, more=saved.replace("30 kB", "30 kB, background = on"))
    train(run, file, "background")
    for step in range(1, 13):
        same(checkpoint(run, "foreground", step), checkpoint(run, "background", step), f"step {step}")
    copy = sum(x.nbytes for name in ("model", "optimizer") for x in sharded(run.path("background/step-000012"), name).values())
    more = json.loads(run("explain", file, "memory", "--json"))
    check(plan["saving"] == 0 and more["saving"] == copy and more["bytes"] == plan["bytes"] + copy, f"{plan['bytes']}, {more['bytes']}, {copy}")
    check({"label": "copy of a checkpoint", "bytes": copy, "n": 1} in more["holders"], more["holders"])
    err = run("run", file, "--set", f"memory.budget={plan['bytes']} bytes", "--out", run.path("small"), status=1)
    check("E210" in err and "copy of a checkpoint" in err, err)


def parts_of(tensors, most):
    """the names in each file as Hugging Face divides a state dict: a file ends where the next tensor would exceed the limit"""
    parts, size = [[]], 0
    for name, x in tensors.items():
        if parts[-1] and size + x.nbytes > most:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += x.nbytes
    return parts


def test_files(run):
    """a checkpoint in several files has the tensors of one in one file, divided as Hugging Face does; resume, generate and export read
    it, and damage to one of the files is found"""
    saved = SAVED.format(every=4, keep="all")
    file = small(run, steps=6, rows=2, more=saved)
    train(run, file, "one")
    file = small(run, steps=6, rows=2, more=saved.replace(")", ", max_file = 20 kB)"))
    train(run, file, "many")
    for name in ("model", "optimizer"):
        folder = run.path("many/step-000006")
        whole = load(run.path(f"one/step-000006/{name}.safetensors"))
        found = sharded(folder, name)
        check(found.keys() == whole.keys() and all((found[x] == whole[x]).all() for x in whole), name)
        parts = parts_of(whole, 20000)
        index = json.load(open(os.path.join(folder, f"{name}.safetensors.index.json")))
        check(index["metadata"]["total_size"] == sum(x.nbytes for x in whole.values()), index["metadata"])
        names = [f"{name}-{i + 1:05}-of-{len(parts):05}.safetensors" for i in range(len(parts))]
        check(len(parts) > 3 and index["weight_map"] == {x: names[i] for i, part in enumerate(parts) for x in part}, index)
        for part, path in zip(parts, names):
            check(list(load(os.path.join(folder, path))) == part, path)
    for folder in ("one", "many"):
        run("export", run.path(folder), "-o", run.path(folder + "-hf"))
    check(folder_bytes(run.path("one-hf")) == folder_bytes(run.path("many-hf")), "the exports differ")
    generate = lambda folder: run("generate", run.path(folder), "--prompt-ids", "1,2,3", "--ids", "-n", 8, "--temperature", 0)
    check(generate("one") == generate("many"), "the weights differ")
    remove(run.path("many/step-000006"))
    train(run, file, "many")
    check(sharded(run.path("many/step-000006"), "optimizer").keys() == whole.keys(), "the optimizer of the resumed run")
    again = sharded(run.path("many/step-000006"), "model")
    check(all((again[x] == y).all() for x, y in load(run.path("one/step-000006/model.safetensors")).items()), "the resumed run differs")
    flip(run.path("many/step-000006/model-00003-of-00005.safetensors"))
    code, _, err = run.result("generate", run.path("many"), "--prompt-ids", "1,2,3", "--ids", "-n", 1)
    check(code == 0 and "model-00003-of-00005.safetensors: the checksum is" in err and "of step 4, is loaded" in err, err)
    os.remove(run.path("many/step-000004/optimizer.safetensors.index.json"))
    err = run("run", file, "--out", run.path("many"), status=2)
    check("optimizer.safetensors.index.json is missing" in err, err)


def test_damaged_readers(run):
    """generate, eval and export take the newest undamaged checkpoint with a warning; a checkpoint that is given by its step is not replaced"""
    file = small(run, steps=8, more=SAVED.format(every=4, keep="all"))
    train(run, file, "run")
    generate = ("generate", run.path("run"), "--prompt-ids", "1,2,3", "--ids", "-n", 4, "--temperature", 0)
    older = run(*generate, "--step", 4)
    flip(run.path("run/step-000008/optimizer.safetensors"))
    check(run.result(*generate)[2] == "", "files that are not read must not be checked")
    flip(run.path("run/step-000008/model.safetensors"))
    code, out, err = run.result(*generate)
    check(code == 0 and out == older and "step-000008/model.safetensors: the checksum is" in err
          and "the newest complete checkpoint, of step 4, is loaded" in err, out + err)
    err = run(*generate, "--step", 8, status=2)
    check("this checkpoint is damaged" in err and "model.safetensors" in err, err)
    code, out, err = run.result("export", run.path("run"), "-o", run.path("hf"))
    check(code == 0 and "of step 4, is loaded" in err, err)
    os.remove(run.path("run/step-000004/checksums.txt"))
    for command in (generate, ("export", run.path("run"), "-o", run.path("hf")), ("run", file, "--out", run.path("run"))):
        err = run(*command, status=2)
        check("all checkpoints of" in err and "step-000008/model.safetensors" in err and "step-000004/checksums.txt is missing" in err, err)


def test_other_model(run):
    """a checkpoint of another model on the command line is refused"""
    file = small(run, depth=2)
    train(run, file, "run")
    other = small(run, depth=3, name="other.lm")
    err = run("run", other, "--out", run.path("new"), "--resume", run.path("run/step-000008"), status=1)
    check("cannot be resumed" in err and "model.depth was 2, is 3" in err, err)
    check(not os.path.exists(run.path("new")), "the run must not begin")


def test_unwritable(run):
    """a run folder that cannot be created is reported before the first step"""
    file = small(run)
    run.write("taken", "a file")
    err = run("run", file, "--out", run.path("taken/run"), status=1)
    check("taken" in err, err)


@contextlib.contextmanager
def mounted(run, name, options):
    """a tmpfs folder, if the test may mount one"""
    os.makedirs(run.path(name))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", run.path(name)], stderr=subprocess.DEVNULL).returncode:
        raise Skip("mounting is for root")
    try:
        yield run.path(name)
    finally:
        subprocess.run(["umount", "-l", run.path(name)], check=True)


def test_read_only(run):
    file = small(run)
    with mounted(run, "disk", "size=1m,ro") as disk:
        for folder in (disk, disk + "/run"):
            err = run("run", file, "--out", folder, status=2)
            check(folder in err and "Read-only file system" in err, err)


def test_too_small_a_disk(run):
    """too little disk space for a checkpoint is reported before the first step"""
    file = small(run)
    with mounted(run, "disk", "size=100k") as disk:
        err = run("run", file, "--out", disk + "/run", status=2)
        check(" free, a checkpoint needs " in err, err)
        check(not os.path.exists(disk + "/run/metrics.jsonl"), "the run must not begin")


def test_full_later(run):
    """a full disk during a checkpoint keeps the previous one; the run resumes when there is space"""
    file = small(run, more=SAVED.format(every=2, keep="all"))
    for steps in (2, 6):
        train(run, file, "whole", "--steps", steps)
    one = sum(map(len, checkpoint(run, "whole", 2).values()))
    with mounted(run, "disk", f"size={16 * one}") as disk:
        train(run, file, "disk/run", "--steps", 2)
        with open(disk + "/filler", "wb") as f:
            room = os.statvfs(disk)
            f.write(b"x" * int(room.f_bavail * room.f_frsize - 1.5 * one))   # one checkpoint fits, not two
        err = run("run", file, "--out", disk + "/run", "-q", "--steps", 6, status=2)
        check("checkpoint of step 6" in err and "No space left on device" in err, err)
        there = sorted(x for x in os.listdir(disk + "/run") if x.startswith((".", "step-")))
        check(there == ["step-000002", "step-000004"], there)
        os.remove(disk + "/filler")
        train(run, file, "disk/run", "--steps", 6)
        same(checkpoint(run, "whole", 6), checkpoint(run, "disk/run", 6), "after a full disk")


def test_full_cache(run):
    """a full disk for the C compiler is an environment error"""
    with mounted(run, "disk", "size=64k") as disk:
        err = run("run", small(run), "--out", run.path("run"), env={"LMC_CACHE": disk + "/cache"}, status=2)
        check("No space left on device" in err, err)


def test_disk_full(run):
    if not os.path.exists("/dev/full"):
        return
    file = small(run)
    with open("/dev/full", "w") as full:
        p = subprocess.run([run.lmc, "check", file], stdout=full, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 2 and "cannot write" in p.stderr, p.stderr)


def test_durations(run):
    """a schedule's duration in steps, in tokens, as a share of the run and in epochs are one and the same"""
    run.write("t.txt", "".join(f"line {i}\n" for i in range(400)))
    text = STOPS.format(patience=5).replace("optimizer = adamw(lr = 1e-2)", "optimizer = adamw(lr = 1e-2); schedule = warmup_cosine(warmup = WARMUP)")
    text = "\n".join(line for line in text.split("\n") if "eval dev" not in line and "stop =" not in line).replace(", best = dev.loss", "")
    rates = {}
    for warmup, length in (("4 steps", "10 steps"), ("512 tokens", "10 steps"), ("40%", "10 steps"), ("40%", "1280 tokens"), ("1 epochs", "2 epochs"), ("50%", "2 epochs")):
        name = f"{warmup}-{length}".replace(" ", "").replace("%", "p")
        file = run.write(f"{name}.lm", text.replace("WARMUP", warmup).replace("run = 40 steps", f"run = {length}"))
        train(run, file, name)
        rates[warmup, length] = [json.loads(line)["lr"] for line in open(run.path(name, "metrics.jsonl")) if '"lr"' in line]
    ten = rates["4 steps", "10 steps"]
    check(len(ten) == 10 and ten[3] == 1e-2 and abs(ten[0] - 2.5e-3) < 1e-9 and ten[4] < 1e-2, f"{ten}")
    for key in (("512 tokens", "10 steps"), ("40%", "10 steps"), ("40%", "1280 tokens")):
        check(rates[key] == ten, f"{key}: {rates[key]}, {ten}")
    check(rates["1 epochs", "2 epochs"] == rates["50%", "2 epochs"] and len(rates["50%", "2 epochs"]) > 10, f"{rates}")
    err = run("run", run.write("set.lm", text.replace("WARMUP", "1 epochs").replace("run = 40 steps", "run = 2 epochs")), "--steps", 5, status=1)
    check("a duration in epochs needs a `run` in epochs" in err, err)


def test_record(run):
    """run.json holds the numbers of a run, and the options that replace values of the recipe; program.json holds --set alone"""
    file = small(run, steps=8, more=SAVED.format(every=2, keep="all"))
    run("run", file, "--out", run.path("run"), "-q", "--steps", 2, "--mode", "reduce-overhead", "--set", "optimizer.lr = 1e-3")
    record, program = (json.load(open(run.path("run", name))) for name in ("run.json", "program.json"))
    check(record["options"] == {"steps": 2, "mode": "reduce-overhead"} and record["steps"] == 2, record)
    check(record["batch"] == 64 and record["stages"][0]["last"] == 2 and program["set"] == ["optimizer.lr = 1e-3"], (record, program))
    check("--steps" in open(run.path("run/recipe.txt")).read(), "recipe.txt names the option")
    run("run", file, "--out", run.path("run"), "-q", "--set", "optimizer.lr = 1e-3")
    record = json.load(open(run.path("run/run.json")))
    check(record["options"] == {"steps": None, "mode": None} and record["steps"] == 8, record)
    open(run.path("run/run.json"), "w").write('{"micro": "many"}')
    err = run("run", file, "--out", run.path("run"), "-q", "--set", "optimizer.lr = 1e-3", status=1)
    check("run.json: not the record of a run" in err, err)
