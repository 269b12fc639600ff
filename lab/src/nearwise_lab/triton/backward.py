"""Triton kernel of the backward pass of k-NN attention over tokens.

A program takes one query through its slots: to the gradients of its scores and of itself, and adds
to those of the keys and values that it selected. What several queries add to one key comes in no
fixed order: its last digits may differ from run to run.
"""

import triton
import triton.language as tl

from nearwise_lab.triton.forward import load_rows


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    value, indices, weights, grad_weights, sent, slots, real, VALUE_WIDTH: tl.constexpr
):
    """Positions, weights, and gradients of the weights, of some slots of a query."""
    at = tl.load(indices + slots, mask=real, other=-1)
    weight = tl.load(weights + slots, mask=real, other=0.0).to(tl.float32)
    values = load_rows(value, at, at >= 0, VALUE_WIDTH, sent.shape[1]).to(tl.float32)
    slope = tl.load(grad_weights + slots, mask=real, other=0.0).to(tl.float32)
    return at, weight, slope + tl.sum(values * sent, axis=1)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    query, key, value, indices, weights, grad_output, grad_weights,
    grad_query, grad_key, grad_value, grad_scores, n_queries, n_keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, N_SLOTS: tl.constexpr, SQUARED: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one query and its scores, add to those of its keys and values.

    All lies in one piece, heads before tokens. `grad_key` and `grad_value` are float32, and 0 at
    first.
    """
    program = tl.program_id(0).to(tl.int64)  # counts queries of all heads
    one = tl.zeros((1,), tl.int64) + program
    head = program // n_queries * n_keys
    key, grad_key = key + head * WIDTH, grad_key + head * WIDTH
    value, grad_value = value + head * VALUE_WIDTH, grad_value + head * VALUE_WIDTH
    q = load_rows(query, one, one >= 0, WIDTH, BLOCK_D).to(tl.float32)
    sent = load_rows(grad_output, one, one >= 0, VALUE_WIDTH, BLOCK_V).to(tl.float32)
    d = tl.arange(0, BLOCK_D)[None, :]
    v = tl.arange(0, BLOCK_V)[None, :]

    mean = tl.sum(tl.zeros((BLOCK_K,), tl.float32), axis=0)
    for first in range(0, N_SLOTS, BLOCK_K):
        slot = first + tl.arange(0, BLOCK_K)
        slots, real = program * N_SLOTS + slot, slot < N_SLOTS
        at, weight, slope = _slopes(
            value, indices, weights, grad_weights, sent, slots, real, VALUE_WIDTH
        )
        mean += tl.sum(weight * slope, axis=0)

    from_keys = tl.zeros((1, BLOCK_D), tl.float32)
    for first in range(0, N_SLOTS, BLOCK_K):
        slot = first + tl.arange(0, BLOCK_K)
        slots, real = program * N_SLOTS + slot, slot < N_SLOTS
        at, weight, slope = _slopes(
            value, indices, weights, grad_weights, sent, slots, real, VALUE_WIDTH
        )
        of_score = weight * (slope - mean)
        tl.store(grad_scores + slots, of_score.to(grad_scores.dtype.element_ty), mask=real)
        pull = of_score * scale
        k = load_rows(key, at, at >= 0, WIDTH, BLOCK_D).to(tl.float32)
        if SQUARED:
            gap = q - k
            square = tl.sum(gap * gap, axis=1)
            # The root has no slope at 0: there the gradient is 0.
            root = tl.sqrt(tl.where(square == 0.0, 1.0, square))
            to_keys = tl.where(square == 0.0, 0.0, pull / root)[:, None] * gap
            from_keys -= tl.sum(to_keys, axis=0)[None, :]
        else:
            to_keys = pull[:, None] * q
            from_keys += tl.sum(pull[:, None] * k, axis=0)[None, :]
        rows, held = at.to(tl.int64)[:, None], (at >= 0)[:, None]
        tl.atomic_add(grad_key + rows * WIDTH + d, to_keys, mask=held & (d < WIDTH))
        tl.atomic_add(
            grad_value + rows * VALUE_WIDTH + v,
            weight[:, None] * sent,
            mask=held & (v < VALUE_WIDTH),
        )
    tl.store(
        grad_query + program * WIDTH + d,
        from_keys.to(grad_query.dtype.element_ty),
        mask=d < WIDTH,
    )
