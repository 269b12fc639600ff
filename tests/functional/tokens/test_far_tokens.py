"""Distances and angles keep their digits: far from the origin, and in half precision."""

import pytest
import torch
import torch.nn.functional as F

from nearwise.functional import attention_implementation
from nearwise.functional.tokens import attend
from tests.functional.tokens.cases import (
    IMPLEMENTATIONS,
    TOLERANCE,
    expected,
    lattice_tokens,
    random_tokens,
)

each_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
each_offset = pytest.mark.parametrize("offset", [0, 100, 1000, 10_000])


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
@each_offset
def test_tokens_far_from_the_origin_have_the_neighbors_of_a_loop(implementation, offset):
    tokens = far(random_tokens((1, 2, 20, 16), n_keys=30), offset)
    assert_as_the_loop(implementation, tokens, TOLERANCE[torch.float32])


@each_implementation
@each_offset
def test_ties_far_from_the_origin_go_to_the_lowest_index(implementation, offset):
    tokens = far(lattice_tokens((1, 2, 30, 4)), offset)
    # The square of the distance of a token to itself is rounded, and its root more.
    assert_as_the_loop(implementation, tokens, 1e-3, n_neighbors=9)


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


@each_implementation
def test_autocast_rounds_no_scores(implementation):
    tokens = random_tokens((1, 2, 40, 16), n_keys=60, dtype=torch.float32)
    with attention_implementation(implementation):
        expected = attend(*tokens, 5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = attend(*tokens, 5)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
