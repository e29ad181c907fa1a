"""Decoding one prompt in one way, with CPU time and clock; keeps the loaded targets and one engine maker a way."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import torch

from backends.hf.load import gguf_file
from drafters.oracle import OracleConfig
from experiments.bench_hf import Theirs
from experiments.build import EngineMaker, locate
from experiments.checkpoints import folder_of
from experiments.decode import Conversation
from experiments.evidence.cells import Measured
from experiments.evidence.plan import LOADERS, NEW_TOKENS, Prompt, Way
from experiments.records import step_record
from experiments.targets import LoadedTarget, TargetRequest
from specdec.api import DrafterConfig
from specdec.engine import EngineConfig
from specdec.request import Request
from specdec.sampling_params import SamplingParams

CONTEXT = 1280
"""Tokens of a request with its prompt; a longer prompt is left out."""
WARM_UP_PROMPT, WARM_UP_TOKENS = 32, 4


class Bench:
    """Targets are loaded when they are first asked for; all ways of a target share its weights.

    Caches are kept for the ways of one target and temperature at a time: those of all take gigabytes.
    """

    def __init__(self) -> None:
        self._targets: dict[str, LoadedTarget] = {}
        self._block: tuple[str, int] | None = None
        self._makers: dict[str, EngineMaker] = {}
        self._theirs: Theirs | None = None

    def measure(self, way: Way, prompt: Prompt, expected: Sequence[int]) -> Measured:
        """One request; ``expected`` is what plain decoding made of it, which an oracle replays.

        Raises WorkloadError or CapacityError for a prompt that does not fit.
        """
        request = self._request(way, prompt)
        if way.drafter is None:
            return self._measure_theirs(way, prompt, request)
        make = self._maker(way, request, expected)
        engine = make()
        engine.add(request)
        times = [0.0] * 4
        num_decoded = 0
        while engine.has_work:
            wall_s, cpu_s = perf_counter(), process_time()
            engine.run_round()
            cpu_s, wall_s = process_time() - cpu_s, perf_counter() - wall_s
            record = engine.rounds[-1]
            decodes = record.num_steps and not record.num_prompt_tokens
            times = [
                a + b for a, b in zip(times, [cpu_s, wall_s, *([cpu_s, wall_s] if decodes else [0, 0])], strict=True)
            ]
            num_decoded += record.num_emitted if decodes else 0
        (output,) = engine.take_outputs()
        return Measured(
            source=prompt.source,
            category=prompt.row.category,
            output_ids=output.output_ids,
            passes=len(engine.rounds),
            cpu_s=times[0],
            wall_s=times[1],
            decode_cpu_s=times[2],
            decode_wall_s=times[3],
            num_decoded=num_decoded,
            steps=tuple(step_record(row) for row in output.steps),
        )

    def _request(self, way: Way, prompt: Prompt) -> Request:
        sampling = SamplingParams(temperature=float(way.temperature), max_new_tokens=NEW_TOKENS[way.target])
        return Conversation(prompt.row, sampling, self._target(way.target)).first()

    def _target(self, name: str) -> LoadedTarget:
        if name not in self._targets:
            request = TargetRequest(
                folder=folder_of(name),
                cache_dtype="fp32",
                indexer_dtype="plain",
                device=torch.device("cpu"),
                dtype=torch.float32,
            )
            self._targets[name] = locate(LOADERS[name], "target._target_")(request)
        return self._targets[name]

    def _maker(self, way: Way, request: Request, expected: Sequence[int]) -> EngineMaker:
        """The maker of a way, warm; that of an oracle is made for the request, of parts that others have warmed."""
        if isinstance(way.drafter, OracleConfig):
            known = ((request.prompt, tuple(expected)),)
            return self._made(way, replace(way.drafter, references=known))
        if self._block != (way.target, way.temperature):
            self._block = way.target, way.temperature
            self._makers.clear()
        if way.key not in self._makers:
            assert way.drafter is not None, "transformers' own decoding has no engine"
            make = self._makers[way.key] = self._made(way, way.drafter)
            engine = make()
            few = replace(request.sampling, max_new_tokens=WARM_UP_TOKENS)
            engine.add(replace(request, prompt=request.prompt[:WARM_UP_PROMPT], sampling=few))
            engine.run()
        return self._makers[way.key]

    def _made(self, way: Way, drafter: DrafterConfig) -> EngineMaker:
        config = EngineConfig(max_context=CONTEXT, prefill_chunk=CONTEXT)
        return EngineMaker(self._target(way.target), drafter, way.verifier, config)

    def _measure_theirs(self, way: Way, prompt: Prompt, request: Request) -> Measured:
        if self._theirs is None:
            folder = folder_of(way.target)
            assert folder is not None, "the peer runs a checkpoint"
            self._theirs = _theirs(folder, self._target(way.target), request)
        wall_s, cpu_s = perf_counter(), process_time()
        ids, passes = self._theirs.decode(request.prompt, lookup=True)
        cpu_s, wall_s = process_time() - cpu_s, perf_counter() - wall_s
        return Measured(
            source=prompt.source,
            category=prompt.row.category,
            output_ids=tuple(ids),
            passes=passes,
            cpu_s=cpu_s,
            wall_s=wall_s,
        )


def _theirs(folder: Path, loaded: LoadedTarget, request: Request) -> Theirs:
    file = gguf_file(folder)
    assert file is not None, "the peer is compared on a GGUF file"
    theirs = Theirs(file, loaded.eos_ids, torch.float32, new_tokens=request.sampling.max_new_tokens)
    theirs.decode(request.prompt[:WARM_UP_PROMPT], lookup=True)
    return theirs
