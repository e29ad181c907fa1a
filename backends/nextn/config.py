"""NextNBackendConfig: how the NextN draft model is run; instantiable without a model."""

from dataclasses import dataclass

from specdec.checks import integer, positive_int


@dataclass(frozen=True, kw_only=True, slots=True)
class NextNBackendConfig:
    """Settings of the draft backend. Raises ConfigError for values out of range.

    max_batch    most requests of a round
    query_block  most queries of a prompt chunk that are attended at once
    few_rows     longest pass that takes the fused path for a few float32 rows on the CPU; 0: never
    """

    max_batch: int = 1
    query_block: int = 128
    few_rows: int = 128

    def __post_init__(self) -> None:
        positive_int("max_batch", self.max_batch, where="engine.max_batch")
        positive_int("query_block", self.query_block)
        integer("few_rows", self.few_rows, low=0)
