"""Random numbers follow the rule of docs/language.md, implemented here a second time."""
import re

from harness import ROOT, check, random_batches, save

MODEL = """model M(d = 6) {
  param w: real[d] = uniform(2, 3)
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let x = rng(b, t)
    let y = 0 * x
    for i in 3 carry y { for j in 2 carry y { y = y + rng(b, t) * f32(i * 10 + j) } }
    return (sum(f32(w)) * sum(x * f32(bt.tok)) + sum(y * f32(bt.tok)), 1)
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; seed = 77; run = 2 steps; batch = 32 tokens; micro = %d tokens; optimizer = sgd(lr = 0); precision { compute = f32 } }
"""
M32, M64 = 2**32 - 1, 2**64 - 1


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & M64
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


def philox(c, k):
    c, k = list(c), list(k)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & M32, p >> 32 ^ c[3] ^ k[1], p & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def uniform(seed, site, i, layer, step):
    key = mix(seed ^ mix(site))
    block = i // 4
    word = philox((block & M32, block >> 32, layer, step), (key & M32, key >> 32))[i % 4]
    return ((word >> 9) + 0.5) * 2.0**-23


def fold(x, y):
    ends = {0, M64}
    return (x * y & M64) ^ (x * y >> 64) ^ (x ^ y if x in ends or y in ends else 0)


def site(path, n):
    """of the n-th draw of the instance"""
    k0, k1, k2, seed, text = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3, 1 + n, path.encode()
    h = seed ^ k0
    for i in range(0, len(text), 16):
        x, y = (int.from_bytes(text[at : at + 8], "little") for at in (i, i + 8))
        h = fold(x ^ k1, y ^ h)
    return fold(k2 ^ len(text), fold(h ^ k1, k2 ^ seed)) >> 1


def sites(run, file):
    """of the loss function, in the order of the graph"""
    run("compile", file, "-o", run.path("plan"))
    text = open(run.path("plan", "graph.lmir")).read()
    loss = text[text.index("func @loss"):]
    found = re.findall(r"rng [^\[]*\[(-?\d+), (\d+), \d+\]", loss[:loss.index("\n}")])
    check(all(seed == "77" for seed, _ in found), f"draws of @loss: {found}")
    return [int(x) for _, x in found]


def test_vectors(run):
    """of docs/language.md"""
    text = open(f"{ROOT}/docs/language.md").read()
    rows = re.findall(r"^\| (\(empty\)|`[\w.]+`) \| (\d+) \| (\d+) \| ([0-9a-f]{16}) \| ([\d.]+) \|$", text, re.M)
    check(len(rows) == 4, f"rows of the table: {rows}")
    for path, n, s, key, number in rows:
        where = site("" if path == "(empty)" else path.strip("`"), int(n))
        check(where == int(s) and mix(1 ^ mix(where)) == int(key, 16) and uniform(1, where, 5, 3, 2) == float(number), path)


PARTS = """fn noise(x: f32[b, t]) -> f32[b, t] { return x + rng(b, t) }
block Sub(d) { apply(x: f32[b, t, d]) -> f32[b, t, d] { return dropout(x, 0.1) } }
block Layer(d, rate) {
  sub inner = Sub(d)
  apply(x: f32[b, t, d]) -> f32[b, t, d] { return inner(dropout(inner(dropout(x, 0.1)), rate)) }
}
model M(d = 6) {
  sub layers[i < 4] = Layer(d, if i mod 2 == 0 then %s else 0.4)
  sub last = Sub(d)
  param w: real[d] = uniform(2, 3)
  loss(bt: Batch[b, t]) -> (f32, f32) {%s
    let x = noise(rng(b, t))
    let y = expand(x, d) * f32(w)
    for l in layers carry y { y = l(y) }
    for l in layers carry y { y = l(y) }
    return (sum(last(y)) + sum(rng(b, t)), 1)
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; seed = 77; run = 1 steps; batch = 32 tokens; optimizer = sgd(lr = 0); precision { compute = f32 } }
"""


def test_sites(run):
    """the structure of the model alone decides: not the layout of the text, other statements, a rate, or how loops are compiled"""
    save(run.path("batches.safetensors"), random_batches(1, 4, 8))
    loops = [site(path, n + 2 * again) for again in (0, 1) for path, n in
             (("layers", 0), ("layers.inner", 0), ("layers", 1), ("layers.inner", 1))]
    want = [site("", 0), site("", 1), *loops, site("last", 0), site("", 2)]
    text = PARTS % ("0.4", "")
    check(sites(run, run.write("m.lm", text)) == want, "the rule of docs/language.md")
    trace = lambda name: {k: v.tobytes() for k, v in run.trace(run.path(name), "--values", "loss").items()}
    same = trace("m.lm")
    moved = "# a comment\n\n" + text.replace("let x", "let other = 3\n\n      let x").replace("noise(x:", "noise( x:").replace("{ return", "{\nreturn")
    check(sites(run, run.write("moved.lm", moved)) == want and trace("moved.lm") == same, "after the text moved")
    other = sites(run, run.write("other.lm", PARTS % ("0", "")))   # layers of two kinds, in pairs
    check(set(other) == set(want) and other[-1] == want[-1], "with layers of two kinds")
    more = sites(run, run.write("more.lm", text.replace("return dropout(x, 0.1) }", "return dropout(dropout(x, 0.1), 0.1) }")))
    own = lambda found: [x for x in found if x in [site("", n) for n in range(4)] + [site("layers", n) for n in range(4)]]
    check(own(more) == own(want) and len(more) == len(want) + 5, "draws of other instances")


def test_draws(run):
    batches = random_batches(2, 4, 8)
    save(run.path("batches.safetensors"), batches)
    for micro in (32, 16):
        file = run.write("m.lm", MODEL % micro)
        plain, looped = site("", 0), site("", 1)
        check(sites(run, file) == [plain, looped], "sites of @loss")
        out = run.trace(file, "--values", "loss,params")
        w = [float(x) for x in out["final.w"]]
        check(all(2 < x < 3 for x in w) and len(set(w)) == 6, f"{w}")
        for step in (1, 2):
            row = batches["tok"][step - 1].reshape(-1).tolist()
            x = [uniform(77, plain, i, 0, step) for i in range(32)]
            y = [sum(uniform(77, looped, i, b + 65536 * a, step) * (a * 10 + b) for a in range(3) for b in range(2)) for i in range(32)]
            n = 32 // micro
            want = sum(t * (sum(w) * u + v) for t, u, v in zip(row, x, y)) / n
            got = float(out["loss"][step - 1])
            check(abs(got - want) < 1e-5 * abs(want), f"micro {micro}, step {step}: {got}, expected {want}")
