#!/usr/bin/env python3
"""Runs `lmc trace` and `lmc generate` on the cases here and compares the results with expected.*, within float32's precision.

usage: compare.py LMC [CASE…] [-- OPTION…]      arguments after -- are passed to `lmc trace`
Loss 2e-6 and gradient norm 1e-5 relative in each step; logits and every gradient 1e-5, final weights 1e-4 norm-wise.
"""
import json, math, os, struct, subprocess, sys, tempfile
import array

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = dict(loss=2e-6, grad_norm=1e-5, logits=1e-5, grad=1e-5, final=1e-4)


def load(path):
    raw = open(path, "rb").read()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for k, m in json.loads(raw[8: 8 + n]).items():
        if k != "__metadata__":
            a, b = m["data_offsets"]
            out[k] = array.array({"F32": "f", "F64": "d"}[m["dtype"]], raw[8 + n + a: 8 + n + b])
    return out


def distance(got, want):
    if len(got) != len(want):
        return math.inf
    norm = math.sqrt(sum(x * x for x in want))
    off = math.sqrt(sum((x - y) ** 2 for x, y in zip(got, want)))
    return off / norm if norm > 1e-9 else off


def trace(lmc, folder, options):
    js, want = json.load(open(folder + "/expected.json")), load(folder + "/expected.safetensors")
    with tempfile.TemporaryDirectory() as tmp:
        out = tmp + "/trace.safetensors"
        r = subprocess.run([lmc, "trace", folder + "/reference.lm", "--recipe", "Reference", "--names", "hf", "--out", out,
                            "--steps", str(len(js["loss"])), *options], capture_output=True, text=True)
        if r.returncode:
            return {}, f"exit status {r.returncode}\n{r.stderr[-2000:]}"
        got = load(out)
    worst, where = {}, {}
    for key in "loss", "grad_norm":
        worst[key] = max(abs(g / w - 1) for g, w in zip(got[key], js[key]))
    for name, w in want.items():
        kind = name.split(".")[0]
        d = distance(got[name], w) if name in got else math.inf
        if not d <= worst.get(kind, -1):
            worst[kind], where[kind] = d, name
    bad = [f"{k} {v:.1e} {where.get(k, '')}" for k, v in worst.items() if not v <= LIMIT[k]]
    return worst, "; ".join(bad)


def generate(lmc, folder):
    js = json.load(open(folder + "/expected.json"))
    if "initial" not in js:
        return ""
    g = js["initial"]
    r = subprocess.run([lmc, "generate", folder + "/reference.lm", "--recipe", "Reference", "--ids", "--prompt-ids",
                        ",".join(map(str, g["prompt"])), "-n", str(len(g["continuation"])), "--temperature", "0"],
                       capture_output=True, text=True)
    if r.returncode:
        return f"generate: exit status {r.returncode}\n{r.stderr[-2000:]}"
    got = [int(x) for x in r.stdout.replace(",", " ").split()]
    return "" if got[-len(g["continuation"]):] == g["continuation"] else f"generate: {got}, not {g['continuation']}"


def main():
    args = sys.argv[1:]
    options = args[args.index("--") + 1:] if "--" in args else []
    args = args[: args.index("--")] if "--" in args else args
    cases = args[1:] or sorted(d for d in os.listdir(HERE) if os.path.exists(f"{HERE}/{d}/expected.json"))
    failed = 0
    for c in cases:
        worst, bad = trace(args[0], f"{HERE}/{c}", options)
        bad = "; ".join(x for x in (bad, generate(args[0], f"{HERE}/{c}")) if x)
        failed += bool(bad)
        print(f"{c:12} {'FAILED: ' + bad if bad else 'ok'}   " + " ".join(f"{k} {v:.0e}" for k, v in worst.items()), flush=True)
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
