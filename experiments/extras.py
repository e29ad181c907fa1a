"""Extras: optional packages by what needs them, and the words for one that is missing; imports none of them."""

from importlib.util import find_spec

from specdec.errors import ConfigError

DISTRIBUTION = "specdec-research"
LAUNCHERS = {"joblib": "joblib", "submitit_slurm": "submitit", "submitit_local": "submitit", "ray": "ray"}
"""Extra by Hydra launcher."""


class MissingPackageError(ConfigError):
    """A package that is only needed for what was asked for is not installed."""


def require(package: str, *, extra: str, what: str) -> None:
    """Raise MissingPackageError, which names the extra, unless ``package`` can be imported; does not import it."""
    if find_spec(package) is None:
        raise MissingPackageError(f"{what} needs the package {package}: {install(extra)}")


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
