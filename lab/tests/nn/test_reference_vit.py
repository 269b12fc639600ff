"""Checkpoints of the published vision transformer load whole."""

import pytest
import torch
from nearwise_lab.nn import load_reference_vit

from lab.tests.reference import published_layers as published
from lab.tests.reference.vision_transformer import positions, random_weights, vision_transformer

ARGUMENTS = {
    "layer": "Attention",
    "img_size": (3, 32, 32),
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 3,
    "d_hidden": 24,
    "d_mlp": 48,
    "num_classes": 10,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "K": 17,
    "lr": 1e-3,
}
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def images():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def expected(name, options, state, draw=None):
    """Logits from the description of a layer."""
    layer = published.LAYERS[name]
    return vision_transformer(
        state,
        images(),
        num_layers=2,
        patch_size=8,
        attend=lambda weights, x: layer(weights, x, options, draw() if draw else None),
    )


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module."])
def test_it_computes_what_the_published_code_does(prefix):
    state = random_weights()
    state["positional_encoding.pe"] = positions(17, 24)[None]
    wanted = expected("MultiHeadAttention", ARGUMENTS, state)
    model = load_reference_vit(ARGUMENTS, {prefix + name: x for name, x in state.items()})
    assert not model.training
    torch.testing.assert_close(model(images()), wanted, **CLOSE)


CONVNN = {
    "K": 3,
    "magnitude_type": "cosine",
    "convolution_type": "standard",
    "coordinate_encoding": True,
    "softmax_topk_val": False,
    "branch_ratio": 0.25,
    "kernel_size": 5,
    "sampling_type": "random",
    "num_samples": 8,
    "sample_padding": 0,
}
LOCAL = {"dim": 24, "window_size": 128, "dim_head": 64, "heads": 3}
FLAGS = {"sparse_mode": "strided", "sparse_context_window": 4}
SPARSE = {"attn_mode": "strided", "local_attn_ctx": 4}
LAYERS = [
    ("ConvNNAttention", "MultiHeadConvNNAttention", CONVNN, {}),
    ("BranchConv", "MultiHeadBranchingConv", CONVNN, {}),
    ("BranchAttention", "MultiHeadBranchingAttention", CONVNN, {}),
    ("KvtAttention", "MultiHeadKvtAttention", {"K": 5}, {"dim": 24, "topk": 5}),
    ("LocalAttention", "MultiHeadLocalAttention", {}, LOCAL),
    ("SparseAttention", "MultiHeadSparseAttention", FLAGS, SPARSE),
]


@pytest.mark.parametrize(("layer", "name", "given", "options"), LAYERS)
def test_every_layer_loads_by_the_same_map(layer, name, given, options):
    arguments = {**ARGUMENTS, "attention_dropout": 0.0, **given, "layer": layer}
    options = {**arguments, **options}
    state = random_weights(attention=published.weight_shapes(name, options))
    sampled = "sampling_type" in given
    torch.manual_seed(5)
    wanted = expected(name, options, state, (lambda: torch.randperm(17)[:8]) if sampled else None)
    torch.manual_seed(5)
    torch.testing.assert_close(load_reference_vit(arguments, state)(images()), wanted, **CLOSE)


def test_mistakes_are_named():
    state = random_weights()
    for arguments, message in (
        ({x: y for x, y in ARGUMENTS.items() if x != "patch_size"}, "arguments lacks patch_size"),
        ({**ARGUMENTS, "layer": "Atention"}, "Did you mean"),
        ({**ARGUMENTS, "num_layers": 1}, r"do not fit this vision transformer: blocks\.1"),
        ({**ARGUMENTS, "num_classes": 5}, r"head\.bias should be \(5,\) and is \(10,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            load_reference_vit(arguments, state)
