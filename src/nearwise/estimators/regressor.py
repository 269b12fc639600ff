"""AttnKNNRegressor: learned attention over nearest neighbors as a scikit-learn regressor."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state

from nearwise.estimators.facade import NeighborEstimator
from nearwise.estimators.fit.number_base import given_regressor
from nearwise.estimators.fit.number_pipeline import fit_numbers
from nearwise.estimators.fit.parameter_checks import check_settings
from nearwise.estimators.fit.problem import FitSettings, Problem, given_folds
from nearwise.estimators.inputs.columns import Wish
from nearwise.estimators.inputs.labels import unit_weight
from nearwise.estimators.inputs.rows import KnownColumns, Rows, Source
from nearwise.estimators.inputs.targets import check_targets
from nearwise.estimators.model.fitted_model import FittedRegressor, NumberReport
from nearwise.estimators.model.number_predictor import NumberPredictor
from nearwise.estimators.model.wrong_targets import check_rate
from nearwise.estimators.number_query import NumberQuery, Output
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.progress import Progress
from nearwise.estimators.settings import Preset, Settings, check_count, hinting
from nearwise.estimators.storage import number_parts
from nearwise.estimators.uncertainty.explain import with_sources
from nearwise.estimators.uncertainty.number_explain import NumberExplanation
from nearwise.estimators.uncertainty.number_selective import NumberSelection
from nearwise.functional import Metric

_FEWEST = 3  # rows: one to leave out, and two to tell numbers apart by
_UNUSED = ("embedder", "embedder_options", "tta", "max_per_class", "train", "head")


class AttnKNNRegressor(RegressorMixin, NeighborEstimator[FittedRegressor]):
    """Predict the distribution of a number by learned attention over the nearest remembered rows.

    A base predicts where the number lies. Each neighbor carries by how much the base, without it,
    was wrong there; an attention head, trained on other tables, weighs these residuals. The
    prediction is a mixture of small distributions around them, so that it is skewed, wide or has
    two modes where the neighbors have.

    Parameters
    ----------
    n_neighbors : int or "auto", default="auto"
        Neighbors per key space; "auto" is 32, fewer in a small table.
    columns : mapping of str to str, optional
        What columns of a DataFrame are used as; see `AttnKNNClassifier`.
    estimator : "auto", None or regressor, default="auto"
        The base, beside the neighbors. "auto": a forest, and regressors that lower the squared
        error. None: neighbors carry their targets themselves. One of your own is always taken.
    preset : {"default", "instant"}, default="default"
        "instant": the forest alone (nothing with estimator=None).
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Of the feature space; "euclidean" by default. "manhattan" is searched exactly.
    cv : "auto", int, float, splitter or list of (train, test) positions, default="auto"
        Rows left out of what is fitted first. An int: folds of a cross-fit. A float: a share that
        is held out once, for calibration alone. A splitter of scikit-learn: a cross-fit if it has
        several splits, else its test rows once. "latest": the last fifth of the rows once. "auto"
        and None: 5 folds, 3 above 5,000 rows.
    label_noise : None, "auto" or float in [0, 1), default=None
        Some targets are wrong, as if drawn from those of all rows: estimate how many, or give the
        share. Those that look wrong then count for less in the base, among the neighbors and in
        the calibration. It takes up to eight fits of "instant" more. Targets far off for another
        reason are taken for wrong ones, too.
    settings : Settings or dict, optional
        What few users change: capacity, eviction, calibration, index; see `Settings`.
    n_jobs : int, optional
        Threads for the trees, the folds and the searches; see `AttnKNNClassifier`.
    random_state : int, RandomState or None, default=None
        An int makes the fit repeatable.
    verbose : {0, 1, 2}, default=0

    Attributes
    ----------
    n_features_in_, feature_names_in_
        Scikit-learn's.
    memory_ : MemoryBank
        The remembered rows as they are now; their targets are ``memory_.columns["target"]``.
    report_ : NumberReport
        What the fit chose and measured, and how it uses the columns.
    fitted_ : FittedRegressor
        The version that predictions see.

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
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Learn from training rows.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features)
            A table or ready embeddings, as `AttnKNNClassifier.fit` takes them.
        y : array-like of shape (n,)
            Finite numbers.
        sample_weight : array-like of shape (n,), optional
            Non-negative; weighs a row's loss and its share in the attention.
        groups : array-like of shape (n,), optional
            Group of each row where new rows will be of new groups; see `AttnKNNClassifier.fit`.

        Raises
        ------
        ValueError
            If there are fewer than 3 rows, or `y` holds what is no finite number.
        """
        return self._fit(X, y, sample_weight, groups)

    def _fit_model(
        self, source: Source, rows: Rows, columns: KnownColumns, sample_weight: Any
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
        encoder: Any = rows.encoder
        encoded = encoder.learn(rows.X, self.columns)
        problem = Problem(encoder, encoded, nothing, weight, 1, targets=targets)
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
    def report_(self) -> NumberReport:
        """What the fit chose and measured, and how it uses the columns."""
        return NumberReport.of(self._fitted.predictor)

    # --- queries ------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def query(self, X: Any = None) -> NumberQuery:
        """Answer several queries about the same rows: they are encoded, and neighbors found, once.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            As in `predict`.

        Returns
        -------
        query : NumberQuery
            Of the model as it is now, whatever is added or removed later.
        """
        model = self._fitted
        return NumberQuery(model, None if X is None else model.encoded(X, [])[0])

    def predict(self, X: Any = None, *, output: Output = "mean") -> np.ndarray:
        """Predict one number per row.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the remembered rows, each left out of its own neighbors, with left-out
            predictions of the base.
        output : {"mean", "median", "mode"}, default="mean"
            What of the distribution. The mean has the least squared error, the median the least
            absolute one; the mode is the most probable number.

        Returns
        -------
        y : float64 ndarray of shape (n,)
            In the unit of the target.
        """
        return self.query(X).predict(output)

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
            In the order of `quantiles`, in the unit of the target.
        """
        return self.query(X).quantiles(quantiles)

    def predict_interval(self, X: Any, confidence: float = 0.9) -> np.ndarray:
        """Conformal prediction intervals.

        Parameters
        ----------
        X
            As in `predict`; new rows.
        confidence : float in (0, 1), default=0.9
            Share of new rows whose target is to lie in their interval.

        Returns
        -------
        interval : float64 ndarray of shape (n, 2)
            Lower and upper end, in the unit of the target.

        Raises
        ------
        ValueError
            If there are too few calibration rows, with how many are needed.

        Notes
        -----
        The levels of the two quantiles are those that the targets of left-out rows reached in
        their own predictions. With a share in `cv` these rows are exchangeable with new ones, and
        coverage is at least `confidence` on average; with a cross-fit it is near it in practice,
        and nothing is proved. With groups each group counts once. From 400 rows on, levels are
        those of rows with predictions of about the same size, in up to five bands of 200 rows or
        more, so that small and large predictions are covered alike.

        References
        ----------
        Chernozhukov, Wuthrich and Zhu, "Distributional Conformal Prediction", PNAS 2021.
        Vovk, Lindsay, Nouretdinov and Gammerman, "Mondrian Confidence Machine", 2003: the bands.
        """
        return self.query(X).interval(confidence)

    def predict_selective(
        self,
        X: Any,
        *,
        coverage: float | None = None,
        max_width: float | None = None,
        confidence: float = 0.9,
    ) -> NumberSelection:
        """Predict, and say which predictions, those with the narrowest intervals, to act on.

        Parameters
        ----------
        X
            As in `predict`; new rows.
        coverage : float in (0, 1], optional
            Share of rows to answer. Either this or `max_width` is given.
        max_width : float, optional
            Answer rows whose interval is at most so wide, in the unit of the target.
        confidence : float in (0, 1), default=0.9
            Of the intervals.

        Returns
        -------
        selection : NumberSelection
            predictions, accepted, interval, threshold, expected_error, ...

        Raises
        ------
        ValueError
            If both or none of `coverage` and `max_width` are given or out of their range, or there
            are too few calibration rows.
        """
        return self.query(X).selection(coverage, max_width, confidence)

    def predict_cdf(self, X: Any, y: Any) -> np.ndarray:
        """Probability that the target is at most `y`.

        Parameters
        ----------
        X
            As in `predict`; None means the remembered rows.
        y : float, or array-like of shape (n,) or (n, m)
            Numbers in the unit of the target.

        Returns
        -------
        p : float64 ndarray of the shape of `y`; (n,) for a single number
        """
        mixture = self.query(X).mixture
        return mixture.cdf(_points(y, len(mixture)))

    def crps(self, X: Any, y: Any) -> np.ndarray:
        """Continuous ranked probability score of the predictions; 0 is the best.

        Parameters
        ----------
        X
            As in `predict`; None means the remembered rows.
        y : array-like of shape (n,)
            Targets that came about.

        Returns
        -------
        score : float64 ndarray of shape (n,)
            In the unit of the target.

        References
        ----------
        Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", 2007.
        """
        mixture = self.query(X).mixture
        return mixture.crps(check_targets(y, len(mixture)))

    def sample(self, X: Any, n_samples: int = 1, *, random_state: Any = None) -> np.ndarray:
        """Draw targets from the predicted distributions.

        Parameters
        ----------
        X
            As in `predict`.
        n_samples : int, default=1
            Per row.
        random_state : int, RandomState or None, default=None

        Returns
        -------
        y : float64 ndarray of shape (n, n_samples)
        """
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return self.query(X).mixture.sample(n_samples, np.random.default_rng(seed))

    def explain(
        self, X: Any = None, n_neighbors: int | None = 10, *, confidence: float = 0.9
    ) -> list[NumberExplanation]:
        """Show the rows behind each prediction, and what it is without each of them.

        Parameters
        ----------
        X
            As in `predict`; None means the remembered rows, each without itself.
        n_neighbors : int or None, default=10
            How many of the weightiest neighbors are shown; None shows all.
        confidence : float in (0, 1), default=0.9
            Of the intervals; those of remembered rows are not conformal.

        Returns
        -------
        explanations : list of NumberExplanation

        Raises
        ------
        ValueError
            If there are too few calibration rows for the intervals.
        """
        if n_neighbors is not None:
            check_count("n_neighbors", n_neighbors, 1)
        found = self.query(X).explanations(n_neighbors, confidence)
        return with_sources(found, X)

    def novelty_score(self, X: Any) -> np.ndarray:
        """Score how unlike the remembered rows new rows are, (n,); larger is more novel.

        The mean of the distance to the k-th neighbor and of the logarithm of the width of the
        prediction, each in standard deviations from its mean among left-out rows.
        """
        return self.query(X).novelty_score()

    def novelty_p_value(self, X: Any) -> np.ndarray:
        """Out-of-distribution p-value: the share of known rows with at least this score, (n,)."""
        return self.query(X).novelty_p_value()

    # --- changes ------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def add(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Any:
        """Remember new rows, without training again.

        A memory over its `capacity` then forgets rows by `eviction`; `fitted_.evicted` has their
        ids, and new rows may be among them.

        Parameters
        ----------
        X, y, sample_weight, groups
            As in `fit`. A regressor that was fitted with groups takes no rows without.

        Returns
        -------
        ids : int64 ndarray of shape (n_added,)
            Ids go on from the largest ever given, so they show the order of arrival.
        """
        return self._remember(X, y, sample_weight, groups)

    @torch.inference_mode(False)
    def remove(self, ids: Any) -> None:
        """Forget remembered rows by id; nothing is trained again.

        With estimator=None they leave nothing behind: the model is the one that a fit without them
        gives. Elsewhere feature map and base keep what they learned from them until `refresh`.

        Parameters
        ----------
        ids : int64 array-like of shape (n_removed,)

        Raises
        ------
        ValueError
            If an id is not remembered, or too few rows stay. Nothing is then forgotten.
        """
        self._change(by_settings.with_change, changes.without_rows, ids)

    @torch.inference_mode(False)
    def relabel(self, ids: Any, y: Any) -> None:
        """Give remembered rows other targets; nothing is trained again.

        Parameters
        ----------
        ids : int64 array-like of shape (n_changed,)
        y : array-like of shape (n_changed,)
            Finite numbers.

        Raises
        ------
        ValueError
            If an id is not remembered, or a target is no finite number.
        """
        self._change(by_settings.with_change, by_settings.relabelled, ids, y)

    @torch.inference_mode(False)
    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None
    ) -> Self:
        """Learn from the next batch: the first is fitted, later ones are added.

        After half as many new rows as the memory held all is fitted again (`refresh`), unless rows
        were held out once (a share in `cv`).

        Parameters
        ----------
        X, y, sample_weight, groups
            As in `fit`. The first batch must be one that can be fitted.
        """
        if not hasattr(self, "fitted_"):
            return self.fit(X, y, sample_weight, groups=groups)
        with self._lock:
            self._learn_batch(Source.of(X, y, groups), sample_weight)
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
    """Refuse settings that a regressor has no use for."""
    usual = Settings()
    changed = [name for name in _UNUSED if getattr(settings, name) != getattr(usual, name)]
    changed += ["calibration"] * (settings.calibration == "per-class")
    if changed and not (changed == ["embedder"] and settings.embedder == "identity"):
        raise ValueError(
            f"AttnKNNRegressor has no use for the settings {', '.join(changed)}. Leave them out."
        )
