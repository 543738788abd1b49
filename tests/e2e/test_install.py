"""cmake --install leaves a command that runs without the source tree and the build folder."""
import os, shutil, subprocess

from harness import check


def test_install(run):
    build = os.path.dirname(run.lmc)
    if not os.path.exists(os.path.join(build, "cmake_install.cmake")):
        build = os.path.dirname(os.path.realpath(run.lmc))
    prefix, work = run.path("prefix"), run.path("elsewhere")
    subprocess.run(["cmake", "--install", build, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    os.makedirs(work)
    shutil.copy(f"{prefix}/share/lmc/examples/llama.lm", work)
    env = {"PATH": "/usr/bin:/bin", "HOME": work, "LMC_CACHE": run.path("cache")}

    def lmc(*args):
        p = subprocess.run([f"{prefix}/bin/lmc", *args], cwd=work, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(p.returncode == 0, f"lmc {' '.join(args)}: exit status {p.returncode}\n{p.stdout}")
        return p.stdout

    check(lmc("--version").startswith("lmc "), "the installed command prints its version")
    with open(f"{work}/own.lm", "w") as f:
        f.write(OWN)
    lmc("run", "own.lm", "-q")
    check(os.path.exists(f"{work}/run/step-000002"), "the installed command trains and saves")


OWN = """import std.nn: rmsnorm, xent
model Tiny(d = 8, vocab = 256) {
  param embed: real[vocab, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return dot(gather(embed, tok, vocab), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) {
    return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w))
  }
}
data Own { source self = text("own.lm"); pack best_fit(seq = 16 tokens) }
recipe Train { model = Tiny(); data = Own; run = 2 steps; batch = 32 tokens; save = checkpoint("run") }
"""
