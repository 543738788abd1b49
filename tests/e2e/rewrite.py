#!/usr/bin/python3
"""Rewrites the expected output of transcripts after a change of messages: tests/cli/*.txt, README.md and docs/*.md.

A line that still matches stays as it is, `...` included. A line that no longer matches becomes the most similar line of
the new output; where the old line held `...` the program says so, since the new line holds the text in full and the `...` must be put back by hand.
Read the resulting diff: it shows each message that users will see.

usage: rewrite.py [--lmc build/lmc] FILE...
"""
import argparse, difflib, os, re, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE]
sys.dont_write_bytecode = True
from harness import ROOT, Run
from test_cli import commands, fences, pattern, prepare, shell


def similar(line, candidates):
    """the candidate that is most similar to an expected line, or None"""
    score = lambda c: difflib.SequenceMatcher(None, line, c).ratio()
    best = max(candidates, key=score, default=None)
    return best if best is not None and score(best) > 0.5 else None


def merged(expected, printed, where):
    """the expected lines, those that are not in the output replaced by the most similar printed line after the last match"""
    out, at = [], 0
    for line in expected:
        if line.strip() == "...":
            out.append(line)
            continue
        found = next((i for i in range(at, len(printed)) if pattern([line]).fullmatch(printed[i] + "\n")), None)
        if found is None:
            new = similar(line, printed[at:])
            if new is None:
                print(f"{where}: nothing like this line was printed: {line}", file=sys.stderr)
                out.append(line)
                continue
            if "..." in line:
                print(f"{where}: check this line, which held `...`: {new}", file=sys.stderr)
            found = printed.index(new, at)
            line = new
        out.append(line)
        at = found + 1
    return out


def transcript_new(run, text, where):
    """the text of a transcript with its expectations brought up to date"""
    prepare(run)
    for command, expected, status in commands(text):
        printed, code = shell(run, command)
        ended = printed.rstrip("\n") + "\n" if printed.strip() else ""
        if code != status:
            print(f"{where}: exit status {code}, not {status}: $ {command}", file=sys.stderr)
        if pattern(expected).fullmatch(ended):
            continue
        lines = merged(expected, printed.splitlines(), where)
        if not pattern(lines).fullmatch(ended):
            print(f"{where}: lines come or go, edit by hand: $ {command}\n{printed}", file=sys.stderr)
        old = f"$ {command}\n" + "".join(line + "\n" for line in expected)
        new = f"$ {command}\n" + "".join(line + "\n" for line in lines)
        if old not in text:
            print(f"{where}: not found as a whole, edit by hand: $ {command}", file=sys.stderr)
        text = text.replace(old, new, 1)
    return text


def rewrite(lmc, path):
    text = open(path).read()
    blocks = [text] if path.endswith(".txt") else fences(path)
    for i, block in enumerate(blocks):
        with tempfile.TemporaryDirectory(prefix="lmc-rewrite-") as folder:
            run = Run(lmc, folder, False, False, None)
            text = text.replace(block, transcript_new(run, block, f"{os.path.relpath(path, ROOT)} {i + 1}"), 1)
    with open(path, "w") as f:
        f.write(text)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--lmc", default=os.path.join(ROOT, "build", "lmc"))
    p.add_argument("files", nargs="+")
    args = p.parse_args()
    for path in args.files:
        rewrite(os.path.abspath(args.lmc), path)


if __name__ == "__main__":
    main()
