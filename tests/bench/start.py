#!/usr/bin/env python3
"""Time of a first step less that of a later one, with an empty and with a full cache of kernels.

  tests/bench/start.py build/lmc [FILE] [--runs 11] [--set KEY=VALUE]

Each run is `lmc bench FILE --steps 3`. The first step counts from the start of the process; the later
one is the fastest of the three. Runs with an empty and with a full cache alternate. Only an idle
machine gives meaningful figures."""

import argparse
import json
import os
import statistics
import subprocess
import tempfile


def start(args, cache):
    """seconds of the first step less a later one"""
    command = [args.lmc, "bench", args.file, "--steps", "3", "--json"]
    for value in args.set:
        command += ["--set", value]
    made = subprocess.run(command, env=os.environ | {"LMC_CACHE": cache}, check=True, capture_output=True)
    figures = json.loads(made.stdout)
    return figures["first_step_s"] - figures["ms_per_step"] / 1000


def row(name, runs):
    print(f"| {name} | {min(runs):.3f} s | {statistics.median(runs):.3f} s | {max(runs):.3f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lmc")
    parser.add_argument("file", nargs="?", default="examples/bench-6m.lm")
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    empty, full = [], []
    with tempfile.TemporaryDirectory() as cache:
        start(args, cache)
        for _ in range(args.runs):
            with tempfile.TemporaryDirectory() as new:
                empty.append(start(args, new))
            full.append(start(args, cache))
    print("| cache | minimum | median | maximum |\n|---|---|---|---|")
    row("empty", empty)
    row("full", full)


if __name__ == "__main__":
    main()
