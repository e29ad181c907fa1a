"""Checkpoint key names: every accepted spelling -> our parameter names, which are the official ones.

Two spellings are accepted: the official one (``layers.0.attn.wq_a.weight``) and that of folders written by
transformers' ``save_pretrained`` (``model.layers.0...``, ``attn.norm`` for ``attn.kv_norm``). Rules are anchored:
a rule applies to a whole key, never to a part of another word.
"""

import re

from specdec.errors import CheckpointError

NEXTN_MARK = re.compile(r"^mtp\.\d+\.e_proj\.")
DSPARK_MARK = re.compile(r"^mtp\.\d+\.(main_proj|main_norm|markov_head|confidence_head)\b")

_WHOLE = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}
_LAYER = re.compile(r"^model\.(layers\.\d+\..+)$")
_KV_NORM = re.compile(r"^(layers\.\d+|mtp\.\d+)\.attn\.norm\.weight$")
_STACKED = re.compile(r"^(.+\.ffn\.experts)\.(w[123])$")
_SHARED = re.compile(r"^mtp\.\d+\.(emb\.tok_emb|head)\.weight$")


def canonical_name(key: str) -> str:
    """The official spelling of a checkpoint key; an unknown key is returned unchanged."""
    if key in _WHOLE:
        return _WHOLE[key]
    layer = _LAYER.match(key)
    name = layer.group(1) if layer else key
    kv_norm = _KV_NORM.match(name)
    return f"{kv_norm.group(1)}.attn.kv_norm.weight" if kv_norm else name


def is_shared_copy(name: str) -> bool:
    """Whether a NextN key repeats the target's embedding or head, which our NextN layer borrows."""
    return _SHARED.match(name) is not None


def sources_of(parameter: str, num_experts: int) -> list[str]:
    """Official keys that fill one parameter: one, or one an expert for a stacked expert weight."""
    stacked = _STACKED.match(parameter)
    if stacked is None:
        return [parameter]
    return [f"{stacked.group(1)}.{e}.{stacked.group(2)}.weight" for e in range(num_experts)]


def scale_name(name: str) -> str | None:
    """Name of the scale that may accompany a weight; None for names that never have one."""
    return name.removesuffix(".weight") + ".scale" if name.endswith(".weight") else None


def refuse_dspark(names: set[str]) -> None:
    """Raise CheckpointError for the DSpark drafter of later releases, whose ``mtp`` tensors are not NextN."""
    marks = sorted(name for name in names if DSPARK_MARK.match(name))
    if marks:
        raise CheckpointError(
            f"this is a DSpark checkpoint (it has {marks[0]}); its drafter is not NextN and is not supported; "
            "use a release whose mtp.0 has e_proj and h_proj, or one without mtp tensors"
        )


def has_nextn(names: set[str]) -> bool:
    """Whether a NextN module is present, recognised by its ``e_proj``."""
    return any(NEXTN_MARK.match(name) for name in names)
