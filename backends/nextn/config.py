"""NextNBackendConfig: how the NextN draft model is run; instantiable without a model."""

from dataclasses import dataclass

from specdec.checks import positive_int


@dataclass(frozen=True, kw_only=True, slots=True)
class NextNBackendConfig:
    """Settings of the draft backend. Raises ConfigError for values out of range.

    max_batch    most requests of a round
    query_block  most queries of a prompt chunk that are attended at once
    """

    max_batch: int = 1
    query_block: int = 128

    def __post_init__(self) -> None:
        positive_int("max_batch", self.max_batch, where="engine.max_batch")
        positive_int("query_block", self.query_block)
