"""The round that the engine records over a filled world, and prefixes of it that end where a phase ends.

All are the engine's ``run_device_round`` between its two copies; parts with ``marks`` stop a prefix where it ends.
"""

from collections.abc import Callable
from functools import partial

import torch

from drafters.nextn import NextnConfig
from drafters.none import NoneDrafter
from experiments.gpu.marks import (
    RESULT,
    STAGE,
    TARGET,
    VERIFICATION,
    MarkedDraftBackend,
    MarkedDrafter,
    MarkedTarget,
    MarkedVerifier,
    Marks,
    PrefixEnd,
    draft_step,
)
from experiments.gpu.worlds import ROOM, World
from specdec.api import Drafter, DraftSetup
from specdec.noise import VocabularyNoise, stream_key
from specdec.request import LiveRequest, Request
from specdec.rounds.arena import RoundArena
from specdec.rounds.device_round import DeviceRound, RoundTensors, most_columns, run_device_round
from specdec.rounds.parts import RoundParts, sampling_request
from specdec.rounds.readback import Readback
from specdec.sampling import BatchSampling
from specdec.sampling_params import SamplingParams
from specdec.stops import StopChecker
from specdec.verifiers import GumbelVerifier

SAMPLING = SamplingParams(temperature=0.8, max_new_tokens=ROOM)


def prefixes(world: World, num_draft_tokens: int) -> dict[str, Callable[[], DeviceRound | None]]:
    """Phase -> a function that runs a round up to its end, in order; the last one, ``RESULT``, is the whole round.

    The round verifies ``num_draft_tokens`` drafts of every request of ``world`` and drafts as many; 0: plain decoding.
    """
    device, width = world.target.device, num_draft_tokens + 1
    requests = live_requests(world, num_draft_tokens)
    arena = RoundArena(world.batch, width, sink_row=world.blocks.sink_row, device=device)
    arena.write(requests)
    noise = VocabularyNoise(world.target.vocab_size, device=device)
    sampling = BatchSampling(
        [sampling_request(live) for live in requests],
        noise=noise,
        coupling=GumbelVerifier.coupling,
        follows=False,
    )
    readback = Readback(world.batch * most_columns(width, num_draft_tokens), device=device)
    tensors = RoundTensors(arena=arena, sampling=sampling, has_laws=False, laws=_no_laws)
    phases = (STAGE, TARGET, VERIFICATION, *map(draft_step, range(1, num_draft_tokens + 1)), RESULT)
    found: dict[str, Callable[[], DeviceRound | None]] = {}
    for phase in phases:
        parts = marked_parts(world, num_draft_tokens, noise, Marks(phase))
        found[phase] = partial(_up_to, phase, parts, world, tensors, readback)
    return found


def marked_parts(world: World, num_draft_tokens: int, noise: VocabularyNoise, marks: Marks) -> RoundParts:
    """Parts of a round with marks in them."""
    drafter: Drafter = NoneDrafter()
    if num_draft_tokens:
        drafter = MarkedDrafter(nextn_drafter(world, num_draft_tokens, marks), marks)
    return RoundParts(
        target=MarkedTarget(world.target, marks), drafter=drafter, verifier=MarkedVerifier(marks), noise=noise
    )


def _up_to(
    phase: str, parts: RoundParts, world: World, tensors: RoundTensors, readback: Readback
) -> DeviceRound | None:
    try:
        tensors.arena.upload()
        recorded = run_device_round(parts, world.blocks, tensors)
        readback.copy(recorded.result_BX)
    except PrefixEnd:
        return None
    assert phase == RESULT, f"the round has no mark at the end of its {phase}"
    return recorded


def live_requests(world: World, num_draft_tokens: int) -> list[LiveRequest]:
    """Requests whose newest token is fed at position ``world.context``, with random drafts."""
    generator = torch.Generator().manual_seed(num_draft_tokens)
    shape = (world.batch, world.context + 1 + num_draft_tokens)
    ids = torch.randint(2, world.target.vocab_size, shape, generator=generator).tolist()
    return [_live(row, line, world) for row, line in enumerate(ids)]


def _live(row: int, line: list[int], world: World) -> LiveRequest:
    tokens, draft = line[: world.context + 1], tuple(line[world.context + 1 :])
    request = Request(request_id=f"r{row}", prompt=tuple(tokens), sampling=SAMPLING)
    return LiveRequest(
        request=request,
        stops=StopChecker(SAMPLING, eos_ids=(), max_output=ROOM, detokenize=None),
        stream=stream_key(None, request_id=request.request_id, run_seed=0),
        tokens=tokens,
        num_prompt=len(tokens),
        max_tokens=len(tokens) + ROOM,
        prefill_end=world.context,
        row=row,
        num_computed=world.context,
        draft=draft,
    )


def nextn_drafter(world: World, num_draft_tokens: int, marks: Marks | None = None) -> Drafter:
    """The NextN drafter over the world's draft model, which has ``marks`` if there are any."""
    backend = world.draft
    assert backend is not None, "a world for drafts has a draft model"
    setup = DraftSetup(
        device=world.target.device,
        vocab_size=world.target.vocab_size,
        max_batch=world.batch,
        max_context=world.target.max_context,
        draft_backend=backend if marks is None else MarkedDraftBackend(backend, marks),
    )
    return NextnConfig(num_draft_tokens=num_draft_tokens).build(setup)


def _no_laws() -> torch.Tensor:
    raise AssertionError("drafts of the gumbel rule have no laws")
