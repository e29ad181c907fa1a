"""The wrapper around FlashMLA: what it refuses before the device sees it, and what it passes on."""

import pytest
import torch

from backends.deepseek_v4.rows.choose import kv_rows
from backends.vendor.flash_mla import (
    DenseKeys,
    FlashMla,
    PagedKeys,
    StepSchedules,
    check_device,
    sparse_decode,
    sparse_prefill,
)
from specdec.errors import MetadataError, UnsupportedError


class Recorder:
    """Stands in for the package: notes how it is called and returns zeros of the right shape."""

    def __init__(self) -> None:
        self.seen: list[dict[str, object]] = []
        self.calls = FlashMla(
            get_mla_metadata=lambda: (object(), None),
            flash_mla_with_kvcache=self.decode,
            flash_mla_sparse_fwd=self.prefill,
        )

    def decode(self, q, k_cache, **options):
        self.seen.append({"q": q, "k_cache": k_cache, **options})
        return torch.ones_like(q), None

    def prefill(self, q, kv, indices, sm_scale, **options):
        self.seen.append({"q": q, "kv": kv, "indices": indices, "sm_scale": sm_scale, **options})
        return torch.ones_like(q), None, None


def paged(num_tokens=2, width=64, rows_per_page=64, **changes) -> PagedKeys:
    rows = kv_rows("fp8", head_dim=512, rope_dim=64, rows_per_page=rows_per_page)
    given = {
        "buffer": rows.allocate(3, torch.device("cpu")),
        "rows_per_page": rows_per_page,
        "row_bytes": rows.row_bytes,
        "slots_TK": torch.zeros(num_tokens, width, dtype=torch.int32),
        "lens_T": torch.ones(num_tokens, dtype=torch.int32),
    }
    return PagedKeys(**{**given, **changes})


def call(recorder, *, heads=4, dim=512, dtype=torch.bfloat16, window=None, extra=None, schedules=None):
    q = torch.randn(2, heads, dim).to(dtype)
    schedules = StepSchedules(calls=recorder.calls) if schedules is None else schedules
    window = paged() if window is None else window
    return sparse_decode(q, window, extra, torch.ones(heads), scale=0.5, schedules=schedules)


@pytest.mark.parametrize(("heads", "padded"), [(4, 64), (64, 64), (65, 128), (128, 128)])
def test_heads_are_padded_with_zeros_and_cut_off_again(heads, padded):
    recorder = Recorder()
    out = call(recorder, heads=heads)
    seen = recorder.seen[0]
    assert out.shape == (2, heads, 512)
    assert seen["q"].shape == (2, 1, padded, 512) and (seen["q"][:, :, heads:] == 0).all()
    assert seen["attn_sink"].shape == (padded,)


def test_both_caches_are_passed_on_as_views_of_their_pages():
    recorder, extra = Recorder(), paged(width=128, rows_per_page=2)
    call(recorder, extra=extra)
    seen = recorder.seen[0]
    assert seen["k_cache"].shape == (3, 64, 1, 584) and seen["k_cache"].stride() == (37440, 584, 584, 1)
    assert seen["extra_k_cache"].stride() == (1728, 584, 584, 1)
    assert seen["indices"].shape == (2, 1, 64) and seen["extra_indices_in_kvcache"].shape == (2, 1, 128)
    assert seen["topk_length"].tolist() == [1, 1] and seen["extra_topk_length"] is extra.lens_T
    assert seen["is_fp8_kvcache"] and not seen["causal"] and seen["softmax_scale"] == 0.5
    call(recorder)
    assert recorder.seen[1]["extra_k_cache"] is None and recorder.seen[1]["extra_topk_length"] is None


def test_layers_of_a_kind_share_a_plan_within_a_step_only():
    recorder = Recorder()
    for _ in range(2):
        schedules = StepSchedules(calls=recorder.calls)
        for extra in (None, paged(rows_per_page=2), paged(), None, paged()):
            call(recorder, extra=extra, schedules=schedules)
    plans = [seen["tile_scheduler_metadata"] for seen in recorder.seen]
    first, second = plans[:5], plans[5:]
    assert first[0] is first[3] and first[2] is first[4] and len({id(plan) for plan in first}) == 3
    assert not {id(plan) for plan in first} & {id(plan) for plan in second}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dim": 256}, UnsupportedError, "head_dim 512, got 256"),
        ({"heads": 129}, UnsupportedError, "at most 128 heads, got 129"),
        ({"dtype": torch.float32}, UnsupportedError, "bf16 queries, got torch.float32"),
        ({"window": paged(width=65)}, MetadataError, "window slots must be a multiple of 64, got 65"),
        ({"extra": paged(width=0)}, MetadataError, "extra slots must be a multiple of 64, got 0"),
        ({"extra": paged(num_tokens=3)}, MetadataError, "one row per token"),
        ({"window": paged(lens_T=torch.ones(2))}, MetadataError, "window lengths must be contiguous int32"),
        (
            {"window": paged(slots_TK=torch.zeros(2, 128, dtype=torch.int32)[:, ::2])},
            MetadataError,
            "window slots must be contiguous int32",
        ),
        ({"window": paged(row_bytes=576)}, UnsupportedError, "window rows of 584 bytes, got 576"),
    ],
)
def test_what_would_fault_or_mislead_is_refused(options, error, message):
    recorder = Recorder()
    with pytest.raises(error, match=message):
        call(recorder, **options)
    assert recorder.seen == []


def test_other_devices_are_refused():
    with pytest.raises(UnsupportedError, match="compute capability"):
        check_device(torch.device("cpu"))


def test_no_token_makes_no_call():
    recorder = Recorder()
    q = torch.zeros(0, 4, 512, dtype=torch.bfloat16)
    schedules = StepSchedules(calls=recorder.calls)
    out = sparse_decode(q, paged(num_tokens=0), None, torch.ones(4), scale=1.0, schedules=schedules)
    assert out.shape == (0, 4, 512) and recorder.seen == []


def dense(num_tokens=2, width=128, **changes) -> DenseKeys:
    given = {
        "rows_SD": torch.zeros(10, 512, dtype=torch.bfloat16),
        "indices_TK": torch.zeros(num_tokens, width, dtype=torch.int32),
        "lens_T": torch.ones(num_tokens, dtype=torch.int32),
    }
    return DenseKeys(**{**given, **changes})


def test_prefill_passes_one_key_head_and_padded_query_heads():
    recorder, keys = Recorder(), dense()
    q = torch.randn(2, 4, 512).bfloat16()
    out = sparse_prefill(q, keys, torch.ones(4), scale=0.5, calls=recorder.calls)
    seen = recorder.seen[0]
    assert out.shape == (2, 4, 512)
    assert seen["q"].shape == (2, 64, 512) and seen["attn_sink"].shape == (64,)
    assert seen["kv"].shape == (10, 1, 512) and seen["indices"].shape == (2, 1, 128)
    assert seen["topk_length"] is keys.lens_T and (seen["sm_scale"], seen["d_v"]) == (0.5, 512)
    nothing = sparse_prefill(q[:0], dense(num_tokens=0), torch.ones(4), scale=0.5, calls=recorder.calls)
    assert nothing.shape == (0, 4, 512) and len(recorder.seen) == 1


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (dense(width=64), MetadataError, "row slots must be a multiple of 128, got 64"),
        (dense(num_tokens=3), MetadataError, "one row per token"),
        (dense(rows_SD=torch.zeros(10, 512)), UnsupportedError, "contiguous bf16 rows of 512, got torch.float32"),
        (dense(rows_SD=torch.zeros(10, 256).bfloat16()), UnsupportedError, "contiguous bf16 rows of 512"),
    ],
)
def test_prefill_refuses_what_would_fault_or_mislead(keys, error, message):
    recorder = Recorder()
    with pytest.raises(error, match=message):
        sparse_prefill(torch.zeros(2, 4, 512).bfloat16(), keys, torch.ones(4), scale=1.0, calls=recorder.calls)
    assert recorder.seen == []
