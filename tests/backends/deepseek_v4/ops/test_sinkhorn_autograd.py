"""The sinkhorn operator: the reference's values and gradients, and something a compiler can keep whole."""

import pytest
import torch

from backends.deepseek_v4.ops.sinkhorn import autograd, reference

EPS = 1e-6


def test_values_and_gradient_equal_the_reference():
    logits = torch.randn(3, 5, 4, 4, dtype=torch.float32, requires_grad=True)
    weight = torch.randn(3, 5, 4, 4)
    expected = reference.sinkhorn(logits, 20, EPS)
    (expected_grad,) = torch.autograd.grad((expected * weight).sum(), logits)
    out = autograd.sinkhorn(logits, 20, EPS)
    (grad,) = torch.autograd.grad((out * weight).sum(), logits)
    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.allclose(grad, expected_grad, atol=2e-5)


def test_gradient_agrees_with_finite_differences():
    logits = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: autograd.sinkhorn(x, 3, EPS), (logits,))


@pytest.mark.gpu
def test_kernel_equals_the_cpu_operator():
    logits = torch.randn(1000, 4, 4) * 3
    out, sums = autograd.forward(logits, 20, EPS)
    out_gpu, sums_gpu = autograd.forward(logits.cuda(), 20, EPS)
    assert torch.allclose(out_gpu.cpu(), out, atol=1e-6)
    weight = torch.randn_like(logits)
    grad = autograd.backward(weight, out, sums, 20, EPS)
    grad_gpu = autograd.backward(weight.cuda(), out_gpu, sums_gpu, 20, EPS)
    assert torch.allclose(grad_gpu.cpu(), grad, atol=2e-5)
