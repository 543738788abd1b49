"""Adapters in PEFT's files. Fixtures that PEFT wrote (peft_side.py) hold a base, adapters and their logits: reading them
gives these logits, and writing them again these bytes. With --nightly, PEFT itself reads adapters that were trained here."""
import json, os, subprocess

import numpy as np
from harness import ROOT, Skip, check, distance, load, save, within

SANITIZER_BUILD = {"parts", "trained", "faults", "refused", "phi3", "gpt2_dora", "llama_unequal", "llama_prefix"}

HERE = os.path.dirname(os.path.abspath(__file__))
IDS = [(7 * i * i + 3 * i + 5) % 32 for i in range(12)]
QKVO = "adapt @layers.*.attn.{wq,wk,wv,wo} = lora(rank = 3, alpha = 6)"
UNEQUAL = ("adapt @{layers.0.attn.wq,layers.0.wd} = rslora(rank = 4, alpha = 8); "
           "adapt @layers.1.attn.wq = rslora(rank = 2, alpha = 8); adapt @layers.1.wd = rslora(rank = 4, alpha = 5)")
FUSED = "adapt @layers.*.{attn.wqkv,wgu} = lora(rank = 2, alpha = 3)"
CONV1D = "adapt @layers.*.{wqkv,wo,wd} = lora(rank = 3, alpha = 6)"
DORA = "adapt @layers.*.{attn.wq,attn.wo,wu} = dora(rank = 3, alpha = 6)"
PREFIX = "replace attention = prefix(n = 3); after @pos = shifted(n = 3)"
PROMPT = "after @words = prompt(n = 3)"
CASES = {"llama": QKVO, "llama_unequal": UNEQUAL, "llama_dora": DORA, "phi3": FUSED, "gpt2": CONV1D,
         "gpt2_dora": CONV1D.replace("lora(rank = 3, alpha = 6)", "dora(rank = 2, alpha = 3)"),
         "llama_prefix": PREFIX, "gpt2_prefix": PREFIX, "gpt2_prompt": PROMPT}   # those of peft_side.py
PARTS = "adapt @layers.*.**.{wq,wk,wv,wg,wu} = lora(rank = 2, alpha = 3)"     # each a part of a fused tensor


def unpack(run, name):
    """the folders base and adapters of a fixture, and its logits"""
    tensors = load(f"{HERE}/peft/{name}.safetensors")
    configs = json.load(open(f"{HERE}/peft/{name}.json"))
    for part, file, config in ("base", "model", "config"), ("adapters", "adapter_model", "adapter_config"):
        os.makedirs(run.path(part))
        save(run.path(f"{part}/{file}.safetensors"),
             {n.split(".", 1)[1]: t for n, t in tensors.items() if n.startswith(part + ".")})
        run.write(f"{part}/{config}.json", json.dumps(configs[part], indent=1))
    run("import", "hf", run.path("base"), "-o", run.path("imported"))
    batches(run, name)
    return tensors["logits"]


def check_gradients(run, file, name):
    """loss and gradients of the step are those of PEFT in float64; ours are found by the values of the adapters"""
    theirs = load(f"{HERE}/peft/{name}.safetensors")
    ours = run.trace(file, "--recipe", "Logits", "--values", "loss,grads,params")
    within("loss", abs(ours["loss"][0] - theirs["loss"][0]), 1e-5)
    if "grad.prompt_embeddings" in theirs:
        at = ["words.prompt.table"] if "prompt" in name else [f"layers.{i}.{s}prefix.{n}" for i in (0, 1) for s in ("attn.", "")
                                                          for n in ("key", "value")]
        parts = [ours["grad." + n].reshape(3, -1) for n in at if "grad." + n in ours]
        within("gradient", distance(np.concatenate(parts, 1), theirs["grad.prompt_embeddings"], floor=1e-3), 1e-5)
        return
    for at, t in ours.items():
        if not at.startswith("final."):
            continue
        form = {"a": lambda x: x.reshape(-1, x.shape[-1]).T, "b": lambda x: x.reshape(x.shape[0], -1).T, "m": np.ravel}[at[-1]]
        found = [n[9:] for n, x in theirs.items() if n.startswith("adapters.") and np.array_equal(x, form(t))]
        check(len(found) == 1, f"{at}: {found}")
        within("gradient of " + at, distance(form(ours["grad." + at[6:]]), theirs["grad." + found[0]], floor=1e-3), 1e-5)


def batches(run, name, vocab=32, steps=8):
    """a row of IDS, behind the tokens of a prompt, and random rows"""
    front = 3 if name.endswith("prompt") else 0
    ids, nxt = (np.array([[[0] * front + list(x)]], "<i4") for x in (IDS, np.roll(IDS, -1)))
    n = front + len(IDS)
    w = np.array([[[0] * front + [1] * len(IDS)]], "<f4")
    save(run.path("ids.safetensors"), dict(tok=ids, pos=np.arange(n, dtype="<i4").reshape(1, 1, n), seg=np.zeros_like(ids), next=nxt, w=w))
    t = np.random.default_rng(0).integers(0, vocab, (steps, 4, 12)).astype("<i4")
    save(run.path("rows.safetensors"), dict(tok=t, pos=np.zeros_like(t) + np.arange(12, dtype="<i4"), seg=np.zeros_like(t),
                                            next=np.roll(t, -1, 2), w=np.ones(t.shape, "<f4")))


def program(run, edits, source='"hf:base"', model=None, name="p.lm"):
    """model: (file, call); None: the one that was imported to `imported`"""
    if not model:
        text = open(run.path("imported/imported.lm")).read()
        call = text.split("model Imported = ")[1].split(" from ")[0]
        model = "imported/" + text.split('import "')[1].split('"')[0], call
    return run.write(name, f'''import "{model[0]}": {model[1].split("(")[0]}
import std.adapt: lora, rslora, dora, prefix, prompt, shifted
import std.nn: attention
model T = {model[1]} from {source} with {{
  freeze @**
  {edits}
}}
data Ids {{ source s = batches("ids.safetensors") }}
data Rows {{ source s = batches("rows.safetensors") }}
recipe Logits {{ model = T; data = Ids; run = 1 steps; optimizer = sgd(lr = 0); precision {{ compute = f32 }} }}
recipe Tune {{
  model = T; data = Rows; run = 8 steps; batch = 48 tokens; optimizer = adamw(lr = 1e-2); precision {{ compute = f32 }}
  save = checkpoint("run", every = 4 steps)
}}
''')


def line_of(file, text):
    return next(i for i, line in enumerate(open(file), 1) if text in line)


def logits(run, file):
    return run.trace(file, "--recipe", "Logits", "--values", "logits")["logits"][0][-len(IDS):]


def difference(a, b):
    check(a.shape == b.shape, f"{a.shape} and {b.shape}")
    return float(np.abs(a.astype("f8") - b).max())


def same_values(a, b):
    check(set(a) == set(b), set(a) ^ set(b))
    check(all(np.array_equal(a[n], b[n]) for n in a), [n for n in a if not np.array_equal(a[n], b[n])])


def fixture(run, name):
    truth = unpack(run, name)
    plain = logits(run, program(run, CASES[name]))
    check(difference(plain, truth) > 0.05, "the adapters must show")
    file = program(run, CASES[name], '("hf:base", "peft:adapters")')
    within("logits", difference(logits(run, file), truth), 1e-5)
    check_gradients(run, file, name)
    run("export", file, "--recipe", "Logits", "--format", "peft", "-o", run.path("again"))
    same_values(load(run.path("again/adapter_model.safetensors")), load(run.path("adapters/adapter_model.safetensors")))
    theirs, ours = (json.load(open(run.path(f"{d}/adapter_config.json"))) for d in ("adapters", "again"))
    of_prompt = "num_virtual_tokens" in theirs
    keys = ("num_virtual_tokens", "token_dim") if of_prompt else ("bias", "fan_in_fan_out", "use_rslora")
    for key in "peft_type", *keys:
        check(ours.get(key, False) == theirs[key], key)
    if of_prompt:
        check("error[E327]" in run("export", file, "--recipe", "Logits", "-o", run.path("merged"), status=1))
        return
    run("export", file, "--recipe", "Logits", "-o", run.path("merged"))
    merged = program(run, "", '"hf:merged"', name="merged.lm")
    run.write("merged.lm", open(merged).read().replace("freeze @**", ""))
    within("merged logits", difference(logits(run, merged), truth), 1e-5)


def cases():
    return [(name, lambda run, name=name: fixture(run, name)) for name in CASES]


def test_trained(run):
    """after training from PEFT's adapters: the export read again gives the run's results, and the base has its bytes"""
    unpack(run, "llama_unequal")
    base = open(run.path("base/model.safetensors"), "rb").read()
    run("run", program(run, UNEQUAL, '("hf:base", "peft:adapters")'), "--recipe", "Tune", "-q")
    said = run("export", run.path("run"), "--format", "peft", "-o", run.path("tuned"))
    check("adapter_model.safetensors (8 tensors, f32), adapter_config.json (LORA)" in said, said)
    run("export", run.path("run"), "-o", run.path("merged"))
    again = logits(run, program(run, UNEQUAL, '("hf:base", "peft:tuned")'))
    merged = run.write("m.lm", open(program(run, "", '"hf:merged"')).read().replace("freeze @**", ""))
    within("merged logits", difference(logits(run, merged), again), 1e-5)
    held, out = load(run.path("run/step-000008/model.safetensors")), load(run.path("tuned/adapter_model.safetensors"))
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    check(np.array_equal(out[name], held["layers.1.attn.wq.rslora.a"].T))
    check(out[name].shape == (2, 16) and (out[name] != load(run.path("adapters/adapter_model.safetensors"))[name]).any())
    config = json.load(open(run.path("tuned/adapter_config.json")))
    check(config["rank_pattern"] == {"model.layers.1.self_attn.q_proj": 2} and config["r"] == 4 and config["use_rslora"])
    check(config["alpha_pattern"] == {"model.layers.1.mlp.down_proj": 5} and set(config["target_modules"]) == {"q_proj", "down_proj"})
    check(open(run.path("base/model.safetensors"), "rb").read() == base)


def test_parts(run):
    """parameters that are parts of a fused tensor share PEFT's adapter of it; their own ones are stacked and block-diagonal"""
    truth = unpack(run, "phi3")
    model = f"{ROOT}/tests/models/phi3/reference.lm", "Phi3(e = 4, rotary = 2, near = 100)"
    file = program(run, PARTS, '("hf:base", "peft:adapters")', model)
    within("logits", difference(logits(run, file), truth), 1e-5)
    run("export", file, "--recipe", "Logits", "--format", "peft", "-o", run.path("parts"))
    out = load(run.path("parts/adapter_model.safetensors"))
    a, b = (out[f"base_model.model.model.layers.0.self_attn.qkv_proj.lora_{n}.weight"] for n in "AB")
    config = json.load(open(run.path("parts/adapter_config.json")))
    check(a.shape == (6, 16) and b.shape == (32, 6) and not b[:16, 2:].any() and not b[24:, :4].any())
    check(config["r"] == 4 and config["lora_alpha"] == 6 and config["rank_pattern"]["model.layers.0.self_attn.qkv_proj"] == 6)
    within("logits of the stacked ones", difference(logits(run, program(run, PARTS, '("hf:base", "peft:parts")', model)), truth), 1e-5)
    fused = FUSED.replace("{attn.wqkv,wgu} = lora(rank = 2, alpha = 3)", "attn.wqkv = lora(rank = 6, alpha = 9)")
    fused += "; adapt @layers.*.wgu = lora(rank = 4, alpha = 6)"
    within("logits of the fused model", difference(logits(run, program(run, fused, '("hf:base", "peft:parts")')), truth), 1e-5)


FAULTS = [   # change of adapter_config.json, what the message says
    (dict(peft_type="LOHA"), 'peft_type is "LOHA", the adapter of layers.0.attn.wq has "LORA"'),
    (dict(r=5), "r is 5, the adapter of layers.0.attn.wq has 3"),
    (dict(lora_alpha=3), "lora_alpha is 3, the adapter of layers.0.attn.wq has 6"),
    (dict(alpha_pattern={"layers.1.self_attn.v_proj": 2}), "lora_alpha is 2, the adapter of layers.1.attn.wv has 6"),
    (dict(use_rslora=True), "use_rslora is true, the adapter of layers.0.attn.wq has false"),
    (dict(use_dora=True), "use_dora is true, which the adapters of this model do not compute"),
    (dict(use_qalora=True), "use_qalora is true, which the adapters of this model do not compute"),
    (dict(modules_to_save=["lm_head"]), 'modules_to_save is ["lm_head"], which'),
    (dict(init_lora_weights="pissa"), 'init_lora_weights is "pissa", which'),
    (dict(bias="all"), 'bias is "all", which'),
    (dict(use_other=1), "use_other is 1, a key that is unknown to lmc"),
    (dict(target_modules=7), "target_modules is 7, neither a pattern nor a list of names"),
    (dict(target_modules=["q_proj", 7]), 'target_modules is ["q_proj",7], neither a pattern nor a list of names'),
    (dict(target_modules=[]), "target_modules is [], so that PEFT would choose modules by the architecture"),
    (dict(target_modules=["q_proj", "k_proj", "v_proj"]), 'target_modules is ["q_proj","k_proj","v_proj"], without model.layers.0.self_attn.'
     "o_proj, which is the module of layers.0.attn.wo"),
    (dict(target_modules=r".*\.0\.self_attn\.._proj"), r'target_modules is ".*\\.0\\.self_attn\\.._proj", without model.layers.1.self_attn.q_proj'),
    (dict(exclude_modules=["v_proj"]), 'exclude_modules is ["v_proj"], with model.layers.0.self_attn.v_proj, which is the module of '),
    (dict(exclude_modules=True), "exclude_modules is true, neither a pattern nor a list of names"),
    (dict(layers_to_transform=[1, 2]), "layers_to_transform is [1,2], without the layer of model.layers.0.self_attn.q_proj, which is "),
    (dict(layers_to_transform=0), "layers_to_transform is 0, without the layer of model.layers.1.self_attn.q_proj, which is the module of "),
    (dict(layers_to_transform=["0"]), 'layers_to_transform is ["0"], neither a number nor a list of numbers'),
    (dict(layers_to_transform=[0, 1], target_modules=".*_proj"), "layers_to_transform is [0,1], which PEFT takes with a list of target_modules"),
    (dict(layers_to_transform=[0, 1], layers_pattern="blocks"), "layers_to_transform is [0,1], without the layer of model.layers.0."),
]
FITTING = [   # forms of the same modules
    dict(target_modules="all-linear"),
    dict(target_modules=r"model\.layers\.[01]\.self_attn\.._proj"),
    dict(target_modules=["self_attn.q_proj", "k_proj", "v_proj", "o_proj"], layers_to_transform=[0, 1], layers_pattern="layers"),
    dict(exclude_modules=["mlp.up_proj", "lm_head"], layers_to_transform=[0, 1, 2]),
]


def test_faults(run):
    """each key of adapter_config.json that the adapters do not agree with is reported with both locations"""
    unpack(run, "llama")
    config = json.load(open(run.path("adapters/adapter_config.json")))
    file = program(run, QKVO, '("hf:base", "peft:adapters")')
    for change, message in FAULTS:
        run.write("adapters/adapter_config.json", json.dumps({**config, **change}, indent=1))
        err = run("trace", file, "--recipe", "Logits", "--out", run.path("x.safetensors"), status=1)
        check(f"p.lm:{line_of(file, 'peft:adapters')}:" in err and "error[E317]" in err and message in err, err)
        key = message.split(" is ")[0] if "alpha_pattern" not in change else "lora_alpha"
        line = next(i for i, l in enumerate(open(run.path("adapters/adapter_config.json")), 1) if f'"{key}":' in l)
        check(f"adapter_config.json:{line}: {message}" in err, err)
    for change in FITTING:
        run.write("adapters/adapter_config.json", json.dumps({**config, **change}))
        run("trace", file, "--recipe", "Logits", "--out", run.path("x.safetensors"))
    run.write("adapters/adapter_config.json", json.dumps(config))
    tensors = load(run.path("adapters/adapter_model.safetensors"))
    save(run.path("adapters/adapter_model.safetensors"), {n: t for n, t in tensors.items() if "layers.1.self_attn.k_proj" not in n})
    err = run("trace", file, "--recipe", "Logits", "--out", run.path("x.safetensors"), status=1)
    check("missing: base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight [3, 16]" in err, err)


OWN = """block own(rank) {{
  param a: real[..i, rank] = normal(0.1)
  merge(w: real[..i, ..o]) -> real[..i, ..o] {{ return w * (1 + sum(a)) }}
  {map}
}}
"""


def test_refused(run):
    """adapters that PEFT's files cannot hold are errors at their lines"""
    unpack(run, "llama")

    def refused(edits, *messages, extra="", source='"hf:base"', model=None):
        file = program(run, edits, source, model)
        text = run.write("p.lm", open(file).read() + extra)
        line = line_of(text, "freeze @**") + 1
        err = run("export", run.path("p.lm"), "--recipe", "Logits", "--format", "peft", "-o", run.path("out"), status=1)
        check(f"p.lm:{line}:" in err or not messages[0].startswith("p.lm"))
        check(all(m in err for m in messages) and not os.path.exists(run.path("out")), err)

    refused("", "error[E314]")
    refused(QKVO + "; train @norm", "error[E318]", "norm is trained")
    refused("adapt @layers.*.wd = own(2)", "p.lm:", "error[E310]", extra=OWN.format(map=""))
    refused("adapt @layers.*.wd = own(2)", "error[E312]", "leaves out a", extra=OWN.format(map="map peft { config { r = rank } }"))
    refused("adapt @layers.*.wd = own(2)", "error[E0DF]", "lacks axis 'rank'", extra=OWN.format(map='map peft { @a = ("a", [i]) }'))
    refused("adapt @layers.*.wd = own(2)", "error[E0D9]", "no axis 'x'", extra=OWN.format(map='map peft { @a = ("a", [i, x]) }'))
    refused(QKVO + "; adapt @layers.0.attn.wq = rslora(rank = 2)", "error[E311]", "PEFT has one adapter for a weight")
    refused("adapt @layers.*.attn.wq = lora(rank = 2); adapt @layers.*.attn.wv = rslora(rank = 2)", "error[E316]", "use_rslora", "the other one")
    refused("replace attention = prefix(n = 3)", "p.lm:", "error[E319]", "after @pos = shifted(n = 3)")
    refused("after @x = prompt(n = 3); after @pos = shifted(n = 3)", "error[E319]", "from 0 on, and the model from 3 on")
    for site in "tok", "seg", "layers.0.pos", "layers.*.attn.pos":
        refused(f"replace attention = prefix(n = 3); after @{site} = shifted(n = 3)", "p.lm:", "error[E31B]", "is behind another value")
    zoo = f"{ROOT}/examples/zoo"
    bart = f"{zoo}/bart.lm", "Bart(depth = 1, d = 16, ff = 16, heads = 2, vocab = 32)"
    refused(PREFIX, "p.lm:", "error[E31C]", "no causal language model", model=bart)
    mistral = f"{zoo}/mistral.lm", "Mistral(depth = 1, d = 16, ff = 16, heads = 2, kv = 1, vocab = 32, window = 4)"
    refused(PREFIX, "p.lm:", "error[E31C]", "sliding window hides the prefix", model=mistral)
    gpt2 = run.write("gpt2.lm", open(f"{zoo}/gpt2.lm").read().replace("words + gather(wpe, pos, positions)", "words + order").replace(
        "let words", "let order = gather(wpe, pos, positions)\n    let words"))
    refused(PROMPT.replace("words", "order"), "p.lm:", "error[E31A]", "order.prompt is behind another value",
            model=(gpt2, "GPT2(depth = 1, d = 16, ff = 16, heads = 2, vocab = 32, positions = 16)"))
    refused("after @layers.*.u = prompt(n = 3)", "p.lm:", "error[E31A]", "layers.0.u.prompt is behind another value")
    refused(QKVO + "; after @x = prompt(n = 3)", "error[E316]", "peft_type", "the other one")
    refused("replace rmsnorm = same; " + QKVO, "error[E327]", "p.lm:", extra="import std.nn: rmsnorm\n"
            "fn same(x: real[..r], w: real[..s], eps: f32 = 1e-6) -> real[..r] where s in r { return rmsnorm(x, w, eps) }\n")
    refused(QKVO, "error[E315]", source='("hf:base", "hf:adapters")')


def test_task(run):
    """adapters of an encoder-decoder model name PEFT's class of such models"""
    run.write("pairs.jsonl", "".join('{"source": "%d", "target": "%d"}\n' % (n, n * n) for n in range(9)))
    run("run", run.write("t5.lm", f"""import "{ROOT}/examples/zoo/t5.lm": T5
import std.adapt: lora
model T = T5(depth = 1, d = 16, ff = 16, heads = 2, e = 8, vocab = 256) with {{ freeze @**; adapt @**.wq = lora(rank = 2) }}
data D {{ source s = seq2seq("pairs.jsonl", start = "a"); long = drop; pack best_fit(seq = 8 tokens) }}
recipe R {{
  model = T; data = D; run = 1 steps; batch = 16 tokens; optimizer = sgd(lr = 1); precision {{ compute = f32 }}
  save = checkpoint("run")
}}"""), "-q")
    run("export", run.path("run"), "--format", "peft", "-o", run.path("out"))
    config = json.load(open(run.path("out/adapter_config.json")))
    check(config["task_type"] == "SEQ_2_SEQ_LM" and config["target_modules"] == ["q"], config)


def test_with_peft(run):
    """PEFT's logits of adapters that were trained here are ours, and ours of its adapters are PEFT's"""
    if not run.nightly or not os.environ.get("LMC_PEFT_PYTHON"):
        raise Skip("only nightly, with a Python that has PEFT in LMC_PEFT_PYTHON")
    ids = json.dumps(IDS)

    def side(*args):
        p = subprocess.run([os.environ["LMC_PEFT_PYTHON"], f"{HERE}/peft_side.py", *args], capture_output=True, text=True)
        check(p.returncode == 0, p.stderr[-2000:])
        return p.stdout

    known = json.loads(side("known"))
    for name, edits in CASES.items():
        if name.split("_")[0] not in known:
            continue
        run.folder = os.path.join(run.folder, name)
        unpack(run, name)
        configs = json.load(open(f"{HERE}/peft/{name}.json"))["adapters"]
        keys = ("r", "lora_alpha", "use_rslora", "use_dora", "target_modules", "rank_pattern", "alpha_pattern", "fan_in_fan_out")
        if "num_virtual_tokens" in configs:
            keys = "peft_type", "num_virtual_tokens", "token_dim", "num_attention_heads"
        side("adapt", run.path("base"), json.dumps({k: configs[k] for k in keys}), run.path("live"))
        side("logits", run.path("base"), run.path("live"), ids, run.path("live.npy"))
        file = program(run, edits, '("hf:base", "peft:live")')
        within(name + ": our logits of their adapters", difference(logits(run, file), np.load(run.path("live.npy"))), 1e-5)
        run("run", file, "--recipe", "Tune", "-q")
        run("export", run.path("run"), "--format", "peft", "-o", run.path("ours"))
        side("logits", run.path("base"), run.path("ours"), ids, run.path("ours.npy"))
        ours = logits(run, program(run, edits, '("hf:base", "peft:ours")'))
        within(name + ": their logits of our adapters", difference(ours, np.load(run.path("ours.npy"))), 1e-5)
        run.folder = os.path.dirname(run.folder)
