"""The tables that a run prints: exactness, tokens per step, speed-up, loops, times, and acceptance by position."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from experiments.speed import Timing, waited
from experiments.terminal import table_console

FEW = 20
SHOWN_PARTINGS = 5
NOTHING = "-"
TIMED = {"the run": "timings", "its baseline": "baseline_timings"}
ONE_TIMING = "speedup: one timing, no range (engine.repeats=3 gives one)"
OF_STEPS = (
    "tokens_per_step",
    "drafted_step_share",
    "accepted_per_drafted_step",
    "draft_acceptance_rate",
    "wasted_draft_fraction",
)
OF_POSITIONS = ("survival", "conditional")


def show(summary: Mapping[str, Any], folder: Path, *, drafter: str, define: bool = True) -> None:
    """Print the tables of a run, and with ``define`` what their figures mean."""
    console = table_console()
    console.print(run_table(summary, drafter))
    if summary["survival"]:
        console.print(position_table(summary))
    for line in [*notes(summary), *(definitions(summary, shown(summary)) if define else ())]:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"run folder: {folder}", markup=False, soft_wrap=True)


def run_table(summary: Mapping[str, Any], drafter: str) -> Table:
    """The headline figures, with all steps and without the steps in loops."""
    table = Table(title=f"drafter {drafter}")
    for heading in ("", "all steps", "without loops"):
        table.add_column(heading, justify="left" if not heading else "right")
    without = summary["without_loops"]
    for name in OF_STEPS:
        if name in summary:
            table.add_row(name, interval(summary[name]), interval(without[name]))
    for name in ("loop_token_share", "loop_fraction"):
        table.add_row(name, interval(summary[name]), NOTHING)
    table.add_row("lossless", lossless_text(summary["lossless"]), NOTHING)
    for name in speeds(summary):
        table.add_row(name, interval(summary[name]), NOTHING)
    table.add_row("tokens_per_second", interval(summary["tokens_per_second"], digits=1), NOTHING)
    for phase, value in summary["ms_per_round"].items():
        table.add_row(f"{phase}_ms_per_round", NOTHING if value is None else f"{value:.3f}", NOTHING)
    return table


def speeds(summary: Mapping[str, Any]) -> Sequence[str]:
    """The speed-ups that a run has."""
    return ("speedup", "speedup_decode", *(("speedup_cpu",) if is_on_cpu(summary) else ()))


def position_table(summary: Mapping[str, Any]) -> Table:
    """Acceptance by drafted position; positions seen fewer than 20 times are dim."""
    table = Table(title="acceptance by position")
    table.add_column("position", justify="right")
    for heading in ("survival", "n", "conditional", "n"):
        table.add_column(heading, justify="right")
    rows = zip(summary["survival"], summary["conditional"], strict=True)
    for position, (survival, conditional) in enumerate(rows, start=1):
        cells = [interval(survival), str(survival["n"]), interval(conditional), str(conditional["n"])]
        table.add_row(str(position), *cells, style="dim" if survival["n"] < FEW else None)
    return table


def notes(summary: Mapping[str, Any]) -> Sequence[str]:
    """What a reader of the tables must know."""
    lines = [
        f"mode: {mode_text(summary['mode'])}",
        f"lossless: {lossless_text(summary['lossless'])} ({summary['lossless_how']})",
    ]
    lines += parting_lines(summary)
    if not summary["repeats_agree"]:
        lines.append("warning: the timing repeats did not produce the same tokens")
    lines += [f"warning: {problem}" for problem in summary["violated_identities"]]
    if summary["num_skipped_turns"]:
        lines.append(f"warning: {summary['num_skipped_turns']} turns no longer fitted into the context")
    if is_one_timing(summary["speedup"]):
        lines.append(ONE_TIMING)
    return [*lines, *busy_lines(summary)]


def busy_lines(summary: Mapping[str, Any]) -> Sequence[str]:
    """A warning for a run, and one for its baseline, whose process waited for a core while it was timed."""
    if not is_on_cpu(summary):
        return []
    found = {what: waited([Timing(**each) for each in summary[key]]) for what, key in TIMED.items()}
    return [
        f"warning: the machine was busy during {what}: {times[0]:.1f} s of CPU time took {times[1]:.1f} s; "
        "the wall-clock speed-up is unreliable (speedup_cpu counts CPU time)"
        for what, times in found.items()
        if times is not None
    ]


def is_on_cpu(summary: Mapping[str, Any]) -> bool:
    """Whether CPU time measures this run; not for one of a version that did not record it."""
    return "speedup_cpu" in summary and summary["mode"].get("device") == "cpu"


def parting_lines(summary: Mapping[str, Any]) -> Sequence[str]:
    """Where outputs part from the baseline's, and whether rounding explains it; the first few, and their number."""
    partings = summary.get("partings", ())
    if not partings:
        return []
    lines = [f"  {each['text']}" for each in partings[:SHOWN_PARTINGS]]
    if len(partings) > SHOWN_PARTINGS:
        lines.append(f"  and {len(partings) - SHOWN_PARTINGS} more (partings in summary.json)")
    lines.append(
        f"near ties: {summary['near_ties']} of {summary['different_outputs']} different outputs part at one "
        f"(within {summary['near_tie_bound']})"
    )
    return lines


def shown(summary: Mapping[str, Any]) -> Sequence[str]:
    """The figures in the tables of a run, in their order; ``lossless`` has a note of its own."""
    positions = OF_POSITIONS if summary["survival"] else ()
    speed = (*speeds(summary), "tokens_per_second", "ms_per_round")
    return (*OF_STEPS, "loop_token_share", "loop_fraction", *speed, *positions)


def definitions(summary: Mapping[str, Any], names: Sequence[str]) -> Sequence[str]:
    """One line for each of these figures, as the version that wrote the summary defines it."""
    known = summary["definitions"]
    return [f"{name}: {known[name]}" for name in names if name in known]


def is_one_timing(speedup: Mapping[str, Any]) -> bool:
    """Whether a speed-up was measured once, so that nothing says how far it would move."""
    return speedup["value"] is not None and speedup["low"] is None


def interval(metric: Mapping[str, Any], *, digits: int = 3) -> str:
    """``value [low, high]``; a dash for what was not observed."""
    if metric["value"] is None:
        return NOTHING
    text = f"{metric['value']:.{digits}f}"
    if metric["low"] is None:
        return text
    return f"{text} [{metric['low']:.{digits}f}, {metric['high']:.{digits}f}]"


def mode_text(mode: Mapping[str, Any]) -> str:
    """``name value`` of everything that a mode names, in its order."""
    return ", ".join(f"{name} {str(value).lower()}" for name, value in mode.items())


def drafter_text(drafter: Mapping[str, Any]) -> str:
    """The name of a drafter, and how many tokens it drafts if any, for headings."""
    num = drafter["num_draft_tokens"]
    return f"{drafter['name']}, {num} draft tokens" if num else str(drafter["name"])


def lossless_text(lossless: bool | None) -> str:
    """yes, no, or not compared."""
    return "not compared" if lossless is None else "yes" if lossless else "no"
