"""Charts of a page as files of their own: SVG that needs no style sheet, or PDF; draws nothing itself."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from experiments.extras import require
from experiments.report.theme import FONT, LIGHT, attributes_of
from specdec.errors import ConfigError

NAMESPACE = "http://www.w3.org/2000/svg"
DRAWING = re.compile(r"<svg .*?</svg>", re.DOTALL)
SECTION = re.compile(r'<section id="([a-z]+)"')
FORMATS = ("svg", "pdf")
MAX_NAME = 90
FONT_SIZE = "12px"


def charts_of(page: str) -> Iterator[tuple[str, str]]:
    """A name for a file, without an ending, and the standalone SVG of every chart of a page, in order."""
    used: dict[str, int] = {}
    for part in re.split(r"(?=<section )", page):
        section = SECTION.match(part)
        if section is None:
            continue
        for found in DRAWING.findall(part):
            drawing = ElementTree.fromstring(found)
            words = re.sub(r"[^a-z0-9.]+", "-", drawing.get("aria-label", "").lower()).strip("-.")
            name = f"{section.group(1)}-{words}"[:MAX_NAME].rstrip("-.")
            used[name] = used.get(name, 0) + 1
            yield (name if used[name] == 1 else f"{name}-{used[name]}"), standalone(drawing)


def standalone(drawing: ElementTree.Element) -> str:
    """An inline drawing with plain attributes in place of classes, in the light theme on a clear background."""
    drawing = ElementTree.fromstring(ElementTree.tostring(drawing))
    for element in drawing.iter():
        classes = element.attrib.pop("class", "").split()
        for name, value in attributes_of(classes).items():
            element.set(name, value.removesuffix("px"))
    _, _, width, height = drawing.attrib["viewBox"].split()
    label = drawing.attrib.pop("aria-label")
    drawing.attrib |= {
        "xmlns": NAMESPACE,
        "width": width,
        "height": height,
        "font-family": FONT,
        "font-size": FONT_SIZE.removesuffix("px"),
        "fill": LIGHT["ink"],
    }
    title = ElementTree.Element("title")
    title.text = label
    drawing.insert(0, title)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(drawing, encoding="unicode") + "\n"


def export(page: str, form: str, folder: Path) -> list[Path]:
    """Write every chart of a page into ``folder``, which it makes; raises MissingPackageError or ConfigError."""
    if form not in FORMATS:
        raise ConfigError(f"export must be one of {', '.join(FORMATS)}, got {form!r}")
    converted = converter(form)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, drawing in charts_of(page):
        path = folder / f"{name}.{form}"
        _write(path, converted(drawing))
        written.append(path)
    return written


def converter(form: str) -> Callable[[str], bytes]:
    """From standalone SVG to the bytes of a file; raises MissingPackageError, before anything is written."""
    if form == "svg":
        return str.encode
    require("vl_convert", extra="report", what="export=pdf")
    import vl_convert

    return vl_convert.svg_to_pdf


def _write(path: Path, content: bytes) -> None:
    """Replace ``path`` in one step."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
