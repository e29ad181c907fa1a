"""Speed-up: tokens per second of one run over the other, with the range of the repeats."""

from dataclasses import replace

import pytest

from experiments.speed import Timing, measured, ratio, waited


def timing(seconds: float, *, tokens: int = 100) -> Timing:
    return Timing(total_us=seconds * 1e6, decode_us=seconds * 5e5, num_tokens=tokens, num_decoded=tokens - 10)


def test_ratio_of_equal_work_is_the_ratio_of_times() -> None:
    found = ratio([timing(1.0), timing(1.0)], [timing(2.0), timing(2.0)], lambda t: t.rate)
    assert found == {"value": 2.0, "low": 2.0, "high": 2.0, "n": 2}


def test_range_is_that_of_every_repeat_against_every_other() -> None:
    found = ratio([timing(1.0), timing(2.0)], [timing(2.0), timing(4.0)], lambda t: t.rate)
    assert (found["low"], found["high"]) == (1.0, 4.0)
    assert found["value"] == (100 + 50) / (50 + 25)


def test_more_tokens_in_the_same_time_count_as_faster() -> None:
    assert ratio([timing(1.0, tokens=200)], [timing(1.0)], lambda t: t.rate)["value"] == 2.0


def test_single_repeat_has_no_range() -> None:
    assert ratio([timing(1.0)], [timing(3.0)], lambda t: t.rate) == {"value": 3.0, "low": None, "high": None, "n": 1}


def test_nothing_decoded_has_no_value() -> None:
    empty = Timing(total_us=1.0, decode_us=0.0, num_tokens=1, num_decoded=0)
    assert ratio([empty], [timing(1.0)], lambda t: t.decode_rate)["value"] is None
    assert measured([empty.decode_rate]) == {"value": None, "low": None, "high": None, "n": 0}


def test_cpu_rate_counts_only_what_the_process_was_given() -> None:
    ours, plain = (replace(timing(4.0), cpu_us=cpu_s * 1e6) for cpu_s in (1.0, 2.0))
    assert ratio([ours], [plain], lambda t: t.cpu_rate)["value"] == 2.0
    assert ratio([ours], [timing(2.0)], lambda t: t.cpu_rate)["value"] is None


@pytest.mark.parametrize(("cpu_s", "found"), [(1.0, (1.0, 2.0)), (1.6, None), (2.0, None), (0.0, None)])
def test_process_that_waited_for_a_core_is_found(cpu_s: float, found: tuple[float, float] | None) -> None:
    assert waited([replace(timing(2.0), cpu_us=cpu_s * 1e6)]) == found
    assert waited([]) is None
