"""Which training rows may carry a wrong label, most suspicious first."""

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.model.log_linear_pool import finish
from nearwise.classifier.model.predictor import Predictor
from nearwise.classifier.noise.noisy_labels import NoisyLabels, transition_of
from nearwise.classifier.query import kneighbors

JudgeName = Literal["nearwise", "cleanlab"]


class LabelEvidence(NamedTuple):
    """What label-cleaning tools need, over the remembered rows in the memory's order.

    `labels` are positions of the given labels among `classes_`; `pred_probs` (n, n_classes)
    leave-one-out probabilities of the given labels (where a transition was fitted, it leads to
    these from those of the true labels); `knn_graph` (n, n) distances to each row's nearest others
    in the feature space, ascending.
    """

    labels: np.ndarray
    pred_probs: np.ndarray
    knn_graph: csr_matrix


def can_find_label_issues(predictor: Predictor) -> bool:
    """Whether remembered rows can be ranked; see `AttnKNNClassifier.can_find_label_issues`."""
    return predictor.is_cross_fitted or isinstance(predictor.label_model, NoisyLabels)


def label_issues(model: FittedModel, n_neighbors: int, judge: JudgeName) -> pd.DataFrame:
    """Rank the remembered rows; see `AttnKNNClassifier.label_issues`."""
    if judge not in ("nearwise", "cleanlab"):
        raise ValueError(f'judge={judge!r} is not known. Use "nearwise" or "cleanlab".')
    bank = model.bank
    given, true = bank.labels.numpy(), _true_proba(model)
    rows = np.arange(len(given))
    suspicion = 1 - true[rows, given]
    if judge == "cleanlab":
        suspicion = 1 - _cleanlab_scores(given, label_evidence(model, n_neighbors).pred_probs)
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
            "neighbors": [tuple(ids) for ids in near.tolist()],
        }
    )
    return table.sort_values("suspicion", ascending=False, kind="stable", ignore_index=True)


def label_evidence(model: FittedModel, n_neighbors: int) -> LabelEvidence:
    """Leave-one-out probabilities and a k-NN graph; see `AttnKNNClassifier.label_evidence`."""
    bank, predictor = model.bank, model.predictor
    proba = _unseen_proba(model)
    if isinstance(predictor.label_model, NoisyLabels):
        proba = predictor.label_model.given_proba(proba)
    distances, found = kneighbors(model, None, min(n_neighbors, most_neighbors(model)))
    columns = bank.positions(found.ravel()).numpy()
    starts = np.arange(0, distances.size + 1, distances.shape[1])
    graph = csr_matrix((distances.ravel(), columns, starts), shape=(len(bank), len(bank)))
    return LabelEvidence(bank.labels.numpy(), proba, graph)


def most_neighbors(model: FittedModel) -> int:
    """Rows that may be found for a remembered one."""
    views = model.predictor.views
    return len(views.rows()) - 1


def _unseen_proba(model: FittedModel) -> np.ndarray:
    """Probabilities of the remembered rows' true labels, the given ones not seen; (n, C)."""
    predictor = model.predictor
    if predictor.is_cross_fitted:
        left_out = predictor.predict_left_out(model.n_classes)
        # The rows come in the shares of the memory, whichever a class_prior wants elsewhere.
        calibration = predictor.calibration().in_memory_shares()
        return finish(calibration.corrected(left_out).log_proba, calibration.whole)
    if not isinstance(predictor.label_model, NoisyLabels):
        if transition_of(predictor.label_model) is not None:
            raise ValueError(
                "This classifier held rows out once, and label_noise took "
                "the labels as they are, so it kept no evidence against any. Give the share of "
                "wrong labels, such as label_noise=0.05, or cross-fit (cv=5)."
            )
        raise ValueError(
            "This classifier held rows out once, so its networks were "
            "trained on the labels of all remembered rows and cannot tell which are wrong. Fit "
            'with label_noise="auto", or cross-fit (cv=5).'
        )
    likely = predictor.label_model.likely(model.bank)
    wide = np.zeros((len(likely), model.n_classes))
    wide[:, : likely.shape[1]] = likely
    return wide / wide.sum(axis=1, keepdims=True)


def _true_proba(model: FittedModel) -> np.ndarray:
    """Probabilities of the true labels, once the given ones are known too."""
    proba = _unseen_proba(model)
    labels = model.predictor.label_model
    return labels.posterior(proba, model.bank.labels) if isinstance(labels, NoisyLabels) else proba


def _cleanlab_scores(labels: np.ndarray, proba: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        raise ImportError(
            'judge="cleanlab" needs the extra "labels": pip install nearwise[labels]'
        ) from None
    scores: Any = get_label_quality_scores(labels, proba, method="normalized_margin")
    return np.asarray(scores, dtype=np.float64)
