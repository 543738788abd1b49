"""RWKV-7 for transformers, which does not have it: the equations of Peng et al. 2025, "RWKV-7 Goose with Expressive Dynamic State Evolution", one
position after the other. Names of parameters and keys of config.json are those of flash-linear-attention, which needs a GPU."""
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class Config(PretrainedConfig):
    model_type = "rwkv7"
    KEYS = dict(attn_mode="chunk", hidden_size=2048, hidden_ratio=4.0, intermediate_size=None, num_hidden_layers=24, head_dim=64, num_heads=None,
                decay_low_rank_dim=64, gate_low_rank_dim=128, a_low_rank_dim=64, v_low_rank_dim=16, hidden_act="sqrelu", max_position_embeddings=2048,
                norm_first=True, norm_bias=True, norm_eps=1e-5, attn=None, fuse_norm=True, fuse_cross_entropy=True, fuse_linear_cross_entropy=False,
                use_l2warp=True, vocab_size=32000, value_dim=None, use_cache=False)

    def __init__(self, tie_word_embeddings=False, **given):
        for key, value in self.KEYS.items():
            setattr(self, key, given.pop(key, value))
        self.num_heads = self.num_heads or self.hidden_size // self.head_dim
        self.value_dim = self.value_dim or [self.hidden_size] * self.num_hidden_layers
        super().__init__(tie_word_embeddings=tie_word_embeddings, **given)


class Rank(nn.Module):
    """a matrix of low rank"""

    def __init__(self, d, rank, f=nn.Identity, bias=True):
        super().__init__()
        self.lora = nn.Sequential(nn.Linear(d, rank, bias=False), f(), nn.Linear(rank, d, bias=bias))

    def forward(self, x):
        return self.lora(x)


def shifted(x):
    return F.pad(x, (0, 0, 1, -1)) - x


class TimeMixing(nn.Module):
    def __init__(self, c, layer):
        super().__init__()
        d, h = c.hidden_size, c.hidden_size // c.head_dim
        for name in "rwkvag":
            setattr(self, f"x_{name}", nn.Parameter(torch.zeros(1, 1, d)))
        self.k_k, self.k_a, self.r_k = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(h, c.head_dim))
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.w_lora, self.a_lora = Rank(d, c.decay_low_rank_dim, nn.Tanh), Rank(d, c.a_low_rank_dim)
        self.g_lora = Rank(d, c.gate_low_rank_dim, nn.Sigmoid, bias=False)
        self.v_lora = Rank(d, c.v_low_rank_dim) if layer else None
        self.g_norm = nn.GroupNorm(h, d, eps=c.head_dim * c.norm_eps)

    def forward(self, x, first):
        b, t, d = x.shape
        heads = lambda y: y.view(b, t, *self.r_k.shape)
        r, w, k, v, a, g = (x + shifted(x) * getattr(self, f"x_{name}") for name in "rwkvag")
        value = self.v_proj(v)
        if self.v_lora:
            value = value + (first - value) * torch.sigmoid(self.v_lora(v))
        else:
            first = value
        decay = torch.exp(-(torch.e ** -0.5) * torch.sigmoid(self.w_lora(w)))
        rate, k = torch.sigmoid(self.a_lora(a)), self.k_proj(k)
        lost = F.normalize(heads(k * self.k_k), dim=-1)
        r, decay, k, v, rate = map(heads, (self.r_proj(r), decay, k * (1 + (rate - 1) * self.k_a), value, rate))
        state = x.new_zeros(b, *self.r_k.shape, r.shape[-1])          # of values and keys
        out = []
        for i in range(t):
            change = torch.diag_embed(decay[:, i]) - lost[:, i].unsqueeze(-1) @ (rate * lost)[:, i].unsqueeze(-2)
            state = state @ change + v[:, i].unsqueeze(-1) @ k[:, i].unsqueeze(-2)
            out.append((state @ r[:, i].unsqueeze(-1)).reshape(b, d))
        y = self.g_norm(torch.stack(out, 1).view(b * t, d)).view(b, t, d)
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * v).view(b, t, d)
        return self.o_proj(y * self.g_lora(g)), first


class ChannelMixing(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(c.hidden_size))
        size = c.intermediate_size or 32 * -(-int(c.hidden_size * c.hidden_ratio) // 32)
        self.key, self.value = nn.Linear(c.hidden_size, size, bias=False), nn.Linear(size, c.hidden_size, bias=False)

    def forward(self, x):
        return self.value(torch.relu(self.key(x + shifted(x) * self.x_k)) ** 2)


class Layer(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        norm = lambda: nn.LayerNorm(c.hidden_size, eps=c.norm_eps)
        self.pre_norm = nn.Identity() if i else norm()
        self.attn_norm, self.attn, self.ffn_norm, self.ffn = norm(), TimeMixing(c, i), norm(), ChannelMixing(c)

    def forward(self, x, first):
        x = self.pre_norm(x)
        y, first = self.attn(self.attn_norm(x), first)
        return x + y + self.ffn(self.ffn_norm(x + y)), first


class RWKV7ForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = Config

    def __init__(self, c):
        super().__init__(c)
        self.model = nn.Module()
        self.model.embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(Layer(c, i) for i in range(c.num_hidden_layers))
        self.model.norm = nn.LayerNorm(c.hidden_size, eps=c.norm_eps)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        self.post_init()

    def _init_weights(self, module):
        pass

    def prepare_inputs_for_generation(self, input_ids, **_):
        return dict(input_ids=input_ids)

    def forward(self, input_ids, return_dict=True, **_):
        x, first = self.model.embeddings(input_ids), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x)))


def register():
    AutoConfig.register("rwkv7", Config)
    AutoModelForCausalLM.register(Config, RWKV7ForCausalLM)
