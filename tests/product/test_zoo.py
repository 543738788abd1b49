"""The models of examples/zoo against transformers: random weights saved there, found here by config.json alone, the same logits,
loss and gradients, and the same greedy continuation; the export gives the same logits there. LMC_HF_PYTHON as in test_hf.py."""
import contextlib, json, re

import numpy as np
from harness import Skip, check, load, save, within
from test_hf import UNKNOWN, side

SANITIZER_BUILD = set()
BASE = dict(vocab_size=272, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
FAR = dict(BASE, max_position_embeddings=2048)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
NEW = "4.50"
NEOX = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
MAMBA = dict(vocab_size=272, hidden_size=32, num_hidden_layers=3, state_size=8, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)
# With use_cache, transformers caches keys and values without their gradient.
GRIFFIN = dict(vocab_size=272, hidden_size=32, intermediate_size=96, attention_window_size=64, use_cache=False,
               bos_token_id=None, eos_token_id=None, pad_token_id=None)
FOUR = dict(BASE, head_dim=16, intermediate_size_mlp=40, num_local_experts=4, attention_chunk_size=7, floor_scale=5)
LATENT = dict(BASE, num_key_value_heads=4, moe_intermediate_size=24, first_k_dense_replace=1, n_routed_experts=8, num_experts_per_tok=3,
              n_shared_experts=2, qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, kv_lora_rank=16)
NEXT = dict(BASE, head_dim=16, linear_conv_kernel_dim=3, linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=2,
            linear_num_value_heads=4, moe_intermediate_size=24, shared_expert_intermediate_size=20, num_experts_per_tok=3, num_experts=6)
BERT = dict(vocab_size=272, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=64)
VIT = dict(BERT, image_size=8, patch_size=4, num_channels=3, num_labels=7)
MOBILE = dict(image_size=64, num_labels=7, depth_multiplier=0.25, depth_divisible_by=4, min_depth=4, expand_ratio=2.0,
              classifier_dropout_prob=0.0)
EFFICIENT = dict(image_size=64, num_labels=7, width_coefficient=0.25, depth_coefficient=1.0, depth_divisor=4, hidden_dim=320,
                 dropout_rate=0.0, drop_connect_rate=0.0)
TOWER = dict(hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4)
CLIP = dict(projection_dim=24, text_config=dict(TOWER, vocab_size=272, max_position_embeddings=16, eos_token_id=271),
            vision_config=dict(TOWER, hidden_size=48, image_size=8, patch_size=4))
T5 = dict(vocab_size=272, d_model=32, d_kv=8, d_ff=56, num_layers=3, num_heads=4, decoder_start_token_id=0,
          relative_attention_num_buckets=8, relative_attention_max_distance=20)
BART = dict(vocab_size=272, d_model=32, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4,
            encoder_ffn_dim=56, decoder_ffn_dim=56, max_position_embeddings=64)
WHISPER = dict(BART, max_source_positions=20, max_target_positions=64, num_mel_bins=6, decoder_start_token_id=7, bos_token_id=None,
               eos_token_id=None, pad_token_id=0, suppress_tokens=None, begin_suppress_tokens=None)
del WHISPER["max_position_embeddings"]
XLSTM = dict(vocab_size=272, hidden_size=32, num_hidden_layers=3, num_heads=4, bos_token_id=None, eos_token_id=None, pad_token_id=None)
RWKV7 = dict(vocab_size=272, hidden_size=32, num_hidden_layers=3, head_dim=8, decay_low_rank_dim=6, a_low_rank_dim=5, gate_low_rank_dim=7,
             v_low_rank_dim=4, max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
GPT2 = dict(vocab_size=272, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None)

# name: type, config, and the version of transformers that has it. Those before `nightly` are run always.
CASES = {
    "llama_untied": ("llama", dict(BASE, rope_theta=5000.0, rms_norm_eps=1e-5)),
    "mamba": ("mamba", dict(MAMBA, time_step_rank=2)),
    "bert": ("bert", BERT),
    "t5": ("t5", T5),
    "nightly": None,
    "recurrent_gemma": ("recurrent_gemma", dict(GRIFFIN, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=1), NEW),
    "recurrent_gemma_wide": ("recurrent_gemma", dict(GRIFFIN, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, lru_width=48,
                                                     conv1d_width=3, logits_soft_cap=5.0, rope_theta=500.0), NEW),
    "gpt2": ("gpt2", GPT2),
    "bert_relu": ("bert", dict(BERT, hidden_act="relu", type_vocab_size=3, layer_norm_eps=1e-5)),
    "vit": ("vit", VIT),
    "clip": ("clip", CLIP),
    "clip_old": ("clip", dict(projection_dim=20, text_config=dict(CLIP["text_config"], eos_token_id=2, hidden_act="gelu"), vision_config=dict(
        TOWER, intermediate_size=40, num_hidden_layers=3, image_size=12, patch_size=2, num_channels=1, layer_norm_eps=1e-3))),
    "bart": ("bart", BART),
    "bart_scaled": ("bart", dict(BART, scale_embedding=True, activation_function="relu", decoder_start_token_id=7, decoder_attention_heads=2,
                                 decoder_ffn_dim=40)),
    "whisper": ("whisper", WHISPER),
    "t5_gated": ("t5", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=2, d_kv=16,
                            relative_attention_num_buckets=32, relative_attention_max_distance=128)),
    "vit_patches": ("vit", dict(VIT, image_size=12, patch_size=2, num_channels=1, num_labels=2, hidden_act="relu")),
    "mobilenet": ("mobilenet_v2", dict(MOBILE, finegrained_output=False)),
    "mobilenet_odd": ("mobilenet_v2", dict(MOBILE, image_size=77, num_channels=1, tf_padding=False, depth_multiplier=0.3, layer_norm_eps=1e-2)),
    "efficientnet": ("efficientnet", EFFICIENT),
    "efficientnet_odd": ("efficientnet", dict(EFFICIENT, image_size=83, num_channels=1, depth_coefficient=1.2, depthwise_padding=[2, 5, 8], hidden_act="gelu",
                                              squeeze_expansion_ratio=0.5, batch_norm_eps=5e-4)),
    "bloom": ("bloom", dict(vocab_size=272, hidden_size=32, n_layer=3, n_head=4)),
    "opt": ("opt", dict(vocab_size=272, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, ffn_dim=56,
                        max_position_embeddings=64, word_embed_proj_dim=32)),
    "gptj": ("gptj", dict(GPT2, rotary_dim=4)),
    "gptj_inner": ("gptj", dict(GPT2, rotary_dim=8, n_inner=40, activation_function="relu")),
    "falcon": ("falcon", dict(vocab_size=272, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                              max_position_embeddings=64)),
    "cohere": ("cohere", dict(BASE, logit_scale=0.3)),
    "cohere_normed": ("cohere", dict(BASE, logit_scale=0.3, use_qk_norm=True, layer_norm_eps=1e-4), "4.41"),
    "stablelm": ("stablelm", BASE),
    "stablelm_biased": ("stablelm", dict(BASE, use_qkv_bias=True, partial_rotary_factor=1.0, rope_theta=5000.0)),
    "llama_tied_mha": ("llama", dict(BASE, num_key_value_heads=4, tie_word_embeddings=True)),
    "llama_mqa_gelu": ("llama", dict(BASE, num_key_value_heads=1, hidden_act="gelu")),
    "llama_head_dim": ("llama", dict(BASE, head_dim=16), NEW),
    "llama_linear": ("llama", dict(BASE, rope_scaling=dict(type="linear", factor=2.5))),
    "llama_llama3": ("llama", dict(BASE, rope_scaling=LLAMA3, rope_theta=500000.0, tie_word_embeddings=True), NEW),
    "llama_yarn": ("llama", dict(BASE, rope_scaling=YARN), NEW),
    "llama_yarn_all": ("llama", dict(BASE, rope_scaling=dict(YARN, beta_fast=8.0, beta_slow=2.0, attention_factor=1.3)), NEW),
    "mistral": ("mistral", dict(BASE, sliding_window=None)),
    "mistral_window": ("mistral", dict(FAR, sliding_window=7, head_dim=16), NEW),
    "qwen2_tied": ("qwen2", dict(BASE, tie_word_embeddings=True, rope_theta=1e6)),
    "qwen2_untied": ("qwen2", dict(BASE, tie_word_embeddings=False)),
    "qwen2_window": ("qwen2", dict(FAR, use_sliding_window=True, sliding_window=6, max_window_layers=1), NEW),
    "qwen3": ("qwen3", dict(BASE, head_dim=16, tie_word_embeddings=True)),
    "qwen3_yarn": ("qwen3", dict(BASE, head_dim=16, tie_word_embeddings=False, rope_scaling=YARN)),
    "gpt2_inner": ("gpt2", dict(GPT2, n_inner=48, activation_function="gelu")),
    "gpt_neox": ("gpt_neox", dict(NEOX, rotary_pct=0.25)),
    "gpt_neox_sequential": ("gpt_neox", dict(NEOX, rotary_pct=1.0, use_parallel_residual=False, hidden_act="gelu_new")),
    "gpt_neox_tied": ("gpt_neox", dict(NEOX, rotary_pct=0.5, tie_word_embeddings=True, rotary_emb_base=5000), NEW),
    "gemma2": ("gemma2", dict(FAR, head_dim=16, sliding_window=6, query_pre_attn_scalar=24, final_logit_softcapping=3.0,
                              attn_logit_softcapping=2.0), NEW),
    "gemma3": ("gemma3_text", dict(FAR, head_dim=16, sliding_window=6, query_pre_attn_scalar=24, sliding_window_pattern=2), NEW),
    "gemma3_scaled": ("gemma3_text", dict(BASE, num_hidden_layers=7, head_dim=16, sliding_window=9, rope_theta=5e5,
                                          rope_local_base_freq=5e3, rope_scaling=dict(rope_type="linear", factor=8.0),
                                          final_logit_softcapping=3.0), NEW),
    "phi3": ("phi3", dict(BASE, rms_norm_eps=1e-5), NEW),
    "phi3_window": ("phi3", dict(FAR, num_key_value_heads=4, sliding_window=7, partial_rotary_factor=0.5, tie_word_embeddings=True), NEW),
    "mixtral": ("mixtral", dict(BASE, num_local_experts=4, num_experts_per_tok=2)),
    "mixtral_window": ("mixtral", dict(FAR, num_local_experts=5, num_experts_per_tok=3, sliding_window=7, num_key_value_heads=4), NEW),
    "olmo2": ("olmo2", BASE, NEW),
    "olmo2_tied_mha": ("olmo2", dict(BASE, num_key_value_heads=4, tie_word_embeddings=True, rope_theta=5e5), NEW),
    "olmoe": ("olmoe", dict(BASE, num_experts=6, num_experts_per_tok=3), NEW),
    "olmoe_shares": ("olmoe", dict(BASE, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, num_key_value_heads=4), NEW),
    "smollm3": ("smollm3", dict(BASE, num_hidden_layers=5, num_attention_heads=4), "4.53"),
    "smollm3_untied": ("smollm3", dict(BASE, no_rope_layer_interval=2, tie_word_embeddings=False, rope_scaling=YARN), "4.53"),
    "granite": ("granite", dict(BASE, embedding_multiplier=3.0, attention_multiplier=0.4, residual_multiplier=0.22, logits_scaling=2.5,
                                tie_word_embeddings=True), NEW),
    "granite_plain": ("granite", dict(BASE, attention_multiplier=0.25), NEW),
    "qwen3_moe": ("qwen3_moe", dict(BASE, head_dim=16, moe_intermediate_size=24, num_experts=6, num_experts_per_tok=3,
                                    norm_topk_prob=True), "4.51"),
    "qwen3_moe_dense": ("qwen3_moe", dict(BASE, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, decoder_sparse_step=2,
                                          rope_scaling=YARN), "4.51"),
    "qwen3_next": ("qwen3_next", dict(NEXT, num_hidden_layers=4), "4.57"),
    "qwen3_next_period": ("qwen3_next", dict(NEXT, num_hidden_layers=3, full_attention_interval=3, norm_topk_prob=False, linear_num_key_heads=1,
                                             partial_rotary_factor=0.5), "4.57"),
    "llama4": ("llama4_text", dict(FOUR, num_hidden_layers=4, max_position_embeddings=2048), "4.51"),
    "llama4_dense": ("llama4_text", dict(FOUR, interleave_moe_layer_step=2, no_rope_layers=[1, 0, 1], use_qk_norm=False, floor_scale=8192,
                                         attn_temperature_tuning=False), "4.54"),
    "deepseek_v2": ("deepseek_v2", dict(LATENT, n_group=4, topk_group=2, topk_method="group_limited_greedy", q_lora_rank=20,
                                        routed_scaling_factor=1.5), "4.54"),
    "deepseek_v2_lite": ("deepseek_v2", dict(LATENT, q_lora_rank=None), "4.54"),
    "deepseek_v3": ("deepseek_v3", dict(BASE, num_key_value_heads=4, moe_intermediate_size=24, first_k_dense_replace=1, n_routed_experts=8,
                                        n_group=4, topk_group=2, num_experts_per_tok=3, n_shared_experts=2, routed_scaling_factor=1.5,
                                        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=12, q_lora_rank=20, kv_lora_rank=16), NEW),
    "deepseek_v3_yarn": ("deepseek_v3", dict(BASE, num_key_value_heads=4, moe_intermediate_size=24, first_k_dense_replace=2, n_routed_experts=4,
                                             n_group=1, topk_group=1, num_experts_per_tok=2, qk_nope_head_dim=8, qk_rope_head_dim=8,
                                             v_head_dim=8, q_lora_rank=20, kv_lora_rank=16,
                                             rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0, beta_fast=16.0, beta_slow=2.0)), NEW),
    "gpt_oss": ("gpt_oss", dict(FAR, head_dim=16, num_local_experts=6, num_experts_per_tok=3, sliding_window=7,
                                rope_scaling=dict(YARN, beta_fast=16.0, beta_slow=2.0, truncate=False)), "4.55"),
    "gpt_oss_plain": ("gpt_oss", dict(BASE, num_local_experts=4, num_experts_per_tok=2, head_dim=8, rope_scaling=None), "4.55"),
    "mamba_untied": ("mamba", dict(MAMBA, time_step_rank=5, conv_kernel=3, intermediate_size=48, expand=1.5, tie_word_embeddings=False), NEW),
    "mamba2": ("mamba2", dict(MAMBA, head_dim=16, num_heads=4, n_groups=2, chunk_size=16), NEW),
    "mamba2_plain": ("mamba2", dict(MAMBA, head_dim=8, num_heads=8, n_groups=1, conv_kernel=2), NEW),
    "xlstm": ("xlstm", XLSTM, "4.56"),
    "xlstm_wide": ("xlstm", dict(XLSTM, num_heads=2, qk_dim_factor=0.75, v_dim_factor=1.5, ffn_proj_factor=1.3, gate_soft_cap=2.0,
                                 ffn_round_up_to_multiple_of=5, output_logit_soft_cap=4.0, norm_eps=1e-3, eps=1e-2), "4.56"),
    "rwkv7": ("rwkv7", RWKV7),
    "rwkv7_wide": ("rwkv7", dict(RWKV7, head_dim=16, intermediate_size=40, norm_eps=1e-2)),
    "phi": ("phi", dict(BASE, partial_rotary_factor=0.5)),
    "phi_mha": ("phi", dict(BASE, num_key_value_heads=4, partial_rotary_factor=1.0, hidden_act="relu"), NEW),
    "gemma2_uncapped": ("gemma2", dict(BASE, head_dim=16, final_logit_softcapping=None, attn_logit_softcapping=None), NEW),
}
# The key of the greatest number of positions.
LIMITS = dict(whisper="max_target_positions", gpt2="n_positions", gptj="n_positions", mamba=None, mamba2=None, xlstm=None, rwkv7=None, recurrent_gemma=None, bloom=None, vit=None, mobilenet_v2=None, efficientnet=None, clip=None, t5=None)
IDS = [(7 * i * i + 3 * i + 5) % 272 for i in range(40)]   # beyond the 16 positions of the original contexts
COUNT = 12
# Of models with windows, whose caches are rings of 512 positions: a prompt that passes around them three times, in calls of 256.
LONG = [(7 * i * i + 3 * i + i // 5) % 272 for i in range(1600)]
WINDOWED = "mistral_window", "gemma2", "gemma3", "gpt_oss", "llama4", "phi3_window", "qwen2_window", "mixtral_window", "recurrent_gemma"
IMAGES = "vit", "mobilenet_v2", "efficientnet"
ENCODERS = "bert", "clip", *IMAGES
PAIRS = "t5", "bart", "whisper"           # encoder-decoder models
SOURCES, TARGETS = (IDS[:11], IDS[11:25]), (IDS[25:37], IDS[3:10])      # of two documents


PROGRAM = """import "{imported}/imported.lm": Imported
data D {{ source s = batches("rows.safetensors") }}
recipe R {{
  model = Imported; data = D; batch = {batch} tokens; run = 1 steps; optimizer = sgd(lr = 0); precision {{ compute = f32 }}
}}
"""
# Of BERT, which hides tokens by random numbers: here those of weight 1 are hidden in `tok` already.
HIDDEN = """  loss(bt: Batch[b, t], label: int[b, t]) -> (f32, f32) {
    return (sum(xent(encode(bt.tok, bt.pos, bt.seg), label) * bt.w), sum(bt.w))
  }
"""


@contextlib.contextmanager
def edited(path):
    """the file of BERT, with that loss"""
    text = open(path).read() if path else ""
    if path:
        open(path, "w").write(re.sub(r"  loss\(.*?\n  }\n", HIDDEN, text, flags=re.S))
    yield
    if path:
        open(path, "w").write(text)


def row(tok, after, w):
    tok, after, w = (np.array(x, t)[None, None] for x, t in ((tok, "<i4"), (after, "<i4"), (w, "<f4")))
    z = np.zeros(tok.shape, "<i4")
    return dict(tok=tok, pos=z + np.arange(tok.shape[2], dtype="<i4"), seg=z, next=after, w=w)


def images(config):
    n = config["image_size"]
    # With these seeds no argument of a relu6 of MobileNet is within 7e-6 of 0 or 6, where its derivative jumps.
    draw = np.random.default_rng(8 if n == 64 else 24)
    rows = 3 if "patch_size" in config else 8     # statistics of more elements
    image = draw.normal(size=(rows, config.get("num_channels", 3), n, n)).astype("<f4")
    label = draw.integers(0, len(config.get("id2label", "01")), rows).astype("<i4")
    z = np.zeros((1, rows, 1), "<i4")
    columns = dict(tok=z, pos=z, seg=z, next=z, w=z.astype("<f4"), image=image[None], label=label[None])
    return columns, dict(pixel_values=image, labels=label)


def captions(config):
    """three documents, each alone in a row, which ends with the greatest token, and their images"""
    vision = config["vision_config"]
    documents = [IDS[:5] + [271], IDS[7:14] + [271], IDS[20:23] + [271]]
    tok, pos, seg = (np.stack(x)[None] for x in zip(*(joined([x], 8) for x in documents)))
    size = vision.get("image_size", 224)
    pixels = np.random.default_rng(7).normal(size=(3, vision.get("num_channels", 3), size, size)).astype("<f4")
    ours = dict(tok=tok, pos=pos, seg=seg, next=tok * 0, w=(seg >= 0).astype("<f4"), pixels=pixels[None])
    return ours, dict(pixel_values=pixels, input_ids=padded(documents, 0))


def padded(lists, fill):
    most = max(map(len, lists))
    return [list(x) + [fill] * (most - len(x)) for x in lists]


def joined(documents, size):
    """a row of documents, and the position and the document of each token; padding at the end"""
    ids, pos, seg = (np.full(size, fill, "<i4") for fill in (0, 0, -1))
    at = 0
    for i, x in enumerate(documents):
        here = slice(at, at + len(x))
        ids[here], pos[here], seg[here], at = x, np.arange(len(x)), i, at + len(x)
    return ids, pos, seg


def pairs():
    """two documents in one row here, and as the rows of a batch there"""
    inputs, after = [x[:-1] for x in TARGETS], [x[1:] for x in TARGETS]
    (tok, pos, seg), (source, source_pos, source_seg) = joined(inputs, 20), joined(SOURCES, 28)
    ours = dict(tok=tok, pos=pos, seg=seg, next=joined(after, 20)[0], source=source, source_pos=source_pos, source_seg=source_seg)
    ours = {n: x[None, None] for n, x in ours.items()} | dict(w=(seg >= 0).astype("<f4")[None, None])
    return ours, dict(input_ids=padded(SOURCES, 0), attention_mask=padded([[1] * len(x) for x in SOURCES], 0),
                      decoder_input_ids=padded(inputs, 0), labels=padded(after, -100))


def sounds(config):
    """two documents, each alone in a row, with frames"""
    frames = np.random.default_rng(6).normal(size=(2, config["num_mel_bins"], 2 * config["max_source_positions"])).astype("<f4")
    ours, theirs = pairs()
    rows = [[joined([x], 14) for x in lists] for lists in ([x[:-1] for x in TARGETS], [x[1:] for x in TARGETS])]
    tok, pos, seg = (np.stack([row[k] for row in rows[0]])[None] for k in range(3))
    after = np.stack([row[0] for row in rows[1]])[None]
    ours = dict(tok=tok, pos=pos, seg=seg, next=after, w=(seg >= 0).astype("<f4"), frames=frames[None])
    return ours, dict(input_features=frames, decoder_input_ids=theirs["decoder_input_ids"], labels=theirs["labels"])


def inputs_of(kind, config):
    """the batch here, and the inputs of the model there"""
    if kind in IMAGES:
        return images(config)
    if kind == "whisper":
        return sounds(config)
    if kind == "clip":
        return captions(config)
    if kind in PAIRS:
        return pairs()
    if kind != "bert":
        return row(IDS, IDS[1:] + [0], [1] * (len(IDS) - 1) + [0]), dict(input_ids=[IDS], labels=[IDS[1:] + [-100]])
    hidden = np.arange(len(IDS)) % 3 == 1
    shown = np.where(hidden, 103, IDS)
    label = np.array(IDS, "<i4")[None, None]
    return row(shown, IDS, hidden) | dict(label=label), dict(input_ids=[shown], labels=[np.where(hidden, IDS, -100)])


def difference(a, b):
    check(a.shape == b.shape, f"{a.shape} and {b.shape}")
    return float(np.abs(a - b).max() / np.abs(b).max())


def theirs_of(run, folder):
    """loss, logits and gradients of inputs.npz, in float64"""
    side("grads", folder, run.path("inputs.npz"), run.path("grads.npz"))
    return dict(np.load(run.path("grads.npz")))


def spread_of(run, folder):
    """how far rounding to f32 moves each gradient"""
    side("spread", folder, run.path("inputs.npz"), run.path("spread.npz"), "5")
    return dict(np.load(run.path("spread.npz")))


def allowed(norm, spread, largest):
    """the error of a gradient of that norm: 3e-5 of it, and what rounding in f32 explains, which is more where large terms cancel. If no
    digit is left, as of a bias in front of a normalization, whose gradient is 0, errors in common of all terms of the sum are left too.
    A gradient of 0 beside the `largest` one has a few roundings of that, as an operation that PyTorch does as a whole rounds nothing inside"""
    bound = 3e-5 * norm + (20 if norm < spread else 3) * spread
    return max(bound, 2**-22 * largest) if norm < 1e-12 * largest else bound


def same_gradients(run, folder, own, exact):
    """each gradient by itself, however small beside the others"""
    norm = {name: np.linalg.norm(x) for name, x in exact.items()}
    error = {name: np.linalg.norm(own[name].astype("f8") - x) for name, x in exact.items()}
    spread = dict.fromkeys(exact, 0.0)
    if any(error[name] > 3e-5 * norm[name] for name in exact):
        spread = spread_of(run, folder)
    largest = max(norm.values())
    bound = {name: allowed(norm[name], float(spread[name]), largest) for name in exact}
    for name in exact:
        within(f"{name}: error ({error[name]:.2g} of {norm[name]:.2g}) / bound", error[name] / bound[name] if error[name] else 0, 1)
    # A relative error of 1e-4 in the smallest tensor of which f32 leaves four digits, alone, is found.
    sharp = [name for name in exact if bound[name] < 9e-5 * norm[name]]
    if len(sharp) <= 0.3 * len(exact):
        raise AssertionError(f"f32 leaves four digits of {len(sharp)} tensors of {len(exact)} only")
    least = min(sharp, key=norm.get)
    check(np.linalg.norm(1.0001 * own[least].astype("f8") - exact[least]) > bound[least], f"a planted error in {least}")


def compared(run, kind, imported, theirs):
    """logits, loss and gradients; returns the logits of transformers"""
    ours, given = inputs_of(kind, json.load(open(f"{theirs}/config.json")))
    save(run.path("rows.safetensors"), ours)
    np.savez(run.path("inputs.npz"), **{n: np.array(x) for n, x in given.items()})
    truth = theirs_of(run, theirs)
    file = run.write("rows.lm", PROGRAM.format(imported=imported, batch=ours["tok"].size))
    with edited(f"{imported}/program/bert.lm" if kind == "bert" else None):
        found = run.trace(file, "--names", "hf", "--values", "loss,grads,logits")
    z, exact = found["logits"].astype("f8"), truth["logits"]
    if kind in PAIRS:
        known = ours["seg"].reshape(-1) >= 0
        z, exact = z.reshape(known.size, -1)[known], exact[np.array(given["labels"]) >= 0]
    within("our logits", difference(z.reshape(exact.shape), exact), 1e-5)
    within("loss", abs(float(found["loss"][0]) / float(truth["loss"]) - 1), 2e-6)
    exact, own = {n: x for n, x in truth.items() if n.startswith("grad.")}, {}
    for name, x in exact.items():
        own[name] = found.get(name, found.get(name.replace("grad.transformer.", "grad.")))
        check(own[name] is not None, f"no {name}")
        own[name] = own[name].reshape(x.shape)
    same_gradients(run, theirs, own, exact)
    return truth["logits"]


def far(run, imported, theirs):
    """the greedy continuation of a long prompt"""
    ids = ",".join(map(str, LONG))
    ours = run("generate", imported, "--prompt-ids", ids, "--ids", "-n", COUNT, "--temperature", 0, "--set", "precision.compute=f32")
    reference = json.loads(side("whole", theirs, json.dumps(LONG), str(COUNT))[1])
    check(list(map(int, ours.split())) == reference, f"greedy, far: {ours} and {reference}")


def case(run, kind, config, least="0.0"):
    theirs, imported, again = run.path("theirs"), run.path("imported"), run.path("again")
    if side("make", kind, theirs, json.dumps(config), may=UNKNOWN, least=least)[0] == UNKNOWN:
        raise Skip(f"this transformers has no {kind}, or not this variation of it")
    option = "run" if kind in ENCODERS else "generate", {"t5": " --source-ids 1,2,3", "bart": " --source-ids 1,2,3", "whisper": " --columns FILE"}.get(kind, "")
    out = run("import", "hf", theirs, "-o", imported)
    check(re.search(f"next: lmc {option[0]} \\S+{option[1]} ?(--prompt-ids|--ids|\n)", out), out)
    truth = compared(run, kind, imported, theirs)
    if kind not in ENCODERS:
        text, ids = ",".join(map(str, IDS)), ("--prompt-ids",)
        if kind in PAIRS:
            ids = ("--source-ids",)   # the prompt is decoder_start_token_id of config.json
        if kind == "whisper":
            save(run.path("sound.safetensors"), dict(frames=np.load(run.path("inputs.npz"))["input_features"][:1]))
            ids, text = ("--columns",), run.path("sound.safetensors")
        ours = run("generate", imported, *ids, text, "--ids", "-n", COUNT, "--temperature", 0,
                   "--set", "precision.compute=f32").split()
        given = run.path("inputs.npz") if kind == "whisper" else IDS
        reference = json.loads(side("greedy", theirs, json.dumps(given), str(COUNT))[1])
        check(list(map(int, ours)) == reference, f"greedy: {ours} and {reference}")
    run("export", imported, "-o", again)
    within("their logits of the export", difference(theirs_of(run, again)["logits"], truth), 1e-6)
    limit = LIMITS.get(kind, "max_position_embeddings")
    check(not limit or json.load(open(f"{again}/config.json"))[limit] in (64, 2048), "the limit of positions is kept")
    a, b = load(f"{theirs}/model.safetensors"), load(f"{again}/model.safetensors")
    for name in b:   # with or without the prefix of the inner model
        check((a.get(name, a.get(f"transformer.{name}")) == b[name]).all(), name)


TRAIN = """import "imported/imported.lm": Imported
data D {{ source s = text("text.txt"); pack best_fit(seq = 32 tokens) }}
recipe R {{
  model = Imported; data = D; seed = 1; run = 20 steps; batch = 128 tokens; optimizer = adamw(lr = 3e-3)
  clip = global_norm(max = 1.0); precision {{ compute = f32 }}
}}
"""


def tune_pairs(run):
    """with a tokenizer, imported.lm trains on pairs of texts, and its start token is that of config.json"""
    run.write("text.txt", "the cat sat on the mat and the dog lay on the log. " * 60)
    run("tokenizer", "train", "-o", run.path("theirs/tokenizer.json"), "--vocab", 272, run.path("text.txt"))
    out = run("import", "hf", run.path("theirs"), "-o", run.path("pairs"))
    check(out.endswith("--source '...'\n"), out)
    check('seq2seq("pairs.jsonl", start = "<|endoftext|>")' in open(run.path("pairs/imported.lm")).read(), "token 0 of the tokenizer")
    run.write("pairs/pairs.jsonl", '{"source": "the cat", "target": "the dog"}\n' * 200)
    run("run", run.path("pairs/imported.lm"), "--steps", 1, "-q")
    for folder in "pairs", "pairs/tuned":
        run("generate", run.path(folder), "--source", "the cat", "-n", 2)


def train(run, kind):
    """20 steps from the imported weights, of a text or of the rows with further columns: the loss falls"""
    text = TRAIN.format()
    if kind in ("clip", *IMAGES, *PAIRS):
        rows = {n: np.repeat(x, 20, 0) for n, x in load(run.path("rows.safetensors")).items()}
        save(run.path("steps.safetensors"), rows)
        text = re.sub("source s = .*;.*}", 'source s = batches("steps.safetensors") }', text).replace("= 128", f"= {rows['tok'][0].size}")
    run.write("text.txt", "".join(f"the {i % 7} of {i % 5} and {i % 3}\n" for i in range(400)))
    loss = run.trace(run.write("train.lm", text), "--values", "loss")["loss"]
    check(np.isfinite(loss).all() and loss[-3:].mean() < 0.85 * loss[0], f"losses: {loss}")


def cases():
    def one(name):
        def test(run):
            if not run.nightly and list(CASES).index(name) > list(CASES).index("nightly"):
                raise Skip("for --nightly")
            case(run, *CASES[name])
            if name in WINDOWED:
                far(run, run.path("imported"), run.path("theirs"))
            train(run, CASES[name][0])
            if name == "t5":
                tune_pairs(run)
        return f"zoo.{name}", test

    return [one(name) for name in CASES if CASES[name]]
