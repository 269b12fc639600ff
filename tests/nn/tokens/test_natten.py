"""Neighborhood layers by NATTEN: a stand-in with its interface, computed by dense masks."""

import sys
import types

import pytest
import torch

from nearwise.nn import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise.nn.tokens import natten as natten_module
from nearwise.nn.tokens.base import Masks
from nearwise.nn.tokens.natten import natten_function, natten_serves, picks_natten
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
    natten_module.natten_function.cache_clear()
    yield seen
    natten_module.natten_function.cache_clear()


@pytest.fixture
def _absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "natten", None)  # as Python marks what cannot be imported
    natten_module.natten_function.cache_clear()
    yield
    natten_module.natten_function.cache_clear()


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
    layer = NeighborhoodAttention1D(24, 3, backend="natten", **options)
    x = tokens().requires_grad_()
    ours = layer(x)
    assert len(calls) == 1
    layer.backend = "torch"
    torch.testing.assert_close(ours, layer(x), atol=1e-5, rtol=1e-5)
    assert len(calls) == 1
    (slope,) = torch.autograd.grad(ours.square().sum(), x)
    (expected,) = torch.autograd.grad(layer(x).square().sum(), x)
    torch.testing.assert_close(slope, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prefix", [0, 1])
def test_on_a_grid_it_is_what_plain_torch_gives(calls, prefix):
    options = {"kernel_size": (3, 2), "stride": (2, 1), "dilation": (1, 2)}
    layer = NeighborhoodAttention2D(
        24, 3, grid_size=(4, 5), num_prefix_tokens=prefix, backend="natten", **options
    )
    x = tokens(n_tokens=20 + prefix)
    ours = layer(x)
    assert calls == [((4, 5), (3, 2), (2, 1), (1, 2), (False, False))]
    layer.backend = "torch"
    torch.testing.assert_close(ours, layer(x), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("calls")
def test_what_it_cannot_do_is_named():
    layer = NeighborhoodAttention1D(24, 3, kernel_size=3, backend="natten", attn_drop=0.5)
    with pytest.raises(ValueError, match="drops no attention weights"):
        layer(tokens())
    layer.eval()
    with pytest.raises(ValueError, match="takes no masks"):
        layer(tokens(), torch.ones(17, 17, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"no kernels for torch\.float64"):
        layer.double()(tokens(dtype=torch.float64))
    with pytest.raises(ValueError, match="there are 17 along this axis"):
        NeighborhoodAttention1D(24, 3, kernel_size=18, backend="natten")(tokens())
    with pytest.raises(ValueError, match="backend='cuda' is not one of auto, torch, natten"):
        NeighborhoodAttention1D(24, 3, backend="cuda")


def test_by_itself_it_is_taken_on_gpus_only(calls):
    NeighborhoodAttention1D(24, 3, kernel_size=3)(tokens())
    assert calls == []

    class OnGPU:
        is_cuda, dtype = True, torch.bfloat16

    natten = natten_function(1)
    assert picks_natten("auto", natten, OnGPU(), Masks(), 0.0)
    assert not picks_natten("auto", natten, OnGPU(), Masks(is_causal=True), 0.0)
    assert not picks_natten("auto", natten, OnGPU(), Masks(), 0.1)
    assert not picks_natten("torch", natten, OnGPU(), Masks(), 0.0)
    assert natten_serves(OnGPU(), Masks(), 0.0) == ""


@pytest.mark.usefixtures("_absent")
def test_without_it_plain_torch_serves_and_asking_for_it_says_how_to_get_it():
    class OnGPU:
        is_cuda, dtype = True, torch.bfloat16

    assert not picks_natten("auto", natten_function(1), OnGPU(), Masks(), 0.0)
    with pytest.raises(ImportError, match=r"natten cannot be imported.*Install a wheel"):
        NeighborhoodAttention1D(24, 3, kernel_size=3, backend="natten")(tokens())


def test_an_old_version_is_refused(monkeypatch):
    old = types.ModuleType("natten")
    old.__version__ = "0.17.5"
    old.na1d = lambda query, key, value, kernel_size, dilation=1, is_causal=False: query
    monkeypatch.setitem(sys.modules, "natten", old)
    natten_module.natten_function.cache_clear()
    try:
        with pytest.raises(ImportError, match=r"natten 0\.17\.5 is too old"):
            NeighborhoodAttention1D(24, 3, kernel_size=3, backend="natten")(tokens())
    finally:
        natten_module.natten_function.cache_clear()
