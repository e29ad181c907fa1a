"""StepRow: the record of one verify step of one request; knows no formula."""

from dataclasses import dataclass

SCHEMA_VERSION = 1
CUTS = ("none", "eos", "stop", "length", "context")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """One row per verify step and request; every metric is a pure function of such rows.

    round, num_live  number of the pass and requests in it
    step             number of the request's step, from 0
    seq_len          tokens known before the step, the prompt included
    proposed         drafted tokens (nodes, for a tree)
    depth            longest drafted path; equal to ``proposed`` for a chain
    verified         what was sent to the target; at most ``proposed``
    accepted         drafted tokens that the rule accepted, whatever a stop cut off afterwards; for a tree those of the
                     accepted path, so that it accepted depths 1 to ``accepted``
    emitted          committed tokens after all cuts
    bonus            1 if every verified token (the longest path, for a tree) was accepted and one more followed
    cut              what ended the request within the step, one of ``CUTS``
    in_loop          whether a token that the step emitted lies in a loop
    draft_us, verify_us, other_us  times of the whole round in microseconds, shared by its live requests
    draft_ids        the proposed tokens
    output_ids       the emitted tokens
    overlap          sum over x of min(p, q) at each verified position, when both laws exist
    draft_probs, target_probs  of the verified tokens under the law that the drafter reports, if it does, and under the
                     one that plain decoding would draw from; when asked for (engine.record_probs)
    parents          index of each node's parent, for a tree
    """

    schema_version: int = SCHEMA_VERSION
    request_id: str
    turn: int = 0
    category: str = ""
    round: int
    num_live: int = 1
    step: int
    seq_len: int
    proposed: int
    depth: int
    verified: int
    accepted: int
    emitted: int
    bonus: int
    cut: str = "none"
    in_loop: bool = False
    draft_us: float = 0.0
    verify_us: float = 0.0
    other_us: float = 0.0
    draft_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    overlap: tuple[float, ...] | None = None
    draft_probs: tuple[float, ...] | None = None
    target_probs: tuple[float, ...] | None = None
    parents: tuple[int, ...] | None = None
