"""The models of examples/zoo without transformers: each trains, and its export has the model type, is found by it and has the
same weights when it is read again. test_zoo.py compares them with transformers."""
import glob, json

from harness import ROOT, check, load, random_batches, save
from test_encdec import batches

SIZES = "d = 16, ff = 24, heads = 2, kv = 1, vocab = 32"
MODELS = {   # file: model, its arguments, model_type
    "bart": ("Bart", "d = 16, ff = 24, heads = 2, vocab = 256, positions = 32", "bart"),
    "granite": ("Granite", SIZES, "granite"),
    "mixtral": ("Mixtral", f"{SIZES}, E = 3, k = 2", "mixtral"),
    "olmo2": ("Olmo2", SIZES, "olmo2"),
    "olmoe": ("Olmoe", f"{SIZES}, E = 3, k = 2", "olmoe"),
    "phi": ("Phi", SIZES + ", share = 0.5", "phi"),
    "qwen3moe": ("Qwen3Moe", f"{SIZES}, e = 8, narrow = 12, E = 3, k = 2, period = 2", "qwen3_moe"),
    "t5": ("T5", "d = 16, ff = 24, heads = 2, e = 8, vocab = 256, ffn = \"gated-gelu\", tied = false", "t5"),
    "smollm3": ("SmolLM3", f"{SIZES}, period = 2", "smollm3"),
}
PAIRS = "t5", "bart"   # encoder-decoder models
PROGRAM = """import "{root}/examples/zoo/{file}.lm": {model}
data D {{ source s = batches("batches.safetensors") }}
recipe R {{
  model = {model}(depth = 2, {args}); data = D; run = 2 steps; precision {{ compute = f32 }}
  optimizer = adamw(lr = 1e-2); save = checkpoint("run", every = 2 steps)
}}
"""


def cases():
    def one(file):
        def test(run):
            model, args, kind = MODELS[file]
            save(run.path("batches.safetensors"), batches(2, 1) if file in PAIRS else random_batches(2, 1, 16, vocab=32))
            program = run.write("r.lm", PROGRAM.format(root=ROOT, file=file, model=model, args=args))
            run("run", program, "-q")
            run("export", run.path("run"), "-o", run.path("hf"))
            check(json.load(open(run.path("hf", "config.json")))["model_type"] == kind)
            run("import", "hf", run.path("hf"), "-o", run.path("again"))
            ours = load(glob.glob(run.path("run", "step-*", "model.safetensors"))[-1])
            again = load(run.path("again", "model.safetensors"))
            check(ours.keys() == again.keys(), f"{sorted(ours)} and {sorted(again)}")
            for name in ours:
                check((ours[name] == again[name]).all(), name)
        return f"{file}", test

    return [one(file) for file in MODELS]
