"""Drawings from plain values: marks, shades and the front of cost against gain; and what DuckDB sums of rows."""

from dataclasses import asdict
from pathlib import Path

import pytest

from experiments.report import theme
from experiments.report.charts_heat import Heat, HeatCell, heat
from experiments.report.charts_sweep import Spot, front, pareto
from experiments.report.collect import Measure, collect
from experiments.report.older import completed
from experiments.report.pairs import chosen_pair, read_pair
from experiments.report.rows import read_all, read_rows
from experiments.run_folder import read_json, read_jsonl
from specdec.metrics import DEFINITIONS


def spot(mark: str, cost: float, gain: float) -> Spot:
    return Spot(name=mark, mark=mark, style="s1", cost=cost, gain=Measure(value=gain, low=None, high=None, n=30))


def test_front_holds_what_no_other_run_beats() -> None:
    spots = [spot("cheap", 0.1, 1.2), spot("worse", 0.2, 1.1), spot("dear", 0.5, 2.0), spot("useless", 0.0, 1.0)]
    assert [one.mark for one in front(spots)] == ["cheap", "dear"]
    assert spots[2].predicted == pytest.approx(2.0 / 1.5)
    drawing = pareto(spots, names={"s1": "nextn"}, label="all")
    assert drawing.count('class="ring"') == 2
    assert drawing.count("<title>") == len(spots) + 1  # plain decoding is a mark, too


@pytest.mark.parametrize(("around", "classes"), [(None, theme.SHADES), (1.0, theme.SIDES)])
def test_shades_go_from_least_to_greatest(around: float | None, classes: tuple[str, ...]) -> None:
    values = (0.5, 1.0, 1.5)
    cells = {(0, j): HeatCell(value=value, text=f"{value}", tip=f"tip {value}") for j, value in enumerate(values)}
    content = Heat(rows=("a",), columns=("x", "y", "z", "absent"), cells=cells, around=around)
    drawing = heat(content, label="shades")
    shades = [part.split('"')[-2].split()[0] for part in drawing.split("<title>tip")[:3]]
    assert shades == [part.partition(" ")[0] for part in (classes[0], classes[len(classes) // 2], classes[-1])]
    assert "not measured" in drawing


def test_drafters_keep_their_colours_and_share_none() -> None:
    names = ["ngram", "nextn", "mine", "none", "other"]
    styles = theme.styles_of(names)
    assert (styles["nextn"], styles["ngram"]) == ("s1", "s2")
    assert len({styles[name] for name in names}) == len(names)
    assert styles == theme.styles_of(names[::-1])


def test_every_colour_has_both_themes() -> None:
    assert theme.LIGHT.keys() == theme.DARK.keys()
    assert set(theme.COLOURED) <= theme.LIGHT.keys()


def test_sums_are_those_of_the_summary(one: Path) -> None:
    rows, summary = read_rows(one), read_json(one / "summary.json")
    steps = read_jsonl(one / "steps.jsonl")
    (measure,) = rows.by_category.values()
    assert measure.value == pytest.approx(summary["tokens_per_step"]["value"])
    assert (measure.low, measure.high) == pytest.approx(
        (summary["tokens_per_step"]["low"], summary["tokens_per_step"]["high"])
    )
    assert rows.num_rounds == len({step["round"] for step in steps})
    assert sum(map(sum, rows.accepted.values())) == len(steps)
    (rate,) = rows.tokens_per_second.values()
    time_us = sum(step["draft_us"] + step["verify_us"] + step["other_us"] for step in steps)
    assert rate == pytest.approx(sum(step["emitted"] for step in steps) / time_us * 1e6)


def test_a_damaged_file_of_rows_spoils_its_own_run_only(one: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "status.json").write_bytes((one / "status.json").read_bytes())
    (broken / "steps.parquet").write_bytes(b"PAR1 nonsense PAR1")
    read, refused = read_all([one, broken])
    assert list(read) == [one] and list(refused) == [broken]


def test_a_pair_has_the_figures_of_both_runs(several: Path) -> None:
    runs = collect([several]).finished
    pair = chosen_pair(runs)
    assert pair is not None
    figures = read_pair(*pair)
    by_name = {one.name: one for one in figures.differences}
    tau = by_name["tokens_per_step"]
    assert (tau.old.value, tau.new.value) == pytest.approx(tuple(run.tokens_per_step.value for run in pair))
    assert tau.change.value == pytest.approx(tau.new.value - tau.old.value)
    assert (figures.num_pairs, figures.num_same) == (2, 2)
    assert {name.partition("[")[0] for name in by_name} <= DEFINITIONS.keys()


def test_an_older_summary_lacks_nothing_in_the_end() -> None:
    whole, remark = completed({"tokens_per_step": asdict(Measure(value=1.0, low=None, high=None, n=1))}, 0)
    assert whole["tokens_per_step"]["n"] == 1 and whole["speedup"]["n"] == 0
    assert "schema version 0" in remark and "speedup" in remark
