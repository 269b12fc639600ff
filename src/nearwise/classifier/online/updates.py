"""Rows that come, go or change their label after fitting; nothing is trained again."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.inputs.rows import AnyRows
from nearwise.classifier.model.memory_views import FINDABLE, FITTED, FOLD
from nearwise.classifier.model.predictor import Predictor, as_float
from nearwise.memory import MemoryBank


def append_rows(
    predictor: Predictor,
    views: list[AnyRows],
    labels: Tensor,
    weight: np.ndarray | None,
    n_classes: int,
) -> Tensor:
    """Remember new rows, given in as many views as those of `fit`, and return their ids.

    Neither base nor keys have learned their labels, so that they are calibration rows from now on.
    """
    bank, n_rows = predictor.views.bank, len(labels)
    keys, columns = predictor.keys_of_new(views)
    columns[FOLD] = torch.zeros(n_rows, dtype=torch.int64)
    columns |= predictor.label_model.columns_of_new(lambda: predict_new(predictor, views))
    if FINDABLE in bank.columns:
        columns[FINDABLE] = torch.ones(n_rows, dtype=torch.bool)
    if FITTED in bank.columns:
        columns[FITTED] = labels
    columns = predictor.views.columns_of_new(n_rows) | columns
    sample_weight = None if weight is None else as_float(weight)
    ids = bank.add(keys, labels, sample_weight=sample_weight, n_classes=n_classes, columns=columns)
    predictor.views.forget()
    predictor.views.judge_new(bank.positions(ids), len(predictor.prior))
    return ids


def predict_new(predictor: Predictor, views: list[AnyRows]) -> Tensor:
    """Calibrated log-probabilities (n, C) of the classes of the fit, by the model as it is."""
    merged = predictor.predict_views(views, len(predictor.prior))
    whole = predictor.calibration(len(views)).whole
    return torch.log_softmax(merged.log_proba[:, : len(predictor.prior)] / whole, dim=1)


def drop_rows(predictor: Predictor, ids: Any) -> np.ndarray:
    """Forget rows by id; return a mask of the positions that stay."""
    bank = predictor.views.bank
    keep = torch.ones(len(bank), dtype=torch.bool)
    keep[bank.positions(ids)] = False
    if int(keep.sum()) < 2:
        raise ValueError(
            f"Removing {len(bank) - int(keep.sum())} of {len(bank)} rows leaves fewer than 2. "
            "Keep at least 2, or fit again."
        )
    bank.remove(ids)
    predictor.views.forget()
    predictor.views.judge_rest()
    mask: np.ndarray = keep.numpy()
    return mask


def refuse_emptied_classes(
    bank: MemoryBank, at: Tensor, new: Tensor | None, classes: np.ndarray, doing: str
) -> None:
    """Refuse to take a class's last row that votes, by removal or by `new` labels (n_at,)."""
    labels = bank.labels.argmax(1) if bank.is_soft else bank.labels
    votes = bank.columns.get(FINDABLE, torch.ones_like(labels).bool())
    taken = at.unique()
    before = torch.bincount(labels[votes], minlength=len(classes))
    after = before - torch.bincount(labels[taken[votes[taken]]], minlength=len(classes))
    if new is not None:
        after = after + torch.bincount(new[votes[at]], minlength=len(classes))
    emptied = torch.nonzero((before > 0) & (after <= 0))[:, 0].numpy()
    if len(emptied):
        named = ", ".join(map(repr, classes[emptied].tolist()[:5]))
        raise ValueError(
            f"{doing} {len(at)} rows leaves no row of the class {named} that may be found. Keep "
            "one, or pass forget_classes=True (--forget-classes): the class keeps its column, but "
            "has no neighbors."
        )


def give_labels(predictor: Predictor, ids: Any, labels: Tensor) -> None:
    """Relabel rows by id, and recompute their reliability; no other row is searched for.

    The bank keeps what the labels were before.
    """
    views = predictor.views
    former = views.bank.columns.setdefault(FITTED, views.bank.labels)
    views.bank.relabel(ids, labels)
    if torch.equal(former, views.bank.labels):
        del views.bank.columns[FITTED]
    views.forget_labels()
    views.judge_relabelled(views.bank.positions(ids))
