"""``python -m experiments.certify verifier=NAME drafter=NAME``: is the pair exact, and if not, where does it differ?

Decoding over small tables is enumerated in rational arithmetic (specdec.certify). Without any setting everything that
ships is judged, and every wrong rule that must be found. The exit code is 0 only if all is as it should be, 1 if not,
and 2 for what cannot be judged.
"""

import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments import mistakes, schemas
from experiments.app import App
from experiments.fingerprint import inputs_of, run_key
from experiments.run_folder import STATUS, Status, status_of, write_json
from specdec.errors import SpecDecError

if TYPE_CHECKING:
    from specdec.api import DrafterConfig

RESULT_FILE = "certificate.json"
SUITE_VERIFIERS = (
    "specdec.verifiers.GreedyVerifierConfig",
    "specdec.verifiers.GumbelVerifierConfig",
    "specdec.verifiers.RejectionVerifierConfig",
    "specdec.rule_verifiers.BlockVerifierConfig",
    "specdec.sibling_verifier.SiblingVerifierConfig",
)
SUITE_DRAFTERS = (
    {"_target_": "drafters.nextn.NextnConfig"},
    {"_target_": "drafters.nextn.NextnConfig", "proposals": "greedy"},
    {"_target_": "drafters.ngram.NgramConfig"},
    {"_target_": "drafters.ngram.NgramConfig", "branches": 3, "num_draft_tokens": 4},
    {"_target_": "drafters.oracle.OracleConfig"},
    {"_target_": "drafters.none.NoneConfig"},
    *(
        {
            "_target_": "drafters.adaptive.AdaptiveConfig",
            "wrapped": {"_target_": "drafters.nextn.NextnConfig"},
            "policy": policy,
            "min_draft_tokens": 0,
            "token_cost": 0.5,
        }
        for policy in ("average", "ucb", "confidence")
    ),
    {
        "_target_": "drafters.cascade.CascadeConfig",
        "drafters": {
            "a": {"_target_": "drafters.ngram.NgramConfig", "min_ngram": 2},
            "b": {"_target_": "drafters.nextn.NextnConfig"},
        },
    },
)


class NotExactError(SpecDecError, RuntimeError):
    """The output does not follow the target's law, or a wrong rule was not found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    ConfigStore.instance().store(name="certify_schema", node=schemas.editable(schemas.CertifySchema))
    return app().main(given or ["suite=true"])


def app() -> App:
    """The application, with nothing loaded yet."""
    return App(
        name="certify",
        config="certify",
        run=run,
        check=check,
        key=key,
        is_done=is_done,
        failures=(NotExactError,),
    )


def run(config: DictConfig) -> None:
    """Judge, print, and leave the result in the folder that Hydra chose; raises SpecDecError unless all is exact."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    try:
        _judge(_plain(config), folder)
    except SpecDecError as error:
        write_json(folder / STATUS, {"status": Status.FAILED.value, "traceback": str(error)})
        raise
    write_json(folder / STATUS, {"status": Status.DONE.value})


def _judge(settings: dict, folder: Path) -> None:
    from specdec.certify.judges import UntiedError

    start = time.process_time()
    try:
        lines, holds = _suite() if settings["suite"] else _pair(settings)
    except UntiedError as error:
        raise NotExactError(str(error)) from None
    seconds = time.process_time() - start
    print("\n".join(lines))
    print(f"{seconds:.1f} s")
    write_json(folder / RESULT_FILE, {"settings": settings, "exact": holds, "lines": lines, "seconds": seconds})
    if not holds:
        raise NotExactError(lines[-1])


def _pair(settings: dict) -> tuple[list[str], bool]:
    from experiments.build import instantiate
    from specdec.certify import certify

    verifier = instantiate(settings["verifier"], "verifier").build()
    certificate = certify(verifier, _drafter(settings["drafter"]), num_tokens=settings["tokens"])
    lines = str(certificate).split("\n")
    if not verifier.lossless:
        lines.insert(-1, f"verifier {verifier.name} says that it is lossy: {verifier.lossless_how}")
    return lines, certificate.exact


def _suite() -> tuple[list[str], bool]:
    from experiments.build import instantiate
    from specdec.certify import certify_all

    verifiers = [instantiate({"_target_": path}, "verifier").build() for path in SUITE_VERIFIERS]
    result = certify_all(verifiers, [_drafter(node) for node in SUITE_DRAFTERS])
    lines = str(result.certificate).split("\n")
    lines += [f"wrong rule: {finding}" for _, finding in result.mutants]
    num_found = len(result.mutants) - len(result.missed)
    verdict = "every exact rule is exact" if result.certificate.exact else f"NOT EXACT: {lines[-1]}"
    missed = f"; missed: {', '.join(result.missed)}" if result.missed else ""
    lines.append(f"{verdict}; {num_found} of {len(result.mutants)} wrong rules were found{missed}")
    return lines, result.holds


def _drafter(node: dict) -> "DrafterConfig":
    """The drafter's configuration; one that replays known text knows every text that a table target can write."""
    from experiments.build import drafter_config, with_references
    from specdec.certify.chain import ROOT
    from specdec.certify.tables import PAIRS

    ids = range(PAIRS[0].target.vocab_size)
    return with_references(drafter_config(node), [(ROOT, text) for text in product(ids, repeat=schemas.MAX_CERTIFIED)])


def check(config: DictConfig) -> None:
    """Raise SpecDecError for settings that cannot work."""
    mistakes.check(config)
    from experiments.build import drafter_config, instantiate
    from specdec.engine_config import EngineConfig
    from specdec.trees.support import check_without_target

    settings = _plain(config)
    drafter, verifier = drafter_config(settings["drafter"]), instantiate(settings["verifier"], "verifier").build()
    if not settings["suite"]:
        check_without_target(drafter.needs, verifier, EngineConfig())


def key(config: DictConfig) -> str:
    """Name of the folder of a sweep's job."""
    return run_key(_plain(config), inputs_of(None, ""))


def is_done(folder: Path) -> bool:
    """Whether the pair in this folder was found exact."""
    return status_of(folder) is Status.DONE


def _plain(config: DictConfig) -> dict:
    return OmegaConf.to_container(config, resolve=True)


if __name__ == "__main__":
    sys.exit(main())
