"""Text in bulk: every document once an epoch, whichever number of processes share the work (tests/bench/data_bench.c)."""
import os, re, subprocess

from harness import Skip, check


def test_every_document_once(run):
    bench = os.path.join(os.path.dirname(run.lmc), "data_bench")
    file = run.path("docs.jsonl")
    subprocess.run([bench, "make", file, "0.002" if run.slow else "0.008"], check=True, stdout=subprocess.DEVNULL)
    p = subprocess.run([bench, "read", file, run.path("cache"), "256"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(p.returncode == 0, p.stdout)
    for workers in (1, 2, 4):
        check(re.search(rf"  {workers} workers: .* 0 documents missing, 0 twice, .*: every one once", p.stdout), p.stdout)


def test_memory(run):
    """ten times the text takes no more memory than the text"""
    if run.slow:
        raise Skip("a sanitizer's memory is not ours")
    bench = os.path.join(os.path.dirname(run.lmc), "data_bench")
    own = []
    for size in ("0.002", "0.02"):
        subprocess.run([bench, "make", run.path("docs.jsonl"), size], check=True, stdout=subprocess.DEVNULL)
        p = subprocess.run([bench, "read", run.path("docs.jsonl"), run.path("cache"), "256"], stdout=subprocess.PIPE, text=True)
        own.append(max(int(x) for x in re.findall(r"(\d+) MB of its own", p.stdout)))
    check(own[1] <= own[0] + 16, f"{own} MB")
