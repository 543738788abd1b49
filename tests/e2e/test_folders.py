"""Run folders and the other folders that commands read and write: they are complete, and nothing is
overwritten that another command wrote."""
import json, os, shutil

import numpy as np
from harness import ROOT, check, folder_bytes, load, remove, save, small
from test_resume import PROGRAM, begin, changed, resume

MODEL, RECIPE = PROGRAM.split("data D", 1)


def begin_divided(run, imported):
    """the program in two files, of which the main one imports the other as `imported` says"""
    begin(run, "data D" + RECIPE)
    run.write("lib/parts.lm", MODEL)
    text = open(run.path("p.lm")).read()
    return run.write("p.lm", f"import {imported}\n{text}")


def replace(path, old, new):
    text = open(path).read()
    check(old in text, text)
    open(path, "w").write(text.replace(old, new))


def test_self_contained(run):
    """eval reads the copy of a program whose import is absolute, also after the original is changed and the run is moved"""
    begin_divided(run, f'"{run.path("lib", "parts.lm")}": M, Mine  # an absolute path')
    resume(run, 4)
    before = run("eval", run.path("run"))
    check('import "lib/parts.lm": M, Mine  # an absolute path' in open(run.path("run/program/p.lm")).read(), "the copy must import the copied file")
    replace(run.path("lib/parts.lm"), "* scale", "* (0.1 * scale)")
    check(run("eval", run.path("run")) == before, "the original must not be read")
    shutil.rmtree(run.path("lib"))
    os.rename(run.path("run"), run.path("moved"))
    check(run("eval", run.path("moved")) == before, "the original must not be needed")


def test_import_through_a_link(run):
    """a file that is imported by the name of a link is found in the copy"""
    os.makedirs(run.path("links"))
    os.symlink(run.path("lib"), run.path("links/lib"))
    begin_divided(run, "links.lib.parts: M, Mine")
    resume(run, 4)
    run("eval", run.path("run"))


def test_import_unchanged(run):
    """the rewritten import of the copy does not count as a changed program"""
    begin_divided(run, f'"{run.path("lib", "parts.lm")}": M, Mine')
    resume(run, 2)
    replace(run.path("lib/parts.lm"), "* scale", "* (0.1 * scale)")
    err = resume(run, 4, status=1)
    check("return dot(u, embed, d) * (0.1 * scale)" in err and "import" not in err, err)


def test_edited_copy(run):
    """eval, generate and export refuse a program that the weights were not trained with"""
    begin(run)
    resume(run, 4)
    replace(run.path("run/program/p.lm"), "* scale", "* (0.1 * scale)")
    for command in ("eval",), ("generate", "--prompt", "line"), ("export", "-o", run.path("hf")):
        err = run(command[0], run.path("run"), *command[1:], status=1)
        check("computes something else than the one that these weights were trained with" in err and "the loss in evaluation differs" in err, err)
        check('model M = ... from "' in err, err)
    replace(run.path("run/program/p.lm"), "* (0.1 * scale)", "* scale")
    replace(run.path("run/program/p.lm"), "lr = 2e-3", "lr = 1e-3")
    run("eval", run.path("run"))


def test_program_of_an_older_step(run):
    """a checkpoint from before --change-model is evaluated with the program of then"""
    begin(run)
    resume(run, 2)
    before = run("eval", run.path("run"))
    changed(run, ("* scale", "* (0.1 * scale)"))
    resume(run, 4, "--change-model")
    check(run("eval", run.path("run"), "--step", 2) == before, "the checkpoint must be evaluated with the older program")
    check(run("eval", run.path("run")) != before, "the newest checkpoint must be evaluated with the newer program")


def test_from_a_damaged_checkpoint(run):
    """`from` one checkpoint, its folder or its file, refuses a damaged one, in run and in eval"""
    begin(run)
    resume(run, 4)
    run("eval", from_checkpoint(run, "run/step-000004"))
    path = run.path("run/step-000004/model.safetensors")
    data = bytearray(open(path, "rb").read())
    data[-1] ^= 1
    open(path, "wb").write(data)
    for source in "run/step-000004", "run/step-000004/model.safetensors":
        file = from_checkpoint(run, source)
        for command in ("eval", file), ("run", file, "--out", run.path("new"), "-q"):
            err = run(*command, status=2)
            check("this checkpoint is damaged" in err and "step-000004/model.safetensors: the checksum is" in err, err)


def from_checkpoint(run, source):
    return changed(run, ("model = M()", "model = N"), ("recipe R {", f'model N = M() from "{run.path(source)}"\nrecipe R {{'), name="from.lm")


def exported(run, folder="hf"):
    """a Hugging Face folder with a tokenizer, written by export"""
    file = small(run, steps=1, vocab=256)
    run("run", file, "--out", run.path("trained"), "-q")
    run("export", run.path("trained"), "-o", run.path(folder))
    return run.path(folder)


def import_llama(run, source, out, **how):
    return run("import", "hf", source, "-o", run.path(out), "--model", f"{ROOT}/examples/llama.lm:Llama({SIZES})", **how)


SIZES = "depth = 2, d = 32, ff = 64, heads = 4, kv = 2, e = 8, vocab = 256, drop = 0"


def test_export_beside_other_weights(run):
    """export refuses a folder with weights that readers may take instead of the exported ones, import one with two sets of weights"""
    hf = exported(run)
    run("export", run.path("trained"), "-o", hf)
    os.rename(f"{hf}/model.safetensors", f"{hf}/model-00001-of-00001.safetensors")
    names = load(f"{hf}/model-00001-of-00001.safetensors")
    run.write("hf/model.safetensors.index.json", json.dumps({"weight_map": {n: "model-00001-of-00001.safetensors" for n in names}}))
    import_llama(run, hf, "whole")
    err = run("export", run.path("trained"), "-o", hf, status=1)
    check("files of another model or a run; export into an empty folder" in err, err)
    check(not os.path.exists(f"{hf}/model.safetensors"), "nothing was written")
    shutil.copy(f"{hf}/model-00001-of-00001.safetensors", f"{hf}/model.safetensors")
    err = import_llama(run, hf, "two", status=1)
    check("there are two sets of weights; remove one of them" in err, err)


def test_import_over_a_run(run):
    """import overwrites neither a run, nor an edited import, nor a file that it did not write"""
    hf = exported(run)
    shutil.copytree(run.path("trained"), run.path("before"))
    err = import_llama(run, hf, "trained", status=1)
    check("trained is the folder of a run" in err, err)
    check(folder_bytes(run.path("trained")) == folder_bytes(run.path("before")), "nothing changed")
    import_llama(run, hf, "in")
    import_llama(run, hf, "in")
    with open(run.path("in/imported.lm"), "a") as f:
        f.write("# mine\n")
    err = import_llama(run, hf, "in", status=1)
    check("in/imported.lm was edited since it was imported" in err, err)
    run.write("other/tokenizer.json", "{}")
    err = import_llama(run, hf, "other", status=1)
    check("other holds tokenizer.json, which this import did not write" in err, err)
    check(os.listdir(run.path("other")) == ["tokenizer.json"], "nothing was written")


def test_other_tokenizer(run):
    """a changed tokenizer file is named when the run is resumed; --change data.tokenizer accepts it"""
    text = " ".join(f"word{i % 7} text{i % 11}" for i in range(400))
    run.write("words.txt", text + "\n" + text.upper())
    run("tokenizer", "train", "-o", run.path("tok.json"), "--vocab", 270, run.path("words.txt"))
    begin(run)
    changed(run, ("data D {", 'data D { tokenizer = bpe("tok.json");'), ("vocab = 256", "vocab = 300"))
    resume(run, 2)
    kept = folder_bytes(run.path("run"))
    run("tokenizer", "train", "-o", run.path("tok.json"), "--vocab", 280, run.path("words.txt"))
    err = resume(run, 4, status=1)
    check("it was trained with another tokenizer" in err and "--change data.tokenizer" in err, err)
    check(folder_bytes(run.path("run")) == kept, "nothing was overwritten")
    resume(run, 4, "--change", "data.tokenizer")
    check("data.tokenizer" in run("explain", run.path("run"), "changes"), "the accepted change must be recorded")


def test_links_in_a_run_folder(run):
    """the files of a run are not written through links to files elsewhere"""
    begin(run)
    for name in "metrics.jsonl", "events.out.tfevents.lmc", "program":
        remove(run.path("run"))
        os.makedirs(run.path("run"))
        run.write("elsewhere/mine", "mine\n")
        os.symlink(run.path("elsewhere" if name == "program" else "elsewhere/mine"), run.path("run", name))
        err = resume(run, 2, status=2)
        check(f"run/{name} exists and is not a" in err, err)
        check(folder_bytes(run.path("elsewhere")) == {"mine": b"mine\n"}, name)


def test_other_spellings_of_a_step(run):
    """step-6 and step-0000006 are no checkpoints"""
    begin(run)
    resume(run, 2)
    for name in "step-6", "step-0000006":
        os.makedirs(run.path("run", name))
    resume(run, 4)
    run("eval", run.path("run"))


def test_foreign_names_are_escaped(run):
    """names from a config.json and from a checkpoint are escaped in imported.lm and on a terminal"""
    hf = exported(run)
    config = json.load(open(f"{hf}/config.json"))
    json.dump({**config, "use_cache\nlet evil = 1 #": 1}, open(f"{hf}/config.json", "w"))
    named = run.path("h\u2028let evil2 = 1 #")
    os.rename(hf, named)
    run("import", "hf", named, "-o", run.path("in"), "--model", f"{ROOT}/examples/llama.lm:Llama({SIZES})", "--ignore-config", "*")
    lines = open(run.path("in/imported.lm")).read().splitlines()
    check(not [x for x in lines if x.startswith("let")] and "\\u{2028}let evil2" in lines[0], lines)
    json.dump({**config, "model_type": "x\x1b]0;PWN\x07\nlmc: fine"}, open(f"{named}/config.json", "w"))
    tensors = load(f"{named}/model.safetensors")
    save(f"{named}/model.safetensors", {**tensors, "a\x1b[31m\nb": np.zeros(1, "<f4")})
    for args in (), ("--model", f"{ROOT}/examples/llama.lm:Llama({SIZES})", "--ignore-config", "*"):
        err = run("import", "hf", named, "-o", run.path("out"), *args, status=1)
        check("\x1b" not in err and "\nlmc: fine" not in err and "\nb" not in err and "\\x1b" in err, repr(err))


def test_not_a_number(run):
    """a single logit that is NaN is an error, because its token can be neither chosen nor excluded"""
    file = small(run, steps=1)
    run("run", file, "--out", run.path("run"), "-q")
    weights = load(run.path("run/step-000001/model.safetensors"))
    embed = weights["embed"].copy()
    embed[5, 0] = np.nan
    save(run.path("w.safetensors"), {**weights, "embed": embed})
    call = open(file).read().split("model = ", 1)[1].split("\n", 1)[0]
    text = open(file).read().replace(f"model = {call}", "model = M").replace("recipe Small", f'model M = {call} from "w.safetensors"\nrecipe Small')
    err = run("generate", run.write("nan.lm", text), "--prompt-ids", "1,2", "--ids", "-n", 2, status=1)
    check("logits are NaN: its weights hold NaN or Inf" in err, err)


def test_import_without_tokenizer(run):
    """the next step is --prompt-ids; text is refused, as the bytes() of the import encodes it in other ids"""
    hf = exported(run)
    check(not os.path.exists(os.path.join(hf, "tokenizer.json")), "prepared batches have no tokenizer")
    out = import_llama(run, hf, "bare")
    check(out.strip().endswith("bare --prompt-ids 1,2,3 --ids"), out)
    check("imported without a tokenizer" in run("generate", run.path("bare"), "--prompt", "a", status=1), "text")
    check(len(run("generate", run.path("bare"), "--prompt-ids", "1,2,3", "--ids", "-n", 4).split()) == 4, "ids")
    run.write("text.txt", "the cat sat on the mat\n" * 100)
    run("run", run.write("bytes.lm", f"""import "{ROOT}/examples/llama.lm": Llama
data Text {{ tokenizer = bytes(); source s = text("text.txt"); pack best_fit(seq = 32 tokens) }}
recipe Train {{
  model = Llama(depth = 1, d = 32, ff = 64, heads = 2, kv = 1, e = 16, vocab = 256)
  data = Text; run = 1 steps; batch = 128 tokens; optimizer = adamw(lr = 1e-2)
}}
"""), "--out", run.path("bytes"), "-q")
    run("export", run.path("bytes"), "-o", run.path("bytes-hf"))
    check("--prompt '...'" in run("import", "hf", run.path("bytes-hf"), "-o", run.path("good")), "with a tokenizer")
    run("generate", run.path("good"), "--prompt", "a", "-n", 2)
    err = run("eval", run.path("good"), status=1)
    check(run.path("good/imported.lm:") in err and "no file matches " + run.path("good/*.txt") in err, err)
    check("--set data.source.text.path=FILE" in err, err)
    check("loss" in run("eval", run.path("good"), "--set", "data.source.text.path=" + run.path("text.txt"), "--on", "train"), "eval")


def test_out_holds_only_a_tokenizer(run):
    """run and export write into a folder in which an earlier one, which was stopped, has only left the tokenizer"""
    exported(run)
    for command in ("run", run.path("small.lm"), "-q", "--out"), ("export", run.path("trained"), "-o"):
        for name in "tokenizer.json", "tokenizer.model":
            run.write("left/" + name, "")
            run(*command, run.path("left"))
            shutil.rmtree(run.path("left"))


def test_out_is_left_by_a_kill(run):
    """a folder in which a killed process left the temporary name of one of its first files"""
    file = small(run, steps=1)
    run.write("left/recipe.txt.tmp", "half")
    run("run", file, "-q", "--out", run.path("left"))
    check(not os.path.exists(run.path("left/recipe.txt.tmp")), "the temporary file must have become recipe.txt")
    run.write("mine/notes.txt.tmp", "precious")
    err = run("run", file, "-q", "--out", run.path("mine"), status=1)
    check("mine holds notes.txt.tmp and is not the folder of a run" in err, err)


def test_out_is_another_folder(run):
    """run, compile and export write into no folder of other files, and again into the folders that they wrote"""
    exported(run)
    file = run.path("small.lm")
    run.write("mine/notes.txt", "precious")
    os.makedirs(run.path("empty"))
    commands = [(("run", file, "-q", "--out"), "the folder of a run"), (("compile", file, "-o"), "a plan that lmc compile wrote"),
                (("export", run.path("trained"), "-o"), "an earlier export")]
    for command, what in commands:
        err = run(*command, run.path("mine"), status=1)
        check(f"mine holds notes.txt and is not {what}; choose a new or an empty folder" in err, err)
        check(os.listdir(run.path("mine")) == ["notes.txt"], "nothing is written")
        shutil.rmtree(run.path("empty"))
        os.makedirs(run.path("empty"))
        for _ in range(2):
            run(*command, run.path("empty"))


def test_checkpoint_instead_of_a_run(run):
    """a folder of Hugging Face where a run is expected: the error names the command that makes a run of it"""
    hf = exported(run)
    for command in (("generate", hf, "--prompt", "x"), ("eval", hf), ("chat", hf)):
        err = run(*command, status=1)
        check(f"a model of Hugging Face: lmc import hf {hf} -o RUN makes a folder that this command takes" in err, err)


def test_export_onto_a_checkpoint(run):
    """a checkpoint that another program wrote is not overwritten, even if all its names are those of an export"""
    exported(run)
    header = b'{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    theirs = len(header).to_bytes(8, "little") + header + bytes(4)
    os.makedirs(run.path("theirs"))
    for content in theirs, b"", b"{":
        with open(run.path("theirs/model.safetensors"), "wb") as f:
            f.write(content)
        err = run("export", run.path("trained"), "-o", run.path("theirs"), status=1)
        check("theirs holds model.safetensors and is not an earlier export; choose a new or an empty folder" in err, err)
        check(os.listdir(run.path("theirs")) == ["model.safetensors"] and open(run.path("theirs/model.safetensors"), "rb").read() == content)


def test_file_in_the_way(run):
    """--out that names a file, or a folder below one, is the user's error"""
    file = begin(run)
    run.write("taken", "")
    for command in "run", "compile":
        for out in "taken", "taken/below":
            err = run(command, file, "--out", run.path(out), status=1)
            check("is in the way" in err and run.path("taken") in err, err)
