"""Conformal intervals and novelty of a regressor, by its calibration rows."""

from dataclasses import dataclass

import numpy as np
import torch

from nearwise.cached import cached_property
from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.model.number_memory import TARGET, TRUST
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.uncertainty.calibration_rows import at_most, group_sizes
from nearwise.estimators.uncertainty.conformal import check_confidence
from nearwise.estimators.uncertainty.novelty import novelty_p_values, standardised
from nearwise.functional.threads import one_thread

_CALIBRATION = "calibration numbers"
_BAND, _MOST_BANDS = 200, 5  # fewest rows per band of predictions, and most bands


@dataclass(frozen=True, eq=False)
class CalibrationNumbers:
    """Remembered rows, each predicted as if new.

    Attributes
    ----------
    mixture : Mixture of n rows
        Leave-one-out predictions, with the width for left-out rows.
    as_new : Mixture of n rows
        The same predictions, with the width for new rows.
    targets : float64 ndarray of shape (n,)
    levels_reached : float64 ndarray of shape (n,)
        Predicted probability of at most the row's target (PIT).
    log_width : float64 ndarray of shape (n,)
        Logarithm of the standard deviation of `as_new`.
    distance : float64 ndarray of shape (n,)
        Distance to the k-th neighbor in the feature space, in typical neighbor distances.
    counts : float64 ndarray of shape (n,)
        Weight of each row: 1 over the size of its group, times the trust in its target.
    """

    mixture: Mixture
    as_new: Mixture
    targets: np.ndarray
    levels_reached: np.ndarray
    log_width: np.ndarray
    distance: np.ndarray
    counts: np.ndarray

    def can_judge(self, confidence: float) -> bool:
        """Whether there are enough rows for intervals of a confidence."""
        return float(self.counts.sum()) >= _rows_needed(confidence) - 1e-9

    def levels(self, confidence: float, means: np.ndarray) -> np.ndarray:
        """Quantile levels (n, 2) of the ends of intervals of a confidence, for means (n,).

        They come from calibration rows with predictions of similar size, in one of up to five
        bands, so that small and large predictions have the same coverage (Mondrian conformal
        prediction). ValueError if there are too few rows.
        """
        check_confidence(confidence)
        n = float(self.counts.sum())
        if not self.can_judge(confidence):
            raise ValueError(
                f"Intervals of confidence {confidence} need {_rows_needed(confidence)} calibration "
                f"rows (or groups), and there are {n:.0f}. Remember more rows, or ask for "
                f"confidence={max(0.0, np.floor(100 * (1 - 2 / (n + 1))) / 100)}."
            )
        if confidence not in self._of_bands:
            edges = self._edges(max(_BAND, _rows_needed(confidence)))
            bands = np.searchsorted(edges, self.means, side="right")
            of_band = [self._levels(confidence, bands == band) for band in range(len(edges) + 1)]
            self._of_bands[confidence] = edges, np.stack(of_band)
        edges, of_bands = self._of_bands[confidence]
        found: np.ndarray = of_bands[np.searchsorted(edges, means, side="right")]
        return found

    @cached_property
    def means(self) -> np.ndarray:
        """Leave-one-out predicted means, (n,)."""
        return self.mixture.mean()

    @cached_property
    def _of_bands(self) -> dict[float, tuple[np.ndarray, np.ndarray]]:
        """Cache of the band edges and the levels (n_bands, 2), by confidence."""
        return {}

    def _edges(self, fewest: int) -> np.ndarray:
        """Edges of the bands of means; each band has at least `fewest` rows."""
        order = np.argsort(self.means, kind="stable")
        share = np.cumsum(self.counts[order]) / self.counts.sum()
        for n_bands in range(_MOST_BANDS, 1, -1):
            begin = np.searchsorted(share, np.arange(1, n_bands) / n_bands)
            edges = self.means[order[begin.clip(max=len(order) - 1)]]
            bands = np.searchsorted(edges, self.means, side="right")
            if np.bincount(bands, self.counts, minlength=n_bands).min() >= fewest:
                return edges
        return np.empty(0)

    def _levels(self, confidence: float, band: np.ndarray) -> np.ndarray:
        """Levels (2,) from the rows of a band, bool (n,)."""
        reached, counts = self.levels_reached[band], self.counts[band]
        tail, n = (1 - confidence) / 2, float(counts.sum())
        order = np.argsort(reached, kind="stable")
        values, total = reached[order], np.cumsum(counts[order])
        low = int(np.searchsorted(total, tail * (n + 1) - 1e-9))
        high = int(np.searchsorted(total, (1 - tail) * (n + 1) - 1e-9))
        last = len(values) - 1
        return np.clip(values[[min(low, last), min(high, last)]], 1e-6, 1 - 1e-6)

    def novelty_scores(self, log_width: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Mean of distance and log width, standardised by the calibration rows, (n,)."""
        return standardised((self.distance, self.log_width), (distance, log_width))

    def novelty_p_values(self, scores: np.ndarray) -> np.ndarray:
        """Share of calibration rows with at least each score, counting the new row, (n,)."""
        own = self.novelty_scores(self.log_width, self.distance)
        return novelty_p_values(scores, own, self.counts)


def _rows_needed(confidence: float) -> int:
    """Fewest calibration rows (or groups) for intervals of a confidence."""
    return int(np.ceil(2 / (1 - confidence) - 1e-9)) - 1


@one_thread(torch_only=True)
def calibration_numbers(predictor: NumberPredictor) -> CalibrationNumbers:
    """Calibration rows with leave-one-out predictions, cached until the memory changes.

    A random 10,000 if there are more; without rows of weight 0.
    """
    if _CALIBRATION not in predictor.views.derived:
        predictor.views.derived[_CALIBRATION] = _left_out(predictor)
    found: CalibrationNumbers = predictor.views.derived[_CALIBRATION]
    return found


def _left_out(predictor: NumberPredictor) -> CalibrationNumbers:
    bank, groups = predictor.views.bank, predictor.views.groups
    positions = at_most(torch.nonzero(predictor.judged & (bank.sample_weight > 0))[:, 0])
    mixture, distance = predictor.predict_left_out(positions)
    targets = bank.columns[TARGET][positions].numpy()
    trust = bank.columns.get(TRUST)
    counts = np.ones(len(positions)) if trust is None else trust[positions].numpy()
    if groups is not None:
        counts = counts / group_sizes(groups[positions].numpy())
    as_new = mixture.scaled(predictor.spread.factor / predictor.spread.left_out)
    return CalibrationNumbers(
        mixture,
        as_new,
        targets,
        mixture.cdf(targets),
        np.log(as_new.variance()) / 2,
        distance,
        counts,
    )
