"""Compiled CPU loops of token k-NN attention, backward."""

import math

import numpy as np

from nearwise.functional.kernels import compiled, inlined, inlined_reordered
from nearwise.functional.tokens.kernels.rows import add_row, products, weighted_sum


@inlined_reordered
def _pull_together(  # type: ignore[no-untyped-def]
    slope, query, q, key, k, grad_query, grad_q, grad_key, grad_k, width
):
    """Add the gradient of minus the distance, times `slope`; 0 for equal vectors."""
    q, k, grad_q, grad_k = np.uint64(q), np.uint64(k), np.uint64(grad_q), np.uint64(grad_k)
    total, width = 0.0, np.uint64(width)  # in float64: squares of small gaps vanish in float32
    for c in range(width):
        gap = query[q + c] - key[k + c]
        total += gap * gap
    if total != 0:
        factor = slope / math.sqrt(total)
        for c in range(width):
            pull = factor * (query[q + c] - key[k + c])
            grad_query[grad_q + c] -= pull
            grad_key[grad_k + c] += pull


@inlined
def _slopes(weights, keep, is_dropping, from_weights, slot, slopes, n):  # type: ignore[no-untyped-def]
    """Turn gradients of the weights of `n` slots, from `slot` on, into those of their scores."""
    mean = 0.0
    for s in range(n):
        if is_dropping:
            slopes[s] *= keep[slot + s]
        slopes[s] += from_weights[slot + s]
        mean += weights[slot + s] * slopes[s]
    for s in range(n):
        slopes[s] = weights[slot + s] * (slopes[s] - mean)


@inlined
def _first_of(steps, b, h):  # type: ignore[no-untyped-def]
    return steps[0] * b + steps[1] * h


@compiled
def backward_rows(  # type: ignore[no-untyped-def]
    heads,
    query,
    key,
    value,
    grad_output,
    indices,
    weights,
    keep,
    grad_weights,
    scale,
    euclidean,
    grad_query,
    grad_key,
    grad_value,
    grad_scores,
    n_slots,
    starts,
    numbers,
):
    """Add up the gradients of the heads ``heads[0] .. heads[1]`` of all batch items.

    Tensors (B, H, N, D) are passed as flat numbers, strides and shape, tensors (B, H, N, K) as flat
    numbers; `keep` may be empty. `grad_key`, `grad_value` and `grad_scores` are initially 0;
    `grad_scores` gets the gradient of every selected score. `starts` (4, K) and `numbers` (2, K)
    are workspace.
    """
    q_rows, q_steps, (_, n_heads, n_queries, width) = query
    k_rows, k_steps, _ = key
    v_rows, v_steps, v_shape = value
    o_rows, o_steps, _ = grad_output
    gq_rows, gq_steps, _ = grad_query
    gk_rows, gk_steps, _ = grad_key
    gv_rows, gv_steps, _ = grad_value
    keys, values, grad_keys, grad_values = starts[0], starts[1], starts[2], starts[3]
    slopes, factors, is_dropping = numbers[0], numbers[1], len(keep) > 0
    for head in range(heads[0], heads[1]):
        b, h = head // n_heads, head % n_heads
        k, gk = _first_of(k_steps, b, h), _first_of(gk_steps, b, h)
        v, gv = _first_of(v_steps, b, h), _first_of(gv_steps, b, h)
        for i in range(n_queries):
            slot = (head * n_queries + i) * n_slots
            n = 0
            while n < n_slots and indices[slot + n] >= 0:
                j = np.int64(indices[slot + n])
                keys[n], values[n] = k + j * k_steps[2], v + j * v_steps[2]
                grad_keys[n], grad_values[n] = gk + j * gk_steps[2], gv + j * gv_steps[2]
                factors[n] = weights[slot + n]
                if is_dropping:
                    factors[n] *= keep[slot + n]
                n += 1
            o = _first_of(o_steps, b, h) + i * o_steps[2]
            products(o_rows, o, v_rows, values, n, v_shape[3], slopes)
            add_row(factors, o_rows, o, gv_rows, grad_values, n, v_shape[3])
            _slopes(weights, keep, is_dropping, grad_weights, slot, slopes, n)
            for s in range(n):
                grad_scores[slot + s] = slopes[s]
                slopes[s] *= scale
            q = _first_of(q_steps, b, h) + i * q_steps[2]
            gq = _first_of(gq_steps, b, h) + i * gq_steps[2]
            if euclidean:
                for c in range(np.uint64(width)):
                    gq_rows[np.uint64(gq) + c] = 0
                for s in range(n):
                    k_at, gk_at = keys[s], grad_keys[s]
                    _pull_together(
                        slopes[s], q_rows, q, k_rows, k_at, gq_rows, gq, gk_rows, gk_at, width
                    )
            else:
                weighted_sum(slopes, k_rows, keys, n, gq_rows, gq, width)
                add_row(slopes, q_rows, q, gk_rows, grad_keys, n, width)
