"""torch's fused attention for lengths that grow from call to call, as those of a decoded text do."""

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel

# cuDNN's, which torch prefers on Hopper, makes a plan for every new length: tens of milliseconds each.
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def growing_lengths() -> AbstractContextManager[None]:
    """Within, ``scaled_dot_product_attention`` takes no implementation that plans each length anew."""
    return sdpa_kernel(BACKENDS)
