#!/usr/bin/env python3
"""Training and encoding byte pairs, beside Hugging Face's `tokenizers`: the same text, the same vocabulary, processor seconds.

usage: tokenizer_bench.py FILE [--vocab 32768] [--build build] [--encode-mb 20]

Needs `tokenizers` (tests/e2e's environment has it). The two must give the same merges and the same ids; one thread encodes, line by line.
"""
import argparse, json, os, resource, subprocess, sys, tempfile, time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

p = argparse.ArgumentParser()
p.add_argument("file")
p.add_argument("--vocab", type=int, default=32768)
p.add_argument("--build", default="build")
p.add_argument("--encode-mb", type=float, default=20)
a = p.parse_args()


def cost(who, run):
    """what run() gives, its processor seconds and its seconds"""
    before, start = resource.getrusage(who), time.time()
    result = run()
    after = resource.getrusage(who)
    return result, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.time() - start


def train_other():
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = open(a.file, encoding="utf-8", newline="").read()      # whole: `train` would cut it into lines
    t.train_from_iterator([text], trainers.BpeTrainer(vocab_size=a.vocab, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
                                                          initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    return t


def encode_other(t, lines):
    n = h = 0
    for line in lines:
        ids = t.encode(line).ids
        n += len(ids)
        for i in ids:
            h = (h * 1000003 + i) & 0xFFFFFFFFFFFFFFFF
    return n, h


with tempfile.TemporaryDirectory() as folder:
    made, part = os.path.join(folder, "tokenizer.json"), os.path.join(folder, "part.txt")
    env = dict(os.environ, LMC_CACHE=folder)
    train = [os.path.join(a.build, "lmc"), "tokenizer", "train", "-o", made, "--vocab", str(a.vocab), a.file]
    _, ours, wall = cost(resource.RUSAGE_CHILDREN, lambda: subprocess.run(train, check=True, env=env, stdout=subprocess.DEVNULL))
    other, theirs, other_wall = cost(resource.RUSAGE_SELF, train_other)
    merges = [json.load(open(made))["model"]["merges"], json.loads(other.to_str())["model"]["merges"]]
    same = [m if isinstance(m, str) else " ".join(m) for m in merges[0]] == [m if isinstance(m, str) else " ".join(m) for m in merges[1]]
    print(f"training on {os.path.getsize(a.file) / 1e6:.0f} MB, {a.vocab} tokens: {ours:.1f} s of processor ({wall:.1f} s), tokenizers {theirs:.1f} s ({other_wall:.1f} s); "
          f"merges {'the same' if same else 'DIFFER'}", flush=True)
    text = open(a.file, "rb").read(int(a.encode_mb * 1e6)).rsplit(b"\n", 1)[0]
    open(part, "wb").write(text)
    us = json.loads(subprocess.run([os.path.join(a.build, "tokenizer_bench"), made, part], check=True, capture_output=True, text=True).stdout)
    lines = text.decode().split("\n")
    reader = Tokenizer.from_file(made)
    _, python, _ = cost(resource.RUSAGE_SELF, lambda: [reader.encode(line).ids for line in lines])
    n, h = encode_other(reader, lines)
    agree = n == us["ids"] and f"{h:016x}" == us["hash"]
    print(f"encoding {len(text) / 1e6:.0f} MB: {us['mb_per_s']:.1f} MB/s, tokenizers {len(text) / 1e6 / python:.1f} MB/s; ids {'the same' if agree else 'DIFFER'}")
    sys.exit(not (same and agree))
