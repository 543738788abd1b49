"""Kernels dumped, edited and loaded: the edit is what runs; what cannot be is told."""
import glob, os

from harness import check, small


def test_edited_kernel(run):
    file = small(run)
    loss = list(run.trace(file, "--steps", 2, "--values", "loss", "--dump-dir", run.path("k"))["loss"])
    sources = glob.glob(run.path("k/*.c"))
    check(len(sources) > 5, sources)
    same = run.trace(file, "--steps", 2, "--values", "loss", "--load-dir", run.path("k"))["loss"]
    check(list(same) == loss, "as they were dumped, they give the same")
    os.makedirs(run.path("one"))
    path = next(p for p in sources if "exp" in open(p).read())
    text = open(path).read()
    at = text.index("{", text.index("void " + os.path.basename(path)[:-2]))
    edited = run.write(f"one/{os.path.basename(path)}", text[: at + 1] + " return;" + text[at + 1 :])
    other = run.trace(file, "--steps", 2, "--values", "loss", "--load-dir", run.path("one"))["loss"]
    check(list(other) != loss, "a kernel that does nothing is seen")
    open(edited, "w").write("no C\n")
    err = run("trace", file, "--steps", 1, "--out", run.path("t"), "--load-dir", run.path("one"), status=1)
    check("cannot compile" in err and "error:" in err, err)
    os.makedirs(run.path("empty"))
    err = run("trace", file, "--steps", 1, "--out", run.path("t"), "--load-dir", run.path("empty"), status=1)
    check("holds no source" in err, err)


def test_edited_kernel_is_another_run(run):
    file = small(run, steps=4)
    run("run", file, "-q", "--steps", 2, "--out", run.path("run"), "--dump-dir", run.path("k"))
    err = run("run", file, "-q", "--out", run.path("run"), "--load-dir", run.path("k"), status=1)
    check("--load-dir" in err, err)
