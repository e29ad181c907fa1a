"""sinkhorn as one opaque, differentiable operator: a compiler sees one node instead of some eighty small ones.

Backward inverts the rounds: a division ``y = x / s`` by the sums ``s`` of ``x`` (plus eps) is undone with the
stored ``s``, and its gradient is ``(dy - sum(dy * y)) / s`` along the summed axis. Nothing else is stored.
"""

import torch


def _kernel():
    from backends.deepseek_v4.ops.sinkhorn import kernel

    return kernel


@torch.library.custom_op("specdec::sinkhorn", mutates_args=())
def forward(logits_XSS: torch.Tensor, num_rounds: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Projection [X, S, S] and the sums [X, 2 * num_rounds, S] that its steps divided by (the last slot is unused).

    ``logits_XSS`` is float32. CUDA runs the Triton kernel, other devices plain torch.
    """
    logits_XSS = logits_XSS.contiguous()
    if logits_XSS.is_cuda:
        return _kernel().forward(logits_XSS, num_rounds, eps)
    sums = logits_XSS.new_zeros((logits_XSS.shape[0], 2 * num_rounds, logits_XSS.shape[-1]))
    out = torch.softmax(logits_XSS, dim=-1) + eps
    for step in range(2 * num_rounds - 1):
        axis = 1 if step % 2 == 0 else 2
        total = out.sum(axis) + eps
        sums[:, step] = total
        out = out / total.unsqueeze(axis)
    return out, sums


@forward.register_fake
def _(logits_XSS: torch.Tensor, num_rounds: int, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    num, size, _ = logits_XSS.shape
    shape = (num, size, size)
    return logits_XSS.new_empty(shape), logits_XSS.new_empty((num, 2 * num_rounds, size))


@torch.library.custom_op("specdec::sinkhorn_backward", mutates_args=())
def backward(
    grad_XSS: torch.Tensor, out_XSS: torch.Tensor, sums: torch.Tensor, num_rounds: int, eps: float
) -> torch.Tensor:
    """Gradient [X, S, S] of the logits from that of the projection and what ``forward`` returned."""
    grad = grad_XSS.contiguous()
    if grad.is_cuda:
        return _kernel().backward(grad, out_XSS, sums, num_rounds, eps)
    y = out_XSS
    for step in reversed(range(2 * num_rounds - 1)):
        axis = 1 if step % 2 == 0 else 2
        total = sums[:, step].unsqueeze(axis)
        grad = (grad - (grad * y).sum(axis, keepdim=True)) / total
        y = y * total
    soft = y - eps
    return soft * (grad - (grad * soft).sum(-1, keepdim=True))


@backward.register_fake
def _(grad_XSS, out_XSS, sums, num_rounds, eps):
    return torch.empty_like(out_XSS)


def _setup(ctx, inputs, output) -> None:
    _, ctx.num_rounds, ctx.eps = inputs
    ctx.save_for_backward(*output)


def _gradient(ctx, grad_out: torch.Tensor, grad_sums: torch.Tensor):
    out, sums = ctx.saved_tensors
    return backward(grad_out, out, sums, ctx.num_rounds, ctx.eps), None, None


forward.register_autograd(_gradient, setup_context=_setup)


def sinkhorn(logits: torch.Tensor, num_rounds: int, eps: float) -> torch.Tensor:
    """The reference's result [..., S, S], differentiable, as one operator."""
    size = logits.shape[-1]
    out, _ = forward(logits.reshape(-1, size, size), num_rounds, eps)
    return out.view(logits.shape)
