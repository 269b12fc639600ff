"""Rows of features and their labels, checked once, with errors that say what to do."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearwise.functional import Neighbors, topk_neighbors
from nearwise.functional.distances import Metric
from nearwise.metrics.checks import IntArray, check_labels

Rows = npt.ArrayLike | Tensor
_NAMED = 5  # rows listed in an error


def as_rows(X: Rows, name: str = "X", *, least: int = 2) -> Tensor:
    """Take features as a finite float tensor on the device where they are.

    Parameters
    ----------
    X : array-like or Tensor of shape (n_rows, n_features)
        Real numbers.
    name : str, default="X"
        What an error calls it.
    least : int, default=2
        Rows that are needed.

    Returns
    -------
    rows : Tensor of shape (n_rows, n_features)
        float64 where it was given, else float32; detached.

    Raises
    ------
    ValueError
        If the shape is another, rows are too few, or a value is NaN or infinite.
    """
    rows = X.detach() if isinstance(X, Tensor) else torch.from_numpy(_numbers(X, name))
    if rows.dtype != torch.float64:
        rows = rows.float()
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(rows.shape)}. Pass (n_rows, n_features); pool or flatten "
            "tokens first."
        )
    if len(rows) < least:
        raise ValueError(f"{name} has {len(rows)} rows; at least {least} are needed.")
    bad = (~torch.isfinite(rows).all(dim=1)).nonzero().ravel().tolist()
    if bad:
        more = "" if len(bad) <= _NAMED else f" and {len(bad) - _NAMED} more"
        raise ValueError(
            f"{name} holds NaN or infinity in rows {', '.join(map(str, bad[:_NAMED]))}{more}. "
            "Remove or repair them."
        )
    return rows


def _numbers(X: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    raw = np.asarray(X)
    if raw.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numeric, got dtype {raw.dtype}. Convert it to float.")
    return np.array(raw, dtype=np.float64 if raw.dtype == np.float64 else np.float32)


def as_labels(y: npt.ArrayLike | Tensor, n_rows: int) -> IntArray:
    """Take labels as int64 class positions, one per row, or raise ValueError."""
    raw = np.asarray(y.cpu().numpy() if isinstance(y, Tensor) else y)
    labels = check_labels(raw)
    if len(labels) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows and y has {len(labels)}. Pass one label for each row."
        )
    return labels


def same_rows(X: Rows, Y: Rows, *, least: int = 2) -> tuple[Tensor, Tensor]:
    """Take two feature sets of the same rows, or raise ValueError."""
    first, second = as_rows(X, "X", least=least), as_rows(Y, "Y", least=least)
    if len(first) != len(second):
        raise ValueError(
            f"X has {len(first)} rows and Y has {len(second)}. Pass features of the same rows in "
            "the same order."
        )
    return first, second


def unit_rows(rows: Tensor) -> Tensor:
    """Bring rows to length 1 in float64; a row of zeros has no direction and raises."""
    lengths = rows.double().norm(dim=1, keepdim=True)
    if bool((lengths == 0).any()):
        first = int((lengths.ravel() == 0).nonzero()[0])
        raise ValueError(f"Row {first} is all zeros and has no direction. Leave such rows out.")
    return rows.double() / lengths


def other_neighbors(rows: Tensor, n_neighbors: int, metric: Metric) -> Neighbors:
    """Nearest other rows of each row: itself is left out by its position, never by distance."""
    positions = torch.arange(len(rows), device=rows.device)
    return topk_neighbors(rows, rows, n_neighbors, metric=metric, query_ids=positions)
