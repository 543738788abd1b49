#!/usr/bin/env python3
"""The models of examples/bench-*.lm in PyTorch 2, beside `lmc bench`: the same batch, threads and optimizer, steps in turn.

usage: torch_bench.py 6m|124m --compute f32|bf16 [--lmc build/lmc] [--rounds N] [--threads N] [--eager]

Prints one line of JSON. --compute holds for both sides, whatever `precision.compute` is by default; each reports the type that it
used, and another one than asked for is an error. A round is one `lmc bench` of one timed step after a warm one, then one step here; the best of each counts.
Needs PyTorch 2 (tests/bench/compare.sh says how to get it); the model is compiled by torch.compile, attention is its
scaled_dot_product_attention, AdamW is fused; bf16 is autocast.
"""
import argparse, json, os, subprocess, sys, time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import ROOT, load

SIZES = {"6m": dict(depth=6, d=256, ff=768, heads=8, kv=4, e=32, vocab=4096),
         "124m": dict(depth=12, d=768, ff=2048, heads=12, kv=4, e=64, vocab=32000)}


def linear(rows, cols):
    x = nn.Linear(rows, cols, bias=False)
    nn.init.normal_(x.weight, std=rows**-0.5)
    return x


def rope(x, cos, sin):
    """x [b, h, t, e]: element i is paired with element i + e/2"""
    lo, hi = x.chunk(2, -1)
    return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin), -1)


class Layer(nn.Module):
    def __init__(self, d, ff, heads, kv, e):
        super().__init__()
        self.heads, self.kv, self.e = heads, kv, e
        self.wq, self.wk, self.wv, self.wo = linear(d, heads * e), linear(d, kv * e), linear(d, kv * e), linear(heads * e, d)
        self.wg, self.wu, self.wd = linear(d, ff), linear(d, ff), linear(ff, d)
        self.n1, self.n2, self.qn, self.kn = nn.RMSNorm(d, 1e-6), nn.RMSNorm(d, 1e-6), nn.RMSNorm(e, 1e-6), nn.RMSNorm(e, 1e-6)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        y = self.n1(x)
        q = rope(self.qn(self.wq(y).view(b, t, self.heads, self.e)).transpose(1, 2), cos, sin)
        k = rope(self.kn(self.wk(y).view(b, t, self.kv, self.e)).transpose(1, 2), cos, sin)
        v = self.wv(y).view(b, t, self.kv, self.e).transpose(1, 2)
        o = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        x = x + self.wo(o.transpose(1, 2).reshape(b, t, -1))
        y = self.n2(x)
        return x + self.wd(F.silu(self.wg(y)) * self.wu(y))


class Llama(nn.Module):
    def __init__(self, depth, d, ff, heads, kv, e, vocab, t):
        super().__init__()
        self.embed, self.norm = nn.Embedding(vocab, d), nn.RMSNorm(d, 1e-6)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(d, ff, heads, kv, e) for _ in range(depth))
        angle = torch.outer(torch.arange(t).float(), 10000.0 ** (-2 * torch.arange(e // 2) / e))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def loss(self, tok, nxt):
        x = self.embed(tok)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), nxt.flatten())


class Trainer:
    def __init__(self, size, batch, bf16, eager):
        torch.set_float32_matmul_precision("highest")
        torch.manual_seed(1)
        self.tok, self.nxt = (torch.from_numpy(np.array(batch[c][0])).long() for c in ("tok", "next"))
        self.model, self.bf16 = Llama(**size, t=self.tok.shape[1]), bf16
        plain = [p for p in self.model.parameters() if p.ndim < 2]
        heavy = [p for p in self.model.parameters() if p.ndim > 1]
        self.optimizer = torch.optim.AdamW([{"params": heavy, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0}], lr=1e-3,
                                           betas=(0.9, 0.95), fused=True)
        self.loss = self.model.loss if eager else torch.compile(self.model.loss)

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16, enabled=self.bf16)

    def compute(self):
        """the type of the GEMMs' results"""
        with torch.no_grad(), self.autocast():
            dtype = self.model.layers[0].wq(self.model.embed(self.tok[:1])).dtype
        return {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]

    def step(self):
        """seconds, loss"""
        start = time.perf_counter()
        with self.autocast():
            loss = self.loss(self.tok, self.nxt)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, loss.item()


def lmc_bench(args, threads):
    command = [args.lmc, "bench", f"{ROOT}/examples/bench-{args.model}.lm", "--steps", "1", "--threads", str(threads), "--json",
               "--set", f"precision.compute = {args.compute}"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", choices=SIZES)
    p.add_argument("--lmc", default=f"{ROOT}/build/lmc")
    p.add_argument("--compute", choices=("f32", "bf16"), required=True)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--eager", action="store_true", help="without torch.compile")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    trainer = Trainer(SIZES[args.model], load(f"{ROOT}/examples/bench-{args.model}.safetensors"), args.compute == "bf16", args.eager)
    started, loss = trainer.step()
    theirs, ours = [], []
    for _ in range(args.rounds):
        ours.append(lmc_bench(args, args.threads))
        theirs.append(trainer.step()[0])
    params = sum(x.numel() for x in trainer.model.parameters())
    best = min(ours, key=lambda x: x["ms_per_step"])
    if params != best["params"]:
        sys.exit(f"the models differ: {params} parameters and {best['params']}")
    used = {"lmc": best["compute"], "torch": trainer.compute()}
    if set(used.values()) != {args.compute}:
        sys.exit(f"asked for {args.compute}, used {used}")
    tokens = trainer.tok.numel()
    print(json.dumps({"model": args.model, "compute": args.compute, "computed_in": used, "threads": args.threads, "torch": torch.__version__,
                      "torch_compile": not args.eager, "torch_first_s": round(started, 2), "torch_loss": round(loss, 4),
                      "torch_tokens_per_s": round(tokens / min(theirs), 1), "lmc_tokens_per_s": best["tokens_per_s"],
                      "lmc_over_torch": round(best["tokens_per_s"] * min(theirs) / tokens, 3), "lmc": best}))


main()
