"""The only door to DeepGEMM: paged indexer logits, where the package can run.

The module ``deep_gemm`` comes with the distribution ``tokenspeed-deepgemm``; it compiles its kernels with nvcc when
they are first called. Nothing here needs it: where it cannot run, the Triton kernel serves.
"""

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specdec.errors import MetadataError, UnsupportedError

MODULE = "deep_gemm"
CAPABILITY = (9, 0)
HEADS = (32, 64)
DIM = 128
ROWS_PER_PAGE = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepGemm:
    """The three calls that scoring needs, as the package defines them."""

    fp8_paged_mqa_logits: Callable[..., torch.Tensor]
    get_paged_mqa_logits_metadata: Callable[..., torch.Tensor]
    get_num_sms: Callable[[], int]


def load() -> DeepGemm:
    """The package's calls. Raises UnsupportedError naming the package, or the call that it lacks."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError as error:
        raise UnsupportedError(f"{MODULE} is not installed: pip install tokenspeed-deepgemm") from error
    names = tuple(DeepGemm.__slots__)
    missing = [name for name in names if not callable(vars(module).get(name))]
    if missing:
        raise UnsupportedError(f"{MODULE} has no {', '.join(missing)}: install another version of tokenspeed-deepgemm")
    return DeepGemm(**{name: vars(module)[name] for name in names})


def fits(num_heads: int, dim: int, rows_per_page: int) -> bool:
    """Whether the sizes are among those of the package."""
    return num_heads in HEADS and dim == DIM and rows_per_page == ROWS_PER_PAGE


def usable(device: torch.device) -> bool:
    """Whether the package is installed, can compile, and ``device`` is a GPU that it has these kernels for."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != CAPABILITY:
        return False
    return importlib.util.find_spec(MODULE) is not None and _has_compiler()


def _has_compiler() -> bool:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    return shutil.which("nvcc") is not None or any(home and Path(home, "bin", "nvcc").exists() for home in homes)


def paged_logits(
    codes_TJD: torch.Tensor,
    pages: torch.Tensor,
    weights_TJ: torch.Tensor,
    lens_T: torch.Tensor,
    table_TC: torch.Tensor,
    *,
    num_columns: int,
    calls: DeepGemm | None = None,
) -> torch.Tensor:
    """Logits float32 [T, num_columns], unspecified at or beyond ``lens_T``; rows may lie apart.

    codes_TJD   fp8 e4m3 queries, J 32 or 64, D 128; their scales are folded into the weights
    pages       uint8 [P, 64, 1, 132]: 64 rows of fp8 values, then 64 fp32 scales
    weights_TJ  float32
    lens_T      int32 keys of each token
    table_TC    int32 pages of each token, none negative

    ``calls`` stands in for the package. Raises MetadataError for a shape or type that the package would misread.
    """
    num_tokens, num_heads, dim = codes_TJD.shape
    if not fits(num_heads, dim, pages.shape[1]) or pages.shape[2:] != (1, DIM + 4) or pages.dtype != torch.uint8:
        raise MetadataError(
            f"paged logits need {HEADS} heads of {DIM} and uint8 pages [P, {ROWS_PER_PAGE}, 1, {DIM + 4}], got "
            f"{list(codes_TJD.shape)} and {pages.dtype} {list(pages.shape)}"
        )
    for what, tensor in (("lengths", lens_T), ("block table", table_TC)):
        if tensor.dtype != torch.int32 or not tensor.is_contiguous() or tensor.shape[0] != num_tokens:
            raise MetadataError(
                f"the {what} of paged logits must be contiguous int32 with one row per token ({num_tokens}), got "
                f"{tensor.dtype} {list(tensor.shape)}"
            )
    calls = load() if calls is None else calls
    # The package takes lengths of two dimensions only, and leaves what lies beyond them alone on request only.
    lens_T1 = lens_T.unsqueeze(1)
    schedule = calls.get_paged_mqa_logits_metadata(lens_T1, ROWS_PER_PAGE, calls.get_num_sms())
    return calls.fp8_paged_mqa_logits(
        codes_TJD.unsqueeze(1), pages, weights_TJ, lens_T1, table_TC, schedule, num_columns, clean_logits=False
    )
