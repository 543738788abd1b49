"""Pages that are generated from the program's tables are up to date."""
import glob
import subprocess

from harness import ROOT, check


def page_check(name, text):
    check(open(f"{ROOT}/docs/{name}").read() == text, f"docs/{name} differs from the output of the program: run scripts/docs")


def test_commands(run):
    page_check("commands.md", run("help", "--markdown"))


def test_recipe(run):
    page_check("recipe.md", run("explain", "--reference"))


def test_errors(run):
    page_check("errors.md", run("explain", "--errors"))


def test_ops(run):
    page_check("ops.md", run("opt", "--ops"))


def script(name, *files):
    paths = [path for f in files for path in sorted(glob.glob(f"{ROOT}/{f}"))]
    return subprocess.run([f"{ROOT}/scripts/{name}", *paths], capture_output=True, text=True, check=True).stdout


def test_stdlib(run):
    page_check("stdlib.md", script("library_reference", "stdlib/*.lm"))


def test_grammar(run):
    page_check("grammar.md", script("grammar", "dsl/syntax/parser.y", "dsl/syntax/lexer.l"))
