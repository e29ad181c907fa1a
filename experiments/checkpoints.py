"""Where the checkpoint of a configuration lies; imports no torch."""

import os
from pathlib import Path

from specdec.errors import CheckpointError, ConfigError

EMBEDDED = "embedded"
DATA = Path(__file__).parent / "data"
EMBEDDED_FOLDER = DATA / "embedded"
EMBEDDED_HEADS = {"embedded-eagle3": DATA / "heads" / "eagle3", "embedded-medusa": DATA / "heads" / "medusa"}
"""Heads for the embedded checkpoint, by the name that ``drafter.checkpoint`` begins with."""
SHIPPED = {EMBEDDED: EMBEDDED_FOLDER, **EMBEDDED_HEADS}
TOY = "experiments.toy.load"
SHIPPED_LOADERS = {"experiments.hf.load": "hf", "experiments.deepseek_v4.load": "deepseek_v4"}
"""Options of the group ``target`` over which heads draft, by ``target._target_``."""
NO_CHECKPOINT = "none"
SMOLLM2 = "smollm2"
FETCHED = (SMOLLM2,)
"""Names that ``python -m experiments.fetch`` knows."""


def cache_folder() -> Path:
    """Where fetched checkpoints are kept: ``specdec`` in XDG_CACHE_HOME or in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "specdec"


def folder_of(checkpoint: str, *, key: str = "target.checkpoint") -> Path | None:
    """Folder of a checkpoint; None for ``none``. Raises CheckpointError when there is no such folder.

    checkpoint  a folder, or one of the names ``none`` and ``smollm2`` and of ``SHIPPED``
    key         the setting that it comes from
    """
    if checkpoint == NO_CHECKPOINT:
        return None
    if checkpoint in FETCHED:
        return _fetched(checkpoint)
    folder = SHIPPED.get(checkpoint, Path(checkpoint))
    if folder.is_dir():
        return folder
    if checkpoint in SHIPPED:
        raise CheckpointError(f"this installation has no {checkpoint} checkpoint; set {key}=FOLDER")
    raise CheckpointError(f"{folder}: there is no such checkpoint folder (conf: {key})")


def check_head_fits(head: str, checkpoint: str, *, loader: str) -> None:
    """Raise ConfigError for a head that ships, the default, over another target than the embedded one.

    head        ``drafter.checkpoint``
    checkpoint  ``target.checkpoint``
    loader      ``target._target_``
    """
    if head not in EMBEDDED_HEADS:
        return
    folder = folder_of(checkpoint)
    if folder is not None and folder.resolve() == EMBEDDED_FOLDER.resolve():
        return
    told = f"drafter.checkpoint must be set: {head} was trained for the embedded checkpoint, got"
    trainer = f"python -m experiments.train trainer={head.removeprefix('embedded-')}"
    if folder is None:
        target = "target=toy" if loader == TOY else f"target._target_={loader} without a checkpoint"
        raise ConfigError(
            f"{told} {target}; leave the target out, or take a model (target=hf or deepseek_v4, "
            f"target.checkpoint=FOLDER) for which {trainer} makes a head"
        )
    option = f"target={SHIPPED_LOADERS[loader]} " if loader in SHIPPED_LOADERS else ""
    raise ConfigError(
        f"{told} target.checkpoint={checkpoint}; {trainer} {option}target.checkpoint={checkpoint} hydra.run.dir=FOLDER "
        "makes a head, and drafter.checkpoint=FOLDER/checkpoint takes it"
    )


def _fetched(name: str) -> Path:
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    raise CheckpointError(
        f"the checkpoint {name} is not on this machine, and nothing is downloaded unasked: "
        f"python -m experiments.fetch {name} fetches it into {folder}"
    )
