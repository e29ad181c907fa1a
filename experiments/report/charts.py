"""The drawings of the report from plain values; another drawing library would take the place of this file alone."""

from collections.abc import Mapping, Sequence

from experiments.report import svg
from experiments.report.collect import Measure
from experiments.report.svg import Scale

FEW = 20
WIDTH = 360
LEFT, RIGHT, TOP = 36, 12, 26
NUM_SERIES = 6
Point = tuple[int, Measure]


def acceptance(survival: Sequence[Measure], conditional: Sequence[Measure], *, label: str) -> str:
    """Two measures by drafted position, with intervals; what was seen fewer than 20 times is grey."""
    bottom, num = 186, len(survival)
    y = Scale(low=0, high=1, start=bottom, end=TOP)
    x = Scale(low=0.5, high=num + 0.5, start=LEFT, end=WIDTH - RIGHT)
    parts = _y_axis(y, (0, 0.25, 0.5, 0.75, 1))
    parts += _legend((("s1", "survival"), ("s2", "conditional")), marks=("circle", "square"))
    for position in _few_labels(num):
        parts.append(svg.text(position, x(position), bottom + 16, style="tick"))
        parts.append(svg.text(f"n {survival[position - 1].n}", x(position), bottom + 30, style="small"))
    parts.append(svg.text("drafted position", (LEFT + WIDTH - RIGHT) / 2, bottom + 47, style="tick"))
    for style, name, measures, shift in (("s1", "survival", survival, -4), ("s2", "conditional", conditional, 4)):
        points = [(x(i) + shift, measure) for i, measure in enumerate(measures, start=1)]
        parts += _with_bands(points, y, style)
        for i, (at, measure) in enumerate(points, start=1):
            parts.append(_mark(at, y, measure, style, f"position {i}, {name}: {said(measure)}", square=shift > 0))
    return svg.drawing(WIDTH, bottom + 54, f"acceptance by position, {label}", parts)


def histogram(counts: Sequence[int], *, label: str) -> str:
    """Bars: share of steps by how many drafts they accepted; ``counts`` are numbers of steps."""
    bottom, total = 170, sum(counts)
    y = Scale(low=0, high=1, start=bottom, end=TOP)
    x = Scale(low=-0.5, high=len(counts) - 0.5, start=LEFT, end=WIDTH - RIGHT)
    width = min(56.0, 0.7 * (x(1) - x(0)))
    parts = _y_axis(y, (0, 0.25, 0.5, 0.75, 1))
    parts.append(svg.text("share of steps", 4, 12, style="tick", anchor="start"))
    labelled = set(_few_labels(len(counts), first=0))
    for accepted, count in enumerate(counts):
        share = count / total
        tip = f"{accepted} accepted: {count} of {total} steps ({share:.1%})"
        parts.append(svg.rect(x(accepted) - width / 2, y(share), width, bottom - y(share), style="s1 fill", tip=tip))
        if accepted in labelled:
            parts.append(svg.text(f"{share:.0%}", x(accepted), y(share) - 5, style="small"))
            parts.append(svg.text(accepted, x(accepted), bottom + 16, style="tick"))
    parts.append(svg.text("drafts accepted in a step", (LEFT + WIDTH - RIGHT) / 2, bottom + 34, style="tick"))
    return svg.drawing(WIDTH, bottom + 42, f"histogram of accepted length, {label}", parts)


def by_category(measures: Mapping[str, Measure], *, overall: Measure, high: float, label: str) -> str:
    """A dot with its interval for each category up to ``high``; lines at plain decoding (1.0) and at the whole run."""
    left, row, right = 116, 24, 62
    values = svg.ticks(max(high, 1.5), low=1, most=4)
    x = Scale(low=values[0], high=values[-1], start=left, end=WIDTH - right)
    bottom = TOP + row * len(measures)
    parts = [svg.line(x(value), TOP, x(value), bottom, style="axis" if value == 1 else "grid") for value in values]
    parts += [svg.text(svg.shown(value), x(value), bottom + 16, style="tick") for value in values]
    parts.append(
        svg.text("tokens per step (1 = plain decoding)", (left + WIDTH - right) / 2, bottom + 34, style="tick")
    )
    if overall.value is not None:
        parts.append(svg.line(x(overall.value), TOP - 4, x(overall.value), bottom, style="reference"))
        parts.append(svg.text(f"all {overall.value:.2f}", x(overall.value), TOP - 9, style="small"))
    for i, (name, measure) in enumerate(measures.items()):
        at = TOP + row * (i + 0.5)
        parts.append(svg.text(_short(name), left - 10, at + 4, style="tick", anchor="end"))
        parts.append(svg.text(f"n {measure.n}", WIDTH - 4, at + 4, style="small", anchor="end"))
        if measure.value is None:
            continue
        style = _style("s1", measure)
        if measure.low is not None and measure.high is not None:
            parts.append(svg.line(x(max(measure.low, 1)), at, x(measure.high), at, style=f"{style} whisker"))
        parts.append(svg.circle(x(measure.value), at, 4.5, style=f"{style} fill", tip=f"{name}: {said(measure)}"))
    return svg.drawing(WIDTH, bottom + 42, f"tokens per step by category, {label}", parts)


def speedups(lines: Mapping[str, Sequence[Point]]) -> str:
    """Speed-up against draft length, one line a drafter; the heavy line at 1.0 is plain decoding."""
    legend = 16 * len(lines)
    top, bottom = TOP + legend, TOP + legend + 170
    points = [(at, one) for line in lines.values() for at, one in line if one.value is not None]
    lengths = sorted({at for at, _ in points})
    high = max(max(one.value or 0, one.high or 0) for _, one in points)
    values = svg.ticks(max(high, 1.25))
    y = Scale(low=0, high=values[-1], start=bottom, end=top)
    x = Scale(low=lengths[0] - 0.5, high=lengths[-1] + 0.5, start=LEFT, end=WIDTH - RIGHT)
    parts = _y_axis(y, values)
    parts += [svg.line(LEFT, y(1), WIDTH - RIGHT, y(1), style="one")]
    parts += [svg.text(length, x(length), bottom + 16, style="tick") for length in _spread(lengths)]
    parts.append(svg.text("drafted tokens a step", (LEFT + WIDTH - RIGHT) / 2, bottom + 34, style="tick"))
    for i, (name, line) in enumerate(lines.items()):
        style = f"s{i % NUM_SERIES + 1}"
        parts.append(svg.circle(LEFT + 5, 14 + 16 * i, 4, style=f"{style} fill"))
        parts.append(svg.text(_short(name, 48), LEFT + 15, 18 + 16 * i, style="tick", anchor="start"))
        shift = 3.0 * (i - (len(lines) - 1) / 2)
        placed = [(x(at) + shift, one, at) for at, one in line if one.value is not None]
        parts += _with_bands([(at, one) for at, one, _ in placed], y, style, few=0)
        for at, one, length in placed:
            tip = f"{name}, {length} drafted: {said(one, unit='repeats')}"
            parts.append(svg.circle(at, y(one.value or 0), 4, style=f"{style} fill", tip=tip))
    return svg.drawing(WIDTH, bottom + 42, "speed-up against draft length", parts)


def round_times(bars: Sequence[tuple[str, Sequence[float | None]]], *, phases: Sequence[str]) -> str:
    """A bar a run, stacked by phase, in milliseconds."""
    row, top = 40, 30
    totals = [sum(value or 0 for value in times) for _, times in bars]
    values = svg.ticks(max(totals), most=4)
    x = Scale(low=0, high=values[-1], start=8, end=WIDTH - 52)
    bottom = top + row * len(bars)
    parts = [svg.line(x(value), top, x(value), bottom, style="grid") for value in values]
    parts += [svg.text(svg.shown(value), x(value), bottom + 16, style="tick") for value in values]
    parts.append(svg.text("milliseconds a round", (8 + WIDTH - 52) / 2, bottom + 34, style="tick"))
    parts += _legend([(f"s{i}", phase) for i, phase in enumerate(phases, start=1)], left=8)
    for i, ((name, times), total) in enumerate(zip(bars, totals, strict=True)):
        at, start = top + row * i, 0.0
        parts.append(svg.text(_short(name, 54), 8, at + 15, style="tick", anchor="start"))
        for number, (phase, value) in enumerate(zip(phases, times, strict=True), start=1):
            tip = f"{name}: {phase} {value or 0:.3f} ms of {total:.3f} ms"
            width = x(start + (value or 0)) - x(start)
            parts.append(svg.rect(x(start), at + 20, width, 14, style=f"s{number} fill", tip=tip))
            start += value or 0
        parts.append(svg.text(f"{total:.2f}", x(total) + 5, at + 31, style="small", anchor="start"))
    return svg.drawing(WIDTH, bottom + 42, "time per round by phase", parts)


def said(measure: Measure, *, unit: str = "n") -> str:
    """A measure in words, for tips."""
    if measure.value is None:
        return "not observed"
    value = f"{measure.value:.3f}"
    if measure.low is not None and measure.high is not None:
        value += f" [{measure.low:.3f}, {measure.high:.3f}]"
    return f"{value}, {unit} = {measure.n}"


def _with_bands(points: Sequence[tuple[float, Measure]], y: Scale, style: str, *, few: int = FEW) -> list[str]:
    """Band, line and whiskers of a series; whiskers of what was seen fewer than ``few`` times are grey."""
    known = [(at, one) for at, one in points if one.value is not None]
    parts = []
    banded = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
    if len(banded) > 1:
        edge = [(at, y(high)) for at, _, high in banded] + [(at, y(low)) for at, low, _ in reversed(banded)]
        parts.append(svg.path(edge, style=f"{style} band", closed=True))
    if len(known) > 1:
        parts.append(svg.path([(at, y(one.value or 0)) for at, one in known], style=f"{style} line"))
    for at, one in known:
        if one.low is not None and one.high is not None:
            shade = style if one.n >= few else "few"
            parts.append(svg.line(at, y(one.low), at, y(one.high), style=f"{shade} whisker"))
    return parts


def _mark(at: float, y: Scale, measure: Measure, style: str, tip: str, *, square: bool) -> str:
    if measure.value is None:
        return ""
    shape = svg.square if square else svg.circle
    return shape(at, y(measure.value), 3.6 if square else 4.2, style=f"{_style(style, measure)} fill", tip=tip)


def _style(style: str, measure: Measure) -> str:
    return style if measure.n >= FEW else "few"


def _y_axis(y: Scale, values: Sequence[float]) -> list[str]:
    parts = [
        svg.line(LEFT, y(value), WIDTH - RIGHT, y(value), style="axis" if not value else "grid") for value in values
    ]
    return parts + [svg.text(svg.shown(value), LEFT - 6, y(value) + 4, style="tick", anchor="end") for value in values]


def _legend(entries: Sequence[tuple[str, str]], *, marks: Sequence[str] = (), left: float = LEFT) -> list[str]:
    parts, at = [], left + 5
    for i, (style, name) in enumerate(entries):
        round_mark = bool(marks) and marks[i] == "circle"
        parts.append((svg.circle if round_mark else svg.square)(at, 9, 4, style=f"{style} fill"))
        parts.append(svg.text(name, at + 9, 13, style="tick", anchor="start"))
        at += 30 + 6.6 * len(name)
    return parts


def _few_labels(num: int, *, first: int = 1) -> list[int]:
    """At most eight places for labels."""
    return list(range(first, first + num, -(-num // 8)))


def _spread(values: Sequence[int]) -> Sequence[int]:
    return values[:: -(-len(values) // 8)]


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"
