"""States of blocks: `state`, `add` and `after_step`, and BatchNorm of std.nn."""
import json

import numpy as np

from harness import check, distance, folder_bytes, load, random_batches, remove, save, within
from test_ranks import PATIENT, mpi_needed

BALANCED = """import std.nn: xent, silu
block Experts(d, E, k, f, rate) {
  param router: real[d, E] = normal(1)
  param up: real[E, d, f] = normal(d ^ -0.5)
  param down: real[E, f, d] = normal(f ^ -0.5)
  state bias, load, last: f32[E] = zeros
  apply(x: real[b, t, d]) -> real[b, t, d] {
    let scores = sigmoid(f32(dot(x, router, d)))
    let (_best, id) = top_k(scores + bias, E -> k)                # the bias takes part in the choice only
    let (rows, counts) = group_by(x, id, (b, t, k) -> n, E)
    add load = f32(counts)
    let y = ungroup(grouped_dot(silu(grouped_dot(rows, up, counts, d)), down, counts, f), id, n -> (b, t, k))
    let g = gather(scores, id, E)
    return sum(y * real(g / sum(g, k)), k)
  }
  after_step {
    bias = bias + rate * sign(mean(load) - load)
    last = 0.9 * last + 0.1 * load                                # of about ten steps
    load = 0
  }
}
model M(depth = 2, d = 16, E = 8, k = 2, f = 8, vocab = 24, spots = 64, rate = 0.005) {
  param embed: real[vocab, d] = normal(1)
  param spot: real[spots, d] = normal(1)
  state steps: f32 = zeros
  sub layers[i < depth] = Experts(d, E, k, f, rate)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab) + gather(spot, pos, spots) + 1
    for l in layers carry x { x = x + l(x) }
    return dot(x, embed, d) * real(1 + 0 * steps)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
  after_step { steps = steps + 1 }
}
data D { source s = batches("batches.safetensors") }
recipe R {
  model = M(); data = D; run = 200 steps; batch = 512 tokens; micro = 512 tokens; seed = 1
  optimizer = adamw(lr = 1e-3); precision { compute = f32 }
}
"""


def skewed(steps):
    """batches in which a few tokens are most of the text"""
    rng = np.random.default_rng(5)
    b = random_batches(steps, 8, 64, 24)
    return b | dict(tok=np.minimum(rng.geometric(0.2, b["tok"].shape), 24).astype("<i4") - 1)


def test_states_balance(run):
    """DeepSeek's balancing of experts without a loss: each has nearly the same load, with 1 and with 8 micro-batches"""
    save(run.path("batches.safetensors"), skewed(200))
    file = run.write("m.lm", BALANCED)
    ratio = lambda t, i: max(t[f"final.layers.{i}.last"]) / np.mean(t[f"final.layers.{i}.last"])
    without = run.trace(file, "--set", "model=M(rate = 0)")
    check(max(ratio(without, i) for i in range(2)) > 1.5, "the loads are even without a bias")
    whole, parts = run.trace(file), run.trace(file, "--set", "micro=64 tokens")
    for i in range(2):
        for t in whole, parts:
            within(f"greatest load of layer {i} / mean", ratio(t, i), 1.2)
            within("sum of the loads", abs(np.sum(t[f"final.layers.{i}.last"]) / 1024 - 1), 1e-5)
    short = ("--steps", "3")
    a, b = run.trace(file, *short), run.trace(file, *short, "--set", "micro=64 tokens")
    for n in a:
        if n.startswith("final.layers") and n.split(".")[-1] in ("bias", "load", "last"):
            check(list(a[n]) == list(b[n]), f"{n} depends on the micro-batches")
    check("grad.layers.0.load" not in a and parts["final.steps"] == 200)


NORM = """import std.nn: xent
block Norm(d, momentum = 0.1, eps = 1e-5) {
  param w: real[d] = ones
  state mean, s1, s2: f32[d] = zeros
  state var: f32[d] = ones
  state n: f32 = zeros
  state slow: f32[d] = start()
  start() -> f32[d] { return f32(w) }
  apply(x: real[b, t, d]) -> real[b, t, d] {
    let xf = f32(x)
    add s1 = sum(sum(xf, t), b)
    add s2 = sum(sum(xf * xf, t), b)
    add n = b * t
    return real((xf - mean) * rsqrt(var + eps)) * w
  }
  after_step {
    let m = s1 / n
    mean = (1 - momentum) * mean + momentum * m
    var = (1 - momentum) * var + momentum * (s2 - n * m * m) / (n - 1)
    s1 = 0
    s2 = 0
    n = 0
    slow = 0.9 * slow + 0.1 * f32(w)
  }
}
model B(d = 8, vocab = 24) {
  param embed: real[vocab, d] = normal(1)
  param head: real[d, vocab] = normal(0.3)
  sub norm = Norm(d)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return dot(norm(gather(embed, tok, vocab)), head, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = batches("batches.safetensors") }
recipe R {
  model = B(); data = D; run = 6 steps; batch = 64 tokens; micro = 16 tokens; seed = 3
  optimizer = adamw(lr = 1e-2); precision { compute = f32 }; save = checkpoint("run", every = 1 steps, keep = all)
}
recipe Matrices extends R {
  optimizer = muon(lr = 0.02); group @{embed,norm.w} = (optimizer = adamw(lr = 1e-2))
}
"""


def test_states_statistics(run):
    """the running statistics of torch.nn.BatchNorm1d and a moving average of a parameter, for both kinds of updates"""
    import torch
    b = random_batches(6, 4, 16, 24)
    b["w"][2] = 0                                    # a step that is left out keeps the states
    save(run.path("batches.safetensors"), b)
    file = run.write("m.lm", NORM)
    start = run.trace(file, "--recipe", "R", "--steps", "1", "--values", "params", "--set", "optimizer.lr=0")
    for recipe in "R", "Matrices":
        remove(run.path("run"))
        run("run", file, "--recipe", recipe)
        bn = torch.nn.BatchNorm1d(8, dtype=torch.float64)
        slow, embed = np.ones(8), start["final.embed"]
        for k in range(1, 7):
            t = load(run.path(f"run/step-{k:06}/model.safetensors"))
            if k != 3:
                bn(torch.tensor(embed.astype("f8")[b["tok"][k - 1].flatten()]))
                slow = 0.9 * slow + 0.1 * t["norm.w"]
            within(f"mean of step {k}", distance(t["norm.mean"], bn.running_mean.numpy()), 2e-6)
            within(f"variance of step {k}", distance(t["norm.var"], bn.running_var.numpy()), 2e-6)
            within(f"average of step {k}", distance(t["norm.slow"], slow), 1e-6)
            embed = t["embed"]
        whole = folder_bytes(run.path("run/step-000006"))
        for k in 4, 5, 6:
            remove(run.path(f"run/step-{k:06}"))
        run("run", file, "--recipe", recipe)
        check(folder_bytes(run.path("run/step-000006")) == whole, "a resumed run gives other bytes")


def test_states_frozen(run):
    """a frozen state keeps its value; states take no part in the norm, in clipping, or in patterns of groups"""
    save(run.path("batches.safetensors"), random_batches(3, 4, 16, 24))
    file = run.write("m.lm", NORM + """model F = B() with { freeze @norm.{mean,var} }
recipe Frozen extends R { model = F; run = 3 steps }
recipe Group extends R { group @norm.mean = (decay = 0) }
""")
    t, plain = (run.trace(file, "--recipe", r, "--steps", "3") for r in ("Frozen", "R"))
    check("final.norm.mean" not in t and not np.array_equal(t["final.embed"], plain["final.embed"]), "not frozen")
    grads = [np.array(t[n], "f8") for n in t if n.startswith("grad.")]
    within("norm", abs(np.sqrt(sum((g * g).sum() for g in grads)) / t["grad_norm"][0] - 1), 1e-6)
    out = run("check", file, "--recipe", "R")
    check("state" in [l for l in out.splitlines() if l.strip().startswith("norm.mean")][0], out)


def test_states_ranks(run):
    """sums of two ranks are those of one"""
    mpi_needed(run)
    save(run.path("batches.safetensors"), random_batches(3, 4, 16, 24))
    file = run.write("m.lm", NORM + """recipe One extends R { run = 3 steps; micro = 32 tokens }
recipe Two extends One { parallel { mesh = (dp = 2) } }
""")
    run("run", file, "--recipe", "One")
    one = load(run.path("run/step-000003/model.safetensors"))
    for mesh in ("dp = 2", "cp = 2"):
        remove(run.path("run"))
        run("run", file, "--recipe", "Two", "--set", f"parallel.mesh=({mesh})", "--ranks", "2", env=PATIENT)
        two = load(run.path("run/step-000003/model.safetensors"))
        for n in one:
            within(f"{mesh}: {n}", distance(two[n], one[n]), 1e-5)
    norm = run.write("bn.lm", BATCHNORM + "recipe Two extends R { save = checkpoint(\"bn\") }\n")
    kept = []
    for mesh in (), ("mesh=(dp = 2)",), ("mesh=(tp = 2)", "shard.tp=[d]"):
        remove(run.path("bn"))
        words = [x for line in mesh for x in ("--set", f"parallel.{line}")]
        run("run", norm, "--recipe", "Two", *words, *(("--ranks", "2") if mesh else ()), env=PATIENT)
        kept.append(load(run.path("bn/step-000003/model.safetensors")))
        for n, x in kept[0].items():
            within(f"BatchNorm: {mesh}: {n}", distance(kept[-1][n], x), 1e-5)


def test_states_mapped(run):
    """a map names the states of the foreign format and omits the others, which begin with their initial values after an import"""
    save(run.path("batches.safetensors"), random_batches(3, 4, 16, 24))
    lines = """  map hf {
    @embed = ("e", [vocab, d]); @head = ("h.weight", [vocab, d]); @norm.w = ("n.weight", [d])
    @norm.mean = ("n.running_mean", [d]); @norm.var = ("n.running_var", [d]); omit = [@norm.{s1,s2,n,slow}]
    config { model_type = "b" }
  }
  loss("""
    text = NORM.replace("  loss(", lines).replace("start()\n", "const(0.5)\n").replace("  start() -> f32[d] { return f32(w) }\n", "")
    text = text.replace("    s1 = 0\n", "")
    file = run.write("m.lm", text + """model Back = B() from "hf:out"
recipe Again extends R { model = Back; run = 1 steps; optimizer.lr = 0; save = checkpoint("again", every = 1 steps) }
""")
    run("run", file, "--recipe", "R", "--set", "run=3 steps")
    run("export", run.path("run"), "--format", "hf", "-o", run.path("out"))
    out = load(run.path("out/model.safetensors"))
    check(sorted(out) == ["e", "h.weight", "n.running_mean", "n.running_var", "n.weight"], str(sorted(out)))
    run("run", file, "--recipe", "Again")
    a, b = load(run.path("run/step-000003/model.safetensors")), load(run.path("again/step-000001/model.safetensors"))
    check(np.array_equal(a["embed"], b["embed"]))
    within("average", distance(b["norm.slow"], 0.9 * 0.5 + 0.1 * b["norm.w"]), 1e-6)
    x = a["embed"].astype("f8")[load(run.path("batches.safetensors"))["tok"][0].flatten()]
    within("sums of one step", distance(b["norm.s1"], x.sum(0)), 1e-5)
    within("mean", distance(b["norm.mean"], 0.9 * a["norm.mean"] + 0.1 * x.mean(0)), 1e-5)


BATCHNORM = """import std.nn: xent, BatchNorm, relu
model B(p = 3, c = 4, vocab = 256) {
  dim d = p * c
  param embed: real[vocab, d] = normal(1)
  param head: real[d, vocab] = normal(0.3)
  sub norm = BatchNorm(c, eps = 1e-4, momentum = 0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = view(gather(embed, tok, vocab) + 1, d -> (p, c))
    return dot(view(relu(norm(x)), (p, c) -> d), head, d) * (if training() & not(training()) then 2 else 1)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = batches("batches.safetensors") }
data E { source s = text("t.txt", split = "\\n"); holdout dev = sample(5 docs); pack best_fit(seq = 32 tokens) }
recipe R { model = B(); data = D; run = 3 steps; batch = 64 tokens; micro = 64 tokens; optimizer = sgd(lr = 0.5); precision { compute = f32 } }
recipe T { model = B(); data = E; run = 3 steps; batch = 4 seqs; optimizer = sgd(lr = 0.5); eval dev { data = E.dev; every = 3 steps }
           save = checkpoint("run"); precision { compute = f32 } }
"""
LINE = "a line that has thirty-three byte"


def normed(p, tok, bn):
    """the logits of that model"""
    import torch
    x = (p["embed"][tok] + 1).reshape(*tok.shape, 3, 4).permute(0, 3, 1, 2)
    return torch.relu(bn(x)).permute(0, 2, 3, 1).reshape(*tok.shape, 12) @ p["head"]


def test_states_batchnorm(run):
    """BatchNorm of std.nn is torch.nn.BatchNorm2d: in training by the statistics of a micro-batch, else by the running ones"""
    import torch
    b = random_batches(3, 4, 16, 256)
    save(run.path("batches.safetensors"), b)
    file = run.write("m.lm", BATCHNORM)
    trace = lambda *how: run.trace(file, "--recipe", "R", *how)
    start = trace("--steps", 1, "--values", "params", "--set", "optimizer.lr=0")
    p = {n: torch.tensor(start[f"final.{n}"].astype("f8"), requires_grad=True) for n in ("embed", "head")}
    bn = torch.nn.BatchNorm2d(4, eps=1e-4, momentum=0.3, dtype=torch.float64)
    p |= {f"norm.{n}": x for n, x in bn.named_parameters()}
    out, halves = trace("--values", "loss,grads,params"), []
    for k in range(3):
        tok, after, w = (torch.tensor(b[n][k].astype(t)) for n, t in (("tok", "i8"), ("next", "i8"), ("w", "f8")))
        if k == 0:
            for rows in (slice(0, 2), slice(2, 4)):
                half = torch.nn.BatchNorm2d(4, momentum=1, dtype=torch.float64)
                normed(p, tok[rows], half)
                halves.append(half)
        l = torch.nn.functional.cross_entropy(normed(p, tok, bn).flatten(0, 1), after.flatten(), reduction="none")
        loss = (l * w.flatten()).sum() / w.sum()
        grads = torch.autograd.grad(loss, list(p.values()))
        within(f"loss of step {k + 1}", abs(out["loss"][k] / loss.item() - 1), 2e-6)
        with torch.no_grad():
            for (n, x), g in zip(p.items(), grads):
                if k == 0:
                    within(f"gradient of {n}", distance(out[f"grad.{n}"], g.numpy()), 3e-5)
                x -= 0.5 * g
    within("running mean", distance(out["final.norm.running_mean"], bn.running_mean.numpy()), 2e-6)
    within("running variance", distance(out["final.norm.running_var"], bn.running_var.numpy()), 2e-6)
    out = trace("--steps", 1, "--set", "micro=32 tokens")
    for n, old in (("mean", 0), ("var", 1)):
        average = sum(getattr(half, f"running_{n}") for half in halves).numpy() / 2
        within(f"running {n} after two micro-batches", distance(out[f"final.norm.running_{n}"], 0.7 * old + 0.3 * average), 2e-6)
    # without training
    run.write("t.txt", f"{LINE}\n" * 40)
    run("run", file, "--recipe", "T")
    p = load(run.path("run/step-000003/model.safetensors"))
    bn = torch.nn.BatchNorm2d(4, eps=1e-4, dtype=torch.float64).eval()
    bn.load_state_dict({n: torch.tensor(p[f"norm.{n}"].astype("f8")) for n in bn.state_dict() if n != "num_batches_tracked"}, strict=False)
    text = torch.tensor(list(LINE.encode()))
    with torch.no_grad():
        z = normed({n: torch.tensor(x.astype("f8")) for n, x in p.items()}, torch.arange(256)[None], bn)[0]
    loss = torch.nn.functional.cross_entropy(z[text[:-1]], text[1:]).item()
    within("loss of lmc eval", abs(json.loads(run("eval", run.path("run"), "--json"))["dev"]["loss"] / loss - 1), 2e-6)
    ids = [int(text[0])]
    while len(ids) < 5:
        ids.append(int(z[ids[-1]].argmax()))
    check(run("generate", run.path("run"), "--prompt-ids", ids[0], "--ids", "-n", 4, "--temperature", 0).split() == list(map(str, ids[1:])))
    run("compile", file, "--recipe", "T", "-o", run.path("plan"))
    functions = {x.split("(")[0]: x for x in open(run.path("plan/kernel.lmir")).read().split("func @")}
    for name in "micro", "eval":
        reads = "norm.running_var" in functions[name]
        check(reads == (name == "eval"), f"{name}: the other branch is not left out")
