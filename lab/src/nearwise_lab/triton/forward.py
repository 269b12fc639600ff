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
_LARGEST = tl.constexpr(3.4e38)


@triton.jit
def load_rows(  # type: ignore[no-untyped-def]
    tokens, at, real, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """Load some rows of tokens that lie in one piece, as (rows, BLOCK); 0 where not real."""
    d = tl.arange(0, BLOCK)[None, :]
    inside = real[:, None] & (d < WIDTH)
    return tl.load(tokens + at.to(tl.int64)[:, None] * WIDTH + d, mask=inside, other=0.0)


@triton.jit
def _take(scores, at, kept, positions, worst, worst_position):  # type: ignore[no-untyped-def]
    """Let the keys of a tile of scores (BLOCK_M, BLOCK_N) replace worse ones.

    Every step takes the best key left in each row; the steps end when no row has a better one
    than its worst. An equal one is not better: keys come in the order of their positions.
    """
    best = tl.max(scores, axis=1)
    n_open = tl.max((best > worst).to(tl.int32), axis=0)
    while n_open > 0:
        position = tl.min(tl.where(scores == best[:, None], at[None, :], _FAR), axis=1)
        leaves = (best > worst)[:, None] & (positions == worst_position[:, None])
        kept = tl.where(leaves, best[:, None], kept)
        positions = tl.where(leaves, position[:, None], positions)
        worst = tl.min(kept, axis=1)
        worst_position = tl.max(tl.where(kept == worst[:, None], positions, -1), axis=1)
        scores = tl.where(at[None, :] == position[:, None], _NONE, scores)
        best = tl.max(scores, axis=1)
        n_open = tl.max((best > worst).to(tl.int32), axis=0)
    return kept, positions, worst, worst_position


@triton.jit
def _in_order(  # type: ignore[no-untyped-def]
    kept, positions, N_SLOTS: tl.constexpr, SLOTS: tl.constexpr
):
    """Sort the kept scores in descending order, ties by lowest position; -1 for empty."""
    slot = tl.arange(0, SLOTS)
    scores = tl.full(kept.shape, _NONE, tl.float32)
    ordered = tl.full(positions.shape, -1, tl.int32)
    for s in range(0, N_SLOTS):
        best = tl.max(kept, axis=1)
        position = tl.min(tl.where(kept == best[:, None], positions, 2 * _FAR - 1), axis=1)
        here = (slot == s)[None, :] & (best > _NONE)[:, None]
        scores = tl.where(here, best[:, None], scores)
        ordered = tl.where(here, position[:, None], ordered)
        kept = tl.where(positions == position[:, None], _NONE, kept)
    return scores, ordered


@triton.jit
def _distances(q, k, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Distances of all pairs from their differences, channel by channel.

    Squares of lengths would lose the digits of near pairs far from the origin.
    """
    channel = tl.arange(0, q.shape[1])[None, :]
    squares = tl.zeros((q.shape[0], k.shape[0]), tl.float32)
    for c in range(0, WIDTH):
        ours = tl.sum(tl.where(channel == c, q.to(tl.float32), 0.0), axis=1)
        theirs = tl.sum(tl.where(channel == c, k.to(tl.float32), 0.0), axis=1)
        gap = ours[:, None] - theirs[None, :]
        squares += gap * gap
    return tl.sqrt(tl.where(squares > _LARGEST, _LARGEST, squares))


@triton.jit
def _softmax(scores, positions):  # type: ignore[no-untyped-def]
    """Weights of the kept keys of each query; all 0 where it has none."""
    highest = tl.max(scores, axis=1)
    highest = tl.where(highest == _NONE, 0.0, highest)
    shares = tl.where(positions >= 0, tl.exp(scores - highest[:, None]), 0.0)
    total = tl.sum(shares, axis=1)
    return shares / tl.where(total == 0.0, 1.0, total)[:, None]


@triton.jit
def _mix(  # type: ignore[no-untyped-def]
    value, shares, positions, WIDTH: tl.constexpr, N_SLOTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add up the values of the kept keys, slot by slot, by their shares."""
    slot = tl.arange(0, shares.shape[1])[None, :]
    mixed = tl.zeros((shares.shape[0], BLOCK), tl.float32)
    for s in range(0, N_SLOTS):
        share = tl.sum(tl.where(slot == s, shares, 0.0), axis=1)
        at = tl.sum(tl.where(slot == s, positions, 0), axis=1)
        mixed += share[:, None] * load_rows(value, at, at >= 0, WIDTH, BLOCK).to(tl.float32)
    return mixed


@triton.jit
def _tile_scores(  # type: ignore[no-untyped-def]
    q, key, padding, row, at, n_keys, scale, WIDTH: tl.constexpr, SQUARED: tl.constexpr,
    CAUSAL: tl.constexpr, NOT_ITSELF: tl.constexpr,
):  # fmt: skip
    """Score queries (BLOCK_M, BLOCK_D) with the keys at `at`; -inf where none may be attended."""
    real = at < n_keys
    k = load_rows(key, at, real, WIDTH, q.shape[1])
    if SQUARED:
        scores = -_distances(q, k, WIDTH) * scale
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if padding is not None:
        real = real & (tl.load(padding + at, mask=real, other=1) == 0)
    allowed = (row >= 0)[:, None] & real[None, :]
    if CAUSAL:
        allowed = allowed & (at[None, :] <= row[:, None])
    if NOT_ITSELF:
        allowed = allowed & (at[None, :] != row[:, None])
    return tl.where(allowed, tl.where(scores != scores, _NAN, scores), _NONE)


@triton.jit
def attend_kernel(  # type: ignore[no-untyped-def]
    query, key, value, padding, output, indices, weights, n_heads, n_queries, n_keys, scale,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, N_SLOTS: tl.constexpr, SQUARED: tl.constexpr,
    CAUSAL: tl.constexpr, NOT_ITSELF: tl.constexpr, SLOTS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Attend with BLOCK_M queries of one head of one batch item.

    All lies in one piece, heads before tokens, but `output`: (B, N, H, Dv). `padding` (B, M) or
    None is 1 where a key is left out.
    """
    n_tiles = tl.cdiv(n_queries, BLOCK_M)
    program = (tl.program_id(0) // n_tiles).to(tl.int64)  # counts heads of all batch items
    first = (tl.program_id(0) % n_tiles) * BLOCK_M
    item = program // n_heads
    key += program * n_keys * WIDTH
    value += program * n_keys * VALUE_WIDTH
    if padding is not None:
        padding += item * n_keys
    row = first + tl.arange(0, BLOCK_M)
    there = row < n_queries
    slot = tl.arange(0, SLOTS)[None, :]
    q = load_rows(query + program * n_queries * WIDTH, row, there, WIDTH, BLOCK_D)

    # Slots beyond the needed ones never hold the worst key; empty ones go last to first.
    kept = tl.where(slot < N_SLOTS, _NONE, -_NONE) + tl.zeros((BLOCK_M, SLOTS), tl.float32)
    positions = tl.where(slot < N_SLOTS, slot + _FAR, -2) + tl.zeros((BLOCK_M, SLOTS), tl.int32)
    worst = tl.min(kept, axis=1)
    worst_position = tl.max(tl.where(kept == worst[:, None], positions, -1), axis=1)
    end = tl.minimum(n_keys, first + BLOCK_M) if CAUSAL else n_keys
    tile = 0
    while tile < end:  # not range(): the interpreter cannot count to a tensor with numpy 2.4
        at = tile + tl.arange(0, BLOCK_N)
        scores = _tile_scores(
            q, key, padding, tl.where(there, row, -1), at, n_keys, scale, WIDTH, SQUARED, CAUSAL,
            NOT_ITSELF,
        )  # fmt: skip
        kept, positions, worst, worst_position = _take(
            scores, at, kept, positions, worst, worst_position
        )
        tile += BLOCK_N

    kept = tl.where(slot < N_SLOTS, kept, _NONE)
    kept, positions = _in_order(kept, positions, N_SLOTS, SLOTS)
    shares = _softmax(kept, positions)
    slots = (program * n_queries + row)[:, None] * N_SLOTS + slot
    written = there[:, None] & (slot < N_SLOTS)
    tl.store(indices + slots, positions, mask=written)
    tl.store(weights + slots, shares.to(weights.dtype.element_ty), mask=written)

    attended = _mix(value, shares, positions, VALUE_WIDTH, N_SLOTS, BLOCK_V)
    v = tl.arange(0, BLOCK_V)[None, :]
    to = ((item * n_queries + row) * n_heads + program % n_heads)[:, None] * VALUE_WIDTH + v
    tl.store(
        output + to,
        attended.to(output.dtype.element_ty),
        mask=there[:, None] & (v < VALUE_WIDTH),
    )
