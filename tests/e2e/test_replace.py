"""`replace` in `with { … }`: another block instead of a sub, another function; an imported model is trained on, as PyTorch in float64 does."""
import numpy as np

from harness import ROOT, check, distance, load, random_batches, save, within

D, HEADS, VOCAB, DEPTH, STEPS, LR = 16, 2, 32, 3, 4, 0.1
DATA = """data Batches {{ source s = batches("batches.safetensors") }}
recipe Whole {{
  model = Base; data = Batches; seed = 7; run = 4 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = {lr}); precision {{ compute = f32 }}
  save = checkpoint("runs/whole", every = 4 steps)
}}
recipe Part extends Whole {{ model = Tuned; save = checkpoint("runs/part", every = 2 steps, keep = all) }}
"""
BLOCKS = """import std.nn: layernorm, rmsnorm, attention, gelu_tanh, xent
block LayerNorm(d, eps = 1e-5) {{
  param w: real[d] = ones
  param c: real[d] = zeros
  apply(x: real[..r, d]) -> real[..r, d] {{ return layernorm(x, w, c, eps) }}
}}
block RmsNorm(d, eps = 1e-6, gain = 1) {{
  param w, g: real[d] = ones
  apply(x: real[..r, d]) -> real[..r, d] {{ return gain * rmsnorm(x, w, eps) * g }}
}}
block Layer(d, ff, heads) where heads divides d {{
  dim three = 3, g = heads, e = d / heads
  sub n1 = LayerNorm(d, eps = 1e-2)
  sub n2 = LayerNorm(d)
  param wqkv: real[d, three, g, e] = normal(0.2)
  param wo: real[g, e, d] = normal(0.2)
  param wu: real[d, ff] = normal(0.2)
  param wd: real[ff, d] = normal(0.2)
  apply(x: real[b, t, d], pos: int[b, t], seg: int[b, t]) -> real[b, t, d] {{
    let (q, k, v) = unstack(dot(n1(x), wqkv, d), three)
    let (ks, vs, ps, ss) = history((k, v, pos, seg), t -> s)
    let o = attention(q, ks, vs, expand(pos, s) >= ps & expand(seg, s) == ss)
    let u = x + dot(o, wo, (g, e))
    return u + dot(gelu_tanh(dot(n2(u), wu, d)), wd, ff)
  }}
}}
model Gpt(depth = 3, d = 16, heads = 2, positions = 16, vocab = 32) {{
  param wte: real[vocab, d] = normal(0.5)
  param wpe: real[positions, d] = normal(0.2)
  sub layers[i < depth] = Layer(d, 4 * d, heads)
  sub nf = LayerNorm(d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(wte, tok, vocab) + gather(wpe, pos, positions)
    for l in layers carry x {{ x = l(x, pos, seg) }}
    return dot(nf(x), wte, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }}
  map hf {{
    @wte = ("wte.weight", [vocab, d]); @wpe = ("wpe.weight", [positions, d])
    @nf.w = ("ln_f.weight", [d]); @nf.c = ("ln_f.bias", [d])
    @layers.#.n1.w = ("h.#.ln_1.weight", [d]); @layers.#.n1.c = ("h.#.ln_1.bias", [d])
    @layers.#.n2.w = ("h.#.ln_2.weight", [d]); @layers.#.n2.c = ("h.#.ln_2.bias", [d])
    @layers.#.wqkv = ("h.#.attn.c_attn.weight", [d, (three, g, e)])
    @layers.#.wo = ("h.#.attn.c_proj.weight", [(g, e), d])
    @layers.#.wu = ("h.#.mlp.c_fc.weight", [d, ff]); @layers.#.wd = ("h.#.mlp.c_proj.weight", [ff, d])
    config {{ n_layer = depth }}
  }}
}}
model Base = Gpt()
model Tuned = Gpt(){source} with {{
  freeze @layers.*.n1.**
  replace @layers.*.n1 = RmsNorm()
  replace @layers.{{1,2}}.n2 = RmsNorm(gain = 2)
  replace @nf = RmsNorm(eps = 1e-3)
}}
""" + DATA
FUNCTION = """import "{root}/examples/gpt2.lm": GPT2
import std.nn: layernorm, rmsnorm
fn alone(x: real[..r], w: real[..s], c: real[..s], eps: f32 = 1e-5) -> real[..r] where s in r {{ return rmsnorm(x, w, eps) }}
model Base = GPT2(depth = 3, d = 16, heads = 2, positions = 16, vocab = 32)
model Tuned = GPT2(depth = 3, d = 16, heads = 2, positions = 16, vocab = 32){source} with {{ replace layernorm = alone }}
""" + DATA


def forward(torch, norm, P, tok, pos, seg):
    """the logits; norm(name, x): those of the model"""
    mask = (pos[:, :, None] >= pos[:, None, :]) & (seg[:, :, None] == seg[:, None, :])
    x = P["wte"][tok] + P["wpe"][pos]
    for i in range(DEPTH):
        p = lambda n: P.get(f"layers.{i}.{n}", torch.zeros(()).double())
        bias = p("bqkv").reshape(3, 1, 1, HEADS, -1) if f"layers.{i}.bqkv" in P else 0
        q, k, v = (torch.einsum("btd,dzge->zbtge", norm(f"layers.{i}.n1", x), p("wqkv")) + bias).unbind(0)
        a = (torch.einsum("btge,bsge->bgts", q, k) * (D // HEADS) ** -0.5).masked_fill(~mask[:, None], -1e30)
        o = torch.einsum("bgts,bsge->btge", a.softmax(-1), v)
        u = x + torch.einsum("btge,ged->btd", o, p("wo")) + p("bo")
        h = torch.nn.functional.gelu(norm(f"layers.{i}.n2", u) @ p("wu") + p("bu"), approximate="tanh")
        x = u + h @ p("wd") + p("bd")
    return norm("nf", x) @ P["wte"].T


def rms(x, w, eps):
    return x * (x * x).mean(-1, keepdim=True).add(eps).rsqrt() * w


def reference(run, P, trained, norm):
    """losses, gradients of the first step and final parameters of SGD in float64"""
    import torch

    P = {n: torch.tensor(t, dtype=torch.float64) for n, t in P.items()}
    data, losses, first = load(run.path("batches.safetensors")), [], {}
    for k in range(STEPS):
        for n in trained:
            P[n] = P[n].detach().requires_grad_()
        tok, pos, seg, nxt = (torch.tensor(data[n][k]).long() for n in ("tok", "pos", "seg", "next"))
        w = torch.tensor(data["w"][k]).double()
        z = forward(torch, lambda at, x: norm(P, at, x), P, tok, pos, seg)
        loss = (torch.nn.functional.cross_entropy(z.flatten(0, 1), nxt.flatten(), reduction="none") * w.flatten()).sum() / w.sum()
        grads = dict(zip(trained, torch.autograd.grad(loss, [P[n] for n in trained], allow_unused=True)))
        grads = {n: torch.zeros_like(P[n]) if g is None else g for n, g in grads.items()}
        losses.append(loss.item())
        first = first or {n: g.numpy() for n, g in grads.items()}
        for n in trained:
            P[n] = P[n].detach() - LR * grads[n]
    return losses, first, {n: P[n].numpy() for n in trained}


def compare(run, text, norm, frozen, added):
    """trains a base, exports and imports it with the edits, and from its checkpoint too"""
    save(run.path("batches.safetensors"), random_batches(STEPS, 4, 16, VOCAB))
    text = lambda source, lr=LR, text=text: run.write("p.lm", text.format(root=ROOT, source=source, lr=lr))
    run("run", text(""), "--recipe", "Whole", "-q")
    run("export", run.path("runs/whole"), "-o", run.path("base"))
    P = load(run.path("runs/whole/step-000004/model.safetensors"))
    start = run.trace(text(' from "hf:base"', 0), "--recipe", "Part", "--values", "params", "--steps", "1")
    names = {n[6:] for n in start if n.startswith("final.")}
    check({n for n in names if n not in P} == set(added), names - set(P))
    check(all(np.array_equal(start["final." + n], P[n] if n in P else np.ones(D)) for n in names))
    trained = sorted(names)
    check(not names & frozen, "frozen ones are not trained")
    losses, first, last = reference(run, {**P, **{n[6:]: t for n, t in start.items() if n.startswith("final.")}}, trained, norm)
    for source in "hf:base", "runs/whole":
        got = run.trace(text(f' from "{source}"'), "--recipe", "Part")
        for k in range(STEPS):
            within(f"loss of step {k + 1}", abs(got["loss"][k] / losses[k] - 1), 1e-5)
        for n in trained:
            within("gradient of " + n, distance(got["grad." + n], first[n], floor=1e-3), 1e-5)
            within(n, distance(got["final." + n], last[n]), 1e-5)
    run("run", run.path("p.lm"), "--recipe", "Part", "-q")
    check("error[E327]" in run("export", run.path("runs/part"), "-o", run.path("out"), status=1))
    check(len(run("generate", run.path("runs/part"), "--ids", "--prompt-ids", "1,2,3", "-n", "5", "--temperature", "0").split()) >= 5)


def test_subs(run):
    """LayerNorm by RMSNorm: arguments that are left out are the replaced ones; weights of equal name stay; new ones begin as declared"""
    import torch

    def norm(P, at, x):
        if at + ".c" in P and at == "layers.0.n2":
            return torch.nn.functional.layer_norm(x, (D,), P[at + ".w"], P[at + ".c"], 1e-5)
        eps, gain = {"nf": (1e-3, 1)}.get(at, (1e-2, 1) if at.endswith("n1") else (1e-5, 2))
        return gain * rms(x, P[at + ".w"], eps) * P[at + ".g"]

    subs = ["layers.0.n1", "layers.1.n1", "layers.2.n1", "layers.1.n2", "layers.2.n2", "nf"]
    compare(run, BLOCKS, norm, {f"layers.{i}.n1.w" for i in range(3)}, [s + ".g" for s in subs])


def test_function(run):
    """LayerNorm by RMSNorm in GPT-2 as transformers writes it"""
    compare(run, FUNCTION, lambda P, at, x: rms(x, P[at], 1e-5), set(), [])
