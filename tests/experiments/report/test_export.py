"""Charts as files: standalone SVG with every mark of the page, PDF where its package is, and a name for what is not."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from experiments.report.command import main

ReadPage = Callable[[Path], Any]
SVG = "{http://www.w3.org/2000/svg}"


def test_every_chart_is_a_file_that_needs_no_style_sheet(several: Path, read_page: ReadPage, tmp_path: Path) -> None:
    out, charts = tmp_path / "report.html", tmp_path / "charts"
    assert main([str(several), f"out={out}", "export=svg", f"out_dir={charts}"]) == 0
    page, files = read_page(out), sorted(charts.iterdir())
    assert len(files) == len(page.all("svg"))
    drawn = [ElementTree.fromstring(path.read_bytes()) for path in files]
    for root in drawn:
        assert root.tag == f"{SVG}svg" and root[0].tag == f"{SVG}title" and root[0].text
        assert not [element for element in root.iter() if "class" in element.attrib]
        assert "var(" not in ElementTree.tostring(root, encoding="unicode")
        visible = [element for element in root.iter() if element.tag in (f"{SVG}rect", f"{SVG}circle")]
        assert all("fill" in element.attrib for element in visible)
    for tag in ("rect", "circle", "path"):
        assert sum(len(list(root.iter(f"{SVG}{tag}"))) for root in drawn) == len(page.all(tag))
    assert any(path.name.startswith("pareto-") for path in files)


def test_pdf_needs_its_package_or_writes_pages(one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    charts = tmp_path / "charts"
    code = main([str(one), f"out={tmp_path / 'report.html'}", "export=pdf", f"out_dir={charts}"])
    if find_spec("vl_convert") is None:
        assert code == 2
        assert "export=pdf needs the package vl_convert: pip install" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
    else:
        assert code == 0
        assert charts.iterdir() and all(path.read_bytes().startswith(b"%PDF") for path in charts.iterdir())


def test_a_pair_may_be_named(several: Path, read_page: ReadPage, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert main([str(several), f"out={out}", "pair=1,5"]) == 0
    lead = read_page(out).all("p", within="pair", kind="lead")[0].text
    assert "A is #1" in lead and "B is #5 none" in lead
    assert main([str(several), f"out={out}", "pair=1,9"]) == 2
