"""Rows in any container: polars, Arrow, dicts, one Series; tables become DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from scipy.sparse import issparse


def as_rows(X: Any, names: Sequence[str] | None = None, width: int | None = None) -> Any:
    """Bring rows into a DataFrame, or hand arrays and lists of numbers back as they are.

    What gives an Arrow stream (polars, pyarrow, duckdb) is a table. A mapping from names to values,
    and a Series that is named by columns (`names` or `width` of training), are one row; a list of
    mappings is as many. ValueError if `X` is sparse, lazy, empty, or a single column.
    """
    _refuse_sparse(X)
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu()
        return (X.float() if X.dtype == torch.bfloat16 else X).numpy()
    if isinstance(X, pd.DataFrame | np.ndarray):
        return X
    if isinstance(X, pd.Series):
        return _one_row(X, names, width)
    if isinstance(X, Mapping):
        is_row = all(np.ndim(value) == 0 for value in X.values())
        return pd.DataFrame([dict(X)]) if is_row else pd.DataFrame(dict(X))
    if isinstance(X, list | tuple) and not X:
        raise ValueError("Found array with 0 sample(s): X is empty. Give some rows.")
    if isinstance(X, list | tuple) and all(isinstance(row, Mapping) for row in X):
        return pd.DataFrame([dict(row) for row in X])
    if hasattr(X, "collect") and not hasattr(X, "__arrow_c_stream__"):
        raise ValueError(f"X is a {type(X).__name__}, which holds no rows yet. Give X.collect().")
    return _from_arrow(X) if _is_arrow(X) else X


def _is_arrow(X: Any) -> bool:
    return hasattr(X, "__arrow_c_stream__") or isinstance(X, pa.RecordBatch)


def _from_arrow(X: Any) -> pd.DataFrame:
    if isinstance(X, pa.RecordBatch):
        return pa.Table.from_batches([X]).to_pandas()
    try:
        return (X if isinstance(X, pa.Table) else pa.table(X)).to_pandas()
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ValueError(
            f"X is a {type(X).__name__} that gives no table ({error}). Give a table with a column "
            "for each feature."
        ) from error


def _one_row(row: pd.Series, names: Sequence[str] | None, width: int | None) -> Any:
    index = [str(name) for name in row.index]
    if names is not None and set(index) & set(names):
        return pd.DataFrame([row.tolist()], columns=pd.Index(index))
    if names is None and width == len(row):
        return row.to_numpy()[None]
    raise ValueError(
        f"Expected 2D array, got 1D array: X is a Series of {len(row)} values. A Series is one "
        "row, named by the columns of training; give one column as X.to_frame(). Reshape your "
        "data."
    )


def _refuse_sparse(X: Any) -> None:
    sparse = issparse(X) or (isinstance(X, torch.Tensor) and X.layout != torch.strided)
    if isinstance(X, pd.DataFrame):
        sparse = any(isinstance(dtype, pd.SparseDtype) for dtype in X.dtypes)
    if sparse:
        raise ValueError(
            "X is sparse, and neighbors are sought in dense rows. Bring it to a few dense columns "
            "first: make_pipeline(TruncatedSVD(100), AttnKNNClassifier()) with "
            "sklearn.decomposition.TruncatedSVD; or give X.toarray() where that fits in memory."
        )
