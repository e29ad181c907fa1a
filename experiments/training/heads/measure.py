"""Acceptance of a finished head on held-out prompts: predicted from texts that exist, and measured by the engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiments.build import EngineMaker
from experiments.targets import LoadedTarget
from experiments.training.heads.acceptance import Expected, Measured, expected_steps, measured_steps
from experiments.training.heads.config import HeadTrainerConfig
from experiments.training.heads.frozen import FrozenTarget
from experiments.training.heads.objective import Teacher, compare, counted_slots, padded
from experiments.training.heads.states import LiveStates
from experiments.training.heads.texts import Text, engine_config, verifier_config
from experiments.training.heads.trainees import Trainee
from specdec.api import DrafterConfig
from specdec.errors import CapacityError, WorkloadError
from specdec.request import Request, RequestOutput


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthQuality:
    """A head at one depth on held-out text of the target, teacher-forced; means over drafts that could be made.

    nats     cross entropy under the target's law
    agrees   share whose most likely token is the target's
    overlap  sum of min(p, q) at the trained temperature
    """

    nats: float
    agrees: float
    overlap: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What training time says of a head."""

    depths: tuple[DepthQuality, ...]
    expected: Expected


@torch.no_grad()
def predict(trainee: Trainee, target: FrozenTarget, texts: Sequence[Text], config: HeadTrainerConfig) -> Predicted:
    """Judge a head on held-out texts, one after the other and whole."""
    temperature, device = config.text.temperature, target.lent.embedding.device
    live = LiveStates(target, trainee.layers)
    sums, counts, expected = np.zeros((config.depth, 3)), np.zeros(config.depth), None
    for text in texts:
        batch = padded([text.tokens], [text.num_prompt], device, limit=len(text.tokens))
        states = live.of([0], batch.tokens_BL)
        drafts = trainee.drafts(_of_head(states, trainee, target), batch.tokens_BL, config.depth)
        logits = target.logits(states[..., -target.width :])
        teacher = Teacher.of(logits, batch.tokens_BL, temperature=temperature, target_ids_X=trainee.target_ids_X)
        kept = []
        for number, logits in enumerate(drafts):
            compared = compare(logits, teacher, temperature=temperature)
            counted = counted_slots(batch, number + 1)
            values = (compared.imitation, compared.agrees, compared.overlap)
            sums[number] += [float(value[counted].sum()) for value in values]
            counts[number] += int(counted.sum())
            kept.append(compared.kept[0].double().cpu().numpy())
        found = expected_steps(
            np.stack(kept), num_prompt=text.num_prompt, length=len(text.tokens), max_tokens=text.max_tokens
        )
        expected = found if expected is None else expected + found
    assert expected is not None, "there is a held-out text"
    means = sums / np.maximum(counts, 1)[:, None]
    return Predicted(depths=tuple(DepthQuality(nats=n, agrees=a, overlap=o) for n, a, o in means), expected=expected)


def _of_head(states: torch.Tensor, trainee: Trainee, target: FrozenTarget) -> torch.Tensor:
    """The states that the head reads, without those added for the target's predictions."""
    return states[..., : len(trainee.layers) * target.width]


def measure(
    loaded: LoadedTarget,
    drafter: DrafterConfig,
    requests: Sequence[Request],
    config: HeadTrainerConfig,
    *,
    dtype: torch.dtype,
) -> tuple[Measured, list[RequestOutput]]:
    """Decode the held-out prompts with the head; prompts that do not fit are left out."""
    verifier = verifier_config(config).build()
    engine = EngineMaker(loaded, drafter, verifier, engine_config(config), draft_dtype=dtype)()
    for request in requests:
        try:
            engine.add(request)
        except (WorkloadError, CapacityError):
            continue
    outputs = engine.run()
    return measured_steps([row for output in outputs for row in output.steps], config.depth), outputs
