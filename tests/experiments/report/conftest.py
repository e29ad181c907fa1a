"""Runs of the toy target to report on, and a reader of pages."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest

from experiments import run

FAST = ("target=toy", "engine.threads=1", "engine.repeats=1", "sampling.max_new_tokens=24")
HOSTILE = "<script>alert('&')</script>"
VOID = {"meta"}


@dataclass(eq=False, repr=False)
class Element:
    """A tag with its attributes, all text below it, and the tags around it."""

    tag: str
    attributes: dict[str, str]
    around: tuple["Element", ...]
    text: str = ""

    @property
    def kinds(self) -> list[str]:
        return self.attributes.get("class", "").split()


@dataclass(eq=False, repr=False)
class Page(HTMLParser):
    """Every element of a page in order; fails on tags that are not closed in order."""

    source: str
    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def read(cls, path: Path) -> "Page":
        page = cls(path.read_text(encoding="utf-8"))
        page.feed(page.source)
        page.close()
        assert page.open == []
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(self.open))
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str, *, within: str = "", kind: str = "") -> list[Element]:
        """Elements by tag, by the id of the part that holds them, and by class."""
        return [
            element
            for element in self.elements
            if element.tag == tag
            and (not kind or kind in element.kinds)
            and (not within or any(outer.attributes.get("id") == within for outer in element.around))
        ]

    def parts(self) -> list[str]:
        return [element.attributes["id"] for element in self.all("section")]


@pytest.fixture(scope="session")
def read_page() -> Callable[[Path], Page]:
    """Reads a page; fails when its tags are not balanced."""
    return Page.read


@pytest.fixture(scope="session")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over prompts with hostile names, and in it its baseline."""
    folder = tmp_path_factory.mktemp("one")
    prompts = folder / "prompts.jsonl"
    rows = [{"id": f"{i}{HOSTILE}", "category": HOSTILE, "prompt": f"count to {i} and back"} for i in range(2)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    where = ("workload=file", f"workload.path={prompts}", f"hydra.run.dir={folder / 'run'}")
    assert run.main([*FAST, "drafter=nextn", "drafter.num_draft_tokens=3", *where]) == 0
    return folder / "run"


@pytest.fixture(scope="session")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two drafters and two draft lengths."""
    folder = tmp_path_factory.mktemp("several")
    swept = ("drafter=ngram,nextn", "drafter.num_draft_tokens=1,2", "workload.limit=2", f"hydra.sweep.dir={folder}")
    assert run.main(["-m", *FAST, *swept]) == 0
    return folder
