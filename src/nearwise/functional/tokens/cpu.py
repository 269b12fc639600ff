"""k-NN attention over tokens on a CPU: products in row tiles, selection in compiled loops."""

from dataclasses import dataclass, replace
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
    n_columns = work.positions.shape[1]
    with Threads(batch * heads * n_queries * n_columns * width) as threads:
        threads.run(work.run, batch * heads)
    dtype = tokens.value.dtype
    return Found(work.output.to(dtype), work.indices, work.weights.to(dtype))


def backward_cpu(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and of the selected scores (B, H, N, K)."""
    dtype = tokens.query.dtype
    tokens = _in_working_precision(tokens)
    full = [x.flatten(0, 1).contiguous() for x in (tokens.query, tokens.key, tokens.value)]
    single = full[0].dtype
    rest = [x.flatten(0, 1).to(single).contiguous() for x in (weights, grad_output, grad_weights)]
    grads = [torch.zeros_like(x) for x in (*full, rest[0])]
    arrays = [x.numpy() for x in (*full, indices.flatten(0, 1).contiguous(), *rest)]
    keep = None if tokens.keep is None else tokens.keep.flatten(0, 1).contiguous().numpy()
    out = [x.numpy() for x in grads]
    nothing = np.empty((0, 0), arrays[0].dtype)

    def run(here: slice) -> None:
        for g in range(here.start, here.stop):
            query, key, value, at, weight, *grad = (x[g] for x in arrays)
            kernels.backward_rows(
                query,
                key,
                value,
                at,
                weight,
                nothing if keep is None else keep[g],
                *grad,
                tokens.scale,
                tokens.squared,
                *(x[g] for x in out),
            )

    with Threads(4 * indices.numel() * tokens.query.shape[-1]) as threads:
        threads.run(run, len(full[0]))
    shapes = (tokens.query.shape, tokens.key.shape, tokens.value.shape, weights.shape)
    pairs = zip(grads, shapes, strict=True)
    return tuple(x.view(shape).to(dtype) for x, shape in pairs)  # type: ignore[return-value]


@dataclass
class _Forward:
    """The arrays of one forward pass; results have one entry a head, batch by batch."""

    tokens: Tokens

    def __post_init__(self) -> None:
        tokens = self.tokens
        batch, heads, n_queries, _ = tokens.query.shape
        self.n_heads = heads
        shape = (batch, heads, n_queries)
        dtype = tokens.query.dtype
        self.output = torch.empty(*shape, tokens.value.shape[-1], dtype=dtype)
        self.weights = torch.empty(*shape, tokens.n_neighbors, dtype=dtype)
        self.indices = torch.empty(*shape, tokens.n_neighbors, dtype=torch.int32)
        n_keys = tokens.key.shape[2]
        if tokens.candidates is None:
            self.positions = torch.arange(n_keys).expand(batch, -1)
        else:
            self.positions = tokens.candidates
        self.is_plain = not (tokens.squared or tokens.bias is not None)
        self.values = tokens.value.contiguous().numpy()
        self.is_poisoned = bool((tokens.query.sum() + tokens.key.sum()).isnan())

    def run(self, here: slice) -> None:
        """Attend with some of the heads."""
        n_columns = self.positions.shape[1]
        rows = max(1, min(self.tokens.query.shape[2], _TILE // n_columns))
        buffer = torch.empty(rows * n_columns, dtype=self.tokens.query.dtype)
        for place in range(here.start, here.stop):
            self._head(*divmod(place, self.n_heads), rows, buffer)

    def _head(self, b: int, h: int, rows: int, buffer: Tensor) -> None:
        tokens = self.tokens
        query, key = tokens.query[b, h], tokens.key[b, h]
        positions = self.positions[b]
        columns = key if tokens.candidates is None else key[positions]
        itself = self._own_columns(b, len(query))
        keep = self._nothing() if tokens.keep is None else tokens.keep[b, h].numpy()
        for first in range(0, len(query), rows):
            part = slice(first, min(first + rows, len(query)))
            size = (part.stop - first) * len(positions)
            scores = buffer[:size].view(-1, len(positions))
            torch.mm(query[part], columns.T, out=scores)
            self._finish(scores, b, h, part, columns, positions)
            output = self.output[b, h, part].numpy()
            kernels.attend_rows(
                scores.numpy(),
                first,
                positions.numpy(),
                itself,
                self._own_scores(b, h, part),
                tokens.scale if self.is_plain else 1.0,
                tokens.is_causal,
                _MODES[tokens.include_self],
                self.values[b, h],
                keep[part],
                output,
                self.indices[b, h, part].numpy(),
                self.weights[b, h, part].numpy(),
            )
            if self.is_poisoned:
                kernels.poison_rows(scores.numpy(), output)

    def _finish(
        self, scores: Tensor, b: int, h: int, part: slice, columns: Tensor, positions: Tensor
    ) -> None:
        """Turn products into scores in place, as far as the loops do not."""
        tokens = self.tokens
        if tokens.squared:
            query = tokens.query[b, h, part]
            squares = query.square().sum(-1)[:, None] + columns.square().sum(-1)
            torch.sub(squares, scores, alpha=2, out=scores)
            scores.clamp_min_(0).sqrt_().mul_(-tokens.scale)
        elif not self.is_plain:
            scores.mul_(tokens.scale)
        if tokens.bias is not None:
            bias = tokens.bias[b, h, part]
            scores.add_(bias if tokens.candidates is None else bias[:, positions])
        if tokens.padding is not None:
            scores.masked_fill_(tokens.padding[b, positions], -torch.inf)

    def _own_columns(self, b: int, n_queries: int) -> Array:
        """Column of every token itself; -1 where it is no candidate."""
        if self.tokens.candidates is None:
            return np.arange(n_queries)
        own = np.full(max(n_queries, self.tokens.key.shape[2]), -1)
        own[self.positions[b].numpy()] = np.arange(self.positions.shape[1])
        return own

    def _own_scores(self, b: int, h: int, part: slice) -> Array:
        """Score of every token to itself, where it always takes part; else empty."""
        tokens = self.tokens
        if tokens.include_self != "always":
            return np.empty(0, self.values.dtype)
        query, key = tokens.query[b, h, part], tokens.key[b, h, part]
        if tokens.squared:
            own = -(query - key).square().sum(-1).sqrt() * tokens.scale
        else:
            own = (query * key).sum(-1) * (1.0 if self.is_plain else tokens.scale)
        if tokens.bias is not None:
            own = own + tokens.bias[b, h].diagonal()[part]
        if tokens.padding is not None:
            own = own.masked_fill(tokens.padding[b, part], -torch.inf)
        return own.numpy()  # type: ignore[no-any-return]

    def _nothing(self) -> Array:
        return np.empty((0, 0), self.values.dtype)


def _in_working_precision(tokens: Tokens) -> Tokens:
    """Detach, and bring half precision to single."""

    def work(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        x = x.detach()
        return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x

    return replace(
        tokens,
        query=work(tokens.query),
        key=work(tokens.key),
        value=work(tokens.value),
        bias=work(tokens.bias),
        keep=work(tokens.keep),
    )
