"""Where the checkpoint of a configuration lies; imports no torch."""

from pathlib import Path

from specdec.errors import CheckpointError

EMBEDDED = "embedded"
EMBEDDED_FOLDER = Path(__file__).parent / "data" / "embedded"
NO_CHECKPOINT = "none"


def folder_of(checkpoint: str) -> Path | None:
    """Folder of ``target.checkpoint``; None for ``none``. Raises CheckpointError when there is no such folder."""
    if checkpoint == NO_CHECKPOINT:
        return None
    folder = EMBEDDED_FOLDER if checkpoint == EMBEDDED else Path(checkpoint)
    if folder.is_dir():
        return folder
    if checkpoint == EMBEDDED:
        raise CheckpointError("this installation has no embedded checkpoint; set target.checkpoint=FOLDER")
    raise CheckpointError(f"{folder}: there is no such checkpoint folder (conf: target.checkpoint)")
