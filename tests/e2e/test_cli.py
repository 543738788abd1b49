"""Transcripts of the command: tests/cli/*.txt, and every fenced block of README.md and docs/ that holds one.

A transcript is lines of
  $ COMMAND          run by bash, in an empty folder where tests/cli/files lies beside it; `lmc` is the build's
  OUTPUT             its output, standard error included; a line `...` stands for any lines, `...` within a line for
                     any text
  [N]                its exit status, if it is not 0
Lines that begin with # in front of a command describe the command.
"""
import glob, os, re, shutil, subprocess

from harness import ROOT, check


def commands(text):
    """(comment lines, command, expected lines, status) of each command"""
    out = []
    for line in text.splitlines():
        if line.startswith("$ "):
            out.append([line[2:], [], 0])
        elif out and re.fullmatch(r"\[\d+\]", line):
            out[-1][2] = int(line[1:-1])
        elif out:
            out[-1][1].append(line)
    for c in out:
        while c[1] and (not c[1][-1].strip() or c[1][-1].startswith("#")):
            c[1].pop()
    return out


def pattern(lines):
    parts = [r"(.*\n)*?" if line.strip() == "..." else r".*".join(map(re.escape, line.split("..."))) + r"\n" for line in lines]
    return re.compile("".join(parts))


def prepare(run):
    shutil.copytree(f"{ROOT}/tests/cli/files", run.path("work"))
    shutil.copytree(f"{ROOT}/examples", run.path("work/examples"))
    for name in ("tests", "data"):
        os.symlink(f"{ROOT}/{name}", run.path("work", name))
    os.makedirs(run.path("bin"))
    os.symlink(run.lmc, run.path("bin/lmc"))
    os.makedirs(run.path("work/build"))
    os.symlink(run.lmc, run.path("work/build/lmc"))


def shell(run, command):
    env = {**os.environ, "PATH": run.path("bin") + ":" + os.environ["PATH"], "COLUMNS": "120"}
    p = subprocess.run(["bash", "-c", command], cwd=run.path("work"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, errors="replace", timeout=900)
    return p.stdout, p.returncode


def transcript(run, text):
    prepare(run)
    for command, lines, status in commands(text):
        out, code = shell(run, command)
        out = out if not out or out.endswith("\n") else out + "\n"
        check(code == status, f"$ {command}\nexit status {code}, not {status}\n{out}")
        check(pattern(lines).fullmatch(out.rstrip("\n") + "\n" if out.strip() else ""), f"$ {command}\nprinted\n{out}instead of\n" + "\n".join(lines))


def fences(path):
    """the fenced blocks of a document that hold commands: ```console"""
    return re.findall(r"^```console\n(.*?)^```", open(path).read(), re.M | re.S)


def programs(path):
    """the blocks of a document that are whole files: ```lm"""
    return re.findall(r"^```lm\n(.*?)^```", open(path).read(), re.M | re.S)


def program_check(run, text):
    prepare(run)
    with open(run.path("work/sample.lm"), "w") as f:
        f.write(text)
    out, code = shell(run, "lmc check sample.lm")
    check(code == 0, out)


def cases():
    out = []
    for path in sorted(glob.glob(f"{ROOT}/tests/cli/*.txt")):
        out.append((os.path.basename(path)[:-4], lambda run, path=path: transcript(run, open(path).read())))
    for path in sorted(glob.glob(f"{ROOT}/docs/*.md")) + [f"{ROOT}/README.md"]:
        name = os.path.basename(path)
        for i, block in enumerate(fences(path)):
            out.append((f"{name} console {i + 1}", lambda run, block=block: transcript(run, block)))
        for i, block in enumerate(programs(path)):
            out.append((f"{name} lm {i + 1}", lambda run, block=block: program_check(run, block)))
    return out
