"""Memory: what is not stored whole, what is computed again, what a plan says and what is then taken."""
from harness import check, distance, small, within


def test_chunked_vocabulary(run):
    """1024 rows of 4608 logits, 512 at a time = four micro-batches that need no such thing"""
    how = dict(steps=2, rows=8, seq=128, depth=1, vocab=4608)
    whole, parts = small(run, micro=256, name="whole.lm", **how), small(run, name="parts.lm", **how)
    a, b = (run.trace(f, "--values", "loss,grads,params") for f in (whole, parts))
    for name in a:
        within(name, distance(a[name], b[name]), 1e-5 if name.startswith("final") else 2e-6)
    run("compile", parts, "-o", run.path("plan"))
    for line in open(run.path("plan", "step.lmir")):
        check("b, t, vocab]" not in line or "b.1" in line, f"logits as a whole: {line}")
