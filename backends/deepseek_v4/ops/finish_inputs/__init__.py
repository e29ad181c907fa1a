"""finish_inputs: from a layer's projected inputs to its query latent and its caches; which implementation."""

import torch

from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.finish_inputs import reference
from backends.deepseek_v4.ops.finish_inputs.values import CompressorInputs, LayerInputs
from backends.deepseek_v4.pass_values import PassIndices
from backends.deepseek_v4.pool import CachePool

__all__ = ["CompressorInputs", "LayerInputs", "finish_inputs"]


def finish_inputs(
    parts_PTO: torch.Tensor,
    indices: PassIndices,
    angles_T2R: torch.Tensor,
    inputs: LayerInputs,
    pool: CachePool,
    layer: int,
    *,
    dtype: torch.dtype,
    kernels: Kernels,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The query latent [T, q_lora] in ``dtype`` and the indexer's head weights, float32 [T, J] (None without one).

    Writes, at ``indices.write_slots``, the tokens' rotated keys and their rows of compressor and indexer state into
    the caches of ``layer`` of ``pool``; a token whose slot is -1 writes nothing.

    parts_PTO   [P, T, O] float32 or bf16, columns as in ``LayerInputs``; their sum over P is the projected input
    angles_T2R  float32 [T, 2, R], contiguous: of each token's position in layers of this kind

    Rounded to ``dtype`` where ``Attention.project`` rounds (states are not rounded). UnsupportedError for a row format
    that has no kernel.
    """
    assert parts_PTO.shape[2] == inputs.num_columns, "columns as in LayerInputs"
    assert (inputs.compressor is not None) == pool.kind(layer).compresses, "states belong to compressing layers"
    if kernels is Kernels.REFERENCE:
        return reference.finish_inputs(parts_PTO, indices, angles_T2R, inputs, pool, layer, dtype=dtype)
    from backends.deepseek_v4.ops.finish_inputs import kernel

    return kernel.finish_inputs(parts_PTO, indices, angles_T2R, inputs, pool, layer, dtype=dtype)
