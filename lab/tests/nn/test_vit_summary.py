"""The summary of a model adds up, and its numbers are those of arithmetic."""

import pytest
import torch
from nearwise_lab.nn import count_flops
from nearwise_lab.nn.layers import token_layer
from nearwise_lab.nn.vit import VisionTransformer
from nearwise_lab.nn.vit_summary import summarize

SIZE = {"image_size": 32, "patch_size": 8, "n_classes": 10, "dim": 24, "depth": 2, "num_heads": 3}
LAYERS = {
    "MultiHeadAttention": {},
    "KNNAttention": {"n_neighbors": 5},
    "ConvNNAttention": {"n_neighbors": 5, "convolution": "standard"},
    "NeighborhoodAttention2D": {"kernel_size": 3},
    "BranchingConv": {"n_neighbors": 5},
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_parts_add_up(layer, pooling):
    options = {"layer": token_layer(layer), "layer_options": LAYERS[layer], "pooling": pooling}
    model = VisionTransformer(**SIZE, **options, num_registers=2)
    summary = summarize(model)
    assert summary.n_tokens == 16 + 2 + (pooling == "token")
    assert sum(part.parameters for part in summary.parts) == summary.whole.parameters
    assert summary.whole.parameters == sum(p.numel() for p in model.parameters())
    assert sum(part.total for part in summary.parts) == summary.whole.total
    assert summary.whole.total == count_flops(model, torch.zeros(1, 3, 32, 32)).total
    assert all(min(part.flops.values()) >= 0 for part in summary.parts)


def test_each_part_by_hand():
    model = VisionTransformer(**SIZE, layer="MultiHeadAttention")
    model.head.requires_grad_(False)
    summary = summarize(model)
    assert summary.whole.parameters - summary.trainable == 24 * 10 + 10  # frozen
    parts = {part.name: part for part in summary.parts}
    assert parts["patches"].parameters == 3 * 64 * 24 + 24 + 24 + 17 * 24
    assert parts["patches"].flops["convolution"] == 2 * 16 * 3 * 64 * 24
    assert parts["attention"].total == 2 * (2 * 17 * 4 * 24 * 24 + 4 * 17 * 17 * 24)
    assert parts["MLP"].total == 2 * 2 * 2 * 17 * 24 * 96
    assert parts["norms and branches"].parameters == 2 * 2 * 2 * 24
    assert parts["norms and branches"].total == 0
    assert parts["head"].total == 2 * 24 * 10


def test_the_published_model_has_the_published_size():
    """Counts of the published ViT-Tiny: 5,479,306 parameters, 2.508 GFLOPs by a profiler.

    It has a norm behind the patches and none at the end, no bias behind the attention, and sines
    as positions.
    """
    model = VisionTransformer(
        n_classes=10,
        num_heads=1,
        layer="MultiHeadAttention",
        layer_options={"proj_bias": False},
        positions="sincos",
        patch_norm=True,
        final_norm=False,
    )
    summary = summarize(model)
    assert summary.whole.parameters == summary.trainable == 5_479_306
    assert summary.whole.total == pytest.approx(2.508e9, rel=1e-3)
