"""SentencePiece-style vocabularies (byte_fallback, U+2581 for spaces) give the ids of Hugging Face's tokenizers."""
import json, os, subprocess

from harness import check
from test_hf import python

SANITIZER_BUILD = set()
SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sentencepiece_side.py")


def piped(run, verb, spec, text):
    """passes bytes, so that line ends are not converted"""
    p = subprocess.run([run.lmc, "tokenizer", verb, spec], input=text.encode(), capture_output=True, timeout=60)
    check(p.returncode == 0, f"{verb} {spec}: {p.stderr.decode()}")
    return p.stdout.decode(errors="replace")


def test_sentencepiece(run):
    p = subprocess.run([python(), SIDE, run.folder], capture_output=True, text=True, timeout=600)
    check(p.returncode == 0, p.stderr[-2000:])
    reference = json.loads(p.stdout)
    for name, case in reference["cases"].items():
        spec = f'bpe("{run.path(name)}.json")'
        rows = list(zip(reference["texts"], case["ids"], case["back"]))
        for text, ids, back in rows:
            out = piped(run, "encode", spec, text)
            check(list(map(int, out.split())) == ids, f"{name}: {text!r}: {out.split()}, not {ids}")
            if "\ufffd" in back or (name.startswith("metaspace") and "<0x" in back):
                continue   # bytes are bytes here, whether they are characters or not, and with every decoder
            out = piped(run, "decode", spec, " ".join(map(str, ids)))
            check(out[:-1] == back, f"{name}: {text!r} comes back as {out!r}, not {back!r}")
