"""How long a report over many runs takes, and how much memory: ``python -m experiments.bench_report [KEY=VALUE ...]``.

Makes run folders of drawn rows, all copies of one small toy run but for their rows and draft lengths, reports on them
in a process of its own and prints its time and peak memory. The default is a sweep of 200 runs of 40,000 rows.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.command import obey
from experiments.compact import step_columns
from experiments.run_folder import CONFIG, ENVIRONMENT, OUTPUTS, PARQUET, STATUS, SUMMARY
from specdec.errors import ConfigError

STEPS_PER_REQUEST = 100
CATEGORIES = ("code", "copy", "dictionary", "manual", "story", "table")
LENGTHS = (1, 2, 3, 4, 6, 8)
TEMPLATE = ("target=toy", "engine.threads=1", "engine.repeats=1", "sampling.max_new_tokens=8", "workload.limit=2")
KIB_PER_MIB = 1024
# Of each row: what is drawn, the rest is null. {length} drafts, accepted one after the other with probability 0.7.
DRAWN = """
    SELECT *, accepted + 1 AS emitted, accepted // {length} AS bonus,
           list_resize(draft_ids, accepted) || [7] AS output_ids
    FROM (
        SELECT 1 AS schema_version, 'request-' || lpad((i // {per})::VARCHAR, 5, '0') AS request_id, 0 AS turn,
               {categories}[i // {per} % {num_categories} + 1] AS category, i + 1 AS round, 1 AS num_live,
               i % {per} AS step, 64 + 3 * (i % {per}) AS seq_len,
               {length} AS proposed, {length} AS depth, {length} AS verified,
               least({length}, floor(ln(random()) / ln(0.7)))::BIGINT AS accepted, 'none' AS cut, false AS in_loop,
               300.0 * {length} + 20 * random() AS draft_us, 2000 + 100 * random() AS verify_us, 50.0 AS other_us,
               list_transform(range({length}), lambda x: 32 + (i * 31 + x * 7) % 90) AS draft_ids
        FROM (SELECT unnest(range({num_rows})) AS i)
    )"""
OUTPUT_LINES = """
    SELECT 1 AS schema_version, request_id, turn, category, [65, 66, 67] AS prompt_ids,
           [33] || flatten(list(output_ids ORDER BY step)) AS output_ids, '' AS text, 'length' AS finish_reason,
           count(*) AS num_steps, 0 AS num_preemptions, 100.0 AS first_token_us, 1000.0 AS total_us
    FROM steps GROUP BY request_id, turn, category ORDER BY request_id"""


REPORT = """
import sys
from pathlib import Path

from experiments.report.command import main

code = main(sys.argv[1:])
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
sys.exit(code)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a report took: seconds from start to end of its process, and its peak memory in MiB."""

    time_s: float
    memory_mib: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    assert __doc__ is not None, "the docstring is the help"
    return obey(arguments, __doc__, _report)


def _report(arguments: Sequence[str]) -> None:
    """Make the runs, report on them, print the cost; raises ConfigError for another key."""
    settings = {"num_runs": "200", "num_rows": "40000", "folder": ""}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in settings:
            raise ConfigError(f"{argument}: the keys are {', '.join(settings)}")
        if key != "folder" and not (value.isdecimal() and int(value)):
            raise ConfigError(f"{key} must be an integer of at least 1, got {value!r}")
        settings[key] = value
    num_runs, num_rows = int(settings["num_runs"]), int(settings["num_rows"])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(settings["folder"] or temporary)
        if not any(folder.glob(f"*/{SUMMARY}")):
            make_runs(folder, num_runs=num_runs, num_rows=num_rows)
        cost = measure(folder, Path(temporary) / "report.html")
    print(f"{num_runs} runs of {num_rows} rows: {cost.time_s:.1f} s, {cost.memory_mib:.0f} MiB")


def make_runs(folder: Path, *, num_runs: int, num_rows: int) -> None:
    """Write ``num_runs`` finished run folders below ``folder``, each with ``num_rows`` drawn rows in Parquet alone."""
    from experiments import run

    template = folder / "template"
    assert run.main([*TEMPLATE, f"hydra.run.dir={template}", "baseline=off"]) == 0, "the toy runs"
    for number in range(num_runs):
        _make_run(folder / f"run-{number:04}", template, number, num_rows)
    shutil.rmtree(template)


def measure(folder: Path, out: Path) -> Cost:
    """Report on ``folder`` in a process of its own; raises CalledProcessError when the report fails.

    The process tells its own peak: what the system accounts to a child begins with the parent's.
    """
    command = [sys.executable, "-c", REPORT, str(folder), f"out={out}"]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    time_s = time.perf_counter() - start
    return Cost(time_s=time_s, memory_mib=int(done.stdout.split()[-1]) / KIB_PER_MIB)


def _make_run(folder: Path, template: Path, number: int, num_rows: int) -> None:
    import duckdb

    length, seed = LENGTHS[number % len(LENGTHS)], number // len(LENGTHS)
    folder.mkdir(parents=True)
    for name in (ENVIRONMENT, STATUS):
        shutil.copy(template / name, folder / name)
    config = (template / CONFIG).read_text(encoding="utf-8")
    config = config.replace("num_draft_tokens: 3", f"num_draft_tokens: {length}")
    (folder / CONFIG).write_text(config.replace("  seed: 0", f"  seed: {seed}"), encoding="utf-8")
    drawn = DRAWN.format(
        length=length,
        per=STEPS_PER_REQUEST,
        categories=list(CATEGORIES),
        num_categories=len(CATEGORIES),
        num_rows=num_rows,
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(f"SELECT setseed({number / 1000})")
        connection.execute(f"CREATE TABLE drawn AS {drawn}")
        known = {row[0] for row in connection.execute("DESCRIBE drawn").fetchall()}
        columns = ", ".join(
            f"{name if name in known else 'NULL'}::{kind} AS {name}" for name, kind in step_columns().items()
        )
        connection.execute(f"CREATE TABLE steps AS SELECT {columns} FROM drawn")
        connection.execute(f"COPY steps TO '{folder / PARQUET}' (FORMAT parquet)")
        connection.execute(f"COPY ({OUTPUT_LINES}) TO '{folder / OUTPUTS}' (FORMAT json)")
        counted = connection.execute("SELECT accepted, count(*) FROM steps GROUP BY ALL ORDER BY ALL").fetchall()
    _write_summary(folder, template, counted, num_rows, length)


def _write_summary(
    folder: Path, template: Path, counted: Sequence[tuple[int, int]], num_rows: int, length: int
) -> None:
    """A summary like the template's with the figures of these rows that the report shows beside drawn ones."""
    summary = json.loads((template / SUMMARY).read_text(encoding="utf-8"))
    emitted = sum((accepted + 1) * num for accepted, num in counted) / num_rows
    summary["tokens_per_step"] = {"value": emitted, "low": emitted - 0.05, "high": emitted + 0.05, "n": num_rows}
    summary["accepted_histogram"] = [num for _, num in counted]
    summary["num_steps"] = num_rows
    summary["drafter"]["num_draft_tokens"] = length
    (folder / SUMMARY).write_text(json.dumps(summary), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
