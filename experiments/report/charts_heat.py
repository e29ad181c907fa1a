"""Heat maps: a number in every cell and a shade behind it; knows no files and no page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.report import svg
from experiments.report.theme import NUM_SHADES, NUM_SIDES, SHADES, SIDES

ROW = 30
MOST_LABEL = 34
SLOPE = -38
ABSENT = "m0"
BESIDE = 52
SMALLEST_STEP = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatCell:
    """A cell: its value for the shade, what it shows, and what it tells when a pointer rests on it."""

    value: float
    text: str
    tip: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Heat:
    """A heat map without a form.

    cells    by place of row and column; a missing one was not measured
    beside   a word at the end of each row, such as its n
    around   None for shades from the least to the greatest value; a number for shades on both sides of it
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: Mapping[tuple[int, int], HeatCell]
    beside: tuple[str, ...] = ()
    around: float | None = None
    columns_are: str = ""
    rows_are: str = ""


def heat(content: Heat, *, label: str, cell: int = 58) -> str:
    """The drawing, with a key of its shades below."""
    slanted = any(svg.text_width(name) > cell - 6 for name in content.columns)
    names = [svg.short(name, MOST_LABEL) for name in content.rows]
    left = 14 + max(svg.text_width(name) for name in (*names, content.rows_are))
    longest = max(svg.text_width(name) for name in content.columns)
    top = (18 + longest * 0.62 if slanted else 24) + (18 if content.columns_are else 0)
    width = (
        left
        + cell * len(content.columns)
        + max(BESIDE if content.beside else 8, longest * 0.7 - cell / 2 if slanted else 0)
    )
    parts = _headings(content, left, top, cell, slanted=slanted)
    shades = _Shades([found.value for found in content.cells.values()], content.around)
    for i, name in enumerate(names):
        y = top + ROW * i
        parts.append(svg.text(name, left - 8, y + ROW / 2 + 4, style="tick", anchor="end"))
        for j in range(len(content.columns)):
            parts += _cell(content.cells.get((i, j)), left + cell * j, y, cell, shades)
        if content.beside:
            end = left + cell * len(content.columns) + 6
            parts.append(svg.text(content.beside[i], end, y + ROW / 2 + 4, style="small", anchor="start"))
    bottom = top + ROW * len(names)
    parts += shades.key(left, bottom + 12)
    return svg.drawing(max(width, left + 200), bottom + 46, label, parts)


def _headings(content: Heat, left: float, top: float, cell: int, *, slanted: bool) -> list[str]:
    middle = left + cell * len(content.columns) / 2
    parts = [svg.text(content.columns_are, middle, 13, style="small")] if content.columns_are else []
    if content.rows_are:
        parts.append(svg.text(content.rows_are, left - 8, top - 8, style="small", anchor="end"))
    for j, name in enumerate(content.columns):
        x = left + cell * (j + 0.5)
        turned, anchor = (SLOPE, "start") if slanted else (0, "middle")
        parts.append(svg.text(svg.short(name, MOST_LABEL), x, top - 8, style="tick", anchor=anchor, turned=turned))
    return parts


def _cell(found: HeatCell | None, x: float, y: float, cell: int, shades: "_Shades") -> list[str]:
    if found is None:
        tip = "not measured"
        return [
            svg.rect(x + 1, y + 1, cell - 2, ROW - 2, style=f"{ABSENT} fill", tip=tip),
            svg.text("-", x + cell / 2, y + ROW / 2 + 4, style="small"),
        ]
    return [
        svg.rect(x + 1, y + 1, cell - 2, ROW - 2, style=f"{shades(found.value)} fill", tip=found.tip),
        svg.text(found.text, x + cell / 2, y + ROW / 2 + 4, style="tick"),
    ]


class _Shades:
    """From values to shades, in equal steps; holds nothing but the steps."""

    def __init__(self, values: Sequence[float], around: float | None) -> None:
        low, high = min(values, default=0.0), max(values, default=1.0)
        self._classes = SHADES if around is None else SIDES
        if around is None:
            self._low, self._step = low, max((high - low) / NUM_SHADES, 1e-9)
        else:
            reach = max(high - around, around - low)
            self._step = max(reach / (NUM_SIDES + 0.5), SMALLEST_STEP)
            self._low = around - (NUM_SIDES + 0.5) * self._step

    def __call__(self, value: float) -> str:
        place = int((value - self._low) / self._step + 1e-9)
        return self._classes[min(max(place, 0), len(self._classes) - 1)]

    def key(self, x: float, y: float) -> list[str]:
        """Every shade with the least and the greatest value."""
        parts = [
            svg.rect(x + 18 * i, y, 18, 9, style=f"{shade} fill", tip=self._range(i))
            for i, shade in enumerate(self._classes)
        ]
        width = 18 * len(self._classes)
        ends = (max(self._low, 0.0), self._low + self._step * len(self._classes))
        parts.append(svg.text(f"{ends[0]:.2f}", x, y + 23, style="small", anchor="start"))
        parts.append(svg.text(f"{ends[1]:.2f}", x + width, y + 23, style="small", anchor="end"))
        return parts

    def _range(self, place: int) -> str:
        low = self._low + self._step * place
        return f"{max(low, 0.0):.2f} to {low + self._step:.2f}"
