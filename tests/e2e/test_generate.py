"""lmc generate: stops and --json, on a model of a few steps. Its text is compared with the same text made without a stop."""
import json, re

from harness import ROOT, check

PROGRAM = """import "{root}/examples/llama.lm": Llama
data Text {{ tokenizer = {tokenizer}; source s = text("text.txt"); pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 300)
  data = Text; run = 40 steps; batch = 128 tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = f32 }}
}}
"""
TEXT = "the cat sat on the mat and the dog sat by the door, for the rain was on the hill.\n"


def trained(run, tokenizer):
    run.write("text.txt", TEXT * 40)
    run("run", run.write("train.lm", PROGRAM.format(root=ROOT, tokenizer=tokenizer)), "-q", "--out", run.path("run"))
    return run.path("run")


def shown(run, folder, *args, temperature=0.6):
    return run("generate", folder, "--prompt", "the ", "-n", 80, "--seed", 5, "--temperature", temperature, *args)


def made(run, folder, *args, **how):
    return json.loads(shown(run, folder, "--json", *args, **how))


def stops_check(run, folder):
    whole = made(run, folder)
    text = whole["text"]
    check(whole["end"] == "length" and len(whole["ids"]) == 80, whole)
    check(text.isascii() and len(text) > 60, f"the text must be long enough for stops: {text!r}")
    check(shown(run, folder) == f"the {text}\n", "streamed and JSON text")
    for first, last in ((0, 1), (7, 12), (20, 29), (len(text) - 4, len(text))):
        stop = text[first:last]
        cut = text[: text.index(stop)]
        got = made(run, folder, "--stop", stop)
        check(got["text"] == cut and got["end"] == "stop", f"--stop {stop!r}: {got}, expected {cut!r}")
        check(got["ids"] == whole["ids"][: len(got["ids"])], "the tokens up to the stop are the same")
        check(shown(run, folder, "--stop", "\x01", "--stop", stop) == f"the {cut}\n", f"streamed with --stop {stop!r}")
        ids = shown(run, folder, "--ids", "--stop", stop)
        check(list(map(int, ids.split())) == got["ids"], "--ids ends with the token that completes the stop")
    # Text that only begins like a stop, in the middle and at the end, is printed.
    for stop in (text[10:16] + "\x01", text[-3:] + "\x01", "\x01" * 500):
        check(made(run, folder, "--stop", stop) == whole, f"--stop {stop!r} is never complete")
        check(shown(run, folder, "--stop", stop) == f"the {text}\n", f"--stop {stop!r}, streamed")
    # Of several stops the one that is complete first counts.
    long, within = text[30:40], text[33:35]
    check(made(run, folder, "--stop", long, "--stop", within)["text"] == text[: text.index(within)], "two stops")


def test_stop_bytes(run):
    folder = trained(run, "bytes()")
    stops_check(run, folder)
    check("it was not trained on conversations" in run("chat", folder, status=1), "no chat template")
    check("--stop needs text" in run("generate", folder, "--prompt", "a", "--stop", "", status=1), "an empty stop")


def test_stop_byte_pairs(run):
    stops_check(run, trained(run, "bpe(train = 290)"))


def test_json_of_any_bytes(run):
    """at a high temperature the bytes are not UTF-8: the output is still JSON, with the text as Python decodes the bytes"""
    folder = trained(run, "bytes()")
    got = made(run, folder, temperature=50)
    raw = bytes(i for i in got["ids"] if i < 256)
    check(any(b >= 0x80 for b in raw), "the sample must have bytes that are not UTF-8")
    check(got["text"] == raw.decode("utf-8", "replace"), (got["text"], raw))


def test_few_positions(run):
    """without -n, as many tokens as the model has positions for; a number that is given is not changed"""
    run.write("text.txt", TEXT * 40)
    program = PROGRAM.replace("examples/llama.lm\": Llama", "examples/zoo/gpt2.lm\": GPT2").replace("ff = 64, heads = 2, kv = 1, e = 16", "heads = 2, positions = 32")
    run("run", run.write("train.lm", program.format(root=ROOT, tokenizer="bytes()").replace("Llama(", "GPT2(")), "--steps", 2, "-q", "--out", run.path("run"))
    got = json.loads(run("generate", run.path("run"), "--prompt", "the cat", "--json"))
    check(len(got["ids"]) == 32 - 7, got)
    err = run("generate", run.path("run"), "--prompt", "the cat", "-n", 26, status=1)
    check("the model has 32 positions; a prompt of 7 tokens and 26 more exceed them" in err, err)
    for n in (32, 33):
        check("32 positions; a prompt of" in run("generate", run.path("run"), "--prompt", "a" * n, status=1))


def decoded(run, *asked):
    """the sample after the last step, and the number of GEMMs per token"""
    text = run("run", run.path("packed.lm"), "--out", run.path(f"run{len(asked)}"), *asked).split("sample after step 40:\n")[1].split("\n\ndone")[0]
    run("compile", run.path("packed.lm"), "--out", run.path("plan"), *asked)
    decode = re.search(r"^func decode\b.*?(?=^func |\Z)", open(run.path("plan/plan.txt")).read(), re.M | re.S)[0]
    return text, decode.count(" gemm ")


def test_weights_side_by_side(run):
    """decoding reads the concatenated weights of @copies after training: the same text with fewer GEMMs"""
    run.write("text.txt", TEXT * 40)
    sample = 'sample { every = 40 steps; prompt = "the "; n = 40 tokens; temperature = 0 }; precision'
    run.write("packed.lm", PROGRAM.format(root=ROOT, tokenizer="bytes()").replace("precision", sample))
    (usual, gemms), (packed, fewer) = decoded(run), decoded(run, "--enable-pass", "fuse_gemms")
    check(packed == usual and usual.startswith("the "), f"{packed!r}, not {usual!r}")
    check(fewer < gemms, f"{fewer} GEMMs per token, not fewer than {gemms}")
