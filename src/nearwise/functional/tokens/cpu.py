"""k-NN attention over tokens on a CPU: products in row tiles, selection in compiled loops."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional.threads import Threads
from nearwise.functional.tokens import cpu_kernels as kernels
from nearwise.functional.tokens.problem import Found, Tokens

Array = NDArray[Any]

_TILE = 2**17  # scores that live at once in a thread: half a MiB, which stays in its cache
_MODES = {"candidate": 0, "always": 1, "never": 2}


def attend_cpu(tokens: Tokens) -> Found:
    """Attend without keeping the scores of more than a tile of queries."""
    work = _Forward(_in_working_precision(tokens))
    batch, heads, n_queries, width = tokens.query.shape
    with Threads(batch * heads * n_queries * tokens.key.shape[2] * width) as threads:
        threads.run(work.run, batch * heads)
    dtype = tokens.value.dtype
    return Found(work.output.to(dtype), work.indices, work.weights.to(dtype))


def backward_cpu(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and of the selected scores (B, H, N, K)."""
    dtype = tokens.query.dtype
    tokens = _in_working_precision(tokens)
    working = tokens.query.dtype
    rows = [tokens.query, tokens.key, tokens.value, grad_output.to(working)]
    rows = [_with_whole_rows(x) for x in rows]
    slots = [indices, weights.to(working), grad_weights.to(working)]
    grads = [interleaved(x).zero_() for x in rows[:3]]
    grad_scores = torch.zeros(weights.shape, dtype=working)
    nothing = np.empty((1, 0, 0), grad_scores.numpy().dtype)

    def run(here: slice) -> None:
        for place in range(here.start, here.stop):
            b, h = divmod(place, indices.shape[1])
            at, weight, from_weights = (x[b, h : h + 1].contiguous().numpy() for x in slots)
            keep = tokens.keep
            kernels.backward_rows(
                *_flat(*(x[b, h:] for x in rows)),
                at,
                weight,
                nothing if keep is None else keep[b, h : h + 1].numpy(),
                from_weights,
                tokens.scale,
                tokens.squared,
                tokens.query.shape[-1],
                tokens.value.shape[-1],
                *_flat(*(x[b, h:] for x in grads)),
                grad_scores[b, h : h + 1].numpy(),
            )

    with Threads(4 * indices.numel() * tokens.query.shape[-1]) as threads:
        threads.run(run, indices.shape[0] * indices.shape[1])
    query, key, value = (x.to(dtype) for x in grads)
    return query, key, value, grad_scores.to(dtype)


def interleaved(like: Tensor) -> Tensor:
    """Make an empty tensor (B, H, N, D) whose heads lie side by side in memory, token by token.

    A layer merges heads so: then this needs no copy.
    """
    batch, heads, n_tokens, width = like.shape
    return like.new_empty(batch, n_tokens, heads, width).transpose(1, 2)


def _with_whole_rows(x: Tensor) -> Tensor:
    """Return the tensor, or a copy where the numbers of a row do not lie side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _flat(*heads: Tensor) -> list[Any]:
    """For each tensor (H, N, D), its numbers from the first on, and the steps of heads and rows."""
    result: list[Any] = []
    for x in heads:
        span = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        result += [x.as_strided((span,), (1,)).numpy(), (x.stride(0), x.stride(1))]
    return result


class _Forward:
    """The arrays of one forward pass."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.value = _with_whole_rows(tokens.value)
        lead, n_slots = tokens.query.shape[:3], tokens.n_neighbors
        self.output = interleaved(tokens.query.new_empty(1).expand(*lead, self.value.shape[3]))
        self.weights = tokens.query.new_empty(*lead, n_slots)
        self.indices = torch.empty(*lead, n_slots, dtype=torch.int32)
        self.is_plain = not (tokens.squared or tokens.bias is not None)
        self.is_poisoned = bool((tokens.query.sum() + tokens.key.sum()).isnan())

    def run(self, here: slice) -> None:
        """Attend with some of the heads, as many of a batch item at once as a tile holds."""
        n_heads, n_queries = self.tokens.query.shape[1:3]
        candidates = self.tokens.candidates
        n_columns = self.tokens.key.shape[2] if candidates is None else candidates.shape[1]
        n_rows = max(1, min(n_queries, _TILE // n_columns))
        n_at_once = max(1, _TILE // (n_columns * n_queries)) if n_rows == n_queries else 1
        buffer = self.tokens.query.new_empty(n_at_once * n_rows * n_columns)
        start = here.start
        while start < here.stop:
            item, h = divmod(start, n_heads)
            n = min(n_heads - h, n_at_once, here.stop - start)
            self._heads(item, slice(h, h + n), n_rows, buffer)
            start += n

    def _heads(self, item: int, heads: slice, n_rows: int, buffer: Tensor) -> None:
        """Attend with some heads of a batch item, row tile by row tile."""
        tokens = self.tokens
        query, key = tokens.query[item, heads], tokens.key[item, heads]
        everyone = torch.arange(key.shape[1])
        positions = everyone if tokens.candidates is None else tokens.candidates[item]
        columns = key if tokens.candidates is None else key[:, positions]
        itself = self._own_columns(positions)
        keep = np.empty((1, 0, 0), self.weights.numpy().dtype)
        for first in range(0, query.shape[1], n_rows):
            part = slice(first, min(first + n_rows, query.shape[1]))
            size = len(query) * (part.stop - first) * len(positions)
            scores = buffer[:size].view(len(query), -1, len(positions))
            torch.bmm(query[:, part], columns.mT, out=scores)
            self._finish(scores, item, heads, part, columns, positions)
            output = self.output[item, heads, part]
            if self.is_poisoned:
                poisoned = scores.clone().numpy()
            if tokens.keep is not None:
                keep = tokens.keep[item, heads, part].numpy()
            kernels.attend_rows(
                scores.numpy(),
                first,
                positions.numpy(),
                itself,
                self._own_scores(item, heads, part),
                tokens.scale if self.is_plain else 1.0,
                tokens.is_causal,
                _MODES[tokens.include_self],
                *_flat(self.value[item, heads]),
                keep,
                *_flat(output),
                output.shape[2],
                self.indices[item, heads, part].numpy(),
                self.weights[item, heads, part].numpy(),
            )
            if self.is_poisoned:
                kernels.poison_rows(poisoned, output.numpy())

    def _finish(
        self,
        scores: Tensor,
        item: int,
        heads: slice,
        part: slice,
        columns: Tensor,
        positions: Tensor,
    ) -> None:
        """Turn products into scores in place, as far as the loops do not."""
        tokens = self.tokens
        if tokens.squared:
            squares = tokens.query[item, heads, part].square().sum(-1)[:, :, None]
            squares = squares + columns.square().sum(-1)[:, None]
            torch.sub(squares, scores, alpha=2, out=scores)
            scores.clamp_min_(0).sqrt_().mul_(-tokens.scale)
        elif not self.is_plain:
            scores.mul_(tokens.scale)
        if tokens.bias is not None:
            bias = tokens.bias[item, heads, part]
            scores.add_(bias if tokens.candidates is None else bias[..., positions])
        if tokens.padding is not None:
            scores.masked_fill_(tokens.padding[item, positions], -torch.inf)

    def _own_columns(self, positions: Tensor) -> Array:
        """Column of every token itself; -1 where it is no candidate."""
        own = np.full(max(self.tokens.query.shape[2], self.tokens.key.shape[2]), -1)
        own[positions.numpy()] = np.arange(len(positions))
        return own

    def _own_scores(self, item: int, heads: slice, part: slice) -> Array:
        """Score of every token to itself, where it always takes part; else empty."""
        tokens = self.tokens
        if tokens.include_self != "always":
            return np.empty((0, 0), self.weights.numpy().dtype)
        query, key = tokens.query[item, heads, part], tokens.key[item, heads, part]
        if tokens.squared:
            own = -(query - key).square().sum(-1).sqrt() * tokens.scale
        else:
            own = (query * key).sum(-1) * (1.0 if self.is_plain else tokens.scale)
        if tokens.bias is not None:
            own = own + tokens.bias[item, heads].diagonal(dim1=1, dim2=2)[:, part]
        if tokens.padding is not None:
            own = own.masked_fill(tokens.padding[item, part], -torch.inf)
        result: Array = own.numpy()
        return result


def _in_working_precision(tokens: Tokens) -> Tokens:
    """Detach, and bring half precision to single."""

    def work(x: Tensor) -> Tensor:
        x = x.detach()
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    return replace(
        tokens,
        query=work(tokens.query),
        key=work(tokens.key),
        value=work(tokens.value),
        bias=None if tokens.bias is None else work(tokens.bias),
        keep=None if tokens.keep is None else work(tokens.keep),
    )
