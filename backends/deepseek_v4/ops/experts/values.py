"""ExpertWeights: the matrices of one expert or of a stack of experts, in the precision that they are stored in."""

from dataclasses import dataclass

from backends.deepseek_v4.stored_weight import StoredWeight


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertWeights:
    """Gate and up ``w1``, ``w3`` [E, I, D] and down ``w2`` [E, D, I], all in one format; without E for one expert."""

    w1: StoredWeight
    w2: StoredWeight
    w3: StoredWeight

    def __post_init__(self) -> None:
        formats = {(each.format, each.values.dtype) for each in (self.w1, self.w2, self.w3)}
        assert len(formats) == 1, f"the matrices of an expert are stored alike, got {formats}"
        hidden, width = self.w1.num_inputs, self.w1.num_outputs
        assert (self.w3.num_outputs, self.w3.num_inputs) == (width, hidden), "w3 has another shape than w1"
        assert (self.w2.num_outputs, self.w2.num_inputs) == (hidden, width), "w2 does not undo the shape of w1"
