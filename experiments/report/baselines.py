"""Which plain run of a report a drafted run is measured against; reads no file."""

from collections.abc import Sequence

from experiments.fingerprint import BASELINE_KEYS, HASHED
from experiments.report.collect import FinishedRun
from experiments.report.theme import PLAIN

Kind = frozenset[tuple[str, str]]


def baselines_of(runs: Sequence[FinishedRun]) -> dict[int, FinishedRun]:
    """The plain run of the same target, workload, sampling, verifier, engine and environment, by number of a run."""
    plain: dict[Kind, FinishedRun] = {}
    for run in runs:
        if run.drafter == PLAIN:
            plain.setdefault(_kind(run), run)
    return {run.number: plain[kind] for run in runs if run.drafter != PLAIN and (kind := _kind(run)) in plain}


def _kind(run: FinishedRun) -> Kind:
    parts = (*BASELINE_KEYS, "env")
    return frozenset(
        (key, value) for key, value in run.settings.items() if key.partition(".")[0] in parts and key not in HASHED
    )
