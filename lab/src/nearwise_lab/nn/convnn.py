"""ConvNN: a convolution over the ranked neighbors of every token."""

import math
from typing import Any, Literal, Unpack, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens import KNNAttentionOutput, attend
from nearwise.functional.tokens.pairs import gather_slots, unit
from nearwise.functional.tokens.problem import IncludeSelf, TokenMetric, check_n_neighbors
from nearwise.nn.dropout import dropout
from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention, check_name
from nearwise.nn.tokens.knn import biased_scores, log_total
from nearwise.nn.tokens.sampling import Sampling, SamplingKind

Convolution = Literal["standard", "depthwise", "depthwise-separable"]


class SlotConvolution(nn.Module):
    """Combine the weighed values of a token's k neighbors, each rank with weights of its own.

    "standard": ``o = sum_k W_k (a_k v_k)``, one matrix per slot; "depthwise": one number per
    channel and slot, 1 at first, which is plain attention, and channels of the values beyond
    `out_width` are left out; "depthwise-separable": such numbers, then one matrix for all slots.
    """

    def __init__(
        self, kind: Convolution, in_width: int, out_width: int, n_slots: int, **factory: Any
    ) -> None:
        super().__init__()
        check_name("convolution", kind, get_args(Convolution))
        self.kind, self.n_slots, self.out_width = kind, n_slots, out_width
        shape = {"standard": (out_width, in_width), "depthwise": (out_width, 1)}
        self.weight = nn.Parameter(torch.empty(*shape.get(kind, (in_width, 1)), n_slots, **factory))
        if kind == "depthwise-separable":
            self.pointwise = nn.Linear(in_width, out_width, bias=False, **factory)
        if kind == "depthwise":
            nn.init.ones_(self.weight)
        else:  # as torch's convolutions
            nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, value: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
        """Output (B, H, N, out_width) of values (B, H, M, in_width).

        `indices` and `weights` (B, H, N, K) are the neighbor in each of the first K slots and its
        factor; -1 and 0 in empty slots.
        """
        if self.kind == "depthwise":
            value = value[..., : self.out_width]
        neighbors = gather_slots(value, indices.long())  # (B, H, N, K, in)
        # (K, in or 1, out)
        kernel = self.weight.permute(2, 1, 0)[: indices.shape[-1]].to(value.dtype)
        if self.kind == "standard":
            return (weights[..., None] * neighbors).flatten(-2) @ kernel.flatten(0, 1)
        summed = (weights[..., None, :] @ (neighbors * kernel[:, 0]))[..., 0, :]
        return summed if self.kind == "depthwise" else self.pointwise(summed)

    def extra_repr(self) -> str:
        """Return the kind and the number of slots."""
        return f"{self.kind!r}, n_slots={self.n_slots}"


Weighting = Literal["softmax", "raw"]
_OWN_SCORE = 1.0  # similarity (or distance) of a token to itself in its own slot, as published
_FAR = 1e-8  # added to a distance before the division by it


class ConvNNAttention(TokenAttention):
    """Find the k nearest tokens of every token and convolve over them in the order of their rank.

    With sampled candidates the token itself has the first slot and its `n_neighbors` - 1 nearest
    candidates the others; among all tokens it competes like any other.

    Parameters
    ----------
    dim, num_heads, **block
        As for `KNNAttention`; `attn_drop` drops numbers of the convolution's output.
    n_neighbors : int, default=9
        Slots of the convolution; the last ones stay empty where there are fewer tokens.
    metric : {"matmul", "cosine", "euclidean"}, default="matmul"
    convolution : {"depthwise", "standard", "depthwise-separable"}, default="depthwise"
        See `SlotConvolution`; shared by the heads.
    weighting : {"softmax", "raw"}, default="softmax"
        Factors of the values: the softmax of the selected similarities (of minus the distances),
        or the similarities themselves (one over the distances), with what a floating mask adds to
        the scores (takes off a distance, down to 0).
    sampling : {"all", "random", "line", "grid"}, default="all"
        Which tokens are candidates, see `Sampling`.
    num_samples, sample_padding, num_prefix_tokens, grid_size, sample_in_eval
        See `Sampling`.
    coordinates : bool, default=False
        Append the position of each token along the sequence, in [-1, 1], to queries, keys and,
        except for "depthwise", values.

    References
    ----------
    Kang et al., "Attention Via Convolutional Nearest Neighbors", 2025,
    github.com/mingikang31/Convolutional-Nearest-Neighbor-Attention.

    Examples
    --------
    >>> layer = ConvNNAttention(24, num_heads=3, n_neighbors=5, convolution="standard")
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
        convolution: Convolution = "depthwise",
        weighting: Weighting = "softmax",
        sampling: SamplingKind = "all",
        num_samples: int = -1,
        sample_padding: int = 0,
        num_prefix_tokens: int = 0,
        grid_size: tuple[int, int] | None = None,
        sample_in_eval: bool = False,
        coordinates: bool = False,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        check_name("metric", metric, get_args(TokenMetric))
        check_name("weighting", weighting, get_args(Weighting))
        check_n_neighbors(n_neighbors)
        self.sampling = Sampling(
            sampling, num_samples, sample_padding, num_prefix_tokens, grid_size, sample_in_eval
        )
        self.n_neighbors, self.metric, self.weighting = n_neighbors, metric, weighting
        self.coordinates = coordinates
        if metric != "matmul":
            self.scale = 1.0
        more = coordinates and convolution != "depthwise"
        factory: Any = {"device": block.get("device"), "dtype": block.get("dtype")}
        self.conv = SlotConvolution(
            convolution, self.head_dim + more, self.head_dim, n_neighbors, **factory
        )

    def extra_repr(self) -> str:
        """Return metric, weighting and sampling."""
        return (
            f"metric={self.metric!r}, weighting={self.weighting!r}, "
            f"sampling={self.sampling.kind!r}, coordinates={self.coordinates!r}"
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        query, key, value = (self._with_coordinates(x) for x in (query, key, value))
        indices, weights = self._rank(query, key, masks)
        return dropout(self.conv(value, indices, weights.to(value.dtype)), self._dropout)

    def _with_coordinates(self, x: Tensor) -> Tensor:
        """Append the position of each token."""
        if not self.coordinates:
            return x
        where = torch.linspace(-1, 1, x.shape[2], device=x.device, dtype=x.dtype)
        return torch.cat([x, where[:, None].expand(*x.shape[:3], 1)], dim=-1)

    def _rank(self, query: Tensor, key: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        """Neighbors of every token, best first: positions and factors, (B, H, N, K) each."""
        if self.metric == "cosine":
            query, key = unit(query), unit(key)
        candidates = masks.candidates
        if candidates is None:
            candidates = self.sampling.draw(key.shape[2], key.device, self.training)
        if candidates is not None or self.sampling.kind == "random":
            return self._rank_sampled(query, key, masks.among(candidates))
        found = self._nearest(query, key, masks, self.n_neighbors, "candidate")
        if self.weighting == "softmax":
            return found.indices, found.weights
        return found.indices, self._raw_scores(query, key, found.indices, masks)

    def _rank_sampled(self, query: Tensor, key: Tensor, masks: Masks) -> tuple[Tensor, Tensor]:
        """Rank the candidates after the token itself."""
        own = torch.arange(query.shape[2], device=query.device, dtype=torch.int32)
        own = own[:, None].expand(*query.shape[:3], 1)
        own_score = query.new_full(own.shape, _OWN_SCORE)
        if self.n_neighbors == 1:
            is_softmax = self.weighting == "softmax"
            return own, torch.ones_like(own_score) if is_softmax else self._raw(own_score)
        found = self._nearest(query, key, masks, self.n_neighbors - 1, "never")
        indices = torch.cat([own, found.indices], dim=-1)
        if self.weighting == "raw":
            raw = self._raw_scores(query, key, found.indices, masks)
            return indices, torch.cat([self._raw(own_score), raw], dim=-1)
        total = log_total(query, key, found, masks, self._is_distance, self.scale)[..., None]
        logit = -own_score if self._is_distance else own_score
        share = torch.sigmoid(logit - total)
        others = found.weights * (1 - share).to(found.weights.dtype)
        return indices, torch.cat([share.to(others.dtype), others], dim=-1)

    @property
    def _is_distance(self) -> bool:
        return self.metric == "euclidean"

    def _nearest(
        self, query: Tensor, key: Tensor, masks: Masks, n: int, include_self: IncludeSelf
    ) -> KNNAttentionOutput:
        """Positions and softmax weights of the nearest tokens, without their values."""
        return attend(
            query,
            key,
            key.detach()[..., :1],
            n,
            metric="euclidean" if self._is_distance else "matmul",
            scale=self.scale,
            attn_mask=masks.attn_mask,
            key_padding_mask=masks.key_padding_mask,
            is_causal=masks.is_causal,
            include_self=include_self,
            candidates=masks.candidates,
        )

    def _raw_scores(self, query: Tensor, key: Tensor, indices: Tensor, masks: Masks) -> Tensor:
        """Factors of the values without a softmax, with the additive mask; 0 in empty slots."""
        is_distance, at = self._is_distance, indices.long()
        scores = biased_scores(query, key, at, masks, euclidean=is_distance, scale=self.scale)
        return self._raw(-scores if is_distance else scores).masked_fill(indices < 0, 0.0)

    def _raw(self, measured: Tensor) -> Tensor:
        return 1 / (measured.clamp_min(0) + _FAR) if self._is_distance else measured
