"""Neighborhood layers by NATTEN: a stand-in with its interface, computed by dense masks."""

import sys
import types

import pytest
import torch
from nearwise_lab.nn.natten import NattenAttention1D, NattenAttention2D, natten_function
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

from tests.nn.tokens.cases import tokens
from tests.reference.token_layers import neighborhood


def stand_in(calls):
    """A module like natten 0.21: heads after the grid, more keys for everyone."""

    def attend(query, key, value, kernel_size, stride, dilation, is_causal, scale, more):
        grid = query.shape[1:-2]
        calls.append((grid, kernel_size, stride, dilation, is_causal))
        allowed = torch.ones(1, 1, dtype=torch.bool)
        for axis, length in enumerate(grid):
            along = neighborhood(
                length, kernel_size[axis], stride[axis], dilation[axis], is_causal[axis]
            )
            allowed = torch.kron(allowed.int(), along.int()).bool()
        flat = [x.flatten(1, len(grid)).transpose(1, 2) for x in (query, key, value)]
        if more[0] is not None:
            flat[1:] = [
                torch.cat([x.transpose(1, 2), own], dim=2)
                for x, own in zip(more, flat[1:], strict=True)
            ]
            allowed = torch.cat([allowed.new_ones(len(allowed), more[0].shape[1]), allowed], 1)
        scores = (flat[0] @ flat[1].mT * scale).masked_fill(~allowed, -torch.inf)
        return (scores.softmax(-1) @ flat[2]).transpose(1, 2).unflatten(1, grid)

    def na1d(
        query,
        key,
        value,
        kernel_size,
        stride=1,
        dilation=1,
        is_causal=False,
        scale=None,
        additional_keys=None,
        additional_values=None,
    ):
        more = (additional_keys, additional_values)
        return attend(query, key, value, kernel_size, stride, dilation, is_causal, scale, more)

    module = types.ModuleType("natten")
    module.__version__ = "0.21.6"
    module.na1d = module.na2d = na1d
    return module


@pytest.fixture
def calls(monkeypatch):
    """Install the stand-in and give what it was called with."""
    seen = []
    monkeypatch.setitem(sys.modules, "natten", stand_in(seen))
    natten_function.cache_clear()
    yield seen
    natten_function.cache_clear()


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 5},
        {"kernel_size": 5, "stride": 2, "dilation": 2},
        {"kernel_size": 4, "causal": True},
        {"kernel_size": 3, "num_prefix_tokens": 2},
    ],
    ids=str,
)
def test_on_a_line_it_is_what_plain_torch_gives(calls, options):
    layer = NattenAttention1D(24, 3, **options)
    plain = NeighborhoodAttention1D(24, 3, **options)
    plain.load_state_dict(layer.state_dict())
    x = tokens().requires_grad_()
    ours, expected = layer(x), plain(x)
    assert len(calls) == 1
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    slopes = (torch.autograd.grad(y.square().sum(), x)[0] for y in (ours, expected))
    torch.testing.assert_close(*slopes, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefix", [0, 1])
def test_on_a_grid_it_is_what_plain_torch_gives(calls, prefix):
    options = {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2), "grid_size": (4, 5)}
    layer = NattenAttention2D(24, 3, num_prefix_tokens=prefix, **options)
    plain = NeighborhoodAttention2D(24, 3, num_prefix_tokens=prefix, **options)
    plain.load_state_dict(layer.state_dict())
    x = tokens(n_tokens=20 + prefix)
    torch.testing.assert_close(layer(x), plain(x), atol=1e-5, rtol=1e-5)
    assert calls == [((4, 5), (3, 2), (2, 1), (1, 2), (False, False))]


@pytest.mark.usefixtures("calls")
def test_what_it_cannot_do_is_named():
    layer = NattenAttention1D(24, 3, kernel_size=3, attn_drop=0.5)
    with pytest.raises(ValueError, match=r"drops no attention.*Take NeighborhoodAttention1D"):
        layer(tokens())
    layer.eval()
    with pytest.raises(ValueError, match="takes no masks"):
        layer(tokens(), torch.ones(17, 17, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"no kernels for torch\.float64"):
        layer.double()(tokens(dtype=torch.float64))
    with pytest.raises(ValueError, match="there are 17 along this axis"):
        NattenAttention1D(24, 3, kernel_size=18)(tokens())


def test_without_it_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "natten", None)  # as Python marks what cannot be imported
    natten_function.cache_clear()
    with pytest.raises(ImportError, match=r"natten cannot be imported.*Install a wheel"):
        NattenAttention1D(24, 3, kernel_size=3)


def test_an_old_version_is_refused(monkeypatch):
    old = types.ModuleType("natten")
    old.__version__ = "0.17.5"
    old.na1d = lambda query, key, value, kernel_size, dilation=1, is_causal=False: query
    monkeypatch.setitem(sys.modules, "natten", old)
    natten_function.cache_clear()
    with pytest.raises(ImportError, match=r"natten 0\.17\.5 is too old"):
        NattenAttention1D(24, 3, kernel_size=3)
