"""NumberQuery: results of a fitted regressor for some rows, computed once and cached."""

from collections.abc import Iterator, Sequence
from typing import Literal, cast

import numpy as np
import torch

from nearwise.cached import cached_property
from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.inputs.table import Encoded
from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.mixture import Mixture
from nearwise.estimators.model.number_memory import NumberRetrieval
from nearwise.estimators.query import CHUNK, DEFAULT_SHOWN
from nearwise.estimators.uncertainty.conformal import check_confidence
from nearwise.estimators.uncertainty.intervals import CalibrationNumbers, calibration_numbers
from nearwise.estimators.uncertainty.number_explain import NumberExplanation, explained
from nearwise.estimators.uncertainty.number_selective import NumberSelection, select
from nearwise.functional.threads import one_thread

Output = Literal["mean", "median", "mode"]
OUTPUTS: tuple[Output, ...] = ("mean", "median", "mode")


class NumberQuery:
    """Results of one version of a fitted regressor for some rows.

    Encoding, base, searches and the head's predictions are computed in one pass over the rows,
    block by block, for the first result; all other results use them.

    Parameters
    ----------
    model : FittedRegressor
    rows : Encoded or None
        Rows to predict; None means leave-one-out predictions of the remembered rows.
    judged_by : CalibrationNumbers, optional
        Calibration rows of an earlier version, as in `Query`.
    """

    def __init__(
        self,
        model: FittedRegressor,
        rows: AnyRows | None,
        *,
        judged_by: CalibrationNumbers | None = None,
    ) -> None:
        self._judged_by = judged_by
        self.model = model.for_query(remembered=rows is None)
        self.rows = rows

    @cached_property
    def _found(self) -> tuple[Mixture, np.ndarray, np.ndarray]:
        """Mixtures, distances to the k-th neighbor in the feature space, and base predictions."""
        predictor = self.model.predictor
        mixtures, distances, bases = [], [], []
        with one_thread(torch_only=True):
            for _, retrieved in self._retrieve():
                mixtures.append(predictor.mixture(retrieved))
                distances.append(retrieved.farthest)
                bases.append(retrieved.spaces[0].location.numpy())
        return Mixture.joined(mixtures), np.concatenate(distances), np.concatenate(bases)

    def _retrieve(self) -> Iterator[tuple[torch.Tensor, NumberRetrieval]]:
        """Iterate over blocks of feature keys and retrieved neighbors."""
        predictor = self.model.predictor
        if self.rows is None:
            keys = self.model.bank.keys["features"]
            for rows in torch.arange(len(self.model.bank)).split(CHUNK):
                yield keys[rows], predictor.retrieve_remembered(rows)
            return
        for rows in torch.arange(len(self.rows)).split(CHUNK):
            yield predictor.retrieve(cast(Encoded, self.rows.take(rows.numpy())))

    # --- answers --------------------------------------------------------------------------------

    @property
    def mixture(self) -> Mixture:
        """Predicted distribution of each row's target."""
        return self._found[0]

    def base(self) -> np.ndarray:
        """Predictions of the base alone, (n,); without a base the mean remembered target."""
        return self._found[2]

    def predict(self, output: Output = "mean") -> np.ndarray:
        """Predict one number per row, (n,)."""
        if output not in OUTPUTS:
            raise ValueError(
                f"output={output!r} is not known. Use one of {', '.join(map(repr, OUTPUTS))}."
            )
        if output == "median":
            return self.quantiles([0.5])[:, 0]
        return self.mixture.mean() if output == "mean" else self.mixture.mode()

    def quantiles(self, levels: Sequence[float] | np.ndarray) -> np.ndarray:
        """Quantiles at some levels, (n, n_levels)."""
        wanted = np.asarray(levels, dtype=np.float64)
        if wanted.ndim != 1 or not len(wanted) or not ((wanted > 0) & (wanted < 1)).all():
            raise ValueError(
                f"quantiles={levels!r} must be levels between 0 and 1, such as "
                "quantiles=[0.05, 0.5, 0.95]."
            )
        return self.mixture.quantiles(wanted)

    def interval(self, confidence: float = 0.9) -> np.ndarray:
        """Conformal intervals, (n, 2); see `AttnKNNRegressor.predict_interval`."""
        levels = self.calibration_numbers().levels(confidence, self.predict())
        return self.mixture.quantiles(levels)

    def selection(
        self,
        coverage: float | None = None,
        max_width: float | None = None,
        confidence: float = 0.9,
    ) -> NumberSelection:
        """Predict with abstention; see `AttnKNNRegressor.predict_selective`."""
        return select(self, coverage, max_width, confidence)

    def explanations(
        self, n_shown: int | None = DEFAULT_SHOWN, confidence: float = 0.9
    ) -> list[NumberExplanation]:
        """Explanations by neighbors; see `AttnKNNRegressor.explain`."""
        check_confidence(confidence)
        known = None if self.rows is None else self.calibration_numbers()
        shown = []
        with one_thread(torch_only=True):
            for features, retrieved in self._retrieve():
                shown += explained(self.model, features, retrieved, known, confidence, n_shown)
        return shown

    def novelty_score(self) -> np.ndarray:
        """Novelty scores of the rows, (n,); larger is more novel."""
        mixture, distance, _ = self._found
        return self.calibration_numbers().novelty_scores(np.log(mixture.variance()) / 2, distance)

    def novelty_p_value(self) -> np.ndarray:
        """Share of calibration rows with at least the novelty score of each row, (n,)."""
        return self.calibration_numbers().novelty_p_values(self.novelty_score())

    def calibration_numbers(self) -> CalibrationNumbers:
        """Calibration rows for intervals and novelty."""
        if self.rows is None:
            raise ValueError(
                "Rows are compared with the training rows, so these have no interval themselves. "
                "Give new rows as X."
            )
        if self._judged_by is not None:
            return self._judged_by
        return calibration_numbers(self.model.predictor)
