"""The base: cross-fitted classifiers, one model per fold, pooled by out-of-fold NLL."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import log_softmax
from sklearn.base import clone, is_classifier
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import has_fit_parameter

from nearwise.estimators.fit.as_arrays import as_arrays
from nearwise.estimators.fit.forest import forest_settings
from nearwise.estimators.inputs.labels import judging_weight
from nearwise.estimators.inputs.table import (
    LARGE,
    VERY_LARGE,
    Encoded,
    TableEncoder,
    category_places,
    ready_embeddings,
)
from nearwise.estimators.model.gates import Pool, lean_pool, pooled, tempered_nll
from nearwise.estimators.model.label_model import AS_GIVEN, LabelModel
from nearwise.functional.threads import coarse_threads, one_thread, own_threads
from nearwise.warn import warn_user

View = Literal["dense", "ordinal", "ordinal_filled", "sparse_terms", "text_terms"]
Fold = tuple[np.ndarray, np.ndarray]  # positions of training and of held-out rows
IMPLIED = " on true labels"  # suffix of gate names in folders up to format version 8
FLOOR = 1e-4  # share of the uniform distribution mixed in before logarithms
RIDGE = 4.0  # penalty that pulls powers and temperatures towards 1, in rows
BAYES = "text-bayes"  # candidate for columns of text
_TRIED = 2  # folds after which useless candidates are dropped
_MANY = 5  # most classes for boosting, as it fits one tree per class and round


@dataclass
class Candidate:
    """One classifier of the base on one view of the table, with one fitted model per fold."""

    name: str
    model: Any
    view: View
    folds: list[Any]
    stops_on_held_out: bool = False
    is_given: bool = False

    def fit_folds(
        self, view: Any, labels: np.ndarray, weight: np.ndarray | None, folds: list[Fold]
    ) -> Iterator[int]:
        """Fit one model per fold to its training rows, and yield each fold's number when done.

        `view` (n, width), an array or sparse, `labels` and `weight` (n,) are of all rows.
        """
        jobs = (delayed(self._fitted)(view, labels, weight, fold) for fold in folds)
        models = Parallel(self._n_side_by_side, prefer="threads", return_as="generator")(jobs)
        try:
            for model in models:
                self.folds.append(model)
                yield len(self.folds) - 1
        finally:
            models.close()

    def _fitted(self, view: Any, labels: np.ndarray, weight: np.ndarray | None, fold: Fold) -> Any:
        model = clone(self.model)
        train, held_out = fold
        extra: dict[str, Any] = {}
        if not has_fit_parameter(model, "sample_weight"):
            weight = None
        if weight is not None:
            extra["sample_weight"] = weight[train]
        if self.stops_on_held_out:
            # The early-stopping score needs classes in the training part.
            useful = np.isin(labels[held_out], labels[train])
            if weight is not None:
                useful &= weight[held_out] > 0
            stop = held_out[useful]
            if len(stop):  # otherwise the model splits off a validation set itself
                extra |= {"X_val": view[stop], "y_val": labels[stop]}
                if weight is not None:
                    extra["sample_weight_val"] = weight[stop]
        with own_threads() if self.is_given else one_thread():
            model.fit(view[train], labels[train], **extra)
        return as_arrays(model)

    @property
    def _n_side_by_side(self) -> int:
        """Number of folds fitted in parallel, each in one thread.

        1 for forests, as their trees share the threads, and for a user's classifier, which may
        use threads itself or not be thread-safe.
        """
        has_own = self.is_given or getattr(self.model, "n_jobs", None) not in (None, 1)
        return 1 if has_own else coarse_threads()

    def log_proba(self, view: Any, fold: int, n_classes: int) -> np.ndarray:
        """Floored log-probabilities of one fold model over all classes, (n, n_classes)."""
        model = self.folds[fold]
        proba = np.zeros((view.shape[0], n_classes))
        if view.shape[0]:
            proba[:, model.classes_] = model.predict_proba(view)
        return floored_log(proba)

    def mean_log_proba(self, view: Any, n_classes: int) -> np.ndarray:
        """Normalised mean log-probabilities of all models, (n, n_classes)."""
        each = [self.log_proba(view, fold, n_classes) for fold in range(len(self.folds))]
        mean: np.ndarray = log_softmax(np.mean(each, axis=0), axis=1)
        return mean


@contextmanager
def silent_candidates(candidates: list[Candidate]) -> Iterator[None]:
    """Hide convergence and batch-size warnings, unless a candidate is the user's.

    Used around fits in threads, not inside a thread: warning filters are per process.
    """
    with warnings.catch_warnings():
        if not any(one.is_given for one in candidates):
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", message="Got `batch_size`")
        yield


def floored_log(proba: np.ndarray) -> np.ndarray:
    """Logarithm of probabilities, mixed with a small share of the uniform distribution."""
    return np.log((1 - FLOOR) * proba + FLOOR / proba.shape[1])


def auto_candidates(
    encoder: TableEncoder,
    n_rows: int,
    n_classes: int,
    *,
    seed: int,
    n_jobs: int | None,
    light: bool = False,
) -> list[Candidate]:
    """Candidate classifiers for a table of this size.

    Large ready embeddings (wide tables without categories) get a linear model; trees would be
    slow and weak there. Large tables get smaller forests. `light`: two fast candidates.
    """
    width = encoder.n_columns
    large = n_rows > LARGE
    logistic = Candidate("logistic", LogisticRegression(C=0.3, max_iter=300), "dense", [])
    if large and ready_embeddings(encoder):
        return [logistic]
    forest = forest_settings(n_rows, seed=seed, n_jobs=n_jobs)
    many = n_classes > _MANY
    extra = Candidate("extra-trees", ExtraTreesClassifier(**forest), "ordinal_filled", [])
    if light:
        small = many or not large
        return [logistic, extra if small else _boosting(encoder, large=True, light=True, seed=seed)]
    kernel = make_pipeline(
        Nystroem(gamma=0.5 / width, n_components=min(400, int(0.6 * n_rows)), random_state=seed),
        LogisticRegression(C=30.0, max_iter=100),
    )
    chosen = [logistic, extra]
    if n_rows <= VERY_LARGE:
        chosen.append(Candidate("kernel-logistic", kernel, "dense", []))
        chosen.append(
            Candidate("random-forest", RandomForestClassifier(**forest), "ordinal_filled", [])
        )
        chosen.append(Candidate("mlp", _mlp(large=large, seed=seed), "dense", []))
    if not many:
        chosen.append(_boosting(encoder, large=large, seed=seed))
    return chosen


def text_candidates() -> list[Candidate]:
    """Linear classifiers of the terms of texts; the first also sees the other columns."""
    logistic = LogisticRegression(C=30.0, max_iter=300)
    return [Candidate("text-logistic", logistic, "sparse_terms", []), bayes_candidate()]


def bayes_candidate() -> Candidate:
    """Naive Bayes of the terms of texts, which is fitted at once."""
    return Candidate(BAYES, MultinomialNB(alpha=0.1), "text_terms", [])


def _mlp(*, large: bool, seed: int) -> MLPClassifier:
    """MLP with two hidden layers; only this candidate learns products of columns."""
    settings: dict[str, Any] = {"alpha": 0.3, "batch_size": 64, "max_iter": 100}
    if large:
        settings = {"alpha": 0.03, "batch_size": 256, "max_iter": 40}
    width = 256 if large else 64
    return MLPClassifier((width, width), learning_rate_init=3e-3, random_state=seed, **settings)


def _boosting(encoder: TableEncoder, *, large: bool, seed: int, light: bool = False) -> Candidate:
    """Gradient boosting: shallow on small tables, many slow rounds on large ones."""
    if large and light:
        settings: dict[str, Any] = {"learning_rate": 0.06, "max_iter": 400}
    elif large:
        settings = {"learning_rate": 0.03, "max_iter": 1500, "n_iter_no_change": 30}
        settings |= {"max_features": 0.5, "l2_regularization": 1.0}
    else:
        settings = {"learning_rate": 0.04, "max_iter": 150, "max_leaf_nodes": 8}
        settings |= {"min_samples_leaf": 10, "max_features": 0.4, "l2_regularization": 3.0}
    model = HistGradientBoostingClassifier(
        **settings,
        early_stopping=large,
        categorical_features=list(category_places(encoder)) or None,
        random_state=seed,
    )
    return Candidate("boosting", model, "ordinal", [], stops_on_held_out=large)


def given_candidate(model: Any) -> Candidate:
    """Candidate of a user's classifier, on standardised numbers and one-hot categories."""
    is_class = isinstance(model, type)
    if is_class or not hasattr(model, "predict_proba") or not is_classifier(model):
        raise ValueError(
            f'estimator={model!r} is not usable. Give None, "auto", or a scikit-learn classifier '
            "with predict_proba (for SVC pass probability=True, or wrap it in "
            "CalibratedClassifierCV)."
        )
    return Candidate(type(model).__name__, model, "dense", [], is_given=True)


class Base:
    """Cross-fitted candidates and their log-linear pool.

    `candidates` are in the pool, each with one model per fold or one model of all rows; `gates` are
    the positive powers of their predictions, fitted to the out-of-fold NLL. `oof_log_proba` (n, C)
    are normalised out-of-fold log-probabilities of the training rows; `nll` is the out-of-fold NLL
    of each candidate alone and of the pool. `implied` maps predictions of given labels to
    predictions of the true ones; models saved in older formats have both in the pool.
    """

    def __init__(
        self, candidates: list[Candidate], gates: dict[str, float], n_classes: int
    ) -> None:
        self.candidates, self.gates, self.n_classes = candidates, gates, n_classes
        self.implied: Callable[[np.ndarray], np.ndarray] | None = None
        self.oof_log_proba = np.zeros((0, n_classes))
        self.nll: dict[str, float] = {}

    def parts(self, encoder: TableEncoder, rows: Encoded) -> dict[str, np.ndarray]:
        """Log-probabilities (n, C) of each candidate, averaged over its models."""
        views = {name: getattr(encoder, name)(rows) for name in {c.view for c in self.candidates}}
        return {
            one.name: one.mean_log_proba(views[one.view], self.n_classes) for one in self.candidates
        }

    def pooled(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        """Normalised log-probabilities (n, C) of the pool from the result of `parts`."""
        total = np.zeros(next(iter(parts.values())).shape)
        for name, part in parts.items():
            total += self.gates.get(name, 0.0) * part
            if self.implied is not None and name + IMPLIED in self.gates:
                total += self.gates[name + IMPLIED] * self.implied(part)
        normalised: np.ndarray = log_softmax(total, axis=1)
        return normalised

    def asks(self, name: str) -> bool:
        """Whether a candidate is in the pool."""
        return name in self.gates or name + IMPLIED in self.gates


def cross_fit(
    candidates: list[Candidate],
    encoder: TableEncoder,
    rows: Encoded,
    labels: np.ndarray,
    weight: np.ndarray | None,
    folds: list[tuple[np.ndarray, np.ndarray]],
    n_classes: int,
    *,
    extra: dict[str, np.ndarray] | None = None,
    beside: dict[str, np.ndarray] | None = None,
    label_model: LabelModel = AS_GIVEN,
    groups: np.ndarray | None = None,
    progress: Callable[[str], None] | None = None,
) -> Base:
    """Cross-fit the candidates and pool them in the log domain by out-of-fold NLL.

    After the first two folds, candidates without use in the pool are dropped; their NLL is over
    these folds. `labels` are class positions; `folds` are pairs of training and held-out rows;
    `extra` are out-of-fold log-probabilities (n, C) of other models, which may join the pool.
    With `beside`, candidates must improve on these log-probabilities, which stay outside the pool:
    it then has the useful candidates and `extra`, or is empty. Models are fitted to `labels`; the
    label model scores the pool on them, except on the only row (or one of `groups`) of a class.
    `progress` is called with a line of text before each fit. With a single fold only its held-out
    rows are predicted.
    """
    known = (extra or {}) | (beside or {})
    judging = judging_weight(labels, weight, groups)
    out = {one.name: np.zeros((len(labels), n_classes)) for one in candidates}

    def fitted(ones: list[Candidate], numbers: range) -> list[Candidate]:
        """Fit the models of some folds; returns the candidates completed before an interrupt."""
        for at, candidate in enumerate(ones):
            view = getattr(encoder, candidate.view)(rows)
            some = [folds[fold] for fold in numbers]
            name = f"base: {candidate.name}, fold"
            try:
                if progress is not None:
                    progress(f"{name} {numbers.start + 1} of {len(folds)}")
                for fold in candidate.fit_folds(view, labels, weight, some):
                    if progress is not None and fold + 1 in numbers:
                        progress(f"{name} {fold + 2} of {len(folds)}")
                    held_out = folds[fold][1]
                    there = candidate.log_proba(view[held_out], fold, n_classes)
                    out[candidate.name][held_out] = there
            except KeyboardInterrupt:
                if not known and not at:
                    raise
                warn_user(
                    f"Interrupted while the base's {candidate.name} was fitted: the fit goes on "
                    f"with {', '.join([*known, *(one.name for one in ones[:at])])}."
                )
                return ones[:at]
        return ones

    def pool_of(ones: list[Candidate], at: np.ndarray) -> Pool:
        parts = {name: part[at] for name, part in known.items()}
        parts |= {one.name: out[one.name][at] for one in ones}
        some = (labels[at], None if judging is None else judging[at], label_model)
        nll.update({name: tempered_nll(part, *some) for name, part in parts.items()})
        return lean_pool(parts, *some)

    def asked(pool: Pool, ones: list[Candidate]) -> list[Candidate]:
        return [one for one in ones if one.name in pool.powers]

    nll: dict[str, float] = {}
    with silent_candidates(candidates):
        done = fitted(candidates, range(min(_TRIED, len(folds))))
        if len(folds) > _TRIED:
            if len(known) + len(done) > 1:
                done = asked(pool_of(done, np.concatenate([at for _, at in folds[:_TRIED]])), done)
            done = fitted(done, range(_TRIED, len(folds)))
    every = np.arange(len(labels)) if len(folds) > 1 else folds[0][1]
    pool = pool_of(done, every)
    if beside is not None:
        added = {name: part for name, part in pool.parts.items() if name not in beside}
        parts = {name: part[every] for name, part in (extra or {}).items()} | added
        if not parts:
            return Base([], {}, n_classes)
        some = labels[every], None if judging is None else judging[every]
        pool = pooled(parts, *some, label_model, ridge=RIDGE / len(every))
    base = Base(asked(pool, done), pool.powers, n_classes)
    base.oof_log_proba = np.zeros((len(labels), n_classes))
    base.oof_log_proba[every] = pool.log_proba
    base.nll = nll | {"pool": pool.nll}
    return base
