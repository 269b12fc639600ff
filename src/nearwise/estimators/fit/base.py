"""The base: classifiers that are cross-fitted, pooled by out-of-fold NLL, and kept fold by fold."""

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

View = Literal["dense", "ordinal", "ordinal_filled"]
Fold = tuple[np.ndarray, np.ndarray]  # positions of training and of held-out rows
IMPLIED = " on true labels"  # ends the names of such gates, in folders up to format version 8
FLOOR = 1e-4  # share of the uniform distribution mixed in before logarithms are taken
RIDGE = 4.0  # pull of powers and temperatures towards 1, in rows, beside a pretrained head
_TRIED = 2  # folds by which candidates are dropped that bring nothing
_MANY = 5  # classes beyond which boosting, a tree per class and round, costs more than it gives


@dataclass
class Candidate:
    """One classifier of the base, on one view of the table; after fitting one model per fold."""

    name: str
    model: Any
    view: View
    folds: list[Any]
    stops_on_held_out: bool = False
    is_given: bool = False

    def fit_folds(
        self, view: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, folds: list[Fold]
    ) -> Iterator[int]:
        """Fit a model to each fold's training rows and give its number once it is there.

        `view` (n, width), `labels` and `weight` (n,) are of all rows.
        """
        jobs = (delayed(self._fitted)(view, labels, weight, fold) for fold in folds)
        models = Parallel(self._n_side_by_side, prefer="threads", return_as="generator")(jobs)
        try:
            for model in models:
                self.folds.append(model)
                yield len(self.folds) - 1
        finally:
            models.close()

    def _fitted(
        self, view: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, fold: Fold
    ) -> Any:
        model = clone(self.model)
        train, held_out = fold
        extra: dict[str, Any] = {}
        if not has_fit_parameter(model, "sample_weight"):
            weight = None
        if weight is not None:
            extra["sample_weight"] = weight[train]
        if self.stops_on_held_out:
            # The stopping score needs classes that the model knows.
            useful = np.isin(labels[held_out], labels[train])
            if weight is not None:
                useful &= weight[held_out] > 0
            stop = held_out[useful]
            if len(stop):  # otherwise the model sets some of its training rows aside
                extra |= {"X_val": view[stop], "y_val": labels[stop]}
                if weight is not None:
                    extra["sample_weight_val"] = weight[stop]
        with own_threads() if self.is_given else one_thread():
            model.fit(view[train], labels[train], **extra)
        return as_arrays(model)

    @property
    def _n_side_by_side(self) -> int:
        """Folds that are fitted at a time, each in one thread.

        One for forests, whose trees share the threads, and for a user's classifier, which may have
        threads of its own and need not bear others.
        """
        has_own = self.is_given or getattr(self.model, "n_jobs", None) not in (None, 1)
        return 1 if has_own else coarse_threads()

    def log_proba(self, view: np.ndarray, fold: int, n_classes: int) -> np.ndarray:
        """Floored log-probabilities of one fold model over all classes, (n, n_classes)."""
        model = self.folds[fold]
        proba = np.zeros((len(view), n_classes))
        if len(view):
            proba[:, model.classes_] = model.predict_proba(view)
        return floored_log(proba)

    def mean_log_proba(self, view: np.ndarray, n_classes: int) -> np.ndarray:
        """Normalised mean of the log-probabilities of all its models, (n, n_classes)."""
        each = [self.log_proba(view, fold, n_classes) for fold in range(len(self.folds))]
        mean: np.ndarray = log_softmax(np.mean(each, axis=0), axis=1)
        return mean


@contextmanager
def silent_candidates(candidates: list[Candidate]) -> Iterator[None]:
    """Hide warnings of early stops and of batches larger than a table, unless one is the user's.

    Around fits in threads, not inside one: filters are of the process.
    """
    with warnings.catch_warnings():
        if not any(one.is_given for one in candidates):
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.filterwarnings("ignore", message="Got `batch_size`")
        yield


def floored_log(proba: np.ndarray) -> np.ndarray:
    """Logarithm of probabilities with a little of the uniform distribution mixed in."""
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
    """Classifiers worth trying for a table of this size.

    Wide tables without categories (ready embeddings) get linear models; trees would be slow and
    weak there. Large tables get smaller forests. `light`: two that are fitted soon.
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


def _mlp(*, large: bool, seed: int) -> MLPClassifier:
    """Two hidden layers, which find products of columns that no other candidate does."""
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
    """Wrap a classifier of the user's own; it sees standardised numbers and one-hot categories."""
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

    `candidates` are those with a part in the pool, each with one model per fold or one of all rows;
    `gates` are the positive powers of their predictions in it, fitted to the out-of-fold NLL.
    `oof_log_proba` (n, C) has the training rows' normalised log-probabilities, each from the fold
    that left it out; `nll` the out-of-fold NLL of each candidate alone and of the pool.
    `implied` leads from predictions of given labels to those of the true ones, which former fits
    to wrong labels put in the pool as well.
    """

    def __init__(
        self, candidates: list[Candidate], gates: dict[str, float], n_classes: int
    ) -> None:
        self.candidates, self.gates, self.n_classes = candidates, gates, n_classes
        self.implied: Callable[[np.ndarray], np.ndarray] | None = None
        self.oof_log_proba = np.zeros((0, n_classes))
        self.nll: dict[str, float] = {}

    def parts(self, encoder: TableEncoder, rows: Encoded) -> dict[str, np.ndarray]:
        """Log-probabilities (n, C) of the candidates, each the mean over its models."""
        views = {name: getattr(encoder, name)(rows) for name in {c.view for c in self.candidates}}
        return {
            one.name: one.mean_log_proba(views[one.view], self.n_classes) for one in self.candidates
        }

    def pooled(self, parts: dict[str, np.ndarray]) -> np.ndarray:
        """Normalised log-probabilities (n, C) of the pool of what `parts` gave."""
        total = np.zeros(next(iter(parts.values())).shape)
        for name, part in parts.items():
            total += self.gates.get(name, 0.0) * part
            if self.implied is not None and name + IMPLIED in self.gates:
                total += self.gates[name + IMPLIED] * self.implied(part)
        normalised: np.ndarray = log_softmax(total, axis=1)
        return normalised

    def asks(self, name: str) -> bool:
        """Whether a candidate has a part in the pool."""
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

    After the first folds, candidates that bring the pool nothing are dropped; their NLL is that of
    these folds. `labels` are class positions; `folds` pairs of training and held-out rows; `extra`
    holds out-of-fold log-probabilities (n, C) that come from elsewhere and may join the pool. Where
    `beside` is given, candidates must add to its log-probabilities, which take no part: the pool is
    of those that do and of `extra`, or empty. The label model gives what each fold's
    models are fitted to, and scores the pool on `labels`, except on a row (or of the `groups` one)
    alone in its class.
    `progress` is called with a line before each fit. Of one fold alone only the rows that it holds
    out are predicted.
    """
    known = (extra or {}) | (beside or {})
    judging = judging_weight(labels, weight, groups)
    out = {one.name: np.zeros((len(labels), n_classes)) for one in candidates}

    def fitted(ones: list[Candidate], numbers: range) -> list[Candidate]:
        """Fit some folds' models; those candidates that were done before an interrupt."""
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
