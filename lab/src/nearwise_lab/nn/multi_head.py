"""Attention over a query's neighbors: the original study's multi-head form and simpler ones.

All four modules are called as ``module(query, neighbors, distances=None, mask=None)`` and return
weights of shape (B, K) that sum to 1, so that one replaces another.
"""

import math

import torch
from torch import Tensor, nn


def squared_distances(query: Tensor, neighbors: Tensor) -> Tensor:
    """Squared L2 distances (B, K) of queries (B, D) to their own neighbors (B, K, D)."""
    return (neighbors - query.unsqueeze(1)).square().sum(dim=-1)


class UniformAttention(nn.Module):
    """Every neighbor weighs the same: 1 / k."""

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights (B, K) for queries (B, D) and neighbors (B, K, D); True in `mask` keeps one."""
        _check_shapes(query, neighbors, distances, mask)
        return _softmax(neighbors.new_zeros(neighbors.shape[:2]), mask)


class DistanceAttention(nn.Module):
    """Weights ``softmax(-d / temperature)``.

    Parameters
    ----------
    temperature : float, default=1.0
        Positive, in the unit of the distances (squared L2 unless others are passed).
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature = temperature

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights (B, K); `distances` (B, K) default to the squared L2 ones."""
        _check_shapes(query, neighbors, distances, mask)
        distances = squared_distances(query, neighbors) if distances is None else distances
        return _softmax(-distances / self.temperature, mask)


class LearnedDistanceAttention(nn.Module):
    """`DistanceAttention` whose temperature is learned, as its logarithm.

    Parameters
    ----------
    temperature : float, default=1.0
        Positive start; at the start the weights are those of `DistanceAttention`.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights (B, K); `distances` (B, K) default to the squared L2 ones."""
        _check_shapes(query, neighbors, distances, mask)
        distances = squared_distances(query, neighbors) if distances is None else distances
        return _softmax(-distances * torch.exp(-self.log_temperature), mask)


class MultiHeadNeighborAttention(nn.Module):
    """The study's multi-head neighbor attention.

    For head h: ``score = (W_q q)_h . (W_k n)_h / sqrt(D / H) / tau_h + bias_h(d)``, softmax over
    the K neighbors, mean over the H heads. The bias is Linear(1, 64), GELU, Linear(64, H) of the
    squared L2 distance.

    Parameters
    ----------
    dim : int
        Width D of queries and neighbors, a multiple of `num_heads`.
    num_heads : int, default=4
    temperature : float, default=1.0
        Start of every head's temperature tau_h, inside `temperature_bounds`.
    temperature_bounds : (float, float), default=(0.05, 5.0)
        tau_h is held to this range.

    Examples
    --------
    >>> attention = MultiHeadNeighborAttention(8, num_heads=2)
    >>> attention(torch.randn(5, 8), torch.randn(5, 3, 8)).shape
    torch.Size([5, 3])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 4,
        *,
        temperature: float = 1.0,
        temperature_bounds: tuple[float, float] = (0.05, 5.0),
    ) -> None:
        super().__init__()
        if num_heads < 1 or dim < 1 or dim % num_heads:
            raise ValueError(
                f"dim must be a positive multiple of num_heads, got dim={dim} and "
                f"num_heads={num_heads}."
            )
        low, high = temperature_bounds
        if not 0 < low <= temperature <= high:
            raise ValueError(
                f"temperature must lie inside temperature_bounds, and these be positive; got "
                f"temperature={temperature} and temperature_bounds={temperature_bounds}."
            )
        self.num_heads = num_heads
        self.temperature_bounds = (low, high)
        self.query_projection = nn.Linear(dim, dim)
        self.key_projection = nn.Linear(dim, dim)
        self.distance_bias = nn.Sequential(nn.Linear(1, 64), nn.GELU(), nn.Linear(64, num_heads))
        self.log_temperature = nn.Parameter(torch.full((num_heads,), math.log(temperature)))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @property
    def temperature(self) -> Tensor:
        """Temperatures of the heads, shape (H,), inside their bounds."""
        low, high = self.temperature_bounds
        return self.log_temperature.exp().clamp(low, high)

    def head_weights(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights of each head, shape (B, H, K); every row sums to 1."""
        _check_shapes(query, neighbors, distances, mask)
        distances = squared_distances(query, neighbors) if distances is None else distances
        dots = self._dots(self.query_projection(query), neighbors)
        bias = self.distance_bias(distances.unsqueeze(-1)).transpose(1, 2)
        scores = dots / self.temperature[:, None] + bias
        return _softmax(scores, None if mask is None else mask.unsqueeze(1))

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights (B, K), the mean over heads.

        Parameters
        ----------
        query : Tensor of shape (B, D)
        neighbors : Tensor of shape (B, K, D)
        distances : Tensor of shape (B, K), optional
            Squared L2 distances; computed where they are not given.
        mask : bool Tensor of shape (B, K), optional
            True keeps a neighbor. A row that keeps none raises ValueError.
        """
        return self.head_weights(query, neighbors, distances, mask).mean(dim=1)

    def _dots(self, query: Tensor, neighbors: Tensor) -> Tensor:
        """Scaled products (B, H, K) of projected queries with the projections of neighbors."""
        # One query per row: to bring it to the neighbors' space costs K times less than to project
        # each neighbor.
        heads = (self.num_heads, -1)
        q = query.unflatten(-1, heads)
        moved = torch.einsum("bhe,hed->bhd", q, self.key_projection.weight.unflatten(0, heads))
        bias = (q * self.key_projection.bias.unflatten(0, heads)).sum(-1, keepdim=True)
        return (moved @ neighbors.transpose(1, 2) + bias) / math.sqrt(q.shape[-1])


def _softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, dim=-1)
    if not mask.any(dim=-1).all():
        raise ValueError("A row of mask keeps no neighbor. Keep at least one in every row.")
    return torch.softmax(scores.masked_fill(~mask, -torch.inf), dim=-1)


def _check_shapes(
    query: Tensor, neighbors: Tensor, distances: Tensor | None, mask: Tensor | None
) -> None:
    if query.ndim != 2 or neighbors.ndim != 3 or neighbors.shape[::2] != query.shape:
        raise ValueError(
            "query must have shape (B, D) and neighbors (B, K, D) with K at least 1, got "
            f"{tuple(query.shape)} and {tuple(neighbors.shape)}."
        )
    if neighbors.shape[1] < 1:
        raise ValueError("neighbors holds no neighbor (K = 0). Pass at least one for each query.")
    for name, tensor in (("distances", distances), ("mask", mask)):
        if tensor is not None and tensor.shape != neighbors.shape[:2]:
            raise ValueError(
                f"{name} must have shape {tuple(neighbors.shape[:2])}, got {tuple(tensor.shape)}."
            )
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True for neighbors to keep; got {mask.dtype}. Where 1 marks "
            "them, pass mask == 1."
        )


def _check_temperature(temperature: float) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature must be positive, got {temperature}.")
