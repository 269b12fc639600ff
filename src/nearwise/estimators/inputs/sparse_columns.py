"""SparseColumns: rows of a sparse matrix as a few components, by a truncated SVD."""

from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.decomposition import TruncatedSVD

N_COMPONENTS = 128


class SparseColumns:
    """Map from sparse rows to components that many columns share.

    A column with a value beyond 1 is divided by its largest absolute value. The components are a
    truncated SVD (Halko, Martinsson and Tropp 2011) of the columns, computed row by row, so that
    equal rows get equal ones.

    Attributes
    ----------
    axes : float32 ndarray of shape (n_columns, n_components)
        From columns to components, with the scale of the columns.
    """

    def __init__(self, axes: np.ndarray) -> None:
        if axes.dtype != np.float32 or axes.ndim != 2 or not axes.size:
            raise ValueError(f"axes are {axes.dtype} of shape {axes.shape}")
        if not np.isfinite(axes).all():
            raise ValueError("axes are not finite")
        self.axes = axes

    @classmethod
    def fit(cls, rows: sparse.csr_array) -> Self:
        """Fit to training rows (n, n_columns)."""
        largest = np.maximum(np.abs(rows).max(axis=0).toarray().ravel(), 1.0)
        n = min(N_COMPONENTS, max(rows.shape[0] - 1, 1))
        axes = TruncatedSVD(n, random_state=0).fit(rows / largest).components_.T
        return cls(np.ascontiguousarray(axes / largest[:, None], dtype=np.float32))

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.axes)

    @property
    def n_components(self) -> int:
        """Number of components."""
        return int(self.axes.shape[1])

    def __call__(self, rows: sparse.csr_array) -> np.ndarray:
        """Components of rows, float64 (n, n_components)."""
        return np.asarray(rows @ self.axes, dtype=np.float64)


def is_wide(X: Any) -> bool:
    """Whether rows are sparse, with more columns than components."""
    return is_sparse(X) and len(X.shape) == 2 and X.shape[1] > N_COMPONENTS


def dense_rows(X: Any) -> Any:
    """Convert sparse rows to dense ones, of the same names; others are returned unchanged.

    ValueError for a table of which some columns are sparse.
    """
    if isinstance(X, pd.DataFrame):
        types = {name: t.subtype for name, t in X.dtypes.items() if isinstance(t, pd.SparseDtype)}
        if types and len(types) < X.shape[1]:
            raise ValueError(
                "Some columns of X are sparse and others are not. Give a sparse matrix of all "
                "columns, or each sparse column as column.sparse.to_dense()."
            )
        return X.astype(types) if types else X
    if not is_sparse(X):
        return X
    return X.to_dense() if isinstance(X, torch.Tensor) else X.toarray()


def is_sparse(X: Any) -> bool:
    """Whether rows are a sparse matrix, array or tensor, or a table with sparse columns only."""
    if isinstance(X, pd.DataFrame):
        return bool(X.shape[1]) and all(isinstance(one, pd.SparseDtype) for one in X.dtypes)
    return sparse.issparse(X) or (isinstance(X, torch.Tensor) and X.layout != torch.strided)


def sparse_rows(X: Any) -> sparse.csr_array:
    """Convert sparse or dense rows to float64 (n, n_columns) without stored zeros; ValueError."""
    if isinstance(X, pd.DataFrame):
        frame: Any = X
        X = frame.sparse.to_coo() if is_sparse(X) else X.to_numpy(dtype=np.float64)
    elif isinstance(X, torch.Tensor):
        held = X.detach().cpu().to_sparse_coo().coalesce()
        X = sparse.coo_array((held.values().numpy(), held.indices().numpy()), tuple(held.shape))
    rows = sparse.csr_array(X, dtype=np.float64)
    if rows.ndim != 2 or not rows.shape[0] or not rows.shape[1]:
        raise ValueError(
            f"Found array with {rows.shape[0]} sample(s) (shape={rows.shape}) while a minimum of 1 "
            "is required: X needs rows and columns."
        )
    if not np.isfinite(rows.data).all():
        kind = "NaN" if np.isnan(rows.data).any() else "infinity"
        raise ValueError(
            f"Input X contains {kind}. A sparse X has finite numbers; what is not stored is 0."
        )
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows
