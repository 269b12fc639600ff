"""Layers in timm's vision transformer: built with it, and swapped into a trained one."""

import copy
import io
import pickle
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
import torch

from nearwise.nn import KNNAttention, Sampling
from nearwise.nn.tokens import configured
from tests.nn.tokens.cases import DIM, HEADS, tokens


class StandIn(type):
    """Anything that torchvision has: a class whose attributes are their names."""

    def __getattr__(cls, name):
        return cls.named(name)

    @staticmethod
    def named(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(name, (), {})


class StandIns:
    """Finds modules of torchvision, which timm imports and its vision transformer does not use."""

    def find_spec(self, name, path=None, target=None):
        is_there = name.partition(".")[0] == "torchvision"
        return ModuleSpec(name, self, is_package=True) if is_there else None

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = StandIn.named
        return module

    def exec_module(self, module):
        """Leave it as it is."""


@pytest.fixture(scope="module")
def make():
    """Make a small vision transformer of timm."""
    finder, before = StandIns(), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        timm = pytest.importorskip("timm.models.vision_transformer")
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]

    def made(**options):
        torch.manual_seed(0)
        sizes = {"img_size": 16, "patch_size": 4, "embed_dim": DIM, "num_heads": HEADS}
        return timm.VisionTransformer(**sizes, depth=2, num_classes=3, **options).eval()

    return made


def images():
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_timm_builds_every_layer(make, layer_case):
    of_timm = ("qkv_bias", "qk_norm")
    options = {name: value for name, value in layer_case.options.items() if name not in of_timm}
    model = make(attn_layer=layer_case.layer.configured(**options))
    assert isinstance(model.blocks[1].attn, layer_case.layer)
    assert model(images()).shape == (2, 3)


def test_weights_of_timm_load_into_a_model_that_is_built_or_swapped(make):
    trained = make()
    built = make(attn_layer=KNNAttention.configured(n_neighbors=17))
    built.load_state_dict(trained.state_dict())
    swapped = copy.deepcopy(trained)
    for block in swapped.blocks:
        layer = KNNAttention(DIM, HEADS, n_neighbors=17, qkv_bias=True)
        layer.load_state_dict(block.attn.state_dict())
        block.attn = layer
    for model in (built, swapped):
        torch.testing.assert_close(model(images()), trained(images()), atol=1e-5, rtol=1e-5)


def test_what_timm_asks_for_and_no_layer_has_is_refused(make):
    with pytest.raises(ValueError, match="no scale_norm=True"):
        make(attn_layer=KNNAttention, scale_attn_norm=True)
    with pytest.raises(ValueError, match=r"configured with qkv_bias=False, but .* qkv_bias=True"):
        make(attn_layer=KNNAttention.configured(qkv_bias=False))


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
    usual = {"scale_norm": False, "gated": False, "dim_out": None, "attn_head_dim": None}
    assert layer(DIM, HEADS, **options, **usual)(tokens()).shape[-1] == DIM
    with pytest.raises(ValueError, match=why):
        layer(DIM, HEADS, **options, **{**usual, **asked})


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
