"""The lab's layers behind the interfaces of others: timm's blocks, export of transformers."""

import pytest
import torch
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention
from nearwise_lab.nn.layers import TOKEN_LAYERS, token_layer
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.vit import VisionTransformer

from nearwise.names import nearest_names
from tests.nn.tokens.cases import DIM, HEADS, tokens
from tests.reference.onnx_export import onnx_outputs

CLOSE = {"atol": 2e-5, "rtol": 2e-5}
SLOWER = [pytest.param(x, marks=pytest.mark.slow) for x in ("ConvNNAttention", LocalAttention)]


@pytest.mark.parametrize("layer", ["KNNAttention", *SLOWER])
def test_a_whole_transformer_exports(layer):
    model = VisionTransformer(
        image_size=16, patch_size=4, n_classes=3, dim=DIM, depth=2, layer=layer, random_state=0
    ).eval()
    images = torch.randn(2, 3, 16, 16)
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images), **CLOSE)


@pytest.mark.slow
def test_a_whole_transformer_as_onnx_gives_the_same_for_batches_of_any_size(tmp_path):
    model = VisionTransformer(
        image_size=16, patch_size=4, n_classes=3, dim=DIM, depth=2, random_state=0
    ).eval()
    two, five = torch.randn(2, 3, 16, 16), torch.randn(5, 3, 16, 16)
    outputs = onnx_outputs(
        model, (two,), tmp_path / "model.onnx", (five,), dynamic_shapes=({0: "batch"},)
    )
    for output, images in zip(outputs, (two, five), strict=True):
        torch.testing.assert_close(output, model(images), **CLOSE)


def test_what_does_not_fit_is_refused():
    x = tokens()
    for call, message in (
        (lambda: KvtAttention(DIM, HEADS, qk_scale=0.0), "qk_scale=0.0 must be positive"),
        (
            lambda: ConvNNAttention(DIM, HEADS, sampling="random", num_samples=18)(x),
            "num_samples=18 exceeds the 17 tokens",
        ),
        (
            lambda: ConvNNAttention(DIM, HEADS, sampling="line", num_samples=18)(x),
            "18 samples do not fit",
        ),
        (lambda: LocalAttention(DIM, 7), "num_heads=7 does not divide dim=24"),
        (lambda: token_layer("KNNAttentoin"), "Did you mean 'KNNAttention'"),
        (lambda: token_layer("MultiHeadKvtAtention"), "Did you mean"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_layer_called_knn_is_knn_attention():
    assert nearest_names("KNN", TOKEN_LAYERS) == ["KNNAttention"]
