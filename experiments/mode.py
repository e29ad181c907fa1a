"""Of a run as it was in force, defaults resolved: its mode (device, types, rules) and its drafter; knows no results."""

from collections.abc import Mapping

from experiments.build import Config, indexer_dtype_of, kernels_of
from experiments.schemas import PLAIN_DRAFTER
from specdec.api import DrafterConfig

PLAIN_NAME = "none (plain decoding)"


def mode_of(config: Config, environment: Mapping[str, object], *, verifier: str) -> dict[str, object]:
    """``mode`` of ``summary.json``, from a configuration and the content of ``env.json``.

    Two runs of different modes may print different tokens: say the mode beside every figure.
    """
    engine = config["engine"]
    return {
        "device": environment["device"],
        "threads": environment["threads"],
        "dtype": environment["dtype"],
        "cache_dtype": config["target"]["cache_dtype"],
        "indexer_dtype": indexer_dtype_of(config),
        "kernels": kernels_of(config),
        "batch_invariant": engine["batch_invariant"],
        "max_batch": engine["max_batch"],
        "verifier": verifier,
    }


def drafter_of(config: Config, drafter: DrafterConfig) -> dict[str, object]:
    """``drafter`` of ``summary.json``: its short name, and the most tokens of a draft, also where a class decides it.

    drafter  made of ``config``
    """
    path = config["drafter"]["_target_"]
    if path == PLAIN_DRAFTER:
        # Whatever length a sweep gives it.
        return {"name": PLAIN_NAME, "num_draft_tokens": 0}
    name = path.rpartition(".")[2].removesuffix("Config").lower()
    return {"name": name, "num_draft_tokens": drafter.num_draft_tokens}
