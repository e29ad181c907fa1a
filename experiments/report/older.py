"""Summaries of older schema versions, completed with "not observed" for what they lack; reads no file."""

from collections.abc import Mapping
from typing import Any

from specdec.step_row import SCHEMA_VERSION

NOT_OBSERVED: Mapping[str, None | int] = {"value": None, "low": None, "high": None, "n": 0}
SINGLE = ("tokens_per_step", "draft_acceptance_rate", "loop_token_share", "speedup", "speedup_decode")
LACKING: Mapping[str, Any] = {
    **{name: NOT_OBSERVED for name in SINGLE},
    "mode": {"verifier": "not recorded"},
    "without_loops": {"tokens_per_step": NOT_OBSERVED},
    "survival": [],
    "conditional": [],
    "accepted_histogram": [],
    "ms_per_round": {"draft": None, "verify": None, "other": None},
    "lossless": None,
    "lossless_how": "not recorded",
    "repeats_agree": True,
    "violated_identities": [],
    "num_requests": 0,
    "num_steps": 0,
}


def completed(summary: Mapping[str, Any], version: int) -> tuple[dict[str, Any], str]:
    """The summary with everything that a report reads, and a remark that names what was not there.

    What an older version calls by the same name is taken as it stands: its own definitions are in its file.
    """
    missing = [name for name in LACKING if name not in summary]
    remark = f"written with schema version {version}, and this report reads {SCHEMA_VERSION}: figures as they were then"
    if missing:
        remark += f"; it has no {', '.join(missing)}"
    return {**LACKING, **summary}, remark
