"""Metrics of speculative decoding as pure functions of step rows and outputs; the only place for a formula.

Every metric is a ratio of two sums over steps (or requests). A formula returns its ``Terms``, the two numbers of each,
so that the value, its interval over requests and its difference between runs all come from the same lines.

    proposed k   depth d   verified v   accepted a   emitted e    drafted step: k > 0

Positions of drafted tokens are counted from 1, and depth is the verified depth. Of a tree position i is depth i: it
is proposed where some path is that long, and accepted where the accepted path is; its nodes count for ``proposed`` and
what follows from that only (node efficiency, wasted drafts). A step that was cut after e tokens
has not observed depths beyond e; the ``_raw`` variants count them all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specdec.loops import in_loop
from specdec.step_row import CUTS, SCHEMA_VERSION, StepRow

__all__ = ["CUTS", "DEFINITIONS", "FORMULAS", "SCHEMA_VERSION", "StepRow", "Steps", "Terms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Step rows as columns, int64 [num_steps]; ``depth`` is the verified depth, ``request`` numbers the requests."""

    request: np.ndarray
    proposed: np.ndarray
    depth: np.ndarray
    accepted: np.ndarray
    emitted: np.ndarray
    is_cut: np.ndarray
    in_loop: np.ndarray
    overlap_sum: np.ndarray
    overlap_num: np.ndarray
    is_tree: bool

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> "Steps":
        """Columns of ``rows``; a request is a pair of id and turn."""
        numbers: dict[tuple[str, int], int] = {}
        return cls(
            request=_column([numbers.setdefault((r.request_id, r.turn), len(numbers)) for r in rows]),
            proposed=_column([r.proposed for r in rows]),
            depth=_column([min(r.depth, r.verified) for r in rows]),
            accepted=_column([r.accepted for r in rows]),
            emitted=_column([r.emitted for r in rows]),
            is_cut=_column([r.cut != "none" for r in rows]).astype(bool),
            in_loop=_column([r.in_loop for r in rows]).astype(bool),
            overlap_sum=np.array([sum(r.overlap or ()) for r in rows], dtype=np.float64),
            overlap_num=_column([len(r.overlap or ()) for r in rows]),
            is_tree=any(r.proposed != r.depth for r in rows),
        )

    def __len__(self) -> int:
        return len(self.proposed)

    @property
    def max_depth(self) -> int:
        """Deepest drafted position, 0 without drafts."""
        return int(self.depth.max(initial=0))

    @property
    def num_requests(self) -> int:
        """Distinct requests."""
        return int(self.request.max(initial=-1)) + 1


def _column(values: Sequence[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Terms:
    """Numerator and denominator of a metric for every step (or every request), float64, and the request of each."""

    top: np.ndarray
    bottom: np.ndarray
    request: np.ndarray

    @property
    def num(self) -> int:
        """Number of observations: the sum of the denominators."""
        return int(round(self.bottom.sum()))

    @property
    def value(self) -> float:
        """Ratio of the sums; NaN where nothing was observed."""
        return float(self.top.sum() / self.bottom.sum()) if self.num else float("nan")


def _terms(steps: Steps, top: np.ndarray, bottom: np.ndarray) -> Terms:
    return Terms(np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64), steps.request)


def tokens_per_step(steps: Steps) -> Terms:
    """tau: emitted tokens per step with a target pass after prefill; steps without a draft count."""
    return _terms(steps, steps.emitted, np.ones(len(steps)))


def drafted_step_share(steps: Steps) -> Terms:
    """Steps that drafted per step: without cuts ``tokens_per_step`` is 1 + this times ``accepted_per_drafted_step``."""
    return _terms(steps, steps.proposed > 0, np.ones(len(steps)))


def tokens_per_drafted_step(steps: Steps) -> Terms:
    """tau_d: emitted tokens per drafted step."""
    drafted = steps.proposed > 0
    return _terms(steps, steps.emitted * drafted, drafted)


def accepted_per_drafted_step(steps: Steps) -> Terms:
    """L: accepted and emitted drafts per drafted step, without the bonus."""
    drafted = steps.proposed > 0
    return _terms(steps, np.minimum(steps.accepted, steps.emitted) * drafted, drafted)


def draft_acceptance_rate(steps: Steps) -> Terms:
    """beta: accepted drafts per proposed draft; chains only, so nothing is observed for trees."""
    chain = not steps.is_tree
    return _terms(steps, steps.accepted * chain, steps.proposed * chain)


def node_efficiency(steps: Steps) -> Terms:
    """Accepted nodes per proposed node; trees only."""
    return _terms(steps, steps.accepted * steps.is_tree, steps.proposed * steps.is_tree)


def wasted_draft_fraction(steps: Steps) -> Terms:
    """Share of proposed drafts that were not both accepted and emitted."""
    return _terms(steps, steps.proposed - np.minimum(steps.accepted, steps.emitted), steps.proposed)


def overlap(steps: Steps) -> Terms:
    """alpha*: mean over drafted positions of the sum over x of min(p, q)."""
    return _terms(steps, steps.overlap_sum, steps.overlap_num)


def tokens_per_step_request_mean(steps: Steps) -> Terms:
    """tau_req: mean over requests of each request's tokens per step; one term per request."""
    num = np.bincount(steps.request, minlength=steps.num_requests)
    tau = np.bincount(steps.request, weights=steps.emitted, minlength=steps.num_requests) / np.maximum(num, 1)
    return Terms(tau, np.ones(len(tau)), np.arange(len(tau)))


def loop_fraction(steps: Steps) -> Terms:
    """Share of steps that emitted a token in a loop."""
    return _terms(steps, steps.in_loop, np.ones(len(steps)))


def loop_token_share(outputs: Sequence[Sequence[int]]) -> Terms:
    """Share of output tokens that lie in a loop.

    ``outputs`` holds all output token ids of each request, its first token included; one term per request.
    """
    top = np.array([in_loop(tokens).sum() for tokens in outputs], dtype=np.float64)
    bottom = np.array([len(tokens) for tokens in outputs], dtype=np.float64)
    return Terms(top, bottom, np.arange(len(outputs)))


def survival(steps: Steps, position: int, *, raw: bool = False) -> Terms:
    """S_i: steps that accepted position i per step that proposed it."""
    observed = _observed(steps, position, raw=raw)
    return _terms(steps, observed & (steps.accepted >= position), observed)


def survival_fixed(steps: Steps, position: int) -> Terms:
    """S_i^K: steps that accepted position i per drafted step, whether it proposed the position or not; uncensored."""
    drafted = steps.proposed > 0
    return _terms(steps, drafted & (steps.accepted >= position), drafted)


def conditional(steps: Steps, position: int, *, raw: bool = False) -> Terms:
    """C_i: steps that accepted position i per step that accepted i - 1 and proposed i."""
    reached = _observed(steps, position, raw=raw) & (steps.accepted >= position - 1)
    return _terms(steps, reached & (steps.accepted >= position), reached)


def _observed(steps: Steps, position: int, *, raw: bool) -> np.ndarray:
    proposed = steps.depth >= position
    return proposed if raw else proposed & (~steps.is_cut | (steps.emitted >= position))


def survival_raw(steps: Steps, position: int) -> Terms:
    """``survival`` without the censoring of cut steps."""
    return survival(steps, position, raw=True)


def conditional_raw(steps: Steps, position: int) -> Terms:
    """``conditional`` without the censoring of cut steps."""
    return conditional(steps, position, raw=True)


FORMULAS: Mapping[str, Callable[[Steps], Terms]] = {
    "tokens_per_step": tokens_per_step,
    "drafted_step_share": drafted_step_share,
    "tokens_per_drafted_step": tokens_per_drafted_step,
    "accepted_per_drafted_step": accepted_per_drafted_step,
    "draft_acceptance_rate": draft_acceptance_rate,
    "node_efficiency": node_efficiency,
    "wasted_draft_fraction": wasted_draft_fraction,
    "overlap": overlap,
    "tokens_per_step_request_mean": tokens_per_step_request_mean,
    "loop_fraction": loop_fraction,
}
"""Metrics that are one number."""

POSITION_FORMULAS: Mapping[str, Callable[[Steps, int], Terms]] = {
    "survival": survival,
    "survival_raw": survival_raw,
    "survival_fixed": survival_fixed,
    "conditional": conditional,
    "conditional_raw": conditional_raw,
}
"""Metrics that are one number per drafted position, from 1."""

DEFINITIONS: Mapping[str, str] = {
    "tokens_per_step": "emitted tokens / steps with a target pass after prefill (bonus included, first token not)",
    "drafted_step_share": "steps that drafted / steps",
    "tokens_per_drafted_step": "emitted tokens / steps, over steps that drafted",
    "accepted_per_drafted_step": "accepted and emitted drafts / steps that drafted (no bonus)",
    "draft_acceptance_rate": "accepted drafts / proposed drafts (chains)",
    "node_efficiency": "accepted nodes / proposed nodes (trees)",
    "wasted_draft_fraction": "1 - accepted and emitted drafts / proposed drafts",
    "overlap": "mean over drafted positions of the sum over x of min(p(x), q(x))",
    "tokens_per_step_request_mean": "mean over requests of tokens_per_step",
    "loop_fraction": "steps that emitted a token of a loop / steps (these are left out of the figures without loops)",
    "loop_token_share": "output tokens in a loop (a period of at most 64 tokens, three times or more) / output tokens",
    "survival": "steps that accepted position i / steps that proposed it; positions beyond a cut are left out",
    "survival_raw": "survival with the positions beyond a cut counted",
    "survival_fixed": "steps that accepted position i / steps that drafted",
    "conditional": "steps that accepted position i / steps that accepted i - 1 and proposed i; cuts as for survival",
    "conditional_raw": "conditional with the positions beyond a cut counted",
    "speedup": "tokens per second / tokens per second of plain decoding on the same prompts, prefill included",
    "speedup_decode": "the same over rounds after prefill",
    "speedup_cpu": "speedup per second of CPU time of the process, all threads, instead of the wall clock",
    "tokens_per_second": "output tokens / seconds of all rounds, prefill included",
    "ms_per_round": "mean time of a round that verified something: drafting, target and verifier, everything else",
}
"""What is printed under a table that shows the metric."""


def accepted_histogram(steps: Steps, *, proposed: int | None = None) -> np.ndarray:
    """Number of steps that accepted 0, 1, 2, ... drafts; only those that proposed ``proposed`` if it is given."""
    accepted = steps.accepted if proposed is None else steps.accepted[steps.proposed == proposed]
    return np.bincount(accepted, minlength=steps.max_depth + 1)
