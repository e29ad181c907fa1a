"""The errors that a user of specdec can meet.

    SpecDecError(Exception)
    ├── ConfigError        a setting has a value that cannot work (also a ValueError)
    ├── CheckpointError    a checkpoint folder is missing, incomplete or does not fit
    ├── WorkloadError      a prompt file or a single request cannot be run
    ├── CapacityError      more pages, positions or rows are needed than exist
    ├── MetadataError      a forward pass was described inconsistently (also a RuntimeError)
    └── UnsupportedError   a combination that is refused by name

A message names what is wrong, what was got, what is allowed and where to change it. A mistake of the
programmer is an ``assert`` instead.
"""


class SpecDecError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(SpecDecError, ValueError):
    """A configuration value is outside of what is allowed."""


class CheckpointError(SpecDecError, ValueError):
    """A checkpoint cannot be loaded as it lies on disk."""


class WorkloadError(SpecDecError, ValueError):
    """A prompt file or a request cannot be used."""


class CapacityError(SpecDecError, RuntimeError):
    """A fixed resource (pages, rows, positions) is too small for what was asked."""


class MetadataError(SpecDecError, RuntimeError):
    """Lengths, tables or masks of a forward pass contradict each other."""


class UnsupportedError(SpecDecError, NotImplementedError):
    """A combination of options that the project refuses by name."""
