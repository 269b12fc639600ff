"""Embeddings of numeric columns: each number becomes a short vector."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class PLRLiteEmbedding(nn.Module):
    """Learned periodic features, one linear map shared by all columns, ReLU.

    ``x -> ReLU(W [sin(2 pi c_f x), cos(2 pi c_f x)] + b)`` with frequencies ``c_f`` of its own
    for each column f.

    Parameters
    ----------
    n_features : int
        Number of numeric columns F, at least 1.
    dim : int, default=16
        Width d of the vector of one number.
    n_frequencies : int, default=32
        Learned frequencies per column.
    frequency_scale : float, default=0.1
        Standard deviation of the frequencies at the start, in cycles per unit of the
        (standardised) column. Larger values start less smooth.

    References
    ----------
    Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning",
    NeurIPS 2022; the "lite" form of its reference code.

    Examples
    --------
    >>> PLRLiteEmbedding(3, dim=8)(torch.zeros(5, 3)).shape
    torch.Size([5, 3, 8])
    """

    def __init__(
        self,
        n_features: int,
        dim: int = 16,
        n_frequencies: int = 32,
        frequency_scale: float = 0.1,
    ) -> None:
        super().__init__()
        _check_sizes(n_features=n_features, dim=dim, n_frequencies=n_frequencies)
        self.frequencies = nn.Parameter(torch.randn(n_features, n_frequencies) * frequency_scale)
        self.linear = nn.Linear(2 * n_frequencies, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Embed `x` of shape (B, F) as (B, F, d)."""
        _check_columns(x, self.frequencies.shape[0])
        sin, cos = _SinCos.apply(x.unsqueeze(-1) * (2 * math.pi * self.frequencies))
        # The linear map in two halves saves a copy of the widest tensor here.
        of_sin, of_cos = self.linear.weight.chunk(2, dim=1)
        mapped = F.linear(sin, of_sin, self.linear.bias)
        return torch.relu(mapped + F.linear(cos, of_cos))


class _SinCos(torch.autograd.Function):
    """Sine and cosine together: each is the other's derivative and need not be computed again."""

    @staticmethod
    def forward(ctx: Any, angle: Tensor) -> tuple[Tensor, Tensor]:
        sin, cos = torch.sin(angle), torch.cos(angle)
        ctx.save_for_backward(sin, cos)
        return sin, cos

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        sin, cos = ctx.saved_tensors
        of_sin, of_cos = grad_outputs
        return (of_sin * cos).addcmul_(of_cos, sin, value=-1)


class PBLDEmbedding(nn.Module):
    """Cosines with a bias, one linear map for each column, and the raw value beside them.

    ``x -> [x, W_f cos(2 pi (c_f x) + b_f) + v_f]``.

    Parameters
    ----------
    n_features : int
        Number of numeric columns F, at least 1.
    dim : int, default=4
        Width d of the vector of one number, the raw value included; at least 2.
    n_frequencies : int, default=16
        Learned frequencies per column.
    frequency_scale : float, default=0.1
        Standard deviation of the frequencies at the start, in cycles per unit of the column.

    References
    ----------
    Holzmüller et al., "Better by Default: Strong Pre-Tuned MLPs and Boosted Trees on Tabular
    Data", NeurIPS 2024 (periodic bias linear DenseNet).

    Examples
    --------
    >>> PBLDEmbedding(3)(torch.zeros(5, 3)).shape
    torch.Size([5, 3, 4])
    """

    def __init__(
        self,
        n_features: int,
        dim: int = 4,
        n_frequencies: int = 16,
        frequency_scale: float = 0.1,
    ) -> None:
        super().__init__()
        _check_sizes(n_features=n_features, dim=dim - 1, n_frequencies=n_frequencies)
        bound = 1 / math.sqrt(n_frequencies)
        self.frequencies = nn.Parameter(torch.randn(n_features, n_frequencies) * frequency_scale)
        self.phase = nn.Parameter(
            torch.empty(n_features, n_frequencies).uniform_(-math.pi, math.pi)
        )
        self.weight = nn.Parameter(
            torch.empty(n_features, n_frequencies, dim - 1).uniform_(-bound, bound)
        )
        self.bias = nn.Parameter(torch.empty(n_features, dim - 1).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Embed `x` of shape (B, F) as (B, F, d); the first of the d is `x` itself."""
        _check_columns(x, self.frequencies.shape[0])
        waves = torch.cos(x.unsqueeze(-1) * (2 * math.pi * self.frequencies) + self.phase)
        mapped = torch.einsum("bfk,fkd->bfd", waves, self.weight) + self.bias
        return torch.cat([x.unsqueeze(-1), mapped], dim=-1)


class PiecewiseLinearEncoding(nn.Module):
    """How far a number has come through each quantile bin of its column; nothing is learned.

    Bin t of a column with edges b_0 < ... < b_T gives ``(x - b_{t-1}) / (b_t - b_{t-1})``, held
    to [0, 1]; below b_0 the first and above b_T the last component go on linearly. Columns with
    fewer than `n_bins` distinct bins fill up with zeros.

    Parameters
    ----------
    n_features : int
        Number of numeric columns F, at least 1.
    n_bins : int, default=16
        Maximum number of bins per column, and the width d of the vector of one number.

    References
    ----------
    Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning",
    NeurIPS 2022, sec. 3.2.

    Examples
    --------
    >>> encoding = PiecewiseLinearEncoding(1, n_bins=2).fit(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> encoding(torch.tensor([[2.0]]))
    tensor([[[1.0000, 0.5000]]])
    """

    lower: Tensor
    width: Tensor
    at_least: Tensor
    at_most: Tensor
    fitted: Tensor

    def __init__(self, n_features: int, n_bins: int = 16) -> None:
        super().__init__()
        _check_sizes(n_features=n_features, n_bins=n_bins)
        self.n_bins = n_bins
        shape = (n_features, n_bins)
        self.register_buffer("lower", torch.zeros(shape))
        self.register_buffer("width", torch.ones(shape))
        self.register_buffer("at_least", torch.zeros(shape))
        self.register_buffer("at_most", torch.zeros(shape))
        self.register_buffer("fitted", torch.tensor(False))

    def fit(self, x: Tensor) -> "PiecewiseLinearEncoding":
        """Take the bin edges from the quantiles of training rows `x` of shape (n, F)."""
        _check_columns(x, self.lower.shape[0])
        if len(x) == 0 or not torch.isfinite(x).all():
            raise ValueError(
                f"PiecewiseLinearEncoding.fit needs at least one row and finite values, got "
                f"{len(x)} rows. Impute missing values first."
            )
        levels = torch.linspace(0, 1, self.n_bins + 1, dtype=torch.float64)
        for column in range(x.shape[1]):
            # Sorting by hand: torch.quantile refuses more than 16 million values.
            ordered = x[:, column].detach().cpu().double().sort().values
            position = levels * (len(ordered) - 1)
            below, above = ordered[position.floor().long()], ordered[position.ceil().long()]
            edges = torch.unique(torch.lerp(below, above, position - position.floor()))
            self._set_column(column, edges)
        self.fitted.fill_(True)
        return self

    def _set_column(self, column: int, edges: Tensor) -> None:
        for buffer, start in (
            (self.lower, 0.0),
            (self.width, 1.0),
            (self.at_least, 0.0),
            (self.at_most, 0.0),
        ):
            buffer[column] = start
        n = len(edges) - 1
        if n < 1:  # a constant column has no information
            return
        self.lower[column, :n] = edges[:-1].to(self.lower)
        self.width[column, :n] = (edges[1:] - edges[:-1]).to(self.width)
        self.at_most[column, :n] = 1.0
        self.at_least[column, 0] = -math.inf
        self.at_most[column, n - 1] = math.inf

    def forward(self, x: Tensor) -> Tensor:
        """Encode `x` of shape (B, F) as (B, F, n_bins); RuntimeError before `fit`."""
        _check_columns(x, self.lower.shape[0])
        if not self.fitted:
            raise RuntimeError(
                "PiecewiseLinearEncoding has no bins yet. Call fit(x) with the training rows."
            )
        share = (x.unsqueeze(-1) - self.lower) / self.width
        return torch.minimum(torch.maximum(share, self.at_least), self.at_most)


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}.")


def _check_columns(x: Tensor, n_features: int) -> None:
    if x.ndim != 2 or x.shape[1] != n_features:
        raise ValueError(
            f"x must have shape (n_rows, {n_features}), got {tuple(x.shape)}. "
            f"Pass one column for each of the {n_features} numeric features."
        )
