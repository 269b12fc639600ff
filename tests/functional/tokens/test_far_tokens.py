"""Distances and angles keep their digits: far from the origin, beside far keys, in halves."""

import pytest
import torch
import torch.nn.functional as F

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from nearwise.functional.tokens.pairs import unit
from tests.functional.tokens.cases import (
    IMPLEMENTATIONS,
    METRICS,
    TOLERANCE,
    expected,
    lattice_tokens,
    random_tokens,
)

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def far(tokens, offset, dtype=torch.float32):
    """Move queries and keys, not values, in all channels but one."""
    query, key, value = tokens
    shift = torch.full((query.shape[-1],), float(offset), dtype=torch.float64)
    shift[0] = -1.0
    return [(x.double() + shift).to(dtype) for x in (query, key)] + [value.to(dtype)]


def assert_as_the_loop(implementation, tokens, close, n_neighbors=4, **options):
    with attention_implementation(implementation):
        found = attend(*tokens, n_neighbors, metric="euclidean", **options)
    output, indices, weights = expected(*tokens, n_neighbors, metric="euclidean", **options)
    assert torch.equal(found.indices.long(), indices)
    torch.testing.assert_close(found.weights.double(), weights, atol=close, rtol=close)
    torch.testing.assert_close(found.output.double(), output, atol=close, rtol=close)


@each_implementation
@pytest.mark.parametrize("offset", [0, 100, 1000, 10_000])
def test_tokens_far_from_the_origin_have_the_neighbors_of_a_loop(implementation, offset):
    tokens = far(random_tokens((1, 2, 20, 16), n_keys=30), offset)
    assert_as_the_loop(implementation, tokens, TOLERANCE[torch.float32])
    ties = far(lattice_tokens((1, 2, 30, 4)), offset)  # which go to the lowest index
    # The square of the distance of a token to itself is rounded, and its root more.
    assert_as_the_loop(implementation, ties, 1e-3, n_neighbors=9)


@each_implementation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_widened_before_it_is_moved(implementation, dtype):
    tokens = far(random_tokens((1, 2, 20, 16), n_keys=30), 20, dtype)
    assert_as_the_loop(implementation, tokens, TOLERANCE[dtype])


@each_implementation
@pytest.mark.parametrize("rubbish", [0.0, torch.nan])
def test_padding_moves_no_origin(implementation, rubbish):
    tokens = far(random_tokens((2, 2, 20, 16), n_keys=30), 1000)
    padding = torch.arange(30) >= torch.tensor([[8], [30]])
    tokens[1].masked_fill_(padding[:, None, :, None], rubbish)
    options = {"key_padding_mask": padding}
    assert_as_the_loop(implementation, tokens, TOLERANCE[torch.float32], **options)


@each_implementation
def test_masks_and_gradients_are_those_near_the_origin(implementation):
    near = random_tokens((1, 2, 12, 5))
    mask = random_tokens((2, 12, 12), seed=5)[0].masked_fill(torch.eye(12).bool(), -torch.inf)
    grads = []
    for tokens in (near, far(near, 1000, torch.float64)):
        inputs = [x.requires_grad_() for x in tokens]
        with attention_implementation(implementation):
            found = attend(*inputs, 3, metric="euclidean", attn_mask=mask, include_self="always")
        found.output.square().sum().backward()
        grads.append([found.indices, *(x.grad for x in inputs)])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


@each_implementation
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_angles_of_half_precision_are_those_of_single(implementation, dtype):
    query, key, value = random_tokens((1, 2, 40, 16), n_keys=60, dtype=dtype)
    key[0, 0, 3] = 0.0  # of no direction
    wide = [
        F.normalize(x.double(), dim=-1) @ F.normalize(key.double(), dim=-1).mT for x in (query,)
    ]
    scores, order = wide[0].sort(dim=-1, descending=True, stable=True)
    with attention_implementation(implementation):
        found = attend(query, key, value, 60, metric="cosine", scale=10.0)
    assert (found.indices[..., :5].long() == order[..., :5]).float().mean() > 0.99
    weights = torch.softmax(10 * scores, -1)
    assert found.weights.dtype == found.output.dtype == dtype
    # A rounding of the weights alone, none of the unit vectors.
    rounding = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    torch.testing.assert_close(found.weights.double(), weights, atol=1e-7, rtol=1.1 * rounding)


# A key far from all others, or many: neighbors, outputs and gradients of others stay.

N, WIDTH, K = 200, 16, 5
SIZES = [10.0**power for power in range(2, 20)]
LAST = torch.arange(N) == N - 1
# Ways to leave out the last key; in the last one tokens before it may not look ahead.
MASKS = {
    "boolean": {"attn_mask": ~LAST.expand(N, N)},
    "floating": {"attn_mask": torch.randn(N, N).masked_fill(LAST, -torch.inf)},
    "padding": {"key_padding_mask": LAST[None]},
    "no candidate": {"candidates": torch.arange(N - 1)},
    "future": {"is_causal": True},
}
RUBBISH = [1e4, 1e6, -1e19, 1e30, torch.nan, torch.inf, -torch.inf]


def draw(dtype=torch.float32, offset=0.0):
    """Tokens that are their own keys, and values."""
    tokens, _, value = random_tokens((1, 2, N, WIDTH), value_width=8, dtype=dtype)
    return (tokens.double() + offset).to(dtype), value


def nearest(implementation, tokens, value, **options):
    with attention_implementation(implementation):
        return attend(tokens, tokens, value, K, metric="euclidean", **options)


def assert_exact(found, tokens):
    """Compare neighbors with distances in float64; what rounds to the same may change places."""
    direct = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(tokens.double(), tokens.double(), compute_mode=direct)
    wanted = apart.sort(-1).values[..., :K]
    close = 1e-12 if tokens.dtype == torch.float64 else 5e-7
    measured = apart.gather(-1, found.indices.long())
    torch.testing.assert_close(measured, wanted, atol=0, rtol=close)


@each_implementation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", SIZES)
def test_one_far_key_leaves_all_others_their_neighbors(implementation, size, dtype):
    tokens, value = draw(dtype)
    tokens[..., -1, :] = min(size, torch.finfo(dtype).max)
    tokens.requires_grad_()
    found = nearest(implementation, tokens, value)
    assert_exact(found, tokens)
    found.output.float().square().sum().backward()
    assert tokens.grad.isfinite().all()


@each_implementation
@pytest.mark.parametrize("offset", [1e3, 1e4, 1e6])
def test_some_far_keys_and_groups_far_apart_beside_an_origin_far_away(implementation, offset):
    tokens, value = draw(offset=offset)
    tokens[..., :3, :] *= torch.tensor([1e3, -1e7, 1e12])[:, None]
    tokens[..., 50:150, :] += 100 * offset
    assert_exact(nearest(implementation, tokens, value), tokens)


@each_implementation
@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_a_key_that_is_left_out_changes_nothing(implementation, offset, mask, rubbish):
    results = []
    for last in (0.0, rubbish):
        query, value = draw(offset=offset)
        key = query.clone()
        key[..., -1, :] = last
        inputs = [x.requires_grad_() for x in (query, key, value)]
        with attention_implementation(implementation):
            found = attend(*inputs, K, metric="euclidean", **mask)
        found.output[..., :-1, :].square().sum().backward()
        results.append([x[..., :-1, :] for x in (*found, *(x.grad for x in inputs))])
    if "is_causal" in mask and rubbish != rubbish:  # the last token itself attends to NaN
        results = [parts[:3] for parts in results]
    for without, beside in zip(*results, strict=True):
        assert torch.equal(without, beside)


@each_implementation
def test_many_masked_keys_that_overflow_leave_the_others_finite(implementation):
    tokens, value = draw()
    tokens[..., 100:, :] = 1e20
    allowed = torch.arange(N) < 100
    found = nearest(implementation, tokens, value, attn_mask=allowed)
    assert_exact(
        nearest(implementation, tokens[..., :100, :], value[..., :100, :]), tokens[..., :100, :]
    )
    assert found.output[..., :100, :].isfinite().all()
    assert (found.indices < 100).all()


@each_implementation
@pytest.mark.parametrize("size", [1e-30, 1e-19, 1.0, 1e18])
def test_distances_of_any_size_order_keys(implementation, size):
    tokens, value = draw()
    tokens = tokens * size
    assert_exact(nearest(implementation, tokens, value), tokens)


@each_implementation
@pytest.mark.parametrize("metric", METRICS)
def test_autocast_rounds_no_scores(implementation, metric):
    tokens, value = draw(offset=1e3)
    with attention_implementation(implementation):
        wanted = attend(tokens, tokens, value, K, metric=metric)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attend(tokens, tokens, value, K, metric=metric)
    assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_products_find_the_same(precision):
    tokens, value = draw(offset=30.0)
    wanted = nearest("cpu", tokens, value)
    torch.set_float32_matmul_precision(precision)
    try:
        found = nearest("cpu", tokens, value)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.equal(found.indices, wanted.indices)


@pytest.mark.parametrize("size", [3e38, 3e19, 1e-19, 1e-30, 1e-38])
def test_unit_vectors_of_any_size_have_length_1(size):
    x = torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    x[0, 0] = 0.0
    wanted = torch.nn.functional.normalize(x.double(), dim=-1)
    given = (x * size).requires_grad_()
    torch.testing.assert_close(unit(given).double(), wanted, atol=1e-6, rtol=0)
    unit(given)[0, 1:].square().sum().backward()
    assert given.grad.isfinite().all()


@each_implementation
@pytest.mark.parametrize("size", [3e19, 1e-30])
def test_angles_do_not_depend_on_the_size_of_tokens(implementation, size):
    tokens, value = draw()
    with attention_implementation(implementation):
        wanted = attend(tokens, tokens, value, K, metric="cosine")
        found = attend(tokens * size, tokens * size, value, K, metric="cosine")
    assert torch.equal(found.indices, wanted.indices)
    torch.testing.assert_close(found.output, wanted.output, atol=1e-5, rtol=0)
