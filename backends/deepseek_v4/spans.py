"""Span: a run of equally long requests of a pass; the unit in which a pass is planned. Host integers only."""

from dataclasses import dataclass
from itertools import groupby

from backends.deepseek_v4.plan_types import PAD_POSITION, PlanShape
from specdec.errors import MetadataError
from specdec.layout import RoundLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Tokens ``[first, first + G * M)``: M consecutive positions for each of G table rows.

    reqs    table row of each group; a range when they are consecutive
    starts  first position of each group (padding: all its positions are below 0)
    """

    first: int
    reqs: range | tuple[int, ...]
    starts: tuple[int, ...]
    width: int
    is_prefill: bool

    @property
    def num_groups(self) -> int:
        return len(self.starts)

    @property
    def end_position(self) -> int:
        return max(self.starts) + self.width


def plan_spans(layout: RoundLayout, shape: PlanShape) -> list[Span]:
    """Spans that cover the tokens in order, padding last."""
    if shape.per_token:
        return [_token_span(layout, shape.num_tokens or layout.num_tokens)]
    if shape.num_reqs:
        return [_padded_span(layout, shape)]
    spans = []
    for b in range(layout.num_prefill_reqs):
        spans.append(_run(layout, range(b, b + 1), is_prefill=True))
    decodes = range(layout.num_prefill_reqs, layout.num_reqs)
    for _, run in groupby(decodes, key=layout.query_lens.__getitem__):
        reqs = tuple(run)
        spans.append(_run(layout, range(reqs[0], reqs[-1] + 1), is_prefill=False))
    return [span for span in spans if span.width]


def _run(layout: RoundLayout, reqs: range, *, is_prefill: bool) -> Span:
    return Span(
        first=layout.query_starts[reqs.start],
        reqs=reqs,
        starts=layout.start_positions[reqs.start : reqs.stop],
        width=layout.query_lens[reqs.start],
        is_prefill=is_prefill,
    )


def _token_span(layout: RoundLayout, num_tokens: int) -> Span:
    padding = num_tokens - layout.num_tokens
    if padding < 0:
        raise MetadataError(f"a pass of {layout.num_tokens} tokens does not fit into {num_tokens} rows")
    return Span(
        first=0,
        reqs=layout.token_reqs + (0,) * padding,
        starts=layout.positions + (PAD_POSITION,) * padding,
        width=1,
        is_prefill=False,
    )


def _padded_span(layout: RoundLayout, shape: PlanShape) -> Span:
    """All requests as groups of one width; requests beyond the layout's are padding before position 0."""
    widths = set(layout.query_lens)
    width = shape.num_tokens // shape.num_reqs if shape.num_tokens else max(widths, default=1)
    if widths - {width} or layout.num_prefill_reqs:
        raise MetadataError(
            f"a padded pass must be uniformly packed decode rows of {width} tokens, got lengths {layout.query_lens}"
        )
    padding = shape.num_reqs - layout.num_reqs
    if padding < 0:
        raise MetadataError(f"{layout.num_reqs} requests do not fit into a pass of {shape.num_reqs}")
    starts = layout.start_positions + (-width,) * padding
    return Span(first=0, reqs=range(shape.num_reqs), starts=starts, width=width, is_prefill=False)
