"""Whether a fitted model can be fitted again to a memory that has changed."""

from typing import Any

from nearwise.estimators.fit.problem import has_fixed_positions
from nearwise.estimators.model.predictor import Predictor


def can_refresh(predictor: Predictor) -> bool:
    """Whether what is remembered holds all that a fit needs."""
    return predictor.views.label_model.as_given and not _lost_views(predictor)


def refuse_refresh(predictor: Predictor) -> None:
    """Raise a ValueError with the reason if a fit cannot be refreshed."""
    predictor.views.require_all("A refresh is a fit to the remembered rows, which")
    if _lost_views(predictor):
        raise ValueError(
            f"This model was fitted to {predictor.n_views} views of every row, and remembers "
            "the first alone. Fit again."
        )
    predictor.views.label_model.refuse_refresh()


def _lost_views(predictor: Predictor) -> bool:
    """Whether there were views other than those that `fit` makes of images itself."""
    return predictor.n_views > 1 and not predictor.tta


def refuse_fixed_positions(cv: Any) -> None:
    """Raise a ValueError if `cv` names rows of the first fit by their positions."""
    if has_fixed_positions(cv):
        raise ValueError(
            "cv holds positions of the rows of the first fit, which are not those of the memory. "
            "Give a number of folds before you refresh, set_params(cv=5), or a splitter such as "
            "StratifiedKFold(5)."
        )
