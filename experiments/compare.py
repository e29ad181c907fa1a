"""``python -m experiments.compare A B``: two runs of the same prompts, metric by metric and prompt by prompt."""

import sys
from collections.abc import Sequence
from math import isnan

from rich.table import Table

from experiments import beside
from experiments.command import EXIT_GOOD, Command, Words
from experiments.finished_run import Key, is_imported, read_run
from experiments.paired import DETECTABLE, LOOP_SHARE, Difference, PairedMetrics, prompt_changes
from experiments.pairing import Pair, differing, pair
from experiments.speed import ratio
from experiments.terminal import table_console
from specdec.bootstrap import Estimate
from specdec.errors import ConfigError
from specdec.metrics import DEFINITIONS

COMMAND = Command(
    name="compare",
    folders=("A", "B"),
    settings={"prompts": "5"},
    about="""
Pairs two run folders on the same prompts and prints: the settings that differ; every metric of both with the difference
B - A, its 95 % interval (bootstrap over pairs of requests) and the minimal detectable difference, with all steps and
without those in loops; whether the outputs are identical, and where they first differ; the prompts that differ most.

  prompts=5    how many prompts to list

A run that was imported from another engine has no prompts to pair: its figures are shown beside the other's, no more.

Exit code 0, or 2 for folders that are not finished runs of the same prompts.
""",
)
NOTHING = "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return COMMAND.obey(arguments, compare)


def compare(words: Words) -> int:
    """Compare and print; raises SpecDecError for folders that cannot be compared."""
    num_prompts = words.settings["prompts"]
    if not num_prompts.isdecimal():
        raise ConfigError(f"prompts must be an integer of at least 0, got {num_prompts!r}")
    if any(map(is_imported, words.folders)):
        beside.show(*words.folders)
        return EXIT_GOOD
    a, b = map(read_run, words.folders)
    show(pair(a, b), num_prompts=int(num_prompts))
    return EXIT_GOOD


def show(paired: Pair, *, num_prompts: int) -> None:
    """Print the comparison."""
    console = table_console(markup=False)
    shown = _observed(PairedMetrics(paired))
    for line in heading(paired):
        console.print(line, soft_wrap=True)
    console.print(metric_table(shown, PairedMetrics(paired, without_loops=True)))
    for line in (*outputs_lines(paired), *speed_lines(paired)):
        console.print(line, soft_wrap=True)
    console.print(prompt_table(paired, num_prompts))
    for line in definitions(shown):
        console.print(line, soft_wrap=True)


def heading(paired: Pair) -> list[str]:
    """Which runs, what differs between them, and what a reader must know."""
    old, new = paired.old, paired.new
    lines = [f"A: {old.folder}", f"B: {new.folder}", f"pairs: {len(paired.keys)} requests on the same prompts"]
    for what, one, other in (
        ("settings", old.config, new.config),
        ("environment", old.environment, new.environment),
    ):
        entries = [f"{entry.key} {entry.old} -> {entry.new}" for entry in differing(one, other)]
        lines.append(f"{what}: {', '.join(entries) or 'the same'}")
    return [*lines, *(f"note: {note}" for note in paired.notes)]


def metric_table(shown: Sequence[Difference], without: PairedMetrics) -> Table:
    """Every observed metric; a difference whose interval excludes 0 is bold."""
    table = Table(title="B - A, 95 % intervals over pairs of requests")
    table.add_column("metric", no_wrap=True)
    for heading_ in ("A", "B", "B - A", "detectable", "B - A without loops"):
        table.add_column(heading_, justify="right", no_wrap=True)
    known = set(without.names)
    for item in shown:
        loopless = NOTHING
        if item.name in known and item.name != LOOP_SHARE:
            loopless = _change(without.difference(item.name).change)
        cells = (_number(item.old.value), _number(item.new.value), _change(item.change), _number(item.detectable))
        clear = item.change.low > 0 or item.change.high < 0
        table.add_row(item.name, *cells, loopless, style="bold" if clear else None)
    return table


def outputs_lines(paired: Pair) -> list[str]:
    """Whether the outputs are the same tokens, and where they first differ."""
    different = [key for key in paired.keys if paired.first_difference(key) is not None]
    if not different:
        return [f"outputs: identical, token for token, in all {len(paired.keys)} requests"]
    return [
        f"outputs: {len(different)} of {len(paired.keys)} differ; the first is {_name(different[0])}: "
        f"{_where(paired, different[0])}"
    ]


def speed_lines(paired: Pair) -> list[str]:
    """Speed of B over A, if both ran in the same environment."""
    old, new = paired.old, paired.new
    hashes = {"checkpoint_hash", "prompt_set_hash", "code_hash", "seed"}
    entries = [entry for entry in differing(old.environment, new.environment) if entry.key not in hashes]
    if entries:
        return [f"speed: not compared, since the environment differs: {entries[0]}"]
    found = ratio(new.timings, old.timings, lambda timing: timing.rate)
    if found["value"] is None:
        return ["speed: not measured"]
    span = "no range, one timing each"
    if found["low"] is not None:
        span = f"[{found['low']:.3f}, {found['high']:.3f}], range over {found['n']} timing repeats"
    return [f"speed: tokens per second of B / A {found['value']:.3f} ({span})"]


def prompt_table(paired: Pair, num_prompts: int) -> Table:
    """The prompts whose tokens per step differ most."""
    changes = prompt_changes(paired)
    table = Table(title=f"prompts that differ most in tokens_per_step ({len(changes)} of {len(paired.keys)} differ)")
    table.add_column("prompt")
    table.add_column("category")
    for name in ("A", "B", "B - A"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("outputs")
    for item in changes[:num_prompts]:
        category = paired.old.outputs[item.key]["category"]
        numbers = (_number(item.old), _number(item.new), f"{item.change:+.3f}")
        table.add_row(_name(item.key), category, *numbers, _where(paired, item.key))
    return table


def definitions(shown: Sequence[Difference]) -> list[str]:
    """What the figures mean."""
    names = dict.fromkeys(item.name.partition("[")[0] for item in shown)
    return [f"detectable: {DETECTABLE}", *(f"{name}: {DEFINITIONS[name]}" for name in names)]


def _observed(metrics: PairedMetrics) -> list[Difference]:
    return [item for item in map(metrics.difference, metrics.names) if item.observed]


def _where(paired: Pair, key: Key) -> str:
    at = paired.first_difference(key)
    if at is None:
        return "identical"
    ids = [run.outputs[key]["output_ids"] for run in (paired.old, paired.new)]
    a, b = (str(tokens[at]) if at < len(tokens) else "the end" for tokens in ids)
    return f"token {at} is {a} in A, {b} in B"


def _name(key: Key) -> str:
    request_id, turn = key
    return f"{request_id} turn {turn}" if turn else request_id


def _number(value: float) -> str:
    return NOTHING if isnan(value) else f"{value:.3f}"


def _change(change: Estimate) -> str:
    if isnan(change.value):
        return NOTHING
    span = "" if isnan(change.low) else f" [{change.low:+.3f}, {change.high:+.3f}]"
    return f"{change.value:+.3f}{span}"


if __name__ == "__main__":
    sys.exit(main())
