"""Figures of cells, and the tables that the README shows; decodes nothing."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.evidence.cells import Cell, Measured
from experiments.evidence.plan import BUILTIN, FILE, LOOKUP, PEER, PLAIN, Way
from experiments.lossless import BY_RULE
from experiments.summary import metrics_of, number
from specdec.bootstrap import Bootstrap
from specdec.metrics import Terms

KEPT = ("tokens_per_step", "accepted_per_drafted_step", "draft_acceptance_rate", "survival")
SHOWN_POSITIONS = 3
LIMITS = {"oracle": "oracle (upper bound)"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A way and its cell, both of the requests that plain decoding has done, too."""

    way: Way
    cell: Cell
    plain: Cell

    def only(self, names: Collection[str]) -> "Measurement":
        """The same without the requests of other prompts, which an earlier command may have left."""
        kept = {name: found for name, found in self.cell.requests.items() if name in names}
        return replace(self, cell=replace(self.cell, requests=kept))

    def pairs(self, source: str | None) -> list[tuple[Measured, Measured]]:
        """(this way, plain) for every request of a source; None: of all."""
        return [
            (found, self.plain.requests[name])
            for name, found in self.cell.requests.items()
            if name in self.plain.requests and source in (None, found.source)
        ]


def figures_of(measurement: Measurement, source: str | None = None) -> dict[str, Any]:
    """Every figure of a cell over the prompts of a source; empty before one was measured."""
    pairs = measurement.pairs(source)
    if not pairs:
        return {}
    metrics = metrics_of([row for ours, _ in pairs for row in ours.rows]) if pairs[0][0].steps else {}
    figures: dict[str, Any] = {name: metrics[name] for name in KEPT if name in metrics}
    tokens = sum(len(ours.output_ids) for ours, _ in pairs)
    figures |= {
        "requests": len(pairs),
        "tokens": tokens,
        "tokens_per_pass": tokens / sum(ours.passes for ours, _ in pairs),
        "tokens_per_cpu_second": tokens / sum(ours.cpu_s for ours, _ in pairs),
        "tokens_per_second": tokens / sum(ours.wall_s for ours, _ in pairs),
        "identical": sum(ours.output_ids == plain.output_ids for ours, plain in pairs),
        "exact": exactness(measurement.way, pairs),
    }
    if measurement.way.drafter is not None:
        figures["speedup_cpu"] = _speedup(pairs, lambda each: each.decode_cpu_s)
        figures["speedup_wall"] = _speedup(pairs, lambda each: each.decode_wall_s)
    return figures


def exactness(way: Way, pairs: Sequence[tuple[Measured, Measured]]) -> str:
    """``rule``, or how many outputs are those of plain decoding, token for token."""
    if way.verifier.lossless_how == BY_RULE:
        return BY_RULE
    same = sum(ours.output_ids == plain.output_ids for ours, plain in pairs)
    return f"{same}/{len(pairs)}"


def _speedup(pairs: Sequence[tuple[Measured, Measured]], seconds: Callable[[Measured], float]) -> dict[str, Any]:
    """Time that plain decoding takes for as many tokens, over the time taken; passes over prompts do not count."""
    top = [seconds(plain) / max(1, plain.num_decoded) * ours.num_decoded for ours, plain in pairs]
    bottom = [seconds(ours) for ours, _ in pairs]
    terms = Terms(np.array(top), np.array(bottom), np.arange(len(pairs)))
    value = terms.top.sum() / terms.bottom.sum() if terms.bottom.sum() else float("nan")
    return {**number(Bootstrap(len(pairs)).estimate(terms)), "value": value, "n": len(pairs)}


def table(measurements: Sequence[Measurement]) -> str:
    """A line per target and drafter, both temperatures side by side, as Markdown."""
    lines: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for each in measurements:
        if each.way.name not in (PEER, PLAIN) and (found := figures_of(each)):
            lines.setdefault((each.way.target, each.way.name), {})[each.way.temperature] = found
    heads = ("target", "drafter", "tokens/step, T=0", "survival 1 2 3", "speed-up", "tokens/step, T=1", "speed-up")
    heads = (*heads, "identical, T=0 and 1")
    rows = [_line(heads), "|---" * len(heads) + "|"]
    for (target, name), by_temperature in sorted(lines.items(), key=lambda line: line[0][0]):
        cold, warm = by_temperature.get(0, {}), by_temperature.get(1, {})
        exact = ", ".join(found["exact"] for found in (cold, warm) if found)
        survival = " ".join(
            f"{each['value']:.2f}" for each in cold.get("survival", ())[:SHOWN_POSITIONS] if each["value"] is not None
        )
        cells = [_interval(cold, "tokens_per_step"), survival or "-", _interval(cold, "speedup_cpu")]
        cells += [_interval(warm, "tokens_per_step"), _interval(warm, "speedup_cpu"), exact]
        rows.append(_line((target, LIMITS.get(name, name), *cells)))
    return "\n".join(rows)


def peer_table(measurements: Sequence[Measurement]) -> str:
    """transformers' lookup beside ours, by prompts, as Markdown; empty before both have run."""
    cells = {each.way.name: each for each in measurements if each.way.temperature == 0}
    if PEER not in cells or LOOKUP not in cells:
        return ""
    heads = (
        "SmolLM2, greedy lookup",
        "transformers: tokens/pass",
        "tokens/CPU s",
        "specdec: tokens/pass",
        "tokens/CPU s",
        "same text",
    )
    rows = [_line(heads), "|---" * len(heads) + "|"]
    for source, shown in ((BUILTIN, "built-in prompts"), (FILE, "prompts of the file")):
        theirs, ours = (figures_of(cells[name], source) for name in (PEER, LOOKUP))
        if theirs and ours:
            cells_of = [
                f"{found[name]:.2f}"
                for found in (theirs, ours)
                for name in ("tokens_per_pass", "tokens_per_cpu_second")
            ]
            rows.append(_line((shown, *cells_of, theirs["exact"])))
    return "\n".join(rows)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _interval(figures: Mapping[str, Any], name: str) -> str:
    found = figures.get(name)
    if not found or found["value"] is None:
        return "-"
    if found["low"] is None:
        return f"{found['value']:.2f}"
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
