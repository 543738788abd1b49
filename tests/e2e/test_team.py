"""Teams of threads under the thread sanitizer, which a build with the others cannot have (tests/runtime/team_test.c)."""
import os
import subprocess

from harness import Skip, check

PLAIN_BUILD = {"races"}


def test_races(run):
    """no access of a team is a race"""
    p = subprocess.run([os.path.join(os.path.dirname(run.lmc), "team_tsan_test")], capture_output=True, text=True, errors="replace")
    if "ThreadSanitizer: unexpected memory mapping" in p.stderr:
        raise Skip("this compiler's thread sanitizer cannot use the addresses that the kernel gives to a program")
    check(p.returncode == 0, f"exit status {p.returncode}\n{p.stdout}{p.stderr}")
