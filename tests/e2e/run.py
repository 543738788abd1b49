#!/usr/bin/env python3
"""Runs the tests that need the whole command: test_*.py of tests/e2e and tests/product. One line a test, then
'N passed, N failed'.

usage: run.py [--lmc build/lmc] [--slow] [--nightly] [--target TARGET] [--only TEXT] [--jobs N] [-v]
"""
import argparse, glob, importlib, multiprocessing, os, signal, sys, tempfile, time, traceback

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = [HERE, os.path.join(os.path.dirname(HERE), "product")]
sys.path[:0] = FOLDERS
sys.dont_write_bytecode = True
from harness import ROOT, Run, Skip


def tests(only):
    for path in [p for f in FOLDERS for p in sorted(glob.glob(os.path.join(f, "test_*.py")))]:
        module = importlib.import_module(os.path.basename(path)[:-3])
        cases = module.cases() if hasattr(module, "cases") else []
        own = [(n, getattr(module, n)) for n in vars(module) if n.startswith("test_")]
        for name, test in own + cases:
            if only in f"{module.__name__}.{name}":
                yield f"{module.__name__[5:]}.{name.removeprefix('test_')}", test


def run(job):
    """A test's verdict and its line."""
    name, args = job
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="lmc-test-") as folder:
        try:
            TESTS[name](Run(args.lmc, folder, args.slow, args.nightly, args.target))
            return "passed", f"ok    {name} ({time.time() - start:.1f} s)"
        except Skip as e:
            return "skipped", f"skip  {name}: {e}"
        except Exception as e:
            return "failed", f"FAIL  {name}: {traceback.format_exc() if args.v else e}"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lmc", default=os.path.join(ROOT, "build", "lmc"))
    p.add_argument("--slow", action="store_true", help="leaves out what takes long; for sanitizer builds")
    p.add_argument("--nightly", action="store_true", help="every case of tests that else take some")
    p.add_argument("--only", default="", help="tests whose name contains this")
    p.add_argument("--target", help="what models run on, in tests that leave it open")
    p.add_argument("--jobs", type=int, default=1, help="tests at a time")
    p.add_argument("-v", action="store_true", help="whole tracebacks")
    args = p.parse_args()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)   # under nohup, what it starts would ignore it too
    TESTS.update(tests(args.only))
    count = dict.fromkeys(("passed", "failed", "skipped"), 0)
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for verdict, line in pool.imap_unordered(run, [(name, args) for name in TESTS]):
            count[verdict] += 1
            print(line, flush=True)
    print(f"{count['passed']} passed, {count['failed']} failed")
    return count["failed"] > 0


TESTS = {}             # by name; a test is found by it in the process that runs it, as it may be a closure
sys.exit(main())
