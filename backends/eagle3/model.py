"""Eagle3Model: the EAGLE-3 head under the parameter names of the common layout; knows no cache.

Slot i holds position i and reads the fused states of position i with the embedding of token i + 1; its logits predict
token i + 2. In further steps its own states (before the final norm) stand for the fused ones.
Source: Li et al., EAGLE-3 (2025), arXiv:2503.01840.

Letters besides those of ``specdec.api``: **H** query heads, **G** heads of keys, **d** width of a head, **X** tokens of
the draft vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from backends.eagle3.config import NUM_LAYERS_READ, Eagle3Config
from backends.growing_lengths import growing_lengths

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(queries [..., H, d], keys [..., G, d], values [..., G, d]) of the tokens at hand -> outputs [..., H, d]."""


class SelfAttention(nn.Module):
    """Projections of the concatenated embedding and state; who attends to whom is injected."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend) -> torch.Tensor:
        """``x`` [..., 2D] -> [..., D]; ``cos`` and ``sin`` [..., 1, d]."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = attend(rotated(query, cos, sin), rotated(key, cos, sin), value)
        return self.o_proj(out.flatten(-2))


class Mlp(nn.Module):
    """Gated SiLU."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [..., D] -> [..., D]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Midlayer(nn.Module):
    """The one decoder layer; its attention reads [embedding, state]."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.self_attn = SelfAttention(config)
        self.mlp = Mlp(config)
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)

    def forward(
        self, states: torch.Tensor, embeddings: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Own states [..., D] of states and embeddings [..., D]; ``cos`` and ``sin`` as for ``SelfAttention``."""
        normed = self.hidden_norm(states)
        residual = normed if self.norm_before_residual else states
        x = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        states = residual + self.self_attn(x, cos, sin, attend)
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3Model(nn.Module):
    """Parameters of the head, and the steps that do not depend on a cache.

    embed_tokens  the target's embedding [V, D], or the head's own
    own_embedding whether it belongs to the checkpoint
    d2t           int64 [X]: what is added to a draft id to get the target's
    t2d           bool [V]: whether a target id can be drafted
    """

    def __init__(self, config: Eagle3Config, embed_tokens: nn.Embedding, *, own_embedding: bool = False) -> None:
        super().__init__()
        self.config, self.own_embedding = config, own_embedding
        self.embed_tokens = embed_tokens
        self.fc = nn.Linear(NUM_LAYERS_READ * config.target_hidden_size, config.hidden_size, bias=False)
        self.midlayer = Midlayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.arange(config.vocab_size) < config.draft_vocab_size)

    @property
    def target_ids_X(self) -> torch.Tensor:
        """int64 target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def choose_vocabulary(self, target_ids: torch.Tensor) -> None:
        """Let the head predict these target ids (int64 [X], ascending and distinct)."""
        assert bool((target_ids.diff() > 0).all()), "draft ids follow target ids in order"
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=target_ids.device))
        self.t2d.fill_(False)
        self.t2d[target_ids] = True

    def fuse(self, hidden: torch.Tensor) -> torch.Tensor:
        """States [..., D] of the three layers' states [..., 3 * W]; a target with streams gives S times as many.

        Where the head was made for the width of a single stream, it reads the mean of the streams.
        """
        width = NUM_LAYERS_READ * self.config.target_hidden_size
        if hidden.shape[-1] != width:
            hidden = hidden.unflatten(-1, (NUM_LAYERS_READ, -1, self.config.target_hidden_size)).mean(-2).flatten(-2)
        return self.fc(hidden.to(self.fc.weight.dtype))

    def forward(
        self, states: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Own states [..., D] for the following ``tokens`` int64 [...] at ``positions`` (of the states)."""
        # Made here, in float32: a buffer would be cast with the parameters, and in bf16 turn by other angles.
        half = torch.arange(0, self.config.head_dim, 2, device=positions.device) / self.config.head_dim
        angles = positions[..., None].float() * self.config.rope_theta**-half
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(-2)
        cos, sin = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
        return self.midlayer(states, self.embed_tokens(tokens).to(states.dtype), cos, sin, attend)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [..., X] over the draft vocabulary."""
        return self.lm_head(self.norm(states)).float()

    def target_logits(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [..., V]; -inf for tokens that cannot be drafted."""
        logits = self.logits(states)
        if not self.config.is_reduced:
            return logits
        spread = logits.new_full((*logits.shape[:-1], self.config.vocab_size), float("-inf"))
        spread[..., self.target_ids_X] = logits
        return spread


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions as in Llama: the halves of a head turn against each other."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def masked_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Outputs [B, Q, H, d] of queries [B, Q, H, d] over keys and values [B, W, G, d].

    seen  bool [B, Q, W] (or broadcastable); every query sees at least one key
    """
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill_(~seen, float("-inf"))
    group = query.shape[2] // keys.shape[2]
    if group > 1:
        keys, values = (x.repeat_interleave(group, dim=2) for x in (keys, values))
    query, keys, values = (x.transpose(1, 2) for x in (query, keys, values))
    with growing_lengths():
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=bias[:, None])
    return out.transpose(1, 2)
