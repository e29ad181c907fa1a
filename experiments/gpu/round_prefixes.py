"""Growing prefixes of a recorded round over a filled world: what is in each beyond the one before is a phase of it.

Every prefix but the first is ``record_round``, the function that the engine records, with a drafter that stops early;
the first is the target pass that it begins with.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from drafters.nextn import NextnConfig
from drafters.none import NoneDrafter
from experiments.gpu.worlds import ROOM, World
from specdec.api import LAST_LAYER, Drafter, DrafterNeeds, DraftSetup, PackedPass
from specdec.noise import VocabularyNoise, stream_key
from specdec.request import LiveRequest, Request
from specdec.rounds.arena import RoundArena
from specdec.rounds.parts import RoundParts, sampling_request
from specdec.rounds.recorded import RoundTensors, record_round
from specdec.sampling import BatchSampling
from specdec.sampling_params import SamplingParams
from specdec.stops import StopChecker
from specdec.verifiers import GumbelVerifier

TARGET, VERIFICATION, CATCH_UP = "target pass", "verification", "catch-up and first draft token"
SAMPLING = SamplingParams(temperature=0.8, max_new_tokens=ROOM)


class Undrafted(NoneDrafter):
    """Drafts nothing, and has the target keep the states that a NextN layer would read."""

    needs = DrafterNeeds(hidden_layers=(LAST_LAYER,))


def draft_step(number: int) -> str:
    """Name of the phase that draws draft token ``number``, from 2 on."""
    return f"draft step {number}"


def prefixes(world: World, num_draft_tokens: int) -> dict[str, Callable[[], object]]:
    """Phase -> a function that runs a round up to its end, in order; the last one is the whole round.

    The round verifies ``num_draft_tokens`` drafts of every request of ``world`` and drafts as many; 0: plain decoding.
    """
    device, width = world.target.device, num_draft_tokens + 1
    requests = live_requests(world, num_draft_tokens)
    arena = RoundArena(world.batch, width, sink_row=world.blocks.sink_row, device=device)
    arena.stage(requests)
    noise = VocabularyNoise(world.target.vocab_size, device=device)
    sampling = BatchSampling(
        [sampling_request(live) for live in requests],
        noise=noise,
        coupling=GumbelVerifier.coupling,
        follows=False,
    )
    tensors = RoundTensors(arena=arena, sampling=sampling, has_laws=False, laws=_no_laws)

    def up_to(drafter: Drafter) -> Callable[[], object]:
        parts = RoundParts(target=world.target, drafter=drafter, verifier=GumbelVerifier(), noise=noise)
        return partial(record_round, parts, world.blocks, tensors)

    silent = Undrafted() if num_draft_tokens else NoneDrafter()
    found = {
        TARGET: partial(target_pass, world, arena, silent.needs.hidden_layers),
        VERIFICATION: up_to(silent),
    }
    for count in range(1, num_draft_tokens + 1):
        found[CATCH_UP if count == 1 else draft_step(count)] = up_to(nextn_drafter(world, count))
    return found


def target_pass(world: World, arena: RoundArena, hidden_layers: tuple[int, ...]) -> object:
    """What ``record_round`` begins with: gather of the block tables and the target pass."""
    packed = PackedPass(
        tokens_T=arena.tokens_BN.view(-1),
        positions_T=arena.positions_T,
        reqs_T=arena.reqs_T,
        tables=world.blocks.gather(arena.rows_B),
    )
    return world.target.forward_packed(packed, hidden_layers=hidden_layers)


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


def nextn_drafter(world: World, num_draft_tokens: int) -> Drafter:
    """The NextN drafter over the world's draft model."""
    setup = DraftSetup(
        device=world.target.device,
        vocab_size=world.target.vocab_size,
        max_batch=world.batch,
        max_context=world.target.max_context,
        draft_backend=world.draft,
    )
    return NextnConfig(num_draft_tokens=num_draft_tokens).build(setup)


def differences(upto_ms: Mapping[str, float]) -> dict[str, float]:
    """Phase -> milliseconds, from those of the prefixes."""
    before, found = 0.0, {}
    for phase, upto in upto_ms.items():
        found[phase] = upto - before
        before = upto
    return found


def _no_laws() -> torch.Tensor:
    raise AssertionError("drafts of the gumbel rule have no laws")
