"""Embedders: map the columns of a row to its key for the neighbor search.

All take ``(x_num, x_cat)`` and return keys of shape (B, dim). `embed` maps columns to one flat
vector and `trunk` maps this vector to the key, so that MixUp can mix between the two.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.nn.numeric import PLRLiteEmbedding


class Embedder(nn.Module):
    """Base class of embedders.

    Attributes
    ----------
    dim : int
        Width of the key.
    normalize : bool
        Whether keys are scaled to unit L2 length.
    config : dict
        JSON-ready arguments to rebuild this embedder, with its kind.
    takes_images : bool
        Whether rows are uint8 images (B, c, h, w) instead of columns.
    """

    takes_images: ClassVar[bool] = False

    def __init__(self, dim: int, normalize: bool, config: dict[str, Any]) -> None:
        super().__init__()
        self.dim = dim
        self.normalize = normalize
        self.config = config
        self.trunk: nn.Module = nn.Identity()

    def fit_inputs(self, x_num: Tensor) -> None:
        """Fit the input encoding to training rows `x_num` (n, F); by default nothing."""

    def begin_epoch(self, epoch: int) -> None:
        """Prepare for an epoch of training, counted from 1; by default nothing."""

    def embed(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Return the flat input of the trunk, shape (B, width), from the columns."""
        return x_num

    def embed_mixed(
        self, x_num: Tensor, x_cat: Tensor | None, partner: Tensor, share: Tensor
    ) -> Tensor:
        """Return the flat input of MixUp rows: ``share * row + (1 - share) * rows[partner]``.

        Numbers are mixed directly, categories as embeddings.

        Parameters
        ----------
        x_num : Tensor of shape (B, F)
        x_cat : int64 Tensor of shape (B, G), optional
        partner : int64 Tensor of shape (B,)
            Position of each row's partner.
        share : Tensor of shape (B, 1)
            Weight of the row itself, in [0, 1].
        """
        return self.embed(share * x_num + (1 - share) * x_num[partner])

    def key(self, embedded: Tensor) -> Tensor:
        """Return the key (B, dim) of flat inputs (B, width)."""
        key = self.trunk(embedded)
        return F.normalize(key, dim=-1) if self.normalize else key

    def forward(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Return the key (B, dim) of rows with numbers (B, F) and category codes (B, G)."""
        return self.key(self.embed(x_num, x_cat))


class TableEmbedder(Embedder):
    """Numeric and categorical embeddings, concatenated, then a linear map or an MLP.

    Parameters
    ----------
    n_numeric : int
        Number F of numeric columns; 0 is allowed if there are categories.
    cardinalities : sequence of int, default=()
        Number of codes of each of the G categorical columns, code 0 included. Codes run from 0 to
        cardinality - 1. Code 0 means unknown or missing and is initialised with zeros.
    numeric_embedding : "plr-lite" or None, default="plr-lite"
        None uses the numbers directly.
    trunk : {"linear", "mlp"}, default="linear"
    hidden : sequence of int, default=(256, 256)
        Hidden widths of the MLP trunk.
    dim : int, default=64
        Width of the key.
    dropout : float, default=0.0
        Dropout rate after each hidden layer of the MLP, or on the input of a linear trunk.
    normalize : bool, default=False
        Scale keys to unit L2 length.
    numeric_dim, n_frequencies, frequency_scale
        See `nearwise.nn.PLRLiteEmbedding`.
    categorical_dim : int, default=8
        Width of the vector of one category.

    Examples
    --------
    >>> embedder = TableEmbedder(2, (3, 5), dim=4)
    >>> embedder(torch.zeros(6, 2), torch.zeros(6, 2, dtype=torch.int64)).shape
    torch.Size([6, 4])
    """

    def __init__(
        self,
        n_numeric: int,
        cardinalities: Sequence[int] = (),
        numeric_embedding: Literal["plr-lite"] | None = "plr-lite",
        *,
        trunk: Literal["linear", "mlp"] = "linear",
        hidden: Sequence[int] = (256, 256),
        dim: int = 64,
        dropout: float = 0.0,
        normalize: bool = False,
        numeric_dim: int = 16,
        n_frequencies: int = 32,
        frequency_scale: float = 0.1,
        categorical_dim: int = 8,
    ) -> None:
        config = {
            "kind": "table",
            "n_numeric": n_numeric,
            "cardinalities": [int(size) for size in cardinalities],
            "numeric_embedding": numeric_embedding,
            "trunk": trunk,
            "hidden": [int(width) for width in hidden],
            "dim": dim,
            "dropout": dropout,
            "normalize": normalize,
            "numeric_dim": numeric_dim,
            "n_frequencies": n_frequencies,
            "frequency_scale": frequency_scale,
            "categorical_dim": categorical_dim,
        }
        super().__init__(dim, normalize, config)
        if n_numeric < 1 and not cardinalities:
            raise ValueError("TableEmbedder needs at least one numeric or categorical column.")
        if numeric_embedding not in ("plr-lite", None):
            raise ValueError(
                f'numeric_embedding must be "plr-lite" or None, got {numeric_embedding!r}.'
            )
        self.numeric = (
            PLRLiteEmbedding(n_numeric, numeric_dim, n_frequencies, frequency_scale)
            if numeric_embedding and n_numeric
            else None
        )
        self.categorical = CategoricalEmbedding(cardinalities, categorical_dim)
        width = n_numeric * (numeric_dim if self.numeric is not None else 1)
        width += len(cardinalities) * categorical_dim
        if trunk == "linear":
            self.trunk = nn.Sequential(nn.Dropout(dropout), nn.Linear(width, dim))
        elif trunk == "mlp":
            self.trunk = mlp_trunk(width, hidden, dim, [dropout] * len(hidden))
        else:
            raise ValueError(f'trunk must be "linear" or "mlp", got {trunk!r}.')

    def embed(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Return the flat input of the trunk, shape (B, width)."""
        return torch.cat([self._embed_numeric(x_num), self.categorical(x_cat, len(x_num))], dim=1)

    def embed_mixed(
        self, x_num: Tensor, x_cat: Tensor | None, partner: Tensor, share: Tensor
    ) -> Tensor:
        """Return the flat input of MixUp rows; see `Embedder.embed_mixed`."""
        numbers = self._embed_numeric(share * x_num + (1 - share) * x_num[partner])
        categories = self.categorical(x_cat, len(x_num))
        mixed = share * categories + (1 - share) * categories[partner]
        return torch.cat([numbers, mixed], dim=1)

    def _embed_numeric(self, x_num: Tensor) -> Tensor:
        return x_num if self.numeric is None else self.numeric(x_num).flatten(1)


class CategoricalEmbedding(nn.Module):
    """Learned vector per code of each categorical column, in one table.

    Parameters
    ----------
    cardinalities : sequence of int
        Number of codes of each column, including code 0 (unknown or missing).
    dim : int
        Width of the vector of one category.
    """

    sizes: Tensor
    offsets: Tensor

    def __init__(self, cardinalities: Sequence[int], dim: int) -> None:
        super().__init__()
        if any(size < 1 for size in cardinalities):
            raise ValueError(f"Each cardinality must be at least 1, got {list(cardinalities)}.")
        sizes = torch.tensor([int(size) for size in cardinalities], dtype=torch.int64)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        total = sum(map(int, cardinalities))  # a tensor may be on the meta device
        self.table = nn.Embedding(total, dim) if total else None
        if self.table is not None:
            with torch.no_grad():
                self.table.weight.mul_(dim**-0.5)
                self.table.weight[self.offsets] = 0.0

    def forward(self, x_cat: Tensor | None, n_rows: int) -> Tensor:
        """Return flat vectors (B, G * dim) of the codes `x_cat` (B, G); width 0 if G is 0."""
        if self.table is None:
            return torch.zeros(n_rows, 0, device=self.sizes.device)
        n_columns = len(self.sizes)
        if x_cat is None or x_cat.shape != (n_rows, n_columns):
            seen = None if x_cat is None else tuple(x_cat.shape)
            raise ValueError(f"x_cat must have shape ({n_rows}, {n_columns}), got {seen}.")
        if ((x_cat < 0) | (x_cat >= self.sizes)).any():
            raise ValueError(
                f"x_cat holds codes outside 0..cardinality-1 (cardinalities "
                f"{self.sizes.tolist()}). Code unknown categories as 0."
            )
        return self.table(x_cat + self.offsets).flatten(1)


def mlp_trunk(
    n_inputs: int, hidden: Sequence[int], n_outputs: int, dropout: Sequence[float]
) -> nn.Sequential:
    """Linear, BatchNorm, GELU and dropout for each hidden width, then a linear layer."""
    layers: list[nn.Module] = []
    for (left, right), rate in zip(pairwise((n_inputs, *hidden)), dropout, strict=True):
        layers += [nn.Linear(left, right), nn.BatchNorm1d(right), nn.GELU(), nn.Dropout(rate)]
    return nn.Sequential(*layers, nn.Linear((n_inputs, *hidden)[-1], n_outputs))
