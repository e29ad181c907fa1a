"""summary.json: every metric of a run with its interval, its speed-up, and whether it was lossless."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan

import torch

from experiments.lossless import Judgement
from experiments.near_ties import Parting, bound_text
from experiments.speed import Timing, measured, ratio
from specdec.bootstrap import Bootstrap, Estimate, estimates
from specdec.identities import check_identities
from specdec.metrics import DEFINITIONS, Steps, accepted_histogram, loop_token_share
from specdec.request import RequestOutput
from specdec.rounds.execution import Execution
from specdec.rounds.times import RoundTimes
from specdec.step_row import SCHEMA_VERSION, StepRow

Number = Mapping[str, float | int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What happened in a run.

    mode           device, types and rules that computed it, by name; see ``experiments.mode``
    drafter        its name and the most tokens of a draft; see there, too
    rows           step rows with loops marked, of the first repeat
    outputs        of the first repeat
    execution      how the rounds of the first repeat ran
    timings        one per repeat
    repeats_agree  whether every repeat produced the same tokens
    partings       where outputs part from the baseline's, as far as they do
    dtype          of the activations
    """

    mode: Mapping[str, object]
    drafter: Mapping[str, object]
    rows: tuple[StepRow, ...]
    outputs: tuple[RequestOutput, ...]
    execution: Execution
    timings: tuple[Timing, ...]
    num_skipped_turns: int
    repeats_agree: bool
    judgement: Judgement
    partings: tuple[Parting, ...] = ()
    dtype: torch.dtype = torch.float32


def summarise(run: Run, plain: Sequence[Timing] | None) -> dict[str, object]:
    """Content of ``summary.json``; ``plain`` are the timings of the baseline, None without one.

    A metric is ``{value, low, high, n}``; one per drafted position is a list of them. What was not observed is null.
    """
    timings = run.timings
    # A process that waits for a GPU uses its CPU as it likes.
    on_cpu = run.mode.get("device") == "cpu"
    return {
        "schema_version": SCHEMA_VERSION,
        "mode": dict(run.mode),
        "drafter": dict(run.drafter),
        "execution": asdict(run.execution),
        **metrics_of(run.rows),
        "loop_token_share": loop_share(run.outputs),
        "without_loops": metrics_of([row for row in run.rows if not row.in_loop]),
        "accepted_histogram": accepted_histogram(Steps.of(run.rows)).tolist(),
        "speedup": ratio(timings, plain or (), lambda timing: timing.rate),
        "speedup_decode": ratio(timings, plain or (), lambda timing: timing.decode_rate),
        "speedup_cpu": ratio(timings, plain or (), lambda timing: timing.cpu_rate) if on_cpu else measured(()),
        "tokens_per_second": measured([timing.rate for timing in timings]),
        "tokens_per_second_decode": measured([timing.decode_rate for timing in timings]),
        "ms_per_round": dict(RoundTimes.of(run.rows).ms_per_round),
        "lossless": run.judgement.lossless,
        "lossless_how": run.judgement.how,
        **_near_ties(run),
        "repeats_agree": run.repeats_agree,
        "violated_identities": list(
            check_identities(run.rows, {(o.request_id, o.turn): len(o.output_ids) for o in run.outputs})
        ),
        **_counts(run),
        "timings": [asdict(timing) for timing in timings],
        "baseline_timings": [asdict(timing) for timing in plain or ()],
        "definitions": dict(DEFINITIONS),
    }


def _near_ties(run: Run) -> dict[str, object]:
    """How many outputs differ from the baseline's, and how many of these begin to at a near tie; null: not compared."""
    differences = run.judgement.differences
    return {
        "different_outputs": None if differences is None else len(differences),
        "near_ties": None if differences is None else sum(parting.near_tie for parting in run.partings),
        "near_tie_bound": bound_text(run.dtype),
        "partings": [parting.as_dict() for parting in run.partings],
    }


def metrics_of(rows: Sequence[StepRow]) -> dict[str, object]:
    """Every metric of these rows, as JSON can say it."""
    return {
        name: number(found) if isinstance(found, Estimate) else [number(one) for one in found]
        for name, found in estimates(rows).items()
    }


def loop_share(outputs: Sequence[RequestOutput]) -> Number:
    """``loop_token_share`` of these outputs."""
    terms = loop_token_share([output.output_ids for output in outputs])
    return number(Bootstrap(len(outputs)).estimate(terms))


def number(estimate: Estimate) -> Number:
    """An estimate as JSON can say it: null instead of NaN."""
    return {name: None if isnan(value) else value for name, value in asdict(estimate).items()}


def _counts(run: Run) -> dict[str, object]:
    return {
        "num_requests": len(run.outputs),
        "num_steps": len(run.rows),
        "num_prompt_tokens": sum(len(output.prompt_ids) for output in run.outputs),
        "num_output_tokens": sum(len(output.output_ids) for output in run.outputs),
        "num_preemptions": sum(output.num_preemptions for output in run.outputs),
        "num_skipped_turns": run.num_skipped_turns,
        "finish_reasons": dict(Counter(output.finish_reason.value for output in run.outputs)),
    }
