"""Triton kernel of the forward pass of k-NN attention over tokens.

A program takes a tile of queries through all keys, tile by tile. The best keys so far stay in
registers, in no order; a new key takes the place of the worst of them. Most tiles hold no key that
is better than the worst kept one: they cost a product and a comparison. Scores never reach memory.
"""

import triton
import triton.language as tl

_NONE = tl.constexpr(-float("inf"))
_NAN = tl.constexpr(float("inf"))  # a score that is not a number is taken first, as torch sorts
_FAR = tl.constexpr(2**30)  # positions from here on mean "empty"


@triton.jit
def _pair_scores(  # type: ignore[no-untyped-def]
    query,
    key,
    row,
    at,
    there,
    query_n,
    key_n,
    scale,
    WIDTH: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SQUARED: tl.constexpr,
):
    """Score of each query (BLOCK_M) with one key of its own, at position `at`."""
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(0, WIDTH, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        real = there[:, None] & (d < WIDTH)[None, :]
        q = tl.load(query + row.to(tl.int64)[:, None] * query_n + d[None, :], mask=real, other=0.0)
        k = tl.load(key + at.to(tl.int64)[:, None] * key_n + d[None, :], mask=real, other=0.0)
        q = q.to(tl.float32)
        k = k.to(tl.float32)
        if SQUARED:
            total += tl.sum((q - k) * (q - k), axis=1)
        else:
            total += tl.sum(q * k, axis=1)
    if SQUARED:
        total = -tl.sqrt(total)
    return total * scale


@triton.jit
def _load_rows(  # type: ignore[no-untyped-def]
    tokens, at, real, step, start, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Columns ``start .. start + BLOCK_D`` of some rows, as (rows, BLOCK_D)."""
    d = start + tl.arange(0, BLOCK_D)
    inside = real[:, None] & (d < WIDTH)[None, :]
    return tl.load(tokens + at.to(tl.int64)[:, None] * step + d[None, :], mask=inside, other=0.0)


@triton.jit
def _load_columns(  # type: ignore[no-untyped-def]
    tokens, at, real, step, start, WIDTH: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Columns ``start .. start + BLOCK_D`` of some rows, turned: (BLOCK_D, rows)."""
    d = start + tl.arange(0, BLOCK_D)
    inside = real[None, :] & (d < WIDTH)[:, None]
    return tl.load(tokens + at.to(tl.int64)[None, :] * step + d[:, None], mask=inside, other=0.0)


@triton.jit
def _multiply(q, k, scores, WIDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the products of (BLOCK_M, BLOCK_D) and (BLOCK_D, BLOCK_N) to the scores."""
    if WIDEN:  # the interpreter cannot multiply bfloat16
        q = q.to(tl.float32)
        k = k.to(tl.float32)
    return tl.dot(q, k, scores, input_precision="ieee")


@triton.jit
def _take(scores, at, kept, places, worst, worst_place):  # type: ignore[no-untyped-def]
    """Let the keys of a tile of scores (BLOCK_M, BLOCK_N) take the places of worse ones.

    Every step takes the best key left in each row; the steps end when no row has a better one
    than its worst. An equal one is not better: keys come in the order of their positions.
    """
    best = tl.max(scores, axis=1)
    hungry = tl.max((best > worst).to(tl.int32), axis=0)
    while hungry > 0:
        position = tl.min(tl.where(scores == best[:, None], at[None, :], _FAR), axis=1)
        leaves = (best > worst)[:, None] & (places == worst_place[:, None])
        kept = tl.where(leaves, best[:, None], kept)
        places = tl.where(leaves, position[:, None], places)
        worst = tl.min(kept, axis=1)
        worst_place = tl.max(tl.where(kept == worst[:, None], places, -1), axis=1)
        scores = tl.where(at[None, :] == position[:, None], _NONE, scores)
        best = tl.max(scores, axis=1)
        hungry = tl.max((best > worst).to(tl.int32), axis=0)
    return kept, places, worst, worst_place


@triton.jit
def _in_order(  # type: ignore[no-untyped-def]
    kept, places, N_SLOTS: tl.constexpr, SLOTS: tl.constexpr
):
    """Sort the kept scores in descending order, ties by lowest position; -1 for empty."""
    slot = tl.arange(0, SLOTS)
    ordered = tl.full(kept.shape, _NONE, tl.float32)
    positions = tl.full(places.shape, -1, tl.int32)
    for s in range(0, N_SLOTS):
        best = tl.max(kept, axis=1)
        position = tl.min(tl.where(kept == best[:, None], places, 2 * _FAR - 1), axis=1)
        here = (slot == s)[None, :] & (best > _NONE)[:, None]
        ordered = tl.where(here, best[:, None], ordered)
        positions = tl.where(here, position[:, None], positions)
        kept = tl.where(places == position[:, None], _NONE, kept)
    return ordered, positions


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    bias,
    padding,
    candidates,
    keep,
    output,
    indices,
    weights,
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
    bias_b,
    bias_h,
    bias_n,
    bias_m,
    padding_b,
    padding_m,
    candidates_b,
    n_heads,
    n_queries,
    n_columns,
    scale,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    N_SLOTS: tl.constexpr,
    SQUARED: tl.constexpr,
    CAUSAL: tl.constexpr,
    MODE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_PADDING: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    WIDEN: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Attend with BLOCK_M queries of one head of one batch item.

    Rows of the tokens start at ``b * x_b + h * x_h + n * x_n`` and lie in one piece; `indices`,
    `weights` and `keep` are (B, H, N, N_SLOTS) in one piece. `n_columns` counts the keys, or the
    candidates. MODE 0 takes the token itself as it comes, 1 always, 2 never.
    """
    n_tiles = tl.cdiv(n_queries, BLOCK_M)
    program = tl.program_id(0) // n_tiles
    first = (tl.program_id(0) % n_tiles) * BLOCK_M
    item = (program // n_heads).to(tl.int64)
    head = (program % n_heads).to(tl.int64)
    query += item * query_b + head * query_h
    key += item * key_b + head * key_h
    value += item * value_b + head * value_h
    output += item * output_b + head * output_h
    bias += item * bias_b + head * bias_h
    padding += item * padding_b
    candidates += item * candidates_b

    row = first + tl.arange(0, BLOCK_M)
    there = row < n_queries
    slot = tl.arange(0, SLOTS)
    used = (slot < N_SLOTS)[None, :]
    # Slots beyond the wanted ones never hold the worst key; empty ones go last to first.
    kept = tl.where(used, _NONE, -_NONE) + tl.zeros((BLOCK_M, SLOTS), tl.float32)
    places = tl.where(used, slot[None, :] + _FAR, -2) + tl.zeros((BLOCK_M, SLOTS), tl.int32)

    if WIDTH <= BLOCK_D:
        q = _load_rows(query, row, there, query_n, 0, WIDTH, BLOCK_D)
    q_squares = tl.zeros((BLOCK_M,), tl.float32)
    if SQUARED:
        for start in range(0, WIDTH, BLOCK_D):
            part = _load_rows(query, row, there, query_n, start, WIDTH, BLOCK_D).to(tl.float32)
            q_squares += tl.sum(part * part, axis=1)

    if MODE == 1:
        own = _pair_scores(
            query, key, row, row, there, query_n, key_n, scale, WIDTH, BLOCK_D, BLOCK_M, SQUARED
        )
        if HAS_BIAS:
            own_bias = bias + row.to(tl.int64) * (bias_n + bias_m)
            own += tl.load(own_bias, mask=there, other=0.0).to(tl.float32)
        own = tl.where(own != own, _NAN, own)
        if HAS_PADDING:
            own_padded = tl.load(padding + row.to(tl.int64) * padding_m, mask=there, other=1)
            own = tl.where(own_padded == 0, own, _NONE)
        # The token itself takes the first slot, as one that is never the worst.
        pinned = (there & (own > _NONE))[:, None] & (slot == 0)[None, :]
        kept = tl.where(pinned, -_NONE, kept)
        places = tl.where(pinned, row[:, None], places)
    worst = tl.min(kept, axis=1)
    worst_place = tl.max(tl.where(kept == worst[:, None], places, -1), axis=1)
    bias_tile = bias + first.to(tl.int64) * bias_n
    end = n_columns
    if CAUSAL and not HAS_CANDIDATES:
        end = tl.minimum(n_columns, first + BLOCK_M)
    tile = 0
    while tile < end:  # not range(): the interpreter cannot count to a tensor with numpy 2.4
        at = tl.multiple_of(tile, BLOCK_N) + tl.arange(0, BLOCK_N)
        real = at < n_columns
        if HAS_CANDIDATES:
            at = tl.load(candidates + at, mask=real, other=_FAR).to(tl.int32)
        scores = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        k_squares = tl.zeros((BLOCK_N,), tl.float32)
        if WIDTH <= BLOCK_D:
            k = _load_columns(key, at, real, key_n, 0, WIDTH, BLOCK_D)
            scores = _multiply(q, k, scores, WIDEN)
            if SQUARED:
                k_squares += tl.sum(k.to(tl.float32) * k.to(tl.float32), axis=0)
        else:
            for start in range(0, WIDTH, BLOCK_D):
                part = _load_rows(query, row, there, query_n, start, WIDTH, BLOCK_D)
                k = _load_columns(key, at, real, key_n, start, WIDTH, BLOCK_D)
                scores = _multiply(part, k, scores, WIDEN)
                if SQUARED:
                    k_squares += tl.sum(k.to(tl.float32) * k.to(tl.float32), axis=0)
        if SQUARED:
            scores = q_squares[:, None] + k_squares[None, :] - 2 * scores
            scores = -tl.sqrt(tl.where(scores < 0, 0.0, scores))
        scores = scores * scale

        if HAS_PADDING:
            padded = tl.load(padding + at.to(tl.int64) * padding_m, mask=real, other=1)
            real = real & (padded == 0)
        allowed = there[:, None] & real[None, :]
        if CAUSAL:
            allowed = allowed & (at[None, :] <= row[:, None])
        if MODE > 0:
            allowed = allowed & (at[None, :] != row[:, None])
        if HAS_BIAS:
            places_in_tile = tl.arange(0, BLOCK_M)[:, None] * bias_n + at[None, :] * bias_m
            added = tl.load(bias_tile + places_in_tile, mask=allowed, other=0.0)
            scores += added.to(tl.float32)
        scores = tl.where(scores != scores, _NAN, scores)
        scores = tl.where(allowed, scores, _NONE)
        kept, places, worst, worst_place = _take(scores, at, kept, places, worst, worst_place)
        tile += BLOCK_N

    if MODE == 1:
        kept = tl.where((places == row[:, None]) & (own > _NONE)[:, None], own[:, None], kept)
    kept = tl.where(used, kept, _NONE)
    if SQUARED:
        # Squares of lengths cancel when two tokens are close: once more, from the differences.
        for s in range(0, N_SLOTS):
            at_s = tl.sum(tl.where((slot == s)[None, :], places, 0), axis=1)
            found = there & (at_s < _FAR)
            score = _pair_scores(
                query, key, row, at_s, found, query_n, key_n, scale, WIDTH, BLOCK_D, BLOCK_M, True
            )
            if HAS_BIAS:
                added = bias + row.to(tl.int64) * bias_n + at_s * bias_m
                score += tl.load(added, mask=found, other=0.0).to(tl.float32)
            score = tl.where(score != score, _NAN, score)
            kept = tl.where((slot == s)[None, :] & found[:, None], score[:, None], kept)

    kept, places = _in_order(kept, places, N_SLOTS, SLOTS)
    highest = tl.max(kept, axis=1)
    highest = tl.where(highest == _NONE, 0.0, highest)
    shares = tl.where(places >= 0, tl.exp(kept - highest[:, None]), 0.0)
    total = tl.sum(shares, axis=1)
    shares = shares / tl.where(total == 0.0, 1.0, total)[:, None]
    slots = (program.to(tl.int64) * n_queries + row)[:, None] * N_SLOTS + slot[None, :]
    written = there[:, None] & used
    tl.store(indices + slots, places, mask=written)
    tl.store(weights + slots, shares.to(weights.dtype.element_ty), mask=written)
    if HAS_KEEP:
        shares = shares * tl.load(keep + slots, mask=written, other=0.0).to(tl.float32)

    for start in range(0, VALUE_WIDTH, BLOCK_V):
        total_value = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
        for s in range(0, N_SLOTS):
            chosen = (slot == s)[None, :]
            share = tl.sum(tl.where(chosen, shares, 0.0), axis=1)
            at_s = tl.sum(tl.where(chosen, places, 0), axis=1)
            rows = _load_rows(
                value, at_s, there & (at_s >= 0), value_n, start, VALUE_WIDTH, BLOCK_V
            )
            total_value += share[:, None] * rows.to(tl.float32)
        d = start + tl.arange(0, BLOCK_V)
        tl.store(
            output + row.to(tl.int64)[:, None] * output_n + d[None, :],
            total_value.to(output.dtype.element_ty),
            mask=there[:, None] & (d < VALUE_WIDTH)[None, :],
        )
