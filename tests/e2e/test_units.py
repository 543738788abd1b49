"""Results have the same bits for any contents of the kernel cache. Missing kernels are compiled together, so the contents of the cache decide
which ones share a translation unit."""
import glob, os, random, shutil

from harness import check, random_batches, save

SANITIZER_BUILD = set()
MODEL = """import std.nn: rmsnorm, attention, xent
model M(d = 24, heads = 2, vocab = 64) {
  dim g = heads, e = d / heads
  param embed: real[vocab, d] = normal(0.3)
  param wq, wk, wv: real[d, g, e] = normal(0.2)
  param wo: real[g, e, d] = normal(0.2)
  param norm: real[d] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let y = rmsnorm(x, norm)
    let (ks, vs, ps, ss) = history((dot(y, wk, d), dot(y, wv, d), pos, seg), t -> s)
    let o = attention(dot(y, wq, d), ks, vs, expand(pos, s) >= ps & expand(seg, s) == ss)
    return dot(dropout(x + dot(o, wo, (g, e)), 0.1), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    let z = f32(apply(bt.tok, bt.pos, bt.seg))
    let spread = log(1 + sum(z * z, vocab))
    let names = sum(log(1 + f32(embed) * f32(embed)), d)
    let heads = sum(log(2 + f32(wq) * f32(wk)), (g, e))
    let all = sum(xent(z, bt.next) * bt.w) + 0.01 * sum(spread * bt.w) + 0.01 * sum(log(1 + names)) + 0.01 * sum(heads * heads)
    return (all, sum(bt.w))
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = M(); data = D; seed = 1; run = 2 steps; batch = 80 tokens; optimizer = adamw(lr = 0.01); precision { compute = %s } }
"""


def bits(run, file, cache):
    values = run.trace(file, "--values", "loss,params,grads", env={"LMC_CACHE": cache})
    return {name: x.tobytes() for name, x in values.items()}


def check_calls(cache):
    """units call the functions of tiles that lmc contains, and contain none of them"""
    flags = open("/proc/cpuinfo").read().split()
    if "AMX_NAMESPACE" in os.environ or ("avx" in flags and "avx2" not in flags):
        return  # there is no such set: emulated instructions, AVX alone
    for name in glob.glob(os.path.join(cache, "**/*.so"), recursive=True):
        unit = open(name, "rb").read()
        check(b"lm_tiles_given" in unit and b"lm_tile_gemm" not in unit and b"lm_gemm" not in unit, name)


def test_same_bits_whatever_is_cached(run):
    save(run.path("batches.safetensors"), random_batches(2, 2, 40))
    for compute in ("f32", "bf16"):
        file = run.write(f"{compute}.lm", MODEL % compute)
        full = run.path(f"cache-{compute}")
        want = bits(run, file, full)
        check_calls(full)
        for quarters in (1, 2, 3):
            part = run.path(f"{compute}-{quarters}")
            shutil.copytree(full, part)
            names = sorted(glob.glob(os.path.join(part, "**/*.so"), recursive=True))
            for name in random.Random(quarters).sample(names, len(names) * quarters // 4):
                os.remove(name)
            got = bits(run, file, part)
            differ = [name for name in want if got[name] != want[name]]
            check(not differ, f"{compute}: after {quarters} of 4 kernels were compiled again, these differ: {differ}")
