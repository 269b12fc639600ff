"""Conformal intervals, and novelty, by rows whose targets their own predictions have not seen."""

from typing import NamedTuple

import numpy as np
import torch

from nearwise.estimators.model.memory_views import GROUPED
from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.model.number_memory import TARGET
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.uncertainty.calibration_rows import MOST_ROWS
from nearwise.estimators.uncertainty.conformal import check_confidence
from nearwise.functional.threads import one_thread

_CALIBRATION = "calibration numbers"


class CalibrationNumbers(NamedTuple):
    """Remembered rows, each predicted as if new.

    Attributes
    ----------
    levels_reached : float64 ndarray of shape (n,)
        Probability that the prediction gave to at most the row's target (PIT).
    crps : float64 ndarray of shape (n,)
    log_width : float64 ndarray of shape (n,)
        Logarithm of the mixtures' standard deviation.
    distance : float64 ndarray of shape (n,)
        To the k-th neighbor in the feature space, in typical neighbor distances.
    counts : float64 ndarray of shape (n,)
        How much each row counts: 1, or as much as its group has rows less.
    """

    levels_reached: np.ndarray
    crps: np.ndarray
    log_width: np.ndarray
    distance: np.ndarray
    counts: np.ndarray

    def levels(self, confidence: float) -> np.ndarray:
        """Levels of the two quantiles that bound intervals of a confidence, (2,).

        ValueError if there are too few rows.
        """
        check_confidence(confidence)
        tail, n = (1 - confidence) / 2, float(self.counts.sum())
        needed = int(np.ceil(1 / tail - 1e-9)) - 1
        if n < needed - 1e-9:
            raise ValueError(
                f"Intervals of confidence {confidence} need {needed} calibration rows (or groups), "
                f"and there are {n:.0f}. Remember more rows, or ask for confidence="
                f"{max(0.0, np.floor(100 * (1 - 2 / (n + 1))) / 100)}."
            )
        order = np.argsort(self.levels_reached, kind="stable")
        values, total = self.levels_reached[order], np.cumsum(self.counts[order])
        low = int(np.searchsorted(total, tail * (n + 1) - 1e-9))
        high = int(np.searchsorted(total, (1 - tail) * (n + 1) - 1e-9))
        last = len(values) - 1
        return np.clip(values[[min(low, last), min(high, last)]], 1e-6, 1 - 1e-6)

    def novelty_scores(self, mixture: Mixture, distance: np.ndarray) -> np.ndarray:
        """Mean of distance and log width, in standard deviations from those of these rows, (n,)."""
        total = np.zeros(len(distance))
        width = np.log(mixture.variance()) / 2
        for values, known in ((distance, self.distance), (width, self.log_width)):
            mean = np.average(known, weights=self.counts)
            deviation = np.sqrt(np.average((known - mean) ** 2, weights=self.counts))
            total += (values - mean) / max(float(deviation), 1e-12)
        return total / 2

    def novelty_p_values(self, scores: np.ndarray) -> np.ndarray:
        """Share of these rows with at least a score, the new row counted, (n,)."""
        own = np.zeros(len(self.distance))
        for known in (self.distance, self.log_width):
            mean = np.average(known, weights=self.counts)
            deviation = np.sqrt(np.average((known - mean) ** 2, weights=self.counts))
            own += (known - mean) / max(float(deviation), 1e-12) / 2
        order = np.argsort(own)
        below = np.concatenate([[0.0], np.cumsum(self.counts[order])])
        at_least = below[-1] - below[np.searchsorted(own[order], scores - 1e-12)]
        found: np.ndarray = (1 + at_least) / (1 + below[-1])
        return found


@one_thread(torch_only=True)
def calibration_numbers(predictor: NumberPredictor) -> CalibrationNumbers:
    """Predict the calibration rows, each left out; kept until the memory changes.

    A random 10,000 of more; rows of weight 0 are none.
    """
    if _CALIBRATION not in predictor.views.derived:
        predictor.views.derived[_CALIBRATION] = _left_out(predictor)
    found: CalibrationNumbers = predictor.views.derived[_CALIBRATION]
    return found


def _left_out(predictor: NumberPredictor) -> CalibrationNumbers:
    bank = predictor.views.bank
    judged = torch.nonzero(predictor.judged & (bank.sample_weight > 0))[:, 0].numpy()
    if len(judged) > MOST_ROWS:
        judged = np.sort(np.random.default_rng(0).choice(judged, MOST_ROWS, replace=False))
    positions = torch.from_numpy(judged)
    mixture = predictor.predict_left_out(positions)
    targets = bank.columns[TARGET][positions].numpy()
    spec, ids = predictor.views.specs[0], bank.ids[positions]
    keys = bank.keys[spec.name][positions]
    found = predictor.views.search(spec, keys, spec.n_neighbors, ids)
    counts = np.ones(len(judged))
    name = next((one for one in GROUPED if one in bank.columns), None)
    if name is not None:
        groups = bank.columns[name][positions].numpy()
        _, own, sizes = np.unique(groups, return_inverse=True, return_counts=True)
        counts = 1 / sizes[own]
    return CalibrationNumbers(
        mixture.cdf(targets),
        mixture.crps(targets),
        np.log(mixture.variance()) / 2,
        found.distances[:, -1].double().numpy(),
        counts,
    )
