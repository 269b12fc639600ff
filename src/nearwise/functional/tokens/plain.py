"""Token k-NN attention in plain torch operations: the reference, for any device."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from nearwise.functional.operators import operator
from nearwise.functional.tokens.implementation import is_exported, is_traced, is_transformed
from nearwise.functional.tokens.pairs import (
    at_least_double,
    at_least_single,
    gather_slots,
    pair_scores,
)
from nearwise.functional.tokens.problem import Found, Tokens, check_positions

# Scores in memory at once, unless one query has more: 16 MiB in single precision, about 150 MiB
# with the tensors of the selection.
_TILE = 2**22
_Tile = tuple[slice, slice, slice]


def attend_plain(tokens: Tokens) -> Found:
    """Attend with torch operations alone.

    The neighbors are selected tile by tile, with at most `_TILE` scores in memory (in exports and
    under torch.func with all scores). For the backward pass only scores, keys and values of the
    selected pairs are kept: O(N K D).
    """
    with torch.no_grad(), _unmixed(tokens.query):
        indices = _select(tokens) if is_traced() else _nearest(*tokens)
    return attend_selected(tokens, indices)


def _unmixed(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast, which would round the factors of all products and change the selection."""
    kind = x.device.type
    is_mixed = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_mixed else nullcontext()


def attend_selected(tokens: Tokens, indices: Tensor) -> Found:
    """Weight and sum the values at some positions (B, H, N, K), -1 in empty slots."""
    with _unmixed(tokens.query):
        scores = _selected_scores(tokens, indices)
        is_empty = (indices < 0).all(dim=-1, keepdim=True)
        weights = (
            torch.softmax(scores.masked_fill(is_empty, 0.0), dim=-1)
            .masked_fill(is_empty, 0.0)
            .to(tokens.value.dtype)
        )
        kept = weights if tokens.keep is None else weights * tokens.keep
        values = gather_slots(tokens.value, indices)
        output = (kept[..., None, :] @ values)[..., 0, :]
    return Found(output, indices.to(torch.int32), weights)


@operator("nearest_keys")  # opaque to torch.compile, for any number of tokens
def _nearest(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    euclidean: bool,
    scale: float,
    bias: Tensor | None,
    padding: Tensor | None,
    is_causal: bool,
    include_self: str,
    candidates: Tensor | None,
    keep: Tensor | None,
) -> Tensor:
    check_positions(candidates, key.shape[2])
    masks = (bias, padding, is_causal, include_self, candidates, keep)
    tokens = Tokens(query, key, value, n_neighbors, euclidean, scale, *masks)
    batch, heads, n_queries, _ = query.shape
    indices = query.new_empty(batch, heads, n_queries, n_neighbors, dtype=torch.int64)
    for tile in _tiles(batch, heads, n_queries, key.shape[2]):
        indices[tile] = _select(_part(tokens, tile), tile[2].start)
    return indices


@torch.library.register_fake("nearwise::nearest_keys")
def _(query: Tensor, key: Tensor, value: Tensor, n_neighbors: int, *_: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], n_neighbors), dtype=torch.int64)


def _tiles(batch: int, heads: int, n_queries: int, n_keys: int) -> Iterator[_Tile]:
    """Split batch, heads and queries, in this order, into tiles of at most `_TILE` scores."""
    items = min(batch, max(1, _TILE // (heads * n_queries * n_keys)))
    some = min(heads, max(1, _TILE // (n_queries * n_keys)))
    rows = min(n_queries, max(1, _TILE // n_keys))
    for b in range(0, batch, items):
        for h in range(0, heads, some):
            for n in range(0, n_queries, rows):
                yield slice(b, b + items), slice(h, h + some), slice(n, n + rows)


def _part(tokens: Tokens, tile: _Tile) -> Tokens:
    """Select the queries of a tile, with all their keys."""
    items, heads, _ = tile
    return tokens._replace(
        query=tokens.query[tile],
        key=tokens.key[items, heads],
        bias=None if tokens.bias is None else tokens.bias[tile],
        padding=None if tokens.padding is None else tokens.padding[items],
        candidates=None if tokens.candidates is None else tokens.candidates[items],
    )


def _select(tokens: Tokens, first: int = 0) -> Tensor:
    """Positions (B, H, N, K) of the best keys, best first, ties by lowest index; else -1.

    The queries belong to the tokens from `first` on.
    """
    n_queries, n_keys = tokens.query.shape[2], tokens.key.shape[2]
    at = torch.arange(n_keys, device=tokens.query.device)
    rows = torch.arange(n_queries, device=tokens.query.device)[:, None] + first
    scores, itself = _all_scores(tokens), at == rows
    if tokens.is_causal:
        scores = scores.masked_fill(at > rows, -torch.inf)
    if tokens.candidates is not None:
        allowed = torch.zeros(scores.shape[0], n_keys, dtype=torch.bool, device=scores.device)
        allowed = allowed.scatter(1, tokens.candidates, True)[:, None, None]
        if tokens.include_self == "always":
            allowed = allowed | itself
        scores = scores.masked_fill(~allowed, -torch.inf)
    if tokens.include_self == "never":
        scores = scores.masked_fill(itself, -torch.inf)
    ranked = scores
    if tokens.include_self == "always":
        ranked = scores.masked_fill(itself & ~torch.isneginf(scores), torch.inf)
    best = _first(ranked, tokens.n_neighbors)
    if tokens.include_self == "always":  # restore the order of scores
        best = best.sort(dim=-1).values
        best = best.gather(-1, _first(scores.gather(-1, best), tokens.n_neighbors))
    return best.masked_fill(torch.isneginf(scores.gather(-1, best)), -1)


def _first(scores: Tensor, n: int) -> Tensor:
    """Positions of the `n` largest scores in descending order, ties by lowest index."""
    if torch.onnx.is_in_onnx_export():  # ONNX's TopK guarantees this order of ties
        return scores.topk(n, dim=-1).indices
    if scores.dtype == torch.float32 and not is_exported():
        return _first_by_number(scores, n)
    # torch.topk does not guarantee it; a stable sort does.
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]


def _first_by_number(scores: Tensor, n: int) -> Tensor:
    """Compute `_first` by `torch.topk` of integers that include the position as tie-breaker."""
    last = scores.shape[-1] - 1
    # -0 becomes 0, and all NaN become one value above infinity.
    bits = (scores + 0.0).masked_fill_(scores.isnan(), torch.nan).view(torch.int32)
    numbers = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    numbers |= torch.arange(last, -1, -1, device=scores.device)
    return last - (numbers.topk(n, dim=-1).values & 0xFFFFFFFF)


def _all_scores(tokens: Tokens) -> Tensor:
    """Scores of all pairs, -inf where masks forbid one; float32 or float64."""
    if tokens.euclidean:
        scores = -_distances(tokens.query, tokens.key) * tokens.scale
    else:
        query, key = (at_least_single(x) for x in (tokens.query, tokens.key))
        scores = query @ key.mT * tokens.scale
    if tokens.bias is not None:
        # where the bias forbids a key, its score may be NaN or infinite
        scores = (scores + tokens.bias).masked_fill(torch.isneginf(tokens.bias), -torch.inf)
    if tokens.padding is not None:
        scores = scores.masked_fill(tokens.padding[:, None, None], -torch.inf)
    return scores


def _distances(query: Tensor, key: Tensor) -> Tensor:
    """Distances (B, H, N, M) of all pairs, at least float32, computed from differences.

    Squared lengths would be faster, but lose precision for near pairs unless the origin is near.
    A chosen origin would depend on keys that a query may not attend to.
    """
    dtype = at_least_single(query).dtype
    query, key = at_least_double(query), at_least_double(key)
    is_traced_out = torch.onnx.is_in_onnx_export() or is_transformed()
    if query.device.type == "cpu" and not is_traced_out:
        return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist").to(dtype)
    # ONNX and forward derivatives do not support cdist, and it is slow on a GPU.
    squares = query.new_zeros(()).expand(*query.shape[:-1], key.shape[-2])
    for q, k in zip(query.unbind(-1), key.unbind(-1), strict=True):
        gap = q[..., :, None] - k[..., None, :]
        squares = torch.addcmul(squares, gap, gap)
    return squares.sqrt().to(dtype)


def _selected_scores(tokens: Tokens, indices: Tensor) -> Tensor:
    """Differentiable scores (B, H, N, K) of the selected pairs, -inf in empty slots."""
    scores = pair_scores(
        tokens.query, tokens.key, indices, euclidean=tokens.euclidean, scale=tokens.scale
    )
    if tokens.bias is not None:
        scores = scores + tokens.bias.gather(-1, indices.clamp_min(0))
    return scores.masked_fill(indices < 0, -torch.inf)
