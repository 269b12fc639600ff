"""Fitted scikit-learn classifiers as plain arrays: fast for one row, and safe to store.

scikit-learn keeps trees in C structs that crash the process where a file was forged, and its
boosting with categories keeps a function that no safe format takes. As arrays they are checked
before they are used, answer one row without scikit-learn's validation, and do not depend on its
version. docs/method.md has what was measured.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.ensemble import (
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils.extmath import softmax

from nearwise.functional.devices import SMALL_WORK, Threads
from nearwise.functional.trees import (
    CODES,
    add_leaf_shares,
    add_leaf_values,
    check_nodes,
    pack_codes,
    round_down,
    unpack_codes,
)

Arrays = dict[str, NDArray[Any]]
_STEPS = 64  # multiplications that a walk through one tree takes the time of
_FLOATS = (np.float32, np.float64)


class ArrayModel(Protocol):
    """A fitted classifier that arrays hold completely; its classes are ascending positions."""

    classes_: NDArray[np.int64]
    n_features_in_: int

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities (n, n_classes) of rows (n, n_features_in_)."""
        ...

    def to_arrays(self) -> Arrays:
        """Everything that predicts, by name."""
        ...


def as_arrays(model: Any) -> Any:
    """Turn a scikit-learn classifier, fitted to class positions, into an `ArrayModel` if it can be.

    With the same probabilities to the last bit; `model` itself where there is no array form.
    """
    kind = type(model)
    if kind is LogisticRegression and model.solver != "liblinear":
        return Logistic.of(model)
    if kind in (ExtraTreesClassifier, RandomForestClassifier):
        return Forest.of(model) if model.n_outputs_ == 1 else model
    if kind is HistGradientBoostingClassifier:
        return Boosting.of(model) if _codes_fit(model) else model
    if kind is Pipeline and [type(step) for _, step in model.steps] == [
        Nystroem,
        LogisticRegression,
    ]:
        return KernelLogistic.of(model)
    return model


class _Model:
    """A model that consists of its arrays, which are checked when it is made.

    KeyError or ValueError where an array is missing or they do not fit together.
    """

    def __init__(self, arrays: Arrays) -> None:
        self.classes_ = _classes(arrays)
        self._arrays = arrays | {"classes": self.classes_}

    def to_arrays(self) -> Arrays:
        """Everything that predicts, by name."""
        return dict(self._arrays)


class Logistic(_Model):
    """Logistic regression: coefficients and intercepts."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        rows = 1 if len(self.classes_) <= 2 else len(self.classes_)
        self._model = model = LogisticRegression()
        model.classes_ = self.classes_
        model.coef_ = _floats(arrays, "coef", (rows, None))
        model.intercept_ = _floats(arrays, "intercept", (rows,))
        self.n_features_in_ = model.n_features_in_ = int(model.coef_.shape[1])

    @classmethod
    def of(cls, model: LogisticRegression) -> "Logistic":
        """Take over a fitted model."""
        return cls({"classes": model.classes_, "coef": model.coef_, "intercept": model.intercept_})

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        proba: NDArray[np.float64] = self._model.predict_proba(X)
        return proba


class KernelLogistic(_Model):
    """Logistic regression on a Nystroem approximation of the RBF kernel."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._logistic = Logistic(arrays)
        gamma = float(_floats(arrays, "gamma", ()))
        if gamma <= 0:
            raise ValueError(f"gamma is {gamma}, which is not positive")
        self._kernel = kernel = Nystroem(kernel="rbf", gamma=gamma)
        kernel.components_ = _floats(arrays, "components", (None, None))
        n, width = kernel.components_.shape
        kernel.normalization_ = _floats(arrays, "normalization", (n, n))
        self.n_features_in_ = kernel.n_features_in_ = int(width)
        kernel._n_features_out = n
        if self._logistic.n_features_in_ != n:
            raise ValueError(f"coef has {self._logistic.n_features_in_} columns for {n} components")

    @classmethod
    def of(cls, model: Pipeline) -> Any:
        """Take over a fitted pipeline; one with another kernel is returned as it is."""
        kernel, logistic = (step for _, step in model.steps)
        if kernel.kernel != "rbf" or kernel.gamma is None or logistic.solver == "liblinear":
            return model
        arrays = {
            "components": kernel.components_,
            "normalization": kernel.normalization_,
            "gamma": np.float64(kernel.gamma),
        }
        return cls(arrays | Logistic.of(logistic).to_arrays())

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        return self._logistic.predict_proba(self._kernel.transform(X))


class _Trees(_Model):
    """Arrays of an ensemble's nodes, and how its rows are walked in threads."""

    _NAMES: tuple[str, ...] = ("roots", "left", "right", "feature", "threshold")

    def __init__(self, arrays: Arrays, n_leaves: int) -> None:
        super().__init__(arrays)
        (self.n_features_in_,) = _integers(arrays, "n_features", (1,)).tolist()
        roots, left, right, feature = (
            _integers(arrays, name, (None,)) for name in ("roots", "left", "right", "feature")
        )
        check_nodes(roots, left, right, feature, self.n_features_in_, n_leaves)
        if arrays["threshold"].shape != arrays["left"].shape:
            raise ValueError("there is not one threshold per node")
        if np.isnan(arrays["threshold"]).any():
            raise ValueError("a threshold is NaN")

    def _checked(self, X: NDArray[Any], dtype: Any) -> NDArray[Any]:
        rows = np.ascontiguousarray(X, dtype=dtype)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X has shape {rows.shape}; expected (n, {self.n_features_in_})")
        return rows

    def _walk(
        self, kernel: Any, rows: NDArray[Any], out: NDArray[Any], *more: NDArray[Any]
    ) -> None:
        """Let a kernel add to `out` what the trees say of the rows; `more` follows the nodes."""
        nodes = [self._arrays[name] for name in self._NAMES]
        work = _STEPS * len(rows) * len(self._arrays["roots"])
        if work <= SMALL_WORK:
            kernel(rows, *nodes, *more, out)
            return
        with Threads(work) as threads:
            threads.run(lambda part: kernel(rows[part], *nodes, *more, out[part]), len(rows))


class Forest(_Trees):
    """A forest: the mean of the class shares in the leaves that a row reaches."""

    def __init__(self, arrays: Arrays) -> None:
        start = _integers(arrays, "leaf_start", (None,))
        super().__init__(arrays, len(start) - 1)
        _refuse_other_dtype(arrays, "threshold", (np.float32,))
        shares = _floats(arrays, "leaf_share", (None,))
        classes = _integers(arrays, "leaf_class", (len(shares),))
        if start[0] != 0 or start[-1] != len(shares) or (np.diff(start) < 0).any():
            raise ValueError("leaf_start does not ascend from 0 to the number of leaf shares")
        if len(shares) and not (classes.min() >= 0 and classes.max() < len(self.classes_)):
            raise ValueError("a leaf names a class that is not there")
        if (shares < 0).any():
            raise ValueError("a leaf has a negative share")

    @classmethod
    def of(cls, model: ExtraTreesClassifier | RandomForestClassifier) -> "Forest":
        """Take over a fitted forest."""
        trees = [estimator.tree_ for estimator in model.estimators_]
        roots = np.cumsum([0] + [tree.node_count for tree in trees[:-1]])
        left = np.concatenate([tree.children_left for tree in trees])
        right = np.concatenate([tree.children_right for tree in trees])
        feature = np.concatenate([tree.feature for tree in trees])
        threshold = np.concatenate([tree.threshold for tree in trees])
        leaf = left < 0
        shift = np.repeat(roots, [tree.node_count for tree in trees])
        # A leaf of a pure class holds one share: the zeros beside it are not kept.
        shares = np.concatenate([tree.value[tree.children_left < 0, 0] for tree in trees])
        which, classes = np.nonzero(shares)
        return cls(
            {
                "classes": np.asarray(model.classes_, dtype=np.int64),
                "n_features": np.array([model.n_features_in_], dtype=np.int64),
                "roots": roots.astype(np.int64),
                "left": np.where(leaf, -1, left + shift).astype(np.int32),
                "right": np.where(leaf, np.cumsum(leaf) - 1, right + shift).astype(np.int32),
                "feature": np.where(leaf, 0, feature).astype(np.int32),
                "threshold": round_down(np.where(leaf, 0.0, threshold)),
                "leaf_start": np.searchsorted(which, np.arange(len(shares) + 1)).astype(np.int64),
                "leaf_class": classes.astype(np.int32),
                "leaf_share": shares[which, classes],
            }
        )

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        rows = self._checked(X, np.float32)
        out = np.zeros((len(rows), len(self.classes_)))
        leaves = [self._arrays[name] for name in ("leaf_start", "leaf_class", "leaf_share")]
        self._walk(add_leaf_shares, rows, out, *leaves)
        out /= len(self._arrays["roots"])
        return out


class Boosting(_Trees):
    """Gradient boosting on histograms: the sum of the values of the leaves that a row reaches."""

    def __init__(self, arrays: Arrays) -> None:
        values = _floats(arrays, "leaf_value", (None,))
        super().__init__(arrays, len(values))
        _refuse_other_dtype(arrays, "threshold", (np.float64,))
        n_nodes, n_classes = len(arrays["left"]), len(self.classes_)
        missing = arrays["missing_left"]
        if missing.dtype != np.uint8 or missing.shape != (n_nodes,):
            raise ValueError("missing_left is not one uint8 per node")
        codes = arrays["left_codes"]
        if codes.dtype != np.int32 or codes.ndim != 2 or codes.shape[1] != CODES // 32:
            raise ValueError(f"left_codes is not int32 of shape (n, {CODES // 32})")
        splits = _integers(arrays, "code_split", (n_nodes,))
        if not ((splits >= -1) & (splits < len(codes))).all():
            raise ValueError("a split by category has no codes")
        columns = 1 if n_classes == 2 else n_classes
        baseline = _floats(arrays, "baseline", (columns,))
        if n_classes < 2 or len(arrays["roots"]) % columns:
            raise ValueError(f"there are {len(arrays['roots'])} trees for {n_classes} classes")
        self._baseline, self._codes = baseline, codes.view(np.uint32)

    @classmethod
    def of(cls, model: HistGradientBoostingClassifier) -> "Boosting":
        """Take over a fitted model whose category codes lie between 0 and 255."""
        trees = [tree for iteration in model._predictors for tree in iteration]
        nodes = np.concatenate([tree.nodes for tree in trees])
        sizes = [len(tree.nodes) for tree in trees]
        roots = np.cumsum([0, *sizes[:-1]])
        shift = np.repeat(roots, sizes)
        leaf = nodes["is_leaf"].astype(bool)
        order, categories = _columns_inside(model)
        feature = order[np.where(leaf, 0, nodes["feature_idx"])]
        by_code = nodes["is_categorical"].astype(bool) & ~leaf
        sets = [_left_codes(tree, categories) for tree in trees]
        return cls(
            {
                "classes": np.asarray(model.classes_, dtype=np.int64),
                "n_features": np.array([model.n_features_in_], dtype=np.int64),
                "roots": roots.astype(np.int64),
                "left": np.where(leaf, -1, nodes["left"].astype(np.int64) + shift).astype(np.int32),
                "right": np.where(
                    leaf, np.cumsum(leaf) - 1, nodes["right"].astype(np.int64) + shift
                ).astype(np.int32),
                "feature": feature.astype(np.int32),
                "threshold": np.where(leaf | by_code, 0.0, nodes["num_threshold"]),
                "missing_left": nodes["missing_go_to_left"].astype(np.uint8),
                "code_split": np.where(by_code, np.cumsum(by_code) - 1, -1).astype(np.int32),
                "left_codes": pack_codes(np.concatenate(sets)).view(np.int32),
                "leaf_value": nodes["value"][leaf],
                "baseline": model._baseline_prediction.reshape(-1).astype(np.float64),
            }
        )

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows; NaN is a missing value."""
        rows = self._checked(X, np.float64)
        out = np.zeros((len(rows), len(self._baseline))) + self._baseline
        missing_left, splits = self._arrays["missing_left"], self._arrays["code_split"]
        values = self._arrays["leaf_value"]
        self._walk(add_leaf_values, rows, out, missing_left, splits, self._codes, values)
        if out.shape[1] == 1:
            positive = expit(out[:, 0])
            return np.column_stack([1 - positive, positive])
        # In columns, as scikit-learn has them: sums in another order differ in the last bit.
        proba: NDArray[np.float64] = softmax(np.asfortranarray(out))
        return proba


KINDS: dict[str, Any] = {
    "logistic": Logistic,
    "kernel-logistic": KernelLogistic,
    "forest": Forest,
    "boosting": Boosting,
}


def kind_of(model: Any) -> str | None:
    """Name of an array model's kind; None for any other classifier."""
    return next((name for name, kind in KINDS.items() if type(model) is kind), None)


def from_arrays(kind: str, arrays: Arrays) -> ArrayModel:
    """Rebuild an array model; ValueError if an array is missing, or of wrong type or value."""
    try:
        model: ArrayModel = KINDS[kind](arrays)
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None
    return model


def _codes_fit(model: HistGradientBoostingClassifier) -> bool:
    """Whether every category of a boosting model is a whole number from 0 to 255."""
    _, categories = _columns_inside(model)
    return all(
        ((values >= 0) & (values < CODES) & (values == np.floor(values))).all()
        for values in categories.values()
    )


def _columns_inside(
    model: HistGradientBoostingClassifier,
) -> tuple[NDArray[np.int64], dict[int, NDArray[np.float64]]]:
    """Tell which column each of a boosting model's own columns is, and their categories.

    Inside, categories come first and are numbered in ascending order.
    """
    flags = model.is_categorical_
    if flags is None:
        return np.arange(model.n_features_in_), {}
    order = np.concatenate([np.flatnonzero(flags), np.flatnonzero(~flags)])
    encoder = model._preprocessor.named_transformers_["encoder"]
    categories = {}
    for inside, values in enumerate(encoder.categories_):
        numbers = np.asarray(values, dtype=np.float64)
        categories[inside] = numbers[~np.isnan(numbers)]
    return order, categories


def _left_codes(tree: Any, categories: dict[int, NDArray[np.float64]]) -> NDArray[np.bool_]:
    """Return flags (n_splits, 256) of the codes that go left at a tree's splits by category.

    Codes that training did not have go where missing values go.
    """
    nodes = tree.nodes
    splits = nodes[nodes["is_categorical"].astype(bool) & ~nodes["is_leaf"].astype(bool)]
    flags = np.zeros((len(splits), CODES), dtype=bool)
    for row, split in enumerate(splits):
        known = categories[int(split["feature_idx"])].astype(np.int64)
        inside = unpack_codes(tree.raw_left_cat_bitsets[split["bitset_idx"]][None])[0]
        flags[row] = bool(split["missing_go_to_left"])
        flags[row, known] = inside[: len(known)]
    return flags


def _classes(arrays: Arrays) -> NDArray[np.int64]:
    classes = _integers(arrays, "classes", (None,))
    if not len(classes) or (classes < 0).any() or (np.diff(classes) <= 0).any():
        raise ValueError("classes are not ascending class positions")
    return classes.astype(np.int64)


def _integers(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    _refuse_other_dtype(arrays, name, (np.int32, np.int64))
    return _shaped(arrays, name, shape)


def _floats(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    _refuse_other_dtype(arrays, name, _FLOATS)
    values = _shaped(arrays, name, shape)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity")
    return values


def _shaped(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    values = np.asarray(arrays[name])
    fits = values.ndim == len(shape) and all(
        expected in (None, size) for expected, size in zip(shape, values.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} has shape {values.shape}; expected {shape}")
    return values


def _refuse_other_dtype(arrays: Arrays, name: str, allowed: tuple[Any, ...]) -> None:
    if arrays[name].dtype not in allowed:
        names = " or ".join(np.dtype(kind).name for kind in allowed)
        raise ValueError(f"{name} has type {arrays[name].dtype}; expected {names}")
