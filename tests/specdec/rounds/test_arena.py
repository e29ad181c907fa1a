"""The integers of a round: those of its requests, padding, and tensors that stay where they are."""

from collections.abc import Sequence

import torch

from specdec.request import LiveRequest, Request
from specdec.rounds.arena import RoundArena
from specdec.sampling_params import SamplingParams
from specdec.stops import StopChecker


def test_arena_pads_with_the_sink_row_and_no_position() -> None:
    arena = RoundArena(3, 4, sink_row=9, device=torch.device("cpu"))
    addresses = [tensor.data_ptr() for tensor in arena.tensors]
    arena.write(())
    arena.upload()
    assert arena.rows_B.tolist() == [9, 9, 9]
    assert set(arena.positions_T.tolist()) == {-1}
    assert not any(tensor.any() for tensor in (arena.firsts_B, arena.num_drafted_B, arena.remaining_B))
    assert arena.reqs_T.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert [tensor.data_ptr() for tensor in arena.tensors] == addresses


def live_request(row: int, known: int, draft: Sequence[int]) -> LiveRequest:
    params = SamplingParams(max_new_tokens=40)
    return LiveRequest(
        request=Request(request_id=str(row), prompt=(1,), sampling=params),
        stops=StopChecker(params, eos_ids=(), max_output=40, detokenize=None),
        stream=0,
        tokens=list(range(100, 100 + known)),
        num_prompt=1,
        max_tokens=41,
        prefill_end=1,
        row=row,
        draft=draft,
    )


def test_arena_holds_newest_token_draft_and_positions_of_each_request() -> None:
    """Written anew, it keeps nothing of the round before; the device has it from ``upload`` on."""
    arena = RoundArena(3, 3, sink_row=9, device=torch.device("cpu"))
    arena.write([live_request(row, 20, (7, 8)) for row in range(3)])
    arena.upload()
    arena.write([live_request(4, 5, (50, 51)), live_request(1, 8, [60])])
    assert arena.rows_B.tolist() == [0, 1, 2]
    arena.upload()
    assert arena.rows_B.tolist() == [4, 1, 9]
    assert arena.firsts_B.tolist() == [5, 8, 0]
    assert arena.num_drafted_B.tolist() == [2, 1, 0]
    assert arena.remaining_B.tolist() == [36, 33, 0]
    assert arena.tokens_BN.tolist() == [[104, 50, 51], [107, 60, 0], [0, 0, 0]]
    assert arena.positions_T.tolist() == [4, 5, 6, 7, 8, -1, -1, -1, -1]
