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
LOCAL = {"window_size": 128, "dim_head": 64, "heads": 3}
SPARSE = {"attn_mode": "strided", "local_attn_ctx": 4}


@pytest.mark.parametrize(
    ("layer", "name", "given", "options"),
    [
        ("ConvNNAttention", "MultiHeadConvNNAttention", CONVNN, {}),
        ("BranchConv", "MultiHeadBranchingConv", CONVNN, {}),
        ("BranchAttention", "MultiHeadBranchingAttention", CONVNN, {}),
        ("KvtAttention", "MultiHeadKvtAttention", {"K": 5}, {"dim": 24, "topk": 5}),
        ("LocalAttention", "MultiHeadLocalAttention", {}, {"dim": 24, **LOCAL}),
        (
            "SparseAttention",
            "MultiHeadSparseAttention",
            {"sparse_mode": "strided", "sparse_context_window": 4},
            SPARSE,
        ),
    ],
)
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
    without = {name: x for name, x in ARGUMENTS.items() if name != "patch_size"}
    with pytest.raises(ValueError, match="arguments lacks patch_size"):
        load_reference_vit(without, state)
    with pytest.raises(ValueError, match="Did you mean"):
        load_reference_vit({**ARGUMENTS, "layer": "Atention"}, state)
    with pytest.raises(ValueError, match=r"do not fit this vision transformer: blocks\.1"):
        load_reference_vit({**ARGUMENTS, "num_layers": 1}, state)
    with pytest.raises(ValueError, match=r"head\.weight should be \(5, 24\) and is \(10, 24\)"):
        state = {name: x for name, x in state.items() if name != "classifier.bias"}
        load_reference_vit(
            {**ARGUMENTS, "num_classes": 5}, {**state, "classifier.bias": torch.zeros(5)}
        )
