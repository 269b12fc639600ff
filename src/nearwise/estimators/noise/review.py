"""Review: rows and groups of a memory to check, and measures of trust in its estimator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted

from nearwise.cached import cached_property
from nearwise.estimators.inputs.labels import label_values, positions_among
from nearwise.estimators.inputs.rows import Rows
from nearwise.estimators.model.fitted_model import (
    FittedClassifier,
    FittedModel,
    FittedRegressor,
    FittedTargets,
)
from nearwise.estimators.model.learned_rows import LearnedRows, find_learned, predict_learned
from nearwise.estimators.model.log_linear_pool import finish
from nearwise.estimators.model.wrong_targets import WrongTargets
from nearwise.estimators.noise.expected import ExpectedWrong, expected_wrong
from nearwise.estimators.noise.findings import findings
from nearwise.estimators.noise.label_issues import (
    JudgeName,
    LabelEvidence,
    label_evidence,
    label_issues,
)
from nearwise.estimators.noise.noisy_labels import transition_of
from nearwise.estimators.noise.number_issues import number_issues, number_noise
from nearwise.estimators.noise.transition import Transition
from nearwise.estimators.uncertainty.explain import Parts
from nearwise.estimators.uncertainty.trust import Trust, measure_trust
from nearwise.metrics.scores import NLL_CLIP

_MOST_SHOWN = 10  # findings in a notebook
_NOUNS = {
    "label": "disagree with the model",
    "copy": "are copies",
    "outlier": "are unlike all others",
    "group": "groups are predicted badly",
}


def review(model: Any) -> "Review":
    """Review the present version of a fitted estimator; later changes have no effect on it.

    Parameters
    ----------
    model : AttnKNNClassifier or AttnKNNRegressor

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from nearwise import AttnKNNClassifier, review
    >>> X, y = load_iris(return_X_y=True)
    >>> model = AttnKNNClassifier(estimator=None, random_state=0).fit(X, y)
    >>> review(model).issues().columns.tolist()[:3]
    ['id', 'given', 'suggested']
    """
    check_is_fitted(model)
    if isinstance(model.fitted_, FittedTargets):
        raise ValueError(
            f"The model has {len(model.fitted_.names)} targets, and a review is of one: "
            "review(model.estimators_[0])."
        )
    return Review(model.fitted_)


class Review:
    """Review of one version of an estimator; made by `review`.

    Parameters
    ----------
    fitted : FittedClassifier or FittedRegressor
    """

    def __init__(self, fitted: FittedModel) -> None:
        self._fitted = fitted

    def _classifier(self, what: str) -> FittedClassifier:
        if not isinstance(self._fitted, FittedClassifier):
            raise ValueError(f"{what} is of classifiers, and this is a regressor.")
        return self._fitted

    def findings(self) -> pd.DataFrame:
        """List rows and groups of the memory to check, the worst of each kind first.

        Returns
        -------
        found : DataFrame
            Columns: kind; id of the row (missing for a group); given label or target; suggested
            one or None; score; ids of related rows (neighbors, copies, members of a group, at most
            500); what, a description; show, if the model has rows with something to show.

        Notes
        -----
        "label": rows whose label disagrees with the suggestion; if classes overlap, most of these
        labels are right, see `expected_wrong_labels`. For a regressor, targets with a suspicion
        above .5. Score: suspicion. "copy": a neighbor within 1 % of the usual distance, with no
        value more than .05 standard deviations away; first those with another label. Score: 1 minus
        distance over usual distance. "outlier": mean angular distance to ten neighbors beyond the
        third quartile by 1.7 interquartile ranges, as in cleanlab's Datalab; for keys of up to
        eight numbers the log of the Euclidean distance, by 2. Score: distance over usual distance.
        "group": classes, the 50 most frequent values of a category, and quarters of numbers (of
        tables with up to 200 columns) with more wrong predictions than chance explains, at 95 %
        over all groups; wrongly predicted members come first. Score: gap in accuracy. For a
        regressor, rows count as wrong if farther from the suggestion than half of all rows; score:
        gap in the mean distance.
        """
        return self._found.copy()

    @cached_property
    def _found(self) -> pd.DataFrame:
        return findings(self._fitted)

    def __repr__(self) -> str:
        return f"<Review of {self._fitted.n_remembered:,} rows: findings(), issues(), trust(), ...>"

    def _repr_html_(self) -> str:
        from nearwise.html import notebook
        from nearwise.html.card import face_of

        counts = self._found["kind"].value_counts().items()
        first = self._found[:_MOST_SHOWN].astype(object)
        cases = first.where(first.notna(), None).to_dict("records")
        rows = {one["id"]: None for one in cases if one["id"] is not None}
        faces = {one.id: face_of(one) for one in self._fitted.look_up(list(rows))}
        return notebook(
            "findings.html",
            expected=self.expected_wrong_labels(),
            noun="label" if isinstance(self._fitted, FittedClassifier) else "target",
            counts=", ".join(f"{n} {_NOUNS[str(kind)]}" for kind, n in counts) or "No findings",
            cases=[(one, faces.get(one["id"])) for one in cases],
            n_findings=len(self._found),
        )

    def issues(self, *, n_neighbors: int = 5, judge: JudgeName = "nearwise") -> pd.DataFrame:
        """Rank the remembered rows by the probability that their label is wrong.

        Every row gets its leave-one-out prediction, as by `predict_proba(None)`. With
        `label_noise`, Bayes' rule combines it with the probability of the given label. After a fit
        with a hold-out split, the networks have learned the labels of most rows. Wrong ones among
        these look less suspicious than they are, with a warning, unless a noisy-label model was
        fitted.

        Parameters
        ----------
        n_neighbors : int, default=5
            Number of nearest rows listed per row.
        judge : {"nearwise", "cleanlab"}, default="nearwise"
            Score of the ranking. "cleanlab" uses its normalised margin of the same leave-one-out
            probabilities, and needs the extra "labels".

        Returns
        -------
        issues : DataFrame of n rows
            Rows by descending suspicion. Columns: id (in `memory_`), given and suggested label,
            proba_given and proba_suggested (of being true), suspicion in [0, 1], independent
            (whether the prediction is independent of the label), neighbors (ids, nearest first).
            Write it with `to_csv`. For a regressor: id, given target, suggested (median of the
            leave-one-out prediction), low and high (5 and 95 %), suspicion (probability that the
            target is wrong, at the rate of `noise`), neighbors.

        Raises
        ------
        ValueError
            If `judge` is unknown, or "cleanlab" for a regressor.
        ImportError
            If cleanlab is chosen and missing.
        """
        if isinstance(self._fitted, FittedRegressor):
            if judge != "nearwise":
                raise ValueError(f'judge={judge!r} is not for targets. Use "nearwise".')
            return number_issues(self._fitted, n_neighbors)
        return label_issues(self._classifier("issues"), n_neighbors, judge)

    def evidence(self, n_neighbors: int = 10) -> LabelEvidence:
        """Leave-one-out probabilities and a k-NN graph, as input of cleanlab.

        ``Datalab(...).find_issues(pred_probs=e.pred_probs, knn_graph=e.knn_graph)``.
        """
        return label_evidence(self._classifier("evidence"), n_neighbors)

    def rows(self) -> pd.DataFrame:
        """Remembered rows: id, label by the target's name, weight, show, and columns (no pixels).

        "show" is there if the model has rows with something to show; "" for rows without.
        """
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
        if model.row_names is not None:
            own["show"] = model.row_names
        taken = {name: f"{name} (column)" for name in own if name in columns}
        return pd.concat([own, columns.rename(columns=taken)], axis=1)

    def trust(self) -> Trust:
        """Measure the model on its calibration rows, with predictions independent of their labels.

        Returns
        -------
        trust : Trust
            Reliability with intervals, risk against coverage, set sizes; shown as a chart in a
            notebook.

        Raises
        ------
        ValueError
            If there are no calibration rows.
        """
        return measure_trust(self._classifier("trust"))

    def learned(self, X: Any, y: Any = None) -> LearnedRows:
        """Recognize training rows of the estimator by their content.

        Scores on training rows are too optimistic for new rows; `predict_learned` gives their
        leave-one-out predictions.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
            Rows to look up.
        y : array-like of shape (n,), optional
            Class labels. If several remembered rows equal a row, one with its label is chosen.

        Returns
        -------
        found : LearnedRows
            Ids in `memory_`, the mask `new`, and the columns `compared` beyond the columns of the
            model.

        Notes
        -----
        Rows are equal if all columns of the model are equal: categories, gaps, and numbers up to
        1e-5 of the column's spread, so that a file's format does not matter. A column outside the
        model (an id) distinguishes equal rows if `X` and the remembered rows have it. Images are
        compared pixel by pixel. Order and label do not matter, so without an id a new row that
        equals a training row counts as learned. Removed rows (`remove`, capacity) are not
        recognized.
        """
        if X is None:
            raise ValueError("X=None stands for the remembered rows. Give the rows to look up.")
        model, codes = self._fitted, None
        rows = Rows.given(X, model.columns, model.predictor.encoder)
        if y is not None and isinstance(model, FittedClassifier):
            codes, _ = positions_among(model.classes, label_values(y))
        return find_learned(model, rows.encode()[0], codes, rows.X)

    def predict_learned(self, found: LearnedRows) -> tuple[np.ndarray, Parts]:
        """Leave-one-out predictions of training rows, where possible.

        Possible for remembered rows that neither base nor networks were trained on, as in
        `predict_proba(None)`.

        Parameters
        ----------
        found : LearnedRows
            Result of `learned`.

        Returns
        -------
        rows : int64 ndarray of shape (n_predicted,)
            Positions of the predicted rows among the requested rows.
        parts : Parts
            Parts of their predictions.
        """
        return predict_learned(self._classifier("predict_learned"), found)

    def expected_wrong_labels(self) -> ExpectedWrong:
        """Estimate how many labels, or targets, are wrong, with a 95 % interval.

        With `label_noise` this is the noise model's share. Otherwise it is the mean of two
        estimates from leave-one-out predictions, one too high and one too low: the share of other
        labels among the surest fifth of the rows of each predicted class, and the share of wrong
        labels that class overlap cannot explain. If even the surest rows overlap with other
        classes, the number is too high; the interval then often reaches down to 0.

        Returns
        -------
        expected : ExpectedWrong
            number, low, high (rows); n_rows; source, "noise model" or "predictions".

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from nearwise import AttnKNNClassifier, review
        >>> X, y = load_iris(return_X_y=True)
        >>> model = AttnKNNClassifier(estimator=None, preset="instant").fit(X, y)
        >>> review(model).expected_wrong_labels().low
        0.0
        """
        return expected_wrong(self._fitted)

    @property
    def noise(self) -> Transition | WrongTargets:
        """Noise model: transition from true to given labels, with 95 % intervals.

        An unreliable estimate is reduced or replaced, with the reason in
        `report_.choice["label_noise"]`. AttributeError for a classifier without `label_noise`.
        For a regressor: the share of wrong targets, with a 95 % interval; without `label_noise`
        the estimate is too low, as predictions were trained on the wrong targets.
        """
        if isinstance(self._fitted, FittedRegressor):
            return number_noise(self._fitted)
        known = transition_of(self._classifier("noise").predictor.label_model)
        if known is None:
            raise AttributeError("Wrong labels were not estimated: label_noise was None in fit.")
        return known


def held_out_losses(model: FittedModel, ids: Sequence[int]) -> np.ndarray:
    """Leave-one-out losses of remembered rows: NLL of labels, CRPS of targets.

    Used to measure the effect of a change of other rows.
    """
    positions = model.bank.positions(ids)
    if isinstance(model, FittedRegressor):
        mixture, _ = model.predictor.predict_left_out(positions)
        return mixture.crps(model.labels_at(positions))
    assert isinstance(model, FittedClassifier)
    predictor, n_classes = model.predictor, model.n_classes
    calibration = predictor.calibration()
    answer = calibration.corrected(predictor.predict_left_out(n_classes, positions))
    labels = model.label_positions[positions]
    proba = finish(answer.log_proba, calibration.whole)
    found: np.ndarray = -np.log(np.maximum(proba[torch.arange(len(labels)), labels], NLL_CLIP))
    return found
