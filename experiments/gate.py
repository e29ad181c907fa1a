"""``python -m experiments.gate BASELINE NEW metric=NAME``: is a run worse than an earlier one on the same prompts?"""

import sys
from collections.abc import Sequence
from math import isfinite, isnan

from experiments.command import EXIT_BAD, EXIT_GOOD, Command, Words
from experiments.finished_run import read_run
from experiments.mistakes import nearest
from experiments.paired import DETECTABLE, Difference, PairedMetrics, lower_is_better
from experiments.pairing import Pair, differing, pair
from specdec.errors import ConfigError

COMMAND = Command(
    name="gate",
    folders=("BASELINE", "NEW"),
    settings={"metric": "tokens_per_step", "tolerance": "0"},
    about=f"""
Pairs two run folders on the same prompts and judges one metric, new minus baseline, by its 95 % interval (bootstrap
over pairs of requests).

  metric=tokens_per_step    any metric of summary.json over rows; one by position is written survival[1]
  tolerance=0               how much worse is still good: absolute, in units of the metric, not a share of it
                            (of 2.50 tokens per step, tolerance=0.05 lets 2.45 pass)

The verdict ends with what these runs can show at all; a smaller loss may pass unseen: take more prompts.

  detectable                {DETECTABLE}

Exit code 1 if the whole interval lies on the worse side of the tolerance, 2 for folders that cannot be compared,
0 otherwise.
""",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return COMMAND.obey(arguments, gate)


def gate(words: Words) -> int:
    """Judge; prints value, interval and n, and what is detectable. Raises SpecDecError for what cannot be judged."""
    tolerance = _tolerance(words.settings["tolerance"])
    old, new = map(read_run, words.folders)
    paired = pair(old, new)
    found = _difference(paired, words.settings["metric"])
    for note in (*paired.notes, *_settings(paired)):
        print(f"note: {note}")
    worse = found.is_worse(tolerance)
    print(line(found, tolerance=tolerance, worse=worse))
    print(f"detectable: {DETECTABLE}")
    return EXIT_BAD if worse else EXIT_GOOD


def _settings(paired: Pair) -> list[str]:
    """What was configured otherwise, the drafter aside, which a gate is about."""
    entries = [each for each in differing(paired.old.config, paired.new.config) if not each.key.startswith("drafter")]
    return [f"setting {each.key} differs: {each.old} -> {each.new}" for each in entries]


def line(found: Difference, *, tolerance: float, worse: bool) -> str:
    """The verdict in one line."""
    change = found.change
    return (
        f"{'WORSE' if worse else 'ok'}: {found.name} {found.old.value:.4f} -> {found.new.value:.4f}, "
        f"difference {change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}], n = {change.n} requests, "
        f"tolerance {tolerance:g} (absolute), {'lower' if lower_is_better(found.name) else 'higher'} is better, "
        f"detectable {found.detectable:.4f}"
    )


def _difference(paired: Pair, metric: str) -> Difference:
    metrics = PairedMetrics(paired)
    if metric not in metrics.names:
        single = [name for name in metrics.names if "[" not in name]
        raise ConfigError(
            f"there is no metric {metric!r}{nearest(metric, metrics.names)} (metrics: {', '.join(single)}; by position "
            f"survival[1] and so on)"
        )
    found = metrics.difference(metric)
    for side, run in ((found.old, paired.old), (found.new, paired.new)):
        if not side.n:
            raise ConfigError(f"{metric} was not observed in {run.folder}: choose another metric")
    if isnan(found.change.low):
        raise ConfigError(f"an interval needs at least two requests, and these runs share {len(paired.keys)}")
    return found


def _tolerance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and value >= 0):
        raise ConfigError(f"tolerance must be a number of at least 0, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
