"""Compiled CPU loops over a few rows of a long table: sums, products, additions.

Rows are named by where they start in a flat array: slicing one off would cost more than summing
it up, and heads that lie interleaved in memory need no copy.
"""

from nearwise.functional.kernels import inlined
from nearwise.functional.vectors import LANES, WIDE, add_product, load, load_wide, repeated, store
from nearwise.functional.vectors import total as total_of


@inlined
def weighted_sum(factors, rows, starts, n, output, start, width):  # type: ignore[no-untyped-def]
    """Write ``sum_s factors[s] * rows[starts[s] + c]`` over `n` rows of `width` numbers."""
    zero = 0.0
    c = 0
    while c + WIDE <= width:
        wide = repeated(zero, load_wide(output, start + c))
        for s in range(n):
            row = load_wide(rows, starts[s] + c)
            wide = add_product(wide, row, repeated(factors[s], row))
        store(wide, output, start + c)
        c += WIDE
    while c + LANES <= width:
        part = repeated(zero, load(output, start + c))
        for s in range(n):
            line = load(rows, starts[s] + c)
            part = add_product(part, line, repeated(factors[s], line))
        store(part, output, start + c)
        c += LANES
    while c < width:
        number = zero
        for s in range(n):
            number += factors[s] * rows[starts[s] + c]
        output[start + c] = number
        c += 1


@inlined
def products(row, start, rows, starts, n, width, out):  # type: ignore[no-untyped-def]
    """Write the dot products of one row with `n` others into `out`."""
    zero = 0.0
    for s in range(n):
        other = starts[s]
        number = zero
        c = 0
        if width >= WIDE:
            wide = repeated(zero, load_wide(row, start))
            while c + WIDE <= width:
                wide = add_product(wide, load_wide(row, start + c), load_wide(rows, other + c))
                c += WIDE
            number += total_of(wide)
        if c + LANES <= width:
            part = repeated(zero, load(row, start + c))
            while c + LANES <= width:
                part = add_product(part, load(row, start + c), load(rows, other + c))
                c += LANES
            number += total_of(part)
        while c < width:
            number += row[start + c] * rows[other + c]
            c += 1
        out[s] = number


@inlined
def add_row(factors, row, start, rows, starts, n, width):  # type: ignore[no-untyped-def]
    """Add ``factors[s]`` times one row to each of `n` others."""
    c = 0
    while c + WIDE <= width:
        wide = load_wide(row, start + c)
        for s in range(n):
            at = starts[s] + c
            more = add_product(load_wide(rows, at), wide, repeated(factors[s], wide))
            store(more, rows, at)
        c += WIDE
    while c + LANES <= width:
        part = load(row, start + c)
        for s in range(n):
            at = starts[s] + c
            store(add_product(load(rows, at), part, repeated(factors[s], part)), rows, at)
        c += LANES
    while c < width:
        for s in range(n):
            rows[starts[s] + c] += factors[s] * row[start + c]
        c += 1
