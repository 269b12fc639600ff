"""Rows made ready for the compiled search, a tile at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.functional import kernels
from nearwise.functional.search_torch import center_of

Array = NDArray[Any]

# Outside these norms float32 products could overflow or vanish: rows are then measured directly.
_LARGEST_NORM = 1e18
_SMALLEST_NORM = 1e-15


class KeyNorms(NamedTuple):
    """Norms of keys that are searched again and again.

    Attributes
    ----------
    norms : float64 array of shape (n_keys,)
        L2 norms.
    scale : float64 array of shape (n_keys,)
        One over the norm; 0 for a row of zeros.
    """

    norms: Array
    scale: Array

    @classmethod
    def of(cls, keys: Tensor, is_euclidean: bool) -> Self | None:
        """Return the norms, or None where a search would not use them."""
        ready = keys.device.type == "cpu" and keys.dtype == torch.float32 and keys.is_contiguous()
        if not ready or (is_euclidean and center_of(keys) is not None):
            return None
        return cls(*_norms("keys", keys, 0))


@dataclass
class Tile:
    """Some rows, ready for the kernels."""

    span: slice  # where they are among all rows
    rows: Array  # (n, d) as given, float32 or float64
    factors: Tensor  # (n, d) float32, the operand of the matrix product
    norms: Array  # (n,) L2 norms of `factors`
    scale: Array  # (n,) one over the L2 norm of `rows`, 0 for a row of zeros

    def is_safe(self, metric: int) -> bool:
        """Tell whether float32 products of these rows order them, with the promised precision."""
        if metric == 4:  # "manhattan": no product does
            return False
        if metric == 2 and float(self.scale.max()) > 1.0 / _SMALLEST_NORM:
            return False
        return float(self.norms.max()) < _LARGEST_NORM


def tiles_of(
    name: str,
    rows: Tensor,
    span: slice,
    dtype: torch.dtype,
    step: int,
    center: Tensor | None,
    known: KeyNorms | None = None,
) -> Iterator[Tile]:
    """Yield the rows of `span` in tiles of `step`; see `tile_of`."""
    for start in range(span.start, span.stop, step):
        here = slice(start, min(start + step, span.stop))
        yield tile_of(name, rows, here, dtype, center, known)


def tile_of(
    name: str,
    rows: Tensor,
    here: slice,
    dtype: torch.dtype,
    center: Tensor | None,
    known: KeyNorms | None = None,
) -> Tile:
    """Return one tile of `rows`, as `dtype`, its factors less `center`.

    Raises ValueError if a value is NaN or infinite; the error calls the rows `name`.
    """
    tile = rows[here].to(dtype).contiguous()
    if known is not None:
        return Tile(here, tile.numpy(), tile.float(), known.norms[here], known.scale[here])
    norms, scale = _norms(name, tile, here.start)
    factors = tile.float() if center is None else (tile - center).float()
    if factors is not tile:
        norms = np.sqrt(_squared_norms(factors))
    return Tile(here, tile.numpy(), factors, norms, scale)


def refuse_not_finite(name: str, rows: Tensor, first: int = 0) -> None:
    """Raise a ValueError that names the first row with NaN or infinity, counted from `first`."""
    if bool(torch.isfinite(rows).all()):
        return
    row = first + int((~torch.isfinite(rows)).any(1).nonzero()[0])
    raise ValueError(
        f"{name} holds NaN or infinity, first in row {row}. "
        "Impute or drop such rows before searching."
    )


def _norms(name: str, rows: Tensor, first: int) -> tuple[Array, Array]:
    squares = _squared_norms(rows)
    # A sum of squares in float64 tells of NaN and infinity without another look at the rows.
    if not np.isfinite(squares).all():
        refuse_not_finite(name, rows, first)
    norms = np.sqrt(squares)
    return norms, np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)


def _squared_norms(rows: Tensor) -> Array:
    squares = np.empty(len(rows), dtype=np.float64)
    kernels.squared_norms(rows.numpy(), squares)
    return squares
