#!/usr/bin/env python3
"""Computes in PyTorch what `lmc trace` wrote, and times PyTorch's own kernels; prints one line of JSON. For scripts/gpu-check.

usage: torch_compare.py gemm|attention|llama|gpt2 TRACE [--batches FILE] [--window N]     worst relative difference of a gradient
       torch_compare.py time-gemms [[M, N, K], ...]                   TFLOP/s of forward, data and weight gradient, in bf16
       torch_compare.py time-attention [[ROWS, T, HEADS, KV, E, WINDOW], ...]   ms of forward and backward, for each backend of SDPA

References are computed in f32 without TF32, attention as gemms and a softmax. A trace must have a learning rate of 0, so that its
final parameters are the first ones.
"""
import argparse, json, math, os, sys, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import harness

torch.backends.cuda.matmul.allow_tf32 = False


def tensors(file, device):
    return {k: torch.from_numpy(x.copy()).to(device) for k, x in harness.load(file).items()}


def of(trace, prefix):
    return {k[len(prefix):]: x for k, x in trace.items() if k.startswith(prefix)}


def differences(got, want):
    """of gradients by name: norm of the difference over the norm"""
    far = {k: float((got[k].float() - want[k]).norm() / want[k].norm().clamp_min(1e-20)) for k in want}
    worst = max(far, key=far.get)
    return dict(worst=far[worst], name=worst, gradients=far)


# ---- single operations


def gemm(trace, weight, o):
    p = {k: x.bfloat16().float() for k, x in of(trace, "final.").items()}
    want = dict(left=p["r"] @ p["right"].T, right=p["left"].T @ p["r"], r=p["left"] @ p["right"])
    return differences(of(trace, "grad."), {k: x / weight for k, x in want.items()})


def visible(t, window, device):
    back = torch.arange(t, device=device)[:, None] - torch.arange(t, device=device)[None]
    return (back >= 0) & (back < window) if window else back >= 0


def head_gradients(q, k, v, do, see):
    """of one head: output and gradients"""
    scale = q.shape[-1] ** -0.5
    s = (q @ k.T * scale).masked_fill(~see, -math.inf)
    p = torch.softmax(s, -1)
    y = p @ v
    ds = p * (do @ v.T - (do * y).sum(-1, keepdim=True)) * scale
    return y, ds @ k, ds.T @ q, p.T @ do


def attention(trace, weight, o):
    p = {k: x.bfloat16().float() for k, x in of(trace, "final.").items()}
    q, do = p["q"], p["r"]
    want = {k: torch.zeros_like(p[k]) for k in ("q", "key", "val", "r")}
    see = visible(q.shape[1], o.window, q.device)
    for n in range(q.shape[0]):
        for g in range(q.shape[2]):
            for h in range(q.shape[3]):
                y, dq, dk, dv = head_gradients(q[n, :, g, h], p["key"][n, :, g], p["val"][n, :, g], do[n, :, g, h], see)
                want["r"][n, :, g, h], want["q"][n, :, g, h] = y, dq
                want["key"][n, :, g] += dk
                want["val"][n, :, g] += dv
    return differences(of(trace, "grad."), {k: x / weight for k, x in want.items()})


# ---- models


def attend(q, k, v):                        # [b, t, g, h, e], [b, s, g, e]
    s = torch.einsum("btghe,bsge->bghts", q, k) * q.shape[-1] ** -0.5
    p = torch.softmax(s.masked_fill(~visible(q.shape[1], 0, q.device), -math.inf), -1)
    return torch.einsum("bghts,bsge->btghe", p, v)


def rmsnorm(x, gain):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def rope(x, pos):
    c = x.shape[-1] // 2
    a = pos[..., None].float() * 10000.0 ** (-torch.arange(c, device=x.device) / c)
    co, si = (f(a).view(*a.shape[:2], *[1] * (x.dim() - 3), c) for f in (torch.cos, torch.sin))
    lo, hi = x.chunk(2, -1)
    return torch.cat((lo * co - hi * si, hi * co + lo * si), -1)


def llama_layer(x, pos, p):
    y = rmsnorm(x, p["n1"])
    q = rope(rmsnorm(torch.einsum("btd,dghe->btghe", y, p["attn.wq"]), p["attn.qn"]), pos)
    k = rope(rmsnorm(torch.einsum("btd,dge->btge", y, p["attn.wk"]), p["attn.kn"]), pos)
    o = attend(q, k, torch.einsum("btd,dge->btge", y, p["attn.wv"]))
    x = x + torch.einsum("btghe,ghed->btd", o, p["attn.wo"])
    y = rmsnorm(x, p["n2"])
    return x + (F.silu(y @ p["wg"]) * (y @ p["wu"])) @ p["wd"]


def gpt2_layer(x, pos, p):
    d = x.shape[-1:]
    qkv = torch.einsum("btd,dxge->xbtge", F.layer_norm(x, d, p["n1"], p["b1"]), p["wqkv"]) + p["bqkv"][:, None, None]
    o = attend(qkv[0].unsqueeze(3), qkv[1], qkv[2]).squeeze(3)
    x = x + torch.einsum("btge,ged->btd", o, p["wo"]) + p["bo"]
    z = F.layer_norm(x, d, p["n2"], p["b2"]) @ p["wu"] + p["bu"]
    gelu = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z ** 3)))
    return x + gelu @ p["wd"] + p["bd"]


def layers(x, pos, p, layer):
    for i in range(1 + max(int(k.split(".")[1]) for k in p if k.startswith("layers."))):
        x = checkpoint(layer, x, pos, of(p, f"layers.{i}."))
    return x


def llama(p, tok, pos):
    x = layers(p["embed"][tok], pos, p, llama_layer)
    return rmsnorm(x, p["norm"]) @ p["embed"].T


def gpt2(p, tok, pos):
    x = layers(p["wte"][tok] + p["wpe"][pos], pos, p, gpt2_layer)
    return F.layer_norm(x, x.shape[-1:], p["nf"], p["bf"]) @ p["wte"].T


def model(forward, trace, o):
    """loss and gradients, one row of the batch at a time"""
    device = trace["loss"].device
    p = {k: x.float().requires_grad_() for k, x in of(trace, "final.").items()}
    batch = {k: x[0] for k, x in tensors(o.batches, device).items()}
    weight, loss = float(batch["w"].sum()), 0.0
    for row in range(len(batch["tok"])):
        b = {k: x[row : row + 1] for k, x in batch.items()}
        logits = forward(p, b["tok"].long(), b["pos"].long())
        part = (F.cross_entropy(logits.flatten(0, 1), b["next"].flatten().long(), reduction="none") * b["w"].flatten()).sum() / weight
        part.backward()
        loss += float(part)
    got, want = of(trace, "grad."), {k: x.grad for k, x in p.items() if x.grad is not None}
    return dict(loss=[float(trace["loss"][0]), loss], **differences(got, want))


# ---- times


def milliseconds(call, device, seconds=0.2):
    """the median of as many calls as fit into the time"""
    times, end = [], time.time() + seconds
    call()
    while time.time() < end or len(times) < 3:
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop))
        else:
            begin = time.time()
            call()
            times.append(1e3 * (time.time() - begin))
    return sorted(times)[len(times) // 2]


def time_gemms(shapes, device):
    rows = []
    for m, n, k in shapes:
        a, b, c = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in ((m, k), (k, n), (m, n)))
        calls = dict(forward=lambda: a @ b, data=lambda: c @ b.T, weight=lambda: a.T @ c)
        rows.append(dict(shape=[m, n, k], **{name: 2e-9 * m * n * k / milliseconds(f, device) for name, f in calls.items()}))
    return rows


def sdpa_times(q, k, v, mask, backend, device):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    how = dict(attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1])
    with sdpa_kernel(getattr(SDPBackend, backend)):
        forward = lambda: F.scaled_dot_product_attention(q, k, v, **how)
        y = forward()
        do = torch.randn_like(y)
        return dict(forward=milliseconds(forward, device), backward=milliseconds(lambda: torch.autograd.grad(y, (q, k, v), do, retain_graph=True), device))


def time_attention(shapes, device):
    rows = []
    for b, t, heads, kv, e, window in shapes:
        q, k, v = (torch.randn(b, h, t, e, device=device, dtype=torch.bfloat16, requires_grad=True) for h in (heads, kv, kv))
        row = dict(shape=[b, t, heads, kv, e, window])
        for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
            try:
                row[backend] = sdpa_times(q, k, v, visible(t, window, device) if window else None, backend, device)
            except Exception as x:           # the backend does not have it: flash has no mask
                row[backend] = f"{type(x).__name__}: {str(x).splitlines()[0][:90]}"
        rows.append(row)
    return rows


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what")
    p.add_argument("subject", help="a trace, or shapes as JSON")
    p.add_argument("--batches")
    p.add_argument("--window", type=int, default=0)
    p.add_argument("--device", default="cuda")
    o = p.parse_args()
    if o.what.startswith("time-"):
        timed = dict(gemms=time_gemms, attention=time_attention)[o.what[len("time-"):]]
        print(json.dumps(timed(json.loads(o.subject), o.device)))
        return
    trace = tensors(o.subject, o.device)
    if o.what in ("llama", "gpt2"):
        print(json.dumps(model(dict(llama=llama, gpt2=gpt2)[o.what], trace, o)))
        return
    weight = float(tensors(o.batches, o.device)["w"].sum())
    print(json.dumps(dict(gemm=gemm, attention=attention)[o.what](trace, weight, o)))


main()
