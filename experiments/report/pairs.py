"""Pairs of runs on the same prompts, compared inside DuckDB request by request; holds no formula and draws nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from experiments.paired import Difference
from experiments.pairing import first_difference
from experiments.report.charts_pair import Both
from experiments.report.collect import FinishedRun
from experiments.report.rows import LIMITS, RowsError
from experiments.report.settings import unlike
from experiments.run_folder import OUTPUTS
from experiments.step_files import json_lines, step_sources
from specdec.bootstrap import Bootstrap
from specdec.errors import ConfigError
from specdec.metrics import FORMULAS, POSITION_FORMULAS, Steps, Terms

if TYPE_CHECKING:
    import duckdb

MAX_POSITIONS = 8
NUM_SHOWN = 10
SAME_PROMPTS = ("env.prompt_set_hash", "env.checkpoint_hash")
LINE_COLUMNS = {
    "request_id": "VARCHAR",
    "turn": "BIGINT",
    "category": "VARCHAR",
    "prompt_ids": "BIGINT[]",
    "output_ids": "BIGINT[]",
}
KEYS = """CREATE TABLE keys AS
    SELECT row_number() OVER (ORDER BY request_id, turn) - 1 AS number, request_id, turn, a.category AS category,
           a.output_ids = b.output_ids AS same, a.prompt_ids = b.prompt_ids AS same_prompt
    FROM old_outputs a JOIN new_outputs b USING (request_id, turn)"""
COLUMNS = """
    SELECT number, proposed, least(depth, verified) AS depth, accepted, emitted, cut <> 'none' AS is_cut, in_loop,
           coalesce(list_sum(overlap), 0) AS overlap_sum, coalesce(len(overlap), 0) AS overlap_num,
           proposed <> depth AS is_tree
    FROM {side}_steps JOIN keys USING (request_id, turn)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changed:
    """One of the prompts that differ most; ``where`` says how its outputs differ."""

    both: Both
    category: str
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PairFigures:
    """Two runs on the same prompts; A is ``old`` and B is ``new``.

    requests  every request with steps in both runs
    changed   those whose tokens per step differ most
    """

    old: FinishedRun
    new: FinishedRun
    differences: tuple[Difference, ...]
    requests: tuple[Both, ...]
    changed: tuple[Changed, ...]
    num_pairs: int
    num_same: int


def chosen_pair(runs: Sequence[FinishedRun]) -> tuple[FinishedRun, FinishedRun] | None:
    """The run of most tokens per step, and the run on its prompts that is most like it but for the drafter."""
    drafted = [run for run in runs if run.survival and run.tokens_per_step.value is not None]
    if not drafted:
        return None
    best = max(drafted, key=lambda run: (run.tokens_per_step.value or 0, -run.number))
    others = [run for run in drafted if run is not best and _same_prompts(run, best)]
    if not others:
        return None
    return min(others, key=lambda run: _distance(run, best)), best


def named_pair(runs: Sequence[FinishedRun], numbers: tuple[int, int]) -> tuple[FinishedRun, FinishedRun]:
    """The runs with these numbers; raises ConfigError when there are none."""
    known = {run.number: run for run in runs}
    for number in numbers:
        if number not in known:
            raise ConfigError(f"pair: there is no run #{number}; the finished runs are #1 to #{len(runs)}")
    return known[numbers[0]], known[numbers[1]]


def read_pair(old: FinishedRun, new: FinishedRun) -> PairFigures:
    """Compare two runs; raises RowsError when their rows cannot be read, or are not of the same prompts."""
    import duckdb  # here, since it is slow to import

    try:
        with duckdb.connect(config=LIMITS) as connection:
            for side, run in (("old", old), ("new", new)):
                lines = json_lines([run.path / OUTPUTS], LINE_COLUMNS)
                connection.execute(f"CREATE VIEW {side}_outputs AS {lines}")
                rows = " UNION ALL BY NAME ".join(step_sources([run.path]))
                connection.execute(f"CREATE VIEW {side}_steps AS {rows}")
            connection.execute(KEYS)
            return _compared(connection, old, new)
    except (OSError, duckdb.Error) as error:
        raise RowsError(f"{old.label} and {new.label} cannot be compared ({' '.join(str(error).split())})") from None


def _same_prompts(run: FinishedRun, other: FinishedRun) -> bool:
    return all(run.settings.get(key) == other.settings.get(key) for key in SAME_PROMPTS)


def _distance(run: FinishedRun, best: FinishedRun) -> tuple[int, bool, float]:
    others = [key for key in unlike(run.settings, best.settings) if not key.startswith("drafter")]
    return len(others), run.drafter == best.drafter, -(run.tokens_per_step.value or 0)


def _compared(connection: "duckdb.DuckDBPyConnection", old: FinishedRun, new: FinishedRun) -> PairFigures:
    keys = connection.execute(
        "SELECT request_id, turn, category, same, same_prompt FROM keys ORDER BY number"
    ).fetchall()
    if not keys or not all(same_prompt for _, turn, _, _, same_prompt in keys if turn == 0):
        raise RowsError(f"{old.label} and {new.label} are not runs of the same prompts")
    sides = [connection.execute(COLUMNS.format(side=side)).fetchnumpy() for side in ("old", "new")]
    requests = list(_requests([_name(key[0], key[1]) for key in keys], sides))
    most = sorted((one for one in requests if one[1].old != one[1].new), key=lambda one: -abs(one[1].new - one[1].old))
    return PairFigures(
        old=old,
        new=new,
        differences=tuple(_differences(sides, len(keys))),
        requests=tuple(both for _, both in requests),
        changed=tuple(
            Changed(both=both, category=keys[number][2], where=_where(connection, number, keys[number][3]))
            for number, both in most[:NUM_SHOWN]
        ),
        num_pairs=len(keys),
        num_same=sum(bool(same) for _, _, _, same, _ in keys),
    )


def _requests(names: Sequence[str], sides: Sequence[Mapping[str, np.ndarray]]) -> Iterator[tuple[int, Both]]:
    num = [np.bincount(side["number"].astype(np.int64), minlength=len(names)) for side in sides]
    emitted = [
        np.bincount(side["number"].astype(np.int64), weights=side["emitted"], minlength=len(names)) for side in sides
    ]
    for i, name in enumerate(names):
        if num[0][i] and num[1][i]:
            values = [float(emitted[k][i] / num[k][i]) for k in (0, 1)]
            yield i, Both(name=name, old=values[0], new=values[1], num_steps=(int(num[0][i]), int(num[1][i])))


def _differences(sides: Sequence[Mapping[str, np.ndarray]], num_pairs: int) -> Iterator[Difference]:
    """Every metric that either run has observed."""
    bootstrap = Bootstrap(num_pairs)
    steps = [_steps(side) for side in sides]
    depth = min(max(one.max_depth for one, _ in steps), MAX_POSITIONS)
    positions = [(f"survival[{i}]", i) for i in range(1, depth + 1)]
    for name, position in [*((name, 0) for name in FORMULAS), *positions]:
        old, new = (_terms(one, numbers, name, position) for one, numbers in steps)
        found = Difference(
            name=name,
            old=bootstrap.estimate(old),
            new=bootstrap.estimate(new),
            change=bootstrap.difference(new, old),
        )
        if found.observed:
            yield found


def _steps(side: Mapping[str, np.ndarray]) -> tuple[Steps, np.ndarray]:
    """Columns, with requests numbered without gaps, and the numbers in the pair."""
    numbers, request = np.unique(side["number"].astype(np.int64), return_inverse=True)
    whole = {name: side[name].astype(np.int64) for name in ("proposed", "depth", "accepted", "emitted", "overlap_num")}
    return Steps(
        request=request,
        is_cut=side["is_cut"].astype(bool),
        in_loop=side["in_loop"].astype(bool),
        overlap_sum=side["overlap_sum"].astype(np.float64),
        is_tree=bool(side["is_tree"].any()),
        **whole,
    ), numbers


def _terms(steps: Steps, numbers: np.ndarray, name: str, position: int) -> Terms:
    found = POSITION_FORMULAS["survival"](steps, position) if position else FORMULAS[name](steps)
    return replace(found, request=numbers[found.request])


def _where(connection: "duckdb.DuckDBPyConnection", number: int, same: bool) -> str:
    """How the outputs of a request differ."""
    if same:
        return "the same tokens"
    sql = """SELECT a.output_ids, b.output_ids FROM keys JOIN old_outputs a USING (request_id, turn)
             JOIN new_outputs b USING (request_id, turn) WHERE number = ?"""
    ((old, new),) = connection.execute(sql, [number]).fetchall()
    at = first_difference(old, new)
    assert at is not None, "outputs that are not equal differ somewhere"
    said = [f"token {ids[at]}" if at < len(ids) else "the end" for ids in (old, new)]
    return f"from token {at} on: {said[0]} in A, {said[1]} in B"


def _name(request_id: str, turn: int) -> str:
    return f"{request_id}, turn {turn}" if turn else request_id
