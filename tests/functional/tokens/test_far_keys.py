"""A key far from all others, or many: neighbors, outputs and gradients of others stay."""

import pytest
import torch

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from nearwise.functional.tokens.pairs import unit
from tests.functional.tokens.cases import IMPLEMENTATIONS, random_tokens

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
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
def test_autocast_measures_as_without(implementation):
    tokens, value = draw(offset=1e3)
    wanted = nearest(implementation, tokens, value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = nearest(implementation, tokens, value)
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


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
