"""Every fuzz target on its seeds and some thousand changes of them; scripts/fuzz runs them for long, under libFuzzer."""
import glob, os, subprocess

from harness import ROOT, check

PROGRAMS = ("tests/dsl/bad", "tests/dsl/bad-semantic", "tests/dsl/fmt", "examples/*.lm", "stdlib/*.lm")
SEEDS = {"lm": PROGRAMS, "check": PROGRAMS, "lmir": ("tests/ir/*.lmir", "tests/passes/*.lmir")}
RUNS = {"check": 1500, "tokenizer": 3000, "lmir": 3000, "plan": 1000, "sealed": 600}


def seeds(target):
    return [p for s in SEEDS.get(target, (f"tests/fuzz/seeds/{target}",)) for p in sorted(glob.glob(os.path.join(ROOT, s)))]


def fuzz(target):
    def test(run):
        runs = RUNS.get(target, 2000) * (20 if run.nightly else 1) // (4 if run.slow else 1)
        p = subprocess.run([os.path.join(os.path.dirname(run.lmc), f"{target}_fuzz"), f"-runs={runs}", *seeds(target)],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
        check(p.returncode == 0, f"exit status {p.returncode}: {p.stderr[-4000:]}")
    return test


def cases():
    targets = sorted(os.path.basename(p).removesuffix("_fuzz.c") for p in glob.glob(f"{ROOT}/tests/fuzz/*_fuzz.c"))
    return [(f"test_fuzz_{t}", fuzz(t)) for t in targets]
