"""The side of transformers, run by the Python that has it. usage: hf_side.py make TYPE DIR [CONFIG] |
logits DIR IDS OUT.npy [INPUTS.npz] | grads DIR INPUTS.npz OUT.npz [TYPE] | spread DIR INPUTS.npz OUT.npz DRAWS | greedy DIR IDS N | whole DIR IDS N | tokens DIR TEXT | shards DIR OUT.npz; exit status 3: this
transformers does not have that, or is older than `least`.

serve: reads commands, {"args": [...], "least": VERSION} on each line, and writes {"status":, "out":, "error":} for
each, computed in a child process."""
import contextlib, copy, json, os, sys, tempfile, traceback

os.environ["TRANSFORMERS_OFFLINE"] = "1"
import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM, AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq, AutoTokenizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
import rwkv7_side

rwkv7_side.register()
DECODER = dict(vocab_size=96, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
CONFIGS = {
    "llama": dict(DECODER, rms_norm_eps=1e-5, rope_theta=5000.0, tie_word_embeddings=False),
    "mistral": dict(DECODER, rms_norm_eps=1e-5, head_dim=8, sliding_window=None, tie_word_embeddings=False),
    "qwen2": dict(DECODER, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True),
    "qwen3": dict(DECODER, rms_norm_eps=1e-6, rope_theta=1e5, head_dim=16, tie_word_embeddings=True),
    "gpt2": dict(vocab_size=96, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None),
}


KINDS = {"clip": AutoModel, "bert": AutoModelForMaskedLM, "vit": AutoModelForImageClassification, "mobilenet_v2": AutoModelForImageClassification,
         "efficientnet": AutoModelForImageClassification, "t5": AutoModelForSeq2SeqLM,
         "bart": AutoModelForSeq2SeqLM, "whisper": AutoModelForSpeechSeq2Seq}     # others: AutoModelForCausalLM


# Keys of config.json that choose float64 in a model, and no cache where transformers 4.57 gives it wrong sizes.
OPENED = {"xlstm": dict(inference_state_dtype="float64", norm_reduction_force_float32=False, use_cache=False),
          "gemma2": dict(attn_implementation="eager")}     # the default has no soft caps


def opened(folder):
    kind = json.load(open(f"{folder}/config.json"))["model_type"]
    return KINDS.get(kind, AutoModelForCausalLM).from_pretrained(folder, torch_dtype=torch.float32, **OPENED.get(kind, {})).eval()


def make(kind, folder, config=None):
    """a model of random weights, far from their initial values so that every one of them shows in the logits"""
    torch.manual_seed(1)
    config = json.loads(config) if config else CONFIGS[kind]
    model = KINDS.get(kind, AutoModelForCausalLM).from_config(AutoConfig.for_model(kind, **config)).float()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * (0.3 / p.shape[-1] ** 0.5 if p.dim() > 1 else 0.2))
        for name, p in model.named_buffers():     # of batch normalization, and of the choice of experts
            if name.endswith(("running_mean", "running_var", "e_score_correction_bias")):
                p.add_(torch.rand_like(p))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.add_(torch.randn_like(model.final_logits_bias) * 0.2)
    model.save_pretrained(folder, safe_serialization=True)


def logits(folder, ids, out):
    model = opened(folder)
    with torch.no_grad():
        np.save(out, model(torch.tensor([ids])).logits[0].numpy())
    print(json.dumps({"class": type(model).__name__}))


def all_in_float64():
    """norms, softmax, routers and recurrences too, which transformers converts to f32 whatever the type of the model is"""
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


F32 = torch.float32     # also where that name is float64


def rounded(x):
    """x with a random error of at most half an ulp of f32 in each number that f32 cannot represent"""
    if not torch.is_tensor(x) or x.dtype is not torch.double:
        return x
    y = x * (1 + (2 * torch.rand_like(x) - 1) * 2**-24)
    exact = x.to(F32).to(torch.double) == x
    return torch.where(exact | ~y.isfinite(), x, y)     # masks are the lowest float64


class Rounding(TorchDispatchMode):
    """rounds the results of all operations, those of the backward pass too, but not views"""
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        # The derivative of a fused attention is NaN if its results are inexact.
        exact = any(r.alias_info for r in func._schema.returns) or "attention" in str(func)
        return out if exact else tree_map(rounded, out)


def spread(folder, inputs, out, draws):
    """Monte Carlo arithmetic (Parker 1997): the median, over some draws, of the norm of the change of each gradient when numbers that
    f32 would store are rounded at random. So far apart are the gradients of two programs that compute the same formulas in f32"""
    first, changes = opened(folder).double(), {}
    all_in_float64()
    for draw in range(int(draws) + 1):
        torch.manual_seed(draw)
        with Rounding() if draw else contextlib.nullcontext():
            found = gradients(copy.deepcopy(first), inputs, "f8")
        if not draw:
            exact = found
        for name, x in found.items():
            changes.setdefault(name, []).append(float(np.linalg.norm(x - exact[name])))
    np.savez(out, **{name: np.median(x[1:]) for name, x in changes.items()})


def grads(folder, inputs, out, dtype="f8"):
    """in float64 or f32"""
    model = opened(folder)
    if dtype == "f8":
        model = model.double()
        all_in_float64()
    np.savez(out, **gradients(model, inputs, dtype))


def gradients(model, inputs, dtype):
    """of the mean cross-entropy: `labels` of the logits of the other inputs; -100 is none. And the logits and the loss"""
    given = {name: torch.tensor(x.astype(dtype) if x.dtype == "f4" else x) for name, x in np.load(inputs).items()}
    if model.config.model_type == "clip":     # the vectors of a text and an image for logits
        pair = model(**given, return_loss=True)
        z, loss = torch.stack((pair.text_embeds, pair.image_embeds), 1), pair.loss
    else:
        labels = given.pop("labels").long()
        z = trained = model(**given).logits
        if model.config.model_type in ("mobilenet_v2", "efficientnet"):     # the loss by the statistics of the batch
            trained = model.train()(**given).logits
        loss = torch.nn.functional.cross_entropy(trained.reshape(-1, z.shape[-1]), labels.reshape(-1))
    loss.backward()
    found = {f"grad.{name}": p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    return dict(loss=loss.detach().numpy(), logits=z.detach().numpy(), **found)


def heard(model, frames, n):
    """the greedy continuation of the start token; transformers' own adds tokens of languages and tasks"""
    ids = [model.config.decoder_start_token_id]
    with torch.no_grad():
        for _ in range(n):
            ids.append(int(model(input_features=frames, decoder_input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[1:]


def greedy(folder, ids, n):
    """the continuation; of an encoder-decoder model, whose source is `ids`, that of its start token"""
    model = opened(folder)
    if isinstance(ids, str):
        print(json.dumps(heard(model, torch.tensor(np.load(ids)["input_features"][:1]), n)))
        return
    for key in "forced_bos_token_id", "forced_eos_token_id", "eos_token_id":
        setattr(model.generation_config, key, None)
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, eos_token_id=None, pad_token_id=0,
                             use_cache=getattr(model.config, "use_cache", True))
    print(json.dumps(out[0, -n:].tolist()))


def whole(folder, ids, n):
    """the continuation by forward passes over all tokens: `generate` of 4.57 moves the scores of Gemma 3 by 1e-2, with or without caches"""
    model, ids = opened(folder), list(ids)
    with torch.no_grad():
        for _ in range(n):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    print(json.dumps(ids[-n:]))


def tokens(folder, text):
    t = AutoTokenizer.from_pretrained(folder)
    ids = t(text)["input_ids"]
    print(json.dumps({"ids": ids, "text": t.decode(ids)}))


def shards(folder, out):
    """the parameters of a module that transformers has filled from the files that DIR/model.safetensors.index.json names"""
    from safetensors import safe_open
    from transformers.modeling_utils import load_sharded_checkpoint
    names = json.load(open(f"{folder}/model.safetensors.index.json"))["weight_map"]
    module = torch.nn.Module()
    for name, file in names.items():
        with safe_open(f"{folder}/{file}", "pt") as tensors:
            shape = tensors.get_slice(name).get_shape()
        *path, last = name.split(".")
        inner = module
        for part in path:
            if part not in dict(inner.named_children()):
                inner.add_module(part, torch.nn.Module())
            inner = getattr(inner, part)
        inner.register_parameter(last, torch.nn.Parameter(torch.full(shape, torch.nan)))
    load_sharded_checkpoint(module, folder, strict=True, prefer_safe=True)
    np.savez(out, **{name: p.detach().numpy() for name, p in module.named_parameters()})


UNKNOWN = 3            # exit status: a model that this transformers does not have


def numbers(version):
    return tuple(map(int, version.split(".")[:2]))


def run(command, *args, least="0.0"):
    """a command; its exit status"""
    if command == "make":
        if args[0] not in transformers.models.auto.configuration_auto.CONFIG_MAPPING or numbers(transformers.__version__) < numbers(least):
            return UNKNOWN
        make(*args)
    elif command == "logits":
        logits(args[0], json.loads(args[1]), args[2])
    elif command == "grads":
        grads(*args)
    elif command == "spread":
        spread(*args)
    elif command == "greedy":
        greedy(args[0], json.loads(args[1]), int(args[2]))
    elif command == "whole":
        whole(args[0], json.loads(args[1]), int(args[2]))
    elif command == "tokens":
        tokens(*args)
    elif command == "shards":
        shards(*args)
    return 0


def run_apart(request, out, error):
    """in a process that ends here"""
    os.dup2(out.fileno(), 1)
    os.dup2(error.fileno(), 2)
    try:
        status = run(*request["args"], least=request["least"])
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def serve():
    for line in sys.stdin:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
            child = os.fork()
            if not child:
                run_apart(json.loads(line), out, error)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            out.seek(0)
            error.seek(0)
            print(json.dumps({"status": status, "out": out.read(), "error": error.read()}), flush=True)


if sys.argv[1] == "serve":
    serve()
else:
    sys.exit(run(*sys.argv[1:]))
