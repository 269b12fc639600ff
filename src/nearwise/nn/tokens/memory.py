"""k-NN attention to the present tokens and to a memory of earlier ones."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from nearwise.functional.tokens.pairs import at_least_single, paired_scores, unit
from nearwise.functional.tokens.problem import (
    IncludeSelf,
    KeyPositions,
    TokenMetric,
    checked_padding,
)
from nearwise.nn.dropout import dropout
from nearwise.nn.tokens.base import (
    BlockOptions,
    Masks,
    check_masks,
    check_tokens,
)
from nearwise.nn.tokens.knn import KNNAttention
from nearwise.nn.tokens.sampling import Sampling

# Metrics of a memory for which the nearest tokens have the largest scores.
_NEAR = {
    "matmul": ("inner_product",),
    "cosine": ("cosine",),
    "euclidean": ("euclidean", "sqeuclidean"),
}

Remember = bool | np.bool_ | Tensor | np.ndarray | Sequence[Sequence[bool]]


class EarlierTokens(Protocol):
    """Protocol of memories for `MemoryAttention`, such as `nearwise.memory.TokenMemory`."""

    metric: Any
    num_heads: int

    def recall(
        self,
        query: Tensor,
        n_neighbors: int,
        n_samples: int = 0,
        *,
        jitter: bool = True,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return keys, values, log-counts and ids, see `nearwise.memory.tokens.Recalled`."""
        ...

    def add(self, key: Tensor, value: Tensor, keep: Tensor | None = None) -> None:
        """Remember tokens."""
        ...


class MemoryOptions(BlockOptions, total=False):
    """Options that `MemoryAttention` passes on to `KNNAttention`."""

    include_self: IncludeSelf
    learned_temperature: bool
    null_neighbor: bool
    sampling: Sampling | None


class MemoryAttention(KNNAttention):
    """`KNNAttention` with additional attention to the nearest tokens of a memory.

    One softmax weights the k nearest present tokens, the nearest remembered ones and the null
    neighbor. Remembered tokens are constants: gradients reach the queries, the temperature, the
    null neighbor, the memory's score, and keys and values of the present tokens.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, number of heads (8 by default), and common options, see `BlockOptions`.
    n_neighbors : int, default=9
        Number of attended present tokens; all if there are fewer, so that segments may be of any
        length.
    n_recalled : int, default=32
        Number of attended remembered tokens.
    tail_samples : int, default=0
        Number of samples from the other remembered tokens. Each is weighted by the number of
        tokens it represents: an estimate of attention to the whole memory, see
        docs/reference/layers.md. Drawn at random in training, evenly spaced in evaluation.
    attend_local : bool, default=True
        Whether to attend to present tokens; False is cross-attention to the memory only.
    metric, include_self, learned_temperature, null_neighbor, sampling
        As in `KNNAttention`; the memory's metric must be the same, "inner_product" for "matmul".

    Attributes
    ----------
    memory_score : Parameter of shape (num_heads,)
        Learned term added to the scores of remembered tokens; initially 0.

    References
    ----------
    Wu et al., "Memorizing Transformers", ICLR 2022: a gate mixes two attentions there; here they
    share a softmax, in which the gate is the memory's score.

    Examples
    --------
    >>> from nearwise.memory import TokenMemory
    >>> layer = MemoryAttention(24, num_heads=3, n_neighbors=5, n_recalled=4)
    >>> memory = TokenMemory(num_heads=3, n_streams=2)
    >>> for segment in torch.randn(4, 2, 17, 24):
    ...     y = layer(segment, memory=memory, is_causal=True)
    >>> y.shape, memory.n_tokens
    (torch.Size([2, 17, 24]), [68, 68])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        n_neighbors: int = 9,
        n_recalled: int = 32,
        tail_samples: int = 0,
        attend_local: bool = True,
        metric: TokenMetric = "matmul",
        **options: Unpack[MemoryOptions],
    ) -> None:
        super().__init__(dim, num_heads, n_neighbors=n_neighbors, metric=metric, **options)
        if n_recalled < 1:
            raise ValueError(f"n_recalled={n_recalled} must be at least 1.")
        if tail_samples < 0:
            raise ValueError(f"tail_samples={tail_samples} must be at least 0.")
        self.n_recalled, self.tail_samples = n_recalled, tail_samples
        self.attend_local = attend_local
        factory: Any = {"device": options.get("device"), "dtype": options.get("dtype")}
        self.memory_score = nn.Parameter(torch.zeros(num_heads, **factory))

    def extra_repr(self) -> str:
        """Return numbers of present and remembered neighbors, and metric."""
        return f"{super().extra_repr()}, n_recalled={self.n_recalled}"

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        candidates: KeyPositions | None = None,
        memory: EarlierTokens | None = None,
        remember: Remember = True,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Attend tokens to present and remembered tokens, then add them to the memory.

        Parameters
        ----------
        x : Tensor of shape (batch, N, dim)
        attn_mask, key_padding_mask, is_causal, candidates
            As in `KNNAttention`, for the present tokens; all remembered ones are allowed.
        memory : TokenMemory, optional
            Memory with the same number of heads. Without one the layer is `KNNAttention`.
        remember : bool, or bool Tensor or array of shape (batch, N), default=True
            Whether to add the tokens to the memory afterwards, or a mask of the tokens to add.
            Tokens excluded by `key_padding_mask` are never added.
        generator : torch.Generator, optional
            Random generator of the sampled tail.

        Returns
        -------
        output : Tensor of shape (batch, N, dim)
            A token without an allowed key, for example with an empty memory, attends to zeros.

        Raises
        ------
        ValueError
            If shapes or metrics do not fit, a mask is of integers, or `remember` is neither a bool
            nor a mask.
        """
        check_tokens(x, self.dim)
        check_masks(attn_mask, key_padding_mask)
        keep = self._kept(x, remember, key_padding_mask)
        masks = Masks(attn_mask, key_padding_mask, is_causal, candidates)
        query, key, value = self._heads(x)
        if memory is None:
            if not self.attend_local:
                raise ValueError("attend_local=False needs a memory. Pass memory=TokenMemory(...).")
            output = self._attend(query, key, value, masks)
        else:
            output = self._attend_both(query, key, value, masks, memory, generator)
            if keep is not None:
                memory.add(key.detach(), value.detach(), keep)
        return self._merged(output)

    def recall(self, x: Tensor, memory: EarlierTokens) -> tuple[Tensor, Tensor]:
        """Return the nearest remembered tokens of each token, and their relative weights.

        Parameters
        ----------
        x : Tensor of shape (batch, N, dim)
        memory : TokenMemory

        Returns
        -------
        ids : int64 Tensor of shape (batch, heads, N, n_recalled)
            -1 in empty slots.
        weights : Tensor of shape (batch, heads, N, n_recalled)
            Each row sums to 1, or is 0 for an empty memory.
        """
        check_tokens(x, self.dim)
        query, _, _ = self._heads(x)
        self._check_memory(memory)
        keys, _, log_counts, ids = memory.recall(query, self.n_recalled)
        _, weights = _softmax(self._memory_scores(query, keys) + log_counts)
        return ids, weights

    def _attend_both(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        masks: Masks,
        memory: EarlierTokens,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Merge attention to present and remembered tokens by their softmax denominators."""
        parts = [self._attend_here(query, key, value, masks)] if self.attend_local else []
        parts.append(self._attend_memory(query, masks, memory, generator))
        if self.null_neighbor:
            score, null_value = self._null(query)
            parts.append((score, null_value.to(value.dtype).expand_as(value)))
        totals, outputs = zip(*parts, strict=True)
        _, shares = _softmax(torch.stack([total.to(totals[0].dtype) for total in totals], dim=-1))
        shares = shares.to(value.dtype)
        joined: Tensor = (torch.stack(outputs, dim=-1) * shares[..., None, :]).sum(-1)
        return joined

    def _attend_here(
        self, query: Tensor, key: Tensor, value: Tensor, masks: Masks
    ) -> tuple[Tensor, Tensor]:
        """Log-total (B, H, N) and output (B, H, N, D) of the present tokens."""
        query, key = self._sharpened(query, key)
        masks = self._with_candidates(masks, key)
        found = self._find(query, key, value, masks, self._dropout)
        return self._log_total(query, key, found, masks), found.output

    def _attend_memory(
        self,
        query: Tensor,
        masks: Masks,
        memory: EarlierTokens,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor]:
        """Log-total and output of the remembered tokens; -inf and 0 for an empty memory."""
        self._check_memory(memory)
        finite = query
        if masks.key_padding_mask is not None:  # padding may be NaN, which a search rejects
            padding = checked_padding(masks.key_padding_mask, len(query), query.shape[2])
            finite = query.masked_fill(padding[:, None, :, None] & ~query.isfinite(), 0.0)
        keys, values, log_counts, _ = memory.recall(
            finite, self.n_recalled, self.tail_samples, jitter=self.training, generator=generator
        )
        scores = self._memory_scores(query, keys) + log_counts
        scores = scores + self.memory_score[:, None, None].to(scores.dtype)
        total, weights = _softmax(scores)
        weights = dropout(weights, self._dropout).to(values.dtype)
        return total, (weights[..., None, :] @ values)[..., 0, :]

    def _memory_scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Scores (B, H, N, L) of queries with their retrieved keys (B, H, N, L, D)."""
        if self.metric == "cosine":
            query, keys = unit(query), unit(keys)
        scores = paired_scores(query, keys, euclidean=self.metric == "euclidean", scale=self.scale)
        if self.learned_temperature:
            scores = scores * self.log_scale.exp()[:, None, None].to(scores.dtype)
        return scores

    def _check_memory(self, memory: EarlierTokens) -> None:
        if memory.metric not in _NEAR[self.metric]:
            raise ValueError(
                f"The memory's metric is {memory.metric!r}, but the layer's {self.metric!r} needs "
                f"{_NEAR[self.metric][0]!r}: else its nearest tokens are not those of the largest "
                "scores. Make the memory with that metric."
            )
        if memory.num_heads != self.num_heads:
            raise ValueError(
                f"The memory has {memory.num_heads} heads and the layer {self.num_heads}. Make "
                f"it with num_heads={self.num_heads}."
            )

    def _kept(self, x: Tensor, remember: Remember, padding: Tensor | None) -> Tensor | None:
        """Return the mask (B, N) of the tokens to remember; None for no tokens."""
        shape = x.shape[:2]
        if isinstance(remember, (bool, np.bool_)):
            if not remember:
                return None
            keep = torch.ones(shape, dtype=torch.bool, device=x.device)
        else:
            keep = _as_mask(remember, tuple(shape)).to(x.device)
        return keep if padding is None else keep & ~checked_padding(padding, *shape)


def _as_mask(remember: Any, shape: tuple[int, ...]) -> Tensor:
    """Convert an array-like to a mask of a shape; ValueError if impossible."""
    mask: Tensor | None
    try:
        # copied, since torch warns of read-only arrays
        mask = remember if isinstance(remember, Tensor) else torch.from_numpy(np.array(remember))
    except (TypeError, ValueError):  # strings, objects or ragged rows
        mask = None
    if mask is None or mask.dtype != torch.bool or mask.shape != shape:
        seen = repr(remember) if mask is None else f"{mask.dtype} of shape {tuple(mask.shape)}"
        raise ValueError(f"remember must be a bool, or boolean of shape {shape}; got {seen}.")
    return mask


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-total and weights over the last dimension; -inf and 0 if all scores are -inf."""
    is_empty = torch.isneginf(scores).all(dim=-1, keepdim=True)
    safe = at_least_single(scores).masked_fill(is_empty, 0.0)
    total = safe.logsumexp(-1).masked_fill(is_empty[..., 0], -math.inf)
    return total, torch.softmax(safe, dim=-1).masked_fill(is_empty, 0.0)
