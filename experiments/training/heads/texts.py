"""Texts: what a target writes by itself when it is prompted, in training and held-out parts."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from drafters.none import NoneConfig
from experiments.build import EngineMaker
from experiments.decode import Conversation
from experiments.targets import LoadedTarget
from experiments.training.heads.config import TEXTS, HeadTrainerConfig, TextSettings
from experiments.workloads import BUILTIN_PATH, Row, read_rows, take_round_robin
from specdec.engine import Engine, EngineConfig
from specdec.errors import CapacityError, WorkloadError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.verifiers import GreedyVerifierConfig, RejectionVerifierConfig

BUILTIN = "builtin"
PREFILL_PER_REQUEST = 8
"""Prompt tokens of a pass for each request of a batch: few passes then bring a whole batch to its decode rounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A prompt and how the target continued it.

    tokens      prompt and continuation
    num_prompt  how many of them are prompt
    max_tokens  length at which the continuation would have been cut
    """

    tokens: tuple[int, ...]
    num_prompt: int
    max_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Requests to write training texts with, and those that are held out."""

    training: tuple[Request, ...]
    heldout: tuple[Request, ...]


def read_prompts(settings: TextSettings) -> tuple[Row, ...]:
    """The rows of ``settings.prompts``; raises WorkloadError for a file that cannot be used."""
    path = BUILTIN_PATH if settings.prompts == BUILTIN else Path(settings.prompts)
    if path.suffix == ".jsonl":
        rows = read_rows(path)
    else:
        try:
            paragraphs = [part.strip() for part in path.read_text(encoding="utf-8").split("\n\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(f"{path}: cannot read the prompts ({error}); set trainer.text.prompts") from None
        texts = [part for part in paragraphs if part]
        rows = tuple(Row(id=f"paragraph-{i}", prompt=text) for i, text in enumerate(texts, start=1))
    if len(rows) < 2:
        raise WorkloadError(f"{path}: two prompts at least are needed, one to train and one to evaluate with")
    return take_round_robin(rows, settings.max_prompts or None)


def split_prompts(
    rows: Sequence[Row], loaded: LoadedTarget, config: HeadTrainerConfig, *, hold_all: bool = False
) -> Prompts:
    """Requests for the target; the held-out ones are chosen by the seed, and each is asked for once.

    With ``hold_all`` they all are, as for who reads texts; who only writes texts holds out none.
    """
    text = config.text
    order = random.Random(config.seed).sample(range(len(rows)), len(rows))
    num_heldout = min(max(round(text.heldout * len(rows)), 1), len(rows) - 1)
    if hold_all or text.files:
        num_heldout = len(rows)
    elif config.kind == TEXTS:
        num_heldout = 0
    heldout = [rows[i] for i in sorted(order[:num_heldout])]
    training = [rows[i] for i in sorted(order[num_heldout:])]
    sampling = SamplingParams(temperature=text.temperature, max_new_tokens=text.max_new_tokens)

    def requests(row: Row, samples: int) -> list[Request]:
        # Only the first turn of a conversation: what comes after depends on what the target answers.
        request = Conversation(row, sampling, loaded).first()
        return [replace(request, request_id=f"{row.id}#{number}") for number in range(samples)]

    return Prompts(
        training=tuple(request for row in training for request in requests(row, text.samples)),
        heldout=tuple(request for row in heldout for request in requests(row, 1)),
    )


def engine_config(config: HeadTrainerConfig) -> EngineConfig:
    """The engine that writes texts and that measures acceptance."""
    return EngineConfig(max_batch=config.text.batch, seed=config.seed)


def verifier_config(config: HeadTrainerConfig) -> GreedyVerifierConfig | RejectionVerifierConfig:
    """The rule whose acceptance the overlap is: greedy, or the token ratio test."""
    is_greedy = SamplingParams(temperature=config.text.temperature).greedy
    return GreedyVerifierConfig() if is_greedy else RejectionVerifierConfig()


def write_texts(
    loaded: LoadedTarget,
    requests: Sequence[Request],
    config: HeadTrainerConfig,
    *,
    dtype: torch.dtype,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Text, ...]:
    """Let the target continue every prompt; prompts that do not fit its context are left out.

    A batch of requests begins when the one before has ended, so that nearly all rounds are of decode rows only. With
    ``text.minutes`` none begins later than that. Raises WorkloadError when no text is long enough to learn from.
    """
    began, limit = clock(), config.text.minutes * 60
    maker = _maker(loaded, requests, config, dtype)
    # One engine for all of them: it keeps the graphs that it has recorded.
    engine, texts = maker(), []
    for first in range(0, len(requests), config.text.batch):
        if first and limit and clock() - began > limit:
            break
        texts += _write(engine, requests[first : first + config.text.batch], config)
    if not texts:
        raise WorkloadError(
            "the target ended every text at once: there is nothing to learn from (trainer.text.prompts)"
        )
    # Requests finish in an order that depends on their lengths; training should not.
    return tuple(sorted(texts, key=lambda text: text.tokens))


def _maker(
    loaded: LoadedTarget, requests: Sequence[Request], config: HeadTrainerConfig, dtype: torch.dtype
) -> EngineMaker:
    """Of engines whose caches are no longer than these requests need."""
    longest = max(len(request.prompt) for request in requests) + config.text.max_new_tokens
    engine = replace(
        engine_config(config),
        max_context=min(max(longest, 2), loaded.max_context),
        prefill_chunk=max(PREFILL_PER_REQUEST * config.text.batch, EngineConfig().prefill_chunk),
    )
    return EngineMaker(loaded, NoneConfig(), verifier_config(config).build(), engine, draft_dtype=dtype)


def _write(engine: Engine, requests: Sequence[Request], config: HeadTrainerConfig) -> list[Text]:
    """Texts of one batch of requests, in order of finishing; those too short to learn from are left out."""
    for request in requests:
        try:
            engine.add(request)
        except (WorkloadError, CapacityError):
            continue
    texts = [
        Text(
            tokens=(*output.prompt_ids, *output.output_ids),
            num_prompt=len(output.prompt_ids),
            max_tokens=min(len(output.prompt_ids) + config.text.max_new_tokens, engine.max_context),
        )
        for output in engine.run()
    ]
    return [text for text in texts if len(text.tokens) >= text.num_prompt + 2]
