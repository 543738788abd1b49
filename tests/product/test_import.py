"""lmc import without transformers: the keys of config.json that are used, checked or rejected, and the tokenizer in the folder."""
import json, os

import numpy as np
from harness import check, save

CONFIG = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=272, hidden_size=16, intermediate_size=24,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=48, rms_norm_eps=1e-5,
              rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=True, torch_dtype="float32")
SEEDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../fuzz/seeds/tokenizer")
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def weights(config):
    """of the Llama that the config describes"""
    d, ff, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    e = config.get("head_dim") or d // config["num_attention_heads"]
    q, kv = e * config["num_attention_heads"], e * (config.get("num_key_value_heads") or config["num_attention_heads"])
    shapes = {"model.embed_tokens.weight": (vocab, d), "model.norm.weight": (d,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocab, d)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        shapes |= {at + "input_layernorm.weight": (d,), at + "post_attention_layernorm.weight": (d,),
                   at + "self_attn.q_proj.weight": (q, d), at + "self_attn.k_proj.weight": (kv, d),
                   at + "self_attn.v_proj.weight": (kv, d), at + "self_attn.o_proj.weight": (d, q),
                   at + "mlp.gate_proj.weight": (ff, d), at + "mlp.up_proj.weight": (ff, d), at + "mlp.down_proj.weight": (d, ff)}
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 0.2, shape).astype("<f4") for name, shape in shapes.items()}


def folder(run, name="theirs", without=(), **changes):
    config = {key: value for key, value in {**CONFIG, **changes}.items() if key not in without}
    path = run.path(name)
    os.makedirs(path, exist_ok=True)
    save(f"{path}/model.safetensors", weights({**CONFIG, **changes}))
    json.dump(config, open(f"{path}/config.json", "w"))
    return path


REFUSED = [   # change of config.json, expected message
    (dict(hidden_act="gelu_fast"), 'theirs/config.json: hidden_act is "gelu_fast", expected one of silu, swish'),
    (dict(rope_scaling=dict(rope_type="dynamic", factor=2.0)),
     'theirs/config.json: rope_scaling.rope_type is "dynamic", expected one of default, linear, llama3, yarn; --ignore-config rope_scaling'),
    (dict(rope_scaling=dict(type="longrope", factor=2.0)), 'theirs/config.json: rope_scaling.rope_type is "longrope"'),
    (dict(num_key_value_heads=3), "config.json requires Llama(depth = 2,"),
    (dict(rope_scaling=dict(LLAMA3, mscale=1.0)), "rope_scaling.mscale is 1.0 (a factor of queries and keys), the model's config does"),
    (dict(rope_parameters=dict(LLAMA3, rope_theta=10000.0, truncate=False)), "rope_scaling.truncate is false"),
    (dict(use_sliding_window=True, sliding_window=8), "sliding_window is 8 (the size of the sliding window), the model's config does"),
    (dict(partial_rotary_factor=0.5), "partial_rotary_factor is 0.5"),
    (dict(attention_bias=True), "attention_bias is true, the model's false"),
    (dict(mlp_bias=True), "mlp_bias is true, the model's false"),
    (dict(attn_logit_softcapping=30.0), "attn_logit_softcapping is 30.0"),
    (dict(quantization_config=dict(bits=4)), 'quantization_config is {"bits":4}'),
    (dict(attention_multiplier=0.5), "attention_multiplier is 0.5 (a factor of the attention's scores), the model's config does"),
    (dict(attention_sharpness=0.5), "attention_sharpness is 0.5, a key that is unknown to lmc"),
    (dict(model_type="bert", architectures=["BertForMaskedLM"], is_decoder=True), "is_decoder is true, the model's false"),
    (dict(model_type="dbrx"), 'model_type "dbrx" has no ready model; there are bart, bert, bloom, clip, cohere,'),
    (dict(architectures=["LlamaForSequenceClassification"]), 'architectures is ["LlamaForSequenceClassification"], the model\'s'),
]


def test_refused(run):
    """a key that affects the numbers and differs from the model is an error, and leaves no folder"""
    for change, said in REFUSED:
        err = run("import", "hf", folder(run, **change), "-o", run.path("out"), status=1)
        check(said in err, f"{change}: {err}")
        check(not os.path.exists(run.path("out")), f"{change}: a folder is left")
    large = folder(run, name="large")
    json.dump(dict(CONFIG, vocab_size=10**9, hidden_size=1000), open(f"{large}/config.json", "w"))
    err = run("import", "hf", large, "-o", run.path("out"), status=1)
    check("large: the parameters of the model take 4 TB, and this machine has" in err, err)


def test_accepted(run):
    """keys that do not affect the numbers, absent and null keys, and equivalent spellings"""
    plain = imported(run, folder(run))
    same = [dict(use_cache=False, initializer_range=0.1, attention_dropout=0.1, bos_token_id=7, temperature=0.5, pretraining_tp=2),
            dict(rope_scaling=None, attention_bias=False, mlp_bias=False, sliding_window=None, some_new_key=None),
            dict(rope_scaling=dict(type="default")), dict(head_dim=4), dict(head_dim=None),
            dict(layer_types=["full_attention", "full_attention"])]
    for change in same:
        kept = {"bos_token_id": change["bos_token_id"]} if "bos_token_id" in change else {}
        check(imported(run, folder(run, **change)) == {**plain, **kept}, change)
    check(imported(run, folder(run, without=("hidden_act", "rope_theta"))).keys() == plain.keys(), "defaults of the model type")
    v5 = folder(run, without=("rope_theta",), rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    check(imported(run, v5) == plain, "rope_parameters of transformers 5")


def imported(run, theirs, *args):
    """config.json of the export"""
    run("import", "hf", theirs, "-o", run.path("in"), *args)
    run("export", run.path("in"), "-o", run.path("again"))
    return json.load(open(run.path("again/config.json")))


def test_inverse(run):
    """export writes what import read: the limit of positions, theta, epsilon, the scaling"""
    for change in (dict(rope_scaling=LLAMA3, max_position_embeddings=128), dict(rope_theta=5e5, rms_norm_eps=3e-6, hidden_act="gelu"),
                   dict(rope_scaling=dict(type="linear", factor=4.0)), dict(tie_word_embeddings=False, num_key_value_heads=1, head_dim=8)):
        out = imported(run, folder(run, **change))
        for key, value in {**CONFIG, **change}.items():   # a real stays a real, which transformers 5 requires
            check(out[key] == value and type(out[key]) is type(value), f"{key}: {out[key]}, {value}")
            for inner in value if isinstance(value, dict) else ():
                check(type(out[key][inner]) is type(value[inner]), f"{key}.{inner}: {out[key]}")


def test_ignore_config(run):
    """--ignore-config imports, and records it in the folder"""
    theirs = folder(run, attention_multiplier=0.5, rope_scaling=dict(rope_type="dynamic", factor=2.0))
    run("import", "hf", theirs, "-o", run.path("in"), "--ignore-config", "rope_scaling", status=1)
    run("import", "hf", theirs, "-o", run.path("in"), "--ignore-config", "rope_scaling", "--ignore-config", "attention_multiplier")
    text = open(run.path("in/imported.lm")).read()
    check('# Not checked (--ignore-config): config.json says rope_scaling.rope_type = "dynamic".' in text, text)
    check("# Not checked (--ignore-config): config.json says attention_multiplier = 0.5." in text, text)
    check("scaling" not in text.split("model Imported")[1], text)
    run("import", "hf", folder(run, attention_multiplier=0.5), "-o", run.path("in"), "--ignore-config", "*")
    err = run("import", "hf", theirs, "-o", run.path("in"), "--ignore-config", "no_such_key", status=1)
    check("config.json has no such key" in err, err)


OWN = '''import std.nn: xent
model Own(d = 8, vocab = 272, cap = 1, kind = "a", deep = false, mix = 0.5) {
  param embed: real[vocab, d] = normal(0.02)
  apply(tok: int[b, t], pos: int[b, t], seg: int[b, t]) -> real[b, t, vocab] { return dot(gather(embed, tok, vocab), embed, d) }
  loss(bt: Batch[b, t]) -> (f32, f32) { return (sum(xent(apply(bt.tok, bt.pos, bt.seg), bt.next) * bt.w), sum(bt.w)) }
  map hf {
    @embed = ("embed", [vocab, d])
    config { model_type = "own"; hidden_size = d; vocab_size = vocab; kind_key = kind; deep_key = deep; mix_key = mix
             cap_key = if cap == 0 then null else cap
             list_key = (if d > 3 then [1] else []) + (if d > 4 then [2] else []) + [d, [kind]] }
  }
}
'''


def test_own_model(run):
    """a user's model: strings, booleans and nulls are read through its config"""
    model, path = run.write("own.lm", OWN), run.path("own")
    os.makedirs(path)
    save(f"{path}/model.safetensors", {"embed": np.zeros((16, 4), "<f4")})
    config = dict(model_type="own", hidden_size=4, vocab_size=16, kind_key="b", deep_key=True, mix_key=0.25, cap_key=None,
                  list_key=[1, 4, ["b"]])
    json.dump(config, open(f"{path}/config.json", "w"))
    run("import", "hf", path, "--model", f"{model}:Own", "-o", run.path("in"))
    call = open(run.path("in/imported.lm")).read().split("model Imported = ")[1].split(" from")[0]
    check(" ".join(call.split()) == 'Own(d = 4, vocab = 16, kind = "b", deep = true, mix = 0.25, cap = 0)', call)
    json.dump({**config, "mix_key": "x", "list_key": [1, 2, 4, ["b"]]}, open(f"{path}/config.json", "w"))
    err = run("import", "hf", path, "--model", f"{model}:Own(mix = 0.125)", "-o", run.path("in2"), status=1)
    check('mix_key is "x", the model\'s 0.125' in err and 'list_key is [1,2,4,["b"]], the model\'s [1, 4, ["b"]]' in err, err)


def test_tokenizer_config(run):
    """a tokenizer_config.json as transformers writes it, with int(1e30): every command takes it"""
    theirs, text = folder(run), run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 60)
    run("tokenizer", "train", "-o", f"{theirs}/tokenizer.json", "--vocab", 272, text)
    json.dump({"model_max_length": int(1e30), "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"},
              open(f"{theirs}/tokenizer_config.json", "w"))
    out = run.path("in")
    run("import", "hf", theirs, "-o", out)
    run("generate", out, "--prompt", "the cat", "-n", 3)
    run("export", out, "-o", run.path("again"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        check(open(f"{theirs}/{name}").read() == open(run.path("again", name)).read(), f"{name} differs from the imported file")
    file = run.write("tune.lm", f"""import "{out}/imported.lm": Imported
data D {{ tokenizer = bpe("{out}/tokenizer.json"); source s = text("{text}"); holdout dev = tail(10%); pack best_fit(seq = 16 tokens) }}
recipe R {{
  model = Imported; data = D; run = 2 steps; batch = 64 tokens; optimizer = adamw(lr = 1e-3); save = checkpoint("run")
  eval dev {{ data = D.dev; every = 2 steps; metrics = [loss] }}
}}
""")
    run("run", file, "-q")
    run("eval", run.path("run"))
    run("bench", file, "--steps", 1)
    run("trace", file, "--steps", 1, "--out", run.path("t.safetensors"))


def test_tokenizer_model(run):
    """a folder with SentencePiece's own file: the form is the file's kind; a run, its resume and an export keep the file"""
    theirs, text = folder(run), run.write("text.txt", "the cat sat on the mat and the rat ate the bat. " * 60)
    for name, form in (("bpe", "bpe"), ("unigram", "unigram")):
        model = open(f"{SEEDS}/{name}.model", "rb").read()
        open(f"{theirs}/tokenizer.model", "wb").write(model)
        out, tuned = run.path(name), run.path(name + "-run")
        run("import", "hf", theirs, "-o", out)
        check(f'{form}("tokenizer.model")' in open(f"{out}/imported.lm").read(), "imported.lm names another tokenizer")
        file = run.write(name + ".lm", f"""import "{out}/imported.lm": Imported
data D {{ tokenizer = {form}("{out}/tokenizer.model"); source s = text("{text}"); pack best_fit(seq = 16 tokens) }}
recipe R {{ model = Imported; data = D; run = 2 steps; batch = 64 tokens; optimizer = adamw(lr = 1e-3); save = checkpoint("{tuned}") }}
""")
        run("run", file, "-q")
        run("run", file, "-q", "--steps", 3)
        said = run("generate", tuned, "--prompt", "the cat", "-n", 3)
        check(said.startswith("the cat"), said)
        run("export", tuned, "-o", run.path(name + "-hf"))
        for kept in (tuned, run.path(name + "-hf")):
            check(open(f"{kept}/tokenizer.model", "rb").read() == model, f"{kept} holds another tokenizer.model")
    wrong = run.write("wrong.lm", open(file).read().replace("tokenizer = unigram", "tokenizer = bpe"))
    err = run("run", wrong, "--out", run.path("wrong"), status=1)
    check("holds another kind of tokenizer; write unigram(" in err and "wrong.lm:2:" in err, err)
    check(err == run("check", wrong, status=1), "lmc check finds it, too")


def test_tokenizer_refused(run):
    """a tokenizer that generate would reject is reported by import, and nothing is written"""
    theirs = folder(run)
    open(f"{theirs}/tokenizer.model", "wb").write(b"\n\x0e\n\x05<u")
    err = run("import", "hf", theirs, "-o", run.path("out"), status=1)
    check("the tokenizer cannot be used" in err and "neither JSON nor a SentencePiece model" in err, err)
    json.dump({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, open(f"{theirs}/tokenizer.json", "w"))
    err = run("import", "hf", theirs, "-o", run.path("out"), status=1)
    check("the tokenizer cannot be used" in err and "WordLevel" in err, err)
    check(not os.path.exists(run.path("out")), "no folder must be left")


def test_tokenizer_of_the_import(run):
    """eval, generate and export of an imported model refuse another tokenizer than the one that was imported with it"""
    theirs, out, text = folder(run), run.path("in"), run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 60)
    for size, path in ((272, f"{theirs}/tokenizer.json"), (265, run.path("other.json"))):
        run("tokenizer", "train", "-o", path, "--vocab", size, text)
    run("import", "hf", theirs, "-o", out)
    run.write("in/text.txt", open(text).read() * 9)
    commands = [("eval", out), ("generate", out, "--prompt-ids", "1,2", "-n", 1), ("export", out, "-o", run.path("hf"))]
    for command in commands:
        run(*command)
    own = open(f"{out}/tokenizer.json").read()
    for name, other in (("tokenizer.json", open(run.path("other.json")).read()), ("tokenizer_config.json", '{"eos_token": "e"}')):
        run.write("in/tokenizer.json", own)
        run.write("in/" + name, other)
        for command in commands:
            err = run(*command, status=1)
            check("imported with these weights" in err and f"in/{name} has changed" in err and "restore that file" in err, err)
    os.remove(f"{out}/tokenizer_config.json")
    run("import", "hf", theirs, "-o", out)   # over the changed one
    manifest = json.load(open(f"{out}/program.json"))
    run(*commands[1])
    json.dump({key: manifest[key] for key in manifest if key != "tokenizer"}, open(f"{out}/program.json", "w"))
    run.write("in/tokenizer.json", open(run.path("other.json")).read())
    run(*commands[1])   # an import by an earlier version is not compared


def test_tokenizer_of_two_files(run):
    """vocab.json and merges.txt of an import are compared too"""
    theirs, out, text = folder(run), run.path("in"), run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 60)
    run("tokenizer", "train", "-o", run.path("t.json"), "--vocab", 272, text)
    model = json.load(open(run.path("t.json")))["model"]
    json.dump(model["vocab"], open(f"{theirs}/vocab.json", "w"))
    merges = [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]
    open(f"{theirs}/merges.txt", "w").write("#version: 0.2\n" + "".join(m + "\n" for m in merges))
    run("import", "hf", theirs, "-o", out)
    run("generate", out, "--prompt", "the cat", "-n", 1)
    run.write("in/merges.txt", "#version: 0.2\n" + "".join(m + "\n" for m in merges[:-1]))
    err = run("generate", out, "--prompt", "the cat", "-n", 1, status=1)
    check("in/vocab.json or merges.txt has changed" in err, err)


def test_tokenizer_train_field(run):
    """documents without the field are an error that lists the existing fields; --field names another; unusable documents are counted"""
    rows = [{"content": "the cat sat on the mat " * 20, "id": i} for i in range(9)] + [{"id": 9}]
    file = run.write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    out = run.path("t.json")
    err = run("tokenizer", "train", "-o", out, "--vocab", 300, file, status=1)
    check("none of 10 documents can be used" in err and f'{file}:1: no field "text"; the fields are "content", "id"' in err, err)
    check(not os.path.exists(out), "a tokenizer was written")
    for _ in range(2):   # the second from the cache
        code, said, err = run.result("tokenizer", "train", "-o", out, "--vocab", 300, "--field", "content", file, "--bad", 10, "--json")
        result = json.loads(said)
        check(code == 0 and result["documents"] == 10 and result["unusable"] == 1 and result["vocab_most"] == 300, said + err)
        vocab = json.load(open(out))["model"]["vocab"]
        check(257 < result["vocab"] == max(vocab.values()) + 1, f"{said} {len(vocab)}")
        check(f'{file}:10: no field "content"; the fields are "id"' in err, err)


def test_special_ids(run):
    """the special ids of config.json and generation_config.json survive import, fine-tuning and export"""
    ids = dict(bos_token_id=1, eos_token_id=[2, 5], pad_token_id=7)
    theirs, text = folder(run, **ids), run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 60)
    run("tokenizer", "train", "-o", f"{theirs}/tokenizer.json", "--vocab", 272, text)
    open(f"{theirs}/generation_config.json", "w").write('{"bos_token_id": 1, "temperature": 0.6}\n')
    run("import", "hf", theirs, "-o", run.path("in"))
    file = run.write("tune.lm", f"""import "{run.path("in")}/imported.lm": Imported
data D {{ tokenizer = bpe("{run.path("in")}/tokenizer.json"); source s = text("{text}"); pack best_fit(seq = 16 tokens) }}
recipe R {{ model = Imported; data = D; run = 1 steps; batch = 64 tokens; optimizer = adamw(lr = 1e-3); save = checkpoint("run") }}
""")
    run("run", file, "-q")
    text = open(file).read().replace("model = Imported", "model = Tuned").replace("data D", "model Tuned = Imported with { freeze @embed }\ndata D")
    err = run("check", run.write("sub/tune.lm", text), status=1)   # with the call and the import that the error names it is right
    lines = {line.split(": ")[0].strip(" ="): line.split(": ", 1)[1] for line in err.splitlines() if line.startswith("  = ") and ": " in line}
    text = text.replace("data D", f"import {lines['Llama is in another file'].removeprefix('import ')}\ndata D")
    call = lines["help"].split(": ")[1]
    check('from "../in/model.safetensors" with { … }' in call, err)
    run("check", run.write("sub/tune.lm", text.replace("model Tuned = Imported with { ", call.replace("… }", ""))))
    for source in ("in", "run"):
        run("export", run.path(source), "-o", run.path("again"))
        config = json.load(open(run.path("again/config.json")))
        check({key: config[key] for key in ids} == ids, f"{source}: {config}")
        check(open(run.path("again/generation_config.json")).read() == open(f"{theirs}/generation_config.json").read(), source)
        os.remove(run.path("again/generation_config.json"))


def test_values_refused(run):
    """numbers that no computation can use, and a tokenizer of another model"""
    for change, said in ((dict(rope_theta=0), "rope_theta is 0, expected a number above 0"), (dict(rms_norm_eps=-1e-5), "rms_norm_eps is -1e-05")):
        err = run("import", "hf", folder(run, **change), "-o", run.path("out"), status=1)
        check(said in err and "config.json" in err, err)
    theirs = folder(run)
    tensors = weights(CONFIG)
    name = "model.layers.1.mlp.up_proj.weight"
    bad = tensors[name].copy()
    bad[0, :2] = np.nan, np.inf
    save(f"{theirs}/model.safetensors", {**tensors, name: bad})
    err = run("import", "hf", theirs, "-o", run.path("out"), status=1)
    check("these parameters hold NaN or Inf:\n  layers.1." in err and ": 2 of 384 values" in err, err)
    check(not os.path.exists(run.path("out")), "no folder must be left")
    theirs = folder(run, vocab_size=260)
    run.write("words.txt", "some words of a text and some more words\n" * 20)
    run("tokenizer", "train", "-o", f"{theirs}/tokenizer.json", "--vocab", 265, run.path("words.txt"))
    err = run("import", "hf", theirs, "-o", run.path("out"), status=1)
    check("the tokenizer has" in err and "vocab_size is 260" in err, err)


def test_sequence_length(run):
    """the starter recipe of a model of few positions trains"""
    run("import", "hf", folder(run), "-o", run.path("in"))                            # 48 positions
    check("best_fit(seq = 32 tokens)" in open(run.path("in/imported.lm")).read(), "")
    run.write("in/t.txt", "a line of text\n" * 2000)
    run("run", run.path("in/imported.lm"), "--steps", 1, "-q")
