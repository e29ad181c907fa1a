"""Checks of what a drafter returns, so that a mistake in it is named instead of decoded.

``check_form`` looks at types and shapes and never at the device's memory, so that a recorded round runs it, too, while
it is recorded. Values are checked where they reach the host; of a recorded round only tokens and their numbers do.
"""

import torch

from specdec.api import Proposal, SiblingDraws
from specdec.errors import MetadataError

LAW_TOLERANCE = 1e-3
INTEGER, NUMBER = "int64", "float32"


def check_form(proposal: object, *, num_reqs: int, vocab_size: int, device: torch.device) -> None:
    """Raise MetadataError unless ``proposal`` is a Proposal for these requests, of the types that the API names."""
    if not isinstance(proposal, Proposal):
        raise MetadataError(f"a drafter returns a specdec.api.Proposal or None, got {type(proposal).__name__}")
    _check_tensor("tokens_BK", proposal.tokens_BK, INTEGER, device)
    tokens_BK = proposal.tokens_BK
    if len(tokens_BK.shape) != 2 or len(tokens_BK) != num_reqs:
        raise MetadataError(
            f"the drafter proposed for {len(tokens_BK) if tokens_BK.shape else 0} requests, the pass has {num_reqs}"
            + ("" if len(tokens_BK.shape) == 2 else f"; tokens_BK of shape {tuple(tokens_BK.shape)} is no [B, K]")
        )
    num_drafts = tokens_BK.shape[1]
    _check_tensor("num_drafted_B", proposal.num_drafted_B, INTEGER, device, shape=(num_reqs,))
    if proposal.probs_BKV is not None:
        _check_tensor("probs_BKV", proposal.probs_BKV, NUMBER, device, shape=(num_reqs, num_drafts, vocab_size))
    if proposal.parents_BK is not None:
        _check_tensor("parents_BK", proposal.parents_BK, INTEGER, device, shape=(num_reqs, num_drafts))
    if not isinstance(proposal.sibling_draws, SiblingDraws | None):
        raise MetadataError(f"sibling_draws must be a specdec.api.SiblingDraws or None, got {proposal.sibling_draws!r}")


def wrong_laws(proposal: Proposal) -> torch.Tensor | None:
    """Which requests have a draft whose reported laws cannot be true, int64 [B]; None without laws. Device work only.

    Every law is non-negative, sums to one and gives its token more than 0; NaN does none of it.
    """
    if proposal.probs_BKV is None:
        return None
    totals_BK, least_BK, own_BK = _figures(proposal, proposal.probs_BKV)
    is_law_BK = ((totals_BK - 1).abs() <= LAW_TOLERANCE) & (least_BK >= 0) & (own_BK > 0)
    columns_K = torch.arange(is_law_BK.shape[1], device=is_law_BK.device)
    return (~is_law_BK & (columns_K < proposal.num_drafted_B[:, None])).any(dim=1).long()


def wrong_law(proposal: Proposal, b: int, name: str) -> MetadataError:
    """The error of the first law of request ``b`` that cannot be true; reads the device."""
    assert proposal.probs_BKV is not None, "without laws none is wrong"
    lines = zip(*(figures_BK[b].tolist() for figures_BK in _figures(proposal, proposal.probs_BKV)), strict=True)
    for k, (total, least, own) in enumerate(lines):
        if not (abs(total - 1) <= LAW_TOLERANCE and least >= 0 and own > 0):
            return MetadataError(
                f"request {name}: the law of drafted token {k} (probs_BKV) must be non-negative, sum to 1 and give its "
                f"token more than 0; its sum is {total:g}, its least entry {least:g}, its token has {own:g}"
            )
    raise AssertionError("every law is one")


def _figures(proposal: Proposal, probs_BKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum and least entry of every law, and what it gives its token; padding may hold any token."""
    tokens_BK = proposal.tokens_BK.clamp(0, probs_BKV.shape[2] - 1)
    own_BK = probs_BKV.gather(2, tokens_BK.unsqueeze(2)).squeeze(2)
    return probs_BKV.sum(dim=2), probs_BKV.amin(dim=2), own_BK


def _check_tensor(
    name: str, value: object, dtype: str, device: torch.device, *, shape: tuple[int, ...] | None = None
) -> None:
    if not isinstance(value, torch.Tensor):
        raise MetadataError(f"{name} must be a tensor, got {type(value).__name__}")
    found = str(value.dtype).removeprefix("torch.")
    if found != dtype or value.device.type != device.type:
        raise MetadataError(f"{name} must be {dtype} on {device.type}, got {found} on {value.device.type}")
    if shape is not None and tuple(value.shape) != shape:
        raise MetadataError(f"{name} must have shape {list(shape)}, got {list(value.shape)}")
