"""``python -m experiments.train trainer=NAME``: train a model, or a draft head for a given target.

``v4_nextn`` trains a DeepSeek-V4 and its NextN layer from a corpus; to continue an interrupted run, start it again with
``hydra.run.dir`` set to its folder. ``eagle3``, ``medusa`` and ``nextn`` train a head for the frozen ``target=...`` on
text that the target writes itself; ``texts`` writes such text for several heads to learn from, which
``trainer.text.files`` names. With ``trainer.checkpoint=FOLDER`` a head that exists is measured instead. The trainers
know no Hydra; this module checks their settings and hands them over.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_method
from omegaconf import MISSING, DictConfig, OmegaConf

from experiments import mistakes, schemas
from experiments.app import App
from experiments.training.config import TrainerConfig, config_from_dict
from experiments.training.heads.config import HeadTrainerConfig, head_config
from specdec.errors import WorkloadError

RESULT_FILE = "result.json"


@dataclass(frozen=True, kw_only=True)
class V4NextnSchema(TrainerConfig):
    """Settings of experiments.training; ``_target_`` is a function of (TrainerConfig, run folder)."""

    _target_: str = "experiments.training.loop.train"


@dataclass(frozen=True, kw_only=True)
class HeadSchema(HeadTrainerConfig):
    """Settings of experiments.training.heads; ``_target_`` also takes the target's settings."""

    _target_: str = "experiments.training.heads.loop.train_head"


@dataclass(frozen=True, kw_only=True)
class TrainSchema:
    """Root of ``experiments.train``; ``target`` is what a head is trained for."""

    trainer: Any = MISSING
    target: Any = MISSING


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    _register()
    return app().main(sys.argv[1:] if arguments is None else arguments)


def app() -> App:
    """The application, with nothing loaded yet."""
    return App(name="train", config="train", run=run, check=check, key=key, is_done=is_done)


def run(config: DictConfig) -> None:
    """Train in the folder that Hydra chose."""
    train = get_method(config.trainer._target_)
    settings, folder = settings_of(config), Path(HydraConfig.get().runtime.output_dir)
    if isinstance(settings, HeadTrainerConfig):
        train(settings, plain(config.target), folder)
    else:
        train(settings, folder)


def check(config: DictConfig) -> None:
    """Raise SpecDecError for settings that cannot work and for inputs that are missing."""
    settings = settings_of(config)
    if isinstance(settings, HeadTrainerConfig):
        mistakes.check_part(config.target, "target.")
        # Imported here, since it imports torch and --help must not wait.
        from experiments.training.heads.loop import check_head

        check_head(settings, plain(config.target))
        return
    data = settings.data
    for name, path in (("corpus", data.corpus), ("tokenizer", data.tokenizer)):
        if not Path(path).exists():
            raise WorkloadError(
                f"{path} does not exist (conf: trainer.data.{name}); experiments/data/corpus_recipe.json says how the "
                "corpus is made"
            )
    # Imported here, since it imports torch and --help must not wait.
    from experiments.training.device import require_device

    require_device(settings.device)


def key(config: DictConfig) -> str:
    """Name of the folder of a sweep's job: a hash of its settings."""
    settings = plain(config.trainer)
    if is_head(config):
        settings["target"] = plain(config.target)
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_done(folder: Path) -> bool:
    """Whether the run in this folder is finished."""
    return (folder / RESULT_FILE).exists()


def settings_of(config: DictConfig) -> TrainerConfig | HeadTrainerConfig:
    """The trainer's settings as a checked value."""
    raw = plain(config.trainer)
    del raw["_target_"]
    return head_config(raw) if is_head(config) else config_from_dict(raw)


def is_head(config: DictConfig) -> bool:
    """Whether a head for a given target is trained."""
    return "kind" in config.trainer


def plain(node: DictConfig) -> dict[str, Any]:
    """A part of the configuration as plain values."""
    raw = OmegaConf.to_container(node, resolve=True)
    assert isinstance(raw, dict)
    return {str(name): value for name, value in raw.items()}


def _register() -> None:
    store = ConfigStore.instance()
    store.store(name="train_schema", node=schemas.editable(TrainSchema))
    for name, schema in (("v4_nextn", V4NextnSchema), ("head", HeadSchema)):
        trainer = schemas.editable(schema)
        for field in trainer:
            if not OmegaConf.is_missing(trainer, field) and isinstance(trainer[field], DictConfig):
                OmegaConf.set_readonly(trainer[field], False)
        store.store(group="schema/trainer", name=name, node=trainer)


if __name__ == "__main__":
    sys.exit(main())
