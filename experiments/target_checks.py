"""What a drafter asks of a target that ships, refused before the target is loaded; knows nothing of other targets."""

from collections.abc import Iterator, Mapping
from typing import Any

from specdec.api import DrafterConfig
from specdec.errors import UnsupportedError

DEEPSEEK_V4 = "experiments.deepseek_v4.load"
HF = "experiments.hf.load"
NEXTN = "drafters.nextn.NextnConfig"
# Settings that make a tree, with the value up to which they make a chain.
CHAIN_VALUES = {"branches": 1, "tree_width": 0}


def check_target(config: Mapping[str, Any], drafter: DrafterConfig, *, borrows_draft: bool) -> None:
    """Raise UnsupportedError for a drafter that the target of a configuration cannot serve.

    borrows_draft  whether the drafter, or one that it wraps, drafts with the target's own draft model
    """
    target = config["target"]["_target_"]
    if target == DEEPSEEK_V4 and drafter.needs.trees:
        raise UnsupportedError(
            "target=deepseek_v4 takes no trees (its compressor state is addressed by position): "
            f"{_chain_of(config['drafter'])}, or target=hf"
        )
    if target == HF and borrows_draft:
        raise UnsupportedError(
            "target=hf has no draft model of its own, such as drafter nextn needs: " + _without_nextn(config["drafter"])
        )


def _chain_of(node: Mapping[str, Any]) -> str:
    keys = [
        f"{key}.{name}={most}"
        for key, each in _drafters(node, "drafter")
        for name, most in CHAIN_VALUES.items()
        if isinstance(each.get(name), int) and each[name] > most
    ]
    return f"set {' '.join(keys)}" if keys else "draft a chain (conf: drafter)"


def _without_nextn(node: Mapping[str, Any]) -> str:
    options = [
        f"set {'drafter' if key == 'drafter' else f'drafter@{key}'}=ngram or draft_model"
        for key, each in _drafters(node, "drafter")
        if each["_target_"] == NEXTN and key != "drafter"
    ]
    return " and ".join(options) or "set drafter=ngram, draft_model or none"


def _drafters(node: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The configuration of a drafter and of those within it, with their keys; the same of a class's parameters."""
    if "_target_" in node:
        yield key, node
    for name, value in node.items():
        if isinstance(value, Mapping):
            if name == "params" and "_target_" not in value:
                yield f"{key}.params", {"_target_": node.get("_target_"), **value}
            yield from _drafters(value, f"{key}.{name}")
