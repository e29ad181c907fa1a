"""``python -m experiments.train trainer=v4_nextn``: train a model and write it as a checkpoint folder.

The trainer itself knows no Hydra; this module checks its settings and hands them over. To continue an interrupted
run, start it again with ``hydra.run.dir`` set to its folder.
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

from experiments import schemas
from experiments.app import App
from experiments.training.config import TrainerConfig, config_from_dict
from specdec.errors import WorkloadError

RESULT_FILE = "result.json"


@dataclass(frozen=True, kw_only=True)
class V4NextnSchema(TrainerConfig):
    """Settings of experiments.training; ``_target_`` is a function of (TrainerConfig, run folder)."""

    _target_: str = "experiments.training.loop.train"


@dataclass(frozen=True, kw_only=True)
class TrainSchema:
    """Root of ``experiments.train``."""

    trainer: Any = MISSING


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
    train(settings_of(config), Path(HydraConfig.get().runtime.output_dir))


def check(config: DictConfig) -> None:
    """Raise SpecDecError for settings that cannot work and for inputs that are missing."""
    settings = settings_of(config)
    data = settings.data
    for name, path in (("corpus", data.corpus), ("tokenizer", data.tokenizer)):
        if not Path(path).exists():
            raise WorkloadError(
                f"{path} does not exist (conf: trainer.data.{name}); experiments/data/corpus_recipe.json says how the "
                "corpus is made"
            )
    from experiments.training.device import require_device  # here, since it imports torch and --help must not wait

    require_device(settings.device)


def key(config: DictConfig) -> str:
    """Name of the folder of a sweep's job: a hash of its settings."""
    text = json.dumps(OmegaConf.to_container(config.trainer, resolve=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def is_done(folder: Path) -> bool:
    """Whether the run in this folder is finished."""
    return (folder / RESULT_FILE).exists()


def settings_of(config: DictConfig) -> TrainerConfig:
    """The trainer's settings as a checked value."""
    raw = OmegaConf.to_container(config.trainer, resolve=True)
    assert isinstance(raw, dict)
    return config_from_dict({str(name): value for name, value in raw.items() if name != "_target_"})


def _register() -> None:
    store = ConfigStore.instance()
    store.store(name="train_schema", node=schemas.editable(TrainSchema))
    trainer = schemas.editable(V4NextnSchema)
    for section in trainer.values():
        if isinstance(section, DictConfig):
            OmegaConf.set_readonly(section, False)
    store.store(group="schema/trainer", name="v4_nextn", node=trainer)


if __name__ == "__main__":
    sys.exit(main())
