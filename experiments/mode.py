"""The mode of a run: device, types and rules as they were in force, defaults resolved; knows no results."""

from collections.abc import Mapping

from experiments.build import Config, indexer_dtype_of, kernels_of


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
