"""Calibration rows: remembered rows with predictions independent of their own labels."""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.log_linear_pool import Calibration
from nearwise.estimators.uncertainty.conformal import rows_needed
from nearwise.estimators.uncertainty.explain import Parts, make_parts
from nearwise.functional.threads import one_thread

MOST_ROWS = 10_000  # most calibration rows; more cost time and add little precision
_LEAST_COUNT = 1.5  # fewest rows of a class, so that one is left without a left-out row


class CalibrationRows(NamedTuple):
    """Remembered rows with their labels, each predicted as if new.

    Attributes
    ----------
    labels : int64 ndarray of shape (n,)
        Class positions.
    parts : Parts
        Predictions of the rows.
    distance : float64 ndarray of shape (n,)
        Distance to the k-th neighbor in the feature space, in typical neighbor distances; k is
        the classifier's number of neighbors.
    truth : float64 ndarray of shape (n, n_classes)
        Weight of each row in each class: 1 for its label and 0 for the others, or from the label
        model. Single entries may then be negative or above 1; sums over many rows are right. With
        a class prior, such weights are scaled to the prior. With groups, the weight is divided by
        the size of the row's group, so that every group counts once.
    caveat : str
        Assumption of the label model; a clause, or empty.
    groups : int64 ndarray of shape (n,), optional
        Number of each row's group; groups are left out together.
    """

    labels: np.ndarray
    parts: Parts
    distance: np.ndarray
    truth: np.ndarray
    caveat: str
    groups: np.ndarray | None = None

    @property
    def correct(self) -> np.ndarray:
        """Mask of rows with the given label as prediction, bool (n,)."""
        right: np.ndarray = self.parts.proba.argmax(axis=1) == self.labels
        return right

    @property
    def wrong(self) -> np.ndarray:
        """Weight of each row as a wrong prediction, (n,): `counts` minus that of the class."""
        best = self.parts.proba.argmax(axis=1)
        share: np.ndarray = self.counts - self.truth[np.arange(len(best)), best]
        return share

    @property
    def counts(self) -> np.ndarray:
        """Total weight of each row, (n,): 1, except for `in_shares` or groups."""
        total: np.ndarray = self.truth.sum(axis=1)
        return total

    @property
    def in_shares(self) -> bool:
        """Whether rows have weight in several classes, because labels may be wrong."""
        return self.groups is None and not np.isin(self.truth, (0.0, 1.0)).all()

    @property
    def noun(self) -> str:
        """Name of the counted unit: "rows" or "groups"."""
        return "rows" if self.groups is None else "groups"

    def can_judge(self, confidence: float) -> bool:
        """Whether there are enough rows for prediction sets of a confidence."""
        return round(float(self.truth.sum()), 1) >= rows_needed(confidence)

    def take(self, at: np.ndarray) -> Self:
        """Select some of the rows; weights within groups are computed anew."""
        groups = None if self.groups is None else self.groups[at]
        truth = self.truth[at]
        if groups is not None:
            truth = (truth != 0) / group_sizes(groups)[:, None]
        parts = Parts(*(part[at] for part in self.parts))
        return self._replace(
            labels=self.labels[at],
            parts=parts,
            distance=self.distance[at],
            truth=truth,
            groups=groups,
        )

    def one_per_group(self) -> Self:
        """Select a random row of each group, with weight 1; all rows without groups."""
        if self.groups is None:
            return self
        order = np.random.default_rng(0).permutation(len(self.groups))
        return self.take(np.sort(order[np.unique(self.groups[order], return_index=True)[1]]))


@one_thread(torch_only=True)
def calibration_rows(predictor: ClassPredictor, n_classes: int, n_views: int) -> CalibrationRows:
    """Calibration rows with their predictions, cached until the memory changes.

    These are remembered rows that base and keys were not trained on, with leave-one-out
    predictions; a random 10,000 if there are more. After a fit with several views, only rows of the
    fit, in one or in all views. Rows of weight 0 are excluded.
    """
    cache_key = ("calibration rows", n_classes, n_views)
    if cache_key not in predictor.views.derived:
        rows = _left_out(predictor, n_classes, n_views)
        predictor.views.derived[cache_key] = _in_wanted_shares(rows, predictor.calibration(n_views))
    found: CalibrationRows = predictor.views.derived[cache_key]
    return found


def _in_wanted_shares(rows: CalibrationRows, calibration: Calibration) -> CalibrationRows:
    """Draw a random part of the rows with the class shares of the wanted class prior.

    Statistics of these rows are then valid under the prior, for any class shares of the memory. A
    prior far from these shares leaves few rows. If labels may be wrong, all rows are kept, with
    class weights scaled to the prior. Classes added after the fit are kept like the rarest class.
    """
    if calibration.classes is None or calibration.classes.wanted is None:
        return rows
    wanted = np.asarray(calibration.classes.wanted)
    there = rows.truth[:, : len(wanted)].sum(axis=0)
    seen = there >= _LEAST_COUNT
    chance = np.ones(rows.truth.shape[1])
    if seen.any():
        ratio = np.where(seen, wanted / np.maximum(there, _LEAST_COUNT), 0.0)
        chance[: len(wanted)] = ratio / ratio.max()
    if rows.in_shares:
        return rows._replace(truth=rows.truth * chance)
    of_rows = chance[rows.labels]
    kept = np.flatnonzero(np.random.default_rng(0).random(len(of_rows)) < of_rows)
    return rows.take(kept)


def at_most(positions: Tensor) -> Tensor:
    """Random 10,000 of the positions if there are more, ascending."""
    if len(positions) <= MOST_ROWS:
        return positions
    some = np.random.default_rng(0).choice(positions.numpy(), MOST_ROWS, replace=False)
    return torch.from_numpy(np.sort(some))


def group_sizes(groups: np.ndarray) -> np.ndarray:
    """Size of each row's group, (n,)."""
    _, own, size = np.unique(groups, return_inverse=True, return_counts=True)
    found: np.ndarray = size[own]
    return found


def judged_positions(predictor: ClassPredictor) -> Tensor:
    """Bank positions of the possible calibration rows, ascending, (n,)."""
    bank, judged = predictor.views.bank, predictor.judged
    if predictor.judged_views is not None:
        judged = judged & torch.isin(bank.ids, predictor.judged_views.ids)
    return torch.nonzero(judged & (bank.sample_weight > 0))[:, 0]


def _left_out(predictor: ClassPredictor, n_classes: int, n_views: int) -> CalibrationRows:
    bank = predictor.views.bank
    positions = at_most(judged_positions(predictor))
    calibration = predictor.calibration(n_views)
    merged, _ = predictor.predict_judged(n_classes, n_views, positions)
    keys, ids = bank.keys["features"][positions], bank.ids[positions]
    spec, labels = predictor.views.specs[0], bank.labels[positions].numpy()
    found = predictor.views.search(spec, keys, spec.n_neighbors, ids)
    groups = predictor.views.groups
    rows = CalibrationRows(
        labels,
        make_parts(calibration.corrected(merged), calibration),
        found.distances[:, -1].double().numpy(),
        predictor.label_model.class_weights(labels, n_classes),
        predictor.label_model.caveat,
        None if groups is None else groups[positions].numpy(),
    )
    return rows.take(np.arange(len(labels)))
