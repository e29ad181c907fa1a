"""Reading ``config.json``: either spelling of a DeepSeek-V4 configuration -> fields of DeepseekV4Config.

It knows the two spellings and what of them is unsupported; limits of the values themselves are the config's.
"""

from collections.abc import Mapping

from specdec.checks import positive_int
from specdec.errors import ConfigError

WHERE = "config.json"
MODEL_TYPE = "deepseek_v4"

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_OPTIONAL = (
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "num_nextn_predict_layers",
    "norm_topk_prob",
    "routed_scaling_factor",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "max_position_embeddings",
)
# Settings of which the mathematics knows one value only; absent means that value.
_FIXED = {
    "model_type": MODEL_TYPE,
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
}
_WINDOW, _CSA, _HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_DEFAULT_RATES = {_CSA: 4, _HCA: 128}


def read_fields(raw: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object] | None]:
    """Fields of DeepseekV4Config but ``yarn``, and the fields of YarnScaling or None; ``raw`` is not modified.

    Raises ConfigError for a DSpark configuration, a missing key or an unsupported setting.
    """
    _refuse(raw)
    missing = [key for key in _REQUIRED if raw.get(key) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} missing (conf: {WHERE})")
    for key in ("num_hidden_layers", "head_dim"):
        positive_int(key, raw[key], where=WHERE)
    fields = {key: raw[key] for key in (*_REQUIRED, *_OPTIONAL) if raw.get(key) is not None}
    fields["bos_token_id"] = raw.get("bos_token_id", 0)
    fields["eos_token_ids"] = _eos(raw.get("eos_token_id", 1))
    fields["swiglu_limit"] = raw.get("swiglu_limit") or 0.0
    fields["compress_ratios"] = _ratios(raw)
    fields["num_hash_layers"] = _num_hash_layers(raw)
    main, compress = _rope_sections(raw)
    fields["qk_rope_head_dim"] = _rope_dim(raw, compress)
    for key, section in (("rope_theta", main), ("compress_rope_theta", compress)):
        if section.get("rope_theta") is not None:
            fields[key] = section["rope_theta"]
    return fields, _scaling(compress, raw)


def _refuse(raw: Mapping[str, object]) -> None:
    marks = sorted(key for key in raw if key.startswith("dspark_"))
    if marks:
        raise ConfigError(
            f"this is a DSpark configuration (it has {marks[0]}), whose drafter is not NextN and is not supported; "
            f"use a release without dspark_* keys (conf: {WHERE})"
        )
    for key, allowed in _FIXED.items():
        if raw.get(key, allowed) != allowed:
            raise ConfigError(f"{key} must be {allowed!r}, got {raw[key]!r} (conf: {WHERE})")


def _eos(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _list(raw: Mapping[str, object], key: str) -> tuple[object, ...]:
    if not isinstance(raw[key], list | tuple):
        raise ConfigError(f"{key} must be a list with one entry per layer, got {raw[key]!r} (conf: {WHERE})")
    return tuple(raw[key])


def _section(raw: Mapping[str, object], key: str) -> Mapping[str, object]:
    """A nested object; absent or null: empty."""
    value = raw.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be an object, got {value!r} (conf: {WHERE})")
    return value or {}


def _num_nextn(raw: Mapping[str, object]) -> int:
    value = raw.get("num_nextn_predict_layers", 1)
    return value if isinstance(value, int) else 1


def _ratios(raw: Mapping[str, object]) -> tuple[int, ...]:
    """One ratio per target and NextN layer: a longer list is cut, a list of target layers only is extended."""
    listed = _listed_ratios(raw)
    num_target = raw["num_hidden_layers"]
    if len(listed) < num_target:
        raise ConfigError(
            f"compress_ratios (or layer_types) must name at least num_hidden_layers={num_target} layers, "
            f"got {len(listed)} (conf: {WHERE})"
        )
    nextn = listed[num_target : num_target + _num_nextn(raw)]
    return listed[:num_target] + nextn + (0,) * (_num_nextn(raw) - len(nextn))


def _listed_ratios(raw: Mapping[str, object]) -> tuple[int, ...]:
    if raw.get("layer_types") is None:
        if raw.get("compress_ratios") is None:
            raise ConfigError(f"compress_ratios (or layer_types) missing (conf: {WHERE})")
        return _list(raw, "compress_ratios")
    rates = {_WINDOW: 0, **_DEFAULT_RATES, **_section(raw, "compress_rates")}
    kinds = _list(raw, "layer_types")
    unknown = sorted(set(kinds) - {_WINDOW, _CSA, _HCA})
    if unknown:
        raise ConfigError(f"layer_types must hold {_WINDOW}, {_CSA} or {_HCA}, got {unknown[0]!r} (conf: {WHERE})")
    for kind in (_CSA, _HCA):
        if rates[kind] != _DEFAULT_RATES[kind]:
            raise ConfigError(
                f"Unsupported compress_ratio={rates[kind]}: compress_rates[{kind}] must be {_DEFAULT_RATES[kind]} "
                f"(conf: {WHERE})"
            )
    return tuple(rates[kind] for kind in kinds)


def _num_hash_layers(raw: Mapping[str, object]) -> int:
    if raw.get("mlp_layer_types") is None:
        return raw.get("num_hash_layers") or 0
    kinds = _list(raw, "mlp_layer_types")
    leading = next((i for i, kind in enumerate(kinds) if kind != "hash_moe"), len(kinds))
    if any(kind != "moe" for kind in kinds[leading:]):
        raise ConfigError(
            f"mlp_layer_types must be hash_moe layers followed by moe layers, got {kinds} (conf: {WHERE})"
        )
    return leading


def _rope_sections(raw: Mapping[str, object]) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The rope settings of window-only layers and of compressing layers."""
    nested = _section(raw, "rope_parameters")
    if isinstance(nested.get("main"), Mapping) and isinstance(nested.get("compress"), Mapping):
        return nested["main"], nested["compress"]
    flat = {**nested, **_section(raw, "rope_scaling")}
    return {}, {key: value for key, value in flat.items() if key != "rope_theta"}


def _rope_dim(raw: Mapping[str, object], compress: Mapping[str, object]) -> int:
    if raw.get("qk_rope_head_dim") is not None:
        return raw["qk_rope_head_dim"]
    fraction = raw.get("partial_rotary_factor") or compress.get("partial_rotary_factor")
    if fraction is None:
        raise ConfigError(f"qk_rope_head_dim (or partial_rotary_factor) missing (conf: {WHERE})")
    return int(raw["head_dim"] * fraction)


def _scaling(compress: Mapping[str, object], raw: Mapping[str, object]) -> dict[str, object] | None:
    kind = compress.get("rope_type") or compress.get("type") or ("yarn" if "factor" in compress else "default")
    if kind == "default":
        return None
    magnitude = compress.get("attention_factor")
    if kind != "yarn" or magnitude not in (None, 1.0) or compress.get("truncate", True) is not True:
        raise ConfigError(
            f"rope_scaling must be of type yarn, truncated, with attention_factor 1, got {dict(compress)} "
            f"(conf: {WHERE})"
        )
    if compress.get("factor") is None:
        raise ConfigError(f"rope_scaling of type yarn needs factor, got {dict(compress)} (conf: {WHERE})")
    original = compress.get("original_max_position_embeddings") or raw.get("max_position_embeddings")
    return {
        "factor": compress["factor"],
        "beta_fast": compress.get("beta_fast") or 32.0,
        "beta_slow": compress.get("beta_slow") or 1.0,
        "original_positions": original if original is not None else 65536,
    }
