"""Schema versions of run folders: which can be read, and the words for one that cannot."""

from specdec.step_row import SCHEMA_VERSION


def refusal(version: object) -> str:
    """Why files of a schema version cannot be read; empty for one that can, if it has all that is needed.

    An older version lacks at most what was added since, and that has a default. Of a newer one nobody knows here what
    its fields mean.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        return f"schema_version cannot be {version!r}"
    if version > SCHEMA_VERSION:
        return (
            f"written with the newer schema version {version}, and this version reads up to {SCHEMA_VERSION}: "
            "use the newer code"
        )
    return ""


def note(version: int) -> str:
    """What a reader must know of an older version that could be read."""
    return (
        f"written with schema version {version}, and this version writes {SCHEMA_VERSION}: what was added since has "
        "its default"
    )
