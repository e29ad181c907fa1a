"""The page in headless Chromium: no request, no complaint, everything drawn in its place, and the keyboard's way."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from experiments.report.command import main

WIDE, NARROW = 1400, 420
WAYS = [(width, scheme) for width in (WIDE, NARROW) for scheme in ("light", "dark")]


def neighbour(name: str) -> ModuleType:
    """A module of this folder, which import mode importlib does not put on the path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = neighbour("browser")
    program = driver.executable()
    if program is None:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    with driver.browser(program, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def report(several: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("browser") / "report.html"
    assert main([str(several), f"out={out}"]) == 0
    return out


@pytest.mark.parametrize(("width", "scheme"), WAYS)
def test_the_page_is_whole_and_quiet(opened: Any, report: Path, tmp_path: Path, width: int, scheme: str) -> None:
    opened.complaints.clear()
    opened.requests.clear()
    opened.open(report, width=width, scheme=scheme)
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]
    counted = "[...document.querySelectorAll('main > section')].map(s => s.id)"
    assert opened.ask(counted)[:3] == ["runs", "speedup", "pareto"]
    assert opened.ask("document.querySelectorAll('#runs tbody tr').length") == 2 * 5  # of runs, and of folders
    assert opened.ask("document.querySelectorAll('#pareto circle.fill').length") == 4 + 2  # runs, and a legend
    drawn = "[...document.querySelectorAll('svg')].filter((drawing) => drawing.checkVisibility())"
    assert opened.ask(f"{drawn}.filter((drawing) => drawing.getBoundingClientRect().width < 90).length") == 0
    assert opened.ask("document.documentElement.scrollWidth") <= width, "only frames scroll sideways"
    picture = tmp_path / "page.png"
    opened.picture(picture)
    assert picture.stat().st_size > 20_000


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => { const [r, g, b] = parts(colour).slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  for (const cell of document.querySelectorAll('#categories rect.fill + text.tick'))
    found.push(ratio(getComputedStyle(cell).fill, getComputedStyle(cell.previousElementSibling).fill));
  for (const token of document.querySelectorAll('#tokens .tokens .t'))
    found.push(ratio(getComputedStyle(token).color, getComputedStyle(token).backgroundColor));
  const page = getComputedStyle(document.body);
  found.push(ratio(page.color, page.backgroundColor));
  return Math.min(...found);
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(opened: Any, report: Path, scheme: str) -> None:
    opened.open(report, width=WIDE, scheme=scheme)
    assert opened.ask(CONTRAST) >= 4.5


def test_themes_differ(opened: Any, report: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        opened.open(report, width=WIDE, scheme=scheme)
        grounds.append(opened.ask("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


TOLD = "(() => { const told = document.querySelector('.told'); return told.hidden ? '' : told.textContent; })()"


def test_the_keyboard_shows_what_the_pointer_shows(opened: Any, report: Path) -> None:
    opened.open(report, width=WIDE, scheme="light")
    titles = opened.ask("[...document.querySelector('.output').querySelectorAll('.t')].slice(0, 3).map(t => t.title)")
    opened.ask("document.querySelector('#tokens summary').focus()")
    opened.press("Tab")
    assert opened.ask(TOLD) == titles[0] != ""
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    by_key = opened.ask(TOLD)
    assert by_key == titles[2]
    assert opened.ask("document.activeElement.classList.contains('chosen')")
    opened.press("Escape")
    assert opened.ask(TOLD) == ""
    opened.press("Home")
    assert opened.ask(TOLD) == titles[0]
    opened.open(report, width=WIDE, scheme="light")
    place = opened.ask(
        "(() => { const token = document.querySelectorAll('.output .t')[2]; token.scrollIntoView({block: 'center'}); "
        "const box = token.getClientRects()[0]; return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    opened.point(*place)
    assert opened.ask(TOLD) == by_key


def test_a_heading_sorts_and_says_so(opened: Any, report: Path) -> None:
    opened.open(report, width=WIDE, scheme="light")
    press = "document.querySelectorAll('#runs .sortable th button')[2].click()"
    column = "[...document.querySelectorAll('#runs .sortable tbody tr')].map(r => r.cells[2].textContent)"
    opened.ask(press)
    assert opened.ask(column) == ["-", "1", "1", "2", "2"]
    opened.ask(press)
    assert opened.ask(column) == ["2", "2", "1", "1", "-"]
    assert opened.ask("document.querySelector('#runs th[aria-sort]').getAttribute('aria-sort')") == "descending"
