import pytest
import torch

from drafters.oracle import OracleConfig, OracleDrafter, ReferenceTable
from specdec.errors import ConfigError

VOCABULARY = 10
COUNTING = tuple(range(10)) * 400


def make_drafter(**options) -> OracleDrafter:
    config = OracleConfig(continuation=lambda history: COUNTING[len(history) :], **options)
    return OracleDrafter(config, device=torch.device("cpu"), vocab_size=VOCABULARY)


def right_at(drafter: OracleDrafter, length: int, make_input) -> list[bool]:
    tokens = drafter.propose(make_input([COUNTING[:length]])).tokens_BK[0].tolist()
    return [token == COUNTING[length + depth] for depth, token in enumerate(tokens)]


def test_oracle_is_right_with_the_set_probability_at_each_position(make_input) -> None:
    drafter = make_drafter(accuracy=(0.9, 0.5), num_draft_tokens=3)
    hits = [right_at(drafter, length, make_input) for length in range(10, 1510)]
    share = [sum(column) / len(hits) for column in zip(*hits, strict=True)]
    # Four standard errors of a fair share of 1500 coins are below 0.052.
    assert share == pytest.approx([0.9, 0.5, 0.5], abs=0.052)


def test_oracle_coins_of_neighbouring_positions_are_independent(make_input) -> None:
    drafter = make_drafter(accuracy=(0.5,), num_draft_tokens=2)
    hits = [right_at(drafter, length, make_input) for length in range(10, 1510)]
    both = sum(first and second for first, second in hits) / len(hits)
    assert both == pytest.approx(0.25, abs=0.045)


@pytest.mark.parametrize(("accuracy", "expected"), [(1.0, [True] * 4), (0.0, [False] * 4)])
def test_oracle_at_the_edges_is_always_right_or_wrong(accuracy, expected, make_input) -> None:
    drafter = make_drafter(accuracy=(accuracy,), num_draft_tokens=4)
    assert right_at(drafter, 50, make_input) == expected


def test_oracle_repeats_its_drafts_and_another_seed_does_not(make_input) -> None:
    def hits(seed: int) -> list[list[bool]]:
        drafter = make_drafter(accuracy=(0.5,), seed=seed)
        return [right_at(drafter, length, make_input) for length in range(10, 60)]

    assert hits(1) == hits(1)
    assert hits(1) != hits(2)


def test_oracle_wrong_tokens_are_of_the_vocabulary(make_input) -> None:
    drafter = make_drafter(accuracy=(0.0,), num_draft_tokens=10)
    tokens = drafter.propose(make_input([COUNTING[:10]])).tokens_BK[0].tolist()
    assert tokens == [(token + 1) % VOCABULARY for token in range(10)]


def test_oracle_drafts_within_the_limits_of_each_request(make_input) -> None:
    drafter = make_drafter(accuracy=(1.0,), num_draft_tokens=3)
    proposal = drafter.propose(make_input([COUNTING[:4]] * 3, limits=[0, 2, 31]))
    assert proposal.num_drafted_B.tolist() == [0, 2, 3]


def test_oracle_without_references_drafts_nothing(make_input) -> None:
    drafter = OracleDrafter(OracleConfig(), device=torch.device("cpu"), vocab_size=VOCABULARY)
    assert drafter.propose(make_input([[1, 2]])) is None


def test_reference_table_follows_the_sequence_that_the_history_began() -> None:
    table = ReferenceTable([((1, 2), (3, 4, 5)), ((1, 2), (3, 9)), ((1, 2, 3, 9, 7), (8,))])
    assert table([1, 2, 3]) == (4, 5)
    assert table([1, 2, 3, 9, 7]) == (8,)
    assert table([1, 2, 3, 9]) == (7, 8)
    assert table([1, 2, 6]) == ()
    assert table([5]) == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accuracy": ()}, "accuracy must have at least one entry"),
        ({"accuracy": (0.5, 1.5)}, "accuracy must be a number from 0.0 to 1.0, got 1.5"),
        ({"seed": -1}, "drafter.seed"),
    ],
)
def test_oracle_config_refuses_by_name(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        OracleConfig(**options)
