"""The table that a sweep ends with: one row a finished job, and once what its figures mean."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from experiments.app import Job
from experiments.run_folder import SUMMARY, Status, read_json, status_of
from experiments.table import NOTHING, ONE_TIMING, busy_lines, definitions, interval, is_one_timing, lossless_text
from experiments.terminal import table_console

LENGTH = "drafter.num_draft_tokens"
DEFINED = ("tokens_per_step", "speedup")


def show_sweep(jobs: Sequence[Job]) -> None:
    """Print the table of the jobs that are done, in their order; jobs that share a folder are one."""
    done = list({job.folder: job for job in reversed(jobs) if status_of(job.folder) is Status.DONE}.values())[::-1]
    if not done:
        return
    summaries = [read_json(job.folder / SUMMARY) for job in done]
    console = table_console()
    console.print(sweep_table(done, summaries))
    lines = [f"folders: {_shown(done[0].folder.parent)}/FOLDER (its summary.json defines every figure of the job)"]
    if any(is_one_timing(summary["speedup"]) for summary in summaries):
        lines.append(ONE_TIMING)
    num_busy = sum(bool(busy_lines(summary)) for summary in summaries)
    if num_busy:
        lines.append(
            f"warning: the machine was busy during {num_busy} of {len(done)} jobs or their baselines; "
            "the wall-clock speed-up of these is unreliable (each says so under its own table)"
        )
    for line in [*lines, *definitions(summaries[0], DEFINED)]:
        console.print(line, markup=False, soft_wrap=True)


def sweep_table(jobs: Sequence[Job], summaries: Sequence[dict]) -> Table:
    """A row a job: the settings in which the jobs differ, and their figures."""
    settings = with_lengths([settings_of(job.overrides) for job in jobs], summaries)
    keys = differing(settings)
    table = Table(title=f"sweep of {len(jobs)} jobs")
    for key in keys:
        table.add_column(key, overflow="fold")
    for heading in ("tokens per step", "lossless", "speedup"):
        table.add_column(heading, justify="right")
    table.add_column("folder", no_wrap=True)
    for job, own, summary in zip(jobs, settings, summaries, strict=True):
        figures = [interval(summary["tokens_per_step"]), lossless_text(summary["lossless"])]
        figures.append(interval(summary["speedup"]))
        table.add_row(*(own.get(key, NOTHING) for key in keys), *figures, job.folder.name)
    return table


def settings_of(overrides: Sequence[str]) -> dict[str, str]:
    """Value by key of command-line overrides."""
    pairs = (line.lstrip("+~").partition("=") for line in overrides)
    return {key: value for key, _, value in pairs}


def with_lengths(settings: Sequence[dict[str, str]], summaries: Sequence[dict]) -> list[dict[str, str]]:
    """Settings with the length of drafts, as the class of a drafter decides it where the command line does not.

    They stay as they are when all drafts have the same length; plain decoding has none.
    """
    lengths = [summary.get("drafter", {}).get("num_draft_tokens") for summary in summaries]
    if len({length for length in lengths if length}) < 2:
        return list(settings)
    pairs = zip(settings, lengths, strict=True)
    return [{**own, LENGTH: own.get(LENGTH, str(length))} if length else own for own, length in pairs]


def differing(settings: Sequence[dict[str, str]]) -> list[str]:
    """Keys that not all of these have with the same value, in order of appearance."""
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({own.get(key) for own in settings}) > 1]


def _shown(folder: Path) -> Path:
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
