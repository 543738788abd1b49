"""Encoders: models without `apply`, whose positions depend on their whole document. BERT and ViT: test_zoo.py."""
import numpy as np

from harness import check, random_batches, save
from test_lookahead import MODEL, causality


def encoder(mask, label="tok", method="encode"):
    text = MODEL % mask
    return text.replace("apply(", f"{method}(").replace("bt.next", f"bt.{label}")


SAME = "expand(seg, s) == ss"
MASKS = (                                     # mask, the label of the loss, and the code of the error
    (SAME, "tok", None),
    (f"{SAME} & (ps < 7 | expand(pos, s) == ps)", "tok", None),
    (SAME, "next", "E0D0"),                   # the output depends on that token
    ("expand(seg, s) >= ss", "tok", "E0D4"),
    ("expand(pos, s) >= ps", "tok", "E0D4"),
    (f"{SAME} | ps == 3", "tok", "E0D4"),
)


def test_encode_masks(run):
    for mask, label, code in MASKS:
        status, err, found = causality(run, encoder(mask, label))
        if code:
            check(status == 1 and f'"code": "{code}"' in err, f"{mask} {label}: {err}")
        else:
            check(status == 0 and found["proved"] == found["relations"] == 3, f"{mask}: {found} {err}")


def test_encode_mistakes(run):
    """what needs logits of the next token is an error; the output has the rows in front"""
    file = run.write("m.lm", encoder(SAME).replace("precision", "").replace("adamw(lr = 1e-3)", "adamw(lr = 1e-3); save = checkpoint(\"run\")"))
    run.write("text.txt", "a text of some words\n" * 40)
    check("next: lmc export " in run("run", file))
    error = run("chat", run.path("run"), status=1)
    check("is an encoder, without `apply`" in error and "lmc eval" in error, error)
    error = run("generate", run.path("run"), "--prompt", "a", status=1)
    check("error[E0A0]" in error and "apply" in error, error)
    text = encoder(SAME).replace("-> real[b, t, vocab] {", "-> real[vocab] {").replace("embed, d)\n", "embed, (b, t, d))\n", 1)
    check("error[E0" in run("check", run.write("bad.lm", text), status=1))


IMAGES = """import std.nn: xent
model Pixels(classes = 3, y = 4, x = 5) {
  param w: real[y, x, classes] = normal(0.3)
  encode(image: f32[b, y, x]) -> real[b, classes] { return dot(real(image), w, (y, x)) }
  loss(bt: Batch[b, t], image: f32[b, y, x], label: int[b]) -> (f32, f32) {
    let l = xent(encode(image), label)
    return (sum(l), sum(l * 0 + 1))
  }
}
data D { source s = batches("batches.safetensors") }
recipe R { model = Pixels(); data = D; run = 2 steps; optimizer = sgd(lr = 0.1); precision { compute = f32 } }
"""


def test_encode_images(run):
    """`lmc trace` writes the output of `encode`, here of columns alone"""
    draw = np.random.default_rng(2)
    b = random_batches(2, 4, 2, 9)
    image, label = draw.normal(size=(2, 4, 4, 5)).astype("<f4"), draw.integers(0, 3, (2, 4)).astype("<i4")
    save(run.path("batches.safetensors"), b | dict(image=image, label=label))
    file = run.write("m.lm", IMAGES)
    start = run.trace(file, "--values", "params", "--steps", 1, "--set", "optimizer.lr=0")["final.w"].astype("f8")
    out = run.trace(file, "--values", "logits,loss")
    z = np.einsum("byx,yxc->bc", image[0].astype("f8"), start)
    check(out["logits"].shape == (4, 3) and abs(out["logits"] - z).max() < 1e-6, out["logits"])
    loss = (np.log(np.exp(z).sum(-1)) - z[np.arange(4), label[0]]).mean()
    check(abs(out["loss"][0] - loss) < 2e-6 and out["loss"].shape == (2,), out["loss"])
