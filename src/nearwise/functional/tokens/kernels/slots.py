"""Compiled CPU loops that add up the values in ranked slots, each slot with factors of its own."""

import numpy as np

from nearwise.functional.kernels import compiled, inlined
from nearwise.functional.vectors import (
    LANES,
    add_product,
    address,
    load,
    product,
    repeated,
    store,
    total,
)


@inlined
def _add_up(value, starts, weights, slots, n, kernel, width, output, o):  # type: ignore[no-untyped-def]
    """Write the sum of `n` slots."""
    c = 0
    while c + LANES <= width:
        part = repeated(0.0, load(output, o + c))
        for s in range(n):
            factors = product(load(kernel, slots[s] * width + c), repeated(weights[s], part))
            part = add_product(part, factors, load(value, starts[s] + c))
        store(part, output, o + c)
        c += LANES
    while c < width:
        number = 0.0
        for s in range(n):
            number += weights[s] * kernel[slots[s] * width + c] * value[starts[s] + c]
        output[o + c] = number
        c += 1


@inlined
def _undo_slot(  # type: ignore[no-untyped-def]
    grad_output, o, weight, kernel, k, value, v, grad_kernel, grad_value, width
):
    """Add the gradients of one slot and return that of its weight."""
    slope, c = 0.0, 0
    if width >= LANES:
        weighed = repeated(weight, load(value, v))
        slopes = repeated(0.0, weighed)
        while c + LANES <= width:
            given, factors = load(grad_output, o + c), load(kernel, k + c)
            lost = product(given, load(value, v + c))
            slopes = add_product(slopes, factors, lost)
            more = add_product(load(grad_value, v + c), product(weighed, factors), given)
            store(more, grad_value, v + c)
            store(add_product(load(grad_kernel, k + c), weighed, lost), grad_kernel, k + c)
            c += LANES
        slope += total(slopes)
    while c < width:
        given = grad_output[o + c] * value[v + c]
        grad_value[v + c] += weight * kernel[k + c] * grad_output[o + c]
        grad_kernel[k + c] += weight * given
        slope += kernel[k + c] * given
        c += 1
    return slope


@compiled
def _add(value, first, indices, weights, kernel, output, start, starts, slots, factors):  # type: ignore[no-untyped-def]
    """`add_slots` with room to work in."""
    n_queries, n_slots = indices.shape
    width = kernel.shape[0] // n_slots
    rows, kernels, sums = address(value), address(kernel), address(output)
    starts, slots, factors = address(starts), address(slots), address(factors)
    for i in range(n_queries):
        n = 0
        for s in range(n_slots):
            if indices[i, s] >= 0:
                starts[n] = first + indices[i, s] * width
                slots[n], factors[n] = s, weights[i, s]
                n += 1
        _add_up(rows, starts, factors, slots, n, kernels, width, sums, start + i * width)


@compiled
def add_slots(value, first, indices, weights, kernel, output, start):  # type: ignore[no-untyped-def]
    """Add up one head: `indices` and `weights` (N, K), flat `kernel` (K, C).

    Row j of the flat `value` starts at ``first + j * C``, row i of `output` at ``start + i * C``.
    """
    n_slots = indices.shape[1]
    room = np.empty(n_slots, np.int64), np.empty(n_slots, np.int64)
    factors = np.empty(n_slots, weights.dtype)
    _add(value, first, indices, weights, kernel, output, start, room[0], room[1], factors)


@compiled
def undo_slots(  # type: ignore[no-untyped-def]
    value,
    first,
    indices,
    weights,
    kernel,
    grad_output,
    start,
    grad_value,
    grad_weights,
    grad_kernel,
):
    """Add up the gradients of one head; those of value and kernel start at 0."""
    n_queries, n_slots = indices.shape
    width = kernel.shape[0] // n_slots
    rows, kernels, given = address(value), address(kernel), address(grad_output)
    grad_rows, grad_kernels = address(grad_value), address(grad_kernel)
    for i in range(n_queries):
        o = start + i * width
        for s in range(n_slots):
            if indices[i, s] >= 0:
                v = first + indices[i, s] * width
                grad_weights[i, s] = _undo_slot(
                    given,
                    o,
                    weights[i, s],
                    kernels,
                    s * width,
                    rows,
                    v,
                    grad_kernels,
                    grad_rows,
                    width,
                )
