"""The drawings over many runs: speed-up against draft length, and cost against gain; knows no files and no page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.report import svg
from experiments.report.charts import LEFT, RIGHT, TOP, WIDTH, said, with_bands, y_axis
from experiments.report.collect import Measure
from experiments.report.svg import Scale

DASHES = ("", "d1", "d2", "d3")
MARGIN_RIGHT = 40
PARETO_WIDTH = 640
HEADROOM = 1.08
PLAIN_GAIN = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A drafter in a drawing against draft length. ``dash`` tells apart lines of one drafter."""

    name: str
    style: str
    dash: int
    points: tuple[tuple[int, Measure], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """A run in the drawing of cost against gain.

    cost  draft milliseconds over verify milliseconds
    gain  tokens per step
    """

    name: str
    mark: str
    style: str
    cost: float
    gain: Measure

    @property
    def predicted(self) -> float:
        """Speed-up if a verify pass costs what a plain pass costs and nothing else takes time."""
        return (self.gain.value or 0.0) / (1 + self.cost)


def speedups(lines: Sequence[Line], *, lengths: Sequence[int], high: float, label: str) -> str:
    """Speed-up against draft length; the heavy line at 1.0 is plain decoding. Panels of one sweep share their axes."""
    top = TOP + 16 * len(lines)
    bottom = top + 170
    values = svg.ticks(max(high, 1.25))
    y = Scale(low=0, high=values[-1], start=bottom, end=top)
    x = Scale(low=lengths[0] - 0.5, high=lengths[-1] + 0.5, start=LEFT, end=WIDTH - RIGHT)
    parts = y_axis(y, values)
    parts.append(svg.line(LEFT, y(1), WIDTH - RIGHT, y(1), style="one"))
    parts += [svg.text(length, x(length), bottom + 16, style="tick") for length in _spread(lengths)]
    parts.append(svg.text("drafted tokens a step", (LEFT + WIDTH - RIGHT) / 2, bottom + 34, style="tick"))
    for i, line in enumerate(lines):
        dash = DASHES[line.dash % len(DASHES)]
        parts.append(
            svg.path(((LEFT, 14 + 16 * i), (LEFT + 20, 14 + 16 * i)), style=f"{line.style} line {dash}".strip())
        )
        parts.append(svg.circle(LEFT + 10, 14 + 16 * i, 3.4, style=f"{line.style} fill"))
        parts.append(svg.text(svg.short(line.name, 46), LEFT + 27, 18 + 16 * i, style="tick", anchor="start"))
        shift = 3.0 * (i - (len(lines) - 1) / 2)
        placed = [(x(at) + shift, one, at) for at, one in line.points if one.value is not None]
        parts += with_bands([(at, one) for at, one, _ in placed], y, line.style, few=0, dash=dash)
        for at, one, length in placed:
            tip = f"{line.name}, {length} drafted: {said(one, unit='repeats')}"
            parts.append(svg.circle(at, y(one.value or 0), 4, style=f"{line.style} fill", tip=tip))
    return svg.drawing(WIDTH, bottom + 42, label, parts)


def pareto(spots: Sequence[Spot], *, names: Mapping[str, str], label: str) -> str:
    """Tokens per step against relative draft cost; ``names`` are the drafters by their style.

    Along a dashed line the predicted speed-up is the same. Ringed runs are beaten in cost and gain by no other.
    """
    width, bottom = PARETO_WIDTH, 350
    values_x = svg.ticks(max(0.1, *(spot.cost for spot in spots)) * HEADROOM, most=6)
    values_y = svg.ticks(
        max(1.5, *(spot.gain.high or spot.gain.value or 1 for spot in spots)) * HEADROOM, low=1, most=6
    )
    x = Scale(low=0, high=values_x[-1], start=LEFT, end=width - MARGIN_RIGHT)
    y = Scale(low=1, high=values_y[-1], start=bottom, end=TOP + 10)
    parts = y_axis(y, values_y, right=width - MARGIN_RIGHT)
    parts += [svg.text(svg.shown(value), x(value), bottom + 16, style="tick") for value in values_x]
    parts.append(svg.line(LEFT, bottom, width - MARGIN_RIGHT, bottom, style="axis"))
    parts.append(svg.text("tokens per step", 4, 12, style="tick", anchor="start"))
    told = "draft time / verify time, per round"
    parts.append(svg.text(told, (LEFT + width - MARGIN_RIGHT) / 2, bottom + 34, style="tick"))
    parts += _contours(x, y)
    best = front(spots)
    parts.append(svg.path([(x(0), y(1)), *((x(spot.cost), y(spot.gain.value or 1)) for spot in best)], style="front"))
    parts.append(svg.square(x(0), y(1), 4.5, style="plainly fill", tip="plain decoding: one token a step, no drafts"))
    taken: list[tuple[float, float]] = []
    for spot in spots:
        parts += _spot(spot, x, y, ringed=spot in best)
        taken.append((x(spot.cost), y(spot.gain.value or 1)))
    for spot in sorted(spots, key=lambda spot: spot not in best):
        parts += _named_spot(spot, x(spot.cost), y(spot.gain.value or 1), taken, bottom)
    parts += _names(names, width)
    return svg.drawing(width, bottom + 42, label, parts)


def front(spots: Sequence[Spot]) -> list[Spot]:
    """Runs that no other beats in cost and gain, by cost; plain decoding costs nothing and gains one token a step."""
    best: list[Spot] = []
    for spot in sorted(spots, key=lambda spot: (spot.cost, -(spot.gain.value or 0))):
        if (spot.gain.value or 0) > (best[-1].gain.value or 0 if best else PLAIN_GAIN):
            best.append(spot)
    return best


def _contours(x: Scale, y: Scale) -> list[str]:
    """Lines ``gain = speed-up * (1 + cost)`` inside the frame, labelled where they leave it."""
    parts = []
    for speedup in svg.ticks(y.high, most=8)[1:]:
        start = max(0.0, 1 / speedup - 1)
        end = min(x.high, y.high / speedup - 1)
        if end <= start:
            continue
        (x1, y1), (x2, y2) = ((x(cost), y(speedup * (1 + cost))) for cost in (start, end))
        parts.append(svg.line(x1, y1, x2, y2, style="one" if speedup == 1 else "contour"))
        beside = end == x.high
        told = f"{speedup:g}\N{MULTIPLICATION SIGN}"
        place = (x2 + 5, y2 + 4, "start") if beside else (x2, y2 - 5, "middle")
        parts.append(svg.text(told, place[0], place[1], style="small", anchor=place[2]))
    return parts


def _spot(spot: Spot, x: Scale, y: Scale, *, ringed: bool) -> list[str]:
    at, value = x(spot.cost), y(spot.gain.value or 1)
    parts = []
    if spot.gain.low is not None and spot.gain.high is not None:
        parts.append(svg.line(at, y(max(spot.gain.low, 1)), at, y(spot.gain.high), style=f"{spot.style} thin"))
    if ringed:
        parts.append(svg.circle(at, value, 8, style="ring"))
    tip = (
        f"{spot.name}: tokens per step {said(spot.gain)}; draft / verify {spot.cost:.3f}; "
        f"predicted {spot.predicted:.2f}"
    )
    return [*parts, svg.circle(at, value, 5, style=f"{spot.style} fill", tip=tip)]


def _named_spot(spot: Spot, x: float, y: float, taken: list[tuple[float, float]], bottom: float) -> list[str]:
    """The number of the run beside its mark, where nothing else stands; else its tip alone tells it."""
    width = svg.text_width(spot.mark)
    for right, down in ((10 + width / 2, 4), (-10 - width / 2, 4), (0, -12), (0, 20)):
        centre = (x + right, y + down - 4)
        inside = centre[0] - width / 2 > LEFT and centre[1] < bottom - 8
        if inside and all(
            abs(centre[0] - a) > width / 2 + 9 or abs(centre[1] - b) > 12 for a, b in taken if (a, b) != (x, y)
        ):
            taken.append(centre)
            return [svg.text(spot.mark, x + right, y + down, style="small")]
    return []


def _names(names: Mapping[str, str], width: float) -> list[str]:
    parts, at = [], width - MARGIN_RIGHT
    for style, name in reversed(list(names.items())):
        at -= svg.text_width(name) + 26
        parts.append(svg.circle(at, 9, 4.5, style=f"{style} fill"))
        parts.append(svg.text(name, at + 9, 13, style="tick", anchor="start"))
    return parts


def _spread(values: Sequence[int]) -> Sequence[int]:
    return values[:: -(-len(values) // 8)]
