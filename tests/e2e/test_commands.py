"""Errors that commands report before they write anything, and the remedies that they name."""
import os, shutil, subprocess

from harness import check, folder_bytes, load, random_batches, save, small

DECODE = """import std.nn: xent
model M(d = 8, vocab = 256) {{
  param embed: real[vocab, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    let x = gather(embed, tok, vocab)
    let y = {how}
    return dot(y, embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
data D {{ source s = text("t.txt"); pack best_fit(seq = 32 tokens) }}
recipe R {{ model = M(); data = D; run = 2 steps; batch = 32 tokens; {more} }}
"""


def test_check_notes_mixed_positions(run):
    """positions that mix outside of `history`: a note of check, an error if the recipe has samples"""
    run.write("t.txt", "a text\n")
    for how, code in (("select(expand(pos, d) > 0, slice(pad(x, t -> u, 1, 0), u -> t), 0)", "E0D1"), ("x + expand(expand(real(iota(t)), b, before = t), d)", "E0D2")):
        code0, out, err = run.result("check", run.write("d.lm", DECODE.format(how=how, more="")))
        check(code0 == 0 and f"d.lm:6:" in err and f"note[{code}]: lmc generate will refuse this model" in err, err)
        sampled = run.write("s.lm", DECODE.format(how=how, more='sample { every = 1 steps; prompt = "x" }'))
        check(f"error[{code}]" in run("check", sampled, status=1), how)
    code, out, err = run.result("check", run.write("h.lm", DECODE.format(how="x", more="")))
    check(code == 0 and not err, err)


POSITIONS = """import std.nn: xent
model M(d = 8, vocab = 256, positions = 32) {{
  param embed: real[vocab, d] = normal(0.02)
  param at: real[positions, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {{
    return dot(gather(embed, tok, vocab) + gather(at, pos, positions), embed, d)
  }}
  loss(bt: Batch[b, t]) -> (f32, f32) {{ return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }}
}}
data D {{ tokenizer = {tokenizer}; source s = text("none.txt"); pack best_fit(seq = 32 tokens); {more} }}
recipe R {{ model = M({args}); data = D; run = 2 steps; batch = 64 tokens; {sample} }}
"""


def test_check_notes_small_tables(run):
    """tables that are too small for the data that the recipe describes, without reading its text"""
    def checked(args="", tokenizer="bytes()", more="", sample=""):
        code, out, err = run.result("check", run.write("p.lm", POSITIONS.format(args=args, tokenizer=tokenizer, more=more, sample=sample)))
        return code, err
    code, err = checked()
    check(code == 0 and "p.lm:10:47: warning[W213]: lmc run would fail: source s: no file matches" in err and err.count("warning") == 1, err)
    code, err = checked(tokenizer='bpe("none.json")')
    check(code == 0 and "p.lm:10:26: warning[W213]: lmc run would fail: there is no file" in err and err.count("warning") == 2, err)
    run.write("none.txt", "a text\n")
    check(checked() == (0, ""), checked())
    for how, what in ((dict(args="vocab = 100"), "p.lm:11:20: error[E211]: the model's vocabulary has 100 tokens, the largest token id of the data is 255"),
                      (dict(args="positions = 16"), "the model has 16 positions, the largest position of the data is 31"),
                      (dict(more="stage 50% { pack best_fit(seq = 64 tokens) }"), "the model has 32 positions, the largest position of the data is 63"),
                      (dict(sample='sample { every = 1 steps; prompt = "a"; n = 32 tokens }'), "the model has 32 positions, fewer than a prompt and 32 new tokens need")):
        code, err = checked(**how)
        check(code == 1 and what in err, err)
    code, err = checked(tokenizer="bpe(train = 300)")
    check(code == 0 and "p.lm:10:22: warning[W211]: the tokenizer may learn up to 300 tokens, but the model's vocabulary has 256" in err, err)


def test_failed_import(run):
    """a failed import leaves no file and removes none"""
    run.write("hf/config.json", "{}")
    run.write("hf/vocab.json", "{}")
    file = run.write("m.lm", DECODE.format(how="x", more=""))
    args = ("import", "hf", run.path("hf"), "--model", f"{file}:M")
    check("map hf" in run(*args, "-o", run.path("out"), status=1), "a model without a map")
    check(not os.path.exists(run.path("out")), "the folder")
    sized = run.write("sized.lm", DECODE.format(how="x", more="").replace("M(d = 8,", "M(d,").replace("M();", "M(d = 8);"))
    err = run("import", "hf", run.path("hf"), "--model", f"{sized}:M", "-o", run.path("out"), status=1)
    check("model M() has no `map hf { … }`" in err, err)
    run.write("kept/notes.txt", "mine")
    run.write("kept/vocab.json", "mine too")
    run(*args, "-o", run.path("kept"), status=1)
    check(sorted(os.listdir(run.path("kept"))) == ["notes.txt", "vocab.json"], os.listdir(run.path("kept")))


MAPPED = """import std.nn: xent
model M(d = 8, n = 2, vocab = 256) {
  param embed: real[vocab, d] = normal(0.02)
  param q: real[d, n] = normal(0.02)
  param qn: real[n] = ones
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] {
    return dot(dot(dot(gather(embed, tok, vocab), q, d) * qn, q, n), embed, d)
  }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
  map hf {
    @embed = ("model.embed_tokens.weight", [vocab, d])
    @q = ("model.layers.0.self_attn.q_proj.weight", [n, d])
    @qn = ("model.layers.0.self_attn.q_norm.weight", [n])
  }
}
data D { source s = text("t.txt"); pack best_fit(seq = 32 tokens) }
recipe R { model = M(); data = D; run = 1 steps; batch = 32 tokens; save = checkpoint("run") }
"""


def test_export_of_no_family(run):
    """a model with some tensor names of a family is not of that family unless it has all of them"""
    run.write("t.txt", "some text to read " * 20)
    run("run", run.write("m.lm", MAPPED), "-q")
    code, out, err = run.result("export", run.path("run"), "-o", run.path("out"))
    check(code == 0 and "identify no architecture" in err and "config.json" not in os.listdir(run.path("out")), out + err)


def test_lists_of_ids(run):
    file = small(run, steps=1, more='save = checkpoint("run")')
    run("run", file, "-q")
    generate = lambda ids, **how: run("generate", run.path("run"), "--prompt-ids", ids, "-n", 3, "--ids", "-t", 0, **how)
    check(generate("1,2,3") == generate("1 2 3") == generate(" 1, 2 ,3 "), "the same prompt")
    for ids, what in (("1,,2", "missing between two commas"), (",1", "missing before the first comma"), ("1,", "missing after the last comma"),
                      ("1;2", "'1;2' is not a token id"), ("1,-2", "-2 is not a token id: expected 0"), ("9999999999", "is not a token id")):
        check(what in generate(ids, status=1), ids)
    check("missing between two commas" in run("tokenizer", "decode", "bytes()", stdin="72,,105", status=1), "decode")
    check(run("tokenizer", "decode", "bytes()", stdin="72, 105\n33") == "Hi!\n", "decode")
    for args, what in ((("trace", file, "--out", run.path("t"), "--values", "loss,,lr"), "--values has no ''"),
                       (("compile", file, "--emit", "ir,"), "--emit has no ''"), (("compile", file, "--disable-pass", "cse,"), "an empty name between its commas")):
        check(what in run(*args, status=1), args)


def test_inputs_are_kept(run):
    """a command refuses to write the file that it reads, under any name"""
    file = small(run, steps=1, more='save = checkpoint("run")')
    run("run", file, "-q")
    text = run.write("text.txt", "some text to learn a vocabulary from\n" * 20)
    os.symlink(file, run.path("link"))
    run("compile", file, "-o", run.path("plan"))
    before = folder_bytes(run.folder)
    step = run.path("run/step-000001")
    for args in (("trace", file, "--steps", 1, "--out", file), ("trace", file, "--steps", 1, "--out", run.path("link")),
                 ("trace", file, "--steps", 1, "--out", run.path("batches.safetensors")), ("run", file, f"--profile={file}"),
                 ("tokenizer", "train", "-o", text, text), ("opt", "--pass=dce", run.path("plan/graph.lmir"), "-o", run.path("plan/graph.lmir")),
                 ("export", run.path("run"), "-o", step), ("export", run.path("run"), "-o", run.path("run"))):
        check("is read by this command" in run(*args, status=1), args)
    check(before == folder_bytes(run.folder), "the files must be unchanged")


def test_unusable_outputs(run):
    """an output that is a folder, in a missing folder, or without a name is reported before any work, as is a model that is a file"""
    file = small(run, steps=1)
    for args, what in ((("trace", file, "--out", run.folder), "is a folder, but the output is a file"),
                       (("trace", file, "--out", run.path("none/x")), "there is no folder"), (("run", file, "--out", ""), "--out needs a value: DIR"),
                       (("tokenizer", "train", "-o", run.folder, file), "is a folder"),
                       (("import", "hf", file, "-o", run.path("y")), "is a file; name the folder of the model"), (("new", "x", "--data", ""), "--data needs a value: PATH")):
        check(what in run(*args, status=1), args)


def test_next_is_for_a_shell(run):
    """the suggested next command runs in a shell unchanged"""
    file = small(run, steps=1, name="it's a.lm", more='save = checkpoint("run")')
    out = run("run", file, "--out", run.path("it's $HOME"))
    check("next: lmc generate " in out and "it'\\''s $HOME' --prompt '...'" in out, out)
    out = run("run", file)
    check(f"next: lmc generate {os.path.realpath(run.path('run'))} --prompt" in out, out)


def test_trace_needs_the_batches_of_its_steps(run):
    file = small(run, steps=2, batches=random_batches(1, 4, 16))
    said = run("trace", file, "--steps", 1, "--values", "loss,lr", "--out", run.path("one"))
    check(said == f"{run.path('one')}: 2 tensors of 1 steps\n", said)
    one = load(run.path("one"))
    whole = run.trace(small(run, steps=2, batches=random_batches(2, 4, 16), name="whole.lm"), "--values", "lr")
    check(len(one["loss"]) == 1 and one["lr"][0] == whole["lr"][0], "the schedule must follow the recipe's steps, not --steps")
    save(run.path("batches.safetensors"), random_batches(1, 4, 16))
    err = run("trace", file, "--out", run.path("t"), status=1)
    check("the run has 2 steps, the data has only 1 batches" in err, err)


def test_closed_standard_files(run):
    """closed input counts as empty, closed output cannot be written"""
    file = small(run, steps=2)
    for how, status in (("<&-", 0), ("<&-", 0), ("2>&-", 0), (">&-", 2)):
        command = f"exec {run.lmc} run {file} --out {run.path('run')} {how}"
        p = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check(p.returncode == status, f"{how}: exit status {p.returncode}\n{p.stdout}{p.stderr}")


def test_empty_file(run):
    """an empty file has the canonical layout, and no recipe"""
    empty = run.write("empty.lm", "")
    run("fmt", "--check", empty)
    check("no recipe" in run("check", empty), "check")
