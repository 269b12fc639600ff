"""One layer of a vision transformer: tokens attend, then each is thought over."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Two linear layers with a GELU between.

    Parameters
    ----------
    dim, hidden_dim : int
    dropout : float, default=0
        Of the hidden layer.
    """

    def __init__(self, dim: int, hidden_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (..., dim), each on its own."""
        output: Tensor = self.fc2(self.drop(self.act(self.fc1(x))))
        return output


class DropPath(nn.Module):
    """Leave out a branch for some of the examples while training (stochastic depth).

    Parameters
    ----------
    rate : float in [0, 1)
        Share of the examples; the branch is scaled up for the others.

    References
    ----------
    Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path={rate} must lie in [0, 1).")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero whole examples (B, ...)."""
        if not self.training or self.rate == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1)
        kept = torch.rand(shape, device=x.device) >= self.rate
        return x * kept.to(x.dtype) / (1 - self.rate)

    def extra_repr(self) -> str:
        """Tell the rate."""
        return f"{self.rate:.3g}"


class Block(nn.Module):
    """A pre-norm transformer layer: ``x + attn(norm(x))``, then ``x + mlp(norm(x))``.

    Parameters
    ----------
    attn : Module
        From tokens (B, N, dim) to tokens.
    dim, mlp_dim : int
    dropout : float, default=0
        Of both branches and the hidden layer.
    drop_path : float, default=0
        See `DropPath`.
    """

    def __init__(
        self,
        attn: nn.Module,
        dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = MLP(dim, mlp_dim, dropout)
        self.drop = nn.Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (B, N, dim)."""
        x = x + self.drop_path(self.drop(self.attn(self.norm1(x))))
        return x + self.drop_path(self.drop(self.mlp(self.norm2(x))))
