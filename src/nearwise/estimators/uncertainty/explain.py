"""Explanations: the neighbors of a prediction, and the prediction without each of them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from nearwise.estimators.inputs.sparse_columns import dense_rows, is_wide
from nearwise.estimators.model.class_predictor import Attended, ClassPredictor
from nearwise.estimators.model.log_linear_pool import (
    Answer,
    Calibration,
    finish,
    merge_views,
)
from nearwise.estimators.model.predictor import Predictor
from nearwise.estimators.uncertainty.explanations import Explanations
from nearwise.functional import paired_distances
from nearwise.names import are_positions

Explained = TypeVar("Explained", bound=Any)  # Explanation or NumberExplanation
CHUNK = 1_024  # rows per block of explanations
# Neighbors of a prediction, largest weight first: bank positions, weights, distances in the feature
# space, and the predictions without each neighbor, (n_shown, n_classes).
Reason = tuple[list[int], list[float], list[float], np.ndarray]
_MASKED = 2_048  # predictions with a masked neighbor per block
_LARGEST_BITS = np.int64(2**31 - 1)
_LARGEST = 2**22  # numbers of keys per block of distances


class Parts(NamedTuple):
    """Predictions of n rows, with the base part and the neighbor part.

    Attributes
    ----------
    proba, base_proba, neighbor_proba : ndarray of shape (n, n_classes)
        The final prediction; the base alone at its out-of-fold temperature (the class shares
        without a base); the neighbors alone, with the class shares for the null.
    null_mass : ndarray of shape (n,)
        Share of the attention on no neighbor, in [0, 1].
    """

    proba: np.ndarray
    base_proba: np.ndarray
    neighbor_proba: np.ndarray
    null_mass: np.ndarray


def make_parts(merged: Answer, calibration: Calibration) -> Parts:
    """Apply the temperatures to a prediction and its parts."""
    return Parts(
        finish(merged.log_proba, calibration.whole),
        finish(merged.base_log_proba, calibration.base),
        finish(merged.neighbor_log_proba, calibration.neighbors),
        merged.null_mass.numpy().astype(np.float64),
    )


class Neighbor(NamedTuple):
    """A neighbor in the explanation of a prediction.

    Attributes
    ----------
    id : int
        Id in the memory; rows of `fit` count from 0.
    label : Any
        Given label.
    distance : float
        Distance to the query, by the estimator's metric between keys of the feature map.
    weight : float
        Share of the attention, in [0, 1], over all key spaces.
    proba_without : ndarray of shape (n_classes,)
        Prediction without this neighbor.
    row : dict
        The remembered row: column name to value. Explanations made together share it.
    posterior_label : Any
        Estimated true class of the row; equals `label` unless wrong labels are modelled.
    show : str or None
        What is shown with the row: file, URL or text; None if it has none.
    """

    id: int
    label: Any
    distance: float
    weight: float
    proba_without: np.ndarray
    row: dict[str, Any]
    posterior_label: Any = None
    show: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Explanation of one prediction.

    Attributes
    ----------
    label : Any
        The predicted class.
    classes : ndarray of shape (n_classes,)
        Classes in the order of the probabilities.
    proba : ndarray of shape (n_classes,)
        Predicted probabilities.
    base_proba : ndarray of shape (n_classes,)
        Prediction of the base alone; the class shares without a base.
    neighbor_proba : ndarray of shape (n_classes,)
        Prediction of the neighbors alone.
    null_mass : float
        Share of the attention on no neighbor, in [0, 1].
    neighbors : list of Neighbor
        Neighbors by descending weight.
    novelty_p_value : float or None
        Out-of-distribution p-value, as by `novelty_p_value`; None unless trust=True in `explain`.
    prediction_set : list or None
        Prediction set of confidence 0.9, as by `predict_set`; None unless trust=True.
    source : tuple of (rows, int) or None
        The explained rows, as given, and the position of this row; read by `row`.
    left_out : tuple of str
        Columns that the model does not use.
    target : str
        Name of the target.
    """

    label: Any
    classes: np.ndarray
    proba: np.ndarray
    base_proba: np.ndarray
    neighbor_proba: np.ndarray
    null_mass: float
    neighbors: list[Neighbor]
    novelty_p_value: float | None = None
    prediction_set: list[Any] | None = None
    source: tuple[Any, int] | None = field(default=None, compare=False)
    left_out: tuple[str, ...] = field(default=(), compare=False)
    target: str = field(default="", compare=False)

    @property
    def row(self) -> dict[str, Any] | None:
        """The explained row, column name to value; None for remembered rows, files and views.

        Also None for sparse rows that are remembered by their components.
        """
        return given_row(self.source, self.neighbors[0].row if self.neighbors else ())

    def to_frame(self) -> pd.DataFrame:
        """Table of the neighbors: id, label, weight, distance, proba_without, and their columns.

        If a neighbor has something to show, "show" is before the columns. Pixels and the numbers
        of an embedding are omitted. `proba_without` is the probability of the predicted class
        without this neighbor.
        """
        best = int(self.proba.argmax())
        return neighbor_frame(
            ("id", "label", "weight", "distance", "proba_without"),
            [
                ((one.id, one.label, one.weight, one.distance, one.proba_without[best]), one)
                for one in self.neighbors
            ],
        )

    @property
    def headline(self) -> str:
        """The answer and how sure it is, in one line."""
        return explanation_card(self).headline

    def __repr__(self) -> str:
        return f"<Explanation {self.headline}>"

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
            Keys: prediction; proba, base_proba and neighbor_proba by class; null_mass; neighbors
            (id, label, weight, distance, row without pixels, show if the row has any, and
            proba_without, the prediction without this neighbor); with `trust=True` also
            novelty_p_value and prediction_set.
        """
        names = list(map(str, self.classes))

        def by_class(proba: np.ndarray) -> dict[str, float]:
            return dict(zip(names, proba, strict=True))

        trust = {
            "novelty_p_value": self.novelty_p_value,
            "prediction_set": self.prediction_set,
        }
        return {
            "prediction": self.label,
            "proba": by_class(self.proba),
            "base_proba": by_class(self.base_proba),
            "neighbor_proba": by_class(self.neighbor_proba),
            "null_mass": self.null_mass,
            "neighbors": [
                {
                    "id": neighbor.id,
                    "label": neighbor.label,
                    "weight": neighbor.weight,
                    "distance": neighbor.distance,
                    "proba_without": by_class(neighbor.proba_without),
                    "row": without_pixels(neighbor.row),
                    **({} if neighbor.show is None else {"show": neighbor.show}),
                }
                for neighbor in self.neighbors
            ],
        } | (trust if self.prediction_set is not None else {})


def given_row(source: tuple[Any, int] | None, names: Iterable[str]) -> dict[str, Any] | None:
    """Row of a source, column name to value; `names` are the columns of an array."""
    if source is None:
        return None
    rows, at = source
    if isinstance(rows, pd.DataFrame):
        one = rows.iloc[[at]]
        return {str(name): one[name].tolist()[0] for name in one}
    if rows.ndim > 2:
        return {"image": rows[at]}
    return dict(zip(names, rows[at].tolist(), strict=False))


def comparable(X: Any) -> Any:
    """Rows with the columns of remembered rows; None for sparse ones, which have components."""
    return None if is_wide(X) else dense_rows(X)


def with_sources(found: list[Explained], X: Any) -> Explanations[Explained]:
    """Set the source of each explanation: the given rows, and its position."""
    X = comparable(X)
    if not isinstance(X, pd.DataFrame) and getattr(X, "ndim", 0) not in (2, 3, 4):
        return Explanations(found)  # remembered rows, files, lists, components
    return Explanations(replace(one, source=(X, at)) for at, one in enumerate(found))


def explanation_card(explanation: Any) -> Any:
    """Card of an explanation; imported late, as predictions need no templates."""
    from nearwise.html import make_card

    return make_card(explanation)


def neighbor_frame(
    own: tuple[str, ...], neighbors: list[tuple[tuple[Any, ...], Any]]
) -> pd.DataFrame:
    """Table of neighbors: their values, named by `own`, "show" if any, and their columns."""
    rows, shows = [], any(one.show for _, one in neighbors)
    own += ("show",) * shows
    for values, one in neighbors:
        values += (one.show,) * shows
        cells = {} if are_positions(one.row) else without_pixels(one.row)
        named = {f"{name} (column)" if name in own else name: cell for name, cell in cells.items()}
        rows.append(dict(zip(own, values, strict=True)) | named)
    return pd.DataFrame(rows, columns=None if rows else own)


def without_pixels(row: Mapping[str, Any]) -> dict[str, Any]:
    """Remembered row without pixels, as these would need much space."""
    return {name: value for name, value in row.items() if getattr(value, "ndim", 0) == 0}


class Weighed(NamedTuple):
    """Neighbors of n queries by descending weight.

    Attributes
    ----------
    positions : int64 Tensor of shape (n, n_shown)
        Bank positions.
    weights : Tensor of shape (n, n_shown)
        Weights summed over all key spaces.
    is_there : bool Tensor of shape (n, n_shown)
        False after the last neighbor of a query with fewer neighbors.
    """

    positions: Tensor
    weights: Tensor
    is_there: Tensor


def weigh(
    found: list[Tensor], shares: list[Tensor], n_shown: int | None, *, n_views: int = 1
) -> Weighed:
    """Sum each neighbor's weight over views and spaces, for every query.

    `found` are bank positions (n, k) per view and space, `shares` the weights (n, k).
    """
    positions = np.concatenate([part.cpu().numpy() for part in found], axis=1)
    weights = np.concatenate([part.cpu().numpy() for part in shares], axis=1)
    # Sorted by position, so that the entries of one neighbor are adjacent.
    order = _order(positions)
    everyone = np.take_along_axis(positions, order, axis=1)
    parts = np.take_along_axis(weights, order, axis=1) / np.float32(n_views)
    starts = np.ones(everyone.shape, dtype=bool)
    starts[:, 1:] = everyone[:, 1:] != everyone[:, :-1]
    first = np.flatnonzero(starts)
    totals = np.zeros_like(parts)
    totals[starts] = np.add.reduceat(parts.ravel(), first)
    # Positions of the totals, largest first; positive floats have the order of their bits.
    best = _order(np.where(starts, _LARGEST_BITS - totals.view(np.int32), _LARGEST_BITS + 1))
    counts = starts.sum(axis=1)
    best = best[:, : counts.max(initial=0)][:, :n_shown]
    shown = [
        torch.from_numpy(np.take_along_axis(values, best, axis=1)) for values in (everyone, totals)
    ]
    is_there = np.arange(best.shape[1]) < counts[:, None]
    return Weighed(shown[0], shown[1], torch.from_numpy(is_there))


def _order(keys: np.ndarray) -> np.ndarray:
    """Stable argsort (n, m) of rows of integers from 0 to 2^39.

    Sorts each number packed with its position, by vector instructions, in a fifth of the time of
    a stable `argsort`.
    """
    bits = max(1, (keys.shape[1] - 1).bit_length())
    packed = np.sort((keys.astype(np.int64) << bits) | np.arange(keys.shape[1]), axis=1)
    order: np.ndarray = packed & ((1 << bits) - 1)
    return order


def without_each(
    predictor: ClassPredictor,
    attended: list[Attended],
    weighed: Weighed,
    n_classes: int,
    calibration: Calibration,
) -> np.ndarray:
    """Predict every query with each of its neighbors masked.

    Reuses the attention logits of the prediction, without the neighbor's logit.

    Returns
    -------
    proba : ndarray of shape (n_there, n_classes)
        One prediction per existing neighbor, query by query.
    """
    queries, columns = weighed.is_there.nonzero(as_tuple=True)
    gone = weighed.positions[queries, columns]
    blocks = [np.zeros((0, n_classes))]
    for rows in torch.arange(len(gone)).split(_MASKED) if len(gone) else ():
        named = (queries[rows], gone[rows], n_classes)
        views = [_without(predictor, one, *named) for one in attended]
        merged = views[0] if len(views) == 1 else merge_views(views, predictor.merge)
        if calibration.classes is not None:
            merged = calibration.classes(merged, calibration.whole)
        blocks.append(finish(merged, calibration.whole))
    return np.concatenate(blocks)


def _without(
    predictor: ClassPredictor,
    attended: Attended,
    queries: Tensor,
    positions: Tensor,
    n_classes: int,
) -> Tensor:
    """Log-probabilities of queries, each with one neighbor masked."""
    view, logits, _ = attended
    base = view.base_log_proba
    rows, gone = queries.to(base.device), positions.to(base.device)
    found = [one.indices for one in view.found]
    left = predictor.head.predict_without(logits, view.spaces, base, rows, gone, found)
    return predictor.shrunk(left, base[rows], n_classes)


def feature_distances(predictor: Predictor, query: Tensor, positions: Tensor) -> Tensor:
    """Distances of query keys (n, D) to remembered rows (n, m) in the feature space, (n, m)."""
    keys, metric = predictor.views.bank.keys["features"], predictor.views.specs[0].metric
    step = max(1, _LARGEST // max(1, positions.shape[1] * keys.shape[1]))
    blocks = zip(query.split(step), positions.split(step), strict=True)
    return torch.cat([paired_distances(rows, keys[near], metric) for rows, near in blocks])


def reasons(
    predictor: ClassPredictor,
    features: Tensor,
    attended: list[Attended],
    n_neighbors: int | None,
    n_classes: int,
    calibration: Calibration,
) -> list[Reason]:
    """Neighbors of predictions, with weights, distances and predictions without each.

    Parameters
    ----------
    predictor : ClassPredictor
    features : Tensor of shape (n, width)
        Keys of the rows in the feature space.
    attended : list of Attended
        Head outputs, one per view, or a single one for the mean of the views.
    n_neighbors : int or None
        Number of neighbors shown; None shows all.
    n_classes : int
    calibration : Calibration
    """
    found = [one.indices for part in attended for one in part.view.found]
    shares = [part for one in attended for part in one.output.weights]
    weighed = weigh(found, shares, n_neighbors, n_views=len(attended))
    without = without_each(predictor, attended, weighed, n_classes, calibration)
    distances = feature_distances(predictor, features.cpu(), weighed.positions)
    counts = weighed.is_there.sum(1).tolist()
    # Lists instead of tensors: creating hundreds of small tensors is slow.
    lists = [values.tolist() for values in (weighed.positions, weighed.weights, distances)]
    of_rows = zip(counts, *lists, np.split(without, np.cumsum(counts)[:-1]), strict=True)
    return [(at[:n], weights[:n], apart[:n], gone) for n, at, weights, apart, gone in of_rows]


def remembered_reasons(
    predictor: ClassPredictor,
    n_neighbors: int | None,
    n_classes: int,
    positions: Tensor | None = None,
) -> list[Reason]:
    """Neighbors of leave-one-out predictions of remembered rows, all or those at `positions`."""
    bank, calibration = predictor.views.bank, predictor.calibration()
    found: list[Reason] = []
    for rows in (torch.arange(len(bank)) if positions is None else positions).split(CHUNK):
        attended = [predictor.attend(predictor.retrieve_remembered(rows))]
        keys = bank.keys["features"][rows]
        found += reasons(predictor, keys, attended, n_neighbors, n_classes, calibration)
    return found


def explained(
    predictor: ClassPredictor,
    behind: list[Reason],
    parts: Parts,
    classes: np.ndarray,
    remembered: Callable[[list[int]], list[tuple[dict[str, Any], str | None]]],
    target: str = "",
) -> list[Explanation]:
    """Combine neighbors and predictions of rows to explanations.

    `behind` and `parts` are of the same rows; `remembered` returns the original rows at bank
    positions, and what is shown with them; `target` is the name of the target.
    """
    if not behind:
        return []
    bank, believed = predictor.views.bank, predictor.views.labels
    everyone = sorted({position for reason in behind for position in reason[0]})
    rows = dict(zip(everyone, remembered(everyone), strict=True))
    ids = dict(zip(everyone, bank.ids[everyone].tolist(), strict=True))
    given = dict(zip(everyone, classes[bank.labels[everyone].numpy()], strict=True))
    posterior = dict(zip(everyone, classes[believed[everyone].numpy()], strict=True))
    shown, left_out = [], tuple(predictor.encoder.left_out)
    for row, reason in enumerate(behind):
        neighbors = [
            Neighbor(
                ids[position],
                given[position],
                distance,
                weight,
                without,
                rows[position][0],
                posterior[position],
                rows[position][1],
            )
            for position, weight, distance, without in zip(*reason, strict=True)
        ]
        shown.append(
            Explanation(
                classes[parts.proba[row].argmax()],
                classes,
                parts.proba[row],
                parts.base_proba[row],
                parts.neighbor_proba[row],
                float(parts.null_mass[row]),
                neighbors,
                left_out=left_out,
                target=target,
            )
        )
    return shown
