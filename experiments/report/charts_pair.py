"""The drawings of two runs over the same prompts, request by request; knows no files and no page."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report import svg
from experiments.report.charts import LEFT, RIGHT, TOP, WIDTH, y_axis
from experiments.report.svg import Scale

FAINT_FROM = 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Both:
    """Tokens per step of one request in two runs, and the number of its steps in them."""

    name: str
    old: float
    new: float
    num_steps: tuple[int, int]

    @property
    def tip(self) -> str:
        return (
            f"{self.name}: A {self.old:.3f} (n = {self.num_steps[0]} steps), "
            f"B {self.new:.3f} (n = {self.num_steps[1]} steps)"
        )


def scatter(requests: Sequence[Both], *, styles: tuple[str, str], label: str) -> str:
    """A dot a request: B against A. Above the line the request took fewer steps in B."""
    bottom = 276
    values = svg.ticks(max(1.5, *(max(one.old, one.new) for one in requests)), low=1, most=5)
    x = Scale(low=1, high=values[-1], start=LEFT, end=WIDTH - RIGHT)
    y = Scale(low=1, high=values[-1], start=bottom, end=TOP)
    parts = y_axis(y, values)
    parts.append(svg.line(LEFT, bottom, WIDTH - RIGHT, bottom, style="axis"))
    parts += [svg.text(svg.shown(value), x(value), bottom + 16, style="tick") for value in values]
    parts.append(svg.line(x(1), y(1), x(values[-1]), y(values[-1]), style="reference"))
    parts.append(svg.text("tokens per step in B", 4, 12, style="tick", anchor="start"))
    parts.append(svg.text("tokens per step in A", (LEFT + WIDTH - RIGHT) / 2, bottom + 34, style="tick"))
    radius = 4.0 if len(requests) < FAINT_FROM else 2.2
    for one in requests:
        style = styles[1] if one.new > one.old else styles[0] if one.new < one.old else "few"
        parts.append(svg.circle(x(max(one.old, 1)), y(max(one.new, 1)), radius, style=f"{style} fill", tip=one.tip))
    return svg.drawing(WIDTH, bottom + 42, label, parts)


def dumbbells(requests: Sequence[Both], *, styles: tuple[str, str], label: str) -> str:
    """The two values of each request on a line: A is hollow, B is filled."""
    left, row, top = 132, 24, 40
    bottom = top + row * len(requests)
    high = max(1.5, *(max(one.old, one.new) for one in requests))
    values = svg.ticks(high, low=1, most=4)
    x = Scale(low=1, high=values[-1], start=left, end=WIDTH - 56)
    parts = [svg.line(x(value), top - 6, x(value), bottom, style="grid") for value in values]
    parts += [svg.text(svg.shown(value), x(value), bottom + 16, style="tick") for value in values]
    parts.append(svg.text("tokens per step", (left + WIDTH - 56) / 2, bottom + 34, style="tick"))
    parts.append(svg.circle(left + 5, 10, 4, style=f"{styles[0]} hollow"))
    parts.append(svg.text("A", left + 16, 14, style="tick", anchor="start"))
    parts.append(svg.circle(left + 45, 10, 4.5, style=f"{styles[1]} fill"))
    parts.append(svg.text("B", left + 56, 14, style="tick", anchor="start"))
    parts.append(svg.text("B - A", WIDTH - 4, 14, style="small", anchor="end"))
    for i, one in enumerate(requests):
        at = top + row * (i + 0.5)
        parts.append(svg.text(svg.short(one.name, 18), left - 10, at + 4, style="tick", anchor="end"))
        parts.append(svg.line(x(one.old), at, x(one.new), at, style="few whisker"))
        parts.append(svg.circle(x(one.old), at, 4, style=f"{styles[0]} hollow", tip=one.tip))
        parts.append(svg.circle(x(one.new), at, 4.5, style=f"{styles[1]} fill", tip=one.tip))
        parts.append(svg.text(f"{one.new - one.old:+.2f}", WIDTH - 4, at + 4, style="small", anchor="end"))
    return svg.drawing(WIDTH, bottom + 42, label, parts)
