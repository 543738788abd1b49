"""The files of examples/tune and the commands of docs/finetune.md, "Five minutes", for a few steps on a base that has seen one step."""
import json, math, os, re, shlex, shutil

from harness import ROOT, check, load

PLAIN_BUILD = {"commands"}
BASE = """import "examples/llama.lm": Llama
data Text {{ tokenizer = bpe(train = 400); source s = text("data/bible.txt"); pack best_fit(seq = 128 tokens) }}
recipe Base {{
  model = Llama(depth = 6, d = 256, ff = 768, heads = 8, kv = 4, e = 32, vocab = 4096); data = Text
  run = 1 steps; batch = 128 tokens; optimizer = adamw(lr = 1e-3); save = checkpoint("runs/quickstart", every = 1 steps)
}}
"""


def base(run):
    """a folder as a clone after scripts/quickstart"""
    shutil.copytree(f"{ROOT}/examples", run.path("examples"), ignore=shutil.ignore_patterns("*.safetensors"))
    questions = [json.loads(line)["messages"] for line in open(f"{ROOT}/examples/tune/questions.jsonl")]
    run.write("data/bible.txt", "".join(f"{q['content']} {a['content']}\n" for q, a in questions) * 4)
    run("run", run.write("base.lm", BASE.format()), "-q")
    run("export", run.path("runs/quickstart"), "-o", run.path("ckpt/base"))


def losses(run, folder):
    return [json.loads(line)["loss"] for line in open(run.path("runs", folder, "metrics.jsonl")) if '"loss"' in line]


def test_commands(run):
    """each command of the page; the answer after LoRA is another one than before"""
    base(run)
    page = open(f"{ROOT}/docs/finetune.md").read().split("## Five minutes")[1]
    answers = []
    for line in re.search(r"```text\n(.*?)```", page, re.S)[1].splitlines():
        if not line.startswith("$ lmc"):
            continue
        command = [run.path(x) if "/" in x and not x.startswith("-") else x for x in shlex.split(line)[2:]]
        out = run(*command, *(["--steps", "12"] if command[0] == "run" else []))
        if command[0] == "generate":
            answers.append(out)
    check(len(answers) == 2 and answers[0] != answers[1], answers)
    check(set(os.listdir(run.path("ckpt/adapters"))) >= {"adapter_model.safetensors", "adapter_config.json"})
    check(set(load(run.path("ckpt/lora/model.safetensors"))) == set(load(run.path("ckpt/base/model.safetensors"))))
    curve = losses(run, "lora")
    check(curve[-1] < curve[0] - 0.5, curve)


def test_files(run):
    """full fine-tuning, distillation and DPO"""
    base(run)
    for name, folder in ("full", "full"), ("distill", "half"), ("dpo", "aligned"):
        run("run", run.path(f"examples/tune/{name}.lm"), "--steps", "3", "-q")
        curve = losses(run, folder)
        check(len(curve) == 3 and all(map(math.isfinite, curve)), f"{name}: {curve}")
        if name == "dpo":
            check(abs(curve[0] - math.log(2)) < 1e-6, curve)
