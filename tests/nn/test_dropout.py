"""Dropout on a CPU."""

import pytest
import torch
from torch import nn

from nearwise.nn.dropout import Dropout


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
