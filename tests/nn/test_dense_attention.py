"""Dense attention on a CPU: torch's own, with and without dropout."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from nearwise.nn.dense_attention import dense_attention
from nearwise.nn.dropout import Dropout

N = 40
MASKS = ["none", "causal", "bool", "float"]
TYPES = [torch.float32, torch.bfloat16]


def problem(mask, dtype, width=None):
    """Query, key, value and options; without a width, values are an identity."""
    torch.manual_seed(0)
    query, key = (torch.randn(2, 3, N, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    value = torch.eye(N).expand(2, 3, N, N) if width is None else torch.randn(2, 3, N, width)
    masks = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(2, 1, N, N) < 0.7},
        "float": {"attn_mask": torch.randn(3, N, N).to(dtype)},
    }[mask]
    return (query, key, value.to(dtype).requires_grad_()), {"scale": 0.5, **masks}


def assert_same_gradients(output, expected, inputs):
    cotangent = torch.randn_like(expected)
    for own, their in zip(
        torch.autograd.grad(output, inputs, cotangent),
        torch.autograd.grad(expected, inputs, cotangent),
        strict=True,
    ):
        atol = (1e-5 if own.dtype == torch.float32 else 0.05) * their.abs().max().item()
        torch.testing.assert_close(own, their, rtol=0, atol=atol)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_dropout_drops_weights_and_scales_up_the_others(mask, dtype):
    rate = 0.3
    inputs, options = problem(mask, dtype)
    dropped = dense_attention(*inputs, dropout_p=rate, **options)
    whole = scaled_dot_product_attention(*inputs, **options)  # the weights
    is_kept = dropped != 0
    exact = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 1e-3}
    torch.testing.assert_close(dropped * (1 - rate), whole * is_kept, **exact)
    assert is_kept[whole > 1e-4].double().mean().item() == pytest.approx(1 - rate, abs=0.03)
    assert_same_gradients(dropped * (1 - rate), whole * is_kept, inputs[:2])


@pytest.mark.parametrize("has_fast_bfloat16", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_without_dropout_it_is_that_of_torch(mask, dtype, has_fast_bfloat16, monkeypatch):
    monkeypatch.setattr(
        "nearwise.nn.dense_attention.fast_bfloat16", lambda device: has_fast_bfloat16
    )
    inputs, options = problem(mask, dtype, width=5)
    output = dense_attention(*inputs, **options)
    expected = scaled_dot_product_attention(*inputs, **options)
    own = has_fast_bfloat16 and dtype == torch.bfloat16
    torch.testing.assert_close(
        output, expected, **({"rtol": 0.02, "atol": 0.02} if own else {"rtol": 0, "atol": 0})
    )
    assert_same_gradients(output, expected, inputs)
    with torch.no_grad():
        assert torch.equal(dense_attention(*inputs, **options), expected)


# Dropout


@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.1, 0.75, 1 - 1e-6, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_zeroes_its_share_and_scales_up_the_others(rate, dtype):
    torch.manual_seed(0)
    x = torch.ones(101, 1001, dtype=dtype, requires_grad=True)
    dropped = Dropout(rate)(x)
    dropped.sum().backward()
    share = (dropped == 0).double().mean().item()
    assert abs(share - rate) < 4 * (rate * (1 - rate) / x.numel()) ** 0.5 + 2**-16
    torch.testing.assert_close(dropped, nn.functional.dropout(x, rate).max() * (dropped != 0))
    torch.testing.assert_close(x.grad, dropped)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 5)])
def test_dropout_takes_every_shape_and_transformation(shape):
    layer = Dropout(0.5)
    x = torch.ones(2, *shape)
    with torch.device("meta"):  # of new tensors; those given stay where they are
        assert layer(x).shape == x.shape
    over = torch.func.vmap(layer, randomness="different")(x)
    assert set(over.unique().tolist()) <= {0.0, 2.0}
    assert layer(x.transpose(0, -1)).shape == x.transpose(0, -1).shape


def test_dropout_repeats_by_seed_and_rests_in_evaluation():
    x = torch.randn(3, 5, 7)
    layer = Dropout(0.4)
    torch.manual_seed(1)
    first, other = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, other)
    assert torch.equal(layer.eval()(x), x)
