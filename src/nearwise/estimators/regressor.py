"""AttnKNNRegressor: learned attention over nearest neighbors as a scikit-learn regressor."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from nearwise.estimators.facade import NeighborEstimator
from nearwise.estimators.fit.beside import Beside, learned_once
from nearwise.estimators.fit.number_base import given_regressor
from nearwise.estimators.fit.number_pipeline import fit_numbers
from nearwise.estimators.fit.parameter_checks import check_settings
from nearwise.estimators.fit.problem import FitSettings, Problem, given_folds
from nearwise.estimators.inputs.columns import Wish
from nearwise.estimators.inputs.labels import unit_weight
from nearwise.estimators.inputs.rows import KnownColumns, Rows, Source
from nearwise.estimators.inputs.several import side_by_side
from nearwise.estimators.inputs.targets import check_targets
from nearwise.estimators.model.fitted_model import FittedRegressor, NumberReport
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.model.wrong_targets import check_rate
from nearwise.estimators.number_query import NumberQuery, Output
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.progress import Progress
from nearwise.estimators.settings import Preset, Settings, check_count, hinting
from nearwise.estimators.several import (
    changes_each_target,
    each_target,
    has_several,
    partial_fit_each,
)
from nearwise.estimators.storage import number_parts
from nearwise.estimators.uncertainty.explain import with_sources
from nearwise.estimators.uncertainty.explanations import Explanations
from nearwise.estimators.uncertainty.number_explain import NumberExplanation
from nearwise.estimators.uncertainty.number_selective import NumberSelection
from nearwise.functional import Metric

_FEWEST = 3  # fewest rows: one to leave out, and two to compare
_UNUSED = ("embedder", "embedder_options", "tta", "max_per_class", "train", "head")


class AttnKNNRegressor(RegressorMixin, NeighborEstimator[FittedRegressor]):
    """Predict the distribution of a number by learned attention over the nearest remembered rows.

    A base predicts the location. Each neighbor has the residual of its left-out base prediction,
    and an attention head, pretrained on other tables, weights these residuals. The prediction is a
    mixture of narrow distributions around them, so it can be skewed or have several modes.

    Parameters
    ----------
    n_neighbors : int or "auto", default="auto"
        Number of neighbors per key space. "auto" is 32, or fewer in a small table.
    columns : mapping of str to str, optional
        Use of DataFrame columns by name, as in `AttnKNNClassifier`.
    estimator : "auto", None or regressor, default="auto"
        Base regressor for the location. "auto": a forest, plus regressors that lower the squared
        error. None: neighbors have targets instead of residuals. Your own regressor is always used.
    preset : {"default", "instant"}, default="default"
        Amount of training. "instant": only the forest (no base with estimator=None).
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Metric of the feature space; default "euclidean". "manhattan" is searched exactly.
    cv : "auto", int, float, splitter or list of (train, test) positions, default="auto"
        Rows left out of training. An int: number of cross-fit folds. A float: share of a hold-out
        split, for calibration alone. A scikit-learn splitter: a cross-fit with several splits,
        else a hold-out split. "latest": hold out the last fifth of the rows. "auto" or None: 5
        folds, 3 above 5,000 rows.
    label_noise : None, "auto" or float in [0, 1), default=None
        Model of wrong targets, as if drawn from all targets. None: no noise. "auto": the share is
        estimated. A float: the share. Suspicious targets get less weight in the base, the
        neighbors and the calibration. Needs up to eight more "instant" fits. Outliers for other
        reasons also count as wrong.
    settings : Settings or dict, optional
        Rare settings: capacity, eviction, calibration, index; see `Settings`.
    n_jobs : int, optional
        Number of threads for trees, folds and searches, as in `AttnKNNClassifier`.
    random_state : int, RandomState or None, default=None
        Seed of the fit; an int makes it repeatable.
    verbose : {0, 1, 2}, default=0
        Progress on standard error: 0 is silent, 1 a bar, 2 also one line per stage.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As in scikit-learn.
    estimators_, target_names_
        With several targets: the regressor of each, and the names. Predictions then have the shape
        (n, n_targets, ...); other methods return a list with a result per target. Changes reach
        all targets or none.
    memory_ : MemoryBank
        The present remembered rows, with targets in ``memory_.columns["target"]``.
    report_ : NumberReport
        Choices and measurements of the fit, and use of the columns.
    fitted_ : FittedRegressor
        The present version of the model.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AttnKNNRegressor(preset="instant", random_state=0).fit(X[:400], y[:400])
    >>> model.predict(X[400:]).shape, model.predict_interval(X[400:]).shape
    ((42,), (42, 2))
    """

    folder_parts = number_parts

    @hinting
    def __init__(
        self,
        n_neighbors: int | Literal["auto"] = "auto",
        *,
        columns: Mapping[str, Wish] | None = None,
        estimator: Any = "auto",
        preset: Preset = "default",
        metric: Metric = "euclidean",
        cv: Any = "auto",
        label_noise: Any = None,
        settings: Settings | dict[str, Any] | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.columns = columns
        self.estimator = estimator
        self.preset = preset
        self.metric = metric
        self.cv = cv
        self.label_noise = label_noise
        self.settings = settings
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @torch.inference_mode(False)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        show: Any = None,
    ) -> Self:
        """Fit the regressor to training rows.

        Parameters
        ----------
        X : DataFrame, ndarray, sparse matrix or Tensor of shape (n, n_features)
            A table or ready embeddings, as in `AttnKNNClassifier.fit`.
        y : array-like of shape (n,) or (n, n_targets)
            Targets, finite numbers. Each of several columns gets a model, over the same rows.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows' losses and attention.
        groups : array-like of shape (n,), optional
            Group of each row, if new rows will belong to new groups; see `AttnKNNClassifier.fit`.
        show : str, or array-like of shape (n,), optional
            Something to look at for each row, as in `AttnKNNClassifier.fit`.

        Raises
        ------
        ValueError
            If there are fewer than 3 rows, or `y` has values other than finite numbers.
        """
        return self._fit(X, y, sample_weight, groups, show)

    def _fit_model(
        self,
        source: Source,
        rows: Rows,
        columns: KnownColumns,
        sample_weight: Any,
        beside: Beside | None = None,
    ) -> FittedRegressor:
        if rows.encoder.kind == "images":
            raise ValueError(
                "AttnKNNRegressor takes tables and ready embeddings, and X holds images. Embed "
                "them first (nearwise.extract_features, `nearwise embed`)."
            )
        n_rows = len(rows)
        if n_rows < _FEWEST:
            raise ValueError(
                f"X has {n_rows} sample{'s' * (n_rows != 1)}, and a regressor needs at least "
                f"{_FEWEST}. Give more rows."
            )
        targets = check_targets(source.y, n_rows)
        groups = None if source.groups is None else source.groups.of_rows(n_rows)
        weight, unit = unit_weight(sample_weight, n_rows)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        nothing = np.zeros(n_rows, dtype=np.int64)
        folds = given_folds(self.cv, rows.X, nothing, groups)
        settings = self._checked_settings(n_rows, 1, seed, folds=folds)
        encoded = learned_once(rows, self.columns, source.shown, beside)
        problem = Problem(rows.encoder, encoded, nothing, weight, 1, targets=targets)
        problem.group(groups)
        make = partial(FittedRegressor, columns=columns, weight_unit=unit)
        return self._fit_to(problem, settings, source, lambda _: rows.X, make)

    def _checked_settings(self, *args: Any, **options: Any) -> FitSettings:
        _refuse_unused(Settings.of(self.settings))
        if self.label_noise is not None:
            check_rate(self.label_noise)
        return check_settings(self, *args, given=given_regressor, **options)

    def _fit_problem(
        self, problem: Problem, settings: FitSettings, progress: Progress
    ) -> NumberPredictor:
        with problem.encoder.threads(settings.n_jobs):
            return fit_numbers(problem, settings, progress, self.label_noise)

    @property
    @each_target()
    def report_(self) -> NumberReport:
        """Choices and measurements of the fit, and use of the columns."""
        return NumberReport.of(self._fitted.predictor)

    # --- queries ------------------------------------------------------------------------------

    @each_target()
    @torch.inference_mode(False)
    def query(self, X: Any = None) -> NumberQuery:
        """Query object for several results about the same rows, with one encoding and search.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            Rows, as in `predict`.

        Returns
        -------
        query : NumberQuery
            Query of the present version of the model; later changes have no effect on it.
        """
        model = self._fitted
        return NumberQuery(model, None if X is None else model.encoded(X, [])[0])

    @each_target(side_by_side)
    def predict(self, X: Any = None, *, output: Output = "mean") -> np.ndarray:
        """Predict one number per row.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            Rows to predict. None means leave-one-out predictions of the remembered rows, with
            left-out predictions of the base.
        output : {"mean", "median", "mode"}, default="mean"
            Statistic of the distribution. The mean has the least squared error, the median the
            least absolute error; the mode is the most probable number.

        Returns
        -------
        y : float64 ndarray of shape (n,)
            Predictions in the unit of the target.
        """
        return self.query(X).predict(output)

    @each_target(side_by_side)
    def predict_quantiles(
        self, X: Any = None, quantiles: Sequence[float] = (0.05, 0.5, 0.95)
    ) -> np.ndarray:
        """Quantiles of the predicted distributions.

        Parameters
        ----------
        X
            As in `predict`.
        quantiles : sequence of float in (0, 1), default=(0.05, 0.5, 0.95)

        Returns
        -------
        y : float64 ndarray of shape (n, n_quantiles)
            Quantiles in the order of `quantiles`, in the unit of the target.
        """
        return self.query(X).quantiles(quantiles)

    @each_target(side_by_side)
    def predict_interval(self, X: Any, confidence: float = 0.9) -> np.ndarray:
        """Conformal prediction intervals.

        Parameters
        ----------
        X
            New rows, as in `predict`.
        confidence : float in (0, 1), default=0.9
            Wanted coverage: share of new rows with the target in the interval.

        Returns
        -------
        interval : float64 ndarray of shape (n, 2)
            Lower and upper end, in the unit of the target.

        Raises
        ------
        ValueError
            If there are too few calibration rows, with the needed number.

        Notes
        -----
        The two quantile levels come from the levels of calibration targets in their leave-one-out
        predictions. With a share in `cv`, calibration rows are exchangeable with new rows, and
        coverage is at least `confidence` on average. With a cross-fit it is near `confidence` in
        practice, but not proved. With groups each group counts once. From 400 rows on, small
        and large predictions have the same coverage: levels come from rows with predictions of
        similar size, in up to five bands of at least 200 rows.

        References
        ----------
        Chernozhukov, Wuthrich and Zhu, "Distributional Conformal Prediction", PNAS 2021.
        Vovk, Lindsay, Nouretdinov and Gammerman, "Mondrian Confidence Machine", 2003: the bands.
        """
        return self.query(X).interval(confidence)

    @each_target()
    def predict_selective(
        self,
        X: Any,
        *,
        coverage: float | None = None,
        max_width: float | None = None,
        confidence: float = 0.9,
    ) -> NumberSelection:
        """Predict with abstention: accept only the rows with the narrowest intervals.

        Parameters
        ----------
        X
            New rows, as in `predict`.
        coverage : float in (0, 1], optional
            Share of rows to accept. Give either `coverage` or `max_width`.
        max_width : float, optional
            Largest interval width of accepted rows, in the unit of the target.
        confidence : float in (0, 1), default=0.9
            Confidence of the intervals.

        Returns
        -------
        selection : NumberSelection
            Predictions with accepted, interval, threshold, expected_error and more.

        Raises
        ------
        ValueError
            If not exactly one of `coverage` and `max_width` is given, a value is out of its range,
            or there are too few calibration rows.
        """
        return self.query(X).selection(coverage, max_width, confidence)

    @each_target(side_by_side)
    def predict_cdf(self, X: Any, y: Any) -> np.ndarray:
        """Predict the probability that the target is at most `y`.

        Parameters
        ----------
        X
            Rows, as in `predict`; None means the remembered rows.
        y : float, or array-like of shape (n,) or (n, m)
            Numbers in the unit of the target.

        Returns
        -------
        p : float64 ndarray of the shape of `y`; (n,) for a single number
        """
        mixture = self.query(X).mixture
        return mixture.cdf(_points(y, len(mixture)))

    @each_target(side_by_side)
    def crps(self, X: Any, y: Any) -> np.ndarray:
        """Continuous ranked probability score of the predictions; 0 is the best.

        Parameters
        ----------
        X
            Rows, as in `predict`; None means the remembered rows.
        y : array-like of shape (n,)
            True targets.

        Returns
        -------
        score : float64 ndarray of shape (n,)
            Scores in the unit of the target.

        References
        ----------
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007.
        """
        mixture = self.query(X).mixture
        return mixture.crps(check_targets(y, len(mixture)))

    @each_target(side_by_side)
    def sample(self, X: Any, n_samples: int = 1, *, random_state: Any = None) -> np.ndarray:
        """Draw targets from the predicted distributions.

        Parameters
        ----------
        X
            Rows, as in `predict`.
        n_samples : int, default=1
            Number of samples per row.
        random_state : int, RandomState or None, default=None

        Returns
        -------
        y : float64 ndarray of shape (n, n_samples)
        """
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return self.query(X).mixture.sample(n_samples, np.random.default_rng(seed))

    @each_target()
    def explain(
        self, X: Any = None, n_neighbors: int | None = 10, *, confidence: float = 0.9
    ) -> Explanations[NumberExplanation]:
        """Explain predictions by their neighbors, and by the prediction without each of them.

        Parameters
        ----------
        X
            Rows, as in `predict`; None means leave-one-out predictions of the remembered rows.
        n_neighbors : int or None, default=10
            Number of neighbors shown, by descending weight; None shows all.
        confidence : float in (0, 1), default=0.9
            Confidence of the intervals; for remembered rows these are not conformal.

        Returns
        -------
        explanations : Explanations
            A list of `NumberExplanation`, one per row, with `to_frame`; cards in a notebook.

        Raises
        ------
        ValueError
            If there are too few calibration rows for the intervals.
        """
        if n_neighbors is not None:
            check_count("n_neighbors", n_neighbors, 1)
        found = self.query(X).explanations(n_neighbors, confidence)
        return with_sources(found, X)

    @each_target(side_by_side)
    def novelty_score(self, X: Any) -> np.ndarray:
        """Novelty scores of new rows, (n,); larger is more novel.

        The mean of the distance to the k-th neighbor and of the log width of the prediction, each
        standardised by the calibration rows.
        """
        return self.query(X).novelty_score()

    @each_target(side_by_side)
    def novelty_p_value(self, X: Any) -> np.ndarray:
        """Out-of-distribution p-value (n,): share of calibration rows with at least this score."""
        return self.query(X).novelty_p_value()

    # --- changes ------------------------------------------------------------------------------

    @changes_each_target
    @torch.inference_mode(False)
    def add(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        show: Any = None,
    ) -> np.ndarray:
        """Add new rows to the memory, without training.

        A memory over its `capacity` then evicts rows by `eviction`; `fitted_.evicted` has their
        ids, possibly of new rows.

        Parameters
        ----------
        X, y, sample_weight, groups, show
            New rows, as in `fit`. Groups are required if the regressor was fitted with groups. A
            column that `fit` shows is shown here too.

        Returns
        -------
        ids : int64 ndarray of shape (n_added,)
            Ids of the new rows; they continue the order of arrival.
        """
        return self._remember(X, y, sample_weight, groups, show)

    @changes_each_target
    @torch.inference_mode(False)
    def remove(self, ids: Any) -> None:
        """Remove remembered rows by id; the base is not refitted.

        With estimator=None the model is refitted without the rows and forgets them exactly.
        Otherwise feature map and base still depend on the removed rows until `refresh`.

        Parameters
        ----------
        ids : int64 array-like of shape (n_removed,)

        Raises
        ------
        ValueError
            If an id is not remembered, or too few rows stay. Nothing is then removed.
        """
        self._change(by_settings.with_change, changes.without_rows, ids)

    @changes_each_target
    @torch.inference_mode(False)
    def relabel(self, ids: Any, y: Any) -> None:
        """Replace the targets of remembered rows; the base is not refitted.

        Parameters
        ----------
        ids : int64 array-like of shape (n_changed,)
        y : array-like of shape (n_changed,)
            New targets, finite numbers.

        Raises
        ------
        ValueError
            If an id is not remembered, or a target is not a finite number.
        """
        self._change(by_settings.with_change, by_settings.relabelled, ids, y)

    @torch.inference_mode(False)
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        show: Any = None,
    ) -> Self:
        """Fit the first batch of a stream, or add a later batch.

        The model is refitted (`refresh`) after half as many new rows as the memory had, except
        with a hold-out split (a share in `cv`).

        Parameters
        ----------
        X, y, sample_weight, groups, show
            Rows of the batch, as in `fit`. The first batch must be suitable for a fit.
        """
        if has_several(self):

            def learn(one: Self, target: Any, _: Any) -> None:
                one.partial_fit(X, target, sample_weight, groups=groups, show=show)

            with self._lock:
                return partial_fit_each(self, y, None, learn)
        if not hasattr(self, "fitted_"):
            return self.fit(X, y, sample_weight, groups=groups, show=show)
        with self._lock:
            self._learn_batch(Source.of(X, y, groups, show), sample_weight)
        return self


def _points(y: Any, n_rows: int) -> np.ndarray:
    points = np.asarray(y, dtype=np.float64)
    if points.ndim == 0:
        return np.full(n_rows, float(points))
    if points.ndim > 2 or len(points) != n_rows or np.isnan(points).any():
        raise ValueError(
            f"y has shape {points.shape}, and there are {n_rows} rows. Give one number, one per "
            "row, or as many columns of these as you like; none of them NaN."
        )
    return points


def _refuse_unused(settings: Settings) -> None:
    """Raise ValueError for settings without use in a regressor."""
    usual = Settings()
    changed = [name for name in _UNUSED if getattr(settings, name) != getattr(usual, name)]
    changed += ["calibration"] * (settings.calibration == "per-class")
    if changed and not (changed == ["embedder"] and settings.embedder == "identity"):
        raise ValueError(
            f"AttnKNNRegressor has no use for the settings {', '.join(changed)}. Leave them out."
        )
