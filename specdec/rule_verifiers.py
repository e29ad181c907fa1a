"""Verifiers of the further chain rules, and their configurations; the rules themselves are in specdec.rules.chain.

    BlockVerifier      block verification: exact, accepts at least as many tokens as the token ratio test
    TypicalVerifier    keeps what is typical for the target: lossy
    ThresholdVerifier  keeps what the target gives a set probability: lossy

A lossy verifier says so (``lossless`` is False), and ``require_lossless=true`` refuses it before a run starts.
"""

from dataclasses import dataclass

from specdec.checks import number
from specdec.rules.chain import BlockRule, TypicalRule
from specdec.verifiers import RuleVerifier


class BlockVerifier(RuleVerifier):
    """Judges a drafted block as a whole (Sun et al., 2024)."""

    name = "block"

    def __init__(self) -> None:
        super().__init__(BlockRule())


class TypicalVerifier(RuleVerifier):
    """Keeps drafted tokens that the target finds likely enough, given how sure it is (Medusa); lossy."""

    name = "typical"
    lossless_how = "keeps drafted tokens that are typical for the target, whatever its law"


class ThresholdVerifier(RuleVerifier):
    """Keeps drafted tokens whose target probability reaches a threshold; lossy."""

    name = "threshold"
    lossless_how = "keeps drafted tokens above a probability, whatever the target's law"


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockVerifierConfig:
    """Block verification."""

    def build(self) -> BlockVerifier:
        """Make the verifier."""
        return BlockVerifier()


@dataclass(frozen=True, kw_only=True, slots=True)
class TypicalVerifierConfig:
    """Typical acceptance: a token needs a probability of at least min(epsilon, delta * exp(-entropy)), both 0..1."""

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        number("epsilon", self.epsilon, low=0.0, high=1.0, where="verifier.epsilon")
        number("delta", self.delta, low=0.0, high=1.0, where="verifier.delta")

    def build(self) -> TypicalVerifier:
        """Make the verifier."""
        return TypicalVerifier(TypicalRule(epsilon=self.epsilon, delta=self.delta))


@dataclass(frozen=True, kw_only=True, slots=True)
class ThresholdVerifierConfig:
    """Threshold acceptance: a token needs a target probability of at least ``threshold``, 0..1."""

    threshold: float = 0.3

    def __post_init__(self) -> None:
        number("threshold", self.threshold, low=0.0, high=1.0, where="verifier.threshold")

    def build(self) -> ThresholdVerifier:
        """Make the verifier."""
        return ThresholdVerifier(TypicalRule(epsilon=self.threshold))
