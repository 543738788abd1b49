"""Random numbers are those that docs/language.md describes, written down here again."""
import re

from harness import check, random_batches, save

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


def sites(run, file):
    run("compile", file, "-o", run.path("plan"))
    text = open(run.path("plan", "graph.lmir")).read()
    loss = text[text.index("func @loss"):]
    found = re.findall(r"rng [^\[]*\[(-?\d+), (\d+)\]", loss[:loss.index("\n}")])
    check(len(found) == 2 and all(seed == "77" for seed, _ in found), f"draws of @loss: {found}")
    return [int(site) for _, site in found]


def test_draws(run):
    batches = random_batches(2, 4, 8)
    save(run.path("batches.safetensors"), batches)
    for micro in (32, 16):
        file = run.write("m.lm", MODEL % micro)
        plain, looped = sites(run, file)
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
