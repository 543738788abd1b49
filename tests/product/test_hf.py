"""Models of transformers read, and models written for it, give the same logits. The Python that has transformers is
$LMC_HF_PYTHON, which scripts/test provides where the network allows; without one these tests are skipped."""
import json, os, subprocess

import numpy as np
from harness import ROOT, Skip, check, load, save, sharded, within

SANITIZER_BUILD = {"llama", "gpt2", "another_model", "trained_bytes"}
SIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hf_side.py")
MODELS = {"llama": "decoders.lm:Llama", "mistral": "decoders.lm:Mistral", "qwen2": "decoders.lm:Qwen2", "qwen3": "llama.lm:Llama",
          "gpt2": "gpt2.lm:GPT2"}
IDS = [(7 * i * i + 3 * i + 5) % 96 for i in range(40)]


UNKNOWN = 3


def python():
    """the one that has transformers"""
    if not os.environ.get("LMC_HF_PYTHON"):
        raise Skip("LMC_HF_PYTHON names no Python with transformers")
    return os.environ["LMC_HF_PYTHON"]


class Server:
    """hf_side.py with its libraries loaded, which takes seconds; one for each process that runs tests"""
    started = None

    def __init__(self):
        self.process = subprocess.Popen([python(), SIDE, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self, args, least):
        print(json.dumps({"args": args, "least": least}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline() or '{"status": "hf_side.py has ended", "out": "", "error": ""}')


def side(*args, may=0, least="0.0"):
    """runs a command of hf_side.py and returns its exit status and output; may: an exit status that is not a failure"""
    if not Server.started:
        Server.started = Server()
    answer = Server.started.answer(args, least)
    check(answer["status"] in (0, may), f"{answer['status']}: {answer['error'][-2000:]}")
    return answer["status"], answer["out"]


def their_logits(run, folder):
    side("logits", folder, json.dumps(IDS), run.path("theirs.npy"))
    return np.load(run.path("theirs.npy"))


def our_logits(run, imported):
    """of one row that holds the ids, through `trace`"""
    z = np.zeros((1, 1, len(IDS)), "<i4")
    save(run.path("ids.safetensors"), dict(tok=z + np.array(IDS, "<i4"), pos=z + np.arange(len(IDS), dtype="<i4"), seg=z,
                                           next=z, w=np.ones(z.shape, "<f4")))
    text = f'''import "{imported}/imported.lm": Imported
data D {{ source s = batches("ids.safetensors") }}
recipe R {{ model = Imported; data = D; run = 1 steps; optimizer = sgd(lr = 0); precision {{ compute = f32 }} }}
'''
    return run.trace(run.write("ids.lm", text), "--values", "logits")["logits"][0]


def difference(a, b):
    check(a.shape == b.shape, f"{a.shape} and {b.shape}")
    return float(np.abs(a.astype("f8") - b).max())


def case(run, kind):
    """imports their model, exports it and loads the export there"""
    theirs, imported, again = run.path("theirs"), run.path("imported"), run.path("again")
    if side("make", kind, theirs, may=UNKNOWN)[0] == UNKNOWN:
        raise Skip(f"this transformers has no {kind}")
    said = run("import", "hf", theirs, "--model", f"{ROOT}/examples/{MODELS[kind]}", "-o", imported, "--json")
    check(json.loads(said)["tensors"] > 20, said)
    truth = their_logits(run, theirs)
    check(np.abs(truth).max() > 1, "logits must differ between tokens")
    within("our logits", difference(our_logits(run, imported), truth), 1e-4)
    run("export", imported, "--format", "hf", "-o", again)
    within("their logits of the export", difference(their_logits(run, again), truth), 1e-5)
    a, b = load(f"{theirs}/model.safetensors"), load(f"{again}/model.safetensors")
    for name in b:   # with or without the prefix of the inner model
        check((a.get(name, a.get(f"transformer.{name}")) == b[name]).all(), name)


def cases():
    return [(kind, lambda run, kind=kind: case(run, kind)) for kind in MODELS]


MODEL = {   # what a transformers without Qwen 3 can load, too
    "bytes()": 'model = Llama(depth = 2, d = 32, ff = 64, heads = 2, kv = 1, vocab = 256)',
    "bpe(train = 300)": 'model = Llama(depth = 2, d = 32, ff = 64, heads = 2, kv = 1, vocab = 300)',
}


def trained_here(run, tokenizer):
    """a run's folder, exported and loaded there: the same token ids and the same continuation; and its checkpoint, of several files"""
    python()
    text = run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 400)
    file = run.write("small.lm", f'''import "{ROOT}/examples/decoders.lm": Llama
data D {{ tokenizer = {tokenizer}; source s = text("{text}"); pack best_fit(seq = 64 tokens) }}
recipe R {{
  {MODEL[tokenizer]}; data = D; run = 30 steps; batch = 512 tokens
  optimizer = adamw(lr = 1e-2); save = checkpoint("run", max_file = 40 kB); precision {{ compute = f32 }}
}}
''')
    run("run", file, "-q")
    side("shards", run.path("run/step-000030"), run.path("shards.npz"))
    theirs, ours = np.load(run.path("shards.npz")), sharded(run.path("run/step-000030"), "model")
    check(theirs.files and sorted(theirs.files) == sorted(ours), theirs.files)
    for name in theirs.files:
        check((theirs[name] == ours[name]).all(), name)
    run("export", run.path("run"), "-o", run.path("hf"))
    prompt, awkward = "the cat ", "it's  a naïve 🎉 日本\n\ttest of the mat"
    got = json.loads(side("tokens", run.path("hf"), awkward)[1])
    check(got["text"] == awkward, got)
    spec = tokenizer if tokenizer == "bytes()" else f'bpe("{run.path("hf/tokenizer.json")}")'
    ours = run("tokenizer", "encode", spec, "--lines", stdin=awkward.split("\n")[0]).split()
    check(list(map(int, ours)) == json.loads(side("tokens", run.path("hf"), awkward.split("\n")[0])[1])["ids"], ours)
    ids = json.loads(side("tokens", run.path("hf"), prompt)[1])["ids"]
    side("logits", run.path("hf"), json.dumps(ids), run.path("x.npy"))
    best = int(np.load(run.path("x.npy"))[-1].argmax())
    ours = run("generate", run.path("run"), "--prompt-ids", ",".join(map(str, ids)), "--ids", "-n", 1, "--temperature", 0)
    check(int(ours) == best, f"{ours.strip()} and {best}")


def test_trained_bytes(run):
    trained_here(run, "bytes()")


def test_trained_bpe(run):
    trained_here(run, "bpe(train = 300)")


def test_another_model(run):
    """all differences from the model are named"""
    os.makedirs(run.path("hf"))
    config = dict(model_type="llama", hidden_size=32, num_hidden_layers=2, rms_norm_eps=1e-5, head_dim=8, num_attention_heads=4)
    json.dump(config, open(run.path("hf/config.json"), "w"))
    save(run.path("hf/model.safetensors"), {"model.norm.weight": np.ones(32, "<f4"), "what.is.this": np.ones(3, "<f4")})
    model = f"{ROOT}/examples/decoders.lm"
    err = run("import", "hf", run.path("hf"), "--model", f"{model}:Qwen2", "-o", run.path("out"), status=1)
    check('model_type is "llama", the model\'s "qwen2"' in err, err)
    err = run("import", "hf", run.path("hf"), "--model", f"{model}:Llama(vocab = 64, ff = 48, kv = 4)", "-o", run.path("out"), status=1)
    check("missing: lm_head.weight [64, 32]" in err and "extra: what.is.this" in err, err)
    err = run("import", "hf", run.path("hf"), "--model", f"{model}:Lama", "-o", run.path("out"), status=1)
    check("did you mean 'Llama'?" in err, err)
    err = run("generate", run.path("out"), "--prompt", "x", status=1)
    check("there is no run folder and no file" in err, err)
