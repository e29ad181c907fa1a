"""BatchSampling: how the requests of one batch sample, as tensors; knows no verification rule and no model."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specdec.api import Coupling, Draft, SiblingDraws, Siblings, TreeRows
from specdec.errors import UnsupportedError
from specdec.filters import Filters, num_sorted
from specdec.minimum_length import MinimumLength
from specdec.noise import Salt, VocabularyNoise, row_keys, uniforms
from specdec.ops.choose import choose
from specdec.penalties import Penalties
from specdec.sampling_params import SamplingParams

_NO_WEIGHT = float("-inf")
# Keeps products with any temperature finite: 1e30 * 1e6 < 3e38, and -inf times it is still -inf.
_LARGEST_LOGIT = 1e30
_SMALLEST_INVERSE = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingRequest:
    """What sampling needs to know of one request.

    params      the request's options
    stream      key of its noise, from ``noise.stream_key``
    tokens      all known tokens, prompt first; a live list that the owner appends to before the next draw
    num_prompt  leading ``tokens`` that are the prompt
    stop_ids    ids that would end the output (end of sequence unless ignored, and stop tokens)
    """

    params: SamplingParams
    stream: int
    tokens: Sequence[int]
    num_prompt: int
    stop_ids: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingVariant:
    """What of a batch's options decides which operations run; batches of one variant and size share a recording.

    num_sorted  largest weights that the filters sort; None without filters
    """

    all_greedy: bool
    any_greedy: bool
    num_sorted: int | None
    penalties: bool
    minimum: bool
    logprobs: bool

    @classmethod
    def of(cls, requests: Sequence[SamplingRequest], vocab_size: int) -> "SamplingVariant":
        """The variant of a batch."""
        params = [r.params for r in requests]
        return cls(
            all_greedy=all(p.greedy for p in params),
            any_greedy=any(p.greedy for p in params),
            num_sorted=num_sorted(params, vocab_size) if any(p.has_filters for p in params) else None,
            penalties=any(p.has_penalties for p in params),
            minimum=any(r.params.min_new_tokens and r.stop_ids for r in requests),
            logprobs=any(p.logprobs for p in params),
        )

    def __str__(self) -> str:
        words = ["greedy" if self.all_greedy else "mixed" if self.any_greedy else "sampled"]
        if self.num_sorted is not None:
            words.append(f"filters({self.num_sorted})")
        flags = {"penalties": self.penalties, "minimum": self.minimum, "logprobs": self.logprobs}
        words += [name for name, is_set in flags.items() if is_set]
        return "+".join(words)


class BatchSampling:
    """Sampling of a batch; implements ``api.TargetSampling``.

    follows  whether penalties count the requests' growing lists at every call. Without it nothing but device work
             happens in a call, and the owner calls ``follow`` before a round and ``mark_counted`` after it

    Holds the requests' options as device tensors, so it is made once per composition of the batch and used for as
    many rounds as that lasts. Logits are processed in this order: penalties, minimum length, NaN removed,
    temperature, top-k, top-p, min-p. Every row of a verify block is processed as plain decoding would have processed
    it after the drafted tokens before it.
    """

    def __init__(
        self,
        requests: Sequence[SamplingRequest],
        *,
        noise: VocabularyNoise,
        coupling: Coupling,
        follows: bool = True,
    ) -> None:
        params = [r.params for r in requests]
        device, vocab_size = noise.device, noise.vocab_size
        self.variant = variant = SamplingVariant.of(requests, vocab_size)
        self.wants_logprobs = variant.logprobs
        self._noise = noise
        self._tokens = [r.tokens for r in requests]
        self._coupling = coupling
        self._follows = follows
        self._tree: TreeRows | None = None
        self.all_greedy = variant.all_greedy
        self._any_greedy = variant.any_greedy
        self._is_plain = variant.num_sorted is None and not (variant.penalties or variant.minimum)
        self._streams_B1 = torch.tensor([r.stream for r in requests], dtype=torch.int64, device=device).view(-1, 1)
        self._greedy_B11 = torch.tensor([p.greedy for p in params], device=device).view(-1, 1, 1)
        inverse = [1.0 if p.greedy else max(1.0 / p.temperature, _SMALLEST_INVERSE) for p in params]
        self._inverse_temperature_B11 = torch.tensor(inverse, dtype=torch.float32, device=device).view(-1, 1, 1)
        self._filters = None
        if variant.num_sorted is not None:
            self._filters = Filters(params, vocab_size=vocab_size, device=device)
        self._penalties = None
        if variant.penalties:
            tokens, num_prompt = [r.tokens for r in requests], [r.num_prompt for r in requests]
            self._penalties = Penalties(params, tokens, num_prompt, vocab_size=vocab_size, device=device)
        self._minimum = None
        if variant.minimum:
            self._minimum = MinimumLength(
                [r.num_prompt + r.params.min_new_tokens for r in requests],
                [r.stop_ids for r in requests],
                vocab_size=vocab_size,
                device=device,
            )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All that the methods read, in an order that depends on the variant only."""
        parts = [part.tensors for part in (self._filters, self._penalties, self._minimum) if part is not None]
        return sum(parts, (self._streams_B1, self._greedy_B11, self._inverse_temperature_B11))

    def replace(self, requests: Sequence[SamplingRequest]) -> None:
        """Sample for other ``requests`` of the same number and variant, in the same tensors."""
        other = BatchSampling(requests, noise=self._noise, coupling=self._coupling, follows=self._follows)
        assert other.variant == self.variant and len(other._tokens) == len(self._tokens), "another recording"
        for own, new in zip(self.tensors, other.tensors, strict=True):
            own.copy_(new)
        self._tokens = other._tokens
        if self._penalties is not None and other._penalties is not None:
            self._penalties.replace(other._penalties)

    def follow(self) -> None:
        """Count the tokens that were appended to the requests' lists, on the host."""
        if self._penalties is not None:
            self._penalties.follow()

    def count(self, tokens_BN: torch.Tensor, num_committed_B: torch.Tensor) -> None:
        """Count the leading ``num_committed_B`` of ``tokens_BN`` as output; device work only."""
        if self._penalties is not None:
            self._penalties.count(tokens_BN, num_committed_B)

    def mark_counted(self) -> None:
        """The requests' lists now have what was given to ``count``."""
        if self._penalties is not None:
            self._penalties.mark_counted()

    def _choose_plain(self, logits_BNV: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
        """``choose`` without penalties, minimum length and filters, fused; may differ from it at near ties."""
        self._check_vocabulary(logits_BNV)
        return choose(
            logits_BNV,
            positions_B,
            streams_B=self._streams_B1.view(-1),
            inverse_temperature_B=self._inverse_temperature_B11.view(-1),
            greedy_B=self._greedy_B11.view(-1),
            noise=self._noise,
        )

    def drafting(self, lengths_B: torch.Tensor) -> "DraftingView":
        """How a drafter samples when ``lengths_B`` (int64) tokens of each request are known."""
        return DraftingView(self, lengths_B)

    def along(self, tree: TreeRows) -> "BatchSampling":
        """The same for the rows of a tree, sharing all tensors; see ``api.TargetSampling.along``."""
        other = copy.copy(self)
        other._tree = tree
        return other

    def adjust(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """Logits after penalties and the minimum length, without NaN (-inf instead); float32 [B, N, V].

        Row j predicts position ``positions_B + j`` and comes after the drafted tokens d1..dj. Raises
        UnsupportedError for logits over another vocabulary.
        """
        self._check_vocabulary(logits_BNV)
        out_BNV = logits_BNV.float()
        if self._penalties is not None:
            if self._follows:
                self._penalties.follow()
            out_BNV = self._penalties.apply(out_BNV, drafted_BK, self._tree)
        if self._minimum is not None:
            out_BNV = self._minimum.apply(out_BNV, self._positions(positions_B, logits_BNV.shape[1]))
        return out_BNV.nan_to_num(nan=_NO_WEIGHT, posinf=_LARGEST_LOGIT, neginf=_NO_WEIGHT)

    def scores(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """Log-weights of each row's law, -inf for tokens that cannot come; float32 [B, N, V].

        A greedy request gets a point mass on its most probable token (the lowest id on ties).
        """
        scores_BNV = self._soften(self.adjust(logits_BNV, drafted_BK, positions_B))
        if not self._any_greedy:
            return scores_BNV
        best_BN1 = scores_BNV.argmax(dim=-1, keepdim=True)
        point_BNV = torch.full_like(scores_BNV, _NO_WEIGHT).scatter_(-1, best_BN1, 0.0)
        return torch.where(self._greedy_B11, point_BNV, scores_BNV)

    def law(self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor) -> torch.Tensor:
        """Probabilities that plain decoding would draw each row's token from; float32 [B, N, V]."""
        return self.scores(logits_BNV, drafted_BK, positions_B).softmax(dim=-1)

    def choose(
        self, logits_BNV: torch.Tensor, drafted_BK: torch.Tensor | None, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """Each row's own token under position-keyed noise, int64 [B, N]: what plain decoding would have drawn."""
        if self._is_plain and logits_BNV.is_cuda:
            return self._choose_plain(logits_BNV, positions_B)
        if self.all_greedy:
            return self.adjust(logits_BNV, drafted_BK, positions_B).argmax(dim=-1)
        law_BNV = self.law(logits_BNV, drafted_BK, positions_B)
        return self._noise.race(law_BNV, self._keys(positions_B, logits_BNV.shape[1], Salt.TARGET))

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """Draft one token per request after its known tokens; see ``api.SamplingView.draw``."""
        lengths_B = torch.tensor([len(tokens) for tokens in self._tokens], dtype=torch.int64)
        return self.draw_after(lengths_B.to(self._noise.device), logits_BV, positions_B, greedy=greedy)

    def draw_after(
        self, lengths_B: torch.Tensor, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool
    ) -> Draft:
        """``draw`` for requests of ``lengths_B`` known tokens; device work only.

        Penalties count known tokens only, not the drafted tokens before this one: a drafter's law is its own affair.
        """
        logits_BNV = logits_BV.unsqueeze(1)
        if self.all_greedy and self._is_plain and logits_BV.is_cuda:
            return Draft(tokens_B=self._choose_plain(logits_BNV, positions_B).squeeze(1))
        if greedy or self.all_greedy or self._coupling is Coupling.GREEDY:
            return Draft(tokens_B=self.adjust(logits_BNV, None, positions_B).argmax(dim=-1).squeeze(1))
        if self._coupling is Coupling.SHARED:
            return Draft(tokens_B=self.choose(logits_BNV, None, positions_B).squeeze(1))
        probs_BV = self.law(logits_BNV, None, positions_B).squeeze(1)
        keys_B = self._draft_keys(lengths_B, positions_B)
        return Draft(tokens_B=self._noise.race(probs_BV, keys_B), probs_BV=probs_BV)

    def draw_siblings_after(
        self,
        lengths_B: torch.Tensor,
        logits_BV: torch.Tensor,
        positions_B: torch.Tensor,
        *,
        count: int,
        draws: SiblingDraws,
        greedy: bool,
    ) -> Siblings:
        """``draw_siblings`` for requests of ``lengths_B`` known tokens; device work only.

        One that is greedy in a batch that is not has a single sibling where laws are reported.
        """
        logits_B1V = logits_BV.unsqueeze(1)
        if greedy or self.all_greedy or self._coupling is Coupling.GREEDY:
            adjusted_BV = self.adjust(logits_B1V, None, positions_B).squeeze(1)
            return _heaviest(adjusted_BV, count)
        probs_BV = self.law(logits_B1V, None, positions_B).squeeze(1)
        num_B = (probs_BV > 0).sum(dim=1).clamp(1, count)
        if self._coupling is Coupling.SHARED:
            keys_B = self._keys(positions_B, 1, Salt.TARGET).squeeze(1)
            tokens_BS = self._noise.order(probs_BV, keys_B, count)
            if not self._any_greedy:
                return Siblings(tokens_BS=tokens_BS, num_B=num_B)
            best = _heaviest(self.adjust(logits_B1V, None, positions_B).squeeze(1), count)
            greedy_B = self._greedy_B11.view(-1)
            tokens_BS = torch.where(greedy_B.unsqueeze(1), best.tokens_BS, tokens_BS)
            return Siblings(tokens_BS=tokens_BS, num_B=torch.where(greedy_B, best.num_B, num_B))
        keys_B = self._draft_keys(lengths_B, positions_B)
        if draws is SiblingDraws.WITHOUT_REPLACEMENT:
            return Siblings(tokens_BS=self._noise.order(probs_BV, keys_B, count), num_B=num_B, probs_BV=probs_BV)
        each = [keys_B, *(row_keys(keys_B, torch.full_like(keys_B, s), Salt.DRAFT) for s in range(1, count))]
        tokens_BS = torch.stack([self._noise.race(probs_BV, own_B) for own_B in each], dim=1)
        return Siblings(tokens_BS=tokens_BS, num_B=torch.full_like(num_B, count), probs_BV=probs_BV)

    def final_draw(
        self, weights_BV: torch.Tensor, positions_B: torch.Tensor, is_residual_B: torch.Tensor
    ) -> torch.Tensor:
        """Draw the token that ends a round from unnormalised ``weights_BV``; int64 [B].

        A residual has noise of its own; a bonus (and plain decoding) uses the position's target noise.
        """
        salt_B = torch.where(is_residual_B, int(Salt.RESIDUAL), int(Salt.TARGET))
        keys_B = row_keys(self._streams_B1.squeeze(1), positions_B, salt_B)
        return self._noise.race(weights_BV, keys_B)

    def acceptance_uniforms(self, positions_B: torch.Tensor, width: int) -> torch.Tensor:
        """float64 [B, width] in (0, 1): entry j decides the drafted token at position ``positions_B + j``."""
        if self._tree is None:
            return uniforms(self._keys(positions_B, width, Salt.ACCEPT))
        # Of nodes at one position with the same number at most one is ever tested.
        places_BK = positions_B.unsqueeze(1) + self._tree.depth_BN[:, 1 : width + 1] - 1
        keys_BK = row_keys(self._streams_B1, places_BK, int(Salt.ACCEPT))
        number_BK = self._tree.sibling_BK[:, :width]
        return uniforms(torch.where(number_BK == 0, keys_BK, row_keys(keys_BK, number_BK, int(Salt.ACCEPT))))

    def logprobs(
        self,
        logits_BNV: torch.Tensor,
        drafted_BK: torch.Tensor | None,
        positions_B: torch.Tensor,
        tokens_BN: torch.Tensor,
    ) -> torch.Tensor:
        """Log-probability of ``tokens_BN`` under the target's processed law, float32 [B, N].

        The law has penalties, minimum length, temperature and filters applied. For a greedy request, whose law is a
        point mass, it is the law at temperature 1 without filters.
        """
        scores_BNV = self._soften(self.adjust(logits_BNV, drafted_BK, positions_B))
        return scores_BNV.log_softmax(dim=-1).gather(-1, tokens_BN.unsqueeze(-1)).squeeze(-1)

    def _check_vocabulary(self, logits_BNV: torch.Tensor) -> None:
        if logits_BNV.shape[-1] != self._noise.vocab_size:
            raise UnsupportedError(
                f"logits cover {logits_BNV.shape[-1]} tokens and the target's vocabulary has "
                f"{self._noise.vocab_size}; a drafter with another vocabulary maps its logits to target ids, "
                f"-inf elsewhere"
            )

    def _keys(self, positions_B: torch.Tensor, width: int, salt: Salt) -> torch.Tensor:
        """int64 [B, width] noise keys of the positions that the rows predict."""
        return row_keys(self._streams_B1, self._positions(positions_B, width), int(salt))

    def _positions(self, positions_B: torch.Tensor, width: int) -> torch.Tensor:
        """int64 [B, width]: the position that each row predicts, consecutive ones but in a tree."""
        positions_BN = positions_B.unsqueeze(1)
        if width == 1:
            return positions_BN
        if self._tree is not None:
            return positions_BN + self._tree.depth_BN
        return positions_BN + torch.arange(width, device=positions_B.device)

    def _draft_keys(self, lengths_B: torch.Tensor, positions_B: torch.Tensor) -> torch.Tensor:
        """int64 [B] noise keys of draft tokens: of the round too, which the number of known tokens names.

        A position may be drafted in several rounds. Rules that look beyond the accepted tokens (block verification)
        are exact only if the later draft owes nothing to the earlier one.
        """
        streams_B = self._streams_B1.squeeze(1)
        return row_keys(row_keys(streams_B, lengths_B, Salt.DRAFT), positions_B, Salt.DRAFT)

    def _soften(self, logits_BNV: torch.Tensor) -> torch.Tensor:
        """Temperature and filters."""
        scores_BNV = logits_BNV * self._inverse_temperature_B11
        return scores_BNV if self._filters is None else self._filters.apply(scores_BNV)


@dataclass(frozen=True, slots=True)
class DraftingView:
    """How a drafter samples in one round; implements ``api.SamplingView``."""

    sampling: BatchSampling
    lengths_B: torch.Tensor

    def draw(self, logits_BV: torch.Tensor, positions_B: torch.Tensor, *, greedy: bool = False) -> Draft:
        """Draft one token per request; see ``api.SamplingView.draw``."""
        return self.sampling.draw_after(self.lengths_B, logits_BV, positions_B, greedy=greedy)

    def draw_siblings(
        self,
        logits_BV: torch.Tensor,
        positions_B: torch.Tensor,
        *,
        count: int,
        draws: SiblingDraws = SiblingDraws.WITHOUT_REPLACEMENT,
        greedy: bool = False,
    ) -> Siblings:
        """Draft several tokens for one position; see ``api.SamplingView.draw_siblings``."""
        return self.sampling.draw_siblings_after(
            self.lengths_B, logits_BV, positions_B, count=count, draws=draws, greedy=greedy
        )


def _heaviest(adjusted_BV: torch.Tensor, count: int) -> Siblings:
    """The most probable tokens, the lowest id on ties."""
    ordered = adjusted_BV.sort(dim=-1, descending=True, stable=True)
    num_B = (ordered.values[:, :count] > _NO_WEIGHT).sum(dim=1).clamp(min=1)
    return Siblings(tokens_BS=ordered.indices[:, :count], num_B=num_B)
