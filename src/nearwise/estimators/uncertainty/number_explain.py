"""Explanations of a regressor: neighbors, and the prediction without each of them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.model.number_memory import NumberRetrieval
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.uncertainty.explain import (
    explanation_card,
    feature_distances,
    given_row,
    neighbor_frame,
    weigh,
    without_pixels,
)
from nearwise.estimators.uncertainty.intervals import CalibrationNumbers
from nearwise.nn.neighbor_trunk import Read

_MASKED = 2_048  # predictions with a masked neighbor per block


class NumberNeighbor(NamedTuple):
    """A neighbor in the explanation of a prediction.

    Attributes
    ----------
    id : int
        Id in the memory; rows of `fit` count from 0.
    target : float
        Given target.
    distance : float
        Distance to the query, by the estimator's metric between keys of the feature map.
    weight : float
        Share of the attention, in [0, 1], over all key spaces.
    prediction_without : float
        Predicted mean without this neighbor.
    interval_without : (float, float)
        Interval without this neighbor.
    row : dict
        The remembered row: column name to value. Explanations made together share it.
    show : str or None
        What is shown with the row: file, URL or text; None if it has none.
    """

    id: int
    target: float
    distance: float
    weight: float
    prediction_without: float
    interval_without: tuple[float, float]
    row: dict[str, Any]
    show: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class NumberExplanation:
    """Explanation of one prediction of a regressor.

    Attributes
    ----------
    prediction : float
        Predicted mean.
    median : float
    interval : (float, float)
        Interval of `confidence`.
    confidence : float
    base_prediction : float
        Prediction of the base alone; the mean of the remembered targets without a base.
    null_mass : float
        Share of the attention on no neighbor, in [0, 1].
    neighbors : list of NumberNeighbor
        Neighbors by descending weight.
    distribution : Mixture or None
        Predicted distribution of the row, with `cdf`, `quantiles` and more.
    source : tuple of (rows, int) or None
        The explained rows, as given, and the position of this row; read by `row`.
    left_out : tuple of str
        Columns that the model does not use.
    target : str
        Name of the target.
    """

    prediction: float
    median: float
    interval: tuple[float, float]
    confidence: float
    base_prediction: float
    null_mass: float
    neighbors: list[NumberNeighbor]
    distribution: Mixture | None = field(default=None, compare=False)
    source: tuple[Any, int] | None = field(default=None, compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)
    target: str = field(default="", compare=False)

    @property
    def row(self) -> dict[str, Any] | None:
        """The explained row, column name to value; None for remembered rows and files."""
        return given_row(self.source, self.neighbors[0].row if self.neighbors else ())

    def to_frame(self) -> pd.DataFrame:
        """Table of the neighbors: id, target, weight, distance, prediction and interval without it.

        Next are "show", if a neighbor has something to show, and the columns of the row, without
        the numbers of an embedding.
        """
        names = "id target weight distance prediction_without low_without high_without"
        neighbors = []
        for one in self.neighbors:
            values = one.id, one.target, one.weight, one.distance, one.prediction_without
            neighbors.append(((*values, *one.interval_without), one))
        return neighbor_frame(tuple(names.split()), neighbors)

    @property
    def headline(self) -> str:
        """The answer and how sure it is, in one line."""
        return explanation_card(self).headline

    def __repr__(self) -> str:
        return f"<NumberExplanation {self.headline}>"

    def __str__(self) -> str:
        return explanation_card(self).text

    def _repr_html_(self) -> str:
        from nearwise.html import notebook

        return notebook("explanation.html", explanation=self)

    def to_dict(self) -> dict[str, Any]:
        """Explanation as a dict for JSON; only numpy types need conversion.

        Returns
        -------
        record : dict
            Keys: prediction, median, interval, confidence, base_prediction, null_mass, neighbors
            (id, target, weight, distance, prediction_without, interval_without, row, and show if
            the row has any).
        """
        names = ("prediction", "median", "interval", "confidence", "base_prediction", "null_mass")
        neighbors = [one._asdict() | {"row": without_pixels(one.row)} for one in self.neighbors]
        for one in neighbors:
            if one["show"] is None:
                del one["show"]
        return {name: getattr(self, name) for name in names} | {"neighbors": neighbors}


def explained(
    model: FittedRegressor,
    features: torch.Tensor,
    retrieved: NumberRetrieval,
    known: CalibrationNumbers | None,
    confidence: float,
    n_shown: int | None,
) -> list[NumberExplanation]:
    """Explain queries by their retrieved neighbors.

    Parameters
    ----------
    model : FittedRegressor
    features : Tensor of shape (n, width)
        Keys of the queries in the feature space.
    retrieved : NumberRetrieval
    known : CalibrationNumbers or None
        Calibration rows for conformal intervals of `confidence`; None for plain quantiles.
    confidence : float
    n_shown : int or None
        Number of neighbors shown; None shows all.
    """
    predictor = model.predictor
    with torch.no_grad():
        read = predictor.head.attend(retrieved.spaces)
        output = predictor.head.pool(read, retrieved.spaces)
    mixture = predictor.finished(output, retrieved)
    whole, location = mixture.mean(), retrieved.spaces[0].location
    levels = np.tile([(1 - confidence) / 2, (1 + confidence) / 2], (len(mixture), 1))
    if known is not None:
        levels = known.levels(confidence, whole)
    found = [one.indices for one in retrieved.found]
    weighed = weigh(found, list(output.of_neighbors), n_shown)
    queries, columns = weighed.is_there.nonzero(as_tuple=True)
    gone = weighed.positions[queries, columns]
    without = _without_each(predictor, retrieved, read, queries, gone)
    means, ends = without.mean(), without.quantiles(levels[queries.numpy()])
    distances = feature_distances(predictor, features.cpu(), weighed.positions)
    everyone = sorted(set(gone.tolist()))
    rows = dict(zip(everyone, model.remembered(everyone), strict=True))
    targets = dict(zip(everyone, model.labels_at(everyone).tolist(), strict=True))
    ids = dict(zip(everyone, model.bank.ids[everyone].tolist(), strict=True))
    of_row: list[list[NumberNeighbor]] = [[] for _ in range(len(mixture))]
    cells = zip(queries.tolist(), columns.tolist(), gone.tolist(), strict=True)
    for at, (query, column, position) in enumerate(cells):
        of_row[query].append(
            NumberNeighbor(
                ids[position],
                targets[position],
                float(distances[query, column]),
                float(weighed.weights[query, column]),
                float(means[at]),
                (float(ends[at, 0]), float(ends[at, 1])),
                *rows[position],
            )
        )
    own = mixture.quantiles(np.insert(levels, 0, 0.5, axis=1))
    return [
        NumberExplanation(
            float(whole[row]),
            float(own[row, 0]),
            (float(own[row, 1]), float(own[row, 2])),
            confidence,
            float(location[row]),
            float(output.null_mass[row]),
            neighbors,
            mixture.take([row]),
            left_out=tuple(predictor.encoder.left_out),
            target=model.target_name,
        )
        for row, neighbors in enumerate(of_row)
    ]


def _without_each(
    predictor: NumberPredictor,
    retrieved: NumberRetrieval,
    read: Read,
    queries: torch.Tensor,
    gone: torch.Tensor,
) -> Mixture:
    """Predict queries (M,), each with one neighbor (M,) masked."""
    found = [one.indices for one in retrieved.found]
    parts = []
    for at in torch.arange(len(gone)).split(_MASKED):
        rows = queries[at]
        left = predictor.head.predict_without(read, retrieved.spaces, rows, gone[at], found)
        some = retrieved._replace(spaces=[one.take(rows) for one in retrieved.spaces])
        parts.append(predictor.finished(left, some))
    return Mixture.joined(parts)
