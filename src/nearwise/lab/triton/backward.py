"""Triton kernels of the backward pass of k-NN attention over tokens.

One program a query follows its slots to the gradients of its scores and of itself; then one program
a key adds up what the queries that selected it send back. Nobody adds to what another one writes:
the gradients are the same in every run, and need no memory in single precision.
"""

import triton
import triton.language as tl


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    tokens, at, real, step, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Load some rows in single precision, as (rows, BLOCK)."""
    d = tl.arange(0, BLOCK)
    inside = real[:, None] & (d < WIDTH)[None, :]
    rows = tl.load(tokens + at.to(tl.int64)[:, None] * step + d[None, :], mask=inside, other=0.0)
    return rows.to(tl.float32)


@triton.jit
def _slopes(  # type: ignore[no-untyped-def]
    value,
    keep,
    indices,
    weights,
    grad_weights,
    grad_output,
    slots,
    real,
    value_n,
    VALUE_WIDTH: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Positions, weights, and gradients of the weights, of some slots of a query."""
    at = tl.load(indices + slots, mask=real, other=-1)
    weight = tl.load(weights + slots, mask=real, other=0.0).to(tl.float32)
    rows = _rows(value, at, at >= 0, value_n, VALUE_WIDTH, BLOCK_V)
    slope = tl.sum(rows * grad_output[None, :], axis=1)
    if HAS_KEEP:
        slope = slope * tl.load(keep + slots, mask=real, other=0.0).to(tl.float32)
    slope += tl.load(grad_weights + slots, mask=real, other=0.0).to(tl.float32)
    return at, weight, slope


@triton.jit
def query_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    grad_output,
    keep,
    indices,
    weights,
    grad_weights,
    grad_query,
    grad_scores,
    pulls,
    query_b,
    query_h,
    query_n,
    key_b,
    key_h,
    key_n,
    value_b,
    value_h,
    value_n,
    output_b,
    output_h,
    output_n,
    grad_b,
    grad_h,
    grad_n,
    n_heads,
    n_queries,
    scale,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    N_SLOTS: tl.constexpr,
    SQUARED: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Write the gradient of one query, of its scores, and the `pulls` between it and its keys.

    A pull is what a key's gradient takes of the query (for distances: of the difference).
    """
    program = tl.program_id(0) // n_queries
    n = (tl.program_id(0) % n_queries).to(tl.int64)
    item = (program // n_heads).to(tl.int64)
    head = (program % n_heads).to(tl.int64)
    key += item * key_b + head * key_h
    value += item * value_b + head * value_h
    d = tl.arange(0, BLOCK_D)
    v = tl.arange(0, BLOCK_V)
    start = tl.program_id(0).to(tl.int64) * N_SLOTS
    sent = tl.load(
        grad_output + item * output_b + head * output_h + n * output_n + v,
        mask=v < VALUE_WIDTH,
        other=0.0,
    ).to(tl.float32)
    q = tl.load(
        query + item * query_b + head * query_h + n * query_n + d, mask=d < WIDTH, other=0.0
    ).to(tl.float32)

    mean = tl.sum(tl.zeros((BLOCK_K,), tl.float32), axis=0)
    if N_SLOTS > BLOCK_K:
        for first in range(0, N_SLOTS, BLOCK_K):
            slot = first + tl.arange(0, BLOCK_K)
            at, weight, slope = _slopes(
                value,
                keep,
                indices,
                weights,
                grad_weights,
                sent,
                start + slot,
                slot < N_SLOTS,
                value_n,
                VALUE_WIDTH,
                HAS_KEEP,
                BLOCK_V,
            )
            mean += tl.sum(weight * slope, axis=0)
    total = tl.zeros((BLOCK_D,), tl.float32)
    for first in range(0, N_SLOTS, BLOCK_K):
        slot = first + tl.arange(0, BLOCK_K)
        real = slot < N_SLOTS
        at, weight, slope = _slopes(
            value,
            keep,
            indices,
            weights,
            grad_weights,
            sent,
            start + slot,
            real,
            value_n,
            VALUE_WIDTH,
            HAS_KEEP,
            BLOCK_V,
        )
        if N_SLOTS <= BLOCK_K:
            mean = tl.sum(weight * slope, axis=0)
        slope = weight * (slope - mean)
        keys = _rows(key, at, at >= 0, key_n, WIDTH, BLOCK_D)
        if SQUARED:
            gap = q[None, :] - keys
            square = tl.sum(gap * gap, axis=1)
            # The root has no slope at 0: there the gradient is 0.
            root = tl.sqrt(tl.where(square == 0.0, 1.0, square))
            pull = tl.where(square == 0.0, 0.0, slope * scale / root)
            total -= tl.sum(pull[:, None] * gap, axis=0)
        else:
            pull = slope * scale
            total += tl.sum(pull[:, None] * keys, axis=0)
        tl.store(grad_scores + start + slot, slope.to(grad_scores.dtype.element_ty), mask=real)
        tl.store(pulls + start + slot, pull, mask=real)
    tl.store(
        grad_query + item * grad_b + head * grad_h + n * grad_n + d,
        total.to(grad_query.dtype.element_ty),
        mask=d < WIDTH,
    )


@triton.jit
def key_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    grad_output,
    keep,
    weights,
    pulls,
    order,
    bounds,
    grad_key,
    grad_value,
    query_b,
    query_h,
    query_n,
    key_b,
    key_h,
    key_n,
    output_b,
    output_h,
    output_n,
    grad_key_b,
    grad_key_h,
    grad_key_n,
    grad_value_b,
    grad_value_h,
    grad_value_n,
    n_heads,
    n_queries,
    n_keys,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    N_SLOTS: tl.constexpr,
    SQUARED: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Write the gradients of one key and its value.

    The slots that hold it are ``order[bounds[p]:bounds[p + 1]]``, p counting keys of all heads.
    """
    program = tl.program_id(0) // n_keys
    m = (tl.program_id(0) % n_keys).to(tl.int64)
    item = (program // n_heads).to(tl.int64)
    head = (program % n_heads).to(tl.int64)
    query += item * query_b + head * query_h
    grad_output += item * output_b + head * output_h
    d = tl.arange(0, BLOCK_D)
    v = tl.arange(0, BLOCK_V)
    from_keys = tl.zeros((BLOCK_D,), tl.float32)
    from_values = tl.zeros((BLOCK_V,), tl.float32)
    pulled = tl.sum(tl.zeros((BLOCK_K,), tl.float32), axis=0)
    first = tl.load(bounds + tl.program_id(0))
    end = tl.load(bounds + tl.program_id(0) + 1)
    while first < end:
        at = first + tl.arange(0, BLOCK_K)
        real = at < end
        slots = tl.load(order + at, mask=real, other=0)
        row = slots // N_SLOTS - program.to(tl.int64) * n_queries
        weight = tl.load(weights + slots, mask=real, other=0.0).to(tl.float32)
        if HAS_KEEP:
            weight = weight * tl.load(keep + slots, mask=real, other=0.0).to(tl.float32)
        pull = tl.load(pulls + slots, mask=real, other=0.0)
        queries = _rows(query, row, real, query_n, WIDTH, BLOCK_D)
        sent = _rows(grad_output, row, real, output_n, VALUE_WIDTH, BLOCK_V)
        from_keys += tl.sum(pull[:, None] * queries, axis=0)
        from_values += tl.sum(weight[:, None] * sent, axis=0)
        pulled += tl.sum(pull, axis=0)
        first += BLOCK_K
    if SQUARED:
        own = key + item * key_b + head * key_h + m * key_n + d
        from_keys -= pulled * tl.load(own, mask=d < WIDTH, other=0.0).to(tl.float32)
    tl.store(
        grad_key + item * grad_key_b + head * grad_key_h + m * grad_key_n + d,
        from_keys.to(grad_key.dtype.element_ty),
        mask=d < WIDTH,
    )
    tl.store(
        grad_value + item * grad_value_b + head * grad_value_h + m * grad_value_n + v,
        from_values.to(grad_value.dtype.element_ty),
        mask=v < VALUE_WIDTH,
    )
