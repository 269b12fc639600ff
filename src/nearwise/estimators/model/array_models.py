"""Fitted classifiers as plain arrays that predict: checked when they are made, fast for one row.

scikit-learn stores trees in C structs that crash the process if a file was forged, and its
boosting with categories holds a function that no safe format can store. Arrays are checked before
use, predict one row without scikit-learn's validation, and do not depend on its version.
Measured in docs/explanation/method.md; made by `nearwise.estimators.fit.as_arrays`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.utils.extmath import softmax

from nearwise.functional.kernels import compiled
from nearwise.functional.threads import SMALL_WORK, Threads

CODES = 256  # category codes that a split by value can distinguish: 0 to 255
Arrays = dict[str, NDArray[Any]]
_BLOCK = 4_096  # rows per block of distances
_STEPS = 64  # cost of one walk through a tree, in multiplications
_FLOATS = (np.float32, np.float64)


class StoredArrays:
    """A model stored as arrays; the constructor checks them.

    Raises KeyError for a missing array, ValueError if the arrays do not fit together.
    """

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def to_arrays(self) -> Arrays:
        """Arrays of the model, by name."""
        return dict(self._arrays)


class _Classifier(StoredArrays):
    """An array model of a classifier; its classes are ascending positions."""

    def __init__(self, arrays: Arrays) -> None:
        self.classes_ = _classes(arrays)
        super().__init__(arrays | {"classes": self.classes_})


class Logistic(_Classifier):
    """Logistic regression: coefficients and intercepts."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        rows = 1 if len(self.classes_) <= 2 else len(self.classes_)
        self._coef = floats_of(arrays, "coef", (rows, None))
        self._intercept = floats_of(arrays, "intercept", (rows,))
        self.n_features_in_ = int(self._coef.shape[1])

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        return _proba(X @ self._coef.T + self._intercept)


class Nystroem:
    """A Nystroem approximation of the RBF kernel.

    In float64 even if fitted in float32: the normalization has large entries, and in float32 a row
    alone would get another prediction than the same row in a batch.
    """

    def __init__(self, arrays: Arrays, n_coefficients: int) -> None:
        self._gamma = float(floats_of(arrays, "gamma", ()))
        if self._gamma <= 0:
            raise ValueError(f"gamma is {self._gamma}, which is not positive")
        self._wide = wide = floats_of(arrays, "components", (None, None)).astype(np.float64)
        self._norms = np.einsum("ij,ij->i", wide, wide)
        n, self.n_features_in_ = wide.shape
        self._normalization = floats_of(arrays, "normalization", (n, n)).astype(np.float64)
        if n_coefficients != n:
            raise ValueError(f"coef has {n_coefficients} columns for {n} components")

    def __call__(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Features (n, n_components) of rows."""
        rows = X.astype(np.float64)
        squared = -2 * (rows @ self._wide.T) + np.einsum("ij,ij->i", rows, rows)[:, None]
        kernel = np.exp(np.maximum(squared + self._norms, 0) * -self._gamma)
        features: NDArray[np.float64] = kernel @ self._normalization.T
        return features


class KernelLogistic(_Classifier):
    """Logistic regression on a Nystroem approximation of the RBF kernel."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._logistic = Logistic(arrays)
        self._features = Nystroem(arrays, self._logistic.n_features_in_)
        self.n_features_in_ = self._features.n_features_in_

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        return self._logistic.predict_proba(self._features(X))


class Gaussian(_Classifier):
    """Gaussian classes on principal components: squared distances to the mean of each class."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        n = len(self.classes_)
        self._rotation = floats_of(arrays, "rotation", (None, None))
        self.n_features_in_, width = self._rotation.shape
        self._center = floats_of(arrays, "center", (self.n_features_in_,))
        self._factor = floats_of(arrays, "factor", (None, width, width))
        self._offset = floats_of(arrays, "offset", (n, width))
        self._bias = floats_of(arrays, "bias", (n,))
        if len(self._factor) not in (1, n):
            raise ValueError(f"factor has {len(self._factor)} matrices for {n} classes")

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        scores = np.empty((len(X), len(self.classes_)))
        for start in range(0, len(X), _BLOCK):
            block = slice(start, start + _BLOCK)
            keys = unit_components(X[block], self._center, self._rotation)
            for at, (offset, bias) in enumerate(zip(self._offset, self._bias, strict=True)):
                if at < len(self._factor):
                    turned = keys @ self._factor[at]
                scores[block, at] = bias - np.square(turned - offset).sum(1)
        return _proba(scores) if scores.shape[1] > 1 else np.ones_like(scores)


class Layers:
    """Linear layers with ReLU between them."""

    def __init__(self, arrays: Arrays) -> None:
        self._layers: list[tuple[NDArray[Any], NDArray[Any]]] = []
        width = None
        while f"coef_{len(self._layers)}" in arrays or not self._layers:
            coef = floats_of(arrays, f"coef_{len(self._layers)}", (width, None))
            width = coef.shape[1]
            self._layers.append(
                (coef, floats_of(arrays, f"intercept_{len(self._layers)}", (width,)))
            )
        self.n_features_in_ = int(self._layers[0][0].shape[0])
        self.n_outputs = width

    def __call__(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the outputs (n, n_outputs) of the last layer."""
        (coef, intercept), *others = self._layers
        scores = X @ coef + intercept
        for coef, intercept in others:
            scores = np.maximum(scores, 0) @ coef + intercept
        return scores


class MultilayerPerceptron(_Classifier):
    """Linear layers with ReLU between them."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._layers = Layers(arrays)
        self.n_features_in_ = self._layers.n_features_in_
        n_classes, width = len(self.classes_), self._layers.n_outputs
        if width != (1 if n_classes == 2 else n_classes):
            raise ValueError(f"the last layer has {width} outputs for {n_classes} classes")

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        return _proba(self._layers(X))


class Trees(StoredArrays):
    """Base class of tree ensembles: the node arrays, and the multithreaded walk of rows."""

    _NAMES: tuple[str, ...] = ("roots", "left", "right", "feature", "threshold")

    def _check_nodes(self, n_leaves: int, dtype: Any) -> None:
        arrays = self._arrays
        (self.n_features_in_,) = integers_of(arrays, "n_features", (1,)).tolist()
        roots, left, right, feature = (
            integers_of(arrays, name, (None,)) for name in ("roots", "left", "right", "feature")
        )
        check_nodes(roots, left, right, feature, self.n_features_in_, n_leaves)
        if arrays["threshold"].shape != arrays["left"].shape:
            raise ValueError("there is not one threshold per node")
        if np.isnan(arrays["threshold"]).any():
            raise ValueError("a threshold is NaN")
        refuse_other_dtype(arrays, "threshold", (dtype,))
        self._dtype = dtype

    def _checked(self, X: NDArray[Any]) -> NDArray[Any]:
        rows = np.ascontiguousarray(X, dtype=self._dtype)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise ValueError(f"X has shape {rows.shape}; expected (n, {self.n_features_in_})")
        return rows

    def _walk(
        self, kernel: Any, rows: NDArray[Any], out: NDArray[Any], *more: NDArray[Any]
    ) -> None:
        """Add the trees' predictions to `out` by a kernel; `more` are its arguments after nodes."""
        nodes = [self._arrays[name] for name in self._NAMES]
        work = _STEPS * len(rows) * len(self._arrays["roots"])
        if work <= SMALL_WORK:
            kernel(rows, *nodes, *more, out)
            return
        with Threads(work) as threads:
            threads.run(lambda part: kernel(rows[part], *nodes, *more, out[part]), len(rows))


class Forest(Trees, _Classifier):
    """A forest: the mean of the class shares in the leaves that a row reaches."""

    def __init__(self, arrays: Arrays) -> None:
        start = integers_of(arrays, "leaf_start", (None,))
        _Classifier.__init__(self, arrays)
        self._check_nodes(len(start) - 1, np.float32)
        shares = floats_of(arrays, "leaf_share", (None,))
        classes = integers_of(arrays, "leaf_class", (len(shares),))
        if start[0] != 0 or start[-1] != len(shares) or (np.diff(start) < 0).any():
            raise ValueError("leaf_start does not ascend from 0 to the number of leaf shares")
        if len(shares) and not (classes.min() >= 0 and classes.max() < len(self.classes_)):
            raise ValueError("a leaf names a class that is not there")
        if (shares < 0).any():
            raise ValueError("a leaf has a negative share")

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows."""
        rows = self._checked(X)
        out = np.zeros((len(rows), len(self.classes_)))
        leaves = [self._arrays[name] for name in ("leaf_start", "leaf_class", "leaf_share")]
        self._walk(add_leaf_shares, rows, out, *leaves)
        out /= len(self._arrays["roots"])
        return out


class Boosting(Trees, _Classifier):
    """Gradient boosting on histograms: the sum of the values of the leaves that a row reaches."""

    def __init__(self, arrays: Arrays) -> None:
        values = floats_of(arrays, "leaf_value", (None,))
        _Classifier.__init__(self, arrays)
        self._check_nodes(len(values), np.float64)
        n_classes = len(self.classes_)
        self._splits = category_splits(arrays)
        columns = 1 if n_classes == 2 else n_classes
        baseline = floats_of(arrays, "baseline", (columns,))
        if n_classes < 2 or len(arrays["roots"]) % columns:
            raise ValueError(f"there are {len(arrays['roots'])} trees for {n_classes} classes")
        self._baseline = baseline

    def predict_proba(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Class probabilities of rows; NaN is a missing value."""
        rows = self._checked(X)
        out = np.zeros((len(rows), len(self._baseline))) + self._baseline
        self._walk(add_leaf_values, rows, out, *self._splits, self._arrays["leaf_value"])
        # Column order, as in scikit-learn: sums in another order differ in the last bit.
        return _proba(np.asfortranarray(out))


CLASSIFIERS: dict[str, Any] = {
    "logistic": Logistic,
    "kernel-logistic": KernelLogistic,
    "gaussian": Gaussian,
    "mlp": MultilayerPerceptron,
    "forest": Forest,
    "boosting": Boosting,
}


def category_splits(arrays: Arrays) -> tuple[NDArray[Any], ...]:
    """Check the split arrays of boosted trees and return them for `add_leaf_values`."""
    n_nodes = len(arrays["left"])
    missing, codes = arrays["missing_left"], arrays["left_codes"]
    if missing.dtype != np.uint8 or missing.shape != (n_nodes,):
        raise ValueError("missing_left is not one uint8 per node")
    if codes.dtype != np.int32 or codes.ndim != 2 or codes.shape[1] != CODES // 32:
        raise ValueError(f"left_codes is not int32 of shape (n, {CODES // 32})")
    splits = integers_of(arrays, "code_split", (n_nodes,))
    if not ((splits >= -1) & (splits < len(codes))).all():
        raise ValueError("a split by category has no codes")
    return missing, splits, codes.view(np.uint32)


def check_nodes(
    roots: NDArray[Any],
    left: NDArray[Any],
    right: NDArray[Any],
    feature: NDArray[Any],
    n_features: int,
    n_leaves: int,
) -> None:
    """Refuse trees if a walk could leave its arrays or never end.

    `roots` (n_trees,) are the numbers of the first nodes, ascending from 0. A leaf has -1 on the
    left and its leaf number on the right. Raises ValueError if a tree is empty, or a child
    is not larger than its parent or lies in another tree; if a feature or leaf number is out of
    range, or the arrays differ in length.
    """
    n_nodes = len(left)
    if not len(right) == len(feature) == n_nodes:
        raise ValueError("the arrays of nodes differ in length")
    if not len(roots) or roots[0] != 0 or (np.diff(roots, append=n_nodes) < 1).any():
        raise ValueError("the first nodes of the trees do not ascend from 0")
    number = np.arange(n_nodes)
    end = np.repeat(np.append(roots[1:], n_nodes), np.diff(roots, append=n_nodes))
    leaf = left == -1
    for child in (left, right):
        if not ((child > number) & (child < end))[~leaf].all():
            raise ValueError("a child is not a later node of the same tree")
    if not ((feature >= 0) & (feature < n_features))[~leaf].all():
        raise ValueError(f"a node splits by a column that is none of the {n_features}")
    if not ((right >= 0) & (right < n_leaves))[leaf].all():
        raise ValueError(f"a leaf is none of the {n_leaves} that have values")


@compiled
def add_leaf_shares(  # type: ignore[no-untyped-def]
    rows, roots, left, right, feature, threshold, start, classes, shares, out
):
    """Add to `out` (n, C) the class shares of the leaves that `rows` (n, F) reach, tree by tree.

    The shares of leaf i are ``shares[start[i]:start[i + 1]]``, of the classes at these positions.
    """
    for tree in range(roots.shape[0]):
        for i in range(rows.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                go_left = rows[i, feature[node]] <= threshold[node]
                node = left[node] if go_left else right[node]
            leaf = right[node]
            for at in range(start[leaf], start[leaf + 1]):
                out[i, classes[at]] += shares[at]


@compiled
def add_leaf_values(  # type: ignore[no-untyped-def]
    rows, roots, left, right, feature, threshold, missing_left, left_codes, codes, values, out
):
    """Add to `out` (n, K) the values of the leaves that `rows` (n, F) reach.

    Tree t adds to column t modulo K. A node with ``left_codes[node] >= 0`` splits by category:
    codes with their bit set in ``codes[left_codes[node]]`` go left. NaN goes left if
    ``missing_left[node]`` is not 0.
    """
    n_columns = out.shape[1]
    for tree in range(roots.shape[0]):
        for i in range(rows.shape[0]):
            node = roots[tree]
            while left[node] >= 0:
                value = rows[i, feature[node]]
                if np.isnan(value):
                    go_left = missing_left[node] != 0
                elif left_codes[node] >= 0:
                    if value < 0 or value >= 256:
                        go_left = missing_left[node] != 0
                    else:
                        code = int(value)
                        word = codes[left_codes[node], code >> 5]
                        go_left = (word >> np.uint32(code & 31)) & np.uint32(1) != 0
                else:
                    go_left = value <= threshold[node]
                node = left[node] if go_left else right[node]
            out[i, tree % n_columns] += values[right[node]]


def unit_components(
    X: NDArray[Any], center: NDArray[Any], rotation: NDArray[Any]
) -> NDArray[np.float64]:
    """Components (n, p) of rows (n, d), scaled to unit length; `rotation` (d, p)."""
    keys = (X.astype(np.float64) - center) @ rotation
    keys /= np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-12)
    found: NDArray[np.float64] = keys
    return found


def _proba(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Class probabilities from scores: one column for two classes, else one per class."""
    if scores.shape[1] == 1:
        positive = expit(scores[:, 0])
        return np.column_stack([1 - positive, positive])
    proba: NDArray[np.float64] = softmax(scores, copy=False)
    return proba


def _classes(arrays: Arrays) -> NDArray[np.int64]:
    classes = integers_of(arrays, "classes", (None,))
    if not len(classes) or (classes < 0).any() or (np.diff(classes) <= 0).any():
        raise ValueError("classes are not ascending class positions")
    return classes.astype(np.int64)


def integers_of(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return an array after checking that it holds integers of a shape; else ValueError."""
    refuse_other_dtype(arrays, name, (np.int32, np.int64))
    return _shaped(arrays, name, shape)


def floats_of(arrays: Arrays, name: str, shape: tuple[int | None, ...]) -> NDArray[Any]:
    """Return an array after checking that it holds finite floats of a shape; else ValueError."""
    refuse_other_dtype(arrays, name, _FLOATS)
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


def refuse_other_dtype(arrays: Arrays, name: str, allowed: tuple[Any, ...]) -> None:
    """Raise ValueError if the dtype of an array is not allowed."""
    if arrays[name].dtype not in allowed:
        names = " or ".join(np.dtype(kind).name for kind in allowed)
        raise ValueError(f"{name} has type {arrays[name].dtype}; expected {names}")
