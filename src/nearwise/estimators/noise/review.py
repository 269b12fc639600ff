"""Review: rows and groups of a memory to check, and measures of trust in its estimator."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd
import torch
from scipy.stats import hypergeom
from sklearn.utils.validation import check_is_fitted

from nearwise.estimators.inputs.labels import label_values, positions_among
from nearwise.estimators.inputs.rows import Rows
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FittedRegressor
from nearwise.estimators.model.learned_rows import LearnedRows, find_learned, predict_learned
from nearwise.estimators.model.log_linear_pool import finish
from nearwise.estimators.model.wrong_targets import WrongTargets
from nearwise.estimators.noise.label_issues import (
    JudgeName,
    LabelEvidence,
    label_evidence,
    label_issues,
    most_neighbors,
)
from nearwise.estimators.noise.noisy_labels import transition_of
from nearwise.estimators.noise.number_issues import number_issues, number_noise
from nearwise.estimators.noise.transition import Transition
from nearwise.estimators.query import kneighbors
from nearwise.estimators.uncertainty.explain import Parts
from nearwise.estimators.uncertainty.trust import Trust, measure_trust
from nearwise.memory import make_index
from nearwise.metrics.scores import NLL_CLIP

IssueKind = Literal["label", "copy", "outlier", "group"]
KINDS: tuple[IssueKind, ...] = get_args(IssueKind)
_N_NEIGHBORS = 5
_COPY = 0.01  # largest distance of a copy, as a share of the median neighbor distance
_ALIKE = 0.05  # largest difference of a copy's value, in standard deviations or pixel ranges
_N_AROUND = 10  # neighbors in the distance of an outlier
_FEW_DIMENSIONS = 8
_FAR, _FAR_IN_FEW = 1.7, 2.0  # interquartile ranges beyond the third quartile
_FEWEST_IN_GROUP = 20
_MOST_VALUES = 50  # most frequent values of a category
_MOST_COLUMNS = 200  # most columns of a table whose groups are examined
_N_PARTS = 4  # quarters of a column of numbers
_LEVEL = 0.95  # confidence over all groups together


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
            100); what, a description.

        Notes
        -----
        "label": `issues` with another suggested label; for a regressor, targets with a suspicion
        above .5. Score: suspicion. "copy": a neighbor within 1 % of the usual distance, with no
        value more than .05 standard deviations away; first those with another label. Score: 1 minus
        distance over usual distance. "outlier": mean angular distance to ten neighbors beyond the
        third quartile by 1.7 interquartile ranges, as in cleanlab's Datalab; for keys of up to
        eight numbers the log of the Euclidean distance, by 2. Score: distance over usual distance.
        "group": classes, the 50 most frequent values of a category, and quarters of numbers (of
        tables with up to 200 columns) with more wrong predictions than chance explains, at 95 %
        over all groups. Score: gap in accuracy. For a regressor, rows count as wrong if farther
        from the suggestion than half of all rows; score: gap in the mean distance.
        """
        return findings(self._fitted)

    def issues(self, *, n_neighbors: int = 5, judge: JudgeName = "nearwise") -> pd.DataFrame:
        """Rank the remembered rows by the probability that their label is wrong.

        Every row gets its leave-one-out prediction, as by `predict_proba(None)`. With
        `label_noise`, Bayes' rule combines it with the probability of the given label. After a fit
        with a hold-out split, rows that trained the networks are left out of the ranking, with a
        warning, unless a noisy-label model was fitted.

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
            proba_given and proba_suggested (of being true), suspicion in [0, 1], neighbors (ids,
            nearest first). Write it with `to_csv`. For a regressor: id, given target, suggested
            (median of the leave-one-out prediction), low and high (5 and 95 %), suspicion
            (probability that the target is wrong, at the rate of `noise`), neighbors.

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


def findings(model: FittedModel, issues: pd.DataFrame | None = None) -> pd.DataFrame:
    """List rows and groups to check; see `Review.findings`.

    `issues` are the issues of the model, if known.
    """
    model.predictor.views.require_all("Findings are of all remembered rows, which")
    alone = model.without_groups()  # copies are in one group, and must find each other
    nearest = kneighbors(alone, None, min(_N_NEIGHBORS, most_neighbors(alone)))
    if issues is None:
        issues = Review(model).issues(n_neighbors=_N_NEIGHBORS)
    parts = [_labels(issues), _copies(model, *nearest), _outliers(model), _groups(model, issues)]
    columns = ["kind", "id", "given", "suggested", "score", "ids", "what"]
    rows = [row for part in parts for row in part]
    return pd.DataFrame(rows, columns=columns, dtype=object).astype({"id": "Int64", "score": float})


def _labels(issues: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Rows with suspicious labels, most suspicious first."""
    if "low" in issues:
        for row in issues[issues["suspicion"] > 0.5].itertuples():
            what = f"between {row.low:.4g} and {row.high:.4g} without the row itself, given "
            what += f"{row.given:.4g}"
            yield "label", row.id, row.given, row.suggested, row.suspicion, row.neighbors, what
        return
    for row in issues[issues["given"] != issues["suggested"]].itertuples():
        what = f"{row.suggested} has probability {row.proba_suggested:.3f}, {row.given} has "
        what += f"{row.proba_given:.3f}"
        yield "label", row.id, row.given, row.suggested, row.suspicion, row.neighbors, what


def _copies(
    model: FittedModel, distances: np.ndarray, ids: np.ndarray
) -> Iterator[tuple[Any, ...]]:
    """Rows with a nearly identical neighbor; pairs with different labels come first."""
    usual = float(np.median(distances[:, -1]))
    near = (distances <= _COPY * usual) if usual > 0 else distances == 0
    given, own = model.labels_at(), model.bank.ids.numpy()
    found = []
    for row in np.flatnonzero(near[:, 0]):
        there = model.bank.positions(ids[row][near[row]]).numpy()
        # Different rows may have equal keys, so their values are compared by the encoder.
        apart = model.predictor.encoder.apart(model.rows_at([int(row), *there.tolist()]))
        others = tuple(own[there[apart <= _ALIKE]].tolist())
        if not others:
            continue
        labels = given[model.bank.positions(others).numpy()]
        differ = bool((labels != given[row]).any())
        same = bool((apart[apart <= _ALIKE] == 0).any())
        what = "same values as" if same else "nearly the same values as"
        what += f" {_named(others)}" + (", with another label" if differ else "")
        ratio = (
            float(distances[row][near[row]][apart <= _ALIKE].min() / usual) if usual > 0 else 0.0
        )
        found.append((not differ, ratio, own[row], given[row], others, what))
    for _, ratio, row_id, label, others, what in sorted(found, key=lambda one: one[:3]):
        yield "copy", row_id, label, None, 1.0 - ratio, others, what


def _outliers(model: FittedModel) -> Iterator[tuple[Any, ...]]:
    """Rows that are farther from their neighbors than nearly all others.

    Compares mean distances to ten neighbors: by angle, with the threshold of cleanlab's Datalab
    (https://docs.cleanlab.ai, outlier issues); in few dimensions, where angles mean little, by
    logarithms of Euclidean distances.
    """
    keys, own = model.bank.keys["features"], model.bank.ids
    few = keys.shape[1] <= _FEW_DIMENSIONS
    index = make_index("auto", "euclidean" if few else "cosine", len(own)).fit(keys, own)
    near = index.search(keys, min(_N_AROUND, len(own) - 1), own)
    far = near.distances.double().mean(1).numpy()
    usual = float(np.median(far))
    if usual <= 0:
        return  # most rows have identical neighbors
    compared = np.log(np.maximum(far, 1e-12 * usual)) if few else far
    low, high = np.quantile(compared, [0.25, 0.75])
    rows = np.flatnonzero(compared > high + (_FAR_IN_FEW if few else _FAR) * (high - low))
    given = model.labels_at()
    for row in rows[np.argsort(-far[rows], kind="stable")]:
        times = far[row] / usual
        what = f"its neighbors are {times:.1f} times as far as usual"
        others = tuple(own[near.indices[row][:_N_NEIGHBORS]].tolist())
        yield "outlier", int(own[row]), given[row], None, times, others, what


def _groups(model: FittedModel, issues: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Find groups with clearly worse predictions than the other rows.

    By Fisher's exact test, one-sided, at 95 % with a Bonferroni correction over the groups.
    """
    is_number = "low" in issues
    away = issues["given"] != issues["suggested"]
    if is_number:
        away = (issues["given"] - issues["suggested"]).abs()
    wrong = issues.loc[away > (away.median() if is_number else 0), "id"]
    own = model.bank.ids.numpy()
    ranked, correct = np.isin(own, issues["id"]), ~np.isin(own, wrong)
    n_rows = int(ranked.sum())
    groups = [
        (name, members & ranked)
        for name, members in _group_members(model)
        if _FEWEST_IN_GROUP <= (members & ranked).sum() <= n_rows - _FEWEST_IN_GROUP
    ]
    found = []
    for name, members in groups:
        n_members, n_wrong = int(members.sum()), int((~correct[members]).sum())
        chance = hypergeom.sf(n_wrong - 1, n_rows, len(wrong), n_members)
        if n_wrong and chance * len(groups) < 1 - _LEVEL:
            if is_number:
                here = issues["id"].isin(own[members])
                inside, rest = away[here].mean(), away[~here].mean()
                what = f"{name}: {n_members} rows are {inside:.4g} off on average, the others "
                gap, what = inside - rest, what + f"{rest:.4g}"
            else:
                inside, rest = correct[members].mean(), correct[ranked & ~members].mean()
                what = f"{name}: {inside:.3f} of {n_members} rows right, {rest:.3f} of the others"
                gap = rest - inside
            found.append((gap, tuple(own[members][:100].tolist()), what))
    for gap, ids, what in sorted(found, key=lambda one: -one[0]):
        yield "group", pd.NA, None, None, gap, ids, what


def _group_members(model: FittedModel) -> Iterator[tuple[str, np.ndarray]]:
    given, encoder = model.labels_at(), cast(TableEncoder, model.predictor.encoder)
    for label in model.classes if isinstance(model, FittedClassifier) else ():
        yield f"label {label}", np.asarray(given == label)
    if len(encoder.columns) > _MOST_COLUMNS or not (encoder.categorical or encoder.numeric):
        return
    encoded = encoder.transform(model.rows)
    for at, name in enumerate(encoder.categorical):
        for code, value in enumerate(encoder.categories[name][:_MOST_VALUES], start=1):
            yield f"{name} = {value}", encoded.codes[:, at] == code
    for at, name in enumerate(encoder.numeric):
        numbers = encoded.numbers[:, at]
        edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, _N_PARTS + 1)))
        for number, (low, high) in enumerate(pairwise(edges)):
            above = numbers >= low if number == 0 else numbers > low
            bracket = "[" if number == 0 else "("
            yield f"{name} in {bracket}{low:.4g}, {high:.4g}]", above & (numbers <= high)


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


def _named(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:3]))
    return ("row " if len(ids) == 1 else "rows ") + shown + (" and more" * (len(ids) > 3))
