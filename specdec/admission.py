"""Admission: from a request to its live state, or the reason why it cannot be run; knows no rounds."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from specdec.engine_config import CachePlan
from specdec.errors import WorkloadError
from specdec.noise import stream_key
from specdec.request import LiveRequest, Request
from specdec.stops import StopChecker


def noise_stream(request: Request, run_seed: int) -> int:
    """Key of a request's noise; turns of one conversation are requests of their own, with noise of their own."""
    name = f"{request.request_id} turn {request.turn}"
    return stream_key(request.sampling.seed, request_id=name, run_seed=run_seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """What decides whether a request can be run; fields as in ``Engine``.

    live_ids  (id, turn) of the unfinished requests; read only
    """

    vocab_size: int
    max_context: int
    plan: CachePlan
    eos_ids: frozenset[int]
    detokenize: Callable[[Sequence[int]], str] | None
    bos_id: int | None
    run_seed: int
    live_ids: Collection[tuple[str, int]]

    def admit(self, request: Request) -> LiveRequest:
        """The live state of ``request``.

        Raises WorkloadError for a prompt that cannot be run and CapacityError for a request that no number of
        waiting rounds could serve.
        """
        prompt = self._checked_prompt(request)
        params = request.sampling
        max_output = self.max_context - len(prompt)
        max_tokens = len(prompt) + min(params.max_new_tokens, max_output)
        self.plan.check_servable(request.request_id, max_tokens)
        stops = StopChecker(params, eos_ids=self.eos_ids, max_output=max_output, detokenize=self.detokenize)
        return LiveRequest(
            request=request,
            stops=stops,
            stream=noise_stream(request, self.run_seed),
            tokens=list(prompt),
            num_prompt=len(prompt),
            max_tokens=max_tokens,
            prefill_end=len(prompt),
        )

    def _checked_prompt(self, request: Request) -> tuple[int, ...]:
        """The prompt to run; raises WorkloadError for a request that cannot be run at all."""
        name = f"request {request.request_id}"
        if (request.request_id, request.turn) in self.live_ids:
            raise WorkloadError(f"{name} turn {request.turn} is not finished yet; live request ids must be unique")
        prompt = request.prompt
        if not prompt:
            if self.bos_id is None:
                raise WorkloadError(f"{name}: the prompt is empty and the target has no begin-of-sequence id")
            prompt = (self.bos_id,)
        if len(prompt) >= self.max_context:
            raise WorkloadError(
                f"{name}: the prompt has {len(prompt)} tokens and the context limit is {self.max_context}, "
                f"which leaves no room for output (conf: engine.max_context)"
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise WorkloadError(
                f"{name}: prompt token ids must lie in 0..{self.vocab_size - 1}, got {min(prompt)}..{max(prompt)}"
            )
        beyond = [token for token in request.sampling.stop_token_ids if token >= self.vocab_size]
        if beyond:
            raise WorkloadError(
                f"{name}: stop_token_ids must lie in 0..{self.vocab_size - 1}, since the vocabulary has "
                f"{self.vocab_size} tokens, got {beyond[0]} (conf: sampling.stop_token_ids)"
            )
        if request.sampling.stop and self.detokenize is None:
            raise WorkloadError(f"{name}: stop strings need a tokenizer, the target has none")
        return prompt
