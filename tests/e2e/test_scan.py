"""Loops over positions: memory and operations for longer rows, other lengths, decoding in chunks. Against PyTorch: tests/models."""
import json
import re

import numpy as np

from harness import ROOT, check, distance, load, save, within
from test_memory import same_bits

PLAIN_BUILD = {"chunks", "rounded_chunks", "chunk_growth", "growth", "bf16", "chunks_in_float64", "tiles",
               "earlier_inputs", "rounded_reads_with_keys", "decode_constant"}
MODEL = open(f"{ROOT}/tests/models/mamba/reference.lm").read().split("model Start")[0]
PROGRAM = """
data D {{ source s = text("text.txt"); pack best_fit(seq = {seq} tokens) }}
recipe R {{
  model = Mamba(depth = {depth}, d = {d}, e = {d}, vocab = 256); data = D; seed = 3; run = {steps} steps
  batch = {batch} tokens; micro = {batch} tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = {compute} }}
}}
"""
TEXT = "".join(f"{chr(97 + i * 7 % 26)}{chr(97 + i * i % 26)} the {i % 37} of {i % 11}.\n" for i in range(900))


def program(run, seq, rows=1, depth=2, d=16, steps=2, compute="f32"):
    run.write("text.txt", TEXT)
    return run.write(f"m{seq}.lm", MODEL + PROGRAM.format(seq=seq, batch=seq * rows, depth=depth, d=d, steps=steps, compute=compute))


def planned(run, file, *args):
    return json.loads(run("compile", file, "--json", *args))


def test_growth(run):
    """16 times as many positions: memory and operations grow by this factor, launches by that of the tiles"""
    short, long = (planned(run, program(run, seq, d=32)) for seq in (256, 4096))
    fixed = planned(run, program(run, 16, d=32))    # parameters, and columns of the batch
    bytes_ = [p["peak_bytes"] - fixed["peak_bytes"] for p in (short, long)]
    check(bytes_[1] <= 18 * bytes_[0], f"bytes: {bytes_}")
    check(long["flops"] <= 16.2 * short["flops"], f"operations: {short['flops']}, {long['flops']}")
    check(long["launches"] <= 4.5 * short["launches"], f"launches: {short['launches']}, {long['launches']}")


def test_growth_of_layers(run):
    """the memory of Mamba-2 and Griffin beside parameters, from 256 to 4,096 positions, is proportional to the positions"""
    for name in "mamba2", "griffin":
        file, model = RECURRENT[name]
        text, found = open(f"{ROOT}/{file}").read().split("\nmodel Start")[0], []
        for seq in "16", "256", "1024", "4096":
            program = run.write(f"{name}.lm", text + DECODER.replace("MODEL", model).replace("SEQ", seq).replace("COUNT", "2"))
            found.append(json.loads(run("explain", program, "memory", "--json"))["bytes"])
        growth = [(b - a) / n for a, b, n in zip(found, found[1:], (240, 768, 3072))]
        check(growth[2] <= 1.15 * growth[0] and growth[2] <= 1.02 * growth[1], f"bytes of {name} for each position: {growth}")


RECURRENT = {"mamba2": ("examples/zoo/mamba2.lm", "Mamba2(depth = 2, d = 32, groups = 2, p = 16, n = 16"),
             "griffin": ("tests/models/griffin/reference.lm", "Griffin(depth = 2"),
             "mistral": ("examples/zoo/mistral.lm", "Mistral(depth = 2, d = 32, ff = 64, heads = 2, kv = 1, window = 60"),
             "llama": ("examples/zoo/llama.lm", "Llama(depth = 2, d = 32, ff = 64, heads = 2, tied = true, positions = 4096")}
DECODER = """
data D { source s = text("text.txt"); pack best_fit(seq = SEQ tokens) }
recipe R {
  model = MODEL, vocab = 256); data = D; run = 2 steps; batch = SEQ tokens; micro = SEQ tokens; optimizer = adamw(lr = 1e-2)
  sample { every = 2 steps; prompt = "a"; n = COUNT tokens; temperature = 0 }; precision { compute = f32 }
}
"""


def test_decode_constant(run):
    """a token of decoding has the same cache, launches, bytes and predicted time in a context of 256 positions and of 4,096; of a Llama,
    whose KV cache grows, it has not. lmc check prints the bytes of the cache"""
    run.write("text.txt", TEXT)
    for name, (file, model) in RECURRENT.items():
        text, found = open(f"{ROOT}/{file}").read().split("\nmodel Start")[0], []
        for seq in "1024" if name == "mistral" else "256", "4096":     # the ring has 512 positions
            decoder = DECODER.replace("MODEL", model).replace("SEQ", seq).replace("COUNT", str(int(seq) - 1))
            program = run.write(f"{name}.lm", text + decoder)
            explained = lambda *what, program=program: json.loads(run("explain", program, *what, "--json"))
            token = explained("cost", "--target", "h100", "--set", "precision.compute = bf16")["decoding"]
            check(token.pop("positions") == int(seq), str(token))
            found.append((explained("memory")["arenas"]["cache"], token))
        bytes_ = json.loads(run("check", program, "--json"))[0]["cache_bytes"]
        planned_bytes = 4096 * bytes_["position"] + bytes_["constant"]
        check(abs(found[1][0] - planned_bytes) < 64 * 20, f"{name}: {bytes_}, {found}")
        check((bytes_["position"] > 0) == (name == "llama") and (bytes_["constant"] > 0) == (name != "llama"), f"{name}: {bytes_}")
        check(found[0][0] > 0 and (found[0] == found[1]) == (name != "llama"), f"{name}: {found}")
        check(name != "llama" or found[1][0] > 15 * found[0][0], str(found))


# model, its file and arguments, those of a Llama of as many parameters, and the most that a step may take beside its step
SIZED = {"Mamba2": ("mamba2", "depth = 2, d = 4096, groups = 8, n = 128", "depth = 1, d = 4096, ff = 12_288, heads = 32", 1.5),
         "RecurrentGemma": ("recurrent_gemma", "depth = 2", "depth = 2, d = 2560, ff = 7040, heads = 20", 1.5)}


def step_of(run, file, model, seq, target):
    """operations, calls of GEMMs and predicted seconds of a step of 8,192 tokens"""
    text = MAMBA2.replace("mamba2.lm", f"{file}.lm").replace("Mamba2", model.split("(")[0], 1).replace("f32 }}", "bf16 }}")
    sized = "Mamba2(depth = 2, d = {d}, groups = 2, p = 16, n = 16, vocab = 256)"
    file = run.write("sized.lm", text.replace(sized, f"{model}, vocab = 256)").format(seq=seq, batch=8192))
    cost = json.loads(run("explain", file, "cost", "--target", target, "--json"))
    fills = [row["name"] for row in cost["rows"] if row["name"].startswith("const")]
    check(target == "cpu" or not fills, f"what scans start with has no memory: {fills}")
    gemms = sum(row["times"] * (2 if row["name"].startswith("scan") else 1) for row in cost["rows"] if re.search(r"\bdot(_|\b)", row["name"]))
    return sum(row["flops"] for row in cost["rows"]), gemms, cost["predicted_s"]


def test_steps_of_layers(run):
    """operations, GEMMs and the time that the cost model predicts for an H100: for each token constant in the length of rows, except that
    the first chunk of a row reads no state, and beside a Llama, whose operations grow. Mamba-2 takes 1.17 to 1.26 times the predicted step
    (docs/benchmarks.md, which also has steps measured on a CPU)"""
    run.write("text.txt", TEXT)
    for name, (file, size, llama, most) in SIZED.items():
        models = (file, f"{name}({size}"), ("llama", f"Llama({llama}, positions = 4096")
        own, other = ([step_of(run, *model, seq, "h100") for seq in (256, 4096)] for model in models)
        on_cpu = [step_of(run, *models[0], seq, "cpu") for seq in (256, 4096) if run.nightly]
        for steps in (own, on_cpu) if run.nightly else (own,):
            check(all(0 <= flops / steps[0][0] - 1 < 0.01 for flops, _, _ in steps), f"operations of {name}: {steps}")
            check(len({gemms for _, gemms, _ in steps}) == 1 and steps[0][1] > 10, f"GEMMs of {name}: {steps}")
        check(max(s for *_, s in own) < 1.1 * min(s for *_, s in own), f"seconds of {name}: {own}")
        check(other[1][0] > 1.05 * other[0][0], f"operations of the Llama: {other}")
        check(all(a[2] < most * b[2] for a, b in zip(own, other)), f"{name} and a Llama: {own}, {other}")


def test_tiles(run):
    """tiles change the results by rounding only; a prime number of positions has no tiles"""
    for seq in 48, 61:
        file = program(run, seq, rows=2)
        a, b = (run.trace(file, "--values", "loss,grads", *off) for off in ((), ("--disable-pass", "tile_scan")))
        for name in a:
            within(f"{seq} {name}", distance(a[name], b[name]), 1e-5)


MAMBA2 = f"""import "{ROOT}/examples/zoo/mamba2.lm": Mamba2
data D {{{{ source s = text("text.txt"); pack best_fit(seq = {{seq}} tokens) }}}}
recipe R {{{{
  model = Mamba2(depth = 2, d = {{d}}, groups = 2, p = 16, n = 16, vocab = 256); data = D; seed = 3; run = 2 steps
  batch = {{batch}} tokens; micro = {{batch}} tokens; optimizer = adamw(lr = 1e-2); precision {{{{ compute = f32 }}}}
}}}}
"""


# the convolution of the file as a loop whose carries are the last inputs
CONV = """{
  let (w0, w1, w2, w3) = unstack(f32(w), k)
  let (now, zero) = (f32(x), expand(expand(0, b), c))
  let (x1, x2, x3) = (zero, zero, zero)
  for at in t carry x1, x2, x3 {
    let (y1, y2, y3) = (select(pos > 0, x1, 0), select(pos > 1, x2, 0), select(pos > 2, x3, 0))
    emit y = w3 * now + w2 * y1 + w1 * y2 + w0 * y3 + f32(bias)
    x1 = now; x2 = y1; x3 = y2
  }
  return silu(real(permute(y, (b, t, c))))
}"""


def mamba2(run, seq, rows=1, d=32, state=None, conv=None):
    """state: the statements that update and read the state, instead of the two in the body of the loop"""
    run.write("text.txt", TEXT)
    text = open(f"{ROOT}/examples/zoo/mamba2.lm").read()
    if state:
        first, last = text.index("      s = keep"), text.index("      emit y = dot(real(s), out, n)")
        text = text[:first] + state + text[last:].split("\n", 1)[1]
    if conv:
        first = text.index("{\n  return silu(short_conv")
        text = text[:first] + conv + text[text.index("}", first) + 1:]
    run.write("mamba2.lm", text)
    return run.write(f"z{seq}.lm", MAMBA2.replace(f"{ROOT}/examples/zoo/", "").format(seq=seq, batch=seq * rows, d=d))


UPDATE = "      s = keep * old + expand(add, n) * key\n"
STATES = {"after": (144, None), "after, in one chunk": (48, None),
          "after a state that is not 0": (96, None),
          "both": (96, "      let old = select(pos > 0, s, 0)\n" + UPDATE + "      emit y = dot(s, f32(out), n) + sin(dot(old, 2 * f32(out), n))\n"),
          "before, and the input by another way, as in RWKV":
          (144, "      let old = select(pos > 0, s, 0)\n      emit y = dot(old + 0.5 * expand(u, n) * key, f32(out), n)\n" + UPDATE)}


def test_chunks(run):
    """chunks of a linear recurrence change the results by rounding only"""
    forced = "--enable-pass", "chunk_scan"
    for when, (seq, state) in STATES.items():
        file = mamba2(run, seq, rows=2, state=state)
        if "not 0" in when:
            text = open(run.path("mamba2.lm")).read()
            run.write("mamba2.lm", text.replace("expand(0, b)", "expand(0.5, b)"))
        kernels = [planned(run, file, *args)["kernels"] for args in (forced, ("--disable-pass", "chunk_scan"))]
        check(kernels[0] != kernels[1], f"read {when}: the loop is computed in chunks")
        a, b = (run.trace(file, "--values", "loss,grads", *args) for args in (forced, ("--disable-pass", "chunk_scan,tile_scan")))
        for name in a:
            within(f"read {when}: {name}", distance(a[name], b[name]), 2e-5)


def test_rounded_chunks(run):
    """Mamba-2 in bf16: the errors of chunks beside f32 are those of the loop. A document begins in each half of a chunk, one has
    one position, and one a chunk"""
    rng = np.random.default_rng(11)
    starts = [np.arange(n) for n in (37, 1, 141, 77, 128)]
    pos = np.concatenate(starts).astype("<i4")
    tok = rng.integers(0, 256, len(pos)).astype("<i4")
    w = rng.random(len(pos)).astype("<f4")
    seg = np.repeat(np.arange(len(starts)), [len(s) for s in starts]).astype("<i4")
    columns = dict(tok=tok, pos=pos, seg=seg, next=np.roll(tok, -1), w=w)
    save(run.path("batches.safetensors"), {n: x.reshape(1, 1, len(pos)) for n, x in columns.items()})
    file = mamba2(run, len(pos), d=64)
    text = open(file).read().replace("depth = 2", "depth = 1").replace("2 steps", "1 steps")
    text = text.replace('text("text.txt"); pack best_fit(seq = 384 tokens)', 'batches("batches.safetensors")')
    file = run.write("rounded.lm", text)
    bf16, loop = ("--set", "precision.compute = bf16"), ("--disable-pass", "chunk_scan,tile_scan")
    values = "--values", "loss,grads"
    exact, of_loop = run.trace(file, *values, *loop), run.trace(file, *values, *bf16, *loop)
    of_chunks = run.trace(file, *values, *bf16, "--enable-pass", "chunk_scan")
    check(any((of_chunks[n] != of_loop[n]).any() for n in exact), "the loop is computed in chunks")
    text = open(run.path("mamba2.lm")).read()
    decay = "step * -exp(f32(loga))"
    run.write("mamba2.lm", text.replace(decay, f"select(pos > 0, {decay}, -1e30)").replace("select(pos > 0, s, 0)", "s"))
    of_masked = run.trace(file, *values, *bf16, "--enable-pass", "chunk_scan")
    for name in exact:
        most = 2 * distance(of_loop[name], exact[name]) + 1e-4
        within(name, distance(of_chunks[name], exact[name]), most)
        within(f"documents begin by exp(-1e30): {name}", distance(of_masked[name], exact[name]), most)


RECURRENT_LAYERS = """import std.nn: rmsnorm, xent
import std.layers: GatedDeltaNet, delta_rule, rwkv7_state
block DeltaNet(d, g, k, most, shift) {
  dim r = 1, v = k
  param wq, wk: real[d, g, k] = normal(d ^ -0.5)
  param wv: real[d, g, r, v] = normal(d ^ -0.5)
  param wb: real[d, g, r] = normal(d ^ -0.5)
  param wo: real[g, r, v, d] = normal((g * v) ^ -0.5)
  apply(x: real[b, t, d], pos: int[b, t]) -> real[b, t, d] {
    let key = f32(dot(x, wk, d))
    let rate = most * sigmoid(2 * f32(dot(x, wb, d)) + shift)
    let y = delta_rule(f32(dot(x, wq, d)) * k ^ -0.5, key * rsqrt(sum(key * key, k) + 1e-6), f32(dot(x, wv, d)),
                       0 * rate + 1, rate, pos)
    return dot(real(y), wo, (g, r, v))
  }
}
block Rwkv(d, h, e, shift = 0) {
  param wr, wk, wv, wa: real[d, h, e] = normal(d ^ -0.5)
  param ww: real[d, h, e] = normal(2 * d ^ -0.5)
  param wo: real[h, e, d] = normal((h * e) ^ -0.5)
  apply(x: real[b, t, d], pos: int[b, t]) -> real[b, t, d] {
    let keep = exp(-0.6065306597126334 * sigmoid(f32(dot(x, ww, d)) + shift))
    let k = f32(dot(x, wk, d))
    let key = k * rsqrt(sum(k * k, e) + 1e-6)
    let o = rwkv7_state(f32(dot(x, wr, d)), keep, key, sigmoid(f32(dot(x, wa, d))), k, f32(dot(x, wv, d)), pos)
    return dot(real(o), wo, (h, e))
  }
}
model Recurrent(d, vocab) {
  sub mix = LAYER
  param embed: real[vocab, d] = normal(1)
  param norm: real[d] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    return dot(rmsnorm(x + mix(rmsnorm(x, norm), pos), norm), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
"""
ROUNDED = """data D { source s = batches("batches.safetensors") }
recipe R {
  model = Recurrent(d = 64, vocab = 64); data = D; seed = 3; run = 1 steps
  batch = 320 tokens; micro = 320 tokens; optimizer = adamw(lr = 1e-2)
}
"""
# the layer, and its errors beside those of the loop. Without decay u - s * dot(h, k, n) is small where a key repeats; the chunk rounds u
LAYERS_OF = {"Gated DeltaNet": ("GatedDeltaNet(d, 2, 16, 2, 32, 4, 1e-2)", 2), "RWKV-7": ("Rwkv(d, 2, 32)", 2),
             "decays near their bound": ("Rwkv(d, 2, 32, 6)", 1.3), "rates to 1.9": ("DeltaNet(d, 2, 32, 1.9, 0)", 2.5), "rates near 1": ("DeltaNet(d, 2, 32, 1, 2)", 2.5)}


def test_rounded_delta(run):
    """Gated DeltaNet, the delta rule without decay, and the state of RWKV-7, in bf16, with keys that repeat and three
    documents: the errors of chunks beside f32 are those of the loop"""
    rng = np.random.default_rng(5)
    tok = np.repeat(rng.integers(0, 64, 40), 8).astype("<i4")
    pos = np.concatenate([np.arange(n) for n in (272, 1, 47)]).astype("<i4")
    seg = np.repeat([0, 1, 2], [272, 1, 47]).astype("<i4")
    columns = dict(tok=tok, pos=pos, seg=seg, next=np.roll(tok, -1), w=rng.random(320).astype("<f4"))
    save(run.path("batches.safetensors"), {n: x.reshape(1, 1, 320) for n, x in columns.items()})
    loop, chunks = ("--disable-pass", "chunk_scan,tile_scan"), ("--enable-pass", "chunk_scan")
    for layer, (text, factor) in LAYERS_OF.items():
        file, values = run.write("layer.lm", RECURRENT_LAYERS.replace("LAYER", text) + ROUNDED), ("--values", "loss,grads", "--set")
        exact = run.trace(file, *values, "precision.compute = f32", *loop)
        of_loop, of_chunks = (run.trace(file, *values, "precision.compute = bf16", *args) for args in (loop, chunks))
        check(any((of_chunks[n] != of_loop[n]).any() for n in exact), f"the loop of {layer} is computed in chunks")
        for name in exact:
            most = factor * distance(of_loop[name], exact[name]) + (1e-3 if name == "loss" else 1e-4)
            within(f"{layer}: {name}", distance(of_chunks[name], exact[name]), most)


def test_infinite_state(run):
    """the state of a document becomes infinite: the loops of the library pass nothing of it on to the next document"""
    pos = np.concatenate([np.arange(n) for n in (12, 4)]).astype("<i4")
    tok = (7 * np.arange(16) % 64).astype("<i4")
    columns = dict(tok=tok, pos=pos, seg=np.repeat([0, 1], [12, 4]).astype("<i4"), next=tok, w=np.ones(16, "<f4"))
    save(run.path("batches.safetensors"), {n: x.reshape(1, 1, 16) for n, x in columns.items()})
    text = RECURRENT_LAYERS + ROUNDED.replace("320", "16").replace("Recurrent(d = 64, vocab = 64)", "Tuned")
    text = text.replace("x + mix(rmsnorm(x, norm), pos)", "x + select(expand(seg, d) > 0, mix(rmsnorm(x, norm), pos), 0)")
    text = text.replace("return dot(rmsnorm", "return out * dot(rmsnorm").replace("  param norm", "  param out: real[vocab] = ones\n  param norm")
    text += "model Tuned = Recurrent(d = 64, vocab = 64) with { freeze @**; train @out }\n"    # no backward pass of the loop
    for layer in "DeltaNet(d, 2, 32, 1, 0)", "Rwkv(d, 2, 32)":
        finite = text.replace("LAYER", layer)
        infinite = finite.replace("f32(dot(x, wv, d))", "f32(dot(x, wv, d)) * exp(f32(select(pos == 5, 1000, 0)))")
        a, b = (run.trace(run.write("state.lm", t), "--values", "logits", "--set", "precision.compute = f32", "--disable-pass", "chunk_scan")
                for t in (finite, infinite))
        check((a["logits"] == b["logits"]).all(), layer)


# Decays for each key whose weights are no GEMMs: without a bound, 0 at some keys; 0 or 1, of more factors than the pass looks through.
UNBOUNDED = "exp(-key * key)", "select(key > 0, exp(-0.6 * sigmoid(key)), 0)"
UNKNOWN = "select(key > 0, f32(1), f32(0))", " * ".join(f"exp(-0.01 * sigmoid({i} * key))" for i in range(1, 20))


def test_rounded_reads_with_keys(run):
    """decays for each key without a bound that the compiler finds, where the read rounds the state"""
    bf16, chunked = ("--set", "precision.compute = bf16"), ("--enable-pass", "chunk_scan")
    for keep in UNBOUNDED + UNKNOWN:
        state = f"      s = {keep} * select(pos > 0, s, 0) + expand(add, n) * key\n      emit y = dot(real(s), out, n)\n"
        file = mamba2(run, 64, state=state)
        if keep in UNKNOWN:
            planned(run, file, *bf16, *chunked)
            continue
        chunks, loop = (run.trace(file, "--values", "loss,grads", *bf16, *how) for how in (chunked, ("--disable-pass", "chunk_scan,tile_scan")))
        check(any((chunks[n] != loop[n]).any() for n in loop), f"{keep}: the loop is computed in chunks")
        for name in loop:
            within(f"{keep}: {name}", distance(chunks[name], loop[name]), 0.1)   # of two layers in bf16


def test_rounded_budget(run):
    """a budget recomputes what chunks keep for the backward pass, as a rule does"""
    file = mamba2(run, 512, rows=4, d=128)
    gpu = "--target", "h100", "--set", "precision.compute = bf16", "--enable-pass", "chunk_scan"
    rule = "--set", "memory { recompute @layers.** }"
    kept, least = (json.loads(run("explain", file, "memory", "--json", *gpu, *asked))["bytes"] for asked in ((), rule))
    budget = int(1.01 * least)
    plan = json.loads(run("explain", file, "memory", "--json", *gpu, "--set", f"memory.budget = {budget} bytes"))
    check(plan["bytes"] <= budget < 0.9 * kept, f"{plan['bytes']} bytes for a budget of {budget}, without one {kept}")


def test_chunk_choice(run):
    """the delta rule and decays of keys are computed in chunks on a GPU, not on a CPU"""
    run.write("text.txt", TEXT)
    delta = open(f"{ROOT}/tests/models/delta/reference.lm").read().split("model Start")[0]
    recipe = MAMBA2.split("\n", 1)[1].replace("Mamba2(depth = 2, d = {d}, groups = 2, p = 16, n = 16", "Recurrent(h = 1, k = 64, v = 64")
    file = run.write("delta.lm", delta + recipe.format(seq=256, batch=256))
    rwkv = recipe.replace("Recurrent(h = 1, k = 64, v = 64", "RWKV7(depth = 2, d = 1024")
    short = run.write("rwkv.lm", f'import "{ROOT}/examples/zoo/rwkv7.lm": RWKV7\n' + rwkv.format(seq=256, batch=4096))
    seconds = [json.loads(run("explain", short, "cost", "--target", "h100", "--json", *args))["predicted_s"]
               for args in ((), ("--disable-pass", "chunk_scan"))]
    check(seconds[0] < 0.1 * seconds[1], f"few threads of a GPU run the backward pass of the loop: {seconds}")
    for target, chunks in ("cpu", False), ("h100", True):
        rows = json.loads(run("explain", file, "cost", "--target", target, "--json"))["rows"]
        names = [row["name"] for row in rows]
        check(any(" 16x64x64" in name for name in names) == chunks, names)   # GEMMs of a chunk of 16 positions


def test_chunks_in_float64(run):
    """decays for each key and the delta rule, in chunks: gates that are 0 and 1, decays that underflow, keys that repeat, a long row.
    The errors beside PyTorch in float64 are those of the loop"""
    import importlib.util
    import sys

    import torch

    sys.path.insert(0, f"{ROOT}/tests/models")
    folder = f"{ROOT}/tests/models/delta"
    spec = importlib.util.spec_from_file_location("delta_model", f"{folder}/model.py")
    model = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(model)
    seq = 320   # 20 chunks
    rng = np.random.default_rng(5)
    tok = np.repeat(rng.integers(0, 32, seq // 8), 8).astype("<i4")   # runs of one token: keys repeat
    pos = np.concatenate([np.arange(seq - 48), np.arange(1), np.arange(47)]).astype("<i4")
    seg = np.repeat([0, 1, 2], [seq - 48, 1, 47]).astype("<i4")
    w = rng.random(seq).astype("<f4")
    save(run.path("batches.safetensors"), {n: x.reshape(1, 1, seq) for n, x in
                                           dict(tok=tok, pos=pos, seg=seg, next=np.roll(tok, -1), w=w).items()})
    weights = load(f"{folder}/weights.safetensors")
    weights = {n: (x * {"g.a": 60, "d.a": 12, "d.b": 20, "r.w": 40}.get(n, 1)).astype("<f4") for n, x in weights.items()}
    save(run.path("weights.safetensors"), weights)
    text = open(f"{folder}/reference.lm").read().split("data Replay")[0]
    file = run.write("delta.lm", text + f"""data Replay {{ source s = batches("batches.safetensors") }}
recipe R {{ model = Start; data = Replay; run = 1 steps; batch = {seq} tokens; micro = {seq} tokens
  optimizer = adamw(lr = 1e-3); precision {{ compute = f32 }} }}
""")
    W = {n: torch.tensor(x.astype("f8"), requires_grad=True) for n, x in weights.items()}
    z = model.logits(W, *(torch.tensor(x.astype("i8"))[None] for x in (tok, pos, seg)))
    loss = torch.nn.functional.cross_entropy(z[0], torch.tensor(np.roll(tok, -1).astype("i8")), reduction="none")
    (loss @ torch.tensor(w.astype("f8")) / float(w.astype("f8").sum())).backward()
    want = {f"grad.{n}": x.grad.numpy() for n, x in W.items()} | {"logits": z.detach().numpy()}
    modes = {"chunks": ("--enable-pass", "chunk_scan"), "loop": ("--disable-pass", "chunk_scan,tile_scan")}
    got = {mode: run.trace(file, "--values", "logits,grads", "--names", "hf", *args) for mode, args in modes.items()}
    for name, x in want.items():
        error = {mode: distance(got[mode][name], x) for mode in modes}
        within(f"{name}, of the loop", error["loop"], 5e-5)   # of d.b 2.9e-5 with AVX2, 3.2e-5 with SSE2
        within(f"{name}, in chunks", error["chunks"], max(2e-6, 4 * error["loop"]))


def test_frozen(run):
    """loops over positions in a layer that is trained behind a frozen one: the gradients of the whole model"""
    file = mamba2(run, 48, rows=2)
    whole = run.trace(file, "--values", "grads", "--steps", "1")
    before, rest = open(file).read().split("model = Mamba2", 1)
    sizes, after = rest.split(";", 1)
    edited = f"model Tuned = Mamba2{sizes} with {{ freeze @**; train @layers.1.** }}\n"
    file = run.write("frozen.lm", f"{before}model = Tuned;{after}{edited}")
    part = run.trace(file, "--values", "grads", "--steps", "1")
    check(part and all(".layers.1." in name for name in part))
    for name in part:
        within(name, distance(part[name], whole[name]), 1e-6)


def test_earlier_inputs(run):
    """a convolution by carries is computed for all positions at once, with the results of the loop and of short_conv"""
    file = mamba2(run, 48, rows=2, conv=CONV)
    scans = ("compile", file, "-o", run.path("plan"), "--disable-pass", "chunk_scan")
    run(*scans)
    check(open(run.path("plan/graph.lmir")).read().count("= scan ") == 1, "one loop of the file is left")
    of_scan, of_shift = (run.trace(file, "--values", "loss,grads", *args) for args in (("--disable-pass", "shift_scan"), ()))
    of_window = run.trace(mamba2(run, 48, rows=2), "--values", "loss,grads")
    for name in of_shift:
        within(name, distance(of_shift[name], of_scan[name]), 2e-5)
        within(name, distance(of_shift[name], of_window[name]), 2e-5)


def test_chunk_growth(run):
    """4 times as many positions: the same number of launches, and memory that grows by this factor. From 1024 positions on the plan
    also holds the workspace of a large GEMM, of the same size for any length"""
    short, long = (planned(run, mamba2(run, seq), "--enable-pass", "chunk_scan") for seq in (1024, 4096))
    fixed = planned(run, mamba2(run, 32), "--enable-pass", "chunk_scan")
    bytes_ = [p["peak_bytes"] - fixed["peak_bytes"] for p in (short, long)]
    check(bytes_[1] <= 4.5 * bytes_[0], f"bytes: {bytes_}")
    check(long["launches"] <= short["launches"] + 60, f"launches: {short['launches']}, {long['launches']}")


def test_recompute(run):
    for model in "griffin", "mamba":
        same_bits(run, f"{ROOT}/tests/models/{model}/reference.lm", "recompute @layers.**")


def test_bf16(run):
    """the carries are f32: bf16 changes the loss a little"""
    loss = [run.trace(program(run, 64, rows=2, compute=c), "--values", "loss")["loss"] for c in ("f32", "bf16")]
    within("loss", distance(*loss), 5e-3)


RNN = """import std.nn: xent
{adapter}
block Cell(d, f) {{
  dim g = f
  param w: real[d, f] = normal(d ^ -0.5)
  param u: real[f, g] = normal(0.3)
  param v: real[f, d] = normal(f ^ -0.5)
  apply(x: real[b, t, d], pos: int[b, t]) -> real[b, t, d] {{
    let z = dot(x, w, d)
    let h = expand(real(expand(0, b)), f)
    for at in t carry h {{
      h = tanh(z + rename(dot(select(pos > 0, h, 0), u, f), g -> f))
      emit y = h
    }}
    return x + dot(permute(y, (b, t, f)), v, f)
  }}
}}
model Rnn(d = 16, vocab = 256) {{
  param embed: real[vocab, d] = normal(0.5)
  sub layers[i < 2] = Cell(d, 12)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    for l in layers carry x {{ x = l(x, pos) }}
    return dot(x, embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
model Tuned = Rnn() with {{ freeze @**; adapt @layers.*.{{u,w}} = lora(rank = 2, alpha = 6) }}
data D {{ source s = text("text.txt", split = "\\n"); pack best_fit(seq = 48 tokens) }}
recipe R {{
  model = Tuned; data = D; run = 3 steps; batch = 192 tokens; micro = 96 tokens
  optimizer = adamw(lr = 3e-2); precision {{ compute = f32 }}
}}
"""
MERGED = """block lora(rank, alpha = rank) {
  param a: real[..i, rank] = uniform(-(i ^ -0.5), i ^ -0.5)
  param b: real[rank, ..o] = zeros
  merge(w: real[..i, ..o]) -> real[..i, ..o] { return w + alpha / rank * dot(a, b, rank) }
}"""


def test_lora(run):
    """LoRA of a matrix that the body multiplies by gives what the merged matrix gives"""
    run.write("text.txt", TEXT)
    inside, merged = (run.trace(run.write("rnn.lm", RNN.format(adapter=a))) for a in ("import std.adapt: lora", MERGED))
    check(inside.keys() == merged.keys() and any(k.startswith("grad.layers.0.u.lora") for k in inside), sorted(inside))
    for name in inside:
        within(name, distance(inside[name], merged[name]), 2e-5)


def test_decoding(run):
    """a token at a time, and prompts of several chunks: the same continuation"""
    file = program(run, 64, rows=4, d=32, steps=150)
    run("run", file, "-q", "--out", run.path("out"))

    def ids(prompt, n):
        return json.loads(run("generate", run.path("out"), "--json", "--ids", "--prompt-ids", ",".join(map(str, prompt)), "-n", n,
                              "--temperature", 0))["ids"]

    start = list(TEXT[:40].encode())
    whole = ids(start, 400)
    check(len(set(whole)) > 3, f"the continuation is too plain: {whole}")
    for n in 1, 130, 390:
        rest = ids(start + whole[:n], 400 - n)
        check(rest == whole[n:], f"after {n} tokens: {rest[:20]}, expected {whole[n : n + 20]}")
