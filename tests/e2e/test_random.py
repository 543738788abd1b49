"""Models drawn at random (tests/random), written in the language and in PyTorch at once: the same losses, gradients, weights and
continuation. --nightly draws many."""
import contextlib, io, sys

from harness import ROOT, check
from test_reference import case_check

SANITIZER_BUILD = set()
BOTH_BUILDS = {"drawn0"}
sys.path[:0] = [f"{ROOT}/tests/models", f"{ROOT}/tests/random"]


def seed_check(run, seed, *options):
    import generate, model
    folder = run.path(f"drawn{seed}")
    model.Model(seed).write(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            generate.run(folder)
    except generate.Tie:                    # two tokens of equal probability: greedy decoding is ambiguous
        return 0
    try:
        case_check(run, folder, bars=BARS, options=options)
    except AssertionError as e:
        raise AssertionError(f"seed {seed}: {e}") from None
    return 1


BARS = {"logits": 1e-5, "grad": 3e-5, "final": 1e-4}


def cases():
    """one test per seed, so that they run in parallel; each disables another pass"""
    return [(f"drawn{k}", lambda run, k=k, p=p: part_check(run, k, p)) for k, p in enumerate(("", "fuse", "attend", "tile_vocab", "cse,licm", "fuse_loops"))]


def part_check(run, k, left_out):
    count = 60 if run.nightly else 1 if run.slow else 2
    options = ("--disable-pass", left_out) if left_out else ()
    check(sum(seed_check(run, 1000 * k + i, *options) for i in range(count)), "every seed has a tie")
