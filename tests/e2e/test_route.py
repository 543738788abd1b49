"""Routing: the cost of the chosen experts, threads, passes, decoding in chunks. Against PyTorch: tests/models."""
import json
import math
import sys

import numpy as np

from harness import ROOT, check, distance, folder_bytes, load, random_batches, remove, save, within
from test_memory import same_bits
from test_optimizer_library import muon
from test_ranks import PATIENT, mpi_needed

MODEL = open(f"{ROOT}/tests/models/mixtral/reference.lm").read().split("model Start")[0]
DENSE = MODEL[:MODEL.index("block Moe")] + """
import std.nn: swiglu
block Moe(d, E, k, f) {
  dim all = k * f
  param w1, w3: real[d, all] = normal(d ^ -0.5)
  param w2: real[all, d] = normal(f ^ -0.5)
  apply(x: real[b, t, d]) -> (real[b, t, d], f32) { return (swiglu(x, w1, w3, w2), f32(0)) }
}
""" + MODEL[MODEL.index("block Layer"):MODEL.index("  map hf")] + "}\n"
PROGRAM = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = Mixtral(depth = 2, d = {d}, f = {f}, vocab = 256); data = D; seed = 3; run = {steps} steps
  batch = {batch} tokens; micro = {batch} tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = {compute} }}
}}
"""
TEXT = "".join(f"{chr(97 + i * 7 % 26)}{chr(97 + i * i % 26)} the {i % 37} of {i % 11}.\n" for i in range(900))


def program(run, model=MODEL, name="m", seq=64, rows=2, d=64, f=96, steps=2, compute="f32"):
    run.write("text.txt", TEXT)
    text = model + PROGRAM.format(seq=seq, batch=seq * rows, d=d, f=f, steps=steps, compute=compute)
    return run.write(f"{name}.lm", text)


def test_cost(run):
    """a step with two of eight experts, beside a dense layer of as many active parameters: operations"""
    sizes = dict(seq=256, rows=8, d=128, f=256)
    routed, dense = (json.loads(run("compile", program(run, m, n, **sizes), "--json")) for m, n in ((MODEL, "m"), (DENSE, "d")))
    check(routed["flops"] <= 1.1 * dense["flops"], f"operations: {routed['flops']}, {dense['flops']} dense")


H100 = """
data D {{ source s = text("text.txt"); pack best_fit(seq = 2048 tokens) }}
recipe R {{
  model = Mixtral(depth = 2, {sizes}); data = D; seed = 3; run = 2 steps
  batch = 8192 tokens; micro = 8192 tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = bf16 }}
}}
"""


def test_predicted(run):
    """on an H100, by the cost model: a step with two of eight experts, those of Mixtral 8x7B and smaller ones, beside a dense layer of as many
    active parameters; without the update and the norm, which see all experts"""
    run.write("text.txt", TEXT)
    for limit, micro, sizes in ((1.4, 1.12, "d = 4096, heads = 32, kv = 8, f = 14336, vocab = 32000"),
                                (1.45, 1.2, "d = 1024, heads = 16, kv = 4, f = 3584, vocab = 256")):
        files = [run.write(f"{n}.lm", m + H100.format(sizes=sizes)) for n, m in (("m", MODEL), ("d", DENSE))]
        costs = [json.loads(run("explain", f, "cost", "--target", "h100", "--json")) for f in files]
        within(f"a step, {sizes}", costs[0]["predicted_s"] / costs[1]["predicted_s"], limit)
        parts = [next(f["predicted_s"] for f in c["functions"] if f["name"] == "micro") for c in costs]
        within(f"forward and backward, {sizes}", parts[0] / parts[1], micro)


def test_passes(run):
    """the same in tiles of rows, with and without fusion of GEMMs, with one thread"""
    file = program(run)
    want = run.trace(file, "--values", "loss,grads")
    for off in ("--enable-pass", "tile_rows"), ("--enable-pass", "fuse_gemms"), ("--disable-pass", "fuse"), ("--disable-pass", "simplify,cse,licm"):
        got = run.trace(file, "--values", "loss,grads", *off)
        for name in want:
            within(f"{' '.join(off)}, {name}", distance(got[name], want[name]), 1e-5)
    alone = run.trace(file, "--values", "loss,grads", env={"OMP_NUM_THREADS": "1"})
    for name in want:
        check(np.array_equal(alone[name], want[name]), f"one thread: {name}")


def test_recompute(run):
    same_bits(run, f"{ROOT}/tests/models/mixtral/reference.lm", "recompute @layers.**")


def test_bf16(run):
    loss = [run.trace(program(run, compute=c), "--values", "loss", "--steps", 1)["loss"] for c in ("f32", "bf16")]
    within("loss", distance(*loss), 2e-3)


def test_decoding(run):
    """a token at a time, and prompts of several chunks: the same continuation"""
    file = program(run, d=32, f=32, steps=60)
    run("run", file, "-q", "--out", run.path("out"))

    def ids(prompt, n):
        return json.loads(run("generate", run.path("out"), "--json", "--ids", "--prompt-ids", ",".join(map(str, prompt)), "-n", n,
                              "--temperature", 0))["ids"]

    start = list(TEXT[:40].encode())
    whole = ids(start, 300)
    check(len(set(whole)) > 3, f"the continuation is too plain: {whole}")
    for n in 1, 130, 290:
        rest = ids(start + whole[:n], 300 - n)
        check(rest == whole[n:], f"after {n} tokens: {rest[:20]}, expected {whole[n : n + 20]}")


def test_capacity(run):
    """choices over the capacity of their expert are counted, on two ranks with parts of the rows and of the experts too"""
    mpi_needed(run)
    import torch
    sys.path.insert(0, f"{ROOT}/tests/models")
    import capacity.model as model
    file, out = f"{ROOT}/tests/models/capacity/reference.lm", {}
    for mesh, more in ("one", ()), ("ep", ("--set", "parallel.mesh=(ep = 2)", "--ranks", "2")):
        run("run", file, "-q", *more, "--out", run.path(mesh), env=PATIENT)
        out[mesh] = [json.loads(line) for line in open(run.path(mesh, "metrics.jsonl"))]
    W = {n: torch.tensor(t.astype("f8")) for n, t in load(f"{ROOT}/tests/models/capacity/weights.safetensors").items()}
    tok = torch.from_numpy(load(f"{ROOT}/tests/models/capacity/batches.safetensors")["tok"][0].astype("i8"))
    for i, share in enumerate(model.run(W, tok, True)[1]):
        check(round(out["one"][0][f"dropped.{i}"] * 128) == round(share * 128) > 12, f"layer {i}: {out['one'][0]}, not {share}")
    for a, b in zip(out["one"], out["ep"]):
        within(f"loss of step {a['step']} with ep", abs(a["loss"] / b["loss"] - 1), 1e-6)
        check(a["dropped.0"] == b["dropped.0"] and a["dropped.1"] == b["dropped.1"], f"{a}, with ep {b}")


# ---- the weights of experts in optimizers of matrices, and in adapters

EXPERTS = """import std.nn: softmax, silu, xent
import std.adapt: lora, rslora, dora
block ia3() {
  param s: real[..o] = const(1.5)
  merge(w: real[..i, ..o]) -> real[..i, ..o] { return w * s }
}
block outside() {
  param s: real[..o] = const(1.5)
  use(x: real[..x], w: real[..i, ..o], y: real[..y]) -> real[..y] { return y * s }
}
model M(d = 8, f = 6, E = 4, k = 2, vocab = 32) {
  param embed, u: real[vocab, d] = normal(1.0)
  param router: real[d, E] = normal(1.0)
  param w: real[E, d, f] = normal(0.5)
  param v: real[d, E, f] = normal(0.5)      # the experts between the axes of a matrix
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let (best, id) = top_k(softmax(f32(dot(x, router, d)), E), E -> k)
    let (rows, counts) = group_by(x, id, (b, t, k) -> n, E)
    let y = grouped_dot(silu(grouped_dot(rows, w, counts, d)), v, counts, f)
    return dot(sum(ungroup(y, id, n -> (b, t, k)) * real(best), k), u, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }
  map hf {
    @{embed,u} = ("table.weight", [vocab + vocab, d]); @router = ("router.weight", [E, d])
    @w = ("experts.w.weight", [(E, d), f]); @v = ("experts.{E}.v.weight", [f, d])
  }
}
data D { source s = batches("batches.safetensors") }
recipe Plain {
  model = M(); data = D; seed = 3; run = 3 steps; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = 0.3); precision { compute = f32 }
  save = checkpoint("runs/plain", every = 2 steps, keep = all)
}
"""


def experts(run, more, edits=()):
    save(run.path("batches.safetensors"), random_batches(6, 4, 16, vocab=32))
    recipes = [f"""model M_{name} = M() with {{ freeze @**; adapt @{{w,v}} = {line} }}
recipe {name} extends Plain {{ model = M_{name}; save = checkpoint("runs/{name}", every = 2 steps, keep = all) }}
""" for name, line in edits]
    return run.write("e.lm", EXPERTS + "".join(recipes) + more)


def start_of(run, file, recipe):
    """the initial values, in float64"""
    out = run.trace(file, "--recipe", recipe, "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    return {n[6:]: t.astype("f8") for n, t in out.items() if n.startswith("final.")}


def test_experts_muon(run):
    """Muon on the weights of experts: each expert is a matrix"""
    more = """recipe Muon extends Plain {
  optimizer = muon(lr = 0.02); group @{embed,u,router} = (optimizer = sgd(lr = 0)); group @v = (lr = 0.01)
}
"""
    file = experts(run, more)
    start = start_of(run, file, "Plain")
    out = run.trace(file, "--recipe", "Muon", "--steps", "1")
    for name, lr, order in ("w", 0.02, (0, 1, 2)), ("v", 0.01, (1, 2, 0)):     # experts, inputs, outputs
        p, g, got = (x.astype("f8").transpose(order) for x in (start[name], out["grad." + name], out["final." + name]))
        want = np.stack([muon(lr)()(p[e], g[e], 1) for e in range(4)])
        within(name, distance(got, want), 3e-6)
        check(abs(g).max((1, 2)).all(), "an expert without rows")


def expert_step(P, D, k, weight):
    """loss and gradients of EXPERTS in float64 by PyTorch; weight(P, name, axis): the weight with its adapter"""
    import torch
    P = {n: torch.tensor(t, requires_grad=True) for n, t in P.items()}
    x = P["embed"][torch.from_numpy(D["tok"][k].reshape(-1).astype("i8"))]
    best, id = torch.topk(torch.softmax(x @ P["router"], -1), 2)
    w, v = weight(P, "w", P["w"]), weight(P, "v", P["v"].permute(1, 2, 0))
    y = 0
    for c in range(2):
        hidden = torch.nn.functional.silu(torch.einsum("nd,ndf->nf", x, w[id[:, c]]))
        y = y + best[:, c : c + 1] * torch.einsum("nf,nfd->nd", hidden, v[id[:, c]])
    w = torch.from_numpy(D["w"][k].reshape(-1).astype("f8"))
    following = torch.from_numpy(D["next"][k].reshape(-1).astype("i8"))
    loss = (torch.nn.functional.cross_entropy(y @ P["u"].T, following, reduction="none") * w).sum() / w.sum()
    loss.backward()
    return loss.item(), {n: t.grad.numpy() for n, t in P.items() if t.grad is not None}


def low_rank(scale, dora=False):
    def weight(P, name, w):
        kind = "dora" if dora else next(n.split(".")[1] for n in P if n.startswith(name + "."))
        v = w + scale * P[f"{name}.{kind}.a"] @ P[f"{name}.{kind}.b"]
        return v * (P[f"{name}.dora.m"] / v.detach().norm(dim=1))[:, None] if dora else v
    return weight


def test_experts_adapters(run):
    """adapters of the weights of experts: an adapter for each expert; losses, gradients and weights are those of PyTorch in float64"""
    edits = [("L", "lora(rank = 2, alpha = 6)"), ("S", "rslora(rank = 4, alpha = 2)"), ("A", "dora(rank = 2, alpha = 6)"),
             ("I", "ia3()"), ("O", "outside()")]
    file = experts(run, "", edits)
    D = load(run.path("batches.safetensors"))
    factor = lambda kind: lambda P, name, w: w * P[f"{name}.{kind}.s"][:, None]
    weights = dict(L=low_rank(3), S=low_rank(1), A=low_rank(3, True), I=factor("ia3"), O=factor("outside"))
    base = start_of(run, file, "Plain")
    for name, _ in edits:
        P = {**base, **start_of(run, file, name)}
        got = run.trace(file, "--recipe", name)
        for k in range(3):
            loss, g = expert_step(P, D, k, weights[name])
            within(f"{name}: loss of step {k + 1}", abs(got["loss"][k] / loss - 1), 1e-5)
            g = {n: v for n, v in g.items() if "." in n}
            for n in g if k == 0 else ():
                within(f"{name}: gradient of {n}", distance(got["grad." + n], g[n], floor=1e-3), 1e-5)
            P = {n: p - 0.3 * g[n] if n in g else p for n, p in P.items()}
        for n in g:
            within(f"{name}: {n}", distance(got["final." + n], P[n]), 1e-5)
            check(P[n].shape[0] == 4, f"{n} is no adapter for each expert")


def test_experts_adapted_run(run):
    """a run with adapters of experts: resumed, decoded, and merged by export, into weights of the model's layout"""
    file = experts(run, "", [("A", "dora(rank = 2, drop = 10%)")])
    run("run", file, "--recipe", "A", "-q", "--steps", "4")
    want = folder_bytes(run.path("runs/A/step-000004"))
    remove(run.path("runs/A/step-000004"))
    run("run", file, "--recipe", "A", "-q", "--steps", "4")
    check(folder_bytes(run.path("runs/A/step-000004")) == want)
    run("export", run.path("runs/A"), "-o", run.path("merged"))
    merged, base = load(run.path("merged/model.safetensors")), start_of(run, file, "Plain")
    trained = load(run.path("runs/A/step-000004/model.safetensors"))
    w = merged["experts.w.weight"].astype("f8").reshape(4, 8, 6)
    within("norms of w", distance(np.linalg.norm(w, axis=1), trained["w.dora.m"]), 1e-5)
    within("norms of v", distance(np.linalg.norm(merged["experts.3.v.weight"].astype("f8"), axis=0), trained["v.dora.m"][3]), 1e-5)
    check(distance(w, base["w"]) > 1e-3, "the export is the base")
    prompt = "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0"
    text = run("generate", run.path("runs/A"), *prompt)
    file = run.write("m.lm", open(file).read().replace("model = M();", "model = Merged;") + 'model Merged = M() from "hf:merged"\n')
    check(text == run("generate", file, "--recipe", "Plain", *prompt))
    message = run("export", run.path("runs/A"), "--format", "peft", "-o", run.path("peft"), status=1)
    check("PEFT's files cannot hold the adapter of w: it has a matrix for each index of its batch axes" in message, message)


# ---- the choices within the capacity of experts

LIMITED = """import std.nn: within_capacity
fn in_pairs(id: int[b, t, k], E: axis, factor) -> int[b, t, k] {       # each choice beside all earlier ones
  let limit = minimum(-floor(-(k * t / E * factor)), k * t)
  let all = view(permute(id, (b, k, t)), (k, t) -> m)
  let same = expand(all, o = m) == expand(rename(all, m -> o), m, before = o)
  let earlier = expand(int(iota(m)), o) > rename(int(iota(m)), m -> o)
  let kept = select(sum(int(same & earlier), o) < limit, all, -1)
  return permute(view(kept, m -> (k, t)), (b, t, k))
}
block Choices(E, factor, T, k) {
  param kept, pairs: f32[T, k] = zeros
  apply(id: int[b, t, k], row: f32[b]) -> f32 {
    let at = expand(int(iota(t)), b, before = t)
    let of = expand(expand(row, t), k)
    let x = f32(within_capacity(id, E, factor)) * of
    let y = f32(in_pairs(id, E, factor)) * of
    return sum(x * gather(kept, at, T)) + sum(y * gather(pairs, at, T))
  }
}
model M(v = 2) {
  sub few = Choices(3, 1.25, 61, 1)
  sub some = Choices(8, 0.6, 61, 2)
  sub many = Choices(64, 2, 61, 3)
  param w: real[v] = zeros
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, v] { return expand(expand(w, t, before = v), b, before = t) }
  loss(bt: Batch[b, t], first: int[b, t, i], second: int[b, t, j], third: int[b, t, l], row: f32[b]) -> (f32, f32) {
    return (few(first, row) + some(second, row) + many(third, row) + 0 * sum(bt.w), 1)
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; seed = 3; run = 1 steps; batch = 122 tokens; optimizer = sgd(lr = 1); precision { compute = f32 } }
"""


def taken(id, experts, factor):
    """GShard's algorithm 1 for each row: -1 for choices over the capacity; id: [rows, positions, k]"""
    limit, out = math.ceil(id[0].size / experts * factor), id.copy()
    for row, choices in zip(out, id):
        load = [0] * experts
        for t, k in sorted(np.ndindex(choices.shape), key=lambda at: at[::-1]):
            e = min(choices[t, k], experts - 1)
            row[t, k] = choices[t, k] if e >= 0 and load[e] < limit else -1
            load[e] += e >= 0
    return out


def test_within_capacity(run):
    """the choices that experts take, of random routers, with padding: those of GShard's algorithm, and of a comparison in pairs"""
    rng = np.random.default_rng(4)
    cases = {"few": (3, 1.25, 1, "first"), "some": (8, 0.6, 2, "second"), "many": (64, 2, 3, "third")}
    batches = random_batches(1, 2, 61, vocab=2) | {"row": np.array([[1, 1000]], "<f4")}
    for experts, _, k, column in cases.values():
        chances = rng.dirichlet(np.ones(experts))
        batches[column] = rng.choice(experts, (1, 2, 61, k), p=chances).astype("<i4")
        batches[column][0, 1, 40:] = -1      # padding
    save(run.path("batches.safetensors"), batches)
    got = run.trace(run.write("limited.lm", LIMITED), "--values", "grads")
    for name, (experts, factor, k, column) in cases.items():
        want = taken(batches[column][0], experts, factor)
        check((want < batches[column][0]).any() and (want >= 0).any(), f"{name}: no choice is dropped, or all")
        for form in "kept", "pairs":
            check(np.array_equal(got[f"grad.{name}.{form}"], want[0] + 1000.0 * want[1]), f"{name}, {form}")
