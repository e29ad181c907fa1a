"""SamplingParams: what is accepted, what is refused, and what the refusal says."""

import dataclasses

import pytest

from specdec.errors import ConfigError
from specdec.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1.5),
        ("top_p", 1.01),
        ("top_p", -0.01),
        ("min_p", 1.5),
        ("seed", "zero"),
        ("seed", 2**63),
        ("max_new_tokens", 0),
        ("min_new_tokens", -1),
        ("min_new_tokens", 129),
        ("stop", ["", "x"]),
        ("stop", [3]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["7"]),
        ("stop_token_ids", 7),
        ("ignore_eos", 1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("logprobs", 5),
    ],
)
def test_params_name_the_key_when_a_value_is_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"sampling\.{key}"):
        SamplingParams(**{key: value})


def test_params_accept_the_edges_of_every_range() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=0, min_p=1, seed=-(2**63), max_new_tokens=1, min_new_tokens=1)
    SamplingParams(temperature=1e300, top_k=10**9, top_p=1, min_p=0, seed=None, repetition_penalty=1e-3)


def test_params_normalise_stop_to_tuples() -> None:
    params = SamplingParams(stop="###", stop_token_ids=[3, 4])
    assert params.stop == ("###",)
    assert params.stop_token_ids == (3, 4)
    assert hash(params) == hash(dataclasses.replace(params))


def test_greedy_starts_below_one_millionth() -> None:
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(temperature=9e-7).greedy
    assert not SamplingParams(temperature=1e-6).greedy
