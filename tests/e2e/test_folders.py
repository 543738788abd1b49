"""Run folders and the other folders that commands read and write: that they hold all they need, and that nothing is
overwritten that another command wrote."""
import os, shutil

from harness import check
from test_resume import PROGRAM, begin, changed, resume

MODEL, RECIPE = PROGRAM.split("data D", 1)


def begin_divided(run, imported):
    """the program in two files, of which the main one imports the other as `imported` says"""
    begin(run, "data D" + RECIPE)
    run.write("lib/parts.lm", MODEL)
    text = open(run.path("p.lm")).read()
    return run.write("p.lm", f"import {imported}\n{text}")


def replace(path, old, new):
    text = open(path).read()
    check(old in text, text)
    open(path, "w").write(text.replace(old, new))


def test_self_contained(run):
    """eval reads the copy of a program whose import is absolute, also after the original is changed and the run is moved"""
    begin_divided(run, f'"{run.path("lib", "parts.lm")}": M, Mine  # an absolute path')
    resume(run, 4)
    before = run("eval", run.path("run"))
    check('import "lib/parts.lm": M, Mine  # an absolute path' in open(run.path("run/program/p.lm")).read(), "the copy's import")
    replace(run.path("lib/parts.lm"), "* scale", "* (0.1 * scale)")
    check(run("eval", run.path("run")) == before, "the original is not read")
    shutil.rmtree(run.path("lib"))
    os.rename(run.path("run"), run.path("moved"))
    check(run("eval", run.path("moved")) == before, "nor is it needed")


def test_import_through_a_link(run):
    """a file that is imported by the name of a link is found in the copy"""
    os.makedirs(run.path("links"))
    os.symlink(run.path("lib"), run.path("links/lib"))
    begin_divided(run, "links.lib.parts: M, Mine")
    resume(run, 4)
    run("eval", run.path("run"))


def test_import_unchanged(run):
    """the copy's other import is no difference between the programs"""
    begin_divided(run, f'"{run.path("lib", "parts.lm")}": M, Mine')
    resume(run, 2)
    replace(run.path("lib/parts.lm"), "* scale", "* (0.1 * scale)")
    err = resume(run, 4, status=1)
    check("return dot(u, embed, d) * (0.1 * scale)" in err and "import" not in err, err)


def test_edited_copy(run):
    """eval, generate and export refuse a program that the weights were not trained with"""
    begin(run)
    resume(run, 4)
    replace(run.path("run/program/p.lm"), "* scale", "* (0.1 * scale)")
    for command in ("eval",), ("generate", "--prompt", "line"), ("export", "-o", run.path("hf")):
        err = run(command[0], run.path("run"), *command[1:], status=1)
        check("does not compute what these weights were trained with" in err and "the loss in evaluation differs" in err, err)
        check('model M = ... from "' in err, err)
    replace(run.path("run/program/p.lm"), "* (0.1 * scale)", "* scale")
    replace(run.path("run/program/p.lm"), "lr = 2e-3", "lr = 1e-3")
    run("eval", run.path("run"))


def test_program_of_an_older_step(run):
    """a checkpoint from before --change-model is evaluated with the program of then"""
    begin(run)
    resume(run, 2)
    before = run("eval", run.path("run"))
    changed(run, ("* scale", "* (0.1 * scale)"))
    resume(run, 4, "--change-model")
    check(run("eval", run.path("run"), "--step", 2) == before, "the older program")
    check(run("eval", run.path("run")) != before, "the newer one")


def test_from_a_damaged_checkpoint(run):
    """`from` one checkpoint, its folder or its file, refuses a damaged one, in run and in eval"""
    begin(run)
    resume(run, 4)
    run("eval", from_checkpoint(run, "run/step-000004"))
    path = run.path("run/step-000004/model.safetensors")
    data = bytearray(open(path, "rb").read())
    data[-1] ^= 1
    open(path, "wb").write(data)
    for source in "run/step-000004", "run/step-000004/model.safetensors":
        file = from_checkpoint(run, source)
        for command in ("eval", file), ("run", file, "--out", run.path("new"), "-q"):
            err = run(*command, status=2)
            check("this checkpoint is damaged" in err and "step-000004/model.safetensors: the checksum is" in err, err)


def from_checkpoint(run, source):
    return changed(run, ("model = M()", "model = N"), ("recipe R {", f'model N = M() from "{run.path(source)}"\nrecipe R {{'), name="from.lm")
