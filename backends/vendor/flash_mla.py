"""The only door to FlashMLA: finds the package, checks a call before the device sees it, and plans it.

The module ``flash_mla`` comes with the distribution ``tokenspeed-flashmla`` (the name ``flash-mla`` holds nothing that
installs). Facts that the checks rest on: a width that is no multiple of 64 faults the device; a planning object that
is used again after lengths grew returns garbage without an error.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from specdec.errors import MetadataError, UnsupportedError

MODULE = "flash_mla"
HEAD_DIM = 512
ROW_BYTES = 584
HEADS = (64, 128)
WIDTH_MULTIPLE = 64
PREFILL_WIDTH_MULTIPLE = 128
CAPABILITY = (9, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashMla:
    """The three calls that V4 attention needs, as the package defines them."""

    get_mla_metadata: Callable[..., object]
    flash_mla_with_kvcache: Callable[..., object]
    flash_mla_sparse_fwd: Callable[..., object]


def load() -> FlashMla:
    """The package's calls. Raises UnsupportedError naming the package, or the call that it lacks."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise UnsupportedError(
            f"{MODULE} is not installed: pip install tokenspeed-flashmla, or use the Triton kernels"
        ) from error
    names = tuple(FlashMla.__slots__)
    missing = [name for name in names if not callable(vars(module).get(name))]
    if missing:
        raise UnsupportedError(f"{MODULE} has no {', '.join(missing)}: install another version of tokenspeed-flashmla")
    return FlashMla(**{name: vars(module)[name] for name in names})


def check_device(device: torch.device) -> None:
    """Raises UnsupportedError unless ``device`` is a GPU of compute capability 9.0 (Hopper)."""
    found = "no GPU" if device.type != "cuda" else torch.cuda.get_device_capability(device)
    if found != CAPABILITY:
        raise UnsupportedError(
            f"FlashMLA with fp8 rows needs a GPU of compute capability {CAPABILITY}, got {found} ({device}): "
            "use the Triton kernels"
        )


def is_available(device: torch.device) -> bool:
    """Whether the package and a GPU for it are there."""
    try:
        check_device(device)
        load()
    except UnsupportedError:
        return False
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedKeys:
    """One fp8 cache and the rows of it that each token attends.

    buffer         uint8 [P, page bytes], pages of ``rows.kv_fp8``
    rows_per_page  rows of a page
    row_bytes      bytes of a row, 584
    slots_TK       int32, K a multiple of 64; -1 is skipped
    lens_T         int32 number of leading slots that count
    """

    buffer: torch.Tensor
    rows_per_page: int
    row_bytes: int
    slots_TK: torch.Tensor
    lens_T: torch.Tensor

    def view(self) -> torch.Tensor:
        """The pages as [P, R, 1, row bytes]: only a carrier of address and page stride, never to be indexed."""
        shape = (self.buffer.shape[0], self.rows_per_page, 1, self.row_bytes)
        return self.buffer.as_strided(shape, (self.buffer.stride(0), self.row_bytes, self.row_bytes, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSchedules:
    """FlashMLA's planning objects of one step: a new one for each kind of layer, shared by the layers of that kind.

    A planning object is filled by its first call from the lengths that it finds and is right only for these. So
    build one StepSchedules per eager step, and one per captured step inside the capture, where planning becomes
    part of the graph and follows the lengths at every replay.
    """

    calls: FlashMla
    _plans: dict[tuple[object, ...], object] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def on(cls, device: torch.device) -> "StepSchedules":
        """Schedules of a new step. Raises UnsupportedError without the package or on another GPU generation."""
        check_device(device)
        return cls(calls=load())

    def plan(self, window: PagedKeys, extra: PagedKeys | None) -> object:
        """The planning object for this kind of layer.

        Raises MetadataError for one that was planned inside a capture and is used outside, or the reverse.
        """
        kinds = [None if keys is None else (*keys.slots_TK.shape, keys.rows_per_page) for keys in (window, extra)]
        capturing = window.buffer.is_cuda and torch.cuda.is_current_stream_capturing()
        if self._plans.get((*kinds, not capturing)) is not None:
            raise MetadataError("FlashMLA schedules of an eager step are used inside a graph capture, or the reverse")
        key = (*kinds, capturing)
        if key not in self._plans:
            self._plans[key] = self.calls.get_mla_metadata()[0]
        return self._plans[key]


def sparse_decode(
    q_THD: torch.Tensor,
    window: PagedKeys,
    extra: PagedKeys | None,
    sinks_H: torch.Tensor,
    *,
    scale: float,
    schedules: StepSchedules,
) -> torch.Tensor:
    """Attention results bf16 [T, H, 512] with the sink applied and the rotated dims still rotated.

    ``q_THD`` bf16, ``sinks_H`` float32. Heads are padded with zeros to 64 or 128. Raises UnsupportedError for what
    the package cannot do and MetadataError for lists that would fault the device.
    """
    check_call(q_THD, window, extra, sinks_H)
    num_tokens, num_heads, _ = q_THD.shape
    if num_tokens == 0:
        return q_THD
    q_THD, sinks_H = _pad_heads(q_THD, sinks_H)
    o_T1HD, _ = schedules.calls.flash_mla_with_kvcache(
        q_THD.unsqueeze(1),
        window.view(),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=HEAD_DIM,
        tile_scheduler_metadata=schedules.plan(window, extra),
        num_splits=None,
        softmax_scale=scale,
        causal=False,
        is_fp8_kvcache=True,
        indices=window.slots_TK.unsqueeze(1),
        attn_sink=sinks_H,
        extra_k_cache=None if extra is None else extra.view(),
        extra_indices_in_kvcache=None if extra is None else extra.slots_TK.unsqueeze(1),
        topk_length=window.lens_T,
        extra_topk_length=None if extra is None else extra.lens_T,
    )
    return o_T1HD.squeeze(1)[:, :num_heads]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseKeys:
    """Decoded rows and those of them that each token attends.

    rows_SD     bf16 [S, 512], contiguous; rows that nobody attends are finite too, for they may be multiplied by 0
    indices_TK  int32 rows, K a multiple of 128; -1 is skipped
    lens_T      int32 number of leading indices that count
    """

    rows_SD: torch.Tensor
    indices_TK: torch.Tensor
    lens_T: torch.Tensor


def sparse_prefill(
    q_THD: torch.Tensor, keys: DenseKeys, sinks_H: torch.Tensor, *, scale: float, calls: FlashMla
) -> torch.Tensor:
    """As ``sparse_decode``, over decoded rows; needs no planning."""
    _check_queries(q_THD, sinks_H)
    _check_dense(keys, q_THD.shape[0])
    num_tokens, num_heads, _ = q_THD.shape
    if num_tokens == 0:
        return q_THD
    q_THD, sinks_H = _pad_heads(q_THD, sinks_H)
    o_THD, _, _ = calls.flash_mla_sparse_fwd(
        q_THD.contiguous(),
        keys.rows_SD.unsqueeze(1),
        keys.indices_TK.unsqueeze(1),
        scale,
        d_v=HEAD_DIM,
        attn_sink=sinks_H,
        topk_length=keys.lens_T,
    )
    return o_THD[:, :num_heads]


def _pad_heads(q_THD: torch.Tensor, sinks_H: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    num_heads = q_THD.shape[1]
    more = min(heads for heads in HEADS if heads >= num_heads) - num_heads
    if more == 0:
        return q_THD, sinks_H
    return torch.nn.functional.pad(q_THD, (0, 0, 0, more)), torch.nn.functional.pad(sinks_H, (0, more))


def check_call(q_THD: torch.Tensor, window: PagedKeys, extra: PagedKeys | None, sinks_H: torch.Tensor) -> None:
    """Raises UnsupportedError or MetadataError for a call that ``sparse_decode`` must not make."""
    _check_queries(q_THD, sinks_H)
    num_tokens = q_THD.shape[0]
    _check_keys("window", window, num_tokens)
    if extra is not None:
        _check_keys("extra", extra, num_tokens)


def _check_queries(q_THD: torch.Tensor, sinks_H: torch.Tensor) -> None:
    _, num_heads, head_dim = q_THD.shape
    if head_dim != HEAD_DIM:
        raise UnsupportedError(f"FlashMLA needs head_dim {HEAD_DIM}, got {head_dim} (conf: target)")
    if num_heads > HEADS[-1]:
        raise UnsupportedError(f"FlashMLA takes at most {HEADS[-1]} heads, got {num_heads} (conf: target)")
    if q_THD.dtype != torch.bfloat16 or q_THD.stride(-1) != 1:
        raise UnsupportedError(f"FlashMLA needs contiguous bf16 queries, got {q_THD.dtype} (conf: engine.dtype)")
    if sinks_H.dtype != torch.float32 or sinks_H.shape != (num_heads,) or not sinks_H.is_contiguous():
        raise MetadataError(f"sinks must be float32 [{num_heads}], got {sinks_H.dtype} {list(sinks_H.shape)}")


def _check_keys(name: str, keys: PagedKeys, num_tokens: int) -> None:
    page_bytes = keys.buffer.stride(0)
    if keys.row_bytes != ROW_BYTES or keys.buffer.dtype != torch.uint8 or page_bytes < keys.rows_per_page * ROW_BYTES:
        raise UnsupportedError(
            f"FlashMLA needs {name} rows of {ROW_BYTES} bytes, got {keys.row_bytes} in pages of {page_bytes} bytes of "
            f"{keys.buffer.dtype} (conf: target.cache_dtype)"
        )
    _check_lists(name, keys.slots_TK, keys.lens_T, num_tokens, WIDTH_MULTIPLE)


def _check_dense(keys: DenseKeys, num_tokens: int) -> None:
    rows_SD = keys.rows_SD
    if rows_SD.dtype != torch.bfloat16 or rows_SD.shape[1:] != (HEAD_DIM,) or not rows_SD.is_contiguous():
        raise UnsupportedError(
            f"FlashMLA's prefill needs contiguous bf16 rows of {HEAD_DIM}, got {rows_SD.dtype} {list(rows_SD.shape)}"
        )
    _check_lists("row", keys.indices_TK, keys.lens_T, num_tokens, PREFILL_WIDTH_MULTIPLE)


def _check_lists(name: str, slots: torch.Tensor, lens: torch.Tensor, num_tokens: int, multiple: int) -> None:
    if slots.shape[-1] % multiple or slots.shape[-1] == 0:
        raise MetadataError(f"the width of {name} slots must be a multiple of {multiple}, got {slots.shape[-1]}")
    if slots.shape[:-1] != (num_tokens,) or lens.shape != (num_tokens,):
        raise MetadataError(
            f"{name} slots and lengths must have one row per token ({num_tokens}), got "
            f"{list(slots.shape)} and {list(lens.shape)}"
        )
    for what, tensor in (("slots", slots), ("lengths", lens)):
        if tensor.dtype != torch.int32 or not tensor.is_contiguous():
            raise MetadataError(f"{name} {what} must be contiguous int32, got {tensor.dtype} {tensor.stride()}")
