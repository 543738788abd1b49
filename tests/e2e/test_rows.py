"""Losses that depend on the assignment of rows to micro-batches are reported, and no others; compared with computed losses."""
from harness import check, random_batches, save

SANITIZER_BUILD = set()
MODEL = """import std.nn: xent
model M(d = 8, vocab = 64) {{
  param embed: real[vocab, d] = normal(0.5)
  param norm: real[d] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    return dot({apply}, embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{
    let z = apply(bt.tok, bt.pos, bt.seg)
    let l = xent(z, bt.next) * bt.w
    {loss}
  }}
}}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{ model = M(); data = D; run = 1 steps; batch = 64 tokens; micro = 64 tokens; optimizer = sgd(lr = 1e-2); precision {{ compute = f32 }} }}
"""
PLAIN = "return (sum(l), sum(bt.w))"
MEET, ONCE = "this operation mixes the rows of a micro-batch", "this term is added once per micro-batch"
GROWS = "a sum over rows whose weight does not depend on them"
CASES = {                              # name: apply, loss, expected message
    "sums": ("x * norm", PLAIN, None),
    "mean": ("x * norm", "return (mean(l), 1)", None),
    "each row": ("x * norm", "return (sum(l - 0.5 * expand(mean(l * l, t), t)), sum(bt.w))", None),
    "penalty by weight": ("x * norm", "return (sum(l) + 0.1 * f32(sum(embed * embed)) * sum(bt.w), sum(bt.w))", None),
    "z of tokens": ("x * norm", "let y = log(sum(exp(f32(z)), vocab))\n    return (sum(l + 0.01 * y * y), sum(bt.w))", None),
    "in a loop": ("x * norm", "let s = f32(0)\n    for n in 3 carry s { s = s + sum(l * 0.5) }\n    return (s, sum(bt.w))", None),
    "quotient": ("x * norm", "return (sum(l) / sum(bt.w), 1)", MEET),
    "statistic": ("x * norm", "return (sum((l - mean(l)) * (l - mean(l))), sum(bt.w))", MEET),
    "greatest": ("x * norm", "return (sum(l * (1 / max(abs(l), (b, t)))), sum(bt.w))", MEET),
    "square of a sum": ("x * norm", "return (sum(l) + 0.1 * mean(l) * mean(l), sum(bt.w))", MEET),
    "sum by one": ("x * norm", "return (sum(l) / 2.5 + 0.1 * f32(sum(embed * embed)), 1)", GROWS),
    "rows and one": ("x * norm", "return (sum(mean(l, b)) + 0.1 * f32(sum(embed * embed)), 1)", None),
    "penalty": ("x * norm", "return (sum(l) + 0.1 * f32(sum(embed * embed)), sum(bt.w))", ONCE),
}


def test_rows_that_meet(run):
    save(run.path("batches.safetensors"), random_batches(1, 4, 16))
    for name, (apply, loss, said) in CASES.items():
        file = run.write("m.lm", MODEL.format(apply=apply, loss=loss))
        code, out, err = run.result("check", file)
        check(code == 0 and "`micro`" not in err, f"{name}: one micro-batch: {err}")
        code, out, err = run.result("check", file, "--set", "micro = 16 tokens")
        check(code == 0 and any(w in err for w in ("W216", "W217", "W218")) == bool(said) and (not said or said in err and "is 4 micro-batches of 16" in err), f"{name}: {err}")
        whole, parts = (run.trace(file, "--values", "loss", "--set", f"micro = {n} tokens")["loss"][0] for n in (64, 16))
        check((abs(whole - parts) > 1e-4) == bool(said), f"{name}: {whole} {parts}")
