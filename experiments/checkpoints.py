"""Where the checkpoint of a configuration lies; imports no torch."""

import os
from pathlib import Path

from specdec.errors import CheckpointError

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(__file__).parent / "data" / "embedded"
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

    checkpoint  a folder, or one of the names ``embedded``, ``none`` and ``smollm2``
    key         the setting that it comes from
    """
    if checkpoint == NO_CHECKPOINT:
        return None
    if checkpoint in FETCHED:
        return _fetched(checkpoint)
    folder = EMBEDDED_FOLDER if checkpoint == EMBEDDED else Path(checkpoint)
    if folder.is_dir():
        return folder
    if checkpoint == EMBEDDED:
        raise CheckpointError(f"this installation has no embedded checkpoint; set {key}=FOLDER")
    raise CheckpointError(f"{folder}: there is no such checkpoint folder (conf: {key})")


def _fetched(name: str) -> Path:
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    raise CheckpointError(
        f"the checkpoint {name} is not on this machine, and nothing is downloaded unasked: "
        f"python -m experiments.fetch {name} fetches it into {folder}"
    )
