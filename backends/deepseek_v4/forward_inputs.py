"""ForwardInputs: how a caller describes a pass to the attention backend; turned into one RoundLayout.

Host integers only. The query-length rules of each mode stand here and nowhere else, so that a device length
can never disagree with a host one.
"""

from dataclasses import dataclass

from specdec.api import Tables
from specdec.errors import MetadataError
from specdec.layout import ForwardMode, RoundLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardInputs:
    """One pass as the scheduler knows it, prompt chunks first.

    mode          what the pass holds
    rows          [B] stable row of each request
    seq_lens      [B] lengths including the tokens of this pass
    tables        block tables of the pass, batch order
    num_tokens    packed tokens, or None: one per request (decode) or whatever the lengths say (extend, mixed)
    num_extends   leading prompt chunks of a mixed pass (an extend pass is all prompt chunks)
    extend_lens   chunk length of each prompt chunk; empty: derived from ``prefix_lens``
    prefix_lens   cached length before each prompt chunk, may be shorter than the batch; empty: 0
    verify_width  tokens per decode request in a mixed pass
    """

    mode: ForwardMode
    rows: tuple[int, ...]
    seq_lens: tuple[int, ...]
    tables: Tables
    num_tokens: int | None = None
    num_extends: int = 0
    extend_lens: tuple[int, ...] = ()
    prefix_lens: tuple[int, ...] = ()
    verify_width: int = 1

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.seq_lens):
            raise MetadataError(
                f"rows and seq_lens must have one entry per request, got {len(self.rows)} and {len(self.seq_lens)}"
            )


def tokens_per_request(num_tokens: int | None, num_reqs: int) -> int:
    """Width of a packed decode pass; raises MetadataError when the tokens do not divide evenly."""
    if num_tokens is None or num_tokens == num_reqs or num_reqs == 0:
        return 1
    if num_tokens % num_reqs:
        raise MetadataError(f"a decode pass must be uniformly packed: {num_tokens} tokens for {num_reqs} requests")
    return num_tokens // num_reqs


def layout_of(inputs: ForwardInputs) -> RoundLayout:
    """The layout that the inputs describe; raises MetadataError when lengths contradict each other."""
    num_reqs = len(inputs.rows)
    if inputs.mode.is_decode_or_idle:
        query_lens = (tokens_per_request(inputs.num_tokens, num_reqs),) * num_reqs
        num_extends = 0
    else:
        num_extends = num_reqs if inputs.mode is ForwardMode.EXTEND else min(inputs.num_extends, num_reqs)
        query_lens = _extend_query_lens(inputs, num_extends)
    if inputs.num_tokens is not None and sum(query_lens) != inputs.num_tokens:
        raise MetadataError(
            f"{inputs.mode.value} metadata token count mismatch: the lengths {query_lens} make "
            f"{sum(query_lens)} tokens, {inputs.num_tokens} were declared"
        )
    return RoundLayout(
        rows=inputs.rows,
        start_positions=_starts(inputs, query_lens),
        query_lens=query_lens,
        num_prefill_reqs=num_extends,
    )


def _extend_query_lens(inputs: ForwardInputs, num_extends: int) -> tuple[int, ...]:
    """Chunk lengths of the prompt rows, then the verify width of each decode row."""
    if inputs.extend_lens:
        chunks = inputs.extend_lens[:num_extends]
    else:
        prefixes = inputs.prefix_lens[:num_extends]
        prefixes = prefixes + (0,) * (num_extends - len(prefixes))
        chunks = tuple(max(0, inputs.seq_lens[b] - prefixes[b]) for b in range(num_extends))
    if len(chunks) != num_extends:
        raise MetadataError(f"{num_extends} prompt chunks need as many extend_lens, got {inputs.extend_lens}")
    num_decodes = len(inputs.rows) - num_extends
    return chunks + (max(1, inputs.verify_width),) * num_decodes


def _starts(inputs: ForwardInputs, query_lens: tuple[int, ...]) -> tuple[int, ...]:
    starts = tuple(s - n for s, n in zip(inputs.seq_lens, query_lens, strict=True))
    if any(p < 0 for p in starts):
        raise MetadataError(f"seq_lens {inputs.seq_lens} are shorter than the query lengths {query_lens}")
    return starts
