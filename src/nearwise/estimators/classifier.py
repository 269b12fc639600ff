"""AttnKNNClassifier: learned attention over nearest neighbors as a scikit-learn classifier."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state

from nearwise.estimators.facade import NeighborEstimator
from nearwise.estimators.fit.parameter_checks import check_checkpoint, check_settings
from nearwise.estimators.fit.pipeline import fit_problem
from nearwise.estimators.fit.problem import Problem, given_folds
from nearwise.estimators.inputs import labels
from nearwise.estimators.inputs.columns import Wish
from nearwise.estimators.inputs.rows import KnownColumns, Rows, Source
from nearwise.estimators.model.class_prior import ClassPrior
from nearwise.estimators.model.fitted_model import FitReport, FittedClassifier
from nearwise.estimators.noise.fitting import label_fitter
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.query import Query
from nearwise.estimators.settings import Preset, Settings, check_count, hinting
from nearwise.estimators.storage import class_parts
from nearwise.estimators.uncertainty.conformal import Method, PredictionSets, check_confidence
from nearwise.estimators.uncertainty.explain import Explanation, with_sources
from nearwise.estimators.uncertainty.novelty import NoveltyScore, check_novelty_score
from nearwise.estimators.uncertainty.selective import Selection, check_request
from nearwise.functional import Metric

_MOVED = {
    "calibration_source_": "model.report_.calibration_source",
    "choice_": "model.report_.choice",
    "column_report_": "model.report_.column_report",
    "column_types_": "model.report_.columns",
    "evicted_": "model.fitted_.evicted",
    "history_": "model.report_.history",
    "kneighbors_graph": "nearwise.review(model).evidence().knn_graph",
    "label_evidence": "nearwise.review(model).evidence",
    "label_issues": "nearwise.review(model).issues",
    "learned_rows": "nearwise.review(model).learned",
    "measure_trust": "nearwise.review(model).trust",
    "n_forgotten_": "nearwise.review(model).learned(X).n_forgotten",
    "n_remembered_": "model.fitted_.n_remembered",
    "noise_rate_": "nearwise.review(model).noise.rate",
    "oof_nll_": "model.report_.oof_nll",
    "predict_learned": "nearwise.review(model).predict_learned",
    "predict_parts": "model.query(X).parts",
    "review": "nearwise.review(model).findings",
    "row_names_": "model.fitted_.row_names",
    "target_name_": "model.fitted_.target_name",
    "temperature_": "model.report_.temperature",
    "to_frame": "nearwise.review(model).rows",
    "transition_": "nearwise.review(model).noise.matrix",
    "transition_interval_": "nearwise.review(model).noise.low",
    "written_": "model.report_.written",
}


class AttnKNNClassifier(ClassifierMixin, NeighborEstimator[FittedClassifier]):
    """Classify by learned attention over the nearest remembered rows.

    A query's nearest rows are found in key spaces; an attention head, trained on other tables
    and further on this one, weighs them beside a null neighbor; neighbors and base are pooled. What
    is learned about a row comes from models that were fitted without its fold, or rows are held
    out.

    Parameters
    ----------
    n_neighbors : int or "auto", default="auto"
        Neighbors per key space; "auto" is 32, fewer in a small table.
    columns : mapping of str to str, optional
        What columns of a DataFrame are used as, where that is not left to `fit`: "number",
        "category" (a zip code, say), "date" or with a format "date:%d-%m-%y", "left out", or "keep"
        for one that would be left out. By default types decide; text that writes a date in every
        row is one, and numbers with one sign or unit (95%, $5) are numbers; row numbers, row ids
        and text that differs in (nearly) every row are left out. `report_.column_report` lists all.
    estimator : "auto", None or classifier, default="auto"
        The base, beside the neighbors. "auto": a forest (Gaussian classes for ready embeddings
        where these are better), and classifiers that add to it and the neighbors (or the heads of
        "deep" networks). None: the class shares stand in. One of your own is always taken.
    preset : {"default", "instant"}, default="default"
        "instant": what the base begins with (nothing with estimator=None) and the head as it is;
        for tables and ready embeddings without `label_noise`. With fewer than 32 rows both are
        this one, unless more is asked for.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Of the feature space; "euclidean" by default. "manhattan" is searched exactly.
    cv : "auto", int, float, splitter or list of (train, test) positions, default="auto"
        Rows left out of what is fitted first, and then used for heads and calibration. An int:
        folds of a cross-fit, for tables in one view. A float: a share once; it also stops the
        networks. A splitter of scikit-learn: a cross-fit if it has several splits, else its test
        rows once. "latest": the last fifth of the rows once, as given, to judge by what came last
        where the first were earlier. "auto" and None: 5 folds, 3 above 5,000 rows; for images and
        views a share of .1, up to .5 to reach 20 rows.
    class_prior : {"train", "uniform"} or array of shape (n_classes,), default="train"
        Class shares where predictions are used. If they differ from those of training, votes,
        null and base are reweighted.
    label_noise : None, "auto", float in [0, 1) or array of shape (n_classes, n_classes)
        Wrong labels in `y`: none; estimated; a share, evenly spread; transition (true -> given).
    settings : Settings or dict, optional
        What few users change: embedder, capacity, calibration, index, training, device, folders,
        ...; see `Settings`. Single ones are set by `set_params(settings__index="exact")`.
    n_jobs : int, optional
        Threads for the trees, the folds and the searches of a fit of a table. By default as many
        as torch takes, at most the processors that this process may use (a container's share
        counts), but one for the trees of 1,000 rows and fewer, where more cost more than they
        save.
    random_state : int, RandomState or None, default=None
        An int makes the fit repeatable.
    verbose : {0, 1, 2}, default=0

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        Scikit-learn's; classes that `add` brought are at the end of `classes_`.
    memory_ : MemoryBank
        The remembered rows as they are now.
    report_ : FitReport
        What the fit chose and measured, and how it uses the columns.
    fitted_ : FittedClassifier
        The version that predictions see: target_name, n_remembered, row_names, evicted, ...

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> AttnKNNClassifier(estimator=None, random_state=0).fit(X, y).predict(X[:2]).tolist()
    [0, 0]
    """

    folder_parts = class_parts

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
        class_prior: ClassPrior = "train",
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
        self.class_prior = class_prior
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
        views: Sequence[Any] | None = None,
    ) -> Self:
        """Learn from training rows.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), or images
            A DataFrame may hold text, categories, dates and missing values, and so may what gives
            one: tables of polars and pyarrow, dicts. Arrays hold numbers; NaN is missing.
            Images are uint8 of shape (n, height, width, channels) with 1 or 3 channels. The path
            of a folder of class folders, a `nearwise.data.Dataset` or a `datasets` data set bring
            their labels (a test part they may have is left out), and folders their files' names.
        y : array-like of shape (n,)
            At least 2 classes, one of them with at least 2 rows. A row that is alone in its class
            is remembered; heads and calibration are fitted without it, with a warning.
        sample_weight : array-like of shape (n,), optional
            Non-negative; weighs a row's loss and its vote.
        groups : array-like of shape (n,), optional
            Group of each row, such as its patient or recording, where new rows will be of new
            groups: a group is in one fold, its rows are no neighbors of each other in
            training, and sets, risks and p-values count every group once. By default equal rows
            are a group where many are copies (a twentieth of the rows or more, in a table without
            few different rows); ``groups=range(n)`` takes copies for rows of their own. Not with
            `label_noise`.
        views : sequence of arrays like `X`, optional
            Further views of the same rows, such as the embeddings of the flipped images. Networks
            are trained on the first as well, keys are averaged over all, and predictions from as
            many views are calibrated as such. Images have theirs from `tta`.
        """
        return self._fit(X, y, sample_weight, groups, views)

    def _fit_model(
        self, source: Source, rows: Rows, columns: KnownColumns, sample_weight: Any
    ) -> FittedClassifier:
        classes, codes = labels.check_labels(source.y, len(rows))
        groups = None if source.groups is None else source.groups.of_rows(len(rows))
        labels.check_class_sizes(classes, codes, groups)
        labels.warn_of_lone_rows(classes, codes, groups)
        weight, unit = labels.unit_weight(sample_weight, len(rows))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        settings = check_settings(
            self,
            len(rows),
            len(classes),
            seed,
            n_views=1 + len(rows.further),
            images=rows.encoder.kind == "images",
            folds=given_folds(self.cv, rows.X, classes[codes], groups),
        )
        if self.label_noise is not None and groups is not None:
            raise ValueError(
                "groups and label_noise do not go together: wrong labels are found by rows that "
                "are left out one by one. Leave one of them out."
            )
        if self.label_noise is not None:
            fitter = label_fitter(self.label_noise, classes, settings)
            settings = settings.model_copy(update={"label_fitter": fitter})
        settings = check_checkpoint(self, settings, [rows.X, *rows.further], codes, weight, groups)
        encoder: Any = rows.encoder
        encoded = encoder.learn(rows.X, self.columns)
        problem = Problem(encoder, encoded, codes, weight, len(classes))
        problem.group(groups, copies=self.label_noise is None)
        problem.tta = settings.tta
        problem.views = rows.views(encoded, settings.tta)
        make = partial(FittedClassifier, columns=columns, classes=classes, weight_unit=unit)
        return self._fit_to(problem, settings, source, rows.take, make)

    # --- the model, and its properties --------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """Classes, ndarray of shape (n_classes,): sorted, those from `add` at the end."""
        return self._fitted.classes

    @property
    def report_(self) -> FitReport:
        """What the fit chose and measured, and how it uses the columns."""
        return FitReport.of(self._fitted.predictor)

    if not TYPE_CHECKING:  # every other name would pass

        def __getattr__(self, name: str) -> Any:
            """Say where a former name is now."""
            if name in _MOVED:
                raise AttributeError(f"AttnKNNClassifier has no {name!r}: use {_MOVED[name]}.")
            return self.__getattribute__(name)  # an AttributeError, of a property its own

    # --- queries ------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def query(
        self,
        X: Any = None,
        views: Sequence[Any] | None = None,
        *,
        explain: int | Literal[False] | None = False,
    ) -> Query:
        """Answer several queries about the same rows: they are encoded, and neighbors found, once.

        Parameters
        ----------
        X, views
            As in `predict_proba`.
        explain : int or None or False, default=False
            Neighbors that explanations will show; None shows all.

        Returns
        -------
        query : Query
            Of the model as it is now, whatever is added or removed later.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = AttnKNNClassifier(estimator=None, random_state=0).fit(X[::2], y[::2])
        >>> query = model.query(X[1::2])
        >>> query.proba().shape, query.sets(0.9).shape
        ((75, 3), (75, 3))
        """
        if explain is not None and explain is not False:
            check_count("explain", explain, 1)
        model = self._fitted
        rows = None if X is None else model.encoded(X, views)
        return Query(model, rows, explain=explain)

    def predict_proba(self, X: Any = None, views: Sequence[Any] | None = None) -> np.ndarray:
        """Class probabilities.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the remembered rows, each left out of its own neighbors, with out-of-fold and
            out-of-bag predictions of the base. Images may be given as a folder that holds them, or
            as a list of files.
        views : sequence of arrays like `X`, optional
            Further views of the rows, as many as `fit` was given, to be merged with the first.
            Images have theirs from `tta`; an empty list asks for the prediction from one view.

        Returns
        -------
        proba : ndarray of shape (n, n_classes)
            In the order of `classes_`; rows sum to 1.
        """
        return self.query(X, views).proba()

    def predict(self, X: Any = None, views: Sequence[Any] | None = None) -> Any:
        """Most probable classes, ndarray of shape (n,); arguments as in `predict_proba`."""
        query = self.query(X, views)
        return query.model.classes[query.proba().argmax(axis=1)]

    def explain(
        self,
        X: Any = None,
        n_neighbors: int | None = 10,
        *,
        trust: bool = False,
        views: Sequence[Any] | None = None,
    ) -> list[Explanation]:
        """Show the neighbors behind each prediction.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            None means the training rows, each without itself (rows added later are left out).
        n_neighbors : int or None, default=10
            How many of the weightiest neighbors are shown; None shows all.
        trust : bool, default=False
            Whether to add each row's out-of-distribution p-value and its 90 % prediction set. That
            needs new rows, and once a prediction of the calibration rows.
        views : sequence of arrays like `X`, optional
            As in `predict_proba`; a neighbor's weight is its mean over the views.

        Returns
        -------
        explanations : list of Explanation

        Raises
        ------
        ValueError
            If trust is requested for the training rows, or there are too few calibration rows.
        """
        if n_neighbors is not None:
            check_count("n_neighbors", n_neighbors, 1)
        query = self.query(X, views, explain=n_neighbors)
        found = query.explanations(trust=trust)
        return with_sources(found, X)

    def predict_selective(
        self,
        X: Any,
        *,
        coverage: float | None = None,
        max_risk: float | None = None,
        confidence: float = 0.95,
        views: Sequence[Any] | None = None,
    ) -> Selection:
        """Predict, and say which predictions, the most probable ones, to act on.

        Parameters
        ----------
        X, views
            As in `predict_proba`; new rows.
        coverage : float in (0, 1], optional
            Share of rows to answer. Either this or `max_risk` is given.
        max_risk : float in (0, 1), optional
            Share of answers that may be wrong; as many rows are answered as that allows.
        confidence : float in (0, 1), default=0.95
            With which the risk bound holds.

        Returns
        -------
        selection : Selection
            labels, accepted, threshold, expected_risk, risk_bound, guarantee, ...

        Raises
        ------
        ValueError
            If both or none of `coverage` and `max_risk` are given or out of their range, or no
            threshold keeps the risk below `max_risk`.
        """
        check_request(coverage, max_risk, confidence)
        return self.query(X, views).selection(
            coverage=coverage, max_risk=max_risk, confidence=confidence
        )

    def predict_set(
        self,
        X: Any,
        confidence: float = 0.9,
        *,
        method: Method = "lac",
        class_conditional: bool = False,
        allow_empty: bool = True,
        penalty: float = 0.05,
        free_ranks: int = 1,
        seed: int | None = None,
        views: Sequence[Any] | None = None,
    ) -> PredictionSets:
        """Predict sets of classes that hold the true one at about the given confidence.

        Parameters
        ----------
        X, views
            As in `predict_proba`; new rows.
        confidence : float in (0, 1), default=0.9
            Share of rows whose set is to hold the true class.
        method : {"lac", "aps", "raps"}, default="lac"
            "lac": the smallest sets on average. "aps": sets that grow with how hard a row is.
            "raps": "aps" with a penalty on large sets.
        class_conditional : bool, default=False
            Whether each class is to be covered at this confidence, rather than all on average.
        allow_empty : bool, default=True
            Whether a set may be empty: no class fits the row as well as labels usually do. False
            puts the most probable class in; coverage is then above `confidence`.
        penalty, free_ranks : float, int
            Of "raps": added for each class beyond the `free_ranks` most probable.
        seed : int, optional
            For "aps" and "raps": draw at random whether a class at the edge is in. Without, it is
            always in: no set is empty, and coverage is above `confidence` where the classifier
            is right more often than that.

        Returns
        -------
        sets : PredictionSets of shape (n, n_classes)
            A bool array in the order of `classes_`, with `to_frame`; a notebook shows its labels.

        Raises
        ------
        ValueError
            If there are too few calibration rows (of a class), with how many are needed.

        Notes
        -----
        CV+: a calibration row is compared with what the head that predicted it predicts for the new
        one. For rows drawn like the training rows, and heads that did not see their calibration
        rows, coverage is at least 2 x confidence - 1 (less a term of order sqrt(1 / n)), and in
        practice near confidence. Held-out rows are unseen by memory and networks; calibration rows
        of a cross-fit have been seen by memory, head and temperatures, and nothing is proved. What
        is covered is the average over rows, or over the rows of a class, not every row.

        Where `label_noise` found wrong labels, the sets are to hold the *true* class: the
        calibration rows are counted through the inverse of the transition, and what is covered
        is as right as that.
        """
        check_confidence(confidence)
        query = self.query(X, views)
        sets = query.sets(
            confidence,
            method=method,
            class_conditional=class_conditional,
            allow_empty=allow_empty,
            penalty=penalty,
            free_ranks=free_ranks,
            seed=seed,
        )
        return PredictionSets.of(sets, query.model.classes)

    def novelty_score(
        self, X: Any, score: NoveltyScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Score how unlike the remembered rows new rows are.

        Parameters
        ----------
        X, views
            As in `predict_proba`; new rows.
        score : {"combined", "entropy"}
            "entropy": of the prediction, in nats. "combined" (default): the mean of this, the
            distance to the k-th neighbor and the attention that went to no neighbor, each in
            standard deviations from its mean among the calibration rows.

        Returns
        -------
        score : float64 ndarray of shape (n,)
            Larger is more novel.
        """
        check_novelty_score(score)
        return self.query(X, views).novelty_score(score)

    def novelty_p_value(
        self, X: Any, score: NoveltyScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Out-of-distribution p-value: the share of known rows with at least this novelty score.

        Flagging rows with p <= 0.05 raises about one false alarm in twenty known rows.

        Parameters
        ----------
        X, score, views
            As in `novelty_score`.

        Returns
        -------
        p : float64 ndarray of shape (n,)
            In (0, 1]; the smallest possible is 1 / (1 + calibration rows).
        """
        check_novelty_score(score)
        return self.query(X, views).novelty_p_value(score)

    # --- changes ------------------------------------------------------------------------------

    @torch.inference_mode(False)
    def add(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        views: Sequence[Any] | None = None,
    ) -> np.ndarray:
        """Remember new rows, of new classes too, without training again.

        A memory over its `capacity` then forgets rows by `eviction`; `fitted_.evicted` has their
        ids, and new rows may be among them.

        Parameters
        ----------
        X, y, sample_weight, groups, views
            As in `fit`. A classifier that was fitted with groups takes no rows without.

        Returns
        -------
        ids : int64 ndarray of shape (n_added,)
            Ids go on from the largest ever given, so they show the order of arrival.
        """
        return self._remember(X, y, sample_weight, groups, views)

    @torch.inference_mode(False)
    def remove(self, ids: Any, *, forget_classes: bool = False) -> None:
        """Forget remembered rows by id; nothing is trained again.

        With preset="instant" and no forest (estimator=None, or `report_.choice["base"]` names
        "gaussian" alone) they leave nothing behind: the model is the one that a fit without them
        gives, to the bit without sample weights, in the time of such a fit. (Of equally near rows
        it may find others: such a fit numbers rows anew.)
        Elsewhere feature map, base and head keep what they learned from them until `refresh`.

        Parameters
        ----------
        ids : int64 array-like of shape (n_removed,)
        forget_classes : bool, default=False
            True lets a class lose its last row. It keeps its position in `classes_`, and only
            the base and the null can predict it.

        Raises
        ------
        ValueError
            If an id is not remembered, a class would lose its last row, or too few rows stay.
            Nothing is then forgotten.
        """
        self._change(
            by_settings.with_change, changes.without_rows, ids, forget_classes=forget_classes
        )

    @torch.inference_mode(False)
    def relabel(self, ids: Any, y: Any, *, forget_classes: bool = False) -> None:
        """Give remembered rows other labels among `classes_`; nothing is trained again.

        Parameters
        ----------
        ids : int64 array-like of shape (n_changed,)
        y : array-like of shape (n_changed,)
        forget_classes : bool, default=False
            As in `remove`.

        Raises
        ------
        ValueError
            If an id is not remembered, a label is new, or a class would lose its last row.
        """
        self._change(
            by_settings.with_change, changes.with_labels, ids, y, forget_classes=forget_classes
        )

    @torch.inference_mode(False)
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        classes: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        views: Sequence[Any] | None = None,
    ) -> Self:
        """Learn from the next batch: the first is fitted, later ones are added.

        After half as many new rows as the memory held, or some rows of a new class, all is fitted
        again (`refresh`). Not where wrong labels were found (`label_noise`), nor with one fold
        (images, views, a share in `cv`), whose networks take long. Rows are then added and no more.

        Parameters
        ----------
        X, y, sample_weight, groups, views
            As in `fit`. The first batch must be one that can be fitted.
        classes : array-like, optional
            All classes that will ever come. Those the first batch lacks get their column at the
            end of `classes_` at once, and later labels must be among them. Without, new classes
            are added as they arrive.

        Raises
        ------
        ValueError
            If the first batch cannot be fitted, or a label is not among the declared classes.
        """
        source = Source.of(X, y, groups)
        with self._lock:
            if hasattr(self, "fitted_"):
                declare = partial(changes.with_declared, classes=classes, y=source.y)
                self._learn_batch(source, sample_weight, views, declare)
            else:
                self._fit_first(source, classes, sample_weight, views)
        return self

    _checked_settings = check_settings
    _fit_problem = staticmethod(fit_problem)

    def _fit_first(
        self, source: Source, classes: Any, sample_weight: Any, views: Sequence[Any] | None
    ) -> None:
        declared = None if classes is None else labels.check_labels(classes, len(classes))[0]
        columns = KnownColumns()
        rows = Rows.given(source.X, columns, views=views)
        present, codes = labels.check_labels(source.y, len(rows))
        unknown = [] if declared is None else labels.positions_among(declared, present)[1]
        if unknown:
            raise ValueError(f"y holds {unknown[:5]}, which classes={classes!r} does not list.")
        try:
            groups = None if source.groups is None else source.groups.of_rows(len(rows))
            labels.check_class_sizes(present, codes, groups)
        except ValueError as error:
            raise ValueError(
                f"The first batch of a stream must be one that can be fitted. {error} Collect "
                "more rows before the first call of partial_fit."
            ) from error
        model = self._fit_model(source, rows, columns, sample_weight)
        if declared is not None:
            later = [c for c in declared.tolist() if c not in set(present.tolist())]
            model = changes.with_classes(model, later)
            model = replace(model, stream=replace(model.stream, declared=True))
        self.fitted_ = model
