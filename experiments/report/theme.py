"""Colours and the styles of marks, once for the page and once for charts in files of their own; draws nothing.

A mark names its styles as classes. One of them may choose the colour ``c`` that the others use, so that a series or a
shade is one class and its shape another: ``s1 fill``.
"""

from collections.abc import Mapping, Sequence

NUM_SERIES = 8
NUM_SHADES = 7
NUM_SIDES = 3
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
PLAIN = "none"
# Well-known drafters keep their colour from report to report, as far as no two of one report want the same.
PREFERRED = {
    "nextn": 1,
    "ngram": 2,
    "eagle3": 3,
    "medusa": 4,
    "adaptive": 5,
    "suffix": 6,
    "oracle": 7,
    "draft_model": 8,
}

LIGHT: Mapping[str, str] = {
    "paper": "#fbfbf9", "card": "#ffffff", "ink": "#1f2328", "muted": "#5a626c", "rule": "#dfe2e6", "grid": "#e8eaed",
    "few": "#a3a9b1", "focus": "#0b57d0", "good": "#1f7a43", "bad": "#b3261e", "plainly": "#7b838d", "s1": "#2f6db3",
    "s2": "#c26a12", "s3": "#2f8a68", "s4": "#9155b0", "s5": "#b8485b", "s6": "#6d7b2c", "s7": "#2a8a9a",
    "s8": "#8a6446", "p1": "#d9892b", "p2": "#4f6f96", "p3": "#b4bac2", "a1": "#dbe9f8", "a2": "#c3daf3",
    "a3": "#a9caec", "a4": "#90bae5", "a5": "#78aadd", "a6": "#639bd4", "bonus": "#c9ead2", "corrected": "#fbdcb8",
    "unforced": "#eceef0", "q0": "#f3f6fa", "q1": "#e3ecf6", "q2": "#d2e2f2", "q3": "#bfd6ed", "q4": "#a9c8e8",
    "q5": "#92b9e1", "q6": "#7caada", "l3": "#efb183", "l2": "#f5cba9", "l1": "#f9e3d0", "m0": "#f2f3f4",
    "h1": "#d9ecdf", "h2": "#b7dcc3", "h3": "#8dc9a2",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "paper": "#14171b", "card": "#1b1f24", "ink": "#e4e7ea", "muted": "#a3abb5", "rule": "#343a42", "grid": "#2a3037",
    "few": "#737b85", "focus": "#8ab4f8", "good": "#7fd19b", "bad": "#f2938c", "plainly": "#8d959f", "s1": "#6aa5e3",
    "s2": "#e79a4c", "s3": "#62c39c", "s4": "#c394dd", "s5": "#ea8596", "s6": "#b3c25f", "s7": "#62c1d1",
    "s8": "#c9a07d", "p1": "#e3a04f", "p2": "#7f9fc6", "p3": "#5c646e", "a1": "#1d3047", "a2": "#213d5e",
    "a3": "#264a75", "a4": "#2b588c", "a5": "#3166a3", "a6": "#3874b9", "bonus": "#1f4a30", "corrected": "#5c3a14",
    "unforced": "#2a2f35", "q0": "#1d232b", "q1": "#1e2c3b", "q2": "#20364c", "q3": "#23405e", "q4": "#264b70",
    "q5": "#295682", "q6": "#2d6295", "l3": "#7a481a", "l2": "#5b3a1b", "l1": "#40301f", "m0": "#262b31",
    "h1": "#1e3829", "h2": "#1f4d33", "h3": "#22633f",
}  # fmt: skip

SERIES = tuple(f"s{i}" for i in range(1, NUM_SERIES + 1))
PHASES = ("p1", "p2", "p3")
SHADES = tuple(f"q{i}" for i in range(NUM_SHADES))
SIDES = ("l3", "l2", "l1", "m0", "h1", "h2", "h3")
COLOURED = (*SERIES, *PHASES, *SHADES, *SIDES, "few", "good", "bad", "plainly")
CHOSEN = "c"

MARKS: Mapping[str, Mapping[str, str]] = {
    "tick": {"fill": "ink"},
    "strong": {"fill": "ink", "font-weight": "600"},
    "small": {"fill": "muted", "font-size": "11px"},
    "grid": {"stroke": "grid"},
    "axis": {"stroke": "muted"},
    "one": {"stroke": "ink", "stroke-width": "2"},
    "reference": {"stroke": "muted", "stroke-dasharray": "4 3"},
    "contour": {"stroke": "few", "stroke-dasharray": "2 3"},
    "fill": {"fill": CHOSEN},
    "hollow": {"fill": "card", "stroke": CHOSEN, "stroke-width": "2"},
    "ring": {"fill": "none", "stroke": "ink", "stroke-width": "1.6"},
    "line": {"fill": "none", "stroke": CHOSEN, "stroke-width": "1.8"},
    "d1": {"stroke-dasharray": "7 3"},
    "d2": {"stroke-dasharray": "2 3"},
    "d3": {"stroke-dasharray": "9 3 2 3"},
    "front": {"fill": "none", "stroke": "ink", "stroke-width": "1.2", "stroke-opacity": "0.55"},
    "whisker": {"stroke": CHOSEN, "stroke-width": "1.8", "stroke-linecap": "round"},
    "thin": {"stroke": CHOSEN, "stroke-width": "1", "stroke-opacity": "0.75"},
    "band": {"fill": CHOSEN, "fill-opacity": "0.13"},
}
"""Attributes by class. A value that is the name of a colour stands for it; ``c`` for the colour that a class chose."""


def styles_of(drafters: Sequence[str]) -> dict[str, str]:
    """A series for each drafter, the same in every chart of a report; plain decoding is grey."""
    found: dict[str, str] = {}
    names = [name for name in dict.fromkeys(drafters) if name != PLAIN]
    for name in sorted(names, key=lambda name: (PREFERRED.get(name, NUM_SERIES + 1), name)):
        free = [series for series in SERIES if series not in found.values()] or list(SERIES)
        wanted = f"s{PREFERRED.get(name, 0)}"
        found[name] = wanted if wanted in free else free[0]
    return found | {PLAIN: "plainly"}


def style_sheet() -> str:
    """Custom properties of both themes, and a rule for each mark."""
    colours = [f":root{{{_properties(LIGHT)}}}", f"@media (prefers-color-scheme:dark){{:root{{{_properties(DARK)}}}}}"]
    chosen = [f".{name}{{--{CHOSEN}:var(--{name})}}" for name in COLOURED]
    rules = [f".{name}{{{_declarations(attributes)}}}" for name, attributes in MARKS.items()]
    return "\n".join((*colours, *chosen, *rules))


def attributes_of(classes: Sequence[str]) -> dict[str, str]:
    """Plain SVG attributes of a mark with these classes, in the colours of the light theme."""
    chosen = next((LIGHT[name] for name in classes if name in COLOURED), LIGHT["ink"])
    found: dict[str, str] = {}
    for name in classes:
        for key, value in MARKS.get(name, {}).items():
            found[key] = chosen if value == CHOSEN else LIGHT.get(value, value)
    return found


def _properties(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def _declarations(attributes: Mapping[str, str]) -> str:
    known = {CHOSEN, *LIGHT}
    return "".join(f"{key}:{f'var(--{value})' if value in known else value};" for key, value in attributes.items())
