"""Checks for refitting a model to its changed memory."""

from typing import Any

from nearwise.estimators.fit.problem import has_fixed_positions
from nearwise.estimators.model.predictor import Predictor


def can_refresh(predictor: Predictor) -> bool:
    """Whether the memory has all data for a refit."""
    return predictor.views.label_model.as_given and not _lost_views(predictor)


def refuse_refresh(predictor: Predictor) -> None:
    """Raise ValueError, with the reason, if a model cannot be refreshed."""
    predictor.views.require_all("A refresh is a fit to the remembered rows, which")
    if _lost_views(predictor):
        raise ValueError(
            f"This model was fitted to {predictor.n_views} views of every row, and remembers "
            "the first alone. Fit again."
        )
    predictor.views.label_model.refuse_refresh()


def _lost_views(predictor: Predictor) -> bool:
    """Whether the fit had views given by the user; these are not remembered."""
    return predictor.n_views > 1 and not predictor.tta


def refuse_fixed_positions(cv: Any) -> None:
    """Raise ValueError if `cv` has positions of rows of the first fit."""
    if has_fixed_positions(cv):
        raise ValueError(
            "cv holds positions of the rows of the first fit, which are not those of the memory. "
            "Give a number of folds before you refresh, set_params(cv=5), or a splitter such as "
            "StratifiedKFold(5)."
        )
