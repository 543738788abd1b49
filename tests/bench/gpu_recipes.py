"""Recipes that scripts/gpu-check writes: models at the sizes of the benchmarks, single operations at the shapes of their plans."""
import os, subprocess, sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

RECIPE = """
data Random {{ source s = batches("{batches}") }}
recipe Check {{
  model = {model}
  data = Random; seed = 1
  run = {steps} steps; batch = {tokens} tokens; micro = {micro} tokens
  optimizer = adamw(lr = {lr}, decay = 0); schedule = warmup_constant(warmup = 0 steps)
  precision {{ compute = bf16 }}
}}
"""
MODELS = f"""import "{ROOT}/examples/llama.lm": Llama
import "{ROOT}/examples/gpt2.lm": GPT2
"""
# Parameters alone take part, since their gradients are what a trace holds; `embed` makes it a model of tokens.
GEMM = """model Gemm(m = {m}, n = {n}, k = {k}, vocab = 16) {{
  param left: real[m, k] = normal(1)
  param right: real[k, n] = normal(1)
  param r: real[m, n] = normal(1)
  param embed: real[vocab, k] = normal(1)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    return dot(gather(embed, tok, vocab), embed, k)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    return (sum(f32(dot(left, right, k) * r)) + 0 * sum(bt.w), sum(bt.w))
  }}
}}
"""
ATTENTION = """import std.nn: attention
model Attend(n = {rows}, t1 = {t}, s1 = {t}, g = {g}, h = {h}, e = {e}, k = 8, vocab = 16) {{
  param q: real[n, t1, g, h, e] = normal(1)
  param key, val: real[n, s1, g, e] = normal(1)
  param r: real[n, t1, g, h, e] = normal(1)
  param embed: real[vocab, k] = normal(1)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    return dot(gather(embed, tok, vocab), embed, k)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let at = permute(expand(expand(iota(t1), s1), n), (n, t1, s1))
    let back = permute(expand(expand(iota(s1), t1), n), (n, t1, s1))
    let y = attention(q, key, val, at >= back{window})
    return (sum(f32(y * r)) + 0 * sum(bt.w), sum(bt.w))
  }}
}}
"""


def batches(folder, steps, rows, seq, vocab):
    file = os.path.join(folder, f"batches-{steps}-{rows}-{seq}-{vocab}.safetensors")
    if not os.path.exists(file):
        numbers = [str(x) for x in (steps, rows, seq, vocab)]
        subprocess.run([sys.executable, os.path.join(ROOT, "tests", "bench", "random_batches.py"), file, *numbers], check=True)
    return file


def write(folder, name, head, model, rows, seq, vocab, steps=1, lr="0", micro=None):
    """(recipe, batches)"""
    data, file = batches(folder, steps, rows, seq, vocab), os.path.join(folder, name + ".lm")
    with open(file, "w") as f:
        f.write(head + RECIPE.format(batches=data, model=model, steps=steps, tokens=rows * seq, micro=micro or rows * seq, lr=lr))
    return file, data


def llama(folder, name, rows, seq, depth, d, ff, heads, kv, e, vocab, **how):
    model = f"Llama(depth = {depth}, d = {d}, ff = {ff}, heads = {heads}, kv = {kv}, e = {e}, vocab = {vocab})"
    return write(folder, name, MODELS, model, rows, seq, vocab, **how)


def gpt2(folder, name, rows, seq, depth=12, d=768, heads=12, vocab=50257, **how):
    model = f"GPT2(depth = {depth}, d = {d}, heads = {heads}, positions = {seq}, vocab = {vocab})"
    return write(folder, name, MODELS, model, rows, seq, vocab, **how)


def gemm(folder, m, n, k):
    return write(folder, f"gemm-{m}-{n}-{k}", GEMM.format(m=m, n=n, k=k), "Gemm()", 1, 8, 16)


def attention(folder, rows, t, heads, kv, e, window):
    text = ATTENTION.format(rows=rows, t=t, g=kv, h=heads // kv, e=e, window=f" & back > at - {window}" if window else "")
    return write(folder, f"attention-{t}-{e}-{window}", text, "Attend()", 1, 8, 16)
