"""Helpers of the end-to-end tests: running lmc, safetensors files, comparison. A test is a function test_* of tests/e2e/test_*.py
that takes a Run; it passes if it returns."""
import glob, importlib, json, os, resource, shutil, struct, subprocess, sys, time

import numpy as np
from expectation import explain

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# No test depends on how busy the machine is: these limits only stop processes that hang.
PROCESSOR_SECONDS = 3600   # of one process that a test starts
HANG_SECONDS = 4 * 3600    # until the end of such a process
DTYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "BF16": "<u2", "U8": "u1", "F8_E4M3": "u1"}


def load(path):
    """name -> array; bf16 becomes f32, 8-bit types are codes"""
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, m in json.loads(raw[8 : 8 + n]).items():
        if name != "__metadata__":
            a, b = m["data_offsets"]
            out[name] = np.frombuffer(raw[8 + n + a : 8 + n + b], DTYPES[m["dtype"]]).reshape(m["shape"])
            if m["dtype"] == "BF16":
                out[name] = (out[name].astype("<u4") << 16).view("<f4")
    return out


def sharded(folder, name):
    """the tensors of a set of a checkpoint, in one file or in those that its index names"""
    index = os.path.join(folder, f"{name}.safetensors.index.json")
    if not os.path.exists(index):
        return load(os.path.join(folder, f"{name}.safetensors"))
    files = json.load(open(index))["weight_map"]
    parts = {file: load(os.path.join(folder, file)) for file in set(files.values())}
    return {tensor: parts[file][tensor] for tensor, file in files.items()}


def save(path, tensors):
    names = {np.dtype("<f4"): "F32", np.dtype("<i4"): "I32"}
    head, at = {"__metadata__": {"format": "pt"}}, 0   # transformers before 5 expects it
    for name, t in tensors.items():
        head[name] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(t).tobytes() for t in tensors.values()))


def distance(a, b, floor=0):
    """|a - b| / max(|b|, floor), norm-wise in float64; 0 counts as 1"""
    a, b = np.asarray(a, "f8"), np.asarray(b, "f8")
    return float(np.linalg.norm(a - b) / (max(np.linalg.norm(b), floor) or 1))


class Skip(Exception):
    """raised if this machine lacks something that the test needs; the text names it"""


def check(ok, message=""):
    """Fails with the expected and the found values from the source of the call, and with the message."""
    if not ok:
        raise AssertionError("\n".join([*explain(sys._getframe(1)), *([f"  {message}"] if str(message) else [])]))


def within(what, value, bar):
    """The value is at most the bar; a NaN is not."""
    if not value <= bar:
        raise AssertionError(f"{what}: expected at most {bar:g}, found {value:.3g}")


def limits_set():
    """Sets limits in a process that a test starts, before its program."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))


class Run:
    """The environment of one test: the command and a separate folder."""

    def __init__(self, lmc, folder, slow, nightly=False, target=None):
        self.lmc, self.folder, self.target = os.path.abspath(lmc), folder, target
        self.slow, self.nightly = slow, nightly   # under a sanitizer; every case instead of some

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def start(self, *args, env=None, cwd=None, stdin=None):
        if self.target and args[0] in ("run", "trace", "generate", "eval") and "--target" not in args:
            args += ("--target", self.target)
        return subprocess.Popen([self.lmc, *map(str, args)], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                errors="replace", env={**os.environ, **(env or {})}, cwd=cwd or ROOT, preexec_fn=limits_set)

    def result(self, *args, stdin=None, **how):
        p = self.start(*args, **how, stdin=None if stdin is None else subprocess.PIPE)
        out, err = p.communicate(stdin, timeout=HANG_SECONDS)
        return p.returncode, out, err

    def __call__(self, *args, status=0, **how):
        code, out, err = self.result(*args, **how)
        if code != status:
            raise AssertionError(f"lmc {' '.join(map(str, args))}: exit status {code}, expected {status}\n{out}{err}")
        return out if status == 0 else err

    def trace(self, file, *args, **how):
        out = self.path("trace.safetensors")
        self("trace", file, "--out", out, *args, **how)
        return load(out)

    def write(self, name, text):
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(text)
        return path


def children_seconds():
    """processor seconds of the finished child processes"""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def doctor(run, name):
    """The row of that name in the output of `lmc doctor`, with the processor as LMC_CPU limits it."""
    return next(row for row in json.loads(run.result("doctor", "--json")[1]) if row["name"] == name)


# A small Llama of examples/llama.lm on prepared batches, for tests that train.
SMALL = """import "{root}/examples/llama.lm": Llama
data Batches {{ source s = batches("batches.safetensors") }}
recipe Small {{
  model = Llama(depth = {depth}, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = {vocab}, drop = {drop})
  data = Batches; seed = 7
  run = {steps} steps; batch = {batch} tokens; micro = {micro} tokens
  optimizer = adamw(lr = {lr}); schedule = warmup_cosine(warmup = {warmup} steps)
  clip = global_norm(max = 1.0)
  group @**.{{n1,n2,qn,kn,norm}} = (decay = 0)
  precision {{ compute = {compute} }}
  {more}
}}
"""


def random_batches(steps, rows, seq, vocab=64, seed=0):
    """Rows packed with documents of random lengths; the last token of a document predicts nothing."""
    rng = np.random.default_rng(seed)
    tok = rng.integers(0, vocab, (steps, rows, seq)).astype("<i4")
    nxt = np.roll(tok, -1, 2)
    pos, seg, w = np.zeros_like(tok), np.zeros_like(tok), np.ones(tok.shape, "<f4")
    for s in range(steps):
        for r in range(rows):
            t = doc = 0
            while t < seq:
                n = min(int(rng.integers(2, seq + 1)), seq - t)
                pos[s, r, t : t + n], seg[s, r, t : t + n], w[s, r, t + n - 1] = np.arange(n), doc, 0
                t, doc = t + n, doc + 1
    return dict(tok=tok, pos=pos, seg=seg, next=nxt, w=w)


def small(run, steps=8, rows=4, seq=16, micro=None, depth=2, drop=0, lr="3e-3", more="", name="small.lm", batches=None, vocab=64,
          compute="f32"):
    save(run.path("batches.safetensors"), batches or random_batches(steps, rows, seq, vocab))
    return run.write(name, SMALL.format(root=ROOT, depth=depth, drop=drop, lr=lr, steps=steps, warmup=min(5, steps), batch=rows * seq,
                                        micro=micro or rows * seq, more=more, vocab=vocab, compute=compute))


def on_one_cpu(what):
    """the result of a function on one processor, and so with one thread"""
    cpus = os.sched_getaffinity(0)
    if len(cpus) == 1:
        raise Skip("one processor")
    try:
        os.sched_setaffinity(0, {min(cpus)})           # child processes inherit it
        return what()
    finally:
        os.sched_setaffinity(0, cpus)


def folder_bytes(path):
    """name -> content of every file below"""
    out = {}
    for base, _, files in os.walk(path):
        for f in files:
            p = os.path.join(base, f)
            out[os.path.relpath(p, path)] = open(p, "rb").read()
    return out


def wait_for(path, process):
    """waits until a file matches the pattern, or the process has ended"""
    end = time.time() + HANG_SECONDS
    while not glob.glob(path) and process.poll() is None and time.time() < end:
        time.sleep(0.005)


def remove(path):
    shutil.rmtree(path, ignore_errors=True)


def fetch_needed(run):
    if not run.nightly:
        raise Skip("only in the nightly tests: packages are fetched from PyPI")


def cached(name, make):
    """the folder of that name outside of the tree, which make(folder) has made once"""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "lmc-test", name)
    complete = os.path.join(folder, "complete")
    if not os.path.exists(complete):
        make(folder)
        open(complete, "w").close()
    return folder


def python_with(package):
    """a Python that has this version of a package beside those of the present one"""
    def make(folder):
        subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([f"{folder}/bin/python", "-m", "pip", "install", "-q", package], check=True)
    return cached(package, make) + "/bin/python"


def module_of(run, name, version):
    """the module of a package of PyPI, in a nightly test"""
    fetch_needed(run)
    show = "import sysconfig; print(sysconfig.get_path('purelib'))"
    python = python_with(f"{name}=={version}")
    sys.path.append(subprocess.run([python, "-c", show], check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    return importlib.import_module(name)
