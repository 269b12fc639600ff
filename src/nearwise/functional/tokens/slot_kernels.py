"""Compiled CPU loops that add up the values in ranked slots, each slot with factors of its own."""

import numpy as np

from nearwise.functional.kernels import compiled, reordered


@reordered
def _add_slot(output, o, weight, kernel, k, value, v, width):  # type: ignore[no-untyped-def]
    for c in range(np.uint64(width)):
        output[o + c] += weight * kernel[k + c] * value[v + c]


@reordered
def _undo_slot(  # type: ignore[no-untyped-def]
    grad_output, o, weight, kernel, k, value, v, grad_kernel, grad_value, width
):
    """Add the gradients of one slot and return that of its weight."""
    total = weight * 0
    for c in range(np.uint64(width)):
        given = grad_output[o + c] * value[v + c]
        grad_value[v + c] += weight * kernel[k + c] * grad_output[o + c]
        grad_kernel[k + c] += weight * given
        total += kernel[k + c] * given
    return total


@compiled
def add_slots(value, first, indices, weights, kernel, output, start):  # type: ignore[no-untyped-def]
    """Add up one head: `indices` and `weights` (N, K), flat `kernel` (K, C).

    Row j of the flat `value` starts at ``first + j * C``, row i of `output` at ``start + i * C``.
    """
    n_queries, n_slots = indices.shape
    width = kernel.shape[0] // n_slots
    for i in range(n_queries):
        o = np.uint64(start + i * width)
        for c in range(np.uint64(width)):
            output[o + c] = 0
        for s in range(n_slots):
            j = indices[i, s]
            if j >= 0:
                v, k = np.uint64(first + j * width), np.uint64(s * width)
                _add_slot(output, o, weights[i, s], kernel, k, value, v, width)


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
    for i in range(n_queries):
        o = np.uint64(start + i * width)
        for s in range(n_slots):
            j = indices[i, s]
            if j >= 0:
                v, k = np.uint64(first + j * width), np.uint64(s * width)
                grad_weights[i, s] = _undo_slot(
                    grad_output,
                    o,
                    weights[i, s],
                    kernel,
                    k,
                    value,
                    v,
                    grad_kernel,
                    grad_value,
                    width,
                )
