"""Identities that rows and outputs of every run satisfy; a report that violates one is wrong and says so."""

from collections.abc import Mapping, Sequence

import numpy as np

from specdec.metrics import (
    Steps,
    accepted_histogram,
    conditional,
    draft_acceptance_rate,
    survival,
    survival_fixed,
    tokens_per_drafted_step,
    tokens_per_step,
)
from specdec.step_row import CUTS, StepRow

TOLERANCE = 1e-9


def check_identities(rows: Sequence[StepRow], output_lens: Mapping[tuple[str, int], int]) -> tuple[str, ...]:
    """Sentences about every identity that is violated; empty when all hold.

    ``output_lens`` gives the number of output tokens by request id and turn, the first token included.
    """
    problems = [problem for row in rows for problem in _row_problems(row)]
    problems.extend(_token_problems(rows, output_lens))
    if rows and not problems:
        problems.extend(_metric_problems(Steps.of(rows)))
    return tuple(problems)


def _row_problems(row: StepRow) -> list[str]:
    """What is wrong within one row."""
    where = f"request {row.request_id} turn {row.turn} step {row.step}"
    depth = min(row.depth, row.verified)
    facts = {
        f"depth {row.depth} and verified {row.verified} are at most proposed {row.proposed}": (
            0 <= row.depth <= row.proposed and 0 <= row.verified <= row.proposed
        ),
        f"accepted {row.accepted} is within 0..{depth}": 0 <= row.accepted <= depth,
        f"emitted {row.emitted} is within 1..{row.accepted + 1}": 1 <= row.emitted <= row.accepted + 1,
        f"cut {row.cut!r} is one of {', '.join(CUTS)}": row.cut in CUTS,
        "a step that was not cut emits accepted + 1 tokens": row.cut != "none" or row.emitted == row.accepted + 1,
        "a bonus follows a fully accepted draft": row.bonus in (0, 1)
        and (not row.bonus or row.accepted == depth < row.emitted),
    }
    return [f"{where}: violated: {fact}" for fact, holds in facts.items() if not holds]


def _token_problems(rows: Sequence[StepRow], output_lens: Mapping[tuple[str, int], int]) -> list[str]:
    """Tokens out are the first token and what the steps emitted, for every request."""
    counted = {key: 1 for key in output_lens}
    for row in rows:
        key = (row.request_id, row.turn)
        counted[key] = counted.get(key, 1) + row.emitted
    return [
        f"request {request_id} turn {turn}: {output_lens.get((request_id, turn), 0)} tokens in the output, "
        f"1 + sum of emitted is {total}"
        for (request_id, turn), total in counted.items()
        if output_lens.get((request_id, turn), 0) != total
    ]


def _metric_problems(steps: Steps) -> list[str]:
    """Relations between metrics."""
    positions = range(1, steps.max_depth + 1)
    fixed = [survival_fixed(steps, i).value for i in positions]
    tau = tokens_per_step(steps).value
    facts = {
        "the histogram of accepted lengths sums to the number of steps": accepted_histogram(steps).sum() == len(steps),
        "survival_fixed does not increase": all(a >= b for a, b in zip(fixed, fixed[1:], strict=False)),
        "tokens_per_step is at most depth + 1": tau <= steps.max_depth + 1 + TOLERANCE,
    }
    if not steps.is_tree and steps.max_depth:
        mean_k = steps.proposed[steps.proposed > 0].mean()
        beta = draft_acceptance_rate(steps).value
        facts["draft_acceptance_rate is the sum of survival_fixed over mean k"] = _close(beta, sum(fixed) / mean_k)
    drafted = steps.proposed > 0
    if steps.max_depth and not steps.is_cut.any() and (steps.depth[drafted] == steps.max_depth).all():
        facts.update(_fixed_depth_facts(steps, positions))
    return [f"violated: {fact}" for fact, holds in facts.items() if not holds]


def _fixed_depth_facts(steps: Steps, positions: range) -> dict[str, bool]:
    """What holds when every drafted step has the same depth and nothing is cut."""
    lived = np.array([survival(steps, i).value for i in positions])
    steps_on = np.array([conditional(steps, i).value for i in positions])
    # A position that nothing reached has no conditional; its survival is 0.
    product = np.cumprod(np.nan_to_num(steps_on, nan=0.0))
    return {
        "survival is the product of conditional": bool(np.allclose(lived, product, rtol=0, atol=TOLERANCE)),
        "tokens_per_drafted_step is 1 + the sum of survival": _close(
            tokens_per_drafted_step(steps).value, 1 + lived.sum()
        ),
    }


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE
