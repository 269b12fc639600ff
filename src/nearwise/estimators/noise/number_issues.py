"""Ranking of training rows of a regressor by the suspicion of a wrong target."""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from nearwise.estimators.model.fitted_model import FittedRegressor
from nearwise.estimators.model.number_predictor import wrong_targets
from nearwise.estimators.model.wrong_targets import WrongTargets
from nearwise.estimators.noise.label_issues import most_neighbors
from nearwise.estimators.query import kneighbors

_LEVELS = np.array([0.05, 0.5, 0.95])  # of the quantiles in the table of issues
_FOUND = "targets that may be wrong"


class _Found(NamedTuple):
    wrong: WrongTargets
    quantiles: np.ndarray  # (n, 3)


def number_noise(model: FittedRegressor) -> WrongTargets:
    """Estimate of wrong targets; at the rate of the fit if that had `label_noise`."""
    return _found(model).wrong


def number_issues(model: FittedRegressor, n_neighbors: int) -> pd.DataFrame:
    """Rank the remembered rows; see `Review.issues`."""
    found = _found(model)
    _, near = kneighbors(model, None, min(n_neighbors, most_neighbors(model)))
    table = pd.DataFrame(
        {
            "id": model.bank.ids.numpy(),
            "given": model.numbers,
            "suggested": found.quantiles[:, 1],
            "low": found.quantiles[:, 0],
            "high": found.quantiles[:, 2],
            "suspicion": found.wrong.posterior,
            "neighbors": [tuple(ids) for ids in near.tolist()],
        }
    )
    return table.sort_values("suspicion", ascending=False, kind="stable", ignore_index=True)


def _found(model: FittedRegressor) -> _Found:
    """Leave-one-out predictions and wrong targets, cached until the memory changes."""
    predictor = model.predictor
    derived, noted = predictor.views.derived, predictor.choice.get("label_noise")
    if _FOUND not in derived:
        mixture, _ = predictor.predict_left_out(torch.arange(len(model.bank)))
        wrong = wrong_targets(predictor, mixture, None if noted is None else noted["rate"])
        if noted is not None:
            low, high = noted["interval"]
            wrong = wrong._replace(interval=(low, high))
        derived[_FOUND] = _Found(wrong, mixture.quantiles(_LEVELS))
    kept: _Found = derived[_FOUND]
    return kept
