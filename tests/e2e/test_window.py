"""Windows along axes: convolutions of images and of positions, against PyTorch."""
import numpy as np

from harness import check, distance, random_batches, save, within

IMAGES = """import std.nn: xent
model Patches(d = 6, f = 5, vocab = 24, c = 3, i = 3, j = 2) {
  param embed: real[vocab, d] = normal(0.3)
  param stem: real[i, j, c, f] = normal(0.3)
  param depth: real[f, i, j] = normal(0.3)
  param point: real[f, d] = normal(0.3)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return dot(gather(embed, tok, vocab), embed, d)
  }
  loss(bt: Batch[b, t], image: f32[b, y, x, c]) -> (f32, f32) {
    let rows = window(image, y -> (y1, i), before = 1, after = 1, stride = 2)    # [b, y1, i, x, c]
    let all = window(rows, x -> (x1, j), before = 1, stride = 2)                 # [b, y1, i, x1, j, c]
    let s = dot(real(all), stem, (i, j, c))                                      # [b, y1, x1, f]
    let g = s * sigmoid(s)
    let near = window(window(g, y1 -> (y1, i), before = 2, after = 2, dilate = 2), x1 -> (x1, j), before = 1)
    let m = sum(sum(dot(near, depth, (i, j)), y1), x1)
    let z = f32(apply(bt.tok, bt.pos, bt.seg) + expand(dot(dot(m, point, f), embed, d), t, before = vocab))
    return (sum(xent(z, bt.next) * bt.w), sum(bt.w))
  }
}
data D { source s = batches("batches.safetensors") }
recipe R {
  model = Patches(); data = D; run = 1 steps; seed = 3; batch = 64 tokens; micro = 32 tokens
  optimizer = sgd(lr = 0); precision { compute = f32 }
}
"""


def test_window_images(run):
    """a strided stem of patches and a dilated convolution of each channel are those of torch.nn.functional.conv2d"""
    import torch
    rng = np.random.default_rng(2)
    batches = random_batches(1, 4, 16, 24) | dict(image=rng.normal(size=(1, 4, 9, 8, 3)).astype("<f4"))
    save(run.path("batches.safetensors"), batches)
    out = run.trace(run.write("p.lm", IMAGES))
    names = ("embed", "stem", "depth", "point")
    w = {n: torch.tensor(np.array(out["final." + n]), dtype=torch.float64, requires_grad=True) for n in names}
    column = {n: torch.tensor(x[0].astype("f8" if x.dtype.kind == "f" else "i8")) for n, x in batches.items()}
    x = torch.nn.functional.pad(column["image"].permute(0, 3, 1, 2), (1, 0, 1, 1))
    s = torch.nn.functional.conv2d(x, w["stem"].permute(3, 2, 0, 1), stride=2)
    g = torch.nn.functional.pad(s * s.sigmoid(), (1, 0, 2, 2))
    m = torch.nn.functional.conv2d(g, w["depth"][:, None], dilation=(2, 1), groups=5).sum((2, 3))
    z = (w["embed"][column["tok"]] + (m @ w["point"])[:, None]) @ w["embed"].T
    loss = torch.nn.functional.cross_entropy(z.transpose(1, 2), column["next"], reduction="none")
    loss = (loss * column["w"]).sum() / column["w"].sum()
    loss.backward()
    within("loss", abs(loss.item() - out["loss"][0]), 2e-6)
    for n in names:
        within(f"gradient of {n}", distance(out["grad." + n], w[n].grad.numpy()), 3e-6)


SHIFTS = """import std.nn: xent
model Shifts(d = 8, k = 3, vocab = 256) {
  param embed: real[vocab, d] = normal(1.0)
  param w: real[d, k] = normal(1.0)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    let x = gather(embed, tok, vocab)
    let (taps, ps, ss) = window((x, pos, seg), t -> (t, k), before = k - 1 - AHEAD, after = AHEAD)
    let mine = MASK
    return dot(x + dot(select(mine, taps, 0), w, k), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
}
data D { source s = text("text.txt"); pack best_fit(seq = 16 tokens) }
recipe R { model = Shifts(); data = D; run = 2 steps; batch = 32 tokens; optimizer = adamw(lr = 1e-3) }
"""
MASKS = (
    (0, "expand(pos, k) >= k - 1 - iota(k)", "proved for every position"),
    (0, "expand(pos, k) + iota(k) >= 2", "proved for every position"),
    (0, "expand(seg, k) == ss & ps >= 0", "checked at"),
    (0, "expand(pos, k) >= 1 - iota(k)", "E0D4"),
    (0, "expand(pos, k) >= 2 * iota(k)", "E0D4"),
    (0, "ss >= 0", "E0D4"),
    (1, "expand(seg, k) == ss & ps >= 0", "E0D0"),
)


def test_window_masks(run):
    """a window over the positions must not see another document or a later position"""
    run.write("text.txt", "In the beginning. " * 40)
    for ahead, mask, want in MASKS:
        file = run.write("m.lm", SHIFTS.replace("MASK", mask).replace("AHEAD", str(ahead)))
        code, out, err = run.result("check", file)
        check(want in out + err and (code != 0) == want.startswith("E"), f"{mask}: {out}{err}")
