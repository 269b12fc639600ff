"""ConvNN: a convolution over the ranked neighbors of every token."""

import math
from typing import Any, Literal, NamedTuple, Unpack, get_args

import torch
from torch import Tensor, nn

from nearwise.functional.tokens import KNNAttentionOutput, attend
from nearwise.functional.tokens.pairs import gather_slots, unit
from nearwise.functional.tokens.problem import IncludeSelf, TokenMetric, check_n_neighbors
from nearwise.nn.dropout import dropout
from nearwise.nn.tokens.base import (
    BlockOptions,
    Masks,
    TokenAttention,
    check_name,
)
from nearwise.nn.tokens.knn import biased_scores, log_total
from nearwise.nn.tokens.sampling import Sampling, SamplingKind, grid_of

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
        if kind not in get_args(Convolution):
            known = ", ".join(get_args(Convolution))
            raise ValueError(f"convolution={kind!r} is not one of {known}.")
        self.kind, self.n_slots, self.out_width = kind, n_slots, out_width
        if kind == "standard":
            self.weight = nn.Parameter(torch.empty(out_width, in_width, n_slots, **factory))
        elif kind == "depthwise":
            self.weight = nn.Parameter(torch.empty(out_width, 1, n_slots, **factory))
        else:
            self.weight = nn.Parameter(torch.empty(in_width, 1, n_slots, **factory))
            self.pointwise = nn.Linear(in_width, out_width, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize: ones for "depthwise", else as torch's convolutions."""
        if self.kind == "depthwise":
            nn.init.ones_(self.weight)
        else:
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
        """Return the kind and how many slots."""
        return f"{self.kind!r}, n_slots={self.n_slots}"


Weighting = Literal["softmax", "raw"]
Coordinates = Literal["none", "1d", "2d"]

_FAR = 1e-8  # added to a distance before the division by it


class Ranked(NamedTuple):
    """The neighbors of every token, best first: positions and factors, (B, H, N, K) each."""

    indices: Tensor
    weights: Tensor


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
    num_samples, sample_padding, num_prefix_tokens, grid_size, sample_in_eval, generator
        See `Sampling`.
    coordinates : {"none", "1d", "2d"}, default="none"
        Append the position of each token, in [-1, 1], to queries, keys and, except for "depthwise",
        values: along the sequence, or rows and columns of the grid (0 for prefix tokens).
    self_score : float or None, default=1.0
        Similarity (or distance) of a token to itself in its own slot; None for the true one.

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
        generator: torch.Generator | None = None,
        coordinates: Coordinates = "none",
        self_score: float | None = 1.0,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        for name, chosen, known in (
            ("metric", metric, get_args(TokenMetric)),
            ("weighting", weighting, get_args(Weighting)),
            ("coordinates", coordinates, get_args(Coordinates)),
        ):
            check_name(name, chosen, known)
        check_n_neighbors(n_neighbors)
        self.sampling = Sampling(
            sampling,
            num_samples,
            sample_padding,
            num_prefix_tokens,
            grid_size,
            sample_in_eval,
            generator,
        )
        self.n_neighbors, self.metric, self.weighting = n_neighbors, metric, weighting
        self.coordinates, self.self_score = coordinates, self_score
        if metric != "matmul":
            self.scale = 1.0
        more = 0 if convolution == "depthwise" else {"none": 0, "1d": 1, "2d": 2}[coordinates]
        factory: Any = {"device": block.get("device"), "dtype": block.get("dtype")}
        self.conv = SlotConvolution(
            convolution, self.head_dim + more, self.head_dim, n_neighbors, **factory
        )

    def extra_repr(self) -> str:
        """Return how neighbors are found and weighed."""
        return (
            f"metric={self.metric!r}, weighting={self.weighting!r}, "
            f"sampling={self.sampling.kind!r}, coordinates={self.coordinates!r}"
        )

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        query, key, value = (self._with_coordinates(x) for x in (query, key, value))
        ranked = self._rank(query, key, masks)
        output = self.conv(value, ranked.indices, ranked.weights.to(value.dtype))
        return dropout(output, self._dropout)

    def _with_coordinates(self, x: Tensor) -> Tensor:
        """Append where each token is."""
        if self.coordinates == "none":
            return x
        batch, heads, n_tokens, _ = x.shape
        where = self._positions(n_tokens, x)
        return torch.cat([x, where.expand(batch, heads, -1, -1)], dim=-1)

    def _positions(self, n_tokens: int, like: Tensor) -> Tensor:
        """Positions (N, 1) or (N, 2) of the tokens, each in [-1, 1]."""
        if self.coordinates == "1d":
            return _spread(n_tokens, like)[:, None]
        if n_tokens == 0:
            return like.new_zeros(0, 2)
        n_prefix = self.sampling.num_prefix_tokens
        grid = grid_of(n_tokens - n_prefix, self.sampling.grid_size, n_prefix)
        rows, columns = (_spread(side, like) for side in grid)
        where = torch.cartesian_prod(rows, columns)
        return torch.cat([where.new_zeros(n_prefix, 2), where])

    def _rank(self, query: Tensor, key: Tensor, masks: Masks) -> Ranked:
        """Find and weigh the neighbors of every token."""
        if self.metric == "cosine":
            query, key = unit(query), unit(key)
        candidates = masks.candidates
        if candidates is None:
            candidates = self.sampling.draw(key.shape[2], key.device, self.training)
        if candidates is None and self.sampling.kind != "random":
            return self._rank_all(query, key, masks, self.n_neighbors)
        return self._rank_sampled(query, key, masks.among(candidates))

    def _rank_all(self, query: Tensor, key: Tensor, masks: Masks, n_slots: int) -> Ranked:
        """Rank all tokens; the token itself is one of them."""
        found = self._nearest(query, key, masks, n_slots, "candidate")
        if self.weighting == "softmax":
            return Ranked(found.indices, found.weights)
        return Ranked(found.indices, self._raw_scores(query, key, found.indices, masks))

    def _rank_sampled(self, query: Tensor, key: Tensor, masks: Masks) -> Ranked:
        """Rank the candidates after the token itself."""
        own = torch.arange(query.shape[2], device=query.device, dtype=torch.int32)
        own = own[:, None].expand(*query.shape[:3], 1)
        own_score = self._own_score(query, key, own.long())
        if self.n_neighbors == 1:
            weight = torch.ones_like(own_score)
            return Ranked(own, weight if self.weighting == "softmax" else self._raw(own_score))
        found = self._nearest(query, key, masks, self.n_neighbors - 1, "never")
        indices = torch.cat([own, found.indices], dim=-1)
        if self.weighting == "raw":
            raw = self._raw_scores(query, key, found.indices, masks)
            return Ranked(indices, torch.cat([self._raw(own_score), raw], dim=-1))
        total = log_total(query, key, found, masks, self._is_distance, self.scale)[..., None]
        logit = -own_score if self._is_distance else own_score
        share = torch.sigmoid(logit - total)
        others = found.weights * (1 - share).to(found.weights.dtype)
        return Ranked(indices, torch.cat([share.to(others.dtype), others], dim=-1))

    @property
    def _is_distance(self) -> bool:
        return self.metric == "euclidean"

    def _nearest(
        self, query: Tensor, key: Tensor, masks: Masks, n: int, include_self: IncludeSelf
    ) -> KNNAttentionOutput:
        """Positions and softmax weights of the nearest tokens; their values come later."""
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

    def _own_score(self, query: Tensor, key: Tensor, own: Tensor) -> Tensor:
        """Similarity (or distance) (B, H, N, 1) of every token to itself."""
        if self.self_score is not None:
            return torch.full(own.shape, self.self_score, dtype=query.dtype, device=query.device)
        return self._measured(query, key, own, Masks())

    def _measured(self, query: Tensor, key: Tensor, at: Tensor, masks: Masks) -> Tensor:
        """Similarities (or distances) of selected pairs, with what a mask adds to the scores."""
        is_distance = self._is_distance
        scores = biased_scores(query, key, at, masks, euclidean=is_distance, scale=self.scale)
        return -scores if is_distance else scores

    def _raw_scores(self, query: Tensor, key: Tensor, indices: Tensor, masks: Masks) -> Tensor:
        """Factors of the values without a softmax; 0 in empty slots."""
        measured = self._measured(query, key, indices.long(), masks)
        return self._raw(measured).masked_fill(indices < 0, 0.0)

    def _raw(self, measured: Tensor) -> Tensor:
        return 1 / (measured.clamp_min(0) + _FAR) if self._is_distance else measured


def _spread(n: int, like: Tensor) -> Tensor:
    """Spread positions evenly over [-1, 1]."""
    return torch.linspace(-1, 1, n, device=like.device, dtype=like.dtype)
