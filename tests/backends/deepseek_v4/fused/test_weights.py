"""Weights of a layer for packed passes: their storage, and the product with matrices that are stored in two ways."""

import pytest
import torch

from backends.deepseek_v4.fused.weights import WeightFormats, layer_weights
from backends.deepseek_v4.kernels import Kernels
from backends.deepseek_v4.ops.linear import joint_linear
from backends.deepseek_v4.stored_weight import WeightFormat

QUANTISED = WeightFormats(linears=WeightFormat.FP8, experts=WeightFormat.FP8)
CSA_LAYER = 1


@pytest.fixture
def block(world_of):
    """A CSA layer, which has a compressor and an indexer; where kernels run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return world_of(device=device).target.model.layers[CSA_LAYER]


def test_quantised_weights_are_packed_for_bf16_activations_only(block):
    packed, ordered = (layer_weights(block, dtype, QUANTISED) for dtype in (torch.bfloat16, torch.float32))
    assert packed.out_a.packed and packed.routed.w1.packed and packed.shared.w3.packed
    assert not ordered.out_a.packed and not ordered.routed.w1.packed
    for ours, theirs in ((packed.out_b, ordered.out_b), (packed.routed.w2, ordered.routed.w2)):
        assert torch.equal(ours.dense(), theirs.dense())
    assert not packed.router.packed and packed.router.format is WeightFormat.PLAIN


@pytest.mark.parametrize("kernels", [Kernels.REFERENCE, Kernels.TRITON])
def test_input_projections_of_two_storages_make_one_set_of_parts(block, kernels):
    weights = layer_weights(block, torch.float32, QUANTISED).inputs
    assert [weight.format for weight in weights] == [WeightFormat.FP8, WeightFormat.PLAIN]
    x_TD = torch.randn(3, weights[0].num_inputs, device=weights[0].values.device)
    parts_PTO = joint_linear(x_TD, weights, kernels=kernels)
    expected = x_TD @ torch.cat([weight.dense() for weight in weights]).T
    torch.testing.assert_close(parts_PTO.sum(0), expected, rtol=1e-4, atol=1e-4)


def test_plain_input_projections_are_one_matrix(block):
    (weight,) = layer_weights(block, torch.float32, WeightFormats()).inputs
    quantised = layer_weights(block, torch.float32, QUANTISED).inputs
    assert weight.num_outputs == sum(each.num_outputs for each in quantised)
