"""Kernel cases from end to end on small sizes: bytes that can be counted by hand, and equal calls to FlashMLA."""

from collections.abc import Callable

import pytest
import torch

from backends.deepseek_v4.config import DeepseekV4Config
from backends.deepseek_v4.kernels import Kernels
from backends.vendor.flash_mla import FlashMla
from experiments import bench_kernels
from experiments.gpu.attention_cases import (
    BARE,
    WITH_UNROTATE,
    WRAPPER,
    AttentionShape,
    PerMode,
    attention_data,
    bare,
    measure_attention,
    planning_us,
    with_wrapper,
)
from experiments.gpu.kernel_case import L2_BYTES, KernelCase, copies_for
from experiments.gpu.op_calls import OpSetting, Storage
from experiments.gpu.sanitize import SMALL
from experiments.gpu.selection_cases import Selection, choose_case, score_case, select_case
from experiments.gpu.step_cases import StepCases

CPU = torch.device("cpu")


class Recorder:
    """Stands in for the package: notes how it is called and returns ones of the right shape."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor, dict[str, object]]] = []
        self.plans: list[object] = []
        self.calls = FlashMla(
            get_mla_metadata=self.plan, flash_mla_with_kvcache=self.decode, flash_mla_sparse_fwd=self.decode
        )

    def plan(self) -> tuple[object, None]:
        self.plans.append(object())
        return self.plans[-1], None

    def decode(self, q, k_cache, **options):
        self.seen.append((q, k_cache, options))
        return torch.ones_like(q), None


def shape_of(extra: int) -> AttentionShape:
    return AttentionShape(tokens=2, heads=64, window=16, extra=extra, cached=128, device=CPU)


@pytest.mark.parametrize("extra", [0, 64])
def test_the_bare_call_is_the_call_that_the_wrapper_makes(extra: int) -> None:
    data, recorder = attention_data(shape_of(extra), "fp8", torch.bfloat16), Recorder()
    for calls in (bare(data, recorder.calls), with_wrapper(data, recorder.calls)):
        for call in calls:
            call()
    num = len(data.lists)
    assert len(recorder.seen) == 2 * num and len(recorder.plans) == 2
    for (q, cache, options), (own_q, own_cache, own) in zip(recorder.seen[:num], recorder.seen[num:], strict=True):
        assert q.shape == own_q.shape and cache.data_ptr() == own_cache.data_ptr()
        assert cache.shape == own_cache.shape and cache.stride() == own_cache.stride()
        assert options.keys() == own.keys()
        for name in options.keys() - {"tile_scheduler_metadata"}:
            same = torch.equal if isinstance(own[name], torch.Tensor) else lambda a, b: a == b
            assert same(options[name], own[name]), name


@pytest.mark.interpreter
def test_every_way_of_attention_is_measured() -> None:
    shape = AttentionShape(tokens=1, heads=1, window=16, extra=64, cached=128, device=CPU)
    found = measure_attention(shape, Recorder().calls, Kernels.REFERENCE)
    assert {BARE, WRAPPER, WITH_UNROTATE} <= set(found["us"]) == set(found["bytes"])
    assert set(found["host_us"]) == {BARE, WRAPPER, WITH_UNROTATE}
    assert set(found["planning_us"]) == {BARE, WRAPPER} and min(found["planning_us"].values()) >= 0
    # 80 rows of 584 bytes; query and result of a head.
    assert found["bytes"][BARE] == 80 * 584 + 2 * 512 * 2
    assert found["cold"] is False
    bench_kernels.show_attention(found)


def test_an_object_per_mode_is_made_once() -> None:
    made = PerMode(object)
    assert made() is made()


def test_step_cases_run_and_count_bytes() -> None:
    setting = OpSetting(
        config=DeepseekV4Config.from_dict(SMALL),
        storage=Storage(dtype=torch.float32, cache_dtype="fp32"),
        num_tokens=3,
        num_reqs=3,
        context=640,
        device=CPU,
    )
    cases = {case.name: case for case in StepCases(setting, Kernels.REFERENCE, num_copies=2).cases()}
    for case in cases.values():
        assert case.nbytes > 0 and len(case.calls) == 2
        for call in case.calls:
            call()
    # 300 ids from 192 values, three rows.
    assert cases["product: head"].nbytes == 4 * (300 * 192 + 3 * 192 + 3 * 300)
    # 128 state rows of keys and scores of 512 values for one row of 512, for each token.
    assert cases["compress HCA"].nbytes == 3 * (128 * 2 * 512 * 4 + 512 * 4)
    assert cases["attention: window"].nbytes == 3 * (128 * 512 * 4) + 2 * 3 * 4 * 512 * 4
    assert cases["attention: HCA"].nbytes - cases["attention: window"].nbytes == 3 * 5 * 512 * 4


def test_selection_counts_what_is_read() -> None:
    sizes = Selection(tokens=2, context=640, topk=64, heads=4, device=CPU, dtype=torch.float32)
    found = score_case(sizes, "plain", Kernels.REFERENCE)
    # Keys are bf16 unless the cache is of another plain type; queries and weights of four heads besides.
    assert found.nbytes == 2 * 160 * (128 * 4 + 4) + 2 * 4 * 128 * 4 + 2 * 4 * 4
    first, second = (call() for call in found.calls[:2])
    assert first.shape == (2, 160) and not torch.equal(first, second)
    short = Selection(tokens=2, context=128, topk=64, heads=4, device=CPU, dtype=torch.float32)
    assert score_case(short, "plain", Kernels.REFERENCE).nbytes == 2 * 4 * 128 * 4 + 2 * 4 * 4
    slots = select_case(sizes, Kernels.REFERENCE).calls[0]()
    assert slots.lens_T.tolist() == [64, 64] and slots.slots_TK.min() >= 64


def test_choice_of_tokens_draws_for_every_row() -> None:
    found = choose_case(2, 3, 50, CPU)
    assert found.nbytes == 4 * 2 * 3 * 50 + 8 * 50
    assert found.calls[0]().shape == (2, 3)


def test_copies_leave_nothing_in_the_cache_where_they_can() -> None:
    assert copies_for(1 << 30) == 2
    num = copies_for(1 << 20)
    assert KernelCase(name="", nbytes=1 << 20, calls=(print,) * num).is_cold and num * (1 << 20) < 3 * L2_BYTES
    assert copies_for(8) == 256


def test_planning_is_what_is_not_launched_for_every_call() -> None:
    once, both = torch.ones(3), torch.ones(3)

    def make() -> list[Callable[[], object]]:
        return [lambda: (once.neg(), both.abs()), both.abs, both.abs]

    assert planning_us(make) > 0
    assert planning_us(lambda: make()[1:]) == 0


def test_all_sections_have_one_result() -> None:
    every = bench_kernels.chosen_sections([])
    assert bench_kernels.result_of(every) == ("h200_kernels.json", "python -m experiments.bench_kernels --save")
    name, command = bench_kernels.result_of(["step", "choose"])
    assert name == "h200_kernels_step_choose.json"
    assert command == "python -m experiments.bench_kernels step choose --save"


def test_sections_are_named() -> None:
    assert bench_kernels.chosen_sections(["--dry"]) == ["step", "attention", "selection", "choose"]
    assert bench_kernels.chosen_sections(["choose", "--save"]) == ["choose"]


def test_unknown_section_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_kernels.main(["head", "--dry"]) == 2
    assert "unknown word 'head' (words: step, attention, selection, choose)" in capsys.readouterr().err
