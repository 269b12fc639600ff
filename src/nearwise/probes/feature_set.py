"""Feature sets for probes: finite features with labels and image numbers."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, eq=False)
class FeatureSet:
    """Features of images, their labels, and their image numbers.

    Parameters
    ----------
    X : ndarray of shape (n, D) or (n, L, D)
        Finite features: one vector per row, or tokens.
    y : ndarray of shape (n,), optional
        Labels.
    index : int64 ndarray of shape (n,), optional
        Number of each row's image; views of an image share it. Default 0..n-1.
    meta : dict
        Settings of the extraction: pool, context, draw, views, tokens (L), token_dim (D),
        ordered, parameters (of the encoder).

    Raises
    ------
    ValueError
        If X, y and index differ in length, or features are NaN or infinite; the rows are named.
    """

    X: NDArray[Any]
    y: NDArray[Any] | None = None
    index: NDArray[np.int64] | None = None
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.X.ndim not in (2, 3):
            raise ValueError(f"X has shape {self.X.shape}. Pass (n, D) features or (n, L, D).")
        if self.index is None:
            object.__setattr__(self, "index", np.arange(len(self.X), dtype=np.int64))
        for name, values in (("y", self.y), ("index", self.index)):
            if values is not None and len(values) != len(self.X):
                raise ValueError(
                    f"{name} has {len(values)} rows and X has {len(self.X)}. Pass one per row of X."
                )
        assert self.index is not None  # set above
        refuse_not_finite(self.X, numbers=self.index)

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: ArrayLike) -> "FeatureSet":
        """Return the features of some rows, int or bool positions, in that order."""
        at = np.asarray(rows)
        y = None if self.y is None else self.y[at]
        assert self.index is not None  # set in __post_init__
        return replace(self, X=self.X[at], y=y, index=self.index[at])


def refuse_not_finite(
    X: NDArray[Any], name: str = "features", *, numbers: NDArray[np.int64] | None = None
) -> None:
    """Raise a ValueError with the `numbers` of rows of `X` with NaN or infinity."""
    flat = X.reshape(len(X), -1)
    # rows are checked only if the sum is not finite
    if np.isfinite(flat.sum(dtype=np.float64)):
        return
    bad = np.flatnonzero(~np.isfinite(flat).all(axis=1))
    if len(bad):
        called = bad if numbers is None else numbers[bad]
        named = ", ".join(map(str, called[:5])) + (", ..." if len(bad) > 5 else "")
        raise ValueError(
            f"{len(bad)} of {len(X)} rows of {name} hold NaN or infinity: rows {named}. Repair the "
            "encoder, or leave these rows out."
        )
