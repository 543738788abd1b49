"""Unigram and WordPiece vocabularies, and SentencePiece's own files, give the ids and texts of the libraries that wrote them."""
import json, os, subprocess

from harness import check
from test_hf import python

SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers_side.py")


def lines(run, verb, spec, text):
    p = subprocess.run([run.lmc, "tokenizer", verb, "--lines", spec], input=text.encode(), capture_output=True, timeout=300)
    check(p.returncode == 0, f"{verb} {spec}: {p.stderr.decode()}")
    return p.stdout.decode(errors="replace").split("\n")[:-1]


def test_tokenizers(run):
    count = 2000 if run.nightly else 60 if run.slow else 200
    p = subprocess.run([python(), SIDE, run.folder, str(count)], capture_output=True, text=True, timeout=600)
    check(p.returncode == 0, p.stderr[-2000:])
    reference = json.loads(p.stdout)
    for name, case in reference["cases"].items():
        got = lines(run, "encode", case["spec"], "".join(x + "\n" for x in reference["texts"]))
        check(len(got) == len(reference["texts"]), f"{name}: {len(got)} lines for {len(reference['texts'])} texts")
        for text, ids, out in zip(reference["texts"], case["ids"], got):
            check(list(map(int, out.split())) == ids, f"{name}: {text!r}: {out.split()}, not {ids}")
        back = lines(run, "decode", case["spec"], "".join(" ".join(map(str, x)) + "\n" for x in case["ids"]))
        for text, want, out in zip(reference["texts"], case["back"], back):
            check(out == want or "\ufffd" in want, f"{name}: {text!r} is decoded to {out!r}, not {want!r}")
