"""Review: what a person should check in the memory of a classifier, and how far to trust it."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from nearwise.classifier.inputs import labels
from nearwise.classifier.inputs.rows import Rows
from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.model.learned_rows import LearnedRows, find_learned, predict_learned
from nearwise.classifier.noise.label_issues import (
    JudgeName,
    LabelEvidence,
    label_evidence,
    label_issues,
)
from nearwise.classifier.noise.noisy_labels import transition_of
from nearwise.classifier.noise.review import findings
from nearwise.classifier.noise.transition import Transition
from nearwise.classifier.uncertainty.explain import Parts
from nearwise.classifier.uncertainty.trust import Trust, measure_trust


def review(model: Any) -> "Review":
    """Review a fitted classifier as it is now, whatever is added or removed later.

    Parameters
    ----------
    model : AttnKNNClassifier

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from nearwise import AttnKNNClassifier, review
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AttnKNNClassifier(base=None, random_state=0).fit(X, y)
    >>> review(model).issues().columns.tolist()[:3]
    ['id', 'given', 'suggested']
    """
    check_is_fitted(model)
    return Review(model.fitted_)


class Review:
    """One version of a classifier under review; `review` makes it.

    Parameters
    ----------
    fitted : FittedModel
    """

    def __init__(self, fitted: FittedModel) -> None:
        self._fitted = fitted

    def findings(self) -> pd.DataFrame:
        """List what in the memory a person should check, the worst of each kind first.

        Returns
        -------
        found : DataFrame
            kind; id of the row (missing for a group); given label; suggested label or None; score;
            ids of rows concerned (neighbors, copies, members of a group, at most 100); what, in
            words.

        Notes
        -----
        "label": `issues` whose suggestion differs; suspicion. "copy": a neighbor within 1 %
        of the usual distance, no value of which differs by over .05 standard deviations; those with
        another label first; 1 - that share. "outlier": mean distance to ten
        neighbors, by angle, beyond the third quartile by 1.7 interquartile ranges, as in
        cleanlab's Datalab; of keys of up to eight numbers the logarithm of the Euclidean one, by
        2; times the usual distance. "group": classes, the 50 most
        frequent values of a category, quarters of numbers (of tables with up to 200 columns) whose
        labels are predicted worse than the others', beyond chance at 95 % over all groups; gap in
        accuracy.
        """
        return findings(self._fitted)

    def issues(self, *, n_neighbors: int = 5, judge: JudgeName = "nearwise") -> pd.DataFrame:
        """Rank the remembered rows by how likely their label is wrong.

        Every row is predicted without itself, as by `predict_proba(None)`. With
        `label_noise`, Bayes' rule then weighs that prediction against how often such a label is
        given. Rows whose labels the networks of a fit with one fold have learned are left out of
        the ranking, with a warning, unless `label_noise` found evidence on them.

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
            If `judge` is unknown.
        ImportError
            If cleanlab is chosen and missing.
        """
        return label_issues(self._fitted, n_neighbors, judge)

    def evidence(self, n_neighbors: int = 10) -> LabelEvidence:
        """Leave-one-out probabilities and a k-NN graph, in the form that cleanlab takes.

        ``Datalab(...).find_issues(pred_probs=e.pred_probs, knn_graph=e.knn_graph)``.
        """
        return label_evidence(self._fitted, n_neighbors)

    def rows(self) -> pd.DataFrame:
        """Remembered rows: id, label by the target's name, weight, and columns (no pixels)."""
        model = self._fitted
        bank, target = model.bank, model.target_name
        columns = model.predictor.encoder.frame(model.rows, model.row_names)
        columns = columns.reset_index(drop=True)
        own = pd.DataFrame(
            {
                "id": bank.ids.numpy(),
                target: model.labels_at(),
                "weight": bank.sample_weight.double().numpy() * model.weight_unit,
            }
        )
        taken = {name: f"{name} (column)" for name in own if name in columns}
        return pd.concat([own, columns.rename(columns=taken)], axis=1)

    def trust(self) -> Trust:
        """Measure the model on rows whose labels their predictions have not seen.

        Returns
        -------
        trust : Trust
            Reliability with intervals, risk against coverage, set sizes; a notebook draws it.

        Raises
        ------
        ValueError
            If there are no such rows.
        """
        return measure_trust(self._fitted)

    def learned(self, X: Any, y: Any = None) -> LearnedRows:
        """Recognize rows that the classifier has learned from, by content.

        Scores on such rows are not evidence about new ones; `predict_learned` predicts them as if
        they were new.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
        y : array-like of shape (n,), optional
            Labels. Where several remembered rows equal a row, one with its label is taken.

        Returns
        -------
        found : LearnedRows
            ids in `memory_`, positions among the rows that were held out, `new`, and the columns
            that were `compared` beyond those the model uses.

        Notes
        -----
        Rows are equal if all columns of the model are: categories, gaps, and numbers up to a
        hundred-thousandth of the column's spread, so that a file's format does not matter. A column
        that the model leaves out (an id) tells equal rows apart where `X` and the remembered rows
        have it. Images are equal pixel by pixel. Neither order nor label decides, so without an id
        a new row that repeats one counts as learned: the memory holds the answer to both. Rows that
        were learned from and forgotten since (`remove`, a bound of the memory) are not recognized.
        """
        if X is None:
            raise ValueError("X=None stands for the remembered rows. Give the rows to look up.")
        model, codes = self._fitted, None
        rows = Rows.given(X, model.columns, model.predictor.encoder)
        if y is not None:
            codes, _ = labels.positions_among(model.classes, labels.label_values(y))
        return find_learned(model, rows.encode()[0], codes, rows.X)

    def predict_learned(self, found: LearnedRows) -> tuple[np.ndarray, Parts]:
        """Predict rows that were learned from as if they were new, as far as that is possible.

        These are the remembered rows whose labels base and networks have not learned, each
        without itself, as `predict_proba(None)` gives it.

        Parameters
        ----------
        found : LearnedRows
            What `learned` returned.

        Returns
        -------
        rows : int64 ndarray of shape (n_predicted,)
            Which of the requested rows could be predicted.
        parts : Parts
            Of these rows.
        """
        return predict_learned(self._fitted, found)

    @property
    def noise(self) -> Transition:
        """With `label_noise`: how given labels arise from true ones, with 95 % intervals.

        If the estimate is not trusted, what is used instead; `report_.choice["label_noise"]` says
        why. AttributeError if nobody looked for wrong labels.
        """
        known = transition_of(self._fitted.predictor.label_model)
        if known is None:
            raise AttributeError("Wrong labels were not estimated: label_noise was None in fit.")
        return known
