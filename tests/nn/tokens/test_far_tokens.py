"""Layers by distance and by angle: far from the origin, beside far tokens, in half precision."""

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.memory import TokenMemory
from nearwise.nn import KNNAttention, MemoryAttention
from tests.nn.tokens.cases import DIM, HEADS, N_TOKENS, tokens

each_implementation = pytest.mark.parametrize("implementation", ["plain", "cpu"])
K5 = {"n_neighbors": 5, "qkv_bias": True}
EUCLIDEAN = K5 | {"metric": "euclidean"}
LAYERS = {
    "knn": (KNNAttention, EUCLIDEAN),
    "knn learned": (KNNAttention, EUCLIDEAN | {"learned_temperature": True, "null_neighbor": True}),
    "memory": (MemoryAttention, EUCLIDEAN | {"n_recalled": 4}),
}
LAST = torch.arange(N_TOKENS) == N_TOKENS - 1


@pytest.fixture(params=LAYERS)
def layer(request):
    torch.manual_seed(0)
    kind, options = LAYERS[request.param]
    return kind(DIM, HEADS, **options).eval()


def outputs(layer, earlier, x, **masks):
    """What tokens get; a memory holds earlier ones."""
    if isinstance(layer, MemoryAttention):
        memory = TokenMemory(HEADS, n_streams=2, metric="euclidean")
        layer(earlier, memory=memory)
        masks |= {"memory": memory, "remember": False}
    return layer(x, **masks)


@each_implementation
@pytest.mark.parametrize("offset", [100.0, 1000.0, 10_000.0])
def test_a_bias_common_to_queries_and_keys_changes_no_distances(layer, offset, implementation):
    with torch.no_grad():
        layer.qkv.weight.mul_(8).round_(decimals=0)  # and whole numbers stay whole
        layer.qkv.bias.zero_()
        for name in ("null_key", "null_score"):  # of no distance
            if hasattr(layer, name):
                getattr(layer, name).zero_()
        if hasattr(layer, "log_scale"):
            layer.log_scale.fill_(0.3)
        first, second = (tokens(seed=seed).round() for seed in (0, 1))
        with attention_implementation(implementation):
            near = outputs(layer, first, second)
            layer.qkv.bias[: 2 * DIM] = offset
            moved = outputs(layer, first, second)
    torch.testing.assert_close(moved, near, atol=2e-3, rtol=2e-3)


LEFT_OUT = {
    "padding": {"key_padding_mask": LAST.expand(2, -1)},
    "mask": {"attn_mask": ~LAST.expand(N_TOKENS, -1)},
    "future": {"is_causal": True},
}


@each_implementation
@pytest.mark.parametrize("how", LEFT_OUT)
@pytest.mark.parametrize("factor", [1e4, 1e6, 1e15])
def test_a_far_token_that_is_left_out_changes_no_other(layer, factor, how, implementation):
    near, grads = tokens(), []
    far = torch.where(LAST[:, None], near * factor, near)
    with attention_implementation(implementation):
        for x in (near, far):
            x.requires_grad_()
            output = outputs(layer, tokens(seed=3), x, **LEFT_OUT[how])[:, :-1]
            output.square().sum().backward()
            grads.append((output.detach(), x.grad[:, :-1]))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


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
