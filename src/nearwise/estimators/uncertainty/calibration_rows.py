"""What trust is built on: rows whose labels their own predictions have not seen."""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.log_linear_pool import Calibration
from nearwise.estimators.uncertainty.explain import Parts, make_parts
from nearwise.functional.threads import one_thread

MOST_ROWS = 10_000  # of a memory; more would take longer than they would sharpen what follows
_LEAST_COUNT = 1.5  # rows of a class below which nothing is known of it without one of them


class CalibrationRows(NamedTuple):
    """Remembered rows with their labels, each predicted as if new.

    Attributes
    ----------
    labels : int64 ndarray of shape (n,)
        Class positions.
    parts : Parts
    distance : float64 ndarray of shape (n,)
        To the k-th neighbor in the feature space, k being the classifier's number of neighbors, in
        typical neighbor distances.
    truth : float64 ndarray of shape (n, n_classes)
        How much each row counts as each class: 1 for its label and 0 for the others, or by the
        label model. Single entries may then be negative or above 1; over many rows they give
        the right counts. Where they are such shares and a class prior is given, rows count as much
        as each class in it. With groups a row counts as much as its group has rows less, so that
        every group counts once.
    caveat : str
        What the label model takes for granted; a clause, or empty.
    groups : int64 ndarray of shape (n,), optional
        Numbers of the groups that rows are left out with.
    """

    labels: np.ndarray
    parts: Parts
    distance: np.ndarray
    truth: np.ndarray
    caveat: str
    groups: np.ndarray | None = None

    @property
    def correct(self) -> np.ndarray:
        """Whether each row's prediction is its given label, bool (n,)."""
        right: np.ndarray = self.parts.proba.argmax(axis=1) == self.labels
        return right

    @property
    def wrong(self) -> np.ndarray:
        """How much each row counts as a wrong prediction, (n,), of `counts`."""
        best = self.parts.proba.argmax(axis=1)
        share: np.ndarray = self.counts - self.truth[np.arange(len(best)), best]
        return share

    @property
    def counts(self) -> np.ndarray:
        """How much each row counts in all, (n,): 1 unless `in_shares`, or one of a group."""
        total: np.ndarray = self.truth.sum(axis=1)
        return total

    @property
    def in_shares(self) -> bool:
        """Whether rows count as several classes, as labels may be wrong."""
        return self.groups is None and not np.isin(self.truth, (0.0, 1.0)).all()

    @property
    def noun(self) -> str:
        """What counts once."""
        return "rows" if self.groups is None else "groups"

    def take(self, at: np.ndarray) -> Self:
        """Return some of the rows; groups count once again."""
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
        """Return a random row of each group, which counts once; all where there are no groups."""
        if self.groups is None:
            return self
        order = np.random.default_rng(0).permutation(len(self.groups))
        return self.take(np.sort(order[np.unique(self.groups[order], return_index=True)[1]]))


@one_thread(torch_only=True)
def calibration_rows(predictor: ClassPredictor, n_classes: int, n_views: int) -> CalibrationRows:
    """Predict the calibration rows of later predictions; kept until the memory changes.

    These are the remembered rows whose labels neither base nor keys have learned, each left out
    (a random 10,000 of more); after a fit with several views, those of the fit, in one or in all
    views. Rows of weight 0 are left out.
    """
    cache_key = ("calibration rows", n_classes, n_views)
    if cache_key not in predictor.views.derived:
        rows = _left_out(predictor, n_classes, n_views)
        predictor.views.derived[cache_key] = _in_wanted_shares(rows, predictor.calibration(n_views))
    found: CalibrationRows = predictor.views.derived[cache_key]
    return found


def _in_wanted_shares(rows: CalibrationRows, calibration: Calibration) -> CalibrationRows:
    """Keep a random part of the rows that has the class shares predictions are made for.

    What is then counted on them holds there, whatever came to the memory or went; shares far from
    those of the rows leave few of them. Rows that count as classes in shares are all kept, and
    count as each class as often as it would be. Rows of classes that came after the fit are kept
    as the rarest of the others.
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
    """Take a random 10,000 of more positions, ascending."""
    if len(positions) <= MOST_ROWS:
        return positions
    some = np.random.default_rng(0).choice(positions.numpy(), MOST_ROWS, replace=False)
    return torch.from_numpy(np.sort(some))


def group_sizes(groups: np.ndarray) -> np.ndarray:
    """How many of the rows are of each row's group, (n,)."""
    _, own, size = np.unique(groups, return_inverse=True, return_counts=True)
    found: np.ndarray = size[own]
    return found


def judged_positions(predictor: ClassPredictor) -> Tensor:
    """Bank positions of the rows that can be calibration rows, ascending, (n,)."""
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
