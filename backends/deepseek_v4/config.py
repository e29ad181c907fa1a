"""DeepseekV4Config: the architecture of a DeepSeek-V4 model as one frozen value; knows no weights and no caches.

It is read from a ``config.json`` in the spelling of the official checkpoints (``compress_ratios``,
``num_hash_layers``, ``rope_scaling``) or of transformers 5.24 (``layer_types``, ``mlp_layer_types``,
``compress_rates``, nested ``rope_parameters``, ``partial_rotary_factor``); see ``config_json``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from backends.deepseek_v4.config_json import WHERE, read_fields
from specdec.checks import flag, integer, number, positive_int
from specdec.errors import ConfigError

WINDOW_ONLY_RATIO = 0
CSA_RATIO = 4
HCA_RATIO = 128
ALLOWED_RATIOS = (0, 1, CSA_RATIO, HCA_RATIO)

_POSITIVE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "hc_mult",
    "hc_sinkhorn_iters",
    "max_position_embeddings",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnScaling:
    """Static YaRN interpolation of the rotary frequencies; the magnitude factor is always 1.

    factor              how many times the original context was extended
    beta_fast           rotations over the original context above which a frequency is kept
    beta_slow           rotations below which a frequency is interpolated in full
    original_positions  context length before the extension, in tokens
    """

    factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_positions: int = 65536

    def __post_init__(self) -> None:
        number("rope factor", self.factor, low=1.0, where=WHERE)
        positive_int("original_max_position_embeddings", self.original_positions, where=WHERE)
        if not 0 < self.beta_slow <= self.beta_fast:
            raise ConfigError(
                f"rope beta_slow must be above 0 and at most beta_fast, got beta_slow={self.beta_slow}, "
                f"beta_fast={self.beta_fast} (conf: {WHERE})"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeParameters:
    """Rotary frequencies of one kind of layer: base, rotated dimensions, optional interpolation."""

    theta: float
    dim: int
    yarn: YarnScaling | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepseekV4Config:
    """Architecture of one model. Raises ConfigError that names the key, what was got and what is allowed.

    compress_ratios            per layer id, target layers first, then the NextN layer: 0 or 1 window only,
                               4 CSA, 128 HCA
    head_dim                   width of the one shared key/value vector; its last ``qk_rope_head_dim`` dims are rotated
    num_hash_layers            leading layers whose experts are looked up by token id
    swiglu_limit               clamp of expert activations; 0 for none
    yarn                       interpolation of the compressing layers' rotary frequencies
    eos_token_ids              token ids that end a text
    zero_first_nextn_embedding give the NextN layer a zero embedding at position 0 (some engines do; the
                               reference does not)
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    compress_ratios: tuple[int, ...]
    sliding_window: int = 128
    index_n_heads: int = 64
    index_head_dim: int = 128
    index_topk: int = 512
    num_hash_layers: int = 0
    num_nextn_predict_layers: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    yarn: YarnScaling | None = None
    max_position_embeddings: int = 1048576
    bos_token_id: int | None = 0
    eos_token_ids: tuple[int, ...] = (1,)
    zero_first_nextn_embedding: bool = False

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _POSITIVE_FIELDS}
        for name, value in values.items():
            positive_int(name, value, where=WHERE)
        integer("num_hash_layers", self.num_hash_layers, low=0, high=self.num_hidden_layers, where=WHERE)
        integer("num_nextn_predict_layers", self.num_nextn_predict_layers, low=0, high=1, where=WHERE)
        for token in self.eos_token_ids:
            integer("eos_token_id", token, low=0, where=WHERE)
        if self.bos_token_id is not None:
            integer("bos_token_id", self.bos_token_id, low=0, where=WHERE)
        flag("norm_topk_prob", self.norm_topk_prob, where=WHERE)
        flag("zero_first_nextn_embedding", self.zero_first_nextn_embedding, where=WHERE)
        for name, value in (
            ("routed_scaling_factor", self.routed_scaling_factor),
            ("swiglu_limit", self.swiglu_limit),
            ("hc_eps", self.hc_eps),
            ("rms_norm_eps", self.rms_norm_eps),
        ):
            number(name, value, low=0.0, where=WHERE)
        for name, value in (("rope_theta", self.rope_theta), ("compress_rope_theta", self.compress_rope_theta)):
            number(name, value, low=1.0, where=WHERE)
        self._check_shapes()
        self._check_ratios()

    def _check_shapes(self) -> None:
        rope = self.qk_rope_head_dim
        _require(rope % 2 == 0, "qk_rope_head_dim", "even", rope)
        _require(rope <= self.head_dim, "qk_rope_head_dim", f"at most head_dim={self.head_dim}", rope)
        _require(rope <= self.index_head_dim, "index_head_dim", f"at least {rope}", self.index_head_dim)
        heads, groups = self.num_attention_heads, self.o_groups
        _require(heads % groups == 0, "o_groups", f"a divisor of num_attention_heads={heads}", groups)
        experts, chosen = self.n_routed_experts, self.num_experts_per_tok
        _require(chosen <= experts, "num_experts_per_tok", f"at most n_routed_experts={experts}", chosen)

    def _check_ratios(self) -> None:
        for layer, ratio in enumerate(self.compress_ratios):
            if ratio not in ALLOWED_RATIOS:
                raise ConfigError(
                    f"Unsupported compress_ratio={ratio!r} of layer {layer}: compress_ratios entries must be one of "
                    f"{ALLOWED_RATIOS} (conf: {WHERE})"
                )
        num_layers = self.num_hidden_layers + self.num_nextn_predict_layers
        _require(len(self.compress_ratios) == num_layers, "compress_ratios", f"{num_layers} long", self.compress_ratios)
        for layer in self.nextn_layer_ids:
            _require(self.ratio(layer) == 0, "compress_ratios", "0 for the NextN layer", self.compress_ratios[layer])

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> "DeepseekV4Config":
        """Read the content of a ``config.json`` of either spelling; ``raw`` is not modified.

        Raises ConfigError for a missing key, a value that is not supported, or a DSpark checkpoint.
        """
        fields, scaling = read_fields(raw)
        return cls(**fields, yarn=None if scaling is None else YarnScaling(**scaling))

    def ratio(self, layer: int) -> int:
        """Compression ratio of a layer id: 0 (window only), 4 or 128; the NextN layer follows the target's last."""
        ratio = self.compress_ratios[layer]
        return WINDOW_ONLY_RATIO if ratio <= 1 else ratio

    def is_hash_routed(self, layer: int) -> bool:
        """Whether the experts of a layer are looked up by token id."""
        return layer < self.num_hash_layers

    def rope(self, layer: int) -> RopeParameters:
        """Rotary parameters of a layer: the plain base for window-only layers, else the long base with YaRN."""
        if self.ratio(layer) == WINDOW_ONLY_RATIO:
            return self.window_rope
        return self.compress_rope

    @property
    def window_rope(self) -> RopeParameters:
        return RopeParameters(theta=self.rope_theta, dim=self.qk_rope_head_dim)

    @property
    def compress_rope(self) -> RopeParameters:
        return RopeParameters(theta=self.compress_rope_theta, dim=self.qk_rope_head_dim, yarn=self.yarn)

    @property
    def nextn_layer_ids(self) -> tuple[int, ...]:
        return tuple(range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers))

    @property
    def nope_head_dim(self) -> int:
        """Dimensions of a head that are not rotated."""
        return self.head_dim - self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5


def _require(ok: bool, name: str, allowed: str, got: object) -> None:
    if not ok:
        raise ConfigError(f"{name} must be {allowed}, got {got!r} (conf: {WHERE})")
