"""Whether a fitted classifier can be fitted again to a memory that has changed."""

from nearwise.classifier.model.predictor import Predictor


def can_refresh(predictor: Predictor) -> bool:
    """Whether what is remembered holds all that a fit needs."""
    return predictor.is_cross_fitted and predictor.label_model.as_given


def refuse_refresh(predictor: Predictor) -> None:
    """Raise a ValueError with the reason if a fit cannot be refreshed."""
    if not predictor.is_cross_fitted:
        raise ValueError(
            "This classifier held rows out once (validation_fraction), so its networks were "
            "trained on the labels of all remembered rows, from which the attention can learn "
            "nothing more. Fit again."
        )
    predictor.label_model.refuse_refresh()
