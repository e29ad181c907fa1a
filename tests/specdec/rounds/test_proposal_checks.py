"""What a drafter may return: every mistake of type, shape or law is named, in eager rounds and while recording."""

import pytest
import torch

from specdec.api import DraftInput, Proposal
from specdec.engine import Engine, EngineConfig
from specdec.errors import MetadataError
from specdec.request import Request
from specdec.sampling_params import SamplingParams
from specdec.testing import PlainDrafter, TableTarget
from specdec.verifiers import RejectionVerifier


class BadDrafter(PlainDrafter):
    """Returns what it is given."""

    num_draft_tokens = 2

    def __init__(self, proposal: object) -> None:
        self._proposal = proposal

    def propose(self, inputs: DraftInput) -> object:
        return self._proposal


TOKENS, COUNT = torch.tensor([[1, 2]]), torch.tensor([2])
LAW = torch.full((1, 2, 13), 1 / 13)


@pytest.mark.parametrize(
    ("proposal", "message"),
    [
        ([[1, 2]], "returns a specdec.api.Proposal or None, got list"),
        (Proposal(tokens_BK=TOKENS.float(), num_drafted_B=COUNT), "tokens_BK must be int64 on cpu, got float32"),
        (Proposal(tokens_BK=TOKENS[0], num_drafted_B=COUNT), r"shape \(2,\) is no \[B, K\]"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT.float()), "num_drafted_B must be int64 on cpu, got float32"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT[None]), r"must have shape \[1\], got \[1, 1\]"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=LAW.half()), "probs_BKV must be float32"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=LAW[..., 1:]), r"\[1, 2, 13\], got \[1, 2, 12\]"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=LAW * torch.nan), "request a: .* its sum is nan"),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=LAW * 2), "drafted token 0 .* its sum is 2"),
        (
            Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=torch.eye(13)[1].expand(1, 2, 13)),
            "drafted token 1 .* its token has 0",
        ),
        (
            Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, probs_BKV=2 * LAW - torch.eye(13)[3].expand(1, 2, 13)),
            "its least entry -0.84",
        ),
        (Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, sibling_draws="with"), "sibling_draws must be .* got 'with'"),
        (
            Proposal(tokens_BK=TOKENS, num_drafted_B=COUNT, parents_BK=torch.tensor([[-1, 0]]).int()),
            "parents_BK must be int64",
        ),
    ],
)
@pytest.mark.parametrize("graphs", [False, True])
def test_a_proposal_of_wrong_form_or_with_a_false_law_is_refused_by_name(proposal, message, graphs) -> None:
    engine = Engine(TableTarget(), BadDrafter(proposal), RejectionVerifier(), EngineConfig(graphs=graphs))
    engine.add(Request(request_id="a", prompt=(1, 2)))
    with pytest.raises(MetadataError, match=message):
        engine.run_round()


def test_a_law_beyond_the_draft_is_not_looked_at() -> None:
    laws = torch.cat([LAW[:, :1], LAW[:, 1:] * torch.nan], dim=1)
    proposal = Proposal(tokens_BK=torch.tensor([[1, 99]]), num_drafted_B=torch.tensor([1]), probs_BKV=laws)
    engine = Engine(TableTarget(), BadDrafter(proposal), RejectionVerifier(), EngineConfig())
    engine.add(Request(request_id="a", prompt=(1, 2), sampling=SamplingParams(max_new_tokens=9, ignore_eos=True)))
    assert len(engine.run()[0].output_ids) == 9
