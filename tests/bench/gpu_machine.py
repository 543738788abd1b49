"""Programs that scripts/gpu-check runs: where they are, their environment, their time, the log."""
import concurrent.futures, contextlib, json, os, shutil, signal, statistics, subprocess, tarfile, tempfile, threading, time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACK = os.path.join(ROOT, "build", "gpu-check")
ARCHIVE = os.path.join(PACK, "pack.tar.gz")
ALONE = 20                              # seconds of a case in its own process
LEAST = 2                               # with fewer seconds left nothing is started
LOAD = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "clocks_throttle_reasons.active")


def nvidia_folders(python):
    """of the libraries that come with PyTorch, where the toolkit's are not found by themselves"""
    code = "import nvidia, glob; print(':'.join(d for p in nvidia.__path__ for d in glob.glob(p + '/*/lib')))"
    p = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return p.stdout.strip() if p.returncode == 0 else ""


def json_in(code, text):
    """the first JSON object or list that begins a line of a program's output; None: it failed, or there is none"""
    for at in (i for i in range(len(text)) if text[i] in "{[" and (not i or text[i - 1] == "\n")):
        with contextlib.suppress(ValueError):           # a warning may begin so, too
            return json.JSONDecoder().raw_decode(text, at)[0] if code == 0 else None
    return None


def number_in(text):
    """None for what nvidia-smi does not know: [N/A]"""
    try:
        return float(text)
    except ValueError:
        return None


class Stopped(BaseException):
    """by a signal"""


class Machine:
    """The programs, their environment and the log."""

    def __init__(self, args, part):
        self.args, self.fake, self.end = args, args.fake, time.time()
        self.python, self.children, self.stopped = {}, set(), False
        self.processes = 1          # at a time on the GPU, of cases
        self.out = os.environ.get("OUT") or os.path.join(PACK, "out")
        os.makedirs(self.out, exist_ok=True)
        self.log, self.lock = open(os.path.join(self.out, f"gpu-check-{part}.log"), "w"), threading.Lock()
        self.work = tempfile.mkdtemp(prefix="gpu-check-")
        self.bin = args.build if os.path.exists(os.path.join(args.build, "lmc")) else self.unpacked()
        libraries = [os.path.join(self.bin, "lib"), args.fake or nvidia_folders(args.python), os.environ.get("LD_LIBRARY_PATH", "")]
        self.env = {**os.environ, "LD_LIBRARY_PATH": ":".join(p for p in libraries if p), "LMC_CACHE": os.path.join(self.work, "cache")}
        if not os.access("/usr/bin/cc", os.X_OK):
            self.env.setdefault("LMC_CC", shutil.which("gcc") or shutil.which("clang") or "cc")

    def unpacked(self):
        """what a machine without a build has alone"""
        folder = os.path.join(PACK, "unpacked")
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder)
        return folder

    def program(self, name):
        return os.path.join(self.bin, name)

    def tool(self, name):
        """its path, None without it"""
        if self.fake:
            path = os.path.join(ROOT, "tests", "cuda", "fake", name)
            return path if os.path.exists(path) else None
        return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer:/opt/nvidia/bin")

    def say(self, text):
        with self.lock:
            self.log.write(text)
            self.log.flush()

    def left(self):
        return None if self.fake and not self.args.seconds else self.end - time.time()      # the fakes measure nothing

    def run(self, *command, most=300, env=None):
        """(exit status, output), 124 when the time is over; all of it in the log"""
        line, left = " ".join(map(str, command)), self.left()
        if self.stopped or left is not None and left < LEAST:
            self.say(f"$ {line}\nnot started: the time is over\n")
            return 124, "not started: the time is over\n"
        self.say(f"begins: {line}\n")
        out, name = tempfile.mkstemp(dir=self.work)
        code, note = -signal.SIGKILL, "\nended by a signal\n"
        try:
            p = subprocess.Popen([str(c) for c in command], cwd=ROOT, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=subprocess.STDOUT, start_new_session=True)
            code, note = self.ended(p, None if left is None else min(most, left))
        except OSError as e:
            code, note = 127, f"{command[0]}: {e.strerror}\n"
        finally:                                    # also if a signal ends all
            os.close(out)
            with open(name, errors="replace") as f:
                text = f.read() + note
            os.remove(name)
            self.say(f"$ {line}\n{text}[{code}]\n")
        return code, text

    def ended(self, p, seconds):
        """(exit status, a note) of a process, which is killed when its time is over"""
        self.children.add(p)
        if self.stopped:
            self.kill(p)
        try:
            return p.wait(seconds), ""
        except subprocess.TimeoutExpired:
            self.kill(p)
        finally:
            self.children.discard(p)
        try:
            p.wait(5)
        except subprocess.TimeoutExpired:           # inside of the driver
            return 124, f"\nnot done in {seconds:.0f} s, and does not end when killed\n"
        return 124, f"\nnot done in {seconds:.0f} s\n"

    def kill(self, p):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(p.pid, signal.SIGKILL)        # and its children

    def stop(self, number, frame):
        """a signal: ends all programs, so that the table and the files come out"""
        if not self.stopped:
            self.stopped = True
            for p in list(self.children):
                self.kill(p)
            raise Stopped(signal.Signals(number).name)

    def lmc(self, *args, **how):
        return self.run(self.program("lmc"), *args, **how)

    def lmc_json(self, *args, **how):
        return json_in(*self.lmc(*args, "--target", "cuda", "--json", **how))

    def torch(self, script, *args, **how):
        """without our libraries"""
        own = {"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}
        return json_in(*self.run(self.args.python, f"tests/bench/{script}.py", *args, env=own, **how))

    def case(self, program, *args):
        """None if it passes, else its output; a case that hangs runs again so that the kernel's wait is named"""
        code, text = self.run(self.program(program), *args, most=ALONE, env={"LMC_CUDA_SYNC": "1"})
        if code == 124 and (self.left() is None or self.left() > LEAST):
            code, text = self.run(self.program(program), *args, most=ALONE, env={"LMC_CUDA_CHECK": "1"})
            text += "\nit hangs"
        lines = [line for line in text.strip().splitlines() if line.strip()]
        return None if code == 0 else f"{' '.join(args)}: {' / '.join(lines[-3:])[:400] or f'exit status {code}'}"

    def cases(self, jobs):
        """the output of failing cases; each is (program, arguments…)"""
        with concurrent.futures.ThreadPoolExecutor(self.processes) as pool:
            return [x for x in pool.map(lambda job: self.case(*job), jobs) if x]

    def case_names(self, program):
        code, text = self.run(self.program(program), "--list")
        return text.splitlines() if code == 0 else []

    @contextlib.contextmanager
    def load(self):
        """samples clocks and power while something runs; a dict that is filled in at the end"""
        smi, out = self.tool("nvidia-smi"), {}
        if not smi:
            yield out
            return
        file = os.path.join(self.work, "load")
        with open(file, "w") as f:
            p = subprocess.Popen([smi, "--query-gpu=" + ",".join(LOAD), "--format=csv,noheader,nounits", "-lms", "250"], stdout=f, stderr=subprocess.DEVNULL, start_new_session=True)
        self.children.add(p)
        try:
            yield out
        finally:
            self.kill(p)
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(5)
            self.children.discard(p)
            rows = [line.strip().split(", ") for line in open(file, errors="replace")]
            rows = [[*map(number_in, r[:4]), r[4]] for r in rows if len(r) == len(LOAD)]
            busy = sorted((r for r in rows if None not in r), key=lambda r: -r[2])[: max(1, len(rows) // 4)]
            out.update({n: statistics.median(r[i] for r in busy) for i, n in enumerate(LOAD[:4]) if busy})
            out["throttled"] = sorted({r[4] for r in busy})
