"""Invariants 6 and 7: whatever comes between, a replayed pass equals an eager one, and its tensors never move."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.deepseek_v4.cache_groups import AttentionKind
from backends.deepseek_v4.forward_inputs import ForwardInputs
from backends.deepseek_v4.graph_state import GraphBuffers, GraphStateInputs
from backends.nextn.backend import NextNBackend
from backends.nextn.config import NextNBackendConfig
from specdec.cache.sizing import table_columns
from specdec.layout import ForwardMode, RoundLayout

CONTEXT, VOCABULARY, ROWS, MAX_WIDTH = 320, 97, 4, 4
VALUES = {"atol": 2e-5, "rtol": 1e-4, "equal_nan": True}
# Positions just before the ends of compressed blocks and pages.
STARTS = (126, 1, 62, 254)

widths = st.integers(1, MAX_WIDTH)
live_rows = st.lists(st.integers(0, ROWS - 1), max_size=ROWS, unique=True)
captures = st.tuples(st.just("capture"), st.integers(1, ROWS), widths)
eager_passes = st.tuples(st.just("eager"), live_rows.filter(bool), widths)
# Padding requests of a replayed pass come on top of the live ones.
replays = st.tuples(st.just("replay"), live_rows, st.integers(0, ROWS), widths)
steps = st.lists(st.one_of(captures, eager_passes, replays, replays), min_size=1, max_size=6)


def graph_inputs(groups) -> GraphStateInputs:
    columns = {g.group_id: table_columns(g, max_context=CONTEXT, horizon=8) for g in groups}
    return GraphStateInputs(max_batch=ROWS, max_tokens_per_request=MAX_WIDTH, columns=columns)


def decode_inputs(world, rows, starts, *, num_reqs, width) -> ForwardInputs:
    layout = RoundLayout(rows=tuple(rows), start_positions=tuple(starts), query_lens=(width,) * len(rows))
    return ForwardInputs(
        mode=ForwardMode.DECODE if rows else ForwardMode.IDLE,
        rows=layout.rows,
        seq_lens=layout.seq_lens,
        tables=world.tables(layout) if rows else {},
        num_tokens=num_reqs * width,
    )


def tensors_of(value) -> Iterator[torch.Tensor]:
    """All tensors of nested dataclasses, mappings and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
    elif isinstance(value, (dict, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(item)


def addresses(buffers: GraphBuffers) -> list[tuple]:
    return [(t.data_ptr(), tuple(t.shape), t.stride()) for t in tensors_of(buffers)]


def cache_buffers(world) -> Iterator[torch.Tensor]:
    pool = world.target.pool
    for layer, kind in enumerate(pool.kinds):
        yield pool.swa(layer)
        if kind.compresses:
            yield from (pool.compressed(layer), pool.state(layer))
        if kind is AttentionKind.CSA:
            yield from (pool.index_keys(layer), pool.index_state(layer))


def poison(tensors: Iterator[torch.Tensor]) -> None:
    """Content that shows wherever it is read."""
    for tensor in tensors:
        tensor.fill_(True if tensor.dtype == torch.bool else 1e9 if tensor.is_floating_point() else 10**8)


class Player:
    """Plays the steps of an example on a world with captured passes and, eagerly, on its twin."""

    def __init__(self, make, text: list[int]) -> None:
        self.graph, self.eager, self.text = make(), make(), text
        for row, start in enumerate(STARTS):
            self.graph.run([(row, 0, text[row : row + start])], num_prefill_reqs=1)
        self._kept = [buffer.clone() for buffer in cache_buffers(self.graph)]
        self._columns = graph_inputs(self.graph.target.cache_groups)

    def play(self, steps, *, padding_token: int) -> None:
        for world in (self.graph, self.eager):
            for buffer, kept in zip(cache_buffers(world), self._kept, strict=True):
                buffer.copy_(kept)
        self.graph.target.backend.init_cuda_graph_state(self._columns)
        self.lengths, self.held = list(STARTS), {}
        for name, *step in steps:
            if name == "capture":
                self._capture(*step)
            elif name == "eager":
                rows, width = step
                chunks = self._chunks(rows, width)
                expected = self.eager.run(chunks).logits_RV
                torch.testing.assert_close(self.graph.run(chunks).logits_RV, expected, **VALUES)
                self._commit(rows)
            else:
                rows, padding, width = step
                self._replay(rows, min(ROWS, max(1, len(rows) + padding)), width, padding_token)
        for one, other, kept in zip(cache_buffers(self.graph), cache_buffers(self.eager), self._kept, strict=True):
            torch.testing.assert_close(one[1:], other[1:], **VALUES)
            # Slot 0 is never written.
            torch.testing.assert_close(one[0, 0], kept[0, 0], atol=0.0, rtol=0.0, equal_nan=True)

    def _capture(self, num_reqs: int, width: int) -> GraphBuffers:
        """A first or repeated capture; a recorded pass also runs, with no page at all."""
        inputs = ForwardInputs(
            mode=ForwardMode.DECODE,
            rows=tuple(range(num_reqs)),
            seq_lens=(width,) * num_reqs,
            tables={},
            num_tokens=num_reqs * width,
        )
        buffers = self.graph.target.backend.init_forward_metadata_capture_cuda_graph(inputs)
        self.graph.target.run(buffers.plan, torch.zeros(num_reqs * width, dtype=torch.int64), logit_rows=(0,))
        if (num_reqs, width) in self.held:
            assert addresses(buffers) == self.held[num_reqs, width][1]
        self.held[num_reqs, width] = (buffers, addresses(buffers))
        return buffers

    def _replay(self, rows: list[int], num_reqs: int, width: int, padding_token: int) -> None:
        if (num_reqs, width) not in self.held:
            self._capture(num_reqs, width)
        held, known = self.held[num_reqs, width]
        assert addresses(held) == known
        poison(tensors_of((held.seq_lens_B, held.tables, held.plan)))
        # Of page 0, slot 0 stays zero and the last row takes what is discarded: nobody may see the others.
        poison(buffer[0, 1:] for buffer in cache_buffers(self.graph))
        chunks, live = self._chunks(rows, width), len(rows) * width
        starts = [self.lengths[row] for row in rows]
        inputs = decode_inputs(self.graph, rows, starts, num_reqs=num_reqs, width=width)
        buffers = self.graph.target.backend.init_forward_metadata_replay_cuda_graph(inputs, num_reqs)
        assert buffers is held and addresses(buffers) == known
        tokens = [token for _, _, chunk in chunks for token in chunk]
        tokens_T = torch.tensor(tokens + [padding_token] * (num_reqs * width - live))
        out = self.graph.target.run(buffers.plan, tokens_T, logit_rows=tuple(range(num_reqs * width)))
        assert out.logits_RV.isfinite().all()
        assert buffers.valid_T.tolist() == [True] * live + [False] * (num_reqs * width - live)
        if rows:
            torch.testing.assert_close(out.logits_RV[:live], self.eager.run(chunks).logits_RV, **VALUES)
            self._commit(rows)

    def _chunks(self, rows: list[int], width: int) -> list[tuple[int, int, list[int]]]:
        return [(r, self.lengths[r], self.text[r + self.lengths[r] :][:width]) for r in rows]

    def _commit(self, rows: list[int]) -> None:
        """One token stays: the rest of a wider pass is written again."""
        for row in rows:
            self.lengths[row] += 1


def test_invariant_6_replay_equals_eager_for_any_live_batch_and_history(world_of, text):
    player = Player(lambda: world_of(max_context=CONTEXT), text)

    @settings(deadline=None, max_examples=20)
    @given(steps=steps, padding_token=st.integers(0, VOCABULARY - 1))
    def check(steps, padding_token):
        player.play(steps, padding_token=padding_token)

    check()


def test_invariant_7_no_tensor_of_any_captured_pass_moves(world_of, text):
    """With eager passes, eager drafts and captures of other shapes between replays."""
    world = world_of(max_context=CONTEXT)
    draft = NextNBackend.build(world.nextn, world.target, NextNBackendConfig(max_batch=ROWS))
    streams = world.nextn.config.hc_mult * world.nextn.config.hidden_size

    def draft_eagerly(rows, width):
        chunks = [(row, 5, text[:width]) for row in rows]
        hidden_TD = torch.randn(len(rows) * width, streams)
        inputs = world.draft_input(chunks, text[: len(rows) * width], hidden_TD, num_committed=[1] * len(rows))
        draft.begin_draft(inputs)
        draft.advance_draft_forward_metadata(inputs.seq_lens_B + 1)

    @settings(deadline=None, max_examples=40)
    @given(steps=steps)
    def check(steps):
        backend = world.target.backend
        backend.init_cuda_graph_state(graph_inputs(world.target.cache_groups))
        held = {}

        def capture(num_reqs, width):
            inputs = decode_inputs(world, range(num_reqs), [0] * num_reqs, num_reqs=num_reqs, width=width)
            buffers = backend.init_forward_metadata_capture_cuda_graph(inputs)
            found = buffers, addresses(buffers)
            assert held.setdefault((num_reqs, width), found) == found

        for name, *step in steps:
            if name == "capture":
                capture(*step)
            elif name == "eager":
                draft_eagerly(*step)
            else:
                rows, padding, width = step
                num_reqs = min(ROWS, max(1, len(rows) + padding))
                capture(num_reqs, width)
                inputs = decode_inputs(world, rows, [STARTS[r] for r in rows], num_reqs=num_reqs, width=width)
                buffers, _ = held[num_reqs, width]
                assert backend.init_forward_metadata_replay_cuda_graph(inputs, num_reqs) is buffers
            for buffers, known in held.values():
                assert addresses(buffers) == known

    check()
