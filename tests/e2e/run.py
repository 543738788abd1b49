#!/usr/bin/python3
"""Runs tests: the functions test_* of tests/e2e and tests/product, which use the whole command, and the programs that
--programs names. Prints one line for each test, then 'N passed, N failed[, N skipped]'.

The exit status is 0 if every test passed or was skipped, 1 if one failed, 2 if no test matches --only.
"""
import argparse, collections, glob, importlib, multiprocessing, os, random, signal, subprocess, sys, tempfile, time, traceback

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = [HERE, os.path.join(os.path.dirname(HERE), "product")]
sys.path[:0] = FOLDERS
sys.dont_write_bytecode = True
from harness import HANG_SECONDS, ROOT, Run, Skip, children_seconds, limits_set

MESSAGE_LINES = 30         # of a failed program's output


def program(path):
    """A test that is a program: exit status 0 is a pass."""
    def test(run):
        p = subprocess.run([path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           errors="replace", timeout=HANG_SECONDS, cwd=ROOT, preexec_fn=limits_set)
        last = "\n".join(p.stdout.splitlines()[-MESSAGE_LINES:])
        if p.returncode:
            raise AssertionError(f"exit status {p.returncode}, expected 0\n{last}")
    return test


def left_out(run):
    raise Skip("it compares numbers of code that other tests run under sanitizers")


def functions(file):
    """(printed name, name in the source, function) of each test that is a Python function, of test_`file`.py or of all files. If a
    file has SANITIZED, a set of names, its other tests are left out under sanitizers (--slow)."""
    for path in [p for f in FOLDERS for p in sorted(glob.glob(os.path.join(f, f"test_{file or '*'}.py")))]:
        module = importlib.import_module(os.path.basename(path)[:-3])
        own = [(n, getattr(module, n)) for n in vars(module) if n.startswith("test_")]
        chosen = getattr(module, "SANITIZED", None) if ARGS.slow else None
        for name, test in own + (module.cases() if hasattr(module, "cases") else []):
            short = name.removeprefix("test_")
            yield f"{module.__name__[5:]}.{short}", f"{module.__name__}.{name}", test if not chosen or short in chosen else left_out


def tests(only, programs, file):
    """The tests of which the printed name or the name in the source contains `only`."""
    for path in programs:
        if only in path:
            yield os.path.basename(path), program(os.path.abspath(path))
    for printed, source, test in functions(file):
        if only in printed or only in source:
            yield printed, test


def processor_seconds():
    return time.process_time() + children_seconds()


def run(name):
    """The verdict and the line of one run of a test, in a process of the pool."""
    start = processor_seconds()
    with tempfile.TemporaryDirectory(prefix="lmc-test-") as folder:
        try:
            TESTS[name](Run(ARGS.lmc, folder, ARGS.slow, ARGS.nightly, ARGS.target))
            return name, "passed", f"ok    {name} ({processor_seconds() - start:.1f} CPU s)"
        except Skip as e:
            return name, "skipped", f"skip  {name}: {e}"
        except Exception as e:
            what = str(e) if isinstance(e, AssertionError) else f"{type(e).__name__}: {e}"
            return name, "failed", f"FAIL  {name}: {traceback.format_exc() if ARGS.v else what}"


# Tests that take more than about 6 processor seconds, the longest first. They begin before the
# others, so that no processor idles while one ends.
LONG = """
decode_test simt_attend_test comm_test profile.ablate simt_planted_test ranks_test simt_kernel_test
shard_models_test gpu_ranks.as_ranks_on_cpus ranks.routing nvrtc_attend_test json.keys new.new_arch
gpu_ranks.graphs gpu.stash_operands moments.resume_gives_the_same_bytes sites.identity
gpu_ranks.kills gpu_ranks.split_graphs interpret_test nvrtc_builtin_test fp8.ranks gpu.packing_pays
gpu.offload levels.levels_agree gpu.scans nvrtc_test attend_kernel_test gemm_kernel_test fp8.stages
fp8.around_stages f16.gpu gpu.same_bits gpu.epilogues gpu.optimizer_states_in_8_bits
gpu_ranks.experts gpu_models_test kernel_test gpu.optimizers gpu_ranks.failed_message
gpu.memory_of_the_device
""".split()


def order():
    """The names to run, long tests first: each `--times` times; shuffled if repeated or seeded, so that tests run beside
    other tests."""
    rank = {name: i for i, name in enumerate(LONG)}
    longest_first = sorted(TESTS, key=lambda name: rank.get(name, len(LONG)))
    names = [name for name in longest_first for _ in range(ARGS.times)]
    if ARGS.times > 1 or ARGS.seed is not None:
        seed = random.randrange(1 << 32) if ARGS.seed is None else ARGS.seed
        print(f"order of seed {seed}", flush=True)
        random.Random(seed).shuffle(names)
    return names


def verdicts():
    """name -> Counter of the verdicts of its runs"""
    found = collections.defaultdict(collections.Counter)
    with multiprocessing.get_context("fork").Pool(ARGS.jobs) as pool:
        for name, verdict, line in pool.imap_unordered(run, order()):
            found[name][verdict] += 1
            if verdict == "failed" or ARGS.times == 1:
                print(line, flush=True)
    return found


def main():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)   # under nohup the processes that a test starts would ignore it
    if ARGS.nightly:
        os.environ["LM_TEST_NIGHTLY"] = "1"        # for programs
    TESTS.update(tests(ARGS.only, ARGS.programs, ARGS.file))
    if not TESTS:
        print(f"no test matches '{ARGS.only}'", file=sys.stderr)
        return 2
    count = collections.Counter()
    for name, found in verdicts().items():
        verdict = "failed" if found["failed"] else "skipped" if found["skipped"] else "passed"
        count[verdict] += 1
        if found["failed"] and found["passed"]:
            print(f"flaky {name}: failed {found['failed']} of {found.total()} runs")
    print(f"{count['passed']} passed, {count['failed']} failed" + (f", {count['skipped']} skipped" if count["skipped"] else ""))
    return count["failed"] > 0


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lmc", default=os.path.join(ROOT, "build", "lmc"), help="the command under test")
    p.add_argument("--programs", nargs="*", default=[], metavar="FILE", help="programs that are tests")
    p.add_argument("--slow", action="store_true", help="leave out what takes long; for sanitizer builds")
    p.add_argument("--nightly", action="store_true", help="every case of the tests that run only some of their cases by default")
    p.add_argument("--only", default="", metavar="TEXT", help="only tests whose printed name, or name in the source, contains TEXT")
    p.add_argument("--file", metavar="NAME", help="only tests of test_NAME.py; what the other files import need not be installed")
    p.add_argument("--target", help="the --target of models, in tests that leave it open")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="tests at a time")
    p.add_argument("--times", type=int, default=1, metavar="N", help="run each test N times in a random order, and name the flaky ones")
    p.add_argument("--seed", type=int, metavar="N", help="run in the order of this seed")
    p.add_argument("-v", action="store_true", help="whole tracebacks")
    return p.parse_args()


TESTS = {}             # by name; a process of the pool finds a test by it, as the test may be a closure
ARGS = arguments()
sys.exit(main())
