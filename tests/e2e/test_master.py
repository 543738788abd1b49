"""Parameters in bf16 (precision.master) against formulas written here with numpy: AdamW in float64 and random rounding by the rule of
docs/numerics.md. The loss is sum(w x) + sum(w w) / 2, of which the gradient is x + w."""
import json, re

import numpy as np

import test_moments as moments
from harness import ROOT, check, distance, folder_bytes, load, save, small, within
from test_numbers_drawn import M32, mix, philox, site
from test_precision import noisy_rule
from test_ranks import PATIENT, mpi_needed

SANITIZER_BUILD = {"vectors", "refused", "resume_gives_the_same_bytes"}

STEPS = moments.STEPS
SHAPES = {**moments.SHAPES, "odd.w": (66, 68)}   # ranks divide each axis; tiny.w is declared f32
NARROW = [n for n in SHAPES if n != "tiny.w"]
SEED = 5
PRECISION = "precision { master = bf16; moments = MOMENTS }"


def problems():
    """by parameter: w and x, numbers of bf16"""
    r = np.random.default_rng(3)
    cut = lambda a: (a.astype("f4").view("u4") & 0xFFFF0000).view("f4")
    return {n: (cut(r.normal(0, 0.1, s)), cut(r.normal(0, 1, s) * 10 ** r.uniform(-4, 0, s))) for n, s in SHAPES.items()}


def prepare(run, optimizer="adamw(lr = 0.01)", of_moments="f32", every=STEPS, name="m.lm", values=None):
    values = values or problems()
    save(run.path("start.safetensors"), {k: v for n, (w, x) in values.items() for k, v in ((n, w), (n[:-1] + "x", x))})
    run.write("text.txt", "a sentence of some bytes. " * 2000)
    block = moments.MODEL.partition("model")[0]
    text = block.replace("block B", "block Wide").replace("real", "f32") + moments.MODEL.replace("tiny = B", "tiny = Wide")
    text = text.replace("i = 65, o = 67", "i = 66, o = 68").replace("precision { compute = f32; moments = MOMENTS }", PRECISION)
    text = text.replace("MOMENTS", of_moments).replace("STEPS", str(STEPS)).replace("EVERY", str(every))
    return run.write(name, text.replace("OPTIMIZER", optimizer).replace("run = ", f"seed = {SEED}; run = "))


def words(seed, name, instance, step, n):
    """the random words of elements 0 … n - 1"""
    key = mix(seed ^ mix(site("master/" + name, -1)))
    c = [np.arange((n + 3) // 4, dtype="u8"), 0, instance, step]
    return np.stack(np.broadcast_arrays(*philox(c, (key & M32, key >> 32))), 1).reshape(-1)[:n]


def site_of(path):
    """the parameter's name without indices, and the index of the repetition"""
    found = re.fullmatch(r"layers\.(\d)\.w", path)
    return ("layers.w", int(found[1])) if found else (path, 0)


def rounded(x, path, step, seed=SEED, nearest=False):
    """stochastic rounding of float64 to bf16: of the two neighbours of x, the upper one with probability (x - lower) / (upper - lower)"""
    unit = np.exp2(np.frexp(x)[1] - 8.0)
    steps = words(seed, *site_of(path), step, x.size) >> 16
    y = np.floor(x / unit) + (np.rint(x / unit % 1) if nearest else (np.floor((x / unit % 1) * 2**16) + steps >= 2**16))
    return y * unit


def adamw(path, by=rounded, lr=0.01, b1=0.9, b2=0.95, eps=1e-8, decay=0.1):
    w, x = (a.astype("f8").reshape(-1) for a in problems()[path])
    m = v = 0
    for k in range(1, STEPS + 1):
        g = x + w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = by(w - lr * (m / (1 - b1**k) / (np.sqrt(v / (1 - b2**k)) + eps) + decay * w), path, k)
    return w.reshape(SHAPES[path])


def model_of(folder, step=STEPS):
    return load(f"{folder}/step-00000{step}/model.safetensors")


def differ(a, b):
    return float(np.mean(a != b))


def test_vectors(run):
    """of docs/numerics.md"""
    text = open(f"{ROOT}/docs/numerics.md").read()
    rows = re.findall(r"^\| `([\w.]+)` \| (\d+) \| (\d+) \| (\d+) \| ([0-9a-f]{4}) \| `(\w+)` \| `(\w+)` \|$", text, re.M)
    check(len(rows) == 3, f"rows of the table: {rows}")
    for name, instance, step, element, word, before, after in rows:
        got = int(words(1, name, int(instance), int(step), int(element) + 1)[-1]) >> 16
        x = np.array([int(before, 16)], "u4").view("f4").astype("f8")
        unit = np.exp2(np.frexp(x)[1] - 8.0)
        y = (np.floor(x / unit + got / 2**16) * unit).astype("f4").view("u4")[0]
        check(got == int(word, 16) and y == int(after, 16) << 16, f"{name}: {got:04x}, {y:08x}")


def test_adamw(run):
    """bits of the weights after several steps; a rounding to nearest, and random bits of another step or seed, differ"""
    run("run", prepare(run))
    got = model_of(run.path("run"))
    raw = open(run.path(f"run/step-00000{STEPS}/model.safetensors"), "rb").read()
    kinds = {m["dtype"] for n, m in json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).items() if n != "__metadata__"}
    check(kinds == {"BF16", "F32"}, f"types in the checkpoint: {kinds}")
    faults = {"nearest": lambda x, p, k: rounded(x, p, k, nearest=True), "step": lambda x, p, k: rounded(x, p, k - 1),
              "seed": lambda x, p, k: rounded(x, p, k, seed=SEED + 1)}
    within("tiny.w", distance(got["tiny.w"], adamw("tiny.w", lambda x, p, k: x.astype("f4").astype("f8"))), 1e-6)
    for path in NARROW:
        within(f"share of {path} that differs", differ(got[path], adamw(path).astype("f4")), 0.003)
        for fault, by in faults.items():
            check(differ(got[path], adamw(path, by).astype("f4")) > 0.5, f"{path}: {fault} must be found")


def test_mean(run):
    """updates of 1/8 ulp, which rounding to nearest would lose, have the right mean"""
    last = 2.0**-7                                    # unit in the last digit of numbers in [1, 2)
    values = {n: (np.full(s, 1.25, "f4"), np.full(s, -1.25 - 2.0**-3 if n[:3] != "odd" else -1.25 + 2.0**-3, "f4")) for n, s in SHAPES.items()}
    run("run", prepare(run, f"sgd(lr = {last})", values=values, every=1), "--steps", 1)
    moved = {n: (model_of(run.path("run"), 1)[n].astype("f8") - 1.25) / last for n in SHAPES}
    for n, x in moved.items():
        mean = -0.125 if n[:3] == "odd" else 0.125
        if n in NARROW:
            check(set(np.unique(x)) == {0, np.sign(mean)}, f"{n}: neighbours {np.unique(x)}")
        within(f"{n}: mean {x.mean()}", abs(x.mean() - mean), 5 * np.sqrt(0.125 * 0.875 / x.size))
    same = float(np.mean(moved["layers.0.w"] == moved["layers.1.w"]))
    within("equal elements of two instances", abs(same - (0.125**2 + 0.875**2)), 5 * np.sqrt(0.22 * 0.78 / 4096))


def test_resume_gives_the_same_bytes(run):
    """for any number of threads, with moments in 8 bits and other optimizers, also one with other weights in evaluations"""
    use = """adamw(lr = 0.01); group @odd.w = (optimizer = lamb(lr = 0.01)); group @wide.w = (optimizer = schedule_free(lr = 0.01))
  group @layers.1.w = (optimizer = lion(lr = 0.01))"""
    file = prepare(run, use, "dyn8()", every=STEPS // 2)
    run("run", file, "--out", run.path("one"), env={"OMP_NUM_THREADS": "1"})
    run("run", file, "--out", run.path("part"), "--steps", STEPS // 2, env={"OMP_NUM_THREADS": "2"})
    run("run", file, "--out", run.path("part"), env={"OMP_NUM_THREADS": "2"})
    last = f"step-00000{STEPS}"
    check(folder_bytes(run.path("one", last)) == folder_bytes(run.path("part", last)), "resumed")


def test_ranks(run):
    """every mesh gives the bits of one process: the gradients of this model are exact"""
    mpi_needed(run)
    file = prepare(run)
    run("run", file)
    want = model_of(run.path("run"))
    for k, mesh in enumerate(("mesh = (dp = 2)", "mesh = (tp = 2); shard tp = [o]", "mesh = (tp = 2); shard tp = [i]",
                              "mesh = (dp = 2); zero = 1", "mesh = (fsdp = 2); zero = 3")):
        run("run", file, "--ranks", 2, "--out", run.path(f"ranks{k}"), "--set", f"parallel {{ {mesh} }}", env=PATIENT)
        got = model_of(run.path(f"ranks{k}"))
        check(all(np.array_equal(got[n], want[n]) for n in want), f"{mesh}: weights")


def memory_of(text):
    line = re.search(r"^memory .*$", text, re.M)[0]
    return {k.strip(): float(n) * {"bytes": 1, "kB": 1e3, "MB": 1e6}[u] for k, n, u in re.findall(r"([a-z ]+) ([\d.]+) (bytes|kB|MB)", line)}


def test_llama(run):
    """half of the memory of the weights and no copies (AMX has some in panels); losses beside those of f32; export and generation"""
    steps, batches = 60, noisy_rule(60, 8, 32)
    file = small(run, steps=steps, rows=8, seq=32, batches=batches, compute="bf16", more='save = checkpoint("run")')
    curves, memory = {}, {}
    for master in ("f32", "bf16"):
        text = run("run", file, "--set", f"precision.master = {master}", "--disable-pass", "prepack", "--out", run.path(master))
        memory[master] = memory_of(text)
        losses = [json.loads(l) for l in open(run.path(master, "metrics.jsonl"))]
        curves[master] = np.mean([x["loss"] for x in losses if "loss" in x][-20:])
    within("parameters", abs(memory["bf16"]["parameters"] / memory["f32"]["parameters"] - 0.5), 0.01)
    check(memory["bf16"].get("copies of parameters", 0) < 0.1 * memory["f32"]["copies of parameters"], f"{memory}")
    within("loss", abs(curves["bf16"] / curves["f32"] - 1), 0.01)
    check(curves["bf16"] != curves["f32"], "the weights must differ")
    run("export", run.path("bf16"), "-o", run.path("out"), "--dtype", "f32")
    stored = load(run.path("bf16", f"step-{steps:06}/model.safetensors"))
    out = load(run.path("out/model.safetensors"))
    same = [n for n in out if n.endswith("embed_tokens.weight")]
    check(len(same) == 1 and np.array_equal(out[same[0]], stored["embed"]), f"{sorted(out)}")
    check(run("generate", run.path("bf16"), "--prompt-ids", "1,2", "-n", 4), "generated ids")


def test_trace(run):
    """gradients, which are f32, and the weights of the checkpoint"""
    file = prepare(run)
    run("run", file)
    out, want = run.trace(file, "--steps", STEPS, "--values", "grads,params"), model_of(run.path("run"))
    check(all(np.array_equal(out["final." + n], want[n]) for n in want), "weights")
    first = {n: out["grad." + n] for n in SHAPES}
    wide = run.trace(file, "--steps", 1, "--set", "precision.master = f32", "--values", "grads")
    for n in first:
        within(f"gradient of {n}", distance(first[n], wide["grad." + n]), 1e-6)


def test_refused(run):
    file = prepare(run)
    for compute in ("f32", "f16"):
        err = run("check", file, "--set", f"precision.compute = {compute}", status=1)
        check("error[E2F6]: master = bf16 needs compute = bf16, and compute is " + compute in err, err)
