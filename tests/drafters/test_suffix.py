"""Suffix decoding where arctic-inference is installed, and the error that names the extra where it is not."""

import importlib.util
import sys

import pytest
import torch

from drafters.suffix import SuffixConfig
from specdec.api import DraftSetup
from specdec.certify import certify
from specdec.certify.tables import BIGRAM
from specdec.errors import ConfigError, UnsupportedError
from specdec.testing import check_drafter
from specdec.verifiers import RejectionVerifier

SETUP = DraftSetup(device=torch.device("cpu"), vocab_size=16, max_batch=4, max_context=64)
PACKAGE = "arctic_inference"
installed = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="needs arctic-inference")


def drafted(drafter, inputs) -> list[list[int]]:
    proposal = drafter.propose(inputs)
    if proposal is None:
        return [[] for _ in inputs.wanted_B]
    lines = zip(proposal.tokens_BK.tolist(), proposal.num_drafted_B.tolist(), strict=True)
    return [tokens[:count] for tokens, count in lines]


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without the package, whether it is installed or not."""

    class Hider:
        @staticmethod
        def find_spec(name: str, path=None, target=None):
            if name.partition(".")[0] == PACKAGE:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("drafters.suffix.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "meta_path", [Hider, *sys.meta_path])


def test_without_the_package_the_error_names_the_extra(absent: None) -> None:
    with pytest.raises(ConfigError, match=r"needs arctic-inference 0.3 .* pip install 'specdec-research\[suffix\]'"):
        SuffixConfig()


def test_with_a_package_that_lacks_suffix_decoding_the_error_names_the_extra(
    absent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drafters.suffix.find_spec", lambda name: object())
    config = SuffixConfig()
    with pytest.raises(ConfigError, match=r"pip install 'specdec-research\[suffix\]' \(No module named"):
        config.build(SETUP)


@installed
def test_suffix_continues_the_longest_match(make_input) -> None:
    drafter = SuffixConfig(num_draft_tokens=3).build(SETUP)
    # Two tokens match, so two may be drafted.
    assert drafted(drafter, make_input([[1, 2, 3, 9, 1, 2], [4, 5, 6]])) == [[3, 9], []]


@installed
def test_suffix_takes_the_most_frequent_continuation_and_stops_at_rare_ones(make_input) -> None:
    history = [1, 7, 1, 7, 1, 8, 1]
    assert drafted(SuffixConfig(num_draft_tokens=1).build(SETUP), make_input([history])) == [[7]]
    rare = SuffixConfig(num_draft_tokens=1, min_probability=0.9).build(SETUP)
    assert drafted(rare, make_input([history])) == [[]]


@installed
def test_suffix_keeps_within_the_limits_of_each_request(make_input) -> None:
    drafter = SuffixConfig(num_draft_tokens=4, spec_factor=4.0).build(SETUP)
    found = drafted(drafter, make_input([[1, 2, 3, 4, 5, 6, 1, 2]] * 3, limits=[0, 2, 31]))
    assert found == [[], [3, 4], [3, 4, 5, 6]]


@installed
def test_suffix_follows_a_growing_text_as_if_it_were_new(make_input) -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 3, 5, 1, 2]
    grown = SuffixConfig(num_draft_tokens=4, spec_factor=2.0).build(SETUP)
    for length in (3, 4, 8, 9, 15):
        fresh = SuffixConfig(num_draft_tokens=4, spec_factor=2.0).build(SETUP)
        assert drafted(grown, make_input([text[:length]])) == drafted(fresh, make_input([text[:length]]))


@installed
def test_outputs_of_other_requests_are_searched_only_when_asked_for(make_input) -> None:
    for max_requests, expected in ((0, []), (8, [3, 9])):
        drafter = SuffixConfig(num_draft_tokens=2, spec_factor=2.0, max_requests=max_requests).build(SETUP)
        drafted(drafter, make_input([[5]]))
        drafted(drafter, make_input([[5, 1, 2, 3, 9]]))
        drafter.forget([0])
        assert drafted(drafter, make_input([[7, 1, 2]])) == [expected]


@installed
@pytest.mark.parametrize("max_requests", [0, 2])
def test_suffix_passes_the_check_for_plug_ins(max_requests: int) -> None:
    tally = check_drafter(SuffixConfig(spec_factor=2.0, max_requests=max_requests))
    assert tally.num_preemptions > 0
    assert 0 < tally.num_accepted < tally.num_drafted


@installed
def test_suffix_is_exact() -> None:
    assert certify(RejectionVerifier(), SuffixConfig(spec_factor=2.0), num_tokens=4, pairs=(BIGRAM,)).exact


@installed
def test_state_that_spans_requests_is_not_enumerated() -> None:
    with pytest.raises(UnsupportedError, match="the state of SuffixConfig.max_requests=2. cannot be copied"):
        certify(RejectionVerifier(), SuffixConfig(max_requests=2), num_tokens=3, pairs=(BIGRAM,))


@installed
@pytest.mark.parametrize("name", ["max_depth", "spec_factor", "spec_offset", "min_probability", "max_requests"])
def test_suffix_config_refuses_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"drafter.{name}"):
        SuffixConfig(**{name: -1})
