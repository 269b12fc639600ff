"""Whether a fitted classifier can be fitted again to a memory that has changed."""

from typing import Any

from nearwise.classifier.fit.problem import has_fixed_positions
from nearwise.classifier.model.predictor import Predictor


def can_refresh(predictor: Predictor) -> bool:
    """Whether what is remembered holds all that a fit needs."""
    return predictor.is_cross_fitted and predictor.label_model.as_given


def refuse_refresh(predictor: Predictor) -> None:
    """Raise a ValueError with the reason if a fit cannot be refreshed."""
    if not predictor.is_cross_fitted:
        raise ValueError(
            "This classifier held rows out once, so its networks were "
            "trained on the labels of all remembered rows, from which the attention can learn "
            "nothing more. Fit again."
        )
    predictor.label_model.refuse_refresh()


def refuse_fixed_positions(cv: Any) -> None:
    """Raise a ValueError if `cv` names rows of the first fit by their positions."""
    if has_fixed_positions(cv):
        raise ValueError(
            "cv holds positions of the rows of the first fit, which are not those of the memory. "
            "Give a number of folds before you refresh, set_params(cv=5), or a splitter such as "
            "StratifiedKFold(5)."
        )
