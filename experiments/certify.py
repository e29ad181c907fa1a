"""``python -m experiments.certify verifier=NAME drafter=NAME``: is the pair exact, and if not, where does it differ?

Decoding over small tables is enumerated in rational arithmetic (specdec.certify). Without any setting everything that
ships is judged, and every wrong rule that must be found. The exit code is 0 only if all is as it should be, 1 if not,
and 2 for what cannot be judged. ``verbose=true`` prints every setting that was enumerated.
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
from experiments.verdict import Verdict, verdict_of, verdict_of_all
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
    chosen = [word for word in given if not word.startswith("verbose=")]
    return app().main(given if chosen else [*given, "suite=true"])


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
        verdict = _suite() if settings["suite"] else _pair(settings)
    except UntiedError as error:
        raise NotExactError(str(error)) from None
    seconds = time.process_time() - start
    print(verdict.told(verbose=settings["verbose"]))
    lines = [*verdict.told(verbose=True).split("\n"), verdict.line]
    write_json(folder / RESULT_FILE, {"settings": settings, "exact": verdict.holds, "lines": lines, "seconds": seconds})
    if not verdict.holds:
        raise NotExactError(verdict.line)
    print(f"{verdict.line} ({seconds:.1f} s)")


def _pair(settings: dict) -> Verdict:
    from experiments.build import instantiate
    from specdec.certify import certify
    from specdec.verifiers import RuleVerifier

    verifier, drafter = instantiate(settings["verifier"], "verifier").build(), _drafter(settings["drafter"])
    certificate = certify(verifier, drafter, num_tokens=settings["tokens"])
    notes = []
    if not isinstance(verifier, RuleVerifier):
        notes.append(
            f"verifier {verifier.name} is judged by its coupling: its output is the target's own choice whatever is "
            f"drafted, so drafter {type(drafter).__name__} did not run"
        )
    if not verifier.lossless:
        notes.append(f"verifier {verifier.name} says that it is lossy: {verifier.lossless_how}")
    return verdict_of(certificate, notes)


def _suite() -> Verdict:
    from experiments.build import instantiate
    from specdec.certify import certify_all

    verifiers = [instantiate({"_target_": path}, "verifier").build() for path in SUITE_VERIFIERS]
    return verdict_of_all(certify_all(verifiers, [_drafter(node) for node in SUITE_DRAFTERS]))


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
    settings = {name: value for name, value in _plain(config).items() if name != "verbose"}
    return run_key(settings, inputs_of(None, ""))


def is_done(folder: Path) -> bool:
    """Whether the pair in this folder was found exact."""
    return status_of(folder) is Status.DONE


def _plain(config: DictConfig) -> dict:
    return OmegaConf.to_container(config, resolve=True)


if __name__ == "__main__":
    sys.exit(main())
