"""Layers by distance and by angle: far from the origin, and in half precision."""

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, KNNMultiheadAttention, MemoryAttention
from tests.nn.tokens.cases import DIM, HEADS, tokens

each_implementation = pytest.mark.parametrize("implementation", ["plain", "cpu"])
K5 = {"n_neighbors": 5, "qkv_bias": True}
LAYERS = {
    "knn": (KNNAttention, {**K5, "metric": "euclidean"}),
    "knn learned": (KNNAttention, {**K5, "metric": "euclidean", "learned_temperature": True}),
    "memory": (MemoryAttention, {**K5, "metric": "euclidean", "n_recalled": 4}),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    kind, options = LAYERS[request.param]
    return kind(DIM, HEADS, **options).eval()


def outputs(layer, first, second):
    """What the second of two segments gets; a memory holds the first."""
    if not isinstance(layer, MemoryAttention):
        return layer(second)
    memory = TokenMemory(HEADS, n_streams=2, metric="euclidean")
    layer(first, memory=memory)
    return layer(second, memory=memory)


@each_implementation
@pytest.mark.parametrize("offset", [100.0, 1000.0, 10_000.0])
def test_a_bias_common_to_queries_and_keys_changes_no_distances(layer, offset, implementation):
    with torch.no_grad():
        layer.qkv.weight.mul_(8).round_(decimals=0)  # and whole numbers stay whole
        layer.qkv.bias.zero_()
        if hasattr(layer, "log_scale"):
            layer.log_scale.fill_(0.3)
        first, second = (tokens(seed=seed).round() for seed in (0, 1))
        with attention_implementation(implementation):
            near = outputs(layer, first, second)
            layer.qkv.bias[: 2 * DIM] = offset
            moved = outputs(layer, first, second)
    torch.testing.assert_close(moved, near, atol=2e-3, rtol=2e-3)


@each_implementation
def test_torchs_interface_too(implementation):
    torch.manual_seed(0)
    layer = KNNMultiheadAttention(DIM, HEADS, 5, metric="euclidean", batch_first=True)
    x = tokens().round()
    with torch.no_grad(), attention_implementation(implementation):
        layer.in_proj_weight.mul_(8).round_(decimals=0)
        near = layer(x, x, x)
        layer.in_proj_bias[: 2 * DIM] = 1000.0
        moved = layer(x, x, x)
    for one, other in zip(moved, near, strict=True):
        torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)


@each_implementation
@pytest.mark.parametrize("more", [{}, {"learned_temperature": True, "null_neighbor": True}])
@pytest.mark.parametrize("kind", [KNNAttention, MemoryAttention])
def test_angles_in_half_precision_train(kind, more, implementation):
    angles_train(kind, implementation, **more)


def angles_train(kind, implementation, **more):
    layer = kind(DIM, HEADS, n_neighbors=5, metric="cosine", **more, dtype=torch.bfloat16)
    x = tokens(dtype=torch.bfloat16).requires_grad_()
    with attention_implementation(implementation):
        if kind is MemoryAttention:
            memory = TokenMemory(HEADS, metric="cosine")
            layer(x, memory=memory)
            output = layer(x, memory=memory)
        else:
            output = layer(x)
        output.float().square().sum().backward()
    assert output.dtype == x.grad.dtype == torch.bfloat16
    assert x.grad.isfinite().all()
