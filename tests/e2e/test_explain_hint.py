"""The last line of errors on a terminal names `lmc explain`; elsewhere nothing is added."""
import os, pty, subprocess

from harness import check

HINT = "`lmc explain E020` tells more about this error"


def on_a_terminal(run, *args):
    """the standard error of a command whose standard error is a terminal, and its exit status"""
    ours, theirs = pty.openpty()
    p = subprocess.Popen([run.lmc, *args], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the end of a terminal
            break
        if not part:
            break
        text += part
    os.close(ours)
    return text.decode(), p.wait()


def test_hint_ends_errors_on_a_terminal(run):
    wrong = run.write("wrong.lm", "fn f(x: real[..r]) -> real[..r] { return x * y }\n")
    right = run.write("right.lm", "fn f(x: real[..r]) -> real[..r] { let y = x; return x }\n")
    text, status = on_a_terminal(run, "check", wrong)
    check(status == 1 and text.count("lmc explain") == 1 and text.rstrip().endswith(HINT), text)
    text, status = on_a_terminal(run, "check", wrong, "--json")
    check(status == 1 and "lmc explain" not in text, text)
    text, status = on_a_terminal(run, "check", right)
    check(status == 0 and "W001" in text and "lmc explain" not in text, text)
    check("lmc explain" not in run("check", wrong, status=1), "without a terminal nothing is added")
