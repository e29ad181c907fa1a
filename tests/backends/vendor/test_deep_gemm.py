"""The wrapper around DeepGEMM: what it passes on, what it refuses, and when it is not there."""

import sys
import types

import pytest
import torch

from backends.vendor import deep_gemm
from specdec.errors import MetadataError, UnsupportedError


class Recorder:
    """Stands in for the package: notes how it is called."""

    def __init__(self) -> None:
        self.scheduled: list[tuple[object, ...]] = []
        self.seen: list[tuple[object, ...]] = []
        self.calls = deep_gemm.DeepGemm(
            fp8_paged_mqa_logits=self.logits, get_paged_mqa_logits_metadata=self.schedule, get_num_sms=lambda: 132
        )

    def schedule(self, *args):
        self.scheduled.append(args)
        return "schedule"

    def logits(self, *args, clean_logits):
        assert clean_logits is False
        self.seen.append(args)
        return torch.zeros(args[0].shape[0], args[6])


def operands(**changes) -> dict[str, torch.Tensor]:
    given = {
        "codes_TJD": torch.zeros(2, 64, 128).to(torch.float8_e4m3fn),
        "pages": torch.zeros(3, 64, 1, 132, dtype=torch.uint8),
        "weights_TJ": torch.ones(2, 64),
        "lens_T": torch.tensor([5, 0], dtype=torch.int32),
        "table_TC": torch.zeros(2, 4, dtype=torch.int32),
    }
    return {**given, **changes}


def test_tokens_become_rows_of_one_query_with_lengths_of_two_dimensions():
    recorder = Recorder()
    logits = deep_gemm.paged_logits(**operands(), num_columns=256, calls=recorder.calls)
    q, pages, weights, lens, table, schedule, columns = recorder.seen[0]
    assert logits.shape == (2, 256) and columns == 256 and schedule == "schedule"
    assert q.shape == (2, 1, 64, 128) and lens.shape == (2, 1) and table.shape == (2, 4) and weights.shape == (2, 64)
    assert pages.shape == (3, 64, 1, 132)
    assert recorder.scheduled[0][0].shape == (2, 1) and recorder.scheduled[0][1:] == (64, 132)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codes_TJD": torch.zeros(2, 16, 128)}, "heads of 128"),
        ({"pages": torch.zeros(3, 32, 1, 132, dtype=torch.uint8)}, "uint8 pages"),
        ({"pages": torch.zeros(3, 64, 1, 132)}, "uint8 pages"),
        ({"lens_T": torch.tensor([5, 0])}, "lengths of paged logits must be contiguous int32"),
        ({"lens_T": torch.tensor([5], dtype=torch.int32)}, "one row per token"),
        ({"table_TC": torch.zeros(2, 8, dtype=torch.int32)[:, ::2]}, "block table of paged logits"),
    ],
)
def test_what_would_be_misread_is_refused(changes, message):
    recorder = Recorder()
    with pytest.raises(MetadataError, match=message):
        deep_gemm.paged_logits(**operands(**changes), num_columns=256, calls=recorder.calls)
    assert recorder.seen == []


def test_it_is_usable_on_a_gpu_only():
    assert not deep_gemm.usable(torch.device("cpu"))


def test_a_missing_package_and_a_missing_call_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, deep_gemm.MODULE, None)
    with pytest.raises(UnsupportedError, match="deep_gemm is not installed.*tokenspeed-deepgemm"):
        deep_gemm.load()
    partial = types.ModuleType(deep_gemm.MODULE)
    partial.get_num_sms = partial.fp8_paged_mqa_logits = print
    monkeypatch.setitem(sys.modules, deep_gemm.MODULE, partial)
    with pytest.raises(UnsupportedError, match="has no get_paged_mqa_logits_metadata"):
        deep_gemm.load()
