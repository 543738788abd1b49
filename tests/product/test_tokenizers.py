"""Unigram and WordPiece vocabularies, and SentencePiece's own files, give the ids and texts of the libraries that wrote them."""
import json, os, subprocess

from harness import check
from test_hf import python

BOTH_BUILDS = {"tokenizers"}
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


def test_tokenizers_trained(run):
    """a unigram vocabulary that lmc trains encodes its text in no more tokens than SentencePiece's of the same size, and with the ids of
    Hugging Face's tokenizers; the text comes back"""
    whole = open("data/bible.txt").read()
    text, made = run.write("text.txt", whole[: whole.index("\n", 200_000)]), run.path("made.json")
    out = run("tokenizer", "train", "--kind", "unigram", "-o", made, "--vocab", 1000, text)
    check("1000 tokens" in out and f'unigram("{made}")' in out, out)
    p = subprocess.run([python(), SIDE, "compress", text, "1000", made], capture_output=True, text=True, timeout=600)
    check(p.returncode == 0, p.stderr[-2000:])
    found = json.loads(p.stdout)
    check(found["ours"] <= found["theirs"], f"{found['ours']} tokens, SentencePiece {found['theirs']}")
    ids = lines(run, "encode", f'unigram("{made}")', open(text).read())
    check(sum(len(x.split()) for x in ids) == found["ours"], "another number of tokens than Hugging Face's")
    back = lines(run, "decode", f'unigram("{made}")', "\n".join(ids) + "\n")
    check("\n".join(back) == open(text).read(), "another text comes back")
