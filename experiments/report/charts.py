"""The drawings of one run from plain values, and what all drawings share; knows no files and no page."""

from collections.abc import Mapping, Sequence

from experiments.report import svg
from experiments.report.collect import Measure
from experiments.report.svg import Scale
from experiments.report.theme import PHASES

FEW = 20
WIDTH = 360
LEFT, RIGHT, TOP = 36, 12, 26
OTHER = "plainly"


def acceptance(survival: Sequence[Measure], conditional: Sequence[Measure], *, label: str, style: str = "s1") -> str:
    """Two measures by drafted position, with intervals; what was seen fewer than 20 times is grey."""
    bottom, num = 186, len(survival)
    y = Scale(low=0, high=1, start=bottom, end=TOP)
    x = Scale(low=0.5, high=num + 0.5, start=LEFT, end=WIDTH - RIGHT)
    parts = y_axis(y, (0, 0.25, 0.5, 0.75, 1))
    parts += legend(((style, "survival"), (OTHER, "conditional")), marks=("circle", "square"))
    for position in few_labels(num):
        parts.append(svg.text(position, x(position), bottom + 16, style="tick"))
        parts.append(svg.text(f"n {survival[position - 1].n}", x(position), bottom + 30, style="small"))
    parts.append(svg.text("drafted position", (LEFT + WIDTH - RIGHT) / 2, bottom + 47, style="tick"))
    both = ((OTHER, "conditional", conditional, 4), (style, "survival", survival, -4))
    for shade, name, measures, shift in both:
        points = [(x(i) + shift, measure) for i, measure in enumerate(measures, start=1)]
        parts += with_bands(points, y, shade)
        for i, (at, measure) in enumerate(points, start=1):
            parts.append(_mark(at, y, measure, shade, f"position {i}, {name}: {said(measure)}", square=shift > 0))
    return svg.drawing(WIDTH, bottom + 54, f"acceptance by position, {label}", parts)


def histogram(counts: Sequence[int], *, label: str, style: str = "s1") -> str:
    """Bars: share of steps by how many drafts they accepted; ``counts`` are numbers of steps."""
    bottom, total = 170, sum(counts)
    y = Scale(low=0, high=1, start=bottom, end=TOP)
    x = Scale(low=-0.5, high=len(counts) - 0.5, start=LEFT, end=WIDTH - RIGHT)
    width = min(56.0, 0.7 * (x(1) - x(0)))
    parts = y_axis(y, (0, 0.25, 0.5, 0.75, 1))
    parts.append(svg.text("share of steps", 4, 12, style="tick", anchor="start"))
    labelled = set(few_labels(len(counts), first=0))
    for accepted, count in enumerate(counts):
        share = count / total
        tip = f"{accepted} accepted: {count} of {total} steps ({share:.1%})"
        parts.append(
            svg.rect(x(accepted) - width / 2, y(share), width, bottom - y(share), style=f"{style} fill", tip=tip)
        )
        if accepted in labelled:
            parts.append(svg.text(f"{share:.0%}", x(accepted), y(share) - 5, style="small"))
            parts.append(svg.text(accepted, x(accepted), bottom + 16, style="tick"))
    parts.append(svg.text("drafts accepted in a step", (LEFT + WIDTH - RIGHT) / 2, bottom + 34, style="tick"))
    return svg.drawing(WIDTH, bottom + 42, f"histogram of accepted length, {label}", parts)


def by_category(
    measures: Mapping[str, Measure], *, overall: Measure, high: float, label: str, style: str = "s1"
) -> str:
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
        parts.append(svg.text(svg.short(name, 16), left - 10, at + 4, style="tick", anchor="end"))
        parts.append(svg.text(f"n {measure.n}", WIDTH - 4, at + 4, style="small", anchor="end"))
        if measure.value is None:
            continue
        shade = _style(style, measure)
        if measure.low is not None and measure.high is not None:
            parts.append(svg.line(x(max(measure.low, 1)), at, x(measure.high), at, style=f"{shade} whisker"))
        parts.append(svg.circle(x(measure.value), at, 4.5, style=f"{shade} fill", tip=f"{name}: {said(measure)}"))
    return svg.drawing(WIDTH, bottom + 42, f"tokens per step by category, {label}", parts)


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
    parts += legend(list(zip(PHASES, phases, strict=True)), left=8)
    for i, ((name, times), total) in enumerate(zip(bars, totals, strict=True)):
        at, start = top + row * i, 0.0
        parts.append(svg.text(svg.short(name, 54), 8, at + 15, style="tick", anchor="start"))
        for shade, phase, value in zip(PHASES, phases, times, strict=True):
            tip = f"{name}: {phase} {value or 0:.3f} ms of {total:.3f} ms"
            width = x(start + (value or 0)) - x(start)
            parts.append(svg.rect(x(start), at + 20, width, 14, style=f"{shade} fill", tip=tip))
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


def with_bands(
    points: Sequence[tuple[float, Measure]], y: Scale, style: str, *, few: int = FEW, dash: str = ""
) -> list[str]:
    """Band, line and whiskers of a series; whiskers of what was seen fewer than ``few`` times are grey."""
    known = [(at, one) for at, one in points if one.value is not None]
    parts = []
    banded = [(at, one.low, one.high) for at, one in known if one.low is not None and one.high is not None]
    if len(banded) > 1:
        edge = [(at, y(high)) for at, _, high in banded] + [(at, y(low)) for at, low, _ in reversed(banded)]
        parts.append(svg.path(edge, style=f"{style} band", closed=True))
    if len(known) > 1:
        parts.append(svg.path([(at, y(one.value or 0)) for at, one in known], style=f"{style} line {dash}".rstrip()))
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


def y_axis(y: Scale, values: Sequence[float], *, right: float = WIDTH - RIGHT) -> list[str]:
    """Grid lines with their values; the one at zero is the axis."""
    parts = [svg.line(LEFT, y(value), right, y(value), style="axis" if not value else "grid") for value in values]
    return parts + [svg.text(svg.shown(value), LEFT - 6, y(value) + 4, style="tick", anchor="end") for value in values]


def legend(entries: Sequence[tuple[str, str]], *, marks: Sequence[str] = (), left: float = LEFT) -> list[str]:
    """One line of marks (squares, or circles where ``marks`` says so) and names above a drawing."""
    parts, at = [], left + 5
    for i, (style, name) in enumerate(entries):
        round_mark = bool(marks) and marks[i] == "circle"
        parts.append((svg.circle if round_mark else svg.square)(at, 9, 4, style=f"{style} fill"))
        parts.append(svg.text(name, at + 9, 13, style="tick", anchor="start"))
        at += 30 + 6.6 * len(name)
    return parts


def few_labels(num: int, *, first: int = 1) -> list[int]:
    """At most eight places for labels."""
    return list(range(first, first + num, -(-num // 8)))
