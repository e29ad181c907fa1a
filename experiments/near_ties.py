"""Near ties: whether outputs parted from the baseline where two tokens were as good as equal; decides no losslessness.

Passes of other shapes sum in another order, so two scores that differ by less than rounding may change places. At the
first token in which two outputs differ, one plain pass over their common prefix gives the scores of both tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log2

import torch

from experiments.lossless import Difference
from specdec.admission import noise_stream
from specdec.api import Coupling, Proposal, TargetSampling, Verdict, Verifier
from specdec.engine import Engine
from specdec.noise import Salt, VocabularyNoise, row_keys
from specdec.request import Request, RequestOutput
from specdec.sampling import BatchSampling, SamplingRequest
from specdec.sampling_params import SamplingParams
from specdec.stops import StopChecker
from specdec.verifiers import GreedyVerifier

# Units in the last place, of a logit in the type of the activations, within which two scores may change places. bf16
# activations are rounded between operators, which sum in float32: what reaches a logit is about one unit. In float32
# all comes from the order of sums over some thousand terms, which moves the last few bits.
BOUND_UNITS = {torch.bfloat16: 2, torch.float32: 32}
MANTISSA_BITS = {torch.bfloat16: 7, torch.float32: 23}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """Where an output and the baseline's part; every pair is the run's token, then the baseline's.

    token   number of the output token
    ids     the two tokens
    logits  theirs after penalties, from a plain pass over the common prefix; None: the token cannot come
    scores  what the rule compares: logits, or under a temperature logits / temperature less log E of the noise
    gap     best score of the whole vocabulary less the lower of the two; None: one of them cannot come
    bound   gap up to which rounding explains the difference
    drawn   whether the scores have noise in them
    """

    request_id: str
    turn: int
    token: int
    ids: tuple[int, int]
    logits: tuple[float | None, float | None]
    scores: tuple[float | None, float | None]
    gap: float | None
    bound: float
    drawn: bool

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the difference."""
        return self.gap is not None and self.gap <= self.bound

    def __str__(self) -> str:
        verdict = "a near tie" if self.near_tie else "no near tie"
        what = f"logits {_pair(self.logits)}"
        if self.drawn:
            what = f"perturbed scores {_pair(self.scores)}, of {what}"
        gap = "infinite" if self.gap is None else f"{self.gap:.6g}" if self.gap else "0.0"
        bound = "" if self.near_tie else f", rounding explains {self.bound:.2g}"
        ours, theirs = self.ids
        return (
            f"{self.request_id} turn {self.turn}, token {self.token}: {ours} instead of {theirs}, {verdict} "
            f"({what}, gap {gap}{bound})"
        )

    def as_dict(self) -> dict[str, object]:
        """As JSON can say it."""
        return {
            "request_id": self.request_id,
            "turn": self.turn,
            "token": self.token,
            "ids": list(self.ids),
            "logits": list(self.logits),
            "scores": list(self.scores),
            "gap": self.gap,
            "bound": self.bound,
            "near_tie": self.near_tie,
            "text": str(self),
        }


def _pair(values: tuple[float | None, float | None]) -> str:
    return " and ".join("-inf" if value is None else f"{value:.6g}" for value in values)


def rounding_bound(largest: float, dtype: torch.dtype) -> float:
    """Difference of logits up to ``largest`` in size that rounding in ``dtype`` explains."""
    exponent = floor(log2(largest)) if isfinite(largest) and largest > 0 else 0
    return BOUND_UNITS[dtype] * 2.0 ** (exponent - MANTISSA_BITS[dtype])


def bound_text(dtype: torch.dtype) -> str:
    """The bound in words."""
    name = str(dtype).removeprefix("torch.")
    return (
        f"{BOUND_UNITS[dtype]} units in the last place of {name} of the larger logit; of perturbed scores over the "
        "temperature"
    )


class Prober:
    """Plain greedy verification that keeps the logits it sees."""

    name = "greedy"
    lossless = True
    lossless_how = GreedyVerifier.lossless_how
    coupling = Coupling.GREEDY

    def __init__(self) -> None:
        self._rule = GreedyVerifier()
        self.logits_V: torch.Tensor | None = None

    def judge(
        self,
        logits_BNV: torch.Tensor,
        proposal: Proposal | None,
        sampling: TargetSampling,
        positions_B: torch.Tensor,
    ) -> Verdict:
        """See ``api.Verifier.judge``."""
        self.logits_V = logits_BNV[-1, -1].float().clone()
        return self._rule.judge(logits_BNV, proposal, sampling, positions_B)


@dataclass(frozen=True, kw_only=True, slots=True)
class Examiner:
    """What a plain pass and its scores are made from.

    make_engine  an engine that decodes plainly by the verifier that it is given
    verifier     the rule of the run that is examined
    sampling     options by request id
    eos_ids, run_seed  of the run
    dtype        of the activations
    """

    make_engine: Callable[[Verifier], Engine]
    verifier: Verifier
    sampling: Mapping[str, SamplingParams]
    eos_ids: Sequence[int]
    run_seed: int
    dtype: torch.dtype

    def examine(self, outputs: Sequence[RequestOutput], differences: Sequence[Difference]) -> tuple[Parting, ...]:
        """The scores at every difference that is one of tokens after equal ones; others are left out."""
        ours = {(output.request_id, output.turn): output for output in outputs}
        found = [each for each in differences if each.ids is not None]
        if not found:
            return ()
        prober = Prober()
        engine = self.make_engine(prober)
        return tuple(self._parting(engine, prober, ours[each.request_id, each.turn], each) for each in found)

    def _parting(self, engine: Engine, prober: Prober, output: RequestOutput, difference: Difference) -> Parting:
        assert difference.ids is not None
        prefix = (*output.prompt_ids, *output.output_ids[: difference.token])
        engine.add(Request(request_id="probe", prompt=prefix, sampling=SamplingParams(max_new_tokens=1, temperature=0)))
        engine.run()
        assert prober.logits_V is not None, "every request emits a token"
        logits_V, scores_V, is_drawn = self._scores(prober.logits_V, output, prefix)
        ids = list(difference.ids)
        logits, scores = logits_V[ids].tolist(), scores_V[ids].tolist()
        gap = scores_V.max().item() - min(scores)
        inverse = 1 / self.sampling[output.request_id].temperature if is_drawn else 1.0
        bound = rounding_bound(max(abs(each) for each in logits), self.dtype) * inverse
        return Parting(
            request_id=output.request_id,
            turn=output.turn,
            token=difference.token,
            ids=difference.ids,
            logits=_finite(logits),
            scores=_finite(scores),
            gap=gap if isfinite(gap) else None,
            bound=bound,
            drawn=is_drawn,
        )

    def _scores(
        self, logits_V: torch.Tensor, output: RequestOutput, prefix: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Logits and scores of the token after ``prefix`` as the rule sees them, and whether noise is in the scores."""
        params = self.sampling[output.request_id]
        request = Request(request_id=output.request_id, prompt=output.prompt_ids, sampling=params, turn=output.turn)
        stream = noise_stream(request, self.run_seed)
        stops = StopChecker(params, eos_ids=self.eos_ids, max_output=1, detokenize=None)
        noise = VocabularyNoise(len(logits_V), device=logits_V.device)
        sampling = BatchSampling(
            [
                SamplingRequest(
                    params=params,
                    stream=stream,
                    tokens=prefix,
                    num_prompt=len(output.prompt_ids),
                    stop_ids=stops.ending_ids,
                )
            ],
            noise=noise,
            coupling=self.verifier.coupling,
        )
        position_B = torch.tensor([len(prefix)], device=logits_V.device)
        logits_11V = logits_V.view(1, 1, -1)
        adjusted_V = sampling.adjust(logits_11V, None, position_B).view(-1)
        if params.greedy or self.verifier.coupling is Coupling.GREEDY:
            return adjusted_V, adjusted_V, False
        weights_V = sampling.scores(logits_11V, None, position_B).view(-1)
        key = row_keys(torch.tensor(stream, device=logits_V.device), position_B[0], Salt.TARGET)
        return adjusted_V, weights_V - noise.exponentials(key).log(), True


def _finite(pair: Sequence[float]) -> tuple[float | None, float | None]:
    ours, theirs = (value if isfinite(value) else None for value in pair)
    return ours, theirs
