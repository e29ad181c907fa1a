"""Position-keyed noise: a pure function of (stream, position, vocabulary id, salt); knows nothing of sampling rules.

There is no generator and no state, so a draw does not depend on what shares the batch, on how many tokens a pass
verifies, or on the order of calls. All integers are 64-bit with wrap-around and equal on every device; only the
last step, to floating point, is rounded. The mixing steps are those of SplitMix64 (Steele, Lea and Flood, 2014).
"""

import hashlib
from enum import IntEnum

import torch

_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_A = 0xBF58476D1CE4E5B9 - 2**64
_MIX_B = 0x94D049BB133111EB - 2**64
# Three times this still fits 63 bits, so a salt may be a Python integer or a tensor.
_SALT_STEP = 0x2545F4914F6CDD1D
_SIGN = -(2**63)
# The largest float32 below 1, over 2**63: no rounding of v reaches 1, where the logarithm would be infinite.
_TO_UNIT = (1.0 - 2.0**-24) * 2.0**-63


class Salt(IntEnum):
    """What a draw is for; draws with different salts are independent.

    TARGET    the token at a position (the gumbel rule shares it with the draft on purpose)
    RESIDUAL  the correction after a rejection
    ACCEPT    the acceptance of a drafted token
    DRAFT     a draft token with a stream of its own
    """

    TARGET = 0
    RESIDUAL = 1
    ACCEPT = 2
    DRAFT = 3


def stream_key(seed: int | None, *, request_id: str, run_seed: int) -> int:
    """Signed 64-bit key of a request's noise.

    An explicit ``seed`` alone decides it: the request gives the same text whatever shares its batch and whatever
    it is called. Without one the key comes from the run's seed and the request id, so no two requests of a run share.
    """
    text = f"run {run_seed} request {request_id}" if seed is None else f"seed {seed}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def row_keys(streams: torch.Tensor, positions: torch.Tensor, salt: Salt | torch.Tensor) -> torch.Tensor:
    """int64 keys of the broadcast of streams, positions and salt (all int64)."""
    x = torch.add(streams + salt * _SALT_STEP, positions, alpha=_GAMMA)
    return (x ^ (x >> 30)) * _MIX_A


def uniforms(keys: torch.Tensor) -> torch.Tensor:
    """float64 uniforms strictly inside (0, 1), one per int64 key: ``(h + 1/2) / 2**32`` of a mixed upper half."""
    mixed = (keys ^ (keys >> 27)) * _MIX_B
    return ((mixed >> 32).to(torch.float64) + (2.0**31 + 0.5)) * 2.0**-32


class VocabularyNoise:
    """Exponential noise over a vocabulary.

    words_V  int64 mixed word of every vocabulary id, held because every draw reads them
    """

    def __init__(self, vocab_size: int, *, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        words_V = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=device) * _GAMMA
        words_V = (words_V ^ (words_V >> 30)) * _MIX_A
        self.words_V = (words_V ^ (words_V >> 27)) * _MIX_B

    def exponentials(self, keys: torch.Tensor) -> torch.Tensor:
        """Independent standard exponentials, float32 [..., V], for int64 ``keys`` [...]; finite and above 0."""
        return self._negative_exponentials(keys).neg_()

    def race(self, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Draw one id per row with probability proportional to ``weights`` [..., V] >= 0: first arrival of E / w.

        The same keys with other weights give the same noise, so similar laws mostly agree (the Gumbel-max coupling).
        Ties give the lowest id; a row without any weight gives id 0.
        """
        return (weights / self._negative_exponentials(keys)).argmin(dim=-1)

    def order(self, weights: torch.Tensor, keys: torch.Tensor, count: int) -> torch.Tensor:
        """The first ``count`` ids to arrive, int64 [..., count]: draws without replacement; the first is ``race``'s.

        Ids without weight come last, in no meaningful order.
        """
        arrivals = weights / self._negative_exponentials(keys)
        return arrivals.sort(dim=-1, stable=True).indices[..., :count]

    def _negative_exponentials(self, keys: torch.Tensor) -> torch.Tensor:
        """``log1p(-v)`` with v in (0, 1): small values, which win a race, keep full relative precision."""
        x = keys.unsqueeze(-1) ^ self.words_V
        x.mul_(_MIX_A)
        x.bitwise_xor_(x >> 32)
        # Setting the sign bit leaves 63 random bits as a negative number; no shift and no negation is needed.
        x.mul_(_MIX_B).bitwise_or_(_SIGN)
        return x.to(torch.float32).mul_(_TO_UNIT).log1p_()
