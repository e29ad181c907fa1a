"""SVG as text: elements, scales and ticks; knows nothing of runs. Styles are classes, see ``theme``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

Attributes = Mapping[str, str | float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A line from values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (value - self.low) / span * (self.end - self.start) if span else self.start


def node(name: str, attributes: Attributes, *children: str) -> str:
    """An element; ``children`` are finished markup."""
    return f"<{name}{_written(attributes)}>{''.join(children)}</{name}>"


def text(content: object, x: float, y: float, *, style: str = "", anchor: str = "middle", turned: float = 0) -> str:
    """A line of text, escaped; ``turned`` by degrees around its anchor."""
    place: dict[str, str | float] = {"x": x, "y": y, "class": style, "text-anchor": anchor}
    if turned:
        place["transform"] = f"rotate({turned:g} {x:.2f} {y:.2f})"
    return node("text", place, escape(str(content)))


def line(x1: float, y1: float, x2: float, y2: float, *, style: str) -> str:
    return node("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": style})


def rect(x: float, y: float, width: float, height: float, *, style: str, tip: str = "") -> str:
    size = {"x": x, "y": y, "width": max(width, 0), "height": max(height, 0), "class": style}
    return node("rect", size, title(tip))


def circle(x: float, y: float, radius: float, *, style: str, tip: str = "") -> str:
    return node("circle", {"cx": x, "cy": y, "r": radius, "class": style}, title(tip))


def square(x: float, y: float, radius: float, *, style: str, tip: str = "") -> str:
    return rect(x - radius, y - radius, 2 * radius, 2 * radius, style=style, tip=tip)


def diamond(x: float, y: float, radius: float, *, style: str, tip: str = "") -> str:
    corners = ((x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y))
    d = " L".join(f"{right:.1f} {down:.1f}" for right, down in corners)
    return node("path", {"d": f"M{d} Z", "class": style}, title(tip))


def path(points: Sequence[tuple[float, float]], *, style: str, closed: bool = False) -> str:
    """Straight lines through ``points``."""
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return node("path", {"d": f"M{steps}{' Z' if closed else ''}", "class": style})


def title(tip: str) -> str:
    """What shows when a pointer rests on a mark."""
    return f"<title>{escape(tip)}</title>" if tip else ""


def drawing(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """A whole drawing that scales with its column; ``label`` says what it shows to those who do not see it."""
    frame = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "role": "img", "aria-label": label}
    return node("svg", frame, *parts)


def short(name: str, most: int) -> str:
    """``name`` in at most so many characters."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def text_width(content: str) -> float:
    """About how wide a line of text is, in pixels at the size of ticks."""
    return 6.7 * len(content)


def ticks(high: float, *, low: float = 0.0, most: int = 5) -> list[float]:
    """Round values from ``low`` to the first one at or above ``high``; at most ``most`` steps."""
    if high <= low:
        return [low, low + 1]
    rough = (high - low) / most
    size = 10.0 ** floor(log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor * most >= (high - low) * (1 - 1e-9))
    values = [low]
    while values[-1] < high - 1e-9 * step:
        values.append(low + len(values) * step)
    return values


def shown(value: float) -> str:
    """A tick's label."""
    return f"{value:.6g}"


def _written(attributes: Attributes) -> str:
    pairs = ((name, f"{value:.2f}" if isinstance(value, float) else str(value)) for name, value in attributes.items())
    return "".join(f' {name}="{escape(value)}"' for name, value in pairs if value != "")
