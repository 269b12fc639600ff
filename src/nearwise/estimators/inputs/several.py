"""Several targets per row: reading them, one column per target."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from scipy.sparse import issparse

from nearwise.estimators.inputs.columns import refuse_repeated
from nearwise.names import listed


def several_targets(y: Any) -> list[pd.Series] | None:
    """Columns of a table, matrix or list of rows with two targets or more; None for one target.

    Columns of a DataFrame keep their names, others are numbered. ValueError for lists of different
    lengths (the labels of each row by name), repeated names or more than two axes.
    """
    if issparse(y):
        y = y.toarray()
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    if not isinstance(y, pd.DataFrame) and hasattr(y, "__arrow_c_stream__"):
        y = pa.table(y).to_pandas() if hasattr(y, "columns") else y
    if not isinstance(y, pd.DataFrame):
        y = _as_frame(y)
    if y is None or y.shape[1] < 2:
        return None
    names = [str(name) for name in y.columns]
    refuse_repeated(names)
    return [y.iloc[:, at].rename(name) for at, name in enumerate(names)]


def _as_frame(y: Any) -> pd.DataFrame | None:
    """Convert a matrix or list of rows to a DataFrame; None for anything of one axis."""
    if isinstance(y, list | tuple) and y and all(_is_row(one) for one in y):
        if len({len(one) for one in y}) > 1:
            raise ValueError(
                "y has lists of different lengths. Give one column per label: "
                "MultiLabelBinarizer().fit_transform(y), of sklearn.preprocessing, makes a matrix "
                "of 0 and 1 from the labels of each row."
            )
        return pd.DataFrame([list(one) for one in y])
    if not isinstance(y, np.ndarray) or y.ndim < 2:
        return None
    if y.ndim > 2:
        raise ValueError(f"y has shape {y.shape}. Give one column per target: (n, n_targets).")
    return pd.DataFrame(y)


def _is_row(one: Any) -> bool:
    return isinstance(one, Sequence | np.ndarray) and not isinstance(one, str | bytes)


def matched(y: Any, names: Sequence[str]) -> list[Any]:
    """Targets of new rows, in the order of a model's targets; a DataFrame is matched by name.

    ValueError if `y` lacks a target, or has another number of columns.
    """
    found = several_targets(y)
    if found is None:
        raise ValueError(
            f"The model has {len(names)} targets ({listed(names)}). Give y of shape "
            f"(n, {len(names)}), with one column per target."
        )
    by_name = {str(one.name): one for one in found}
    if isinstance(y, pd.DataFrame):
        missing = [name for name in names if name not in by_name]
        if missing:
            raise ValueError(f"y lacks {listed(missing)}; it has {listed(list(by_name))}.")
        return [by_name[name] for name in names]
    if len(found) != len(names):
        raise ValueError(
            f"y has {len(found)} columns, and the model has {len(names)} targets "
            f"({listed(names)}). Give one column per target, in this order."
        )
    return [one.rename(name) for one, name in zip(found, names, strict=True)]


def side_by_side(each: Sequence[Any]) -> np.ndarray:
    """Results (n, ...) of every target as one array (n, n_targets, ...), of their common type.

    Texts beside numbers or truth values give an array of objects.
    """
    arrays = [np.asarray(one) for one in each]
    kinds = {"number" if one.dtype.kind in "iuf" else one.dtype.kind for one in arrays}
    return np.stack([one.astype(object) if len(kinds) > 1 else one for one in arrays], axis=1)
