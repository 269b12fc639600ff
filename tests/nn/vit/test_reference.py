"""Checkpoints of the published vision transformer load whole."""

import pytest
import torch

from nearwise.nn import load_reference_vit
from tests.reference.vision_transformer import positions, random_weights, vision_transformer

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


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module."])
def test_it_computes_what_the_published_code_does(prefix):
    state = random_weights()
    state["positional_encoding.pe"] = positions(17, 24)[None]
    expected = vision_transformer(state, images(), num_heads=3, num_layers=2, patch_size=8)
    model = load_reference_vit(ARGUMENTS, {prefix + name: x for name, x in state.items()})
    assert not model.training
    torch.testing.assert_close(model(images()), expected, **CLOSE)


def test_other_layers_load_by_the_same_map():
    state = random_weights()
    full = load_reference_vit(ARGUMENTS, state)(images())
    convnn = {f"W_{part}.weight": (24, 24) for part in "qkvo"}
    convnn |= {"conv.weight": (24, 1, 17)}
    state = random_weights(attention=convnn)
    for i in range(2):  # with ones and all neighbors, and its names of rows and columns swapped
        name = f"transformer_encoder.{i}.attention."
        state[name + "conv.weight"] = torch.ones(24, 1, 17)
    swapped = {
        name.replace("W_q", "W_*").replace("W_k", "W_q").replace("W_*", "W_k"): x
        for name, x in state.items()
        if "conv.weight" not in name
    }
    one_head = {**ARGUMENTS, "num_heads": 1}
    arguments = {**one_head, "layer": "ConvNNAttention", "convolution_type": "depthwise"}
    found = load_reference_vit(arguments, state)(images())
    expected = load_reference_vit(one_head, swapped)(images())
    torch.testing.assert_close(found, expected, **CLOSE)
    assert not torch.allclose(found, full)


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
