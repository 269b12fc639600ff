"""Layers of fixed patterns equal attention under a dense mask."""

import pytest
import torch
from nearwise_lab.nn.dense import MultiHeadAttention, SparseAttention
from nearwise_lab.nn.local import LocalAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

from lab.tests.reference.token_layers import masked_attention, neighborhood
from tests.nn.tokens.cases import tokens

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.mark.parametrize("n_tokens", [3, 8, 17, 20])
@pytest.mark.parametrize("window", [1, 4, 50])
@pytest.mark.parametrize("causal", [False, True])
def test_local_attention_sees_exactly_its_window(n_tokens, window, causal):
    layer = LocalAttention(24, 3, window_size=window, causal=causal, rotary=False)
    x = tokens(n_tokens=n_tokens)
    gap = torch.arange(n_tokens)[:, None] - torch.arange(n_tokens)
    allowed = (gap.abs() <= window) & ((gap >= 0) | (not causal))
    torch.testing.assert_close(layer(x), masked_attention(layer, x, allowed), **CLOSE)


def test_local_attention_without_an_exact_window_sees_three_windows():
    layer = LocalAttention(24, 3, window_size=4, exact_window=False, rotary=False)
    x, window = tokens(), torch.arange(17) // 4
    allowed = (window[:, None] - window).abs() <= 1
    torch.testing.assert_close(layer(x), masked_attention(layer, x, allowed), **CLOSE)


def test_zeros_fill_up_the_last_window_in_the_legacy_layout_alone():
    layer, x = LocalAttention(24, 3, window_size=4, rotary=False, legacy_layout=True), tokens()
    zeros = LocalAttention(24, 3, window_size=4, rotary=False)
    zeros.load_state_dict(layer.state_dict())
    padded = torch.nn.functional.pad(x, (0, 0, 0, 3))  # the projections have no bias
    torch.testing.assert_close(layer(x), zeros(padded)[:, :17], **CLOSE)
    assert (layer(x) - zeros(x))[:, 13:].abs().max() > 1e-3
    with pytest.raises(ValueError, match="supports no masks"):
        layer(x, torch.ones(17, 17, dtype=torch.bool))


def test_rotary_positions_depend_on_the_distance_alone():
    layer = LocalAttention(24, 3, window_size=4)
    x = tokens(1, n_tokens=40)
    moved = torch.cat([tokens(1, n_tokens=3, seed=5), x], dim=1)
    torch.testing.assert_close(layer(moved)[:, 3:][:, 4:], layer(x)[:, 4:], **CLOSE)


@pytest.mark.parametrize("kernel", [1, 3, 4, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_neighborhoods_on_a_line(kernel, stride, dilation, causal):
    sizes = {"kernel_size": kernel, "stride": min(stride, kernel), "dilation": dilation}
    layer = NeighborhoodAttention1D(24, 3, causal=causal, **sizes)
    x = tokens()
    allowed = neighborhood(17, kernel, min(stride, kernel), dilation, causal)
    torch.testing.assert_close(layer(x), masked_attention(layer, x, allowed), **CLOSE)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "causal"),
    [(3, 1, 1, False), ((3, 2), (2, 1), (1, 2), False), (3, 1, 1, (True, False)), (1, 1, 1, False)],
)
def test_neighborhoods_on_a_grid(kernel, stride, dilation, causal):
    layer = NeighborhoodAttention2D(
        24, 3, kernel_size=kernel, stride=stride, dilation=dilation, causal=causal, grid_size=(4, 5)
    )
    pairs = [
        size if isinstance(size, tuple) else (size, size)
        for size in (kernel, stride, dilation, causal)
    ]
    rows, columns = (neighborhood(n, *(p[axis] for p in pairs)) for axis, n in enumerate((4, 5)))
    allowed = rows[:, None, :, None] & columns[None, :, None, :]
    x = tokens(n_tokens=20)
    expected = masked_attention(layer, x, allowed.reshape(20, 20))
    torch.testing.assert_close(layer(x), expected, **CLOSE)
    grid = x.view(2, 4, 5, 24)
    torch.testing.assert_close(layer(grid), expected.view(2, 4, 5, 24), **CLOSE)


@pytest.mark.parametrize("context", [1, 2, 5, 40])
def test_sparse_attention(context):
    x, at = tokens(), torch.arange(17)
    gap = (at[:, None] - at).abs()
    for mode, allowed in (("local", gap <= context // 2), ("strided", gap % context == 0)):
        layer = SparseAttention(24, 3, mode=mode, context=context)
        torch.testing.assert_close(layer(x), masked_attention(layer, x, allowed), **CLOSE)


def test_attention_to_all():
    layer, x = MultiHeadAttention(24, 3, qk_norm=True, qkv_bias=True), tokens()
    everyone = torch.ones(17, 17, dtype=torch.bool)
    torch.testing.assert_close(layer(x), masked_attention(layer, x, everyone), **CLOSE)


@pytest.mark.parametrize("make", [NeighborhoodAttention1D, NeighborhoodAttention2D])
def test_prefix_tokens_and_masks_in_neighborhoods(make):
    layer = make(24, 3, kernel_size=3, num_prefix_tokens=2)
    x, allowed = tokens(n_tokens=18), torch.ones(18, 18, dtype=torch.bool)
    line, side = neighborhood(16, 3), neighborhood(4, 3)
    near = line if make is NeighborhoodAttention1D else torch.kron(side.int(), side.int()).bool()
    allowed[2:, 2:] = near  # the prefix attends to all, and all to it
    torch.testing.assert_close(layer(x), masked_attention(layer, x, allowed), **CLOSE)
    mask = torch.rand(18, 18) < 0.6
    mask |= torch.eye(18, dtype=torch.bool)
    expected = masked_attention(layer, x, allowed & mask)
    torch.testing.assert_close(layer(x, mask), expected, **CLOSE)
    added = torch.zeros(18, 18).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(layer(x, added), expected, **CLOSE)
    padding = torch.arange(18) == 7
    expected = masked_attention(layer, x, allowed & ~padding)
    found = layer(x, key_padding_mask=padding.expand(2, -1))
    torch.testing.assert_close(found, expected, **CLOSE)


def test_mistakes_are_named():
    grid_of_20 = NeighborhoodAttention2D(24, 3, kernel_size=[3, 1], grid_size=(4, 5))
    assert grid_of_20.kernel_size == (3, 1)
    wrong = [
        (lambda: SparseAttention(24, 3, mode="diagonal"), "mode='diagonal' is not one of"),
        (lambda: SparseAttention(24, 3, context=0), "context=0 must be positive"),
        (lambda: LocalAttention(24, 3, window_size=0), "window_size=0 must be positive"),
        (lambda: LocalAttention(27, 3), "even head_dim; got 9"),
        (
            lambda: NeighborhoodAttention1D(24, 3, kernel_size=2, stride=3),
            "stride=.* must be at most",
        ),
        (lambda: NeighborhoodAttention2D(24, 3, kernel_size=(3, 3, 3)), "must have 2 entries"),
        (
            lambda: NeighborhoodAttention2D(24, 3, kernel_size=[3, 0]),
            "kernel_size=0 must be an int",
        ),
        (lambda: NeighborhoodAttention1D(24, 3, kernel_size=3.0), "kernel_size=3.0 must be an int"),
        (lambda: NeighborhoodAttention1D(24, 3, num_prefix_tokens=-1), "num_prefix_tokens=-1 must"),
        (lambda: NeighborhoodAttention1D(24, 3, kernel_size=18)(tokens()), "there are 17 along"),
        (
            lambda: NeighborhoodAttention2D(24, 3, kernel_size=3)(tokens()),
            "do not fill a square grid",
        ),
        (lambda: grid_of_20(tokens()), "holds 20 tokens, but there are 17"),
        (lambda: SparseAttention(24, 3)(tokens(), candidates=torch.arange(3)), "Leave candidates"),
    ]
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
