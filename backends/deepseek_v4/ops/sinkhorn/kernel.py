"""Sinkhorn rounds in Triton: one pass over registers forward, one backward; fp32 only."""

import torch
import triton
import triton.language as tl

MATRICES_PER_PROGRAM = 64


@triton.jit
def _forward(
    logits_ptr, out_ptr, sums_ptr, num_matrices, eps, S: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr
):
    matrix = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    axis = tl.arange(0, S)
    cell = matrix[:, None, None] * (S * S) + axis[None, :, None] * S + axis[None, None, :]
    inside = (matrix < num_matrices)[:, None, None]
    line = matrix[:, None] * (2 * ROUNDS * S) + axis[None, :]
    inside_line = (matrix < num_matrices)[:, None]
    x = tl.load(logits_ptr + cell, mask=inside, other=0.0)
    x = tl.exp(x - tl.max(x, axis=2)[:, :, None])
    x = x / tl.sum(x, axis=2)[:, :, None] + eps
    columns = tl.sum(x, axis=1) + eps
    x = x / columns[:, None, :]
    tl.store(sums_ptr + line, columns, mask=inside_line)
    for i in range(1, ROUNDS):
        rows = tl.sum(x, axis=2) + eps
        x = x / rows[:, :, None]
        columns = tl.sum(x, axis=1) + eps
        x = x / columns[:, None, :]
        tl.store(sums_ptr + line + (2 * i - 1) * S, rows, mask=inside_line)
        tl.store(sums_ptr + line + 2 * i * S, columns, mask=inside_line)
    tl.store(out_ptr + cell, x, mask=inside)


@triton.jit
def _backward(
    grad_ptr, out_ptr, sums_ptr, result_ptr, num_matrices, eps,
    S: tl.constexpr, ROUNDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    matrix = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    axis = tl.arange(0, S)
    cell = matrix[:, None, None] * (S * S) + axis[None, :, None] * S + axis[None, None, :]
    inside = (matrix < num_matrices)[:, None, None]
    line = matrix[:, None] * (2 * ROUNDS * S) + axis[None, :]
    inside_line = (matrix < num_matrices)[:, None]
    grad = tl.load(grad_ptr + cell, mask=inside, other=0.0)
    y = tl.load(out_ptr + cell, mask=inside, other=1.0)
    for back in range(ROUNDS - 1):
        i = ROUNDS - 1 - back
        columns = tl.load(sums_ptr + line + 2 * i * S, mask=inside_line, other=1.0)
        grad = (grad - tl.sum(grad * y, axis=1)[:, None, :]) / columns[:, None, :]
        y = y * columns[:, None, :]
        rows = tl.load(sums_ptr + line + (2 * i - 1) * S, mask=inside_line, other=1.0)
        grad = (grad - tl.sum(grad * y, axis=2)[:, :, None]) / rows[:, :, None]
        y = y * rows[:, :, None]
    columns = tl.load(sums_ptr + line, mask=inside_line, other=1.0)
    grad = (grad - tl.sum(grad * y, axis=1)[:, None, :]) / columns[:, None, :]
    soft = y * columns[:, None, :] - eps
    result = soft * (grad - tl.sum(grad * soft, axis=2)[:, :, None])
    tl.store(result_ptr + cell, result, mask=inside)


def forward(logits_XSS: torch.Tensor, num_rounds: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``autograd.forward``; ``logits_XSS`` contiguous float32, S a power of two."""
    num, size = logits_XSS.shape[0], logits_XSS.shape[-1]
    out = torch.empty_like(logits_XSS)
    sums = logits_XSS.new_empty((num, 2 * num_rounds, size))
    if num:
        grid = (triton.cdiv(num, MATRICES_PER_PROGRAM),)
        _forward[grid](
            logits_XSS, out, sums, num, eps, S=size, ROUNDS=num_rounds, BLOCK=MATRICES_PER_PROGRAM, num_warps=2
        )
    return out, sums


def backward(
    grad_XSS: torch.Tensor, out_XSS: torch.Tensor, sums: torch.Tensor, num_rounds: int, eps: float
) -> torch.Tensor:
    """See ``autograd.backward``; all contiguous float32."""
    num, size = out_XSS.shape[0], out_XSS.shape[-1]
    result = torch.empty_like(out_XSS)
    if num:
        grid = (triton.cdiv(num, MATRICES_PER_PROGRAM),)
        _backward[grid](
            grad_XSS, out_XSS, sums, result, num, eps,
            S=size, ROUNDS=num_rounds, BLOCK=MATRICES_PER_PROGRAM, num_warps=2,
        )  # fmt: skip
    return result
