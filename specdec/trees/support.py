"""Whether the parts of an engine take the trees that its drafter proposes; refusals name the part."""

from specdec.api import Drafter, DrafterNeeds, Target, TreeTarget, TreeVerifier, Verifier
from specdec.engine_config import EngineConfig
from specdec.errors import ConfigError, UnsupportedError


def check_trees(target: Target, drafter: Drafter, verifier: Verifier, config: EngineConfig) -> None:
    """Raise UnsupportedError for a target or a verifier without trees, ConfigError for settings that exclude them.

    Does nothing for a drafter that proposes chains.
    """
    if not drafter.needs.trees:
        return
    if not isinstance(target, TreeTarget):
        raise UnsupportedError(
            f"{type(target).__name__} verifies chains, and the drafter proposes trees: caches that are addressed by "
            f"position cannot hold siblings (specdec.api.TreeTarget); draft a chain (conf: drafter)"
        )
    check_without_target(drafter.needs, verifier, config)


def check_without_target(needs: DrafterNeeds, verifier: Verifier, config: EngineConfig) -> None:
    """The part of ``check_trees`` that no target changes, so that it can be known before one is loaded."""
    if not needs.trees:
        return
    if not isinstance(verifier, TreeVerifier):
        raise UnsupportedError(
            f"verifier {verifier.name} judges chains, and the drafter proposes trees: take greedy, gumbel or siblings "
            f"(conf: verifier), or draft a chain (conf: drafter)"
        )
    if needs.recordable:
        raise UnsupportedError("a drafter of trees cannot be recorded: needs.trees excludes needs.recordable")
    if config.batch_invariant:
        raise ConfigError(
            "batch_invariant cannot be kept with trees: siblings change the order in which attention sums "
            "(conf: engine.batch_invariant, drafter)"
        )
