"""Which training rows may carry a wrong label, most suspicious first."""

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.sparse import csr_matrix
from sklearn.utils.validation import check_is_fitted

from nearwise.estimators.asking import AnswersQueries
from nearwise.estimators.pooling import finish
from nearwise.estimators.shared import SharedState
from nearwise.functional import believed_proba

JudgeName = Literal["nearwise", "cleanlab"]


class LabelEvidence(NamedTuple):
    """What label-cleaning tools ask for, over the remembered rows in the memory's order.

    Attributes
    ----------
    labels : int64 ndarray of shape (n,)
        Positions of the given labels among `classes_`.
    pred_probs : ndarray of shape (n, n_classes)
        Leave-one-out probabilities of the given labels: of the true ones, seen through the
        transition where one was fitted.
    knn_graph : sparse array of shape (n, n)
        Distances to each row's nearest others in the feature space, ascending.
    """

    labels: np.ndarray
    pred_probs: np.ndarray
    knn_graph: csr_matrix


class FindsLabelIssues(AnswersQueries):
    """`label_issues` and `label_evidence` of a fitted classifier."""

    @property
    def doubts_labels(self) -> bool:
        """Whether labels of remembered rows can be judged.

        Not where rows were held out once and no label noise was asked for, or none was found.
        """
        check_is_fitted(self)
        shared = isinstance(self._state, SharedState)
        return not shared or self._state.views.transitions is not None

    def label_issues(self, *, n_neighbors: int = 5, judge: JudgeName = "nearwise") -> pd.DataFrame:
        """Rank the remembered rows by how likely their label is wrong.

        Every row is judged without its own label: by members that were not fitted on it. With
        `label_noise`, Bayes' rule then weighs that word against how often such a label is given.

        Parameters
        ----------
        n_neighbors : int, default=5
            Nearest rows named beside each suspect.
        judge : {"nearwise", "cleanlab"}, default="nearwise"
            "cleanlab" ranks by its normalised margin of the same leave-one-out probabilities; it
            needs the extra "labels".

        Returns
        -------
        issues : DataFrame of n rows
            Largest suspicion first: id (in `memory_`), given and suggested label, proba_given and
            proba_suggested (of being true), suspicion in [0, 1], neighbors (ids, nearest first).
            Write it with `to_csv`.

        Raises
        ------
        ValueError
            If the networks were trained on the labels of all remembered rows and no `label_noise`
            was asked for, or none was found, or `judge` is unknown.
        ImportError
            If cleanlab is asked for and missing.
        """
        if judge not in ("nearwise", "cleanlab"):
            raise ValueError(f'judge={judge!r} is not known. Use "nearwise" or "cleanlab".')
        check_is_fitted(self)
        bank = self._state.views.bank
        given, true = bank.labels.numpy(), self._true_proba()
        rows = np.arange(len(given))
        suspicion = 1 - true[rows, given]
        if judge == "cleanlab":
            suspicion = 1 - _cleanlab_scores(given, self.label_evidence(n_neighbors).pred_probs)
        suggested = true.argmax(axis=1)
        k = min(n_neighbors, self._most_neighbors())
        near = self.kneighbors(None, k, return_distance=False)
        table = pd.DataFrame(
            {
                "id": bank.ids.numpy(),
                "given": self.classes_[given],
                "suggested": self.classes_[suggested],
                "proba_given": true[rows, given],
                "proba_suggested": true[rows, suggested],
                "suspicion": suspicion,
                "neighbors": [tuple(ids) for ids in near.tolist()],
            }
        )
        return table.sort_values("suspicion", ascending=False, kind="stable", ignore_index=True)

    def label_evidence(self, n_neighbors: int = 10) -> LabelEvidence:
        """Leave-one-out probabilities and a k-NN graph, in the form that cleanlab takes.

        ``Datalab(...).find_issues(pred_probs=e.pred_probs, knn_graph=e.knn_graph)``.
        """
        check_is_fitted(self)
        bank = self._state.views.bank
        proba = self._unseen_proba()
        transition = self._state.transition
        if self._state.views.transitions is not None and transition is not None:
            known = len(transition.matrix)
            proba[:, :known] = proba[:, :known] @ transition.matrix
        distances, found = self.kneighbors(None, min(n_neighbors, self._most_neighbors()))
        places = bank.positions(found.ravel()).numpy()
        starts = np.arange(0, distances.size + 1, distances.shape[1])
        graph = csr_matrix((distances.ravel(), places, starts), shape=(len(bank), len(bank)))
        return LabelEvidence(bank.labels.numpy(), proba, graph)

    def _most_neighbors(self) -> int:
        """Rows that may be found for a remembered one."""
        views = self._state.views
        return len(views.rows(views.specs[0], 0)) - 1

    def _unseen_proba(self) -> np.ndarray:
        """Probabilities of the remembered rows' true labels, the given ones not seen; (n, C)."""
        if not isinstance(self._state, SharedState):
            left_out = self._state.predict_left_out(len(self.classes_))
            # The rows come in the shares of the memory, whichever a class_prior wants elsewhere.
            calibration = self._state.calibration().in_memory_shares()
            return finish(calibration.corrected(left_out).log_proba, calibration.whole)
        views = self._state.views
        if views.transitions is None and self._state.transition is not None:
            raise ValueError(
                "This classifier held rows out once (validation_fraction), and label_noise took "
                "the labels as they are, so it kept no evidence against any. Give the share of "
                "wrong labels, such as label_noise=0.05, or cross-fit (validation_fraction=None)."
            )
        if views.transitions is None:
            raise ValueError(
                "This classifier held rows out once (validation_fraction), so its networks were "
                "trained on the labels of all remembered rows and cannot doubt them. Fit with "
                'label_noise="auto", or cross-fit (validation_fraction=None).'
            )
        evidence = views.bank.keys["side.evidence_0"].exp().double().numpy()
        wide = np.zeros((len(evidence), len(self.classes_)))
        wide[:, : evidence.shape[1]] = evidence
        return wide / wide.sum(axis=1, keepdims=True)

    def _true_proba(self) -> np.ndarray:
        """Probabilities of the true labels, once the given ones are known too."""
        proba = self._unseen_proba()
        transition = self._state.transition
        if self._state.views.transitions is None or transition is None:
            return proba
        matrix = torch.from_numpy(transition.matrix)
        known = torch.from_numpy(np.log(np.maximum(proba[:, : len(matrix)], 1e-300)))
        given = self._state.views.bank.labels
        result: np.ndarray = believed_proba(known, matrix, given, proba.shape[1]).numpy()
        return result


def _cleanlab_scores(labels: np.ndarray, proba: np.ndarray) -> np.ndarray:
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        raise ImportError(
            'judge="cleanlab" needs the extra "labels": pip install nearwise[labels]'
        ) from None
    scores: Any = get_label_quality_scores(labels, proba, method="normalized_margin")
    return np.asarray(scores, dtype=np.float64)
