"""Dropout on a CPU, and attention with it."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from nearwise.nn.dropout import Dropout, attention_with_dropout


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


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_dropout_drops_weights_of_attention_without(mask, dtype):
    """With values that are an identity, outputs are the weights: dropped, or scaled up."""
    torch.manual_seed(0)
    rate, n = 0.3, 40
    query, key = (torch.randn(2, 3, n, 8, dtype=dtype, requires_grad=True) for _ in range(2))
    value = torch.eye(n, dtype=dtype).expand(2, 3, n, n)
    masks = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": torch.rand(2, 1, n, n) < 0.7},
        "float": {"attn_mask": torch.randn(3, n, n).to(dtype)},
    }[mask]
    dropped = attention_with_dropout(query, key, value, dropout_p=rate, scale=0.5, **masks)
    whole = scaled_dot_product_attention(query, key, value, scale=0.5, **masks)
    is_kept = dropped != 0
    exact = {} if dtype == torch.float32 else {"rtol": 0.05, "atol": 1e-3}
    torch.testing.assert_close(dropped * (1 - rate), whole * is_kept, **exact)
    share = is_kept[whole > 1e-4].double().mean().item()
    assert share == pytest.approx(1 - rate, abs=0.03)
    cotangent = torch.randn_like(whole)
    for own, expected in zip(
        torch.autograd.grad(dropped * (1 - rate), (query, key), cotangent),
        torch.autograd.grad(whole * is_kept, (query, key), cotangent),
        strict=True,
    ):
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        atol = tolerance * expected.abs().max().item()
        torch.testing.assert_close(own, expected, rtol=0, atol=atol)


def test_attention_without_dropout_is_that_of_torch():
    query = torch.randn(1, 2, 5, 4)
    own = attention_with_dropout(query, query, query, dropout_p=0.0, is_causal=True, scale=0.3)
    expected = scaled_dot_product_attention(query, query, query, is_causal=True, scale=0.3)
    assert torch.equal(own, expected)
