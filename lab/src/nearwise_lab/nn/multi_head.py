"""The original study's multi-head attention over a query's neighbors."""

import math

import torch
from torch import Tensor, nn


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

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        distances: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Weights (B, K), the mean over heads; every row sums to 1.

        Parameters
        ----------
        query : Tensor of shape (B, D)
        neighbors : Tensor of shape (B, K, D)
        distances : Tensor of shape (B, K), optional
            Squared L2 distances; computed where they are not given.
        mask : bool Tensor of shape (B, K), optional
            True keeps a neighbor. A row that keeps none raises ValueError.
        """
        if query.ndim != 2 or neighbors.ndim != 3 or neighbors.shape[::2] != query.shape:
            raise ValueError(
                "query must have shape (B, D) and neighbors (B, K, D) with K at least 1, got "
                f"{tuple(query.shape)} and {tuple(neighbors.shape)}."
            )
        if neighbors.shape[1] < 1:
            raise ValueError("neighbors holds no neighbor (K = 0). Pass at least one per query.")
        for name, given in (("distances", distances), ("mask", mask)):
            if given is not None and given.shape != neighbors.shape[:2]:
                raise ValueError(
                    f"{name} must have shape {tuple(neighbors.shape[:2])}, got "
                    f"{tuple(given.shape)}."
                )
        if distances is None:
            distances = (neighbors - query.unsqueeze(1)).square().sum(dim=-1)
        dots = self._dots(self.query_projection(query), neighbors)
        bias = self.distance_bias(distances.unsqueeze(-1)).transpose(1, 2)
        scores = dots / self.temperature[:, None] + bias
        if mask is not None:
            if mask.dtype != torch.bool:
                raise ValueError(
                    f"mask must be boolean, True for neighbors to keep; got {mask.dtype}. Where 1 "
                    "marks them, pass mask == 1."
                )
            if not mask.any(dim=-1).all():
                raise ValueError("A row of mask keeps no neighbor. Keep at least one in each.")
            scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
        return torch.softmax(scores, dim=-1).mean(dim=1)

    def _dots(self, query: Tensor, neighbors: Tensor) -> Tensor:
        """Scaled products (B, H, K) of projected queries with the projections of neighbors."""
        # One query per row: to bring it to the neighbors' space costs K times less than to project
        # each neighbor.
        heads = (self.num_heads, -1)
        q = query.unflatten(-1, heads)
        moved = torch.einsum("bhe,hed->bhd", q, self.key_projection.weight.unflatten(0, heads))
        bias = (q * self.key_projection.bias.unflatten(0, heads)).sum(-1, keepdim=True)
        return (moved @ neighbors.transpose(1, 2) + bias) / math.sqrt(q.shape[-1])
