"""Attention by PyTorch's scores: to all tokens, the nearest, or a fixed pattern."""

import math
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor

from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention, check_name
from nearwise.nn.tokens.knn import KNNAttention

SparseMode = Literal["all", "local", "strided"]


class MultiHeadAttention(TokenAttention):
    """Every token attends to all tokens, by PyTorch's fused attention.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.

    Examples
    --------
    >>> layer = MultiHeadAttention(24, num_heads=3)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    def __init__(self, dim: int, num_heads: int = 8, **block: Unpack[BlockOptions]) -> None:
        super().__init__(dim, num_heads, **block)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        return self._dense(query, key, value, masks)


class KvtAttention(KNNAttention):
    """The k-NN attention of KVT: the k largest dot products of a token, any other left out.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    n_neighbors : int, default=100
    qk_scale : float, optional
        Factor of the dot products; default ``head_dim ** -0.5``.

    References
    ----------
    Wang et al., "KVT: k-NN Attention for Boosting Vision Transformers", ECCV 2022.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        n_neighbors: int = 100,
        qk_scale: float | None = None,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, n_neighbors=n_neighbors, **block)
        if qk_scale is not None:
            if not 0 < qk_scale < math.inf:
                raise ValueError(f"qk_scale={qk_scale} must be positive and finite.")
            self.scale = qk_scale


class SparseAttention(TokenAttention):
    """Attention to a band of near tokens, or to every token at a multiple of a step.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    mode : {"all", "local", "strided"}, default="local"
        "local": tokens at most ``context // 2`` away; "strided": tokens whose distance is a
        multiple of `context`; "all": all of them.
    context : int, default=32
        Width of the band, or the step.

    References
    ----------
    Child et al., "Generating Long Sequences with Sparse Transformers", 2019, without its
    causality.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        mode: SparseMode = "local",
        context: int = 32,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        check_name("mode", mode, get_args(SparseMode))
        if context < 1:
            raise ValueError(f"context={context} must be positive.")
        self.mode, self.context = mode, context

    def extra_repr(self) -> str:
        """Return the pattern."""
        return f"mode={self.mode!r}, context={self.context}"

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        return self._dense(query, key, value, masks, self._pattern(query.shape[2], query.device))

    def _pattern(self, n_tokens: int, device: torch.device) -> Tensor | None:
        """Boolean mask (N, N), True where a token may attend; None for no mask."""
        if self.mode == "all":
            return None
        at = torch.arange(n_tokens, device=device)
        gap = (at[:, None] - at).abs()
        if self.mode == "local":
            return gap <= self.context // 2
        return gap % self.context == 0
