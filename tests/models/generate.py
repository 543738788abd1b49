#!/usr/bin/env python3
"""Writes weights, batches and expected results of the cases here, computed in float64 by PyTorch from each case's model.py.

usage: generate.py [CASE…]        (all cases without an argument; needs Debian's python3-torch and nothing else)

model.py knows nothing of the language. It gives
  params(P)                    calls P(name, *shape, std=…) or P(name, *shape, fill=…) for every tensor, by its foreign name
  logits(W, tok, pos, seg)     W[name]; int64 [B, T] each -> [B, T, vocab]
  loss(W, bt)                  optional: (sum, weight) of one micro-batch; else the weighted cross-entropy
  STATES, after_step(W)        optional: a regular expression of the tensors that the optimizer does not update, and their next values,
                               computed in place after each step
  VOCAB; B, T, STEPS, MICRO (rows of a micro-batch), NO_DECAY (regular expression), … where they differ from the values below
A parameter starts near its value, never at it. The last row of a batch ends in padding (seg -1, w 0).
"""
import importlib.util, json, math, os, re, struct, sys
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
torch.set_default_dtype(torch.float64)
DEFAULT = dict(B=4, T=16, MICRO=2, STEPS=5, LR=3e-3, BETAS=(0.9, 0.95), EPS=1e-6, DECAY=0.1, CLIP=1.0, WARMUP=2, FLOOR=0.1,
               NO_DECAY="$^", STATES="$^")


def save(path, tensors):
    names = {torch.float32: "F32", torch.int32: "I32"}
    head, off = {}, 0
    for n, t in tensors.items():
        size = t.numel() * t.element_size()
        head[n] = {"dtype": names[t.dtype], "shape": list(t.shape), "data_offsets": [off, off + size]}
        off += size
    h = json.dumps(head, separators=(",", ":")).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h)) + h + b"".join(t.contiguous().numpy().tobytes() for t in tensors.values()))


def batches(c):
    """[STEPS, B, T] columns of packed rows: documents of uneven length, learnable text (the next token follows a rule)"""
    n, rows, T = c["STEPS"], c["B"], c["T"]
    tok, pos, seg, nxt = (torch.zeros(n, rows, T, dtype=torch.int64) for _ in range(4))
    w = torch.zeros(n, rows, T)
    for s in range(n):
        for r in range(rows):
            t, doc = 0, 0
            end = T - (T // 5 if r == rows - 1 else 0)
            while t < end:
                m = min(int(torch.randint(3, T + 1, ())), end - t)
                text = [int(torch.randint(0, c["VOCAB"], ()))]
                for _ in range(m):
                    jump = int(torch.randint(0, 4, ())) == 0
                    text.append(int(torch.randint(0, c["VOCAB"], ())) if jump else (3 * text[-1] + 1) % c["VOCAB"])
                for j in range(m):
                    tok[s, r, t], pos[s, r, t], seg[s, r, t] = text[j], j, doc
                    nxt[s, r, t], w[s, r, t] = text[j + 1], float(j + 1 < m)
                    t += 1
                doc += 1
            for j in range(t, T):
                pos[s, r, j], seg[s, r, j] = j - t, -1
    return dict(tok=tok, pos=pos, seg=seg, next=nxt, w=w)


def rate(c, k):
    if k <= c["WARMUP"]:
        return c["LR"] * k / c["WARMUP"]
    x = (k - c["WARMUP"]) / max(1, c["STEPS"] - c["WARMUP"])
    return c["LR"] * (c["FLOOR"] + (1 - c["FLOOR"]) * 0.5 * (1 + math.cos(math.pi * x)))


class Tie(Exception):
    """raised if the greedy token is ambiguous"""


def greedy(case, model, W, D, c):
    """the most probable continuation of the first row's beginning, with a full forward pass per token"""
    prompt, gap = D["tok"][0, 0, :6].tolist(), 1e9
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < c["T"]:
            t = torch.tensor([ids])
            z = model.logits(W, t, torch.arange(len(ids))[None], torch.zeros_like(t))[0, -1]
            best = z.topk(2)[0]
            gap = min(gap, float(best[0] - best[1]))
            ids.append(int(z.argmax()))
    if gap <= 1e-4:
        raise Tie(f"{case}: greedy decoding hangs on {gap:.1e}")
    return dict(prompt=prompt, continuation=ids[6:])


def run(out):
    case = os.path.basename(out)
    spec = importlib.util.spec_from_file_location("model", f"{out}/model.py")
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    c = {k: getattr(model, k, v) for k, v in DEFAULT.items()}
    c["VOCAB"] = model.VOCAB
    torch.manual_seed(sum(map(ord, case)))
    W = {}

    def P(name, *shape, std=None, fill=None):
        t = torch.randn(*shape) * std if fill is None else fill + 0.1 * torch.randn(*shape)
        assert name not in W, name
        W[name] = t.float().double().requires_grad_(True)

    model.params(P)
    D = batches(c)

    def xent(W, bt):
        z = model.logits(W, bt["tok"], bt["pos"], bt["seg"])
        l = F.cross_entropy(z.transpose(1, 2), bt["next"], reduction="none")
        return (l * bt["w"]).sum(), bt["w"].sum()

    loss_of = getattr(model, "loss", xent)
    trained = {n: p for n, p in W.items() if not re.search(c["STATES"], n)}
    at = lambda s, lo, hi: {k: v[s, lo:hi] for k, v in D.items()}
    save(f"{out}/weights.safetensors", {k: v.detach().float() for k, v in W.items()})
    save(f"{out}/batches.safetensors", {k: v.float() if k == "w" else v.int() for k, v in D.items()})
    M, V2 = ({k: torch.zeros_like(v) for k, v in W.items()} for _ in range(2))
    losses, norms, expected, initial = [], [], {}, greedy(case, model, W, D, c)
    for s in range(c["STEPS"]):
        k, total, weight = s + 1, 0.0, 0.0
        for lo in range(0, c["B"], c["MICRO"]):
            num, den = loss_of(W, at(s, lo, lo + c["MICRO"]))
            num.backward()
            total, weight = total + num.item(), weight + den.item()
        if s == 0:
            with torch.no_grad():
                bt = at(0, 0, c["B"])
                expected["logits"] = model.logits(W, bt["tok"], bt["pos"], bt["seg"])
        G = {n: (torch.zeros_like(p) if p.grad is None else p.grad) / weight for n, p in trained.items()}
        if s == 0:
            expected.update({"grad." + n: g for n, g in G.items()})
        norm = math.sqrt(sum(float((g * g).sum()) for g in G.values()))
        losses.append(total / weight), norms.append(norm)
        b1, b2 = c["BETAS"]
        with torch.no_grad():
            for n, p in trained.items():
                g = G[n] * min(1.0, c["CLIP"] / (norm + 1e-6))
                M[n] = b1 * M[n] + (1 - b1) * g
                V2[n] = b2 * V2[n] + (1 - b2) * g * g
                mh, vh = M[n] / (1 - b1 ** k), V2[n] / (1 - b2 ** k)
                p -= rate(c, k) * (mh / (vh.sqrt() + c["EPS"]) + (0 if re.search(c["NO_DECAY"], n) else c["DECAY"]) * p)
                p.grad = None
            getattr(model, "after_step", lambda W: None)(W)
    expected.update({"final." + n: p for n, p in W.items()})
    save(f"{out}/expected.safetensors", {n: t.detach().float() for n, t in expected.items()})
    js = dict(loss=losses, grad_norm=norms, lr=[rate(c, k + 1) for k in range(c["STEPS"])], initial=initial,
              greedy=greedy(case, model, W, D, c))
    json.dump(js, open(f"{out}/expected.json", "w"), indent=1)
    print(f"{case}: {sum(p.numel() for p in W.values())} parameters, loss {losses[0]:.6f} -> {losses[-1]:.6f}, norm {norms[0]:.4f}")


if __name__ == "__main__":
    for case in sys.argv[1:] or sorted(d for d in os.listdir(HERE) if os.path.exists(os.path.join(HERE, d, "model.py"))):
        run(os.path.join(HERE, case.rstrip("/").split("/")[-1]))
