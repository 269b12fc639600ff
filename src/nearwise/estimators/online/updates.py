"""Predictions and checks for changes of remembered rows, without training."""

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.rows import AnyRows
from nearwise.estimators.model.class_predictor import ClassPredictor
from nearwise.estimators.model.memory_views import MemoryViews

_FEWEST = 2  # fewest rows of a memory


def predict_new(predictor: ClassPredictor, views: list[AnyRows]) -> Tensor:
    """Calibrated log-probabilities (n, C) of new rows for the classes of the fit."""
    merged = predictor.predict_views(views, len(predictor.prior))
    whole = predictor.calibration(len(views)).whole
    return torch.log_softmax(merged.log_proba[:, : len(predictor.prior)] / whole, dim=1)


def refuse_few(views: MemoryViews, gone: Tensor) -> None:
    """Raise ValueError if removing the rows at these positions leaves fewer than 2."""
    n_rows, n_gone = views.n_remembered, len(gone.unique())
    if n_rows - n_gone < _FEWEST:
        raise ValueError(
            f"Removing {n_gone} of {n_rows} rows leaves fewer than {_FEWEST}. Keep at least "
            f"{_FEWEST}, or fit again."
        )


def refuse_emptied_classes(
    views: MemoryViews, at: Tensor, new: Tensor | None, classes: np.ndarray, doing: str
) -> None:
    """Raise ValueError if removals or `new` labels (n_at,) leave a class without a voting row."""
    bank = views.bank
    labels = bank.labels.argmax(1) if bank.is_soft else bank.labels
    votes = torch.isin(at, views.rows())
    before = views.rows_per_class(findable=True)
    taken = at[votes].unique()
    after = before - torch.bincount(labels[taken], minlength=len(before))
    if new is not None:
        after = after + torch.bincount(new[votes], minlength=len(before))
    emptied = torch.nonzero((before > 0) & (after <= 0))[:, 0].numpy()
    if len(emptied):
        named = ", ".join(map(repr, classes[emptied].tolist()[:5]))
        raise ValueError(
            f"{doing} {len(at)} rows leaves no row of the class {named} that may be found. Keep "
            "one, or pass forget_classes=True (--forget-classes): the class keeps its column, but "
            "has no neighbors."
        )
