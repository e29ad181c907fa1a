"""Eagle3Config: shape of an EAGLE-3 head, and its ``config.json`` in the common layout; imports no torch.

Layout from the public documentation and code of EAGLE, SpecForge, SGLang and vLLM; untested against a live engine. The
three target layers are written in both spellings in use: ``eagle_config.eagle_aux_hidden_state_layer_ids`` counts
layers whose *output* is read, from 0 (SGLang, SpecForge), the top-level key of that name the layers whose *input* is
read (vLLM, speculators), one more each. Of a file that has both, the first counts.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from specdec.checks import flag, number, positive_int
from specdec.errors import CheckpointError, ConfigError, UnsupportedError

NUM_LAYERS_READ = 3
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
ARCHITECTURE = "LlamaForCausalLMEagle3"
WHERE = "config.json of the EAGLE-3 head"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "draft_vocab_size",
    "target_hidden_size",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Config:
    """Shape of a head. Raises ConfigError for values out of range.

    vocab_size            of the target
    draft_vocab_size      tokens that the head can predict
    hidden_size           width of the head, which is that of the target's embedding
    target_hidden_size    width of what it reads of each layer; a target with S residual streams gives S * hidden_size
                          (flattened) or hidden_size (their mean)
    hidden_layers         the three layers whose output it reads, from 0
    norm_before_residual  whether the residual of the attention is the normalised state
    """

    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    hidden_layers: tuple[int, ...]
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    norm_before_residual: bool = False

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name in SIZES:
                positive_int(name, value, where=WHERE)
        number("rms_norm_eps", self.rms_norm_eps, low=0.0, where=WHERE)
        number("rope_theta", self.rope_theta, low=1.0, where=WHERE)
        flag("norm_before_residual", self.norm_before_residual, where=WHERE)
        if self.draft_vocab_size > self.vocab_size:
            raise ConfigError(
                f"draft_vocab_size must be at most vocab_size={self.vocab_size}, got {self.draft_vocab_size} "
                f"(conf: {WHERE})"
            )
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ConfigError(
                f"heads must share keys evenly and have an even width, got {self.num_attention_heads} heads, "
                f"{self.num_key_value_heads} of keys, width {self.head_dim} (conf: {WHERE})"
            )
        if len(self.hidden_layers) != NUM_LAYERS_READ or min(self.hidden_layers) < 0:
            raise ConfigError(
                f"an EAGLE-3 head reads {NUM_LAYERS_READ} target layers, numbered from 0, got "
                f"{list(self.hidden_layers)} (conf: {WHERE}: {LAYER_IDS})"
            )

    @property
    def is_reduced(self) -> bool:
        """Whether the head predicts a part of the target's vocabulary."""
        return self.draft_vocab_size < self.vocab_size

    def to_dict(self) -> dict[str, Any]:
        """The common ``config.json``."""
        values = {name: value for name, value in asdict(self).items() if name != "hidden_layers"}
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_scaling": None,
            "tie_word_embeddings": False,
            **values,
            LAYER_IDS: [layer + 1 for layer in self.hidden_layers],
            "eagle_config": {LAYER_IDS: list(self.hidden_layers), "use_aux_hidden_state": True},
        }


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Low, middle and high layer as the common engines choose them; raises ConfigError for fewer than 3 layers.

    Below 6 layers their choice would leave the model: the first, the middle and the last layer then.
    """
    if num_layers < NUM_LAYERS_READ:
        raise ConfigError(
            f"an EAGLE-3 head reads {NUM_LAYERS_READ} layers, and the target has {num_layers}: name them, one may be "
            f"read twice (conf: trainer.layers)"
        )
    if num_layers < 2 * NUM_LAYERS_READ:
        return 0, num_layers // 2, num_layers - 1
    return 1, num_layers // 2 - 1, num_layers - 4


def config_from_dict(raw: Mapping[str, Any], *, num_target_layers: int) -> Eagle3Config:
    """Read ``config.json``, flat or in the nested form of speculators.

    Raises CheckpointError for a missing key, UnsupportedError for what this head does not compute.
    """
    flat = {**raw, **(raw.get("transformer_layer_config") or {})}
    _refuse(flat)
    try:
        heads, hidden = (positive_int(key, flat[key], where=WHERE) for key in ("num_attention_heads", "hidden_size"))
        return Eagle3Config(
            vocab_size=flat["vocab_size"],
            draft_vocab_size=flat.get("draft_vocab_size") or flat["vocab_size"],
            hidden_size=hidden,
            target_hidden_size=flat.get("target_hidden_size") or hidden,
            intermediate_size=flat["intermediate_size"],
            num_attention_heads=heads,
            num_key_value_heads=flat.get("num_key_value_heads") or heads,
            head_dim=flat.get("head_dim") or hidden // heads,
            max_position_embeddings=flat.get("max_position_embeddings") or 2048,
            hidden_layers=_layers(raw, num_target_layers),
            rms_norm_eps=flat.get("rms_norm_eps") or 1e-5,
            rope_theta=_rope_theta(flat),
            norm_before_residual=bool(flat.get("norm_before_residual")),
        )
    except KeyError as missing:
        raise CheckpointError(f"{WHERE} has no {missing.args[0]}; copy it again") from None


def _rope_theta(flat: Mapping[str, Any]) -> float:
    parameters = flat.get("rope_parameters") or {}
    return float(parameters.get("rope_theta") or flat.get("rope_theta") or 10000.0)


def _layers(raw: Mapping[str, Any], num_target_layers: int) -> tuple[int, ...]:
    nested, inputs = (raw.get("eagle_config") or {}).get(LAYER_IDS), raw.get(LAYER_IDS)
    for named in (nested, inputs):
        if named and not (isinstance(named, list) and all(isinstance(layer, int) for layer in named)):
            raise ConfigError(f"{LAYER_IDS} must be a list of {NUM_LAYERS_READ} layers, got {named!r} (conf: {WHERE})")
    if nested:
        return tuple(nested)
    return tuple(layer - 1 for layer in inputs) if inputs else default_layers(num_target_layers)


def _refuse(flat: Mapping[str, Any]) -> None:
    scaling = flat.get("rope_scaling") or flat.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    wrong = {
        "num_hidden_layers": flat.get("num_hidden_layers", 1) != 1,
        "attention_bias": bool(flat.get("attention_bias")),
        "mlp_bias": bool(flat.get("mlp_bias")),
        "norm_before_fc": bool(flat.get("norm_before_fc")),
        "hidden_act": flat.get("hidden_act", "silu") != "silu",
        "rope_scaling": kind != "default",
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            got = kind if name == "rope_scaling" else flat[name]
            raise UnsupportedError(
                f"EAGLE-3 heads here have one layer of the Llama type with plain rotary positions and no biases; "
                f"this one says {name}={got!r} ({WHERE})"
            )
