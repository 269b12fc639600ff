"""Ranking of training rows by the suspicion of a wrong label."""

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel
from nearwise.estimators.model.log_linear_pool import finish
from nearwise.estimators.noise.noisy_labels import NoisyLabels
from nearwise.estimators.query import kneighbors, warn_of_learned
from nearwise.warn import warn_user

JudgeName = Literal["nearwise", "cleanlab"]


class LabelEvidence(NamedTuple):
    """Input of label-cleaning tools for the remembered rows, in the memory's order.

    `labels` are positions of the given labels among `classes_`; `pred_probs` (n, n_classes) are
    leave-one-out probabilities of the given labels (with a fitted transition, computed by it from
    those of the true labels); `knn_graph` (n, n) has the distances to each row's nearest others in
    the feature space, ascending.
    """

    labels: np.ndarray
    pred_probs: np.ndarray
    knn_graph: csr_matrix


def label_issues(model: FittedClassifier, n_neighbors: int, judge: JudgeName) -> pd.DataFrame:
    """Rank the remembered rows; see `Review.issues`."""
    if judge not in ("nearwise", "cleanlab"):
        raise ValueError(f'judge={judge!r} is not known. Use "nearwise" or "cleanlab".')
    bank, independent = model.bank, np.zeros(len(model.bank), dtype=bool)
    independent[independent_rows(model).numpy()] = True
    _warn_of_others(independent)
    everyone = torch.arange(len(bank))
    given, true = bank.labels.numpy(), _true_proba(model, everyone)
    rows = np.arange(len(given))
    suspicion = 1 - true[rows, given]
    if judge == "cleanlab":
        suspicion = 1 - _cleanlab_scores(given, given_proba(model, everyone))
    suggested = true.argmax(axis=1)
    _, near = kneighbors(model, None, min(n_neighbors, most_neighbors(model)))
    table = pd.DataFrame(
        {
            "id": bank.ids.numpy(),
            "given": model.classes[given],
            "suggested": model.classes[suggested],
            "proba_given": true[rows, given],
            "proba_suggested": true[rows, suggested],
            "suspicion": suspicion,
            "independent": independent,
            "neighbors": [tuple(ids) for ids in near.tolist()],
        }
    )
    return table.sort_values("suspicion", ascending=False, kind="stable", ignore_index=True)


def label_evidence(model: FittedClassifier, n_neighbors: int) -> LabelEvidence:
    """Leave-one-out probabilities and a k-NN graph; see `Review.evidence`."""
    bank = model.bank
    warn_of_learned(model.predictor)
    proba = given_proba(model, torch.arange(len(bank)))
    distances, found = kneighbors(model, None, min(n_neighbors, most_neighbors(model)))
    columns = bank.positions(found.ravel()).numpy()
    starts = np.arange(0, distances.size + 1, distances.shape[1])
    graph = csr_matrix((distances.ravel(), columns, starts), shape=(len(bank), len(bank)))
    return LabelEvidence(bank.labels.numpy(), proba, graph)


def most_neighbors(model: FittedModel) -> int:
    """Largest number of neighbors of a remembered row."""
    views = model.predictor.views
    return len(views.rows()) - 1


def independent_rows(model: FittedClassifier) -> Tensor:
    """Positions (n,) of the rows with predictions independent of their labels.

    All rows if the fit had a noisy-label model.
    """
    if isinstance(model.predictor.label_model, NoisyLabels):
        return torch.arange(len(model.bank))
    return torch.nonzero(model.predictor.judged)[:, 0]


def _warn_of_others(independent: np.ndarray) -> None:
    n_rows, n_judged = len(independent), int(independent.sum())
    if n_judged < n_rows:
        warn_user(
            f"Base or networks were trained on the labels of {n_rows - n_judged} of the {n_rows} "
            "rows in memory, so wrong ones among these look less suspicious than they are; "
            f'"independent" marks the other {n_judged}. For independent predictions of all, give '
            "a share of wrong labels: label_noise=0.05."
        )


def unseen_proba(model: FittedClassifier, rows: Tensor) -> np.ndarray:
    """Probabilities (n, C) of the true labels of rows at positions, without the given labels."""
    predictor = model.predictor
    if not (predictor.held_rows_out and isinstance(predictor.label_model, NoisyLabels)):
        left_out = predictor.predict_left_out(model.n_classes, rows)
        # These rows have the class shares of the memory, not those of `class_prior`.
        calibration = predictor.calibration().in_memory_shares()
        return finish(calibration.corrected(left_out).log_proba, calibration.whole)
    likely = predictor.label_model.likely(model.bank)[rows.numpy()]
    wide = np.zeros((len(likely), model.n_classes))
    wide[:, : likely.shape[1]] = likely
    return wide / wide.sum(axis=1, keepdims=True)


def given_proba(model: FittedClassifier, rows: Tensor) -> np.ndarray:
    """Probabilities (n, C) of the given labels of rows at positions, without using them."""
    proba, labels = unseen_proba(model, rows), model.predictor.label_model
    return labels.given_proba(proba) if isinstance(labels, NoisyLabels) else proba


def _true_proba(model: FittedClassifier, rows: Tensor) -> np.ndarray:
    """Posterior probabilities (n, C) of the true labels, given also the labels of the rows."""
    proba, labels = unseen_proba(model, rows), model.predictor.label_model
    if not isinstance(labels, NoisyLabels):
        return proba
    return labels.posterior(proba, model.bank.labels[rows])


def _cleanlab_scores(labels: np.ndarray, proba: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        raise ImportError(
            'judge="cleanlab" needs the extra "labels": pip install nearwise[labels]'
        ) from None
    scores: Any = get_label_quality_scores(labels, proba, method="normalized_margin")
    return np.asarray(scores, dtype=np.float64)
