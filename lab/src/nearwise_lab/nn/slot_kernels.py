"""Compiled CPU loops that add up the values in ranked slots, each slot with factors of its own."""

import numpy as np

from nearwise.functional.kernels import compiled, inlined_reordered


@inlined_reordered
def _undo_slot(  # type: ignore[no-untyped-def]
    grad_output, o, weight, kernel, k, value, v, grad_kernel, grad_value, width
):
    """Add the gradients of one slot and return that of its weight."""
    o, k, v, slope = np.uint64(o), np.uint64(k), np.uint64(v), weight * 0
    for c in range(np.uint64(width)):
        given, factor = grad_output[o + c], kernel[k + c]
        lost = given * value[v + c]
        slope += factor * lost
        grad_value[v + c] += weight * factor * given
        grad_kernel[k + c] += weight * lost
    return slope


@inlined_reordered
def _add_slot(weight, kernel, k, value, v, output, o, width):  # type: ignore[no-untyped-def]
    """Add one slot."""
    o, k, v = np.uint64(o), np.uint64(k), np.uint64(v)
    for c in range(np.uint64(width)):
        output[o + c] += weight * kernel[k + c] * value[v + c]


@compiled
def add_slots(value, first, indices, weights, kernel, output, start):  # type: ignore[no-untyped-def]
    """Add up one head: `indices` and `weights` (N, K), flat `kernel` (K, C).

    Row j of the flat `value` starts at ``first + j * C``, row i of `output` at ``start + i * C``.
    """
    n_queries, n_slots = indices.shape
    width = kernel.shape[0] // n_slots
    for i in range(n_queries):
        o = start + i * width
        output[o : o + width] = 0
        for s in range(n_slots):
            if indices[i, s] >= 0:
                v = first + indices[i, s] * width
                _add_slot(weights[i, s], kernel, s * width, value, v, output, o, width)


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
        o = start + i * width
        for s in range(n_slots):
            if indices[i, s] >= 0:
                k, v = s * width, first + indices[i, s] * width
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
