"""Sparse attention by every way: FlashMLA's bare call, our wrapper with and without what follows it, and Triton.

Slots are random rows of a buffer beyond the L2 cache, as a step finds them. FlashMLA plans once per step and kind of
layer, so the time of a call is the difference of two graphs, of which one has every call twice, and the time of
planning is that of the kernels which a graph does not launch for every call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, TypeVar

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.pass_values import SlotList
from backends.deepseek_v4.rows.choose import kv_rows
from backends.deepseek_v4.rows.format import RowFormat
from backends.vendor.flash_mla import FlashMla, PagedKeys, StepSchedules, sparse_decode
from experiments.gpu.kernel_case import L2_BYTES, copies_for, rows_bytes
from experiments.gpu.timing import capture, difference_ms
from experiments.gpu.trace import trace_replay
from experiments.gpu.worlds import fill_rows

HEAD_DIM, ROPE_DIM, ROWS_PER_PAGE, ROW_COLUMNS = 512, 64, 64, 64
BARE, WRAPPER, WITH_UNROTATE = "bare FlashMLA call", "wrapper", "wrapper and inverse rope"
TRITON_FP8, TRITON_BF16 = "Triton, fp8 rows", "Triton, bf16 rows"
HOST_CALLS = 50
LEAST_CALLS = 32

Made = TypeVar("Made")


@dataclass(slots=True)
class PerMode(Generic[Made]):
    """One object for eager calls and one for those of a capture; made anew for every measured graph."""

    make: Callable[[], Made]
    _made: dict[bool, Made] = field(default_factory=dict)

    def __call__(self) -> Made:
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if capturing not in self._made:
            self._made[capturing] = self.make()
        return self._made[capturing]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """T tokens of H heads over ``window`` rows and ``extra`` compressed ones; ``cached`` rows lie in each buffer."""

    tokens: int
    heads: int
    window: int
    extra: int
    cached: int
    device: torch.device

    @property
    def name(self) -> str:
        return f"{self.window} window rows" + (f" and {self.extra} compressed" if self.extra else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionData:
    """Arguments of one shape; lists differ from copy to copy.

    lists  (window, extra) of every copy, over rows of the format in question
    """

    q_THD: torch.Tensor
    sinks_H: torch.Tensor
    angles_T2R: torch.Tensor
    lists: tuple[tuple[KeyList, KeyList | None], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that a call must move."""
        window, extra = self.lists[0]
        return rows_bytes(window) + (0 if extra is None else rows_bytes(extra)) + 2 * self.q_THD.nbytes


def attention_data(shape: AttentionShape, cache_dtype: str, dtype: torch.dtype) -> AttentionData:
    """Random queries, rows of ``cache_dtype`` and slots."""
    device, tokens = shape.device, shape.tokens
    rows = kv_rows(cache_dtype, head_dim=HEAD_DIM, rope_dim=ROPE_DIM, rows_per_page=ROWS_PER_PAGE)
    buffers = [_filled(rows, shape) for _ in range(2 if shape.extra else 1)]
    num_copies = copies_for(tokens * (shape.window + shape.extra) * rows.row_bytes) if device.type == "cuda" else 2
    lists = []
    for _ in range(num_copies):
        window = _key_list(rows, buffers[0], shape, shape.window)
        lists.append((window, _key_list(rows, buffers[1], shape, shape.extra) if shape.extra else None))
    return AttentionData(
        q_THD=torch.randn(tokens, shape.heads, HEAD_DIM, device=device, dtype=dtype),
        sinks_H=torch.zeros(shape.heads, device=device),
        angles_T2R=torch.randn(tokens, 2, ROPE_DIM // 2, device=device),
        lists=tuple(lists),
    )


def _filled(rows: RowFormat, shape: AttentionShape) -> torch.Tensor:
    buffer = rows.allocate(1 + shape.cached // ROWS_PER_PAGE, shape.device)
    fill_rows(rows, buffer)
    return buffer


def _key_list(rows: RowFormat, buffer: torch.Tensor, shape: AttentionShape, width: int) -> KeyList:
    columns = ROW_COLUMNS * -(-width // ROW_COLUMNS)
    slots_TK = torch.full((shape.tokens, columns), -1, dtype=torch.int32, device=shape.device)
    chosen_TK = torch.randint(0, shape.cached, (shape.tokens, width), device=shape.device).sort().values
    slots_TK[:, :width] = (ROWS_PER_PAGE + chosen_TK).int()
    lens_T = torch.full((shape.tokens,), width, dtype=torch.int32, device=shape.device)
    return KeyList(buffer=buffer, rows=rows, slots=SlotList(slots_TK=slots_TK, lens_T=lens_T))


def paged(keys: KeyList) -> PagedKeys:
    """A list as the wrapper is given it."""
    return PagedKeys(
        buffer=keys.buffer,
        rows_per_page=keys.rows.rows_per_page,
        row_bytes=keys.rows.row_bytes,
        slots_TK=keys.slots.slots_TK,
        lens_T=keys.slots.lens_T,
    )


def with_operator(data: AttentionData, kernels: Kernels, flash: FlashMla | None = None) -> list[Callable[[], object]]:
    """Calls of the operator; with ``flash`` they share the planning of a step."""
    schedules = None if flash is None else PerMode(lambda: StepSchedules(calls=flash))

    def call(window: KeyList, extra: KeyList | None) -> torch.Tensor:
        return sparse_attention(
            data.q_THD,
            window,
            extra,
            data.sinks_H,
            scale=HEAD_DIM**-0.5,
            angles_T2R=data.angles_T2R,
            kernels=kernels,
            schedules=None if schedules is None else schedules(),
        )

    return [_bound(call, *pair) for pair in data.lists]


def with_wrapper(data: AttentionData, flash: FlashMla) -> list[Callable[[], object]]:
    """Calls of the wrapper alone: its checks, planning and FlashMLA, without the inverse rope of the model."""
    schedules = PerMode(lambda: StepSchedules(calls=flash))

    def call(window: PagedKeys, extra: PagedKeys | None) -> torch.Tensor:
        return sparse_decode(data.q_THD, window, extra, data.sinks_H, scale=HEAD_DIM**-0.5, schedules=schedules())

    return [_bound(call, paged(window), None if extra is None else paged(extra)) for window, extra in data.lists]


def bare(data: AttentionData, flash: FlashMla) -> list[Callable[[], object]]:
    """Calls of the package with arguments that are ready."""
    plan = PerMode(lambda: flash.get_mla_metadata()[0])
    q_T1HD = data.q_THD.unsqueeze(1)

    def ready(window: KeyList, extra: KeyList | None) -> dict[str, object]:
        near, far = paged(window), None if extra is None else paged(extra)
        return {
            "k_cache": near.view(),
            "indices": near.slots_TK.unsqueeze(1),
            "topk_length": near.lens_T,
            "extra_k_cache": None if far is None else far.view(),
            "extra_indices_in_kvcache": None if far is None else far.slots_TK.unsqueeze(1),
            "extra_topk_length": None if far is None else far.lens_T,
        }

    def call(arguments: dict[str, object]) -> object:
        more = {name: value for name, value in arguments.items() if name != "k_cache"}
        return flash.flash_mla_with_kvcache(
            q_T1HD,
            arguments["k_cache"],
            block_table=None,
            cache_seqlens=None,
            head_dim_v=HEAD_DIM,
            tile_scheduler_metadata=plan(),
            num_splits=None,
            softmax_scale=HEAD_DIM**-0.5,
            causal=False,
            is_fp8_kvcache=True,
            attn_sink=data.sinks_H,
            **more,
        )

    return [_bound(call, ready(*pair)) for pair in data.lists]


def marginal_us(make: Callable[[], Sequence[Callable[[], object]]]) -> float:
    """Microseconds of a call beyond what is done once per graph."""
    once = _enough(make())
    twice = _enough(make()) * 2
    return 1e3 * difference_ms(capture(once).replay, capture(twice).replay) / len(once)


def planning_us(make: Callable[[], Sequence[Callable[[], object]]]) -> float:
    """Microseconds of what a graph of many calls launches, but not for each of them: planning; read from a trace."""
    calls = _enough(make())
    trace = trace_replay(capture(calls))
    return sum(us for name, us in trace.kernels_us.items() if trace.launches[name] < len(calls))


def _enough(calls: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """The calls as often as a graph of them needs, so that its own launch counts for little."""
    return list(calls) * (-(-LEAST_CALLS // len(calls)) if torch.cuda.is_available() else 1)


def host_us(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds that the host needs to launch a call eagerly; calls of graphs cost it nothing."""
    calls[0]()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = perf_counter()
    for number in range(HOST_CALLS):
        calls[number % len(calls)]()
    return 1e6 * (perf_counter() - started) / HOST_CALLS


def measure_attention(shape: AttentionShape, flash: FlashMla | None, kernels: Kernels) -> dict[str, object]:
    """Times of every way that this machine has, and what the wrapper adds to the bare call.

    kernels  operators of the ways that need no FlashMLA
    """
    has_gpu = shape.device.type == "cuda"
    dtype = torch.bfloat16 if has_gpu or flash is not None else torch.float32
    fp8 = attention_data(shape, "fp8", dtype)
    plain = attention_data(shape, "bf16" if has_gpu else "fp32", dtype)
    ways: dict[str, Callable[[], Sequence[Callable[[], object]]]] = {}
    if flash is not None:
        ways[BARE] = lambda: bare(fp8, flash)
        ways[WRAPPER] = lambda: with_wrapper(fp8, flash)
        ways[WITH_UNROTATE] = lambda: with_operator(fp8, Kernels.FLASH_MLA, flash)
    ways[TRITON_FP8] = lambda: with_operator(fp8, kernels)
    ways[TRITON_BF16] = lambda: with_operator(plain, kernels)
    times = {name: marginal_us(make) for name, make in ways.items()}
    nbytes = {name: plain.nbytes if name == TRITON_BF16 else fp8.nbytes for name in ways}
    found: dict[str, object] = {
        "tokens": shape.tokens,
        "rows": shape.name,
        "us": times,
        "bytes": nbytes,
        "cold": fp8.nbytes * len(fp8.lists) > 2 * L2_BYTES,
    }
    if flash is not None:
        found["planning_us"] = {name: planning_us(ways[name]) for name in (BARE, WRAPPER)}
        found["host_us"] = {name: host_us(ways[name]()) for name in (BARE, WRAPPER, WITH_UNROTATE)}
        found["wrapper_over_bare"] = times[WRAPPER] / times[BARE] - 1
        found["with_inverse_rope_over_bare"] = times[WITH_UNROTATE] / times[BARE] - 1
        found["triton_over_wrapper_and_inverse_rope"] = times[TRITON_FP8] / times[WITH_UNROTATE]
    return found


def _bound(call: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: call(*arguments)
