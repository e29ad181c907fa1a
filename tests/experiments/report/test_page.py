"""The page: its parts, tables and marks for one run and for several; nothing fetched, everything escaped."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.report.command import main
from experiments.run_folder import read_json, read_jsonl

Page = Any  # conftest.Page, which import mode importlib does not let a test import
Report = Callable[[Path], Page]
HOSTILE = "<script>alert('&')</script>"
ALWAYS = ["runs", "time", "acceptance", "accepted", "categories", "tokens", "lossless"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, read_page: Report) -> Report:
    """Reports on a folder and reads the page."""

    def reported(folder: Path) -> Page:
        out = tmp_path_factory.mktemp("page") / "report.html"
        assert main([str(folder), f"out={out}"]) == 0
        return read_page(out)

    return reported


@pytest.fixture(scope="module")
def one_page(one: Path, report: Report) -> Page:
    return report(one)


@pytest.fixture(scope="module")
def page(several: Path, report: Report) -> Page:
    return report(several)


def headings(page: Page) -> list[str]:
    table = page.all("table", within="runs", kind="sortable")[0]
    return [head.text for head in page.all("th", within="runs") if table in head.around]


def marks(page: Page, tag: str, *, within: str) -> int:
    return len([mark for mark in page.all(tag, within=within) if "fill" in mark.kinds])


def test_one_run_has_every_view_but_the_comparing_one(one_page: Page) -> None:
    assert one_page.parts() == ALWAYS
    assert len(one_page.all("svg")) == 6
    assert all(drawing.attributes["aria-label"] for drawing in one_page.all("svg"))
    links = [link.attributes["href"] for link in one_page.all("a")]
    assert links == [f"#{part}" for part in one_page.parts()]


def test_nothing_is_fetched_from_anywhere(page: Page) -> None:
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttp|import\(", page.source)
    assert {element.tag for element in page.elements}.isdisjoint({"link", "img", "iframe", "object", "base"})
    assert not [element for element in page.elements if "src" in element.attributes]
    policies = [meta.attributes.get("content", "") for meta in page.all("meta") if "http-equiv" in meta.attributes]
    assert policies[0].startswith("default-src 'none'")


def test_what_a_run_brings_is_text(one_page: Page) -> None:
    (script,) = one_page.all("script")
    assert "alert" not in script.text
    assert HOSTILE[:15] in "".join(drawing.text for drawing in one_page.all("svg", within="categories"))
    assert all(HOSTILE in output.text for output in one_page.all("h3", within="tokens"))


def test_tokens_show_their_origin_and_step(one: Path, one_page: Page) -> None:
    outputs = read_jsonl(one / "outputs.jsonl")
    steps = read_jsonl(one / "steps.jsonl")
    shown = one_page.all("pre", within="tokens")
    assert len(shown) == len(outputs)
    for text, output in zip(shown, outputs, strict=True):
        tokens = [token for token in one_page.all("span", kind="t") if text in token.around]
        own = [step for step in steps if step["request_id"] == output["request_id"]]
        assert len(tokens) == len(output["output_ids"])
        assert [token.attributes["tabindex"] for token in tokens] == ["0"] + ["-1"] * (len(tokens) - 1)
        assert all(
            f"id {id_}" in token.attributes["title"] for token, id_ in zip(tokens, output["output_ids"], strict=True)
        )
        assert "first" in tokens[0].kinds
        accepted = [token for token in tokens if {"a1", "a2", "a3"} & set(token.kinds)]
        assert len(accepted) == sum(min(step["accepted"], step["emitted"]) for step in own)
        given = [step for step in own if step["bonus"] and step["verified"] and step["emitted"] > step["accepted"]]
        assert len([token for token in tokens if "bonus" in token.kinds]) == len(given)


def test_every_part_defines_its_figures(one_page: Page) -> None:
    defined = {part: [word.text for word in one_page.all("dt", within=part)] for part in one_page.parts()}
    assert {"tokens_per_step", "speedup", "loop_token_share", "n steps"} <= set(defined["runs"])
    assert defined["acceptance"] == ["survival", "conditional"]
    assert defined["accepted"] == ["draft_acceptance_rate"]
    assert defined["categories"] == ["tokens_per_step", "speed-up by category"]


def test_marks_are_those_of_the_summary(one: Path, one_page: Page) -> None:
    summary = read_json(one / "summary.json")
    seen = len([entry for entry in summary["survival"] if entry["value"] is not None])
    assert marks(one_page, "circle", within="acceptance") == seen + 1  # the legend has one too
    few = [mark for mark in one_page.all("circle", within="acceptance") if "few" in mark.kinds]
    assert len(few) == len([entry for entry in summary["survival"] if 0 < entry["n"] < 20])
    assert marks(one_page, "rect", within="accepted") == len(summary["accepted_histogram"])
    said = one_page.all("figcaption", within="accepted")[0].text
    assert f"n = {summary['num_steps']} steps" in said


def test_only_settings_that_differ_are_columns(page: Page, one_page: Page) -> None:
    figures = [
        "tokens_per_step",
        "without loops",
        "n steps",
        "lossless",
        "loop_token_share",
        "speedup",
        "speedup_decode",
    ]
    assert headings(page)[:3] == ["run", "drafter", "num_draft_tokens"]
    assert [name for name in headings(page) if name in figures] == figures
    assert "sampling.temperature" not in headings(page)
    assert headings(one_page)[:3] == ["run", "drafter", "num_draft_tokens"]


def test_several_runs_are_compared(page: Page) -> None:
    assert page.parts() == ["runs", "speedup", "pareto", *ALWAYS[1:-1], "pair", "lossless"]
    runs, drafted, drafters = 5, 4, 2
    table = page.all("table", within="runs", kind="sortable")[0]
    assert len([row for row in page.all("tr", within="runs") if table in row.around]) == runs + 1
    for part in ("acceptance", "accepted"):
        assert len(page.all("svg", within=part)) == drafted
    assert len(page.all("svg", within="categories")) == drafted + 2
    assert marks(page, "circle", within="speedup") == drafted + drafters
    assert len([line for line in page.all("line", within="speedup") if "one" in line.kinds]) == 1
    assert marks(page, "rect", within="time") == 3 * runs + 3
    assert len([block for block in page.all("details", within="tokens")]) == drafted


def test_losslessness_says_how(page: Page, several: Path) -> None:
    cells = [cell.text for cell in page.all("td", within="lossless")]
    assert cells.count("identical to the baseline, token for token") == 4
    assert cells.count("not compared") == 1
    assert len([cell for cell in cells if "verifier gumbel" in cell]) == 5


def test_cells_sort_by_their_value(page: Page) -> None:
    table = page.all("table", within="runs", kind="sortable")[0]
    keys = [cell.attributes["data-sort"] for cell in page.all("td") if table in cell.around]
    drafted = keys[2 :: len(headings(page))]
    assert drafted == ["1.0", "2.0", "1.0", "2.0", "-inf"]
