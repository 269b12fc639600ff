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
from nearwise.estimators.fit.beside import Beside, learned_once
from nearwise.estimators.fit.parameter_checks import check_checkpoint, check_settings
from nearwise.estimators.fit.pipeline import fit_problem
from nearwise.estimators.fit.problem import Problem, given_folds
from nearwise.estimators.inputs import labels
from nearwise.estimators.inputs.columns import Wish
from nearwise.estimators.inputs.rows import KnownColumns, Rows, Source
from nearwise.estimators.inputs.several import several_targets, side_by_side
from nearwise.estimators.model.class_prior import ClassPrior
from nearwise.estimators.model.fitted_model import FitReport, FittedClassifier
from nearwise.estimators.noise.fitting import label_fitter
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.query import Query
from nearwise.estimators.settings import Preset, Settings, check_count, hinting
from nearwise.estimators.several import (
    changes_each_target,
    each_target,
    has_several,
    partial_fit_each,
)
from nearwise.estimators.storage import class_parts
from nearwise.estimators.uncertainty.conformal import Method, PredictionSets, check_confidence
from nearwise.estimators.uncertainty.explain import Explanation, with_sources
from nearwise.estimators.uncertainty.explanations import Explanations
from nearwise.estimators.uncertainty.label_sets import check_label_sets, label_sets
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

    A query's nearest rows are searched in several key spaces. A pretrained attention head, which
    `fit` may fine-tune, weights these neighbors and a null neighbor; its prediction is pooled with
    the base. Choices and calibration use out-of-fold predictions or held-out rows.

    Parameters
    ----------
    n_neighbors : int or "auto", default="auto"
        Number of neighbors per key space. "auto" is 32, or fewer in a small table.
    columns : mapping of str to str or callable, optional
        Use of DataFrame columns by name. Values: "number", "category" (for a zip code, for
        example), "date" or with a format "date:%d-%m-%y", "text", "left out", or "keep" for a
        column that `fit` would leave out. "text:FOLDER" adds vectors of a local model2vec or
        sentence-transformers model to a text; a function from n texts to an array (n, d) adds its
        own, and the model cannot be saved. By default types decide. Text with a date in every row
        becomes dates; numbers with one sign or unit (95%, $5) become numbers. Row numbers, row ids
        and text that differs in (nearly) every row are left out. `report_.column_report` lists all.
    estimator : "auto", None or classifier, default="auto"
        Base classifier that is pooled with the neighbors. "auto": a forest (or, if better, Gaussian
        classes for ready embeddings, and with naive Bayes for texts), plus classifiers and "deep"
        network heads that improve the pool. None: class shares replace the base. Your own
        classifier is always used.
    preset : {"default", "instant"}, default="default"
        Amount of training. "instant": only the forest or Gaussian classes (neither with
        estimator=None) and the pretrained head, for tables without `label_noise`. Below 32 rows
        "default" behaves like "instant", unless other parameters request training.
    metric : {"euclidean", "sqeuclidean", "cosine", "inner_product", "manhattan"}
        Metric of the feature space; default "euclidean". "manhattan" is searched exactly.
    cv : "auto", int, float, splitter or list of (train, test) positions, default="auto"
        Rows left out of training, for heads and calibration. An int: number of cross-fit folds,
        for tables with one view. A float: share of a hold-out split, also for early stopping of
        networks. A scikit-learn splitter: a cross-fit with several splits, else a hold-out split.
        "latest": hold out the last fifth of the rows, for rows in order of time. "auto" or None:
        5 folds, 3 above 5,000 rows; for images and several views a share of .1, up to .5 to
        reach 20 rows.
    class_prior : {"train", "uniform"} or array of shape (n_classes,), default="train"
        Class prior at prediction time. If it differs from the training prior, votes, null and
        base are reweighted.
    label_noise : None, "auto", float in [0, 1) or array of shape (n_classes, n_classes)
        Model of wrong labels in `y`. None: no noise. "auto": estimated. A float: share of wrong
        labels, evenly spread. An array: transition matrix (rows true, columns given).
    settings : Settings or dict, optional
        Rare settings: embedder, capacity, calibration, index, training, device and more. See
        `Settings`. Change a single one by `set_params(settings__index="exact")`.
    n_jobs : int, optional
        Number of threads for trees, folds and searches in the fit of a table. Default: as many as
        torch uses, at most the processors available to this process (or container); one for the
        trees of at most 1,000 rows.
    random_state : int, RandomState or None, default=None
        Seed of the fit; an int makes it repeatable.
    verbose : {0, 1, 2}, default=0
        Progress on standard error: 0 is silent, 1 a bar, 2 also one line per stage.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn; classes added by `add` are at the end of `classes_`.
    estimators_, target_names_
        With several targets: the classifier of each, and the names. Methods then return a list
        with a result per target; `predict` returns (n, n_targets), and `predict_set` sets of
        labels. `add`, `remove`, `relabel` and `refresh` change all targets or none.
    memory_ : MemoryBank
        The present remembered rows.
    report_ : FitReport
        Choices and measurements of the fit, and use of the columns.
    fitted_ : FittedClassifier
        The present version of the model: target_name, n_remembered, row_names, evicted and more.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> AttnKNNClassifier(estimator=None, random_state=0).fit(X, y).predict(X[:2]).tolist()
    [0, 0]
    """

    folder_parts = class_parts

    def __sklearn_tags__(self) -> Any:
        """Tags for scikit-learn, with support of several labels per row."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

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
        show: Any = None,
    ) -> Self:
        """Fit the classifier to training rows.

        Parameters
        ----------
        X : DataFrame, ndarray, sparse matrix or Tensor of shape (n, n_features), or images
            Training rows. A sparse matrix of more than 128 columns is reduced to 128 components by
            a truncated SVD, which is a part of the model. DataFrames, polars or pyarrow tables and
            dicts may have text, categories, dates and missing values. Arrays have numbers; NaN is
            missing. Images are uint8 of shape (n, height, width, channels) with 1 or 3 channels, or
            a list of images of one size. A folder with one folder per class, a
            `nearwise.data.Dataset` or a `datasets` data set includes labels (and file names); its
            test part, if any, is left out.
        y : array-like of shape (n,) or (n, n_targets)
            Class labels: at least 2 classes, one of them with at least 2 rows. The only row of a
            class is remembered, but not used for heads and calibration, with a warning. Several
            columns are several targets, such as labels as a matrix of 0 and 1, which may be
            sparse. Each gets a model, over the same rows; labels share folds and a forest.
        sample_weight : array-like of shape (n,), optional
            Non-negative weights of the rows' losses and votes.
        groups : array-like of shape (n,), optional
            Group of each row, such as a patient, if new rows will belong to new groups. A group
            is in one fold, its rows are not neighbors of each other in training, and sets, risks
            and p-values count every group once. By default equal rows form groups if at least 5 %
            of the rows are copies (except in a table with few different rows);
            ``groups=range(n)`` keeps copies separate. Not allowed with `label_noise`.
        views : sequence of arrays like `X`, optional
            Further views of the same rows, such as embeddings of the flipped images. Networks
            are trained on the first of them too, keys are averaged over all views, and
            predictions from the same number of views are calibrated. Images get views by `tta`.
        show : str, or array-like of shape (n,), optional
            Something to look at for each row: the path of an image file, an http(s) URL, or a text;
            None where there is none. Of a DataFrame also the name of a column, which is then no
            feature and may be missing later. It comes back wherever a row is shown. By default
            image files that `fit` reads are shown.
        """
        return self._fit(X, y, sample_weight, groups, show, views)

    def _fit_model(
        self,
        source: Source,
        rows: Rows,
        columns: KnownColumns,
        sample_weight: Any,
        beside: Beside | None = None,
    ) -> FittedClassifier:
        classes, codes = labels.check_labels(source.y, len(rows))
        groups = None if source.groups is None else source.groups.of_rows(len(rows))
        labels.check_class_sizes(classes, codes, groups)
        labels.warn_of_lone_rows(classes, codes, groups)
        labels.warn_of_alike_labels(classes.tolist(), [])
        weight, unit = labels.unit_weight(sample_weight, len(rows))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        settings = check_settings(
            self,
            len(rows),
            len(classes),
            seed,
            n_views=1 + len(rows.further),
            image_size=rows.X.shape[1:3] if rows.encoder.kind == "images" else None,
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
        encoded = learned_once(rows, self.columns, source.shown, beside)
        problem = Problem(rows.encoder, encoded, codes, weight, len(classes), beside=beside)
        problem.group(groups, copies=self.label_noise is None)
        problem.tta = settings.tta
        problem.views = rows.views(encoded, settings.tta)
        make = partial(FittedClassifier, columns=columns, classes=classes, weight_unit=unit)
        return self._fit_to(problem, settings, source, rows.take, make)

    # --- the model, and its properties --------------------------------------------------------

    @property
    @each_target()
    def classes_(self) -> np.ndarray:
        """Classes, ndarray of shape (n_classes,): sorted, with classes from `add` at the end."""
        return self._fitted.classes

    @property
    @each_target()
    def report_(self) -> FitReport:
        """Choices and measurements of the fit, and use of the columns."""
        return FitReport.of(self._fitted.predictor)

    if not TYPE_CHECKING:  # otherwise type checkers accept any name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError with the present name of a former attribute."""
            if name in _MOVED:
                raise AttributeError(f"AttnKNNClassifier has no {name!r}: use {_MOVED[name]}.")
            return self.__getattribute__(name)  # raises AttributeError, a property's own if any

    # --- queries ------------------------------------------------------------------------------

    @each_target()
    @torch.inference_mode(False)
    def query(
        self,
        X: Any = None,
        views: Sequence[Any] | None = None,
        *,
        explain: int | Literal[False] | None = False,
    ) -> Query:
        """Query object for several results about the same rows, with one encoding and search.

        Parameters
        ----------
        X, views
            As in `predict_proba`.
        explain : int or None or False, default=False
            Number of neighbors in explanations; None shows all.

        Returns
        -------
        query : Query
            Query of the present version of the model; later changes have no effect on it.

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

    @each_target()
    def predict_proba(self, X: Any = None, views: Sequence[Any] | None = None) -> np.ndarray:
        """Predict class probabilities.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            Rows to predict. None means leave-one-out predictions of the remembered rows, with
            out-of-fold and out-of-bag predictions of the base. Images may be given as a folder or
            as a list of files.
        views : sequence of arrays like `X`, optional
            Further views of the rows, as many as in `fit`, merged with `X`. Images get views by
            `tta`; an empty list predicts from one view.

        Returns
        -------
        proba : ndarray of shape (n, n_classes)
            Probabilities in the order of `classes_`; rows sum to 1.
        """
        return self.query(X, views).proba()

    @each_target(side_by_side)
    def predict(self, X: Any = None, views: Sequence[Any] | None = None) -> Any:
        """Predict the most probable classes, ndarray of shape (n,); see `predict_proba`."""
        query = self.query(X, views)
        return query.model.classes[query.proba().argmax(axis=1)]

    @each_target()
    def explain(
        self,
        X: Any = None,
        n_neighbors: int | None = 10,
        *,
        trust: bool = False,
        views: Sequence[Any] | None = None,
    ) -> Explanations[Explanation]:
        """Explain predictions by their neighbors.

        Parameters
        ----------
        X : DataFrame, ndarray or Tensor of shape (n, n_features), optional
            Rows to explain. None means leave-one-out predictions of all remembered rows.
        n_neighbors : int or None, default=10
            Number of neighbors shown, by descending weight; None shows all.
        trust : bool, default=False
            Whether to add each row's out-of-distribution p-value and 90 % prediction set. Needs
            new rows, and predicts the calibration rows once.
        views : sequence of arrays like `X`, optional
            Further views as in `predict_proba`; a neighbor's weight is its mean over the views.

        Returns
        -------
        explanations : Explanations
            A list of `Explanation`, one per row, with `to_frame`; cards in a notebook.

        Raises
        ------
        ValueError
            If trust is requested for the remembered rows, or there are too few calibration rows.
        """
        if n_neighbors is not None:
            check_count("n_neighbors", n_neighbors, 1)
        query = self.query(X, views, explain=n_neighbors)
        found = query.explanations(trust=trust)
        return with_sources(found, X)

    @each_target()
    def predict_selective(
        self,
        X: Any,
        *,
        coverage: float | None = None,
        max_risk: float | None = None,
        confidence: float = 0.95,
        views: Sequence[Any] | None = None,
    ) -> Selection:
        """Predict with abstention: accept only the rows with the largest probabilities.

        Parameters
        ----------
        X, views
            New rows, as in `predict_proba`.
        coverage : float in (0, 1], optional
            Share of rows to accept. Give either `coverage` or `max_risk`.
        max_risk : float in (0, 1), optional
            Largest share of wrong accepted rows; as many rows as possible are accepted.
        confidence : float in (0, 1), default=0.95
            Confidence of the risk bound.

        Returns
        -------
        selection : Selection
            Predictions with labels, accepted, threshold, expected_risk, risk_bound and more.

        Raises
        ------
        ValueError
            If not exactly one of `coverage` and `max_risk` is given, a value is out of its range,
            or no threshold keeps the risk bound below `max_risk`.
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
        """Predict sets of classes with about the given probability to contain the true class.

        Parameters
        ----------
        X, views
            New rows, as in `predict_proba`.
        confidence : float in (0, 1), default=0.9
            Wanted coverage: share of rows with the true class in their set.
        method : {"lac", "aps", "raps"}, default="lac"
            Nonconformity score. "lac": the smallest sets on average. "aps": larger sets for
            harder rows. "raps": "aps" with a penalty on large sets.
        class_conditional : bool, default=False
            Whether each class gets this coverage, not only the average over all rows.
        allow_empty : bool, default=True
            Whether a set may be empty, if no class fits the row. False adds the most probable
            class; coverage is then above `confidence`.
        penalty, free_ranks : float, int
            Penalty of "raps" per class beyond the `free_ranks` most probable classes.
        seed : int, optional
            Seed for "aps" and "raps" to include the last class of a set at random. Without a seed
            it is always included: no set is empty, and coverage is above `confidence` if the
            accuracy is.

        Returns
        -------
        sets : PredictionSets of shape (n, n_classes)
            Bool array in the order of `classes_`, with `to_frame` and `labels`. With several
            labels of two classes, (n, n_targets): the labels of the second class that are not
            ruled out. On average they hold a share `confidence` of a row's true labels (see
            `label_sets`); the other parameters keep their defaults.

        Raises
        ------
        ValueError
            If there are too few calibration rows (of a class), with the needed number.

        Notes
        -----
        Conformal: a class is in the set if more than a share 1 - `confidence` of the calibration
        rows, in leave-one-out predictions, score at least as high under their own labels. Coverage
        is an average over rows, or over the rows of a class; it does not hold for every single
        row. For rows drawn like the training rows it is near `confidence` in practice, but not
        proved: the head and the temperatures may have been fitted to the calibration rows, and
        after a cross-fit the trees of a row's neighbors too.

        With `label_noise` the sets cover the *true* class: calibration rows are weighted by the
        inverse transition. Coverage is then only as accurate as the transition.
        """
        check_confidence(confidence)
        options: dict[str, Any] = {
            "method": method,
            "class_conditional": class_conditional,
            "allow_empty": allow_empty,
            "penalty": penalty,
            "free_ranks": free_ranks,
            "seed": seed,
        }
        query: Any = self.query(X, views)
        if has_several(self):
            check_label_sets(self.classes_, options)
            return PredictionSets.of(
                label_sets(query, confidence), np.array(self.target_names_, dtype=object)
            )
        sets = query.sets(confidence, **options)
        return PredictionSets.of(sets, query.model.classes)

    @each_target()
    def novelty_score(
        self, X: Any, score: NoveltyScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Novelty score of new rows: the difference from the remembered rows.

        Parameters
        ----------
        X, views
            New rows, as in `predict_proba`.
        score : {"combined", "entropy"}
            Kind of score. "entropy": entropy of the prediction, in nats. "combined" (default):
            mean of the entropy, the distance to the k-th neighbor and the null mass, each
            standardised by the calibration rows.

        Returns
        -------
        score : float64 ndarray of shape (n,)
            Novelty scores; larger is more novel.
        """
        check_novelty_score(score)
        return self.query(X, views).novelty_score(score)

    @each_target()
    def novelty_p_value(
        self, X: Any, score: NoveltyScore = "combined", *, views: Sequence[Any] | None = None
    ) -> np.ndarray:
        """Out-of-distribution p-value: the share of calibration rows with at least this score.

        Flagging rows with p <= 0.05 gives about one false alarm per twenty known rows.

        Parameters
        ----------
        X, score, views
            As in `novelty_score`.

        Returns
        -------
        p : float64 ndarray of shape (n,)
            P-values in (0, 1]; the smallest possible is 1 / (1 + calibration rows).
        """
        check_novelty_score(score)
        return self.query(X, views).novelty_p_value(score)

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
        views: Sequence[Any] | None = None,
        show: Any = None,
    ) -> np.ndarray:
        """Add new rows to the memory, also of new classes, without training.

        A memory over its `capacity` then evicts rows by `eviction`; `fitted_.evicted` has their
        ids, possibly of new rows.

        Parameters
        ----------
        X, y, sample_weight, groups, views, show
            New rows, as in `fit`. Groups are required if the classifier was fitted with groups. A
            column that `fit` shows is shown here too.

        Returns
        -------
        ids : int64 ndarray of shape (n_added,)
            Ids of the new rows; they continue the order of arrival.
        """
        return self._remember(X, y, sample_weight, groups, show, views)

    @changes_each_target
    @torch.inference_mode(False)
    def remove(self, ids: Any, *, forget_classes: bool = False) -> None:
        """Remove remembered rows by id; networks and trees are not retrained.

        With preset="instant" and no forest (estimator=None, or only "gaussian" and "text-bayes" in
        `report_.choice["base"]`) the model is refitted without the rows and forgets them exactly:
        without sample weights it equals a new fit to the bit, except for ties between equally
        near rows. Otherwise feature map, base and head still depend on the removed rows until
        `refresh`.

        Parameters
        ----------
        ids : int64 array-like of shape (n_removed,)
            Ids of the rows to remove.
        forget_classes : bool, default=False
            Whether a class may lose its last row. It keeps its position in `classes_`, and only
            the base and the null can predict it.

        Raises
        ------
        ValueError
            If an id is not remembered, a class would lose its last row, or too few rows stay.
            Nothing is then removed.
        """
        self._change(
            by_settings.with_change, changes.without_rows, ids, forget_classes=forget_classes
        )

    @changes_each_target
    @torch.inference_mode(False)
    def relabel(self, ids: Any, y: Any, *, forget_classes: bool = False) -> None:
        """Relabel remembered rows with classes of `classes_`, with no retraining as in `remove`.

        Parameters
        ----------
        ids : int64 array-like of shape (n_changed,)
        y : array-like of shape (n_changed,)
            New labels.
        forget_classes : bool, default=False
            Whether a class may lose its last row, as in `remove`.

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
        show: Any = None,
    ) -> Self:
        """Fit the first batch of a stream, or add a later batch.

        The model is refitted (`refresh`) after half as many new rows as the memory had, or some
        rows of a new class. It is not refitted with a noisy-label model (`label_noise`) or a
        hold-out split (images, views, a share in `cv`); rows are then only added.

        Parameters
        ----------
        X, y, sample_weight, groups, views, show
            Rows of the batch, as in `fit`. The first batch must be suitable for a fit.
        classes : array-like, optional
            All classes of the stream. Classes missing in the first batch are added at the end of
            `classes_` at once, and later labels must be among `classes`. By default new classes
            are added as they arrive.

        Raises
        ------
        ValueError
            If the first batch cannot be fitted, or a label is not among the declared classes.
        """
        source = Source.of(X, y, groups, show, like=getattr(self, "fitted_", None))
        if has_several(self) or several_targets(source.y) is not None:
            rest = {"sample_weight": sample_weight, "views": views}

            def learn(one: Self, target: Any, known: Any) -> None:
                one.partial_fit(source._replace(y=target), classes=known, **rest)

            with self._lock:
                return partial_fit_each(self, source.y, classes, learn)
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
        model = self._fit_model(source.naming(rows), rows, columns, sample_weight)
        if declared is not None:
            later = [c for c in declared.tolist() if c not in set(present.tolist())]
            model = changes.with_classes(model, later)
            model = replace(model, stream=replace(model.stream, declared=True))
        self.fitted_ = model
