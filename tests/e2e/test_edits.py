"""Edits of a model (`with { … }`): frozen parameters have no gradient, no state and no copy in a checkpoint, and their bytes do not change."""
import json, os, shutil

import numpy as np

from harness import ROOT, check, distance, folder_bytes, load, random_batches, save, within

SANITIZER_BUILD = {"frozen_bytes", "frozen_resume", "frozen_from_seed", "lora_merged", "dora", "lora_segments",
                   "own_adapter", "replace_function"}

PROGRAM = """import "{root}/examples/llama.lm": Llama
model Base = Llama(depth = 4, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 64){source}
model Tuned = Llama(depth = 4, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 64){source} with {{
  {edits}
}}
data Batches {{ source s = batches("batches.safetensors") }}
recipe Whole {{
  model = Base; data = Batches; seed = 7
  run = {steps} steps; batch = 64 tokens; micro = 64 tokens
  optimizer = adamw(lr = 3e-3); precision {{ compute = {compute} }}
  save = checkpoint("runs/whole", every = 2 steps, keep = all)
}}
recipe Part extends Whole {{ model = Tuned; save = checkpoint("runs/part", every = 2 steps, keep = all) }}
"""
EDITS = "freeze @**; train @layers.{2,3}.**.{wq,n1}; train @norm"
TRAINED = {"norm", "layers.2.attn.wq", "layers.3.attn.wq", "layers.2.n1", "layers.3.n1"}


def program(run, edits=EDITS, steps=4, compute="f32", source="", name="p.lm"):
    if not os.path.exists(run.path("batches.safetensors")):
        save(run.path("batches.safetensors"), random_batches(120, 4, 16))
    return run.write(name, PROGRAM.format(root=ROOT, edits=edits, steps=steps, compute=compute, source=source))


def arenas(run, file, recipe):
    return json.loads(run("explain", file, "memory", "--recipe", recipe, "--json"))["arenas"]


def test_frozen_flops(run):
    """FLOPs of a step, for MFU, without the gradients of frozen parameters"""
    flops = lambda file, recipe: json.loads(run("bench", file, "--recipe", recipe, "--steps", "1", "--json"))["model_flops"]
    whole, frozen, last = flops(program(run), "Whole"), flops(program(run, "freeze @layers.**"), "Part"), flops(program(run, "freeze @**; train @norm"), "Part")
    weights = 2 * 64 * (32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 64) * 4   # GEMMs of the layers
    check(whole - frozen == weights, f"{whole} less {frozen}, expected {weights}")
    check(last == whole / 3 + 2 * 64 * 32 * 64, f"{last}: forward, and the gradient of the logits' input")


def test_frozen_gradients(run):
    """trained parameters have the gradients that they have without freezing, and frozen ones none"""
    for compute, bar in ("f32", 1e-6), ("bf16", 3e-2):
        file = program(run, compute=compute)
        whole = run.trace(file, "--recipe", "Whole", "--values", "loss,grads", "--steps", "1")
        part = run.trace(file, "--recipe", "Part", "--values", "loss,grads", "--steps", "1")
        check({n[5:] for n in part if n.startswith("grad.")} == TRAINED)
        check(whole["loss"][0] == part["loss"][0])
        for n in TRAINED:
            within(f"{compute} {n}", distance(part["grad." + n], whole["grad." + n]), bar)


def test_frozen_memory(run):
    """a frozen parameter takes the bytes of the type that it is computed with, and nothing else"""
    file = program(run)
    for compute, size in ("f32", 4), ("bf16", 2):
        file = program(run, compute=compute)
        whole, part = arenas(run, file, "Whole"), arenas(run, file, "Part")
        total = json.loads(run("check", file, "--recipe", "Part", "--json"))[0]
        frozen = total["params"] - total["trained"]
        check(part["fixed"] - 64 * 64 <= frozen * size <= part["fixed"])   # tensors are aligned to 64 bytes
        check(part["param"] == part["grad"] == part["state"] // 2 == 5 * 1024 * 4)
        check(whole["fixed"] == 0 and part["copy"] <= whole["copy"])


def test_frozen_bytes(run):
    """after 100 steps the export has the bytes of the base, except the trained tensors; memory is as predicted"""
    run("run", program(run), "--recipe", "Whole", "-q")
    file = program(run, steps=100, source=' from "runs/whole/step-000004"', name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    check(set(load(run.path("runs/part/step-000100/model.safetensors"))) == TRAINED)
    base = load(run.path("runs/whole/step-000004/model.safetensors"))
    out = run.trace(file, "--recipe", "Part", "--values", "params", "--steps", "4")
    check({n[6:] for n in out if n.startswith("final.")} == TRAINED)
    run("export", run.path("runs/part"), "-o", run.path("tuned"))
    run("export", run.path("runs/whole"), "-o", run.path("base"))
    tuned, base = load(run.path("tuned/model.safetensors")), load(run.path("base/model.safetensors"))
    changed = {n for n in base if tuned[n].tobytes() != base[n].tobytes()}
    check(len(changed) == len(TRAINED) and set(tuned) == set(base), changed)


def test_frozen_resume(run):
    """an interrupted run ends with the same bytes; another base is refused by a message that names both"""
    run("run", program(run), "--recipe", "Whole", "-q")
    shutil.copytree(run.path("runs/whole/step-000004"), run.path("base"))
    file = program(run, source=' from "base"', name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    want = folder_bytes(run.path("runs/part/step-000004"))
    shutil.rmtree(run.path("runs/part/step-000004"))
    run("run", file, "--recipe", "Part", "-q")
    check(folder_bytes(run.path("runs/part/step-000004")) == want)
    shutil.rmtree(run.path("base"))
    shutil.copytree(run.path("runs/whole/step-000002"), run.path("base"))
    for command in ("run", file, "--recipe", "Part", "--steps", "6"), ("export", run.path("runs/part"), "-o", run.path("out")):
        message = run(*command, status=1)
        check("was trained on other frozen parameters" in message and message.count("(content ") == 2, message)
    file = program(run, edits="freeze @**; train @norm", source=' from "base"', name="q.lm")
    message = run("run", file, "--recipe", "Part", "--steps", "6", status=1)
    check("parameter layers.attn.wq" in message, message)


def test_frozen_from_seed(run):
    """without `from` the frozen parameters are their initial values, which the seed determines"""
    file = program(run)
    run("run", file, "--recipe", "Part", "-q")
    run("export", run.path("runs/part"), "-o", run.path("a"))
    message = run("export", run.path("runs/part"), "--set", "seed=8", "-o", run.path("b"), status=1)
    check("initial values of seed 7" in message and "initial values of seed 8" in message, message)
    first = run.trace(file, "--recipe", "Whole", "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    out = load(run.path("a/model.safetensors"))
    check(np.array_equal(out["model.embed_tokens.weight"], first["final.embed"]))


# ---- adapters

LINEAR = """import std.nn: xent
import std.adapt: lora
model M(d = 8, f = 6, vocab = 16) {{
  param embed: real[vocab, d] = normal(1.0)
  param w: real[d, f] = normal(0.5)
  param u: real[vocab, f] = normal(0.5)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    return dot(dot(gather(embed, tok, vocab), w, d), u, f)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }}
}}
model Adapted = M() with {{ freeze @**; adapt @{{w,u}} = lora(rank = 2, alpha = 6) }}
data Batches {{ source s = batches("batches.safetensors") }}
recipe Plain {{ model = M(); data = Batches; seed = 3; run = 5 steps; batch = 64 tokens; micro = 32 tokens; optimizer = sgd(lr = {lr})
  precision {{ compute = f32 }} }}
recipe R extends Plain {{ model = Adapted }}
"""


def linear_step(P, D, k, scale, lr):
    """loss and gradients of the formulas of LINEAR in float64; then one step of SGD on the adapters"""
    x = P["embed"][D["tok"][k]]
    h = x @ P["w"] + scale * (x @ P["w.lora.a"]) @ P["w.lora.b"]
    z = h @ P["u"].T + scale * (h @ P["u.lora.a"]) @ P["u.lora.b"]
    z = z - z.max(-1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    w = D["w"][k].astype("f8")
    hot = np.eye(16)[D["next"][k]]
    loss = -(np.log((p * hot).sum(-1)) * w).sum() / w.sum()
    dz = ((p - hot) * w[..., None] / w.sum()).reshape(-1, 16)
    x, h = x.reshape(-1, 8), h.reshape(-1, 6)
    g = {"u.lora.b": scale * (h @ P["u.lora.a"]).T @ dz, "u.lora.a": scale * h.T @ (dz @ P["u.lora.b"].T)}
    dh = dz @ P["u"] + scale * (dz @ P["u.lora.b"].T) @ P["u.lora.a"].T
    g |= {"w.lora.b": scale * (x @ P["w.lora.a"]).T @ dh, "w.lora.a": scale * x.T @ (dh @ P["w.lora.b"].T)}
    for n in g:
        P[n] = P[n] - lr * g[n]
    return loss, g


def test_lora_float64(run):
    """losses, gradients and weights of LoRA are those of the formulas in float64; a is within in ^ -0.5, b is 0"""
    save(run.path("batches.safetensors"), random_batches(5, 4, 16, vocab=16))
    start, D = run.write("start.lm", LINEAR.format(lr="0")), load(run.path("batches.safetensors"))
    plain = run.trace(start, "--recipe", "Plain", "--values", "loss,params", "--steps", "1")
    got = run.trace(start, "--recipe", "R", "--values", "loss,params", "--steps", "1")
    check(plain["loss"].tobytes() == got["loss"].tobytes())          # b is 0: the bits of the base
    P = {n[6:]: t.astype("f8") for n, t in {**plain, **got}.items() if n.startswith("final.")}
    check(P["w.lora.a"].shape == (8, 2) and P["u.lora.a"].shape == (6, 2) and P["u.lora.b"].shape == (2, 16))
    check(0.5 * 8**-0.5 < abs(P["w.lora.a"]).max() <= 8**-0.5 and not P["w.lora.b"].any())
    got = run.trace(run.write("p.lm", LINEAR.format(lr="0.3")), "--recipe", "R")
    for k in range(5):
        loss, g = linear_step(P, D, k, 3, 0.3)
        within(f"loss of step {k + 1}", abs(got["loss"][k] / loss - 1), 1e-5)
        for n in g if k == 0 else ():
            within("gradient of " + n, distance(got["grad." + n], g[n], floor=1e-3), 1e-5)
    for n in g:
        within(n, distance(got["final." + n], P[n]), 1e-5)


ADAPTED = "freeze @**; adapt @layers.*.**.{wq,wv,wg} = lora(rank = 4, alpha = 8)"


DORA = ADAPTED.replace("lora", "dora")


def adapted(run, **how):
    file = program(run, **{"edits": ADAPTED, **how})
    text = open(file).read()
    return run.write(os.path.basename(file), "import std.adapt: lora, dora\n" + text)


def test_lora_starts_as_base(run):
    """step 0 has the bits of the base; the memory has gradients and states of the adapters alone"""
    for compute, edits in ("f32", ADAPTED), ("bf16", ADAPTED), ("f32", DORA), ("bf16", DORA):
        file = adapted(run, compute=compute, edits=edits)
        args = "--values", "loss,logits", "--steps", "1"
        base, lora = run.trace(file, "--recipe", "Whole", *args), run.trace(file, "--recipe", "Part", *args)
        check(base["loss"].tobytes() == lora["loss"].tobytes() and base["logits"].tobytes() == lora["logits"].tobytes(), (compute, edits))
    file = adapted(run)
    rows = json.loads(run("check", file, "--recipe", "Part", "--json"))[0]
    check(rows["trained"] == 4 * (2 * 32 * 4 + 4 * (32 + 16) + 32 * 4 + 4 * 64))
    a = arenas(run, file, "Part")
    check(a["param"] == a["grad"] == a["state"] // 2 == 4 * 6 * 1024 * 4)
    check("W301" not in run.result("check", file, "--recipe", "Part")[2])
    thawed = run.write("thawed.lm", open(file).read().replace("freeze @**; ", ""))
    check("warning[W301]" in run.result("check", thawed, "--recipe", "Part")[2])


def test_lora_merged(run):
    """a run on a base: the checkpoint holds the adapters, resuming gives equal bytes, and the merged export has the run's loss"""
    run("run", program(run), "--recipe", "Whole", "-q")
    file = adapted(run, source=' from "runs/whole"', steps=8, name="q.lm")
    run("run", file, "--recipe", "Part", "-q")
    last = run.path("runs/part/step-000008")
    held = load(os.path.join(last, "model.safetensors"))
    check(len(held) == 4 * 3 * 2 and all(".lora." in n for n in held) and held["layers.3.wg.lora.b"].any())
    want = folder_bytes(last)
    shutil.rmtree(last)
    run("run", file, "--recipe", "Part", "-q")
    check(folder_bytes(last) == want)
    run("export", run.path("runs/part"), "-o", run.path("merged"))
    run("export", run.path("runs/whole"), "-o", run.path("base"))
    merged, base = load(run.path("merged/model.safetensors")), load(run.path("base/model.safetensors"))
    changed = {n for n in base if not np.array_equal(merged[n], base[n])}
    check(set(merged) == set(base) and len(changed) == 12 and all(n.split(".")[-2] in ("q_proj", "v_proj", "gate_proj") for n in changed))
    a, b = (held[f"layers.1.wg.lora.{n}"].astype("f8") for n in "ab")
    want = base["model.layers.1.mlp.gate_proj.weight"] + 2 * (a @ b).T
    within("merged weight", distance(merged["model.layers.1.mlp.gate_proj.weight"], want), 1e-6)
    text = run("generate", run.path("runs/part"), "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0")
    ours = run.write("m.lm", open(file).read().replace('from "runs/whole"', 'from "hf:merged"'))
    check(text == run("generate", ours, "--recipe", "Whole", "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0"))


def test_dora(run):
    """m begins as the norms of the weights; these are computed once in each step; resuming, decoding and the merged export agree"""
    run("run", program(run), "--recipe", "Whole", "-q")
    file = adapted(run, edits=DORA, source=' from "runs/whole"', steps=8, name="q.lm")
    start = run.trace(file, "--recipe", "Part", "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    base = load(run.path("runs/whole/step-000004/model.safetensors"))
    want = np.linalg.norm(base["layers.2.wg"].astype("f8"), axis=0)
    within("m", distance(start["final.layers.2.wg.dora.m"], want), 1e-6)
    run("run", file, "--recipe", "Part", "-q")
    last = run.path("runs/part/step-000008")
    check(len(load(os.path.join(last, "model.safetensors"))) == 4 * 3 * 3)
    want = folder_bytes(last)
    shutil.rmtree(last)
    run("run", file, "--recipe", "Part", "-q")
    check(folder_bytes(last) == want)
    run("export", run.path("runs/part"), "-o", run.path("merged"))
    ours = run.write("m.lm", open(file).read().replace('from "runs/whole"', 'from "hf:merged"'))
    text = run("generate", run.path("runs/part"), "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0")
    check(text == run("generate", ours, "--recipe", "Whole", "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0"))
    run("compile", file, "--recipe", "Part", "-o", run.path("plan"))
    funcs = open(run.path("plan/step.lmir")).read().split("\nfunc @")
    micro, copies = (next(f for f in funcs if f.startswith(n + "(")) for n in ("micro", "copies"))
    check(" sqrt " not in micro and copies.count(" sqrt ") >= 3 and ".dora.b" in copies)


def test_lora_on_some_layers(run):
    """adapters on some instances of a repetition make segments of its loop; other lines give other ranks"""
    edits = "freeze @**; adapt @layers.{1,2}.**.wq = lora(rank = 2); adapt @layers.2.**.wq = lora(rank = 3, alpha = 1)"
    file = adapted(run, edits=edits)
    out = run.trace(file, "--recipe", "Part", "--values", "grads,params", "--steps", "2")
    shapes = {n[6:]: t.shape for n, t in out.items() if n.startswith("final.")}
    check(shapes["layers.1.attn.wq.lora.a"] == (32, 2) and shapes["layers.2.attn.wq.lora.a"] == (32, 3) and len(shapes) == 4)
    check(all(t.any() for n, t in out.items() if n.endswith(".b")))


def test_lora_segments(run):
    """adapters on layers 3 to 5 make loops of equal layers, so the program does not grow with the number of layers"""
    edits = "freeze @**; adapt @layers.{3,4,5}.**.{wq,wv} = lora(rank = 2); after @layers.{3,5}.attn = bottleneck(m = 2)"
    size = {}
    for depth in 16, 48:
        text = open(adapted(run, edits=edits)).read().replace("depth = 4", f"depth = {depth}").replace("lora, dora", "lora, dora, bottleneck")
        run("compile", run.write("deep.lm", text), "--recipe", "Part", "-o", run.path("plan"))
        plan = open(run.path("plan/graph.lmir")).read()
        size[depth] = plan.count("\n"), plan.count(" = loop "), len(os.listdir(run.path("plan/kernels")))
        shutil.rmtree(run.path("plan"))
    check(size[16] == size[48] and size[16][1] > 2, size)


OWN = """block scaled(start = 1) {
  param s: real[..o] = const(start)
  merge(w: real[..i, ..o]) -> real[..i, ..o] { return w * s }
}
"""


def test_own_adapter(run):
    """an adapter in the user's file: IA3's scale of a weight's outputs, by `merge` alone"""
    file = program(run, edits="freeze @**; adapt @layers.*.{wg,wu} = scaled()")
    run.write("p.lm", OWN + open(file).read())
    args = "--values", "loss,params,grads", "--steps", "2"
    base, own = run.trace(file, "--recipe", "Whole", *args), run.trace(file, "--recipe", "Part", *args)
    check(base["loss"][0] == own["loss"][0] and own["final.layers.0.wg.scaled.s"].shape == (64,))
    # d loss / d s = sum over the inputs of w * d loss / d w
    start = run.trace(file, "--recipe", "Whole", "--values", "params", "--steps", "1", "--set", "optimizer.lr=0")
    for n in "layers.0.wg", "layers.3.wu":
        want = (start["final." + n].astype("f8") * base["grad." + n]).sum(0)
        within(n, distance(own[f"grad.{n}.scaled.s"], want), 1e-5)
    # a model that was not trained: adapters have their initial values
    run("run", file, "--recipe", "Whole", "-q")
    more = program(run, edits="freeze @**; adapt @layers.*.{wg,wu} = scaled()", source=' from "runs/whole"', name="q.lm")
    run.write("q.lm", OWN + open(more).read())
    args = "--ids", "--prompt-ids", "1,2,3", "-n", "12", "--temperature", "0"
    check(run("generate", more, "--recipe", "Part", *args) == run("generate", more, "--recipe", "Whole", *args))


NORMED = """import "{file}": GPT2
import std.nn: layernorm, rmsnorm
fn rms_alone(x: real[..r], w: real[..s], c: real[..s], eps: f32 = 1e-5) -> real[..r] where s in r {{
  return rmsnorm(x, w, eps)
}}
model Plain = GPT2(depth = 2, d = 32, heads = 4, positions = 16, vocab = 64){source}
model Normed = GPT2(depth = 2, d = 32, heads = 4, positions = 16, vocab = 64){source} with {{ {edits} }}
data Batches {{ source s = batches("batches.safetensors") }}
recipe Whole {{
  model = Plain; data = Batches; seed = 7; run = 30 steps; batch = 64 tokens; micro = 64 tokens
  optimizer = adamw(lr = 3e-3); precision {{ compute = f32 }}; save = checkpoint("runs/whole", every = 30 steps)
}}
recipe Part extends Whole {{ model = Normed; save = checkpoint("runs/part", every = 30 steps) }}
"""


def test_replace_function(run):
    """LayerNorm replaced by RMSNorm in a GPT-2 that is imported: the values of the same model written with RMSNorm"""
    save(run.path("batches.safetensors"), {n: np.repeat(t, 30, 0) for n, t in random_batches(1, 4, 16).items()})
    gpt2 = os.path.join(ROOT, "examples/gpt2.lm")
    text = dict(file=gpt2, source="", edits="replace layernorm = rms_alone")
    run("run", run.write("p.lm", NORMED.format(**text)), "--recipe", "Whole", "-q")
    run("export", run.path("runs/whole"), "-o", run.path("base"))
    text["source"] = ' from "hf:base"'
    file = run.write("q.lm", NORMED.format(**text))
    written = open(gpt2).read().replace("layernorm", "rms_alone").replace("import std.nn: rms_alone", "import std.nn: rmsnorm")
    start = written.index("block ")
    written = written[:start] + NORMED[NORMED.index("fn rms"):NORMED.index("model Plain")].format() + written[start:]
    ours = run.write("o.lm", NORMED.format(**{**text, "file": run.write("gpt2.lm", written), "edits": "train @**"}).replace("layernorm, ", ""))
    args = "--values", "loss,grads", "--steps", "30"
    got, want, plain = (run.trace(f, "--recipe", "Part", *args) for f in (file, ours, file.replace("q.lm", "p.lm")))
    check(set(got) == set(want) and abs(got["loss"][0] - plain["loss"][0]) > 1e-3 and got["loss"][-1] < got["loss"][0] - 0.1)
    within("losses", abs(got["loss"] / want["loss"] - 1).max(), 1e-6)
    for n in want:
        within(n, distance(got[n], want[n], floor=1e-3), 1e-5)
    run("run", file, "--recipe", "Part", "-q")
    err = run("export", run.path("runs/part"), "-o", run.path("out"), status=1)
    check("error[E327]" in err and "replace layernorm" in err, err)
    args = "--ids", "--prompt-ids", "1,2,3", "-n", "6", "--temperature", "0"
    run("generate", run.path("runs/part"), *args)
    none = run.write("n.lm", NORMED.format(**{**text, "edits": "replace rmsnorm = same"}) + """fn same(x: real[..r], w: real[..s], eps: f32 = 1e-5) -> real[..r] where s in r { return x * w }
""")
    err = run("check", none, "--recipe", "Part", status=1)
    check("error[E326]" in err and "declared here" in err, err)
