"""k-NN attention over tokens on a CPU: products in row tiles, selection in compiled loops."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional.distances import product_error
from nearwise.functional.threads import Threads
from nearwise.functional.tokens.kernels.backward import backward_rows
from nearwise.functional.tokens.kernels.forward import attend_rows, workspace
from nearwise.functional.tokens.kernels.rows import LANES
from nearwise.functional.tokens.pairs import at_least_single
from nearwise.functional.tokens.problem import Found, Tokens, check_positions

Array = NDArray[Any]
Room = Callable[[int, int], tuple[Tensor, Array]]

_TILE = 2**17  # scores per tile and thread: half a MiB, which stays in the cache
_FAR_OFF = 16  # squared distance, in squared spreads, from which on the origin is moved
_MODES = {"candidate": 0, "always": 1, "never": 2}


def attend_cpu(tokens: Tokens) -> Found:
    """Attend with the scores of only one tile of queries in memory."""
    check_positions(tokens.candidates, tokens.key.shape[2])
    dtype = tokens.value.dtype
    work = _Forward(_in_working_precision(tokens))
    batch, heads, n_queries, width = tokens.query.shape
    with Threads(batch * heads * n_queries * tokens.key.shape[2] * width) as threads:
        threads.run(work.run, batch * heads)
    return Found(work.output.to(dtype), work.indices, work.weights.to(dtype))


def backward_cpu(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value, and of the selected scores (B, H, N, K)."""
    dtypes = [x.dtype for x in (tokens.query, tokens.key, tokens.value, weights)]
    tokens = _in_working_precision(tokens)
    working = tokens.query.dtype
    rows = (tokens.query, tokens.key, tokens.value, grad_output.to(working))
    query, key, value, grad_output = (_with_whole_rows(x) for x in rows)
    keep = weights.new_empty(0) if tokens.keep is None else tokens.keep
    slots = (indices, weights.to(working), keep.to(working), grad_weights.to(working))
    at, weight, kept, from_weights = (x.contiguous().view(-1).numpy() for x in slots)
    grads = interleaved(query), interleaved(key).zero_(), interleaved(value).zero_()
    grad_scores = torch.zeros(weights.shape, dtype=working)

    def run(here: slice) -> None:
        backward_rows(
            (here.start, here.stop),
            *(_flat(x) for x in (query, key, value, grad_output)),
            at,
            weight,
            kept,
            from_weights,
            tokens.scale,
            tokens.euclidean,
            *(_flat(x) for x in grads),
            grad_scores.view(-1).numpy(),
            indices.shape[-1],
            np.empty((4, indices.shape[-1]), np.int64),
            np.empty((2, indices.shape[-1]), weight.dtype),
        )

    with Threads(4 * indices.numel() * query.shape[-1]) as threads:
        threads.run(run, indices.shape[0] * indices.shape[1])
    grad_query, grad_key, grad_value, of_scores = (
        x.to(dtype) for x, dtype in zip((*grads, grad_scores), dtypes, strict=True)
    )
    return grad_query, grad_key, grad_value, of_scores


def interleaved(like: Tensor) -> Tensor:
    """Make an empty tensor (B, H, N, D) with the heads of a token side by side in memory.

    Layers merge heads in this order, then without a copy.
    """
    batch, heads, n_tokens, width = like.shape
    return like.new_empty(batch, n_tokens, heads, width).transpose(1, 2)


def _with_whole_rows(x: Tensor) -> Tensor:
    """Return the tensor, or a copy if its rows are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _flat(x: Tensor) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """Return the flat numbers of a tensor, its strides and its shape."""
    shape, steps = tuple(x.shape), x.stride()
    span = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    return x.as_strided((span,), (1,)).numpy(), steps, shape


class _Forward:
    """Arrays of one forward pass."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.value = _with_whole_rows(tokens.value)
        lead, n_slots = tokens.query.shape[:3], tokens.n_neighbors
        self.output = interleaved(tokens.query.new_empty(1).expand(*lead, self.value.shape[3]))
        self.weights = tokens.query.new_empty(*lead, n_slots)
        self.indices = torch.empty(*lead, n_slots, dtype=torch.int32)
        self.is_plain = tokens.bias is None  # then scores are scaled at the selection
        self.everyone = torch.arange(tokens.key.shape[2])
        self.places: Array = self.everyone.numpy()
        keep = self.weights.new_empty(0) if tokens.keep is None else tokens.keep
        (value, v_steps, _), (output, o_steps, shape) = _flat(self.value), _flat(self.output)
        self.arrays = (
            value,
            keep.contiguous().view(-1).numpy(),
            output,
            self.indices.view(-1).numpy(),
            self.weights.view(-1).numpy(),
            np.array([*shape[1:3], n_slots, shape[3], *v_steps[:3], *o_steps[:3]]),
        )
        self.no_scores = np.empty((0, 0), self.arrays[0].dtype)
        # Operands of the products, and terms added to them.
        self.query, self.key, self.added = tokens.query, tokens.key, None
        self.pairs: tuple[Any, ...] | None = None
        if tokens.euclidean:
            self.query, self.key, self.added, self.squares = bounds_of(tokens.query, tokens.key)
            self.pairs = self._pairs()

    def _pairs(self) -> tuple[Any, ...]:
        """Return the arguments of `select_nearest`."""
        tokens = self.tokens
        rows = _with_whole_rows(tokens.query), _with_whole_rows(tokens.key)
        (query, q_steps, shape), (key, k_steps, _) = map(_flat, rows)
        bias, b_steps = self.no_scores.reshape(-1), (0,) * 4
        if tokens.bias is not None:
            bias, b_steps, _ = _flat(tokens.bias)  # type: ignore[assignment]
        steps = np.array([*q_steps[:3], *k_steps[:3], *b_steps, shape[3]])
        return query, key, bias, self.squares.view(-1).numpy(), steps, tokens.scale

    def run(self, here: slice) -> None:
        """Attend with some heads; a tile holds as many of a batch item as possible."""
        n_heads, n_queries = self.tokens.query.shape[1:3]
        candidates = self.tokens.candidates
        n_columns = self.tokens.key.shape[2] if candidates is None else candidates.shape[1]
        width = -(-n_columns // LANES) * LANES
        n_rows = max(1, min(n_queries, _TILE // width))
        n_at_once = max(1, _TILE // (width * n_queries)) if n_rows == n_queries else 1
        buffer = self.tokens.query.new_empty(min(n_at_once, n_heads) * n_rows, width)
        buffer[:, n_columns:] = -torch.inf
        scratch = workspace(width, self.tokens.n_neighbors, self.no_scores.dtype)

        @cache
        def room(n: int, n_rows: int) -> tuple[Tensor, Array]:
            rows = buffer[: n * n_rows].view(n, n_rows, width)
            return rows[:, :, :n_columns], rows.numpy()

        start = here.start
        while start < here.stop:
            item, h = divmod(start, n_heads)
            n = min(n_heads - h, n_at_once, here.stop - start)
            self._heads(item, slice(h, h + n), n_rows, room, scratch)
            start += n

    def _heads(
        self, item: int, heads: slice, n_rows: int, room: Room, scratch: tuple[Array, ...]
    ) -> None:
        """Attend with some heads of a batch item, one tile of rows after the other.

        The product of a tile is followed by its selection at once, while it is in the cache.
        """
        tokens = self.tokens
        query, key = self.query[item, heads], self.key[item, heads]
        positions = self.everyone if tokens.candidates is None else tokens.candidates[item]
        columns = key if tokens.candidates is None else key[:, positions]
        across, added = columns.mT, None
        if self.added is not None:
            added = self.added[item, heads, None]
            added = added if tokens.candidates is None else added[..., positions]
        places = self.places if tokens.candidates is None else positions.numpy()
        itself = self._own_columns(positions)
        first = 0
        for tile in query.split(n_rows, dim=1) if n_rows < query.shape[1] else (query,):
            n_heads, n_tile, _ = tile.shape
            scores, numbers = room(n_heads, n_tile)
            part = slice(first, first + n_tile)
            if added is None:
                torch.bmm(tile, across, out=scores)
            else:
                torch.baddbmm(added, tile, across, out=scores)
            self._finish(scores, item, heads, part, positions)
            attend_rows(
                item,
                heads.start,
                first,
                numbers,
                places,
                itself,
                self._own_scores(item, heads, part),
                tokens.scale if self.is_plain else 1.0,
                tokens.is_causal,
                _MODES[tokens.include_self],
                *self.arrays,
                self.pairs,
                *scratch,
            )
            first += n_tile

    def _finish(
        self, scores: Tensor, item: int, heads: slice, part: slice, positions: Tensor
    ) -> None:
        """Turn products in place into scores, except for steps of the compiled loops."""
        tokens = self.tokens
        if tokens.bias is not None:
            if tokens.euclidean:
                square = self.squares[item, heads, part, None]
                torch.sub(square.masked_fill(square.isinf(), 0.0), scores, alpha=2, out=scores)
                scores.clamp_min_(0).sqrt_().mul_(-tokens.scale)
            else:
                scores.mul_(tokens.scale)
            bias = tokens.bias[item, heads, part]
            bias = bias if tokens.candidates is None else bias[..., positions]
            if not scores.sum().isfinite():  # otherwise NaN may be at forbidden keys
                scores.masked_fill_(torch.isneginf(bias), 0.0)
            scores.add_(bias)
        if tokens.padding is not None:
            scores.masked_fill_(tokens.padding[item, positions], -torch.inf)

    def _own_columns(self, positions: Tensor) -> Array:
        """Column of every token itself, -1 if it is not a candidate; empty if never needed."""
        if self.tokens.include_self == "candidate":
            return np.empty(0, np.int64)
        own = np.full(max(self.tokens.query.shape[2], self.tokens.key.shape[2]), -1)
        own[positions.numpy()] = np.arange(len(positions))
        return own

    def _own_scores(self, item: int, heads: slice, part: slice) -> Array:
        """Score of every token with itself if it is always included; else empty.

        Distances are computed later: here only masks apply.
        """
        tokens = self.tokens
        if tokens.include_self != "always":
            return self.no_scores
        query, key = tokens.query[item, heads, part], tokens.key[item, heads, part]
        own = (query * key).sum(-1) * (1.0 if self.is_plain else tokens.scale)
        own = torch.zeros_like(own) if tokens.euclidean else own
        if tokens.bias is not None:
            bias = tokens.bias[item, heads].diagonal(dim1=1, dim2=2)[:, part]
            own = (own + bias).masked_fill(torch.isneginf(bias), -torch.inf)
        if tokens.padding is not None:
            own = own.masked_fill(tokens.padding[item, part], -torch.inf)
        result: Array = own.numpy()
        return result


def _in_working_precision(tokens: Tokens) -> Tokens:
    """Detach, and convert half precision to single."""

    def work(x: Tensor) -> Tensor:
        return at_least_single(x.detach())

    return tokens._replace(
        query=work(tokens.query),
        key=work(tokens.key),
        value=work(tokens.value),
        bias=None if tokens.bias is None else work(tokens.bias),
        keep=None if tokens.keep is None else work(tokens.keep),
    )


def bounds_of(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Operands of products that bound distances: query', key', added (B, H, M), square (B, H, N).

    A key's distance is at least the root of ``square - 2 * (query' @ key' + added)``. Squares of
    lengths cancel there, so they are reduced by a share that covers all rounding, also of computed
    distances (Higham, Accuracy and Stability of Numerical Algorithms, sec. 3.1). An origin among
    the keys makes this share small. If the origin is elsewhere, or lengths overflow, more distances
    are computed (all if `added` or `square` is infinite); results are the same.
    """
    origin = _origin_among(key)
    if origin is not None:
        query, key = query - origin, key - origin
    kind, width = torch.finfo(query.dtype), key.shape[-1]
    left_out = 2 * (width + 32) * kind.eps + product_error(query.device)
    squares, others = (torch.linalg.vector_norm(x, dim=-1).square() for x in (query, key))
    added, squares = others * (0.5 * left_out - 0.5), squares * (1 - left_out)
    squares -= 32 * (width + 2) * kind.tiny  # products may vanish
    far, too_far = (~(x < kind.max / 1e6) for x in (squares, others))  # NaN too
    if bool(far.any()):
        query, squares = query.masked_fill(far[..., None], 0.0), squares.masked_fill(far, torch.inf)
    if bool(too_far.any()):
        key, added = key.masked_fill(too_far[..., None], 0.0), added.masked_fill(too_far, torch.inf)
    return query, key, added, squares


def _origin_among(key: Tensor) -> Tensor | None:
    """Return the median (B, H, 1, D) of three keys per channel; None if 0 suffices."""
    n_keys = key.shape[2]
    sample = key[:, :, [0, n_keys // 2, n_keys - 1]]
    a, b, c = sample.split(1, dim=2)
    origin = torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))
    origin = origin.nan_to_num(0.0, 0.0, 0.0)
    spread = (sample - origin).square().sum(-1).amin(-1)
    is_far = origin.square().sum(-1)[..., 0] > _FAR_OFF * spread
    return origin if bool(is_far.any()) else None
