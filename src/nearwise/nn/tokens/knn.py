"""Attention of every token to its k nearest tokens."""

import math
from typing import Any, Unpack, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens import KNNAttentionOutput, attend
from nearwise.functional.tokens.pairs import at_least_single, pair_scores, unit
from nearwise.functional.tokens.problem import (
    IncludeSelf,
    TokenMetric,
    check_n_neighbors,
)
from nearwise.nn.tokens.base import (
    BlockOptions,
    Masks,
    TokenAttention,
    check_masks,
    check_name,
    check_tokens,
    expanded_mask,
)
from nearwise.nn.tokens.sampling import Sampling

_FIRST_NULL_SCORE = -4.0  # initial score of a null neighbor: at most some percent of the weight


class KNNAttention(TokenAttention):
    """Attention of each token to its k nearest tokens; replaces timm's attention layers.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, number of heads (8 by default), and common options, see `BlockOptions`.
    n_neighbors : int, default=9
        Number of attended tokens per token and head; all if there are fewer.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"
        Score of a pair, see `nearwise.functional.knn_attention`.
    include_self : {"candidate", "always", "never"}, default="candidate"
        Role of the token itself: it competes like any other, always has a slot, or is excluded.
    learned_temperature : bool, default=False
        Whether each head learns a factor of its scores, as a logarithm, starting at 1. The
        selection of keys does not depend on it.
    null_neighbor : bool, default=False
        Whether to add a learned neighbor to the k nearest of every token. It takes weight if none
        of the k is useful, and starts with little weight and the value 0.
    sampling : Sampling, optional
        Rule that draws the candidate keys, see `Sampling`; default all.

    References
    ----------
    Wang et al., "KVT: k-NN Attention for Boosting Vision Transformers", ECCV 2022.

    Examples
    --------
    >>> layer = KNNAttention(24, num_heads=3, n_neighbors=5)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    takes_candidates = True

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        n_neighbors: int = 9,
        metric: TokenMetric = "matmul",
        include_self: IncludeSelf = "candidate",
        learned_temperature: bool = False,
        null_neighbor: bool = False,
        sampling: Sampling | None = None,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        check_n_neighbors(n_neighbors)
        check_name("metric", metric, get_args(TokenMetric))
        check_name("include_self", include_self, get_args(IncludeSelf))
        if not isinstance(sampling, Sampling | None):
            raise ValueError(
                f"sampling={sampling!r} must be a Sampling, such as Sampling('random', 32)."
            )
        self.n_neighbors, self.metric, self.include_self = n_neighbors, metric, include_self
        self.sampling = sampling or Sampling()
        if metric != "matmul":
            self.scale = 1.0
        factory: Any = {"device": block.get("device"), "dtype": block.get("dtype")}
        if learned_temperature:
            self.log_scale = nn.Parameter(torch.zeros(num_heads, **factory))
        if null_neighbor:
            self.null_key = nn.Parameter(torch.zeros(num_heads, self.head_dim, **factory))
            self.null_score = nn.Parameter(torch.full((num_heads,), _FIRST_NULL_SCORE, **factory))
            self.null_value = nn.Parameter(torch.zeros(num_heads, self.head_dim, **factory))
        self.learned_temperature, self.null_neighbor = learned_temperature, null_neighbor

    def extra_repr(self) -> str:
        """Return number of neighbors and metric."""
        return f"n_neighbors={self.n_neighbors}, metric={self.metric!r}"

    def neighbors(self, x: Tensor, attn_mask: Tensor | None = None) -> KNNAttentionOutput:
        """Return the positions of each token's nearest tokens, and their weights.

        Parameters
        ----------
        x : Tensor of shape (batch, N, dim)
        attn_mask : Tensor, optional

        Returns
        -------
        found : KNNAttentionOutput
            Tensors of shape (batch, heads, N, ...), without dropout and null neighbor.

        Raises
        ------
        ValueError
            If shapes do not fit, or a mask is of integers.
        """
        check_tokens(x, self.dim)
        check_masks(attn_mask, None)
        query, key, value = self._split(self.qkv(x))
        query, key = self.q_norm(query), self.k_norm(key)
        masks = self._with_candidates(Masks(attn_mask), key)
        return self._find(*self._sharpened(query, key), value, masks, 0.0)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        projected = query
        query, key = self._sharpened(query, key)
        masks = self._with_candidates(masks, key)
        found = self._find(query, key, value, masks, self._dropout)
        if not self.null_neighbor:
            return found.output
        null, null_value = self._null(projected)
        total = self._log_total(query, key, found, masks)
        taken = torch.sigmoid(null - total.to(null.dtype))[..., None].to(value.dtype)
        return torch.lerp(found.output, null_value.to(value.dtype).expand_as(found.output), taken)

    def _with_candidates(self, masks: Masks, key: Tensor) -> Masks:
        """Draw the candidate keys, unless they are given."""
        if masks.candidates is not None:
            return masks
        drawn = self.sampling.draw(key.shape[2], key.device, self.training)
        return masks.among(drawn)

    def _null(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score (B, H, N) of the null neighbor, and its value (H, 1, D)."""
        query = unit(query) if self.metric == "cosine" else query
        query = self._stretched(query) if self.learned_temperature else query
        key, value = (x[:, None].to(query.dtype) for x in (self.null_key, self.null_value))
        score = (query * key).sum(-1) * self.scale + self.null_score[:, None].to(query.dtype)
        return score, value

    @property
    def _working_metric(self) -> TokenMetric:
        # Keys have unit length already; a temperature may scale the queries.
        return "matmul" if self.metric == "cosine" else self.metric

    def _sharpened(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Multiply queries by the temperature of each head, except for distances."""
        if self.metric == "cosine":
            query, key = unit(query), unit(key)
        if self.learned_temperature and self.metric != "euclidean":
            query = self._stretched(query)
        return query, key

    @property
    def _factor(self) -> Tensor | None:
        """Return the factor (H, 1, 1) of distances, if heads have a temperature."""
        if not self.learned_temperature or self.metric != "euclidean":
            return None
        return at_least_single(self.log_scale).exp()[:, None, None]

    def _log_total(
        self, query: Tensor, key: Tensor, found: KNNAttentionOutput, masks: Masks
    ) -> Tensor:
        factor, is_distance = self._factor, self.metric == "euclidean"
        return log_total(
            query, key, found, masks, is_distance, self.scale if factor is None else factor
        )

    def _stretched(self, x: Tensor) -> Tensor:
        """Multiply heads (B, H, N, D) by their learned factor."""
        return x * self.log_scale.exp()[:, None, None].to(x.dtype)

    def _find(
        self, query: Tensor, key: Tensor, value: Tensor, masks: Masks, dropout_p: float
    ) -> KNNAttentionOutput:
        return attend(
            query,
            key,
            value,
            self.n_neighbors,
            metric=self._working_metric,
            scale=self.scale,
            attn_mask=masks.attn_mask,
            key_padding_mask=masks.key_padding_mask,
            is_causal=masks.is_causal,
            include_self=self.include_self,
            candidates=masks.candidates,
            dropout_p=dropout_p,
            factor=self._factor,
        )


def biased_scores(
    query: Tensor, key: Tensor, at: Tensor, masks: Masks, *, euclidean: bool, scale: float | Tensor
) -> Tensor:
    """Scores (B, H, N, K) of queries with the keys at `at`, plus an additive mask."""
    scores = pair_scores(query, key, at, euclidean=euclidean, scale=scale)
    if masks.attn_mask is None or not masks.attn_mask.is_floating_point():
        return scores
    added = expanded_mask(masks.attn_mask, (*query.shape[:-1], key.shape[-2]))
    return scores + added.gather(-1, at.clamp_min(0))


def log_total(
    query: Tensor,
    key: Tensor,
    found: KNNAttentionOutput,
    masks: Masks,
    euclidean: bool,
    scale: float | Tensor,
) -> Tensor:
    """Logarithm (B, H, N) of the softmax denominator of the selected scores.

    Computed from score and weight of the best neighbor, whose weight is at least 1 / K.
    """
    best = found.indices[..., :1].long()
    is_empty = best < 0
    score = biased_scores(query, key, best, masks, euclidean=euclidean, scale=scale)
    weight = found.weights[..., :1].to(score.dtype).masked_fill(is_empty, 1.0)
    return (score - weight.log()).masked_fill(is_empty, -math.inf)[..., 0]
