"""Pages that are generated from the program's tables are up to date, and links lead somewhere."""
import glob
import os
import re
import shutil
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


def test_failure(run):
    """a page whose command fails stays as it is"""
    for name in ("scripts/docs", "docs/commands.md"):
        os.makedirs(os.path.dirname(run.path(name)), exist_ok=True)
        shutil.copy(f"{ROOT}/{name}", run.path(name))
    p = subprocess.run([run.path("scripts/docs"), "--help"], stderr=subprocess.PIPE, text=True)
    check(p.returncode and "--help" in p.stderr, p)
    with open(run.path("docs/commands.md")) as page:
        page_check("commands.md", page.read())


def script(name, *files):
    paths = [path for f in files for path in sorted(glob.glob(f"{ROOT}/{f}"))]
    return subprocess.run([f"{ROOT}/scripts/{name}", *paths], capture_output=True, text=True, check=True).stdout


def test_stdlib(run):
    page_check("stdlib.md", script("library_reference", "stdlib/*.lm"))


def test_grammar(run):
    page_check("grammar.md", script("grammar", "dsl/syntax/parser.y", "dsl/syntax/lexer.l"))


def prose(page):
    return re.sub(r"```.*?```|`[^`\n]+`", "", open(page).read(), flags=re.S)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", open(page).read(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links(run):
    """the file and the heading of each link between pages exist"""
    for page in (f"{ROOT}/README.md", *glob.glob(f"{ROOT}/docs/*.md")):
        for path, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", prose(page)):
            target = os.path.join(os.path.dirname(page), path) if path else page
            check(os.path.exists(target), f"{page}: no file {path}")
            if target.endswith(".md") and anchor:
                check(anchor in anchors(target), f"{page}: no heading {path}#{anchor}")
