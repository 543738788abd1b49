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


def part_of(module, names):
    """Those of a file's tests that the build of --part runs: the sanitizer build runs all, unless the file has sets of names.
    PLAIN_BUILD are tests of the plain build, BOTH_BUILDS of both; of a file with SANITIZER_BUILD, the plain build runs the others.
    Without --part all tests run, also where the files that some of them read are missing, as in a copy for gpu-check."""
    if not ARGS.part:
        return names
    plain, both = getattr(module, "PLAIN_BUILD", set()), getattr(module, "BOTH_BUILDS", set())
    sanitized = getattr(module, "SANITIZER_BUILD", names - plain)
    unknown = (plain | both | sanitized) - names
    if unknown:
        sys.exit(f"{module.__file__}: the sets name no test: {', '.join(sorted(unknown))}")
    return names - sanitized | both if ARGS.part == "plain" else sanitized - plain | both


def functions(file):
    """(printed name, name in the source, function) of each test that is a Python function, of test_`file`.py or of all files."""
    for path in [p for f in FOLDERS for p in sorted(glob.glob(os.path.join(f, f"test_{file or '*'}.py")))]:
        module = importlib.import_module(os.path.basename(path)[:-3])
        own = [(n, getattr(module, n)) for n in vars(module) if n.startswith("test_")]
        every = [(name.removeprefix("test_"), name, test) for name, test in own + (module.cases() if hasattr(module, "cases") else [])]
        chosen = part_of(module, {short for short, _, _ in every})
        for short, name, test in every:
            if short in chosen:
                yield f"{module.__name__[5:]}.{short}", f"{module.__name__}.{name}", test


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


# Tests that take more than about 5 processor seconds, the longest first. They begin before the
# others, so that no processor idles while one ends.
LONG = """
comm_test simt_attend_test profile.ablate decode_test simt_kernel_test gpu_models_test ranks_test
shard_models_test gpu.scans ranks.routing simt_gemm_test json.keys gpu_ranks.as_ranks_on_cpus
nvrtc_attend_test new.new_arch ranks.fewer_ranks interpret_test gpu.stash_operands
gpu.allocation_fails scan.chunks gpu_ranks.split_graphs gpu_ranks.graphs
moments.resume_gives_the_same_bytes simt_planted_test passes.tile_rows fp8.ranks tile_vocab_test
sites.identity gpu.offload gemm_kernel_test ranks.context_parallel epilogue_test attend_kernel_test
op_grad_test nvrtc_test gpu_ranks.kills gpu.packing_pays fp8.stages zero.stages levels.levels_agree
kernel_test shard_test pipeline.as_one_process fp8.around_stages nvrtc_builtin_test gpu.same_bits
gpu.epilogues ranks.kills recipes.files aarch64.training_bf16 dsl_bad_test ranks.ring zoo.zoo.t5
ranks.adapters gpu.memory_of_the_device gpu_ranks.failed_message f16.gpu lookahead.zoo
gpu.optimizers gpu.optimizer_states_in_8_bits gpu_ranks.experts
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
    p.add_argument("--part", choices=("plain", "sanitized"), help="only the functions that this build runs by default: see part_of")
    p.add_argument("--slow", action="store_true", help="the command is of a sanitizer build: fewer cases, no limits of memory")
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
