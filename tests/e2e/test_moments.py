"""Optimizer states in bf16 and in 8 bits (precision.moments) against formulas written here with numpy: the dynamic map and the
blocks of bitsandbytes, e4m3 by its definition, AdamW as in bitsandbytes' optimizer. The loss is sum(w x) + sum(w w) / 2, of which
the gradient is x + w."""
import numpy as np

from harness import check, distance, folder_bytes, load, save, small, within
from test_precision import noisy_rule
from test_ranks import PATIENT, mpi_needed

SANITIZER_BUILD = {"other_moments_are_refused", "resume_gives_the_same_bytes", "unsigned_states_are_derived"}

STEPS = 8
# name: shape; `odd` is no multiple of a block, `tiny` stays f32, layers are in a repetition
SHAPES = {"wide.w": (64, 96), "odd.w": (65, 67), "layers.0.w": (32, 128), "layers.1.w": (32, 128), "tiny.w": (50, 60)}
MODEL = """block B(i, o) {
  param w: real[i, o] = zeros
  param x: real[i, o] = zeros
  apply() -> f32 { return f32(sum(w * x)) + 0.5 * f32(sum(w * w)) }
}
model M(n = 2) {
  sub wide = B(i = 64, o = 96)
  sub odd = B(i = 65, o = 67)
  sub tiny = B(i = 50, o = 60)
  sub layers[i < n] = B(i = 32, o = 128)
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let s = wide() + odd() + tiny()
    for l in layers carry s { s = s + l() }
    return (sum(bt.w) * s, sum(bt.w))
  }
}
model Start = M() from "start.safetensors" with { freeze @**.x }
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
optimizer own(lr) {
  state a: f32 = 0.5
  state b, s, c, low, t: f32 = 0
  state d: f32 = -0.25
  update(p: f32, g: f32) -> f32 {
    a = 0.5 * a + abs(g)
    b = maximum(b - 0.1 * g, 0.01)
    s = 0.9 * s + select(g > 0, g, 0) * exp(g) / (1 + a)
    c = 0.9 * c + g * p
    low = minimum(low + g, 0)
    t = 0.5 * t + sqrt(g * g) - 1e-3
    d = 0.9 * d + 0.1 * g
    return p - lr * (d / (sqrt(a) + 1) + 0.01 * (b + s + c + low + t))
  }
}
recipe R {
  model = Start; data = D; run = STEPS steps; batch = 32 tokens; micro = 32 tokens
  precision { compute = f32; moments = MOMENTS }
  optimizer = OPTIMIZER
  save = checkpoint("run", every = EVERY steps)
}
"""


def problems():
    """by parameter: w and x, in f32; the magnitudes of x are of four decades"""
    r = np.random.default_rng(3)
    return {n: (r.normal(0, 0.1, s).astype("f4"), (r.normal(0, 1, s) * 10 ** r.uniform(-4, 0, s)).astype("f4")) for n, s in SHAPES.items()}


def prepare(run, moments, optimizer, every=STEPS, name="m.lm"):
    save(run.path("start.safetensors"), {k: v for n, (w, x) in problems().items() for k, v in ((n, w), (n[:-1] + "x", x))})
    run.write("text.txt", "a sentence of some bytes. " * 2000)
    text = MODEL.replace("STEPS", str(STEPS)).replace("EVERY", str(every))
    return run.write(name, text.replace("MOMENTS", moments).replace("OPTIMIZER", optimizer))


def dynamic_map(signed):
    """create_dynamic_map of bitsandbytes"""
    data = [0.0, 1.0]
    for i in range(7):
        edges = np.linspace(0.1, 1, 2 ** (i + (not signed)) + 1)
        means = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (i - 6)
        data += [*means, *(-means if signed else [])]
    check(len(data) == 256, "codes of a map")
    return np.sort(np.array(data))


def e4m3_map():
    """the numbers of e4m3 in the order of the codes; 0x7f is NaN"""
    codes = np.arange(127)
    e, m = codes >> 3, codes & 7
    values = np.where(e == 0, m / 8 * 2.0**-6, (1 + m / 8) * 2.0 ** (e - 7.0))
    return np.sort(np.concatenate([-values[1:], values]))


class Stored:
    """a state as a checkpoint holds it, in blocks of `block` elements, with the nearest number of a table"""
    def __init__(self, n, block, table, top, root):
        self.n, self.block, self.table, self.top, self.root = n, block, table, top, root
        self.scale, self.value = np.zeros((-(-n // block), 1)), np.zeros((-(-n // block), block))

    def load(self):
        x = (self.value * self.scale).reshape(-1)[:self.n]
        return x * x if self.root else x

    def store(self, x):
        x = np.sqrt(x) if self.root else x
        x = np.pad(x, (0, self.value.size - self.n)).reshape(self.value.shape)
        self.scale = (np.abs(x).max(1, keepdims=True) / self.top).astype("f4").astype("f8")
        y = x / self.scale
        k = np.clip(np.searchsorted(self.table, y), 1, len(self.table) - 1)
        self.value = np.where(y - self.table[k - 1] <= self.table[k] - y, self.table[k - 1], self.table[k])


class Rounded:
    """a state in bf16 (nearest, ties to even) or f32"""
    def __init__(self, n, bits):
        self.x, self.bits = np.zeros(n), bits

    def load(self):
        return self.x

    def store(self, x):
        u = x.astype("f4").view("u4").astype("u8")
        drop = 32 - self.bits
        u = (u + (1 << drop >> 1) - 1 + (u >> drop & 1)) >> drop << drop if drop else u
        self.x = u.astype("u4").view("f4").astype("f8")


def states_of(moments, n):
    """m and v of AdamW"""
    if moments in ("f32", "bf16") or n < 4096:
        return [Rounded(n, 16 if moments == "bf16" else 32) for _ in range(2)]
    block = int(moments.partition("block = ")[2].rstrip(")") or 256)
    if moments.startswith("dyn8"):
        return [Stored(n, block, dynamic_map(True), 1, False), Stored(n, block, dynamic_map(False), 1, False)]
    return [Stored(n, block, e4m3_map(), 448, False), Stored(n, block, e4m3_map(), 448, True)]


def adamw(name, moments, lr=0.01, b1=0.9, b2=0.95, eps=1e-8, decay=0.1):
    """the weights after STEPS steps and the states"""
    w, x = (a.astype("f8").reshape(-1) for a in problems()[name])
    m, v = states_of(moments, w.size)
    for k in range(1, STEPS + 1):
        g = x + w
        m1, v1 = b1 * m.load() + (1 - b1) * g, b2 * v.load() + (1 - b2) * g * g
        w = (w - lr * (m1 / (1 - b1**k) / (np.sqrt(v1 / (1 - b2**k)) + eps) + decay * w)).astype("f4").astype("f8")
        m.store(m1)
        v.store(v1)
    return w.reshape(SHAPES[name]), m, v


def states_check(file, moments, name, states):
    """the codes of a checkpoint are those of the formula, except where f32 rounds to the other side of a midpoint"""
    for prefix, s in zip("mv", states):
        path = f"{prefix}.{name}"
        if isinstance(s, Rounded):
            within(f"{moments}: {path}", distance(file[path].reshape(-1), s.x), 2e-3 if moments == "bf16" else 1e-5)
            continue
        within(f"{moments}: scale of {path}", distance(file[path + ".scale"].reshape(-1), s.scale[:, 0]), 2e-3)
        codes = file[path].view("u1").astype(int)
        check(codes.shape == s.value.shape, f"{path} has shape {codes.shape}")
        rank = codes if moments.startswith("dyn8") else np.where(codes < 128, codes + 126, 254 - codes)
        want = np.searchsorted(s.table, s.value)
        within(f"{moments}: codes of {path} that differ", np.mean(rank != want), 0.02)
        check(np.abs(rank - want).max() <= 1, f"{path}: a code differs by more than one")


def test_adamw(run):
    """a tenth of what storing the states in fewer bits changes"""
    plain = {n: adamw(n, "f32")[0] for n in SHAPES}
    for moments in ("f32", "bf16", "dyn8()", "dyn8(block = 128)", "e4m3()"):
        run("run", prepare(run, moments, "adamw(lr = 0.01)"), "--resume", "never")
        model, optimizer = (load(run.path(f"run/step-00000{STEPS}/{f}.safetensors")) for f in ("model", "optimizer"))
        for name in SHAPES:
            want, *states = adamw(name, moments)
            bits = 32 if moments == "f32" or (moments != "bf16" and name == "tiny.w") else 16
            change = distance(plain[name], want)
            check((change > 3e-4) == (bits < 32), f"{moments} changes {name} by {change}")
            within(f"{moments}: {name}", distance(model[name], want), change / 10 or 1e-6)
            states_check(optimizer, moments, name, states)


def lines(run, moments, optimizer):
    """by state, how `lmc check` says that it is stored"""
    text = run("check", prepare(run, moments, optimizer)).partition("optimizer states, ")[2].partition("\n\n")[0]
    rows = [r.split() for r in text.splitlines()]
    return {r[0]: " ".join(r[1:]) for r in rows[1:]}


def test_unsigned_states_are_derived(run):
    """a state is stored as a non-negative one if its declaration and update show that it is"""
    got = lines(run, "dyn8()", "own(lr = 0.01)")
    want = dict(a="udyn8", b="udyn8", s="udyn8", c="dyn8", low="dyn8", t="dyn8", d="dyn8")
    check({k: v.split()[2] for k, v in got.items()} == want, f"{got}")
    check(all(v.startswith("f32 3000, ") for v in got.values()), f"{got}")
    got = lines(run, "dyn8()", "ema(adamw(lr = 0.01))")
    want = {"inner.m": "f32 3000, dyn8 18944", "inner.v": "f32 3000, udyn8 18944", "a": "f32 21691"}
    check({k: got[k] for k in want} == want, f"{got}")


def with_moments(run, moments, recipe="", **how):
    """a Llama whose matrices have 16,384 and 32,768 elements, and its recipe S"""
    model = "model = Llama(depth = 2, d = 128, ff = 256, heads = 4, kv = 4, e = 32, vocab = 128, drop = 0)"
    text = open(small(run, vocab=128, **how)).read()
    return run.write("s.lm", f"{text}recipe S extends Small {{ {model}; precision {{ compute = f32; moments = {moments} }}; {recipe} }}\n")


def test_bytes_of_states(run):
    for moments, most in (("f32", 8), ("bf16", 4), ("dyn8()", 2.1), ("e4m3()", 2.1)):
        text = run("check", with_moments(run, moments), "--recipe", "S")
        got = float(text.partition("optimizer states, ")[2].split()[2])
        check(most - 0.1 < got <= most, f"{moments}: {got} bytes")


def resume(run, moments, optimizer, folder):
    file = prepare(run, moments, optimizer, every=STEPS // 2)
    run("run", file, "--out", run.path(folder + "one"), env={"OMP_NUM_THREADS": "1"})
    whole = folder_bytes(run.path(folder + f"one/step-00000{STEPS}"))
    run("run", file, "--out", run.path(folder + "part"), "--steps", STEPS // 2, env={"OMP_NUM_THREADS": "2"})
    run("run", file, "--out", run.path(folder + "part"), env={"OMP_NUM_THREADS": "2"})
    check(whole == folder_bytes(run.path(folder + f"part/step-00000{STEPS}")), f"{optimizer} with {moments}: resumed")
    return load(run.path(folder + f"one/step-00000{STEPS}/model.safetensors"))


def test_resume_gives_the_same_bytes(run):
    """also of optimizers of whole parameters, of matrices and with other weights in evaluations; near the weights of f32"""
    uses = ["own(lr = 0.01)", """lookahead(adamw(lr = 0.01), k = 3); group @tiny.w = (betas = (0.8, 0.9)); group @odd.w = (optimizer = lamb(lr = 0.01))
  group @wide.w = (optimizer = schedule_free(lr = 0.01)); group @layers.1.w = (optimizer = lion(lr = 0.01))"""]
    for k, use in enumerate(uses):
        plain = load_f32(run, use, f"{k}/")
        for moments in ("dyn8()", "e4m3()") if k == 0 else ("dyn8()",):
            got = resume(run, moments, use, f"{k}/{moments}/")
            for name in plain:
                if not name.endswith(".x"):
                    moved = distance(problems()[name][0], plain[name])
                    within(f"{use}, {moments}: {name}", distance(got[name], plain[name]) / moved, 0.15)


def load_f32(run, use, folder):
    run("run", prepare(run, "f32", use), "--out", run.path(folder + "f32"))
    return load(run.path(folder + f"f32/step-00000{STEPS}/model.safetensors"))


def test_other_moments_are_refused(run):
    file = prepare(run, "dyn8()", "adamw(lr = 0.01)", every=2)
    run("run", file, "--steps", 2)
    for other in ("f32", "dyn8(block = 64)"):
        err = run("run", prepare(run, other, "adamw(lr = 0.01)", every=2), "--change", "precision.moments", status=1)
        check("optimizer states are stored in another form: precision.moments" in err, err)


def test_ranks(run):
    """two processes that divide the rows, the model or the states train as one does"""
    mpi_needed(run)
    one = with_moments(run, "dyn8()", 'save = checkpoint("run")', steps=3)
    run("run", one, "--recipe", "S")
    want = load(run.path("run/step-000003/model.safetensors"))
    for mesh, shard in (("dp = 2", ""), ("tp = 2", "; shard tp = [ff, vocab]"), ("fsdp = 2", "; zero = 3")):
        two = run.write("two.lm", open(one).read() + f"recipe T extends S {{ parallel {{ mesh = ({mesh}){shard} }} }}\n")
        run("run", two, "--recipe", "T", "--ranks", 2, "--out", run.path(mesh), env=PATIENT)
        got = load(run.path(mesh, "step-000003/model.safetensors"))
        for name in want:
            within(f"{mesh}: {name}", distance(got[name], want[name]), 1e-3)


def losses_check(run, steps, last, forms):
    """mean losses of the last steps within 1 % of f32's; the loss falls"""
    batches = noisy_rule(steps, 8, 32)
    means = {}
    for moments in ("f32", *forms):
        loss = run.trace(with_moments(run, moments, steps=steps, rows=8, seq=32, batches=batches), "--recipe", "S", "--values", "loss")["loss"]
        means[moments] = float(np.mean(loss[-last:]))
        check(means[moments] < 0.9 * float(loss[0]), f"{moments}: the loss must fall: {loss[0]} to {means[moments]}")
        within(f"{moments}: loss", abs(means[moments] / means["f32"] - 1), 0.01)
    check(len(set(means.values())) == len(means), f"{means}")


def test_losses(run):
    losses_check(run, 60, 20, ("bf16", "dyn8()", "e4m3()"))
