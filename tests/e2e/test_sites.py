"""`after @SITE = BLOCK(…)` and `replace FUNCTION = BLOCK(…)`: losses, gradients and decoded tokens are PyTorch's in float64."""
import os, shutil

import numpy as np

from harness import ROOT, check, distance, folder_bytes, load, random_batches, save, within

PLAIN_BUILD = {"identity"}

D, HEADS, KV, E, VOCAB, DEPTH = 16, 4, 2, 8, 32, 3
PROGRAM = """import "{root}/examples/llama.lm": Llama
import std.adapt: bottleneck, prefix, prompt, lora
import std.nn: attention, rmsnorm
block Scaled(d) {{ param s: real[d] = ones
  apply(x: real[..r, d]) -> real[..r, d] {{ return x * s }} }}
model Base = Llama(depth = 3, d = 16, ff = 24, heads = 4, kv = 2, e = 8, vocab = 32){source}
model Tuned = Llama(depth = 3, d = 16, ff = 24, heads = 4, kv = 2, e = 8, vocab = 32){source} with {{
  freeze @**
  {edits}
}}
data Batches {{ source s = batches("batches.safetensors") }}
recipe Whole {{
  model = Base; data = Batches; seed = 7; run = 6 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = {lr}); precision {{ compute = f32 }}
  save = checkpoint("runs/whole", every = 3 steps)
}}
recipe Part extends Whole {{ model = Tuned; save = checkpoint("runs/part", every = 3 steps, keep = all) }}
"""
HOULSBY = "after @layers.{0,2}.attn = bottleneck(m = 3); after @layers.*.u = bottleneck(m = 2)"
PREFIX = "replace attention = prefix(n = 3)"
PROMPT = "after @x = prompt(n = 2)"


def program(run, edits, lr="0.3", source="", name="p.lm"):
    if not os.path.exists(run.path("batches.safetensors")):
        save(run.path("batches.safetensors"), random_batches(6, 4, 16, VOCAB))
    return run.write(name, PROGRAM.format(root=ROOT, edits=edits, lr=lr, source=source))


def norm(x, w):
    return x * (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt() * w


def rope(torch, x, pos):
    c = torch.arange(E // 2, dtype=torch.float64)
    a = (pos[..., None] * 10000.0 ** (-c / (E // 2)))[:, :, None, :]
    lo, hi = x[..., : E // 2], x[..., E // 2 :]
    return torch.cat([lo * a.cos() - hi * a.sin(), hi * a.cos() + lo * a.sin()], -1)


def bottleneck(torch, P, at, x):
    if at + ".down" not in P:
        return x
    h = torch.nn.functional.gelu(x @ P[at + ".down"] + P[at + ".down_bias"])
    return x + h @ P[at + ".up"] + P[at + ".up_bias"]


def forward(torch, P, tok, pos, seg):
    """the logits of Llama of examples/llama.lm with the blocks whose parameters P has"""
    x = P["embed"][tok]
    if "x.prompt.table" in P:
        n = len(P["x.prompt.table"])
        x = torch.where((pos < n)[..., None], P["x.prompt.table"][pos.clamp(max=n - 1)], x)
    mask = (pos[:, :, None] >= pos[:, None, :]) & (seg[:, :, None] == seg[:, None, :])
    for i in range(DEPTH):
        at = f"layers.{i}"
        p = lambda n: P[f"{at}.{n}"]
        y = norm(x, p("n1"))
        q, k, v = (torch.einsum("btd,dge->btge", y, p("attn." + n).reshape(D, -1, E)) for n in ("wq", "wk", "wv"))
        q, k = rope(torch, norm(q, p("attn.qn")), pos), rope(torch, norm(k, p("attn.kn")), pos)
        k, v = (z.repeat_interleave(HEADS // KV, 2) for z in (k, v))
        a = (torch.einsum("btge,bsge->bgts", q, k) * E**-0.5).masked_fill(~mask[:, None], -1e30)
        if f"{at}.attn.prefix.key" in P:
            pk, pv = (p("attn.prefix." + n).repeat_interleave(HEADS // KV, 1) for n in ("key", "value"))
            a = torch.cat([torch.einsum("btge,nge->bgtn", q, pk) * E**-0.5, a], -1)
            v = torch.cat([pv[None].expand(len(tok), -1, -1, -1), v], 1)
        o = torch.einsum("bgts,bsge->btge", a.softmax(-1), v).flatten(2) @ p("attn.wo").reshape(-1, D)
        u = bottleneck(torch, P, f"{at}.u.bottleneck", x + bottleneck(torch, P, f"{at}.attn.bottleneck", o))
        y = norm(u, p("n2"))
        x = u + (torch.nn.functional.silu(y @ p("wg")) * (y @ p("wu"))) @ p("wd")
    return norm(x, P["norm"]) @ P["embed"].T


def reference(run, edits, lr):
    """losses, gradients of the first step, and parameters after six steps of SGD, of PyTorch from the initial values"""
    import torch

    start = program(run, edits, lr="0", name="start.lm")
    whole = run.trace(start, "--recipe", "Whole", "--values", "loss,params", "--steps", "1")
    part = run.trace(start, "--recipe", "Part", "--values", "loss,params", "--steps", "1")
    P = {n[6:]: torch.tensor(t, dtype=torch.float64) for n, t in {**whole, **part}.items() if n.startswith("final.")}
    trained = {n[6:] for n in part if n.startswith("final.")}
    data, losses, first = load(run.path("batches.safetensors")), [], {}
    for k in range(6):
        for n in trained:
            P[n] = P[n].detach().requires_grad_()
        tok, pos, seg, nxt = (torch.tensor(data[n][k]).long() for n in ("tok", "pos", "seg", "next"))
        w = torch.tensor(data["w"][k]).double()
        z = forward(torch, P, tok, pos, seg)
        loss = (torch.nn.functional.cross_entropy(z.flatten(0, 1), nxt.flatten(), reduction="none") * w.flatten()).sum() / w.sum()
        loss.backward()
        losses.append(loss.item())
        first = first or {n: P[n].grad.numpy().copy() for n in trained}
        for n in trained:
            P[n] = P[n].detach() - lr * P[n].grad
    return P, trained, losses, first, whole["loss"][0] == part["loss"][0]


def compare(run, edits, names, identity):
    P, trained, losses, first, equal = reference(run, edits, 0.3)
    check(trained == set(names), trained ^ set(names))
    check(equal == identity)
    got = run.trace(program(run, edits), "--recipe", "Part")
    for k in range(6):
        within(f"loss of step {k + 1}", abs(got["loss"][k] / losses[k] - 1), 1e-5)
    for n in trained:
        within("gradient of " + n, distance(got["grad." + n], first[n], floor=1e-3), 1e-5)
        within(n, distance(got["final." + n], P[n].detach().numpy()), 1e-5)
    return P


def test_bottleneck(run):
    """behind a sub of some layers and a `let` of all; step 0 has the bits of the base; resuming gives equal bytes"""
    names = [f"layers.{i}.{s}.bottleneck.{n}" for i in range(3) for s in ("attn", "u") if s == "u" or i != 1 for n in ("down", "down_bias", "up", "up_bias")]
    compare(run, HOULSBY, names, identity=True)
    file = program(run, HOULSBY)
    run("run", program(run, HOULSBY), "--recipe", "Whole", "-q")
    file = program(run, HOULSBY, source=' from "runs/whole"', name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    last = run.path("runs/part/step-000006")
    check(set(load(os.path.join(last, "model.safetensors"))) == set(names))
    want = folder_bytes(last)
    shutil.rmtree(last)
    run("run", file, "--recipe", "Part", "-q")
    check(folder_bytes(last) == want)
    message = run("export", run.path("runs/part"), "-o", run.path("out"), status=1)
    check("q.lm:9:" in message and "error[E327]" in message, message)


BIASED = """import "{root}/examples/llama.lm": Llama
import std.nn: gelu, rmsnorm, xent
import std.adapt: bottleneck, dora, lora, rslora
block Layer(d, ff) {
  param n: real[d] = ones
  param w1: real[d, ff] = normal(d ^ -0.5)
  param w2: real[ff, d] = normal(ff ^ -0.5)
  dim e = d
  param wo: real[d, e] = normal(d ^ -0.5)
  param b1: real[ff] = normal(0.1)
  param b2, s: real[d] = normal(1)
  apply(x: real[b, t, d]) -> real[b, t, d] {
    let a = rename(dot(x, wo, d), e -> d) + s       # cheap: kernels recompute it
    let u = x + a                                   # stored for two kernels
    let h = gelu(dot(rmsnorm(u, n), w1, d) + b1)    # stored for a GEMM
    let m = dot(h, w2, ff) + b2                     # m, p: stored by no kernel
    let p = m * s + u
    return x + p * s * 0.3
  }
}
block Passed() {
  apply(x: real[..r]) -> real[..r] { return x }
}
model Plain(vocab = 32, d = 32) {
  param embed: real[vocab, d] = normal(0.5)
  param norm: real[d] = ones
  sub layers[i < 2] = Layer(d, 48)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    for l in layers carry x { x = l(x) }
    return dot(rmsnorm(x, norm), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
model Tuned = Plain() with {
  freeze @**; adapt @layers.*.w1 = lora(rank = 2); adapt @layers.*.w2 = dora(rank = 2); adapt @layers.*.wo = rslora(rank = 2)
  after @layers.*.{a,u,h,m,p,x} = bottleneck(m = 2)
}
model Top = Plain() with { freeze @**; train @norm }
model Unchanged = Plain() with { after @layers.*.{a,u,h,m,p,x} = Passed() }
model Small = Llama(depth = 2, d = 32, ff = 48, heads = 4, kv = 2, e = 8, vocab = 32)
model Added = Llama(depth = 2, d = 32, ff = 48, heads = 4, kv = 2, e = 8, vocab = 32) with { freeze @**; adapt @layers.*.**.{wo,wd} = lora(rank = 2, alpha = 4) }
model Scaled = Llama(depth = 2, d = 32, ff = 48, heads = 4, kv = 2, e = 8, vocab = 32) with { freeze @**; adapt @layers.*.**.{wq,wo,wd} = dora(rank = 2) }
model Between = Llama(depth = 2, d = 32, ff = 48, heads = 4, kv = 2, e = 8, vocab = 32) with { freeze @**; after @layers.*.attn = bottleneck(m = 2) }
data Batches { source s = batches("batches.safetensors") }
recipe Whole {
  model = Plain(); data = Batches; seed = 7; run = 1 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = 0.3); precision { compute = bf16 }
}
recipe Part extends Whole { model = Tuned }
recipe Same extends Whole { model = Unchanged }
recipe Frozen extends Whole { model = Top }
recipe OfSmall extends Whole { model = Small }
recipe OfAdded extends Whole { model = Added }
recipe OfScaled extends Whole { model = Scaled }
recipe OfBetween extends Whole { model = Between }
"""


def test_identity(run):
    """step 0 has the bits of the base, behind values that it stores and others, also of sums that GEMMs of a GPU compute"""
    program(run, "")
    file = run.write("biased.lm", BIASED.replace("{root}", ROOT))
    fake = {"LD_LIBRARY_PATH": os.path.join(os.path.dirname(run.lmc), "fake")}
    half, gpu = ("--set", "precision.compute=f16"), ("--target", "cuda")
    plain, small = ("Whole", "Part", "Same", "Frozen"), ("OfSmall", "OfAdded", "OfScaled", "OfBetween")
    for recipes, args, env in (plain, (), {}), (plain, half, {}), (plain, gpu, fake), (small, gpu, fake):
        if env and not os.path.isdir(fake["LD_LIBRARY_PATH"]):
            continue
        args = "--values", "loss,logits" if recipes == plain else "loss", "--steps", "1", *args
        base, *edited = (run.trace(file, "--recipe", r, *args, env=env) for r in recipes)
        check(np.isfinite(base["loss"]).all(), args)
        for r, tuned in zip(recipes[1:], edited):
            check(all(base[n].tobytes() == tuned[n].tobytes() for n in base), (r, *args))


def decoded(run, P, edits, n=8):
    """the tokens of `lmc generate` are the likeliest ones of the model in PyTorch"""
    import torch

    run("run", program(run, edits), "--recipe", "Part", "-q")
    held = load(run.path("runs/part/step-000006/model.safetensors"))
    P = {**P, **{k: torch.tensor(t, dtype=torch.float64) for k, t in held.items()}}
    text = run("generate", run.path("runs/part"), "--ids", "--prompt-ids", "1,2,3", "-n", n, "--temperature", "0")
    ids = [1, 2, 3]
    for _ in range(n):
        tok = torch.tensor([ids])
        ids.append(int(forward(torch, P, tok, torch.arange(len(ids))[None], torch.zeros_like(tok))[0, -1].argmax()))
    check([int(x) for x in text.replace(",", " ").split()][-n:] == ids[3:], f"{text} {ids}")


def test_prefix(run):
    """trained keys and values in the attention of each layer, also while decoding"""
    names = [f"layers.{i}.attn.prefix.{n}" for i in range(3) for n in ("key", "value")]
    P = compare(run, PREFIX, names, identity=False)
    decoded(run, P, PREFIX)


def test_prompt(run):
    """trained embeddings of the first tokens of each document, also while decoding"""
    P = compare(run, PROMPT, ["x.prompt.table"], identity=False)
    decoded(run, P, PROMPT)


def test_several(run):
    """a later line freezes what an earlier one adds; a block of the file; bare is the base; adapters of the same model"""
    edits = ("after @layers.*.attn = Scaled(); freeze @layers.0.attn.Scaled.s; adapt @layers.2.wd = lora(rank = 2); "
             "replace attention = prefix(n = 2); freeze @**.prefix.key")
    file = program(run, edits)
    out = run.trace(file, "--recipe", "Part", "--values", "params", "--steps", "2")
    check({n[6:] for n in out if n.startswith("final.")} == {"layers.1.attn.Scaled.s", "layers.2.attn.Scaled.s", "layers.2.wd.lora.a", "layers.2.wd.lora.b",
                                                              *(f"layers.{i}.attn.prefix.value" for i in range(3))})
    said = run("check", file, "--recipe", "Part")
    check("@layers.*.attn" in said and "after: 3" in said and "replace: 3" in said, said)
    text = open(file).read() + """
model Close(vocab = 32) {
  sub policy = Llama(depth = 2, d = 16, ff = 24, heads = 4, kv = 2, e = 8, vocab = 32)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] { return policy(tok, pos, seg) }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let z = policy(bt.tok, bt.pos, bt.seg) - policy.bare(bt.tok, bt.pos, bt.seg)
    return (sum(f32(z * z)), sum(bt.w))
  }
}
model Closed = Close() with { freeze @**; after @policy.layers.*.attn = bottleneck(m = 3); replace rmsnorm = scaled }
fn scaled(x: real[..r], w: real[..s], eps: f32 = 1e-6) -> real[..r] where s in r { return 2 * rmsnorm(x, w, eps) }
recipe Away extends Part { model = Closed; optimizer = sgd(lr = 0.1) }
"""
    out = run.trace(run.write("bare.lm", text), "--recipe", "Away", "--values", "loss", "--steps", "1")
    check(out["loss"][0] == 0, "without its blocks the policy is itself before training")
