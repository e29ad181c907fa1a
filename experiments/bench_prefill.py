"""Attention of a prompt chunk on a GPU: ``python -m experiments.bench_prefill [--save]``.

512 tokens of 64 heads over 128 window rows and 512 compressed rows each, fp8 rows, one request. Three ways: FlashMLA's
decode kernel with a token per batch row (what a pass does), its prefill kernel over decoded pages, and Triton. Each
way is one CUDA graph; ``decode pages`` is the part of the second way that is not the attention itself.
"""

import sys
from collections.abc import Sequence

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.sparse_attention import KeyList, sparse_attention
from backends.deepseek_v4.ops.sparse_attention.prefill import decoded_keys, prefill_attention
from backends.deepseek_v4.pass_values import SlotList
from backends.deepseek_v4.rows.choose import kv_rows
from experiments.gpu.timing import graph_ms
from experiments.gpu.worlds import fill_rows
from experiments.measurement import obey_bench
from experiments.result_file import save_gpu_result

TOKENS, HEADS, HEAD_DIM, ROPE_DIM = 512, 64, 512, 64
WINDOW, TOPK, ROWS_PER_PAGE = 128, 512, 64
CONTEXTS = (4096, 65536)


def key_list(num_rows: int, width: int) -> tuple[KeyList, torch.Tensor]:
    """``width`` rows for each token among ``num_rows`` cached ones, and the pages of these."""
    device = torch.device("cuda")
    rows = kv_rows("fp8", head_dim=HEAD_DIM, rope_dim=ROPE_DIM, rows_per_page=ROWS_PER_PAGE)
    buffer = rows.allocate(1 + num_rows // ROWS_PER_PAGE, device)
    fill_rows(rows, buffer)
    pages = torch.arange(1, 1 + num_rows // ROWS_PER_PAGE, dtype=torch.int32, device=device)
    chosen_TK = torch.rand(TOKENS, num_rows, device=device).topk(width).indices.sort().values
    lens_T = torch.full((TOKENS,), width, dtype=torch.int32, device=device)
    slots = SlotList(slots_TK=(ROWS_PER_PAGE + chosen_TK).int(), lens_T=lens_T)
    return KeyList(buffer=buffer, rows=rows, slots=slots), pages


def measure(context: int) -> dict[str, float]:
    """Milliseconds of each way, printed too."""
    lists = [key_list(TOKENS + WINDOW, WINDOW), key_list(context // 4, TOPK)]
    (window, _), (extra, _) = lists
    q_THD = torch.randn(TOKENS, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    sinks_H, angles_T2R = torch.zeros(HEADS, device="cuda"), torch.randn(TOKENS, 2, ROPE_DIM // 2, device="cuda")
    scale = HEAD_DIM**-0.5

    def attend(kernels: Kernels) -> torch.Tensor:
        return sparse_attention(q_THD, window, extra, sinks_H, scale=scale, angles_T2R=angles_T2R, kernels=kernels)

    ways = {
        "flash_mla decode": lambda: attend(Kernels.FLASH_MLA),
        "flash_mla prefill": lambda: prefill_attention(q_THD, lists, sinks_H, scale=scale, angles_T2R=angles_T2R),
        "decode pages": lambda: decoded_keys(lists, Kernels.TRITON),
        "triton": lambda: attend(Kernels.TRITON),
    }
    figures = {name: graph_ms([call]) for name, call in ways.items()}
    print(f"context {context:6}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in figures.items()), flush=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Obey a command line; returns the exit code."""
    return obey_bench(arguments, _measure_all, about=__doc__)


def _measure_all(arguments: Sequence[str]) -> None:
    """Measure, print, and save if asked to."""
    figures = {str(context): measure(context) for context in CONTEXTS}
    if "--save" in arguments:
        save_gpu_result("h200_prefill.json", "python -m experiments.bench_prefill --save", {"milliseconds": figures})


if __name__ == "__main__":
    sys.exit(main())
