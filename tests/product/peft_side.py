"""The side of Hugging Face's PEFT, run by a Python that has it and transformers. usage: peft_side.py make TYPE DIR [CONFIG] |
known | adapt BASE CONFIG DIR | logits BASE ADAPTERS IDS OUT.npy | fixtures DIR [NAME…], which writes the files in the folder peft beside this one.

The fixtures are from PEFT 0.21.2 with transformers 5.23 and PyTorch 2.15."""
import json, os, sys, tempfile, warnings

os.environ["TRANSFORMERS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
import numpy as np
import peft
import torch
from safetensors.numpy import load_file, save_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

IDS = [(7 * i * i + 3 * i + 5) % 32 for i in range(12)]
DECODER = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
               pad_token_id=None)
CONFIGS = {
    "llama": DECODER,
    "phi3": dict(DECODER, partial_rotary_factor=0.5),
    "gpt2": dict(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=16, bos_token_id=None, eos_token_id=None),
}
UNEQUAL = dict(r=4, lora_alpha=8, use_rslora=True, target_modules=["q_proj", "down_proj"],
               rank_pattern={r"layers\.1\.self_attn.q_proj": 2}, alpha_pattern={"layers.1.*.down_proj": 5})
CASES = {
    "llama": ("llama", dict(r=3, lora_alpha=6, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])),
    "llama_unequal": ("llama", UNEQUAL),
    "phi3": ("phi3", dict(r=2, lora_alpha=3, target_modules=["qkv_proj", "gate_up_proj"])),
    "llama_dora": ("llama", dict(r=3, lora_alpha=6, use_dora=True, target_modules=["q_proj", "o_proj", "up_proj"])),
    "gpt2_dora": ("gpt2", dict(r=2, lora_alpha=3, use_dora=True, fan_in_fan_out=True, target_modules=["c_attn", "c_proj"])),
    "gpt2": ("gpt2", dict(r=3, lora_alpha=6, fan_in_fan_out=True, target_modules=["c_attn", "c_proj"])),
    "llama_prefix": ("llama", dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3, token_dim=8, num_attention_heads=2)),
    "gpt2_prefix": ("gpt2", dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3)),
    "gpt2_prompt": ("gpt2", dict(peft_type="PROMPT_TUNING", num_virtual_tokens=3)),
}


def known():
    print(json.dumps([x for x in CONFIGS if x in CONFIG_MAPPING]))


def shake(parameters):
    """far from the initial values, so that every one of them shows in the logits"""
    with torch.no_grad():
        for p in parameters:
            p.add_(torch.randn_like(p) * (0.3 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2))


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()


def make(kind, folder):
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **CONFIGS[kind])).float()
    shake(model.parameters())
    model.save_pretrained(folder, safe_serialization=True)


def adapt(base, config, folder):
    torch.manual_seed(2)
    config = json.loads(config)
    kind = {"PREFIX_TUNING": peft.PrefixTuningConfig, "PROMPT_TUNING": peft.PromptTuningConfig}.get(config.pop("peft_type", None))
    config = kind(task_type="CAUSAL_LM", **config) if kind else peft.LoraConfig(**config)
    model = peft.get_peft_model(load(base), config)
    shake(p for p in model.parameters() if p.requires_grad)
    model.save_pretrained(folder)


def logits(base, adapters, ids, out):
    model = peft.PeftModel.from_pretrained(load(base), adapters).eval()
    ids = json.loads(ids)
    with torch.no_grad():
        np.save(out, model(torch.tensor([ids])).logits[0, -len(ids):].numpy())   # a prompt has logits too


def gradients(base, adapters):
    """the mean loss of each id's successor, and its gradients with respect to the adapters, in float64"""
    of_prompt = "prompt_embeddings" in load_file(f"{adapters}/adapter_model.safetensors")
    model = peft.PeftModel.from_pretrained(load(base).double(), adapters, is_trainable=not of_prompt).double()
    ids = torch.tensor([IDS])
    for n, p in model.named_parameters():
        p.requires_grad |= n.startswith("prompt_encoder.")
    loss = torch.nn.functional.cross_entropy(model(ids).logits[0, -len(IDS):], ids.roll(-1)[0])
    loss.backward()
    if of_prompt:
        grad, = (p.grad for n, p in model.named_parameters() if n.startswith("prompt_encoder."))
        return {"grad.prompt_embeddings": grad.float().numpy(), "loss": np.float32([loss.item()])}
    out = {"grad." + n.replace(".default", ""): p.grad.float().numpy() for n, p in model.named_parameters() if p.requires_grad}
    return {n.replace("magnitude_vector.weight", "magnitude_vector"): x for n, x in out.items()} | {"loss": np.float32([loss.item()])}


def fixture(name, folder):
    """a file of the base, the adapters, the logits, the loss and its gradients, and the two files of their configuration"""
    kind, config = CASES[name]
    with tempfile.TemporaryDirectory() as t:
        base, adapters, out = (os.path.join(t, n) for n in ("base", "adapters", "logits.npy"))
        make(kind, base)
        adapt(base, json.dumps(config), adapters)
        logits(base, adapters, json.dumps(IDS), out)
        tensors = {"base." + n: x for n, x in load_file(f"{base}/model.safetensors").items()}
        tensors |= {"adapters." + n: x for n, x in load_file(f"{adapters}/adapter_model.safetensors").items()}
        save_file(tensors | gradients(base, adapters) | {"logits": np.load(out)}, f"{folder}/{name}.safetensors")
        both = {"base": json.load(open(f"{base}/config.json")), "adapters": json.load(open(f"{adapters}/adapter_config.json"))}
        both["adapters"]["base_model_name_or_path"] = "base"
        json.dump(both, open(f"{folder}/{name}.json", "w"), indent=1, sort_keys=True)


def fixtures(folder, *names):
    for name in names or CASES:
        fixture(name, folder)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
