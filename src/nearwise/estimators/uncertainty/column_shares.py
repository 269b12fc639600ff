"""Contribution of each column to the distances between a row and its neighbors."""

from typing import Any

import numpy as np
import torch

from nearwise.estimators.inputs.rows import Rows
from nearwise.estimators.inputs.table import Encoded, TableEncoder
from nearwise.estimators.model.fitted_model import FittedClassifier
from nearwise.functional import Metric, paired_distances

_MOST = 2**12  # rows per block of encoding


def column_shares(model: FittedClassifier, row: Any, ids: Any) -> np.ndarray:
    """Split the distances between a row and remembered rows by column.

    The share of a column is the fall of the distance if the row had the neighbor's value in that
    column. It is exact for keys made column by column, otherwise an occlusion estimate. Euclidean
    distances are split as squares, as these add up over columns.

    Parameters
    ----------
    model : FittedClassifier
        Model of a table or an array.
    row : DataFrame or ndarray of shape (1, n_columns)
        Row as in `predict_proba`.
    ids : int64 array-like of shape (n_neighbors,)
        Ids of remembered rows.

    Returns
    -------
    shares : ndarray of shape (n_neighbors, n_columns)
        Non-negative; each row sums to 1, or is 0 if no column makes a difference.

    Raises
    ------
    ValueError
        If the model is one of images, as they have no columns.
    """
    model = model.holding(ids)
    encoder: Any = model.predictor.encoder
    if not encoder.numeric and not encoder.categorical:
        raise ValueError("Images have no columns to split a distance by.")
    positions = model.bank.positions(ids).tolist()
    query: Any = Rows.given(row, model.columns, encoder).encode()[0]
    near = encoder.transform(model.rows_at(positions))
    names, metric = encoder.columns, model.predictor.views.specs[0].metric
    keys = model.bank.keys["features"][positions]
    gained = np.zeros((len(positions), len(names)))
    whole = _apart(model.predictor.feature_keys(query), keys[None], metric)[0]
    step = max(1, _MOST // max(1, len(names)))
    for start in range(0, len(positions), step):
        part = np.arange(start, min(start + step, len(positions)))
        mixed = _mixed(encoder, query, near.take(part))
        to_each = keys[part].repeat_interleave(len(names), 0)[:, None]
        left = _apart(model.predictor.feature_keys(mixed), to_each, metric)
        gained[part] = whole[part, None] - left.reshape(len(part), len(names))
    gained = np.maximum(gained, 0.0)
    total = gained.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(gained, total, out=np.zeros_like(gained), where=total > 0)
    return shares


def _mixed(encoder: TableEncoder, query: Encoded, near: Encoded) -> Encoded:
    """Make copies of the row with a neighbor's value in one column, for each of both."""
    n_columns = len(encoder.columns)
    numbers = np.tile(query.numbers, (len(near) * n_columns, 1))
    codes = np.tile(query.codes, (len(near) * n_columns, 1))
    sources = encoder.sources
    for column, name in enumerate(encoder.columns):
        at = np.arange(len(near)) * n_columns + column
        parts = [part for part, source in enumerate(sources) if source == name]
        numbers[np.ix_(at, np.array(parts, dtype=int))] = near.numbers[:, parts]
        if name in encoder.categorical:
            code = encoder.categorical.index(name)
            codes[at, code] = near.codes[:, code]
    return Encoded(numbers, codes)


def _apart(query: torch.Tensor, keys: torch.Tensor, metric: Metric) -> np.ndarray:
    squared: Metric = "sqeuclidean" if metric == "euclidean" else metric
    found: np.ndarray = paired_distances(query, keys, squared).double().numpy()
    return found
