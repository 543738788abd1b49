#!/usr/bin/env python3
"""Runs the tests that need the whole command: test_*.py of tests/e2e and tests/product. One line a test, then
'N passed, N failed'.

usage: run.py [--lmc build/lmc] [--slow] [--only TEXT] [-v]
"""
import argparse, glob, importlib, os, sys, tempfile, time, traceback

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


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lmc", default=os.path.join(ROOT, "build", "lmc"))
    p.add_argument("--slow", action="store_true", help="leaves out what takes long; for sanitizer builds")
    p.add_argument("--only", default="", help="tests whose name contains this")
    p.add_argument("-v", action="store_true", help="whole tracebacks")
    args = p.parse_args()
    passed = failed = 0
    for name, test in tests(args.only):
        start = time.time()
        with tempfile.TemporaryDirectory(prefix="lmc-test-") as folder:
            try:
                test(Run(args.lmc, folder, args.slow))
                passed += 1
                print(f"ok    {name} ({time.time() - start:.1f} s)", flush=True)
            except Skip as e:
                print(f"skip  {name}: {e}", flush=True)
            except Exception as e:
                failed += 1
                print(f"FAIL  {name}: {traceback.format_exc() if args.v else e}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return failed > 0


sys.exit(main())
