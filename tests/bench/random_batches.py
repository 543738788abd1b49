#!/usr/bin/env python3
"""Writes finished batches of random tokens, one document a row: random_batches.py OUT STEPS ROWS SEQ VOCAB [SEED]

The batches of examples/bench-6m.lm, bench-124m.lm and bench-180m.lm are
  random_batches.py examples/bench-6m.safetensors 1 32 256 4096
  random_batches.py examples/bench-124m.safetensors 1 8 512 32000
  random_batches.py examples/bench-180m.safetensors 1 8 2048 32000
"""
import array, json, random, struct, sys

out, steps, rows, seq, vocab = sys.argv[1], *map(int, sys.argv[2:6])
rng = random.Random(int(sys.argv[6]) if len(sys.argv) > 6 else 0)
n = steps * rows
ids = [[rng.randrange(vocab) for _ in range(seq + 1)] for _ in range(n)]
columns = {
    "next": ("I32", array.array("i", [t for row in ids for t in row[1:]])),
    "pos": ("I32", array.array("i", list(range(seq)) * n)),
    "seg": ("I32", array.array("i", [0] * (n * seq))),
    "tok": ("I32", array.array("i", [t for row in ids for t in row[:-1]])),
    "w": ("F32", array.array("f", [1.0] * (n * seq))),
}
header, at = {}, 0
for name, (dtype, data) in columns.items():
    size = len(data) * 4
    header[name] = {"dtype": dtype, "shape": [steps, rows, seq], "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(out, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for _, data in columns.values():
        f.write(data.tobytes())
