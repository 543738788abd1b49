#!/usr/bin/env python3
"""The model of examples/bench-*.lm, or GPT-2, in PyTorch on a GPU, as fast as PyTorch does it unaided: torch.compile, bf16 autocast,
scaled_dot_product_attention, fused AdamW. Prints one line of JSON: milliseconds of the best and the median step, tokens a second.

usage: torch_gpu.py [--model llama|gpt2] [--depth 24] [--d 768] [--heads 12] [--kv 4] [--e 64] [--ff 2048] [--vocab 32000] [--rows 8] [--seq 2048] [--steps 20]
"""
import argparse, json, statistics, time

import torch
import torch.nn.functional as F
from torch import nn


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * self.gain).to(x.dtype)


def rope(x, cos, sin):                      # [b, h, t, e]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, self.n1, self.n2, self.qn, self.kn = o, Norm(o.d), Norm(o.d), Norm(o.e), Norm(o.e)
        self.qkv = nn.Linear(o.d, (o.heads + 2 * o.kv) * o.e, bias=False)
        self.out = nn.Linear(o.heads * o.e, o.d, bias=False)
        self.up = nn.Linear(o.d, 2 * o.ff, bias=False)
        self.down = nn.Linear(o.ff, o.d, bias=False)

    def forward(self, x, cos, sin):
        o, (b, t, _) = self.o, x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, -1, o.e).transpose(1, 2).split((o.heads, o.kv, o.kv), 1)
        q, k = rope(self.qn(q), cos, sin), rope(self.kn(k), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=o.heads != o.kv)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed = nn.Embedding(o.vocab, o.d)
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.depth))
        self.norm = Norm(o.d)
        angle = torch.arange(o.seq)[:, None] * 10000.0 ** (-torch.arange(0, o.e, 2) / o.e)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tok, target):
        x = self.embed(tok)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.reshape(-1))


class Gpt2Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.o, self.n1, self.n2 = o, nn.LayerNorm(o.d), nn.LayerNorm(o.d)
        self.qkv, self.out = nn.Linear(o.d, 3 * o.d), nn.Linear(o.d, o.d)
        self.up, self.down = nn.Linear(o.d, 4 * o.d), nn.Linear(4 * o.d, o.d)

    def forward(self, x):
        o, (b, t, _) = self.o, x.shape
        q, k, v = (y.view(b, t, o.heads, -1).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed, self.positions = nn.Embedding(o.vocab, o.d), nn.Embedding(o.seq, o.d)
        self.layers = nn.ModuleList(Gpt2Layer(o) for _ in range(o.depth))
        self.norm = nn.LayerNorm(o.d)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tok, target):
        x = self.embed(tok) + self.positions.weight[: tok.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.embed.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.reshape(-1))


def main():
    p = argparse.ArgumentParser()
    sizes = dict(depth=24, d=768, heads=12, kv=4, e=64, ff=2048, vocab=32000, rows=8, seq=2048, steps=20)
    for name, value in sizes.items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--model", choices=("llama", "gpt2"), default="llama")
    p.add_argument("--device", default="cuda")
    p.add_argument("--eager", action="store_true", help="without torch.compile")
    o = p.parse_args()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    cuda = o.device == "cuda"
    model = dict(llama=Llama, gpt2=Gpt2)[o.model](o).to(o.device)
    decayed = [x for x in model.parameters() if x.dim() > 1]
    plain = [x for x in model.parameters() if x.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), fused=cuda)
    tok = torch.randint(o.vocab, (o.rows, o.seq + 1), device=o.device)
    loss_of = model if o.eager else torch.compile(model)

    def step():
        with torch.autocast(o.device, torch.bfloat16):
            loss = loss_of(tok[:, :-1], tok[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def timed():
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        loss = float(step())
        if cuda:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start), loss

    first = timed()[0]
    for _ in range(4):
        timed()
    times = [timed() for _ in range(o.steps)]
    best = min(t for t, _ in times)
    print(json.dumps(dict(ms_per_step=best, ms_median=statistics.median(t for t, _ in times), ms_first_step=first, tokens_per_s=1e3 * o.rows * o.seq / best,
                          loss=times[-1][1], params=sum(x.numel() for x in model.parameters()), torch=torch.__version__,
                          peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0)))


main()
