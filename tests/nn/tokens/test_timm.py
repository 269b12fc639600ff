"""Layers as timm builds them: its arguments, its names of weights, classes with options."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from nearwise.nn import KNNAttention, MemoryAttention, Sampling
from nearwise.nn.tokens import configured
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, tokens

# What timm's blocks pass.
USUAL = {"qkv_bias": True, "qk_norm": True, "proj_bias": True, "attn_drop": 0.0, "proj_drop": 0.0}
USUAL |= {"norm_layer": nn.LayerNorm, "attn_head_dim": None, "dim_out": None, "scale_norm": False}
USUAL |= {"gated": False, "device": "cpu", "dtype": torch.float32}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"scale_norm": True}, "scale_norm=True"),
        ({"gated": True}, "gated=True"),
        ({"dim_out": 48}, "48"),
    ],
)
def test_the_arguments_of_timms_attention_are_taken_or_refused(layer_case, asked, why):
    layer, options = layer_case.layer, layer_case.options
    assert layer(DIM, num_heads=HEADS, **USUAL | options)(tokens()).shape == (2, N_TOKENS, DIM)
    with pytest.raises(ValueError, match=why):
        layer(DIM, num_heads=HEADS, **USUAL | options | asked)


def test_weights_have_the_names_of_timms_attention():
    layer = KNNAttention(DIM, HEADS, n_neighbors=N_TOKENS, qkv_bias=True, qk_norm=True)
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    norms = {f"{x}_norm.{part}": (DIM // HEADS,) for x in "qk" for part in ("weight", "bias")}
    assert shapes == norms | {
        "qkv.weight": (3 * DIM, DIM),
        "qkv.bias": (3 * DIM,),
        "proj.weight": (DIM, DIM),
        "proj.bias": (DIM,),
    }


def test_the_width_of_a_head_goes_by_both_names():
    assert KNNAttention(DIM, HEADS, attn_head_dim=5).head_dim == 5
    assert KNNAttention(DIM, HEADS, attn_head_dim=5, head_dim=5).head_dim == 5
    with pytest.raises(ValueError, match="head_dim=4"):
        KNNAttention(DIM, HEADS, attn_head_dim=4, head_dim=5)


@pytest.mark.parametrize("options", [{"n_neighbors": 5}, {"sampling": Sampling("line", 8)}])
def test_a_configured_class_is_one_class_wherever_its_layers_go(options, monkeypatch):
    made = KNNAttention.configured(**options)
    assert made is KNNAttention.configured(**options)
    assert made is not KNNAttention.configured(n_neighbors=6)
    assert copy.deepcopy(made) is pickle.loads(pickle.dumps(made)) is made
    layer, file = made(DIM, HEADS), io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    for again in (copy.deepcopy(layer), torch.load(file, weights_only=False)):
        assert type(again) is made
        assert torch.equal(again(tokens()), layer(tokens()))
    written = pickle.dumps(layer)
    monkeypatch.setattr(configured, "_made", [])  # as in another process
    assert torch.equal(pickle.loads(written)(tokens()), layer(tokens()))


def test_options_are_added_to_those_of_a_configured_class():
    made = KNNAttention.configured(n_neighbors=5).configured(metric="cosine")
    assert made is KNNAttention.configured(n_neighbors=5, metric="cosine")
    assert made(DIM, HEADS).metric == "cosine"
    with pytest.raises(TypeError, match=r"no option 'n_neighbours'. Did you mean 'n_neighbors'"):
        made.configured(n_neighbours=3)
    with pytest.raises(ValueError, match=r"configured with qkv_bias=False, but .* qkv_bias=True"):
        KNNAttention.configured(qkv_bias=False)(DIM, HEADS, qkv_bias=True)


@pytest.mark.parametrize("layer", [KNNAttention, MemoryAttention])
def test_an_unknown_option_of_a_layer_is_answered_with_the_nearest(layer):
    message = f"{layer.__name__} has no option 'n_neighbours'. Did you mean 'n_neighbors'"
    for make in (layer, lambda *at, **options: layer.configured(**options)(*at)):
        with pytest.raises(TypeError, match=message):
            make(24, 3, n_neighbours=5)
