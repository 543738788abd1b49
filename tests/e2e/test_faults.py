"""Memory or disk is exhausted at any moment of a compilation and two steps: status 2 with a message, the checkpoint that
existed before loads, and the same command then ends with the bits of an undisturbed run. Uses lmc_faulty (tests/fault/faulty.c)."""
import json, os, random, re, shutil, subprocess

from harness import ROOT, Run, Skip, check, folder_bytes, remove

PLAIN_BUILD = {"small_spaces"}
BOTH_BUILDS = {"every_allocation", "every_write", "small_limits"}
TINY = """import std.nn: rmsnorm, xent
model Tiny(d = 8, vocab = 256) {
  param embed: real[vocab, d] = normal(0.02)
  param norm: real[d] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return dot(rmsnorm(gather(embed, tok, vocab), norm), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }
}
data Text { source s = text("text.txt", split = "\\n"); holdout dev = tail(10%); pack best_fit(seq = 16 tokens) }
recipe R {
  model = Tiny(); data = Text; seed = 1
  run = 2 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = adamw(lr = 1e-2)
  eval dev { data = Text.dev; every = 1 steps; metrics = [loss, bits_per_byte] }
  save = checkpoint("run", every = 1 steps, keep = 2)
}
"""

ZOO = """import "{root}/examples/zoo/qwen3.lm": Qwen3
data Talk {{ source s = chat("talk.jsonl", template = "chatml"); pack best_fit(seq = 96 tokens) }}
recipe R {{
  model = Qwen3(depth = 1, d = 16, ff = 32, heads = 2, kv = 1, e = 8, vocab = 256)
  data = Talk; run = 1 steps; batch = 96 tokens; save = checkpoint("run")
}}
"""


class Faulty:
    """a tiny run after its first step, in the folder `base`, and its final checkpoint"""

    def __init__(self, run):
        self.run, self.faulty = run, Run(os.path.join(os.path.dirname(run.lmc), "lmc_faulty"), run.folder, run.slow)
        rng = random.Random(1)
        run.write("text.txt", "\n".join("".join(rng.choices("abcdefgh ", k=rng.randrange(3, 40))) for _ in range(300)))
        self.file = run.write("tiny.lm", TINY)
        self.cache = run.path("cache")
        self.train(run, "base", "--steps", 1)
        shutil.copytree(run.path("base"), run.path("whole"))
        self.train(run, "whole")
        self.last = "step-000002"
        self.end = folder_bytes(run.path("whole", self.last))

    def train(self, command, folder, *args, fault=None):
        """(status, stderr)"""
        env = {"LMC_CACHE": self.cache, "OMP_NUM_THREADS": "1", **({"LM_FAULT": fault} if fault else {})}
        code, _, err = command.result("run", self.file, "--out", self.run.path(folder), "-q", *args, env=env)
        check(fault or code == 0, f"status {code}: {err}")
        return code, err

    def again(self, kernels):
        """a folder with the first checkpoint, and no cache of data; with or without kernels"""
        remove(self.run.path("run"))
        remove(self.cache if not kernels else os.path.join(self.cache, "data"))
        shutil.copytree(self.run.path("base"), self.run.path("run"))

    def recovers(self, what):
        self.train(self.run, "run")
        check(folder_bytes(self.run.path("run", self.last)) == self.end, f"{what}: the final checkpoint differs from an undisturbed run")
        left = [f for f in os.listdir(self.run.path("run")) if f.startswith(".") or f.endswith(".tmp")]
        check(not left, f"{what}: {left} are left behind")


def total(f, kernels, what):
    f.again(kernels)
    return int(re.search(rf"(\d+) {what}", f.train(f.faulty, "run", fault="count")[1]).group(1))


def writes_fail(f, kernels, stride):
    for n in range(1, total(f, kernels, "writes") + 1, stride):
        f.again(kernels)
        code, err = f.train(f.faulty, "run", fault=f"write={n}")
        check(code in (0, 2), f"write {n}: status {code}: {err}")
        check(code == 0 or "No space left on device" in err, f"write {n}: {err}")
        check("Sanitizer" not in err, f"write {n}: {err}")
        f.recovers(f"write {n}")


def test_every_write(run):
    writes_fail(Faulty(run), True, 1 if run.nightly else 13 if run.slow else 5)


def test_every_write_of_kernels(run):
    writes_fail(Faulty(run), False, 1 if run.nightly else 29 if run.slow else 17)


def test_full_disk_in_the_background(run):
    """a checkpoint in the background that fails is reported and the run continues; the last one must succeed"""
    f = Faulty(run)
    text = TINY.replace("keep = 2", "keep = 2, max_file = 4 kB, background = on").replace("run = 2 steps", "run = 5 steps")
    f.file = run.write("tiny.lm", text)
    remove(run.path("whole"))
    shutil.copytree(run.path("base"), run.path("whole"))
    f.train(run, "whole")
    f.end, f.last, n, continued = folder_bytes(run.path("whole/step-000005")), "step-000005", total(f, True, "writes"), 0
    for at in range(1, n + 1, 1 if run.nightly else 61 if run.slow else 29):
        f.again(True)
        code, err = f.train(f.faulty, "run", fault=f"write={at}")
        reported = re.search(r"checkpoint of step (\d): .*No space left on device\n  this step is not saved; the run continues", err)
        check("Sanitizer" not in err and (code == 0 or code == 2 and "No space left on device" in err), f"write {at}: status {code}: {err}")
        check(not reported or (code == 0 and int(reported[1]) < 5), f"write {at}: {err}")
        continued += bool(reported)
        f.recovers(f"write {at}")
    check(continued > 1, "no checkpoint in the background failed")


def test_every_allocation(run):
    """each allocation or write fails once, in a forked process"""
    f = Faulty(run)
    for kernels in (True, False):
        f.again(kernels)
        code, err = f.train(f.faulty, "run", fault=f"allocations={1 if not run.slow or run.nightly else 9}")
        made = re.search(r"faults: (\d+) of (\d+) allocations failed, 0 not as they should", err)
        check(code == 0 and made and int(made.group(1)) > 200, err)
        check(folder_bytes(run.path("run/step-000002")) == f.end, "processes without a fault must end normally")


def test_after_an_allocation(run):
    """a run after one that ran out of memory succeeds"""
    f = Faulty(run)
    n = total(f, True, "allocations")
    for k in range(1, 9 if run.nightly else 4):
        f.again(True)
        code, err = f.train(f.faulty, "run", fault=f"allocation={n * k // 9}")
        check(code == 2 and "out of memory" in err, f"status {code}: {err}")
        f.recovers(f"allocation {n * k // 9}")


def limited(run, limit, *args, stdin=None):
    """(status, stderr) of a command under `ulimit LIMIT`; None where the system's loader fails"""
    p = subprocess.run(["bash", "-c", f'ulimit {limit}; exec "$0" "$@"', run.lmc, *args], input=stdin, capture_output=True, text=True, errors="replace", cwd=run.folder)
    return None if "shared libraries" in p.stderr else (p.returncode, p.stderr)


def test_small_limits(run):
    """a small address space, stack or file is an error of the environment, whatever library notices"""
    run.write("text.txt", "a few words of a text\n" * 300)
    f = run.write("tiny.lm", TINY)
    spaces = [] if run.slow else range(64000, 160000, 6000)  # the sanitizers map terabytes of addresses
    for limit in ["-s 64", "-f 2", *(f"-v {kb}" for kb in spaces)]:
        for args in (("--set", "precision.compute=f32"), ()):
            result = limited(run, limit, "run", f, "-q", "--resume", "never", *args)
            check(not result or result[0] in (0, 2), f"{limit}: {result}")
            check(not result or result[0] == 0 or "limit" in result[1] or "memory" in result[1], f"{limit}: {result}")


# runs on a disk of that size, lists its files and evaluates each checkpoint
SMALL_DISK = """mount -t tmpfs -o size=$0 none small || exit 77
"$1" run "$2" --out small/run -q; echo "status $?"
ls -A small/run; find small/run -name '*.tmp'
for step in small/run/step-*; do [ -d $step ] && "$1" eval small/run --step ${step#*step-} | tail -1; done
"$1" tokenizer train text.txt --vocab 300 -o small/tok.json; find small -name '*.tmp'"""


def test_small_disk(run):
    """a disk that fills up in the course of a run: a message, and each checkpoint that is there is whole"""
    run.write("text.txt", "a few words of a text\n" * 300)
    os.mkdir(run.path("small"))
    file = run.write("tiny.lm", TINY)
    for size, checkpoints, message in (("16k", [0], "kB free, a checkpoint needs"), ("64k", [0, 1, 2], "No space left on device"), ("1m", [2], "")):
        p = subprocess.run(["unshare", "-m", "sh", "-c", SMALL_DISK, size, run.lmc, file], cwd=run.folder, capture_output=True, text=True)
        if p.returncode == 77 or "unshare" in p.stderr:
            raise Skip("a file system of one's own takes root")
        check(f"status {2 if message else 0}" in p.stdout and message in p.stderr, f"{size}: {p}")
        steps = p.stdout.count("step-0")
        known = re.search("the newest complete checkpoint is (small/run/step-[0-9]*); the run resumes there", p.stderr)
        check(bool(known) == bool(message and steps), f"{size}: {p}")
        check(p.stdout.count("bits/byte") == steps and steps in checkpoints and ".tmp" not in p.stdout, f"{size}: {p}")
        check("Sanitizer" not in p.stderr, p.stderr)


# generates and evaluates with a cache of that size, which is empty; lists temporary files and sources that remain
SMALL_CACHE = """mount -t tmpfs -o size=$0,mode=700 none small || exit 77
for command in "generate run --prompt ab -n 2" "eval run"; do
  rm -rf small/* small/.lmc*
  LMC_CACHE=$PWD/small "$1" $command >out 2>err; echo "status $? $(cat err)"
  ls -A small | grep -e tmp -e failed; ls -A small/data 2>/dev/null | grep tmp
done
true"""


def test_small_cache(run):
    """a disk of the cache that is full, or fills up while kernels are compiled: a message, and nothing unfinished is left"""
    run.write("text.txt", "a few words of a text\n" * 300)
    run("run", run.write("tiny.lm", TINY), "--out", run.path("run"), "-q", "--steps", 1)
    os.mkdir(run.path("small"))
    for size, statuses in (("64k", "2"), ("160k", "02"), ("176k", "02"), ("4m", "0")):
        p = subprocess.run(["unshare", "-m", "sh", "-c", SMALL_CACHE, size, run.lmc], cwd=run.folder, capture_output=True, text=True)
        if p.returncode == 77 or "unshare" in p.stderr:
            raise Skip("a file system of one's own takes root")
        found = re.findall(r"^status (\d+)(.*)", p.stdout, re.M)
        check(len(found) == 2 and all(code in statuses for code, _ in found), f"{size}: {p.stdout}")
        check(all(code == "0" or "No space left on device" in p.stdout for code, _ in found), f"{size}: {p.stdout}")
        check(not re.search(r"^(\.lmc-tmp|failed-|.*\.tmp$)", p.stdout, re.M) and "Sanitizer" not in p.stdout, f"{size}: {p.stdout}")


SPACES = range(56000, 116000, 12000)  # kB of addresses


def test_small_spaces(run):
    """commands with a small address space end with success or with a message"""
    run.write("talk.jsonl", json.dumps({"messages": [{"role": r, "content": t} for r, t in (("user", "ping"), ("assistant", "pong"))]}) + "\n")
    file = run.write("zoo.lm", ZOO.format(root=ROOT))
    run("run", file, "-q", "--out", run.path("run"))
    run("export", run.path("run"), "-o", run.path("hf"))
    run("import", "hf", run.path("hf"), "-o", run.path("base"))
    commands = (("chat", "base", "-n", "2", "--context", "128"), ("generate", "base", "-p", "ping", "-n", "4"), ("eval", "run", "--on", "train"),
                ("export", "run", "-o", "again"), ("import", "hf", "hf", "-o", "imported"), ("data", file))
    ended = []
    for args in commands:
        for kb in [*SPACES, 1 << 22] if not run.nightly else range(50000, 160000, 500):
            result = limited(run, f"-v {kb}", *args, stdin="ping\n")
            ended.append(result and result[0])
            check(not result or result[0] in (0, 2), f"{args}, {kb}: {result}")
            check(not result or result[0] == 0 or "limit" in result[1] or "memory" in result[1], f"{args}, {kb}: {result}")
    check(0 in ended and 2 in ended, str(ended))


def test_no_working_folder(run):
    """commands in a folder that was removed: they work with absolute paths; others are errors that name the reason"""
    run.write("text.txt", "a few words of a text\n" * 300)
    file = run.write("tiny.lm", TINY)
    for args, status in (("run", file, "-q"), 0), (("run", "tiny.lm"), 1), (("new", "mine", "--data", run.path("text.txt")), 2), \
            (("tokenizer", "train", run.path("text.txt"), "--vocab", "300", "-o", "tok.json"), 2):
        p = subprocess.run(["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$0" "$@"', run.lmc, *args], cwd=run.folder, capture_output=True, text=True)
        check(p.returncode == status and (status == 0 or "the working folder was removed" in p.stderr), f"{args}: {p}")
