"""Fitted regressors as plain arrays that predict, like the classifiers of `array_models`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearwise.estimators.model.array_models import (
    CLASSIFIERS,
    Arrays,
    Layers,
    Nystroem,
    StoredArrays,
    Trees,
    add_leaf_shares,
    add_leaf_values,
    category_splits,
    floats_of,
)


class Linear(StoredArrays):
    """Linear regression."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._coef = floats_of(arrays, "coef", (None,))
        self._intercept = float(floats_of(arrays, "intercept", ()))
        self.n_features_in_ = len(self._coef)

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Targets (n,) of rows (n, n_features_in_)."""
        found: NDArray[np.float64] = X @ self._coef + self._intercept
        return found


class KernelRegression(StoredArrays):
    """Linear regression on a Nystroem approximation of the RBF kernel."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._linear = Linear(arrays)
        self._features = Nystroem(arrays, self._linear.n_features_in_)
        self.n_features_in_ = self._features.n_features_in_

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Targets (n,) of rows."""
        return self._linear.predict(self._features(X))


class NetworkRegression(StoredArrays):
    """Linear layers with ReLU between them and a single output."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._layers = Layers(arrays)
        self.n_features_in_ = self._layers.n_features_in_
        if self._layers.n_outputs != 1:
            raise ValueError(f"the last layer has {self._layers.n_outputs} outputs, not 1")

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Targets (n,) of rows."""
        found: NDArray[np.float64] = self._layers(X)[:, 0]
        return found


class RegressionForest(Trees):
    """A forest: the mean of the values of the leaves that a row reaches."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        values = floats_of(arrays, "leaf_value", (None,))
        self._check_nodes(len(values), np.float32)
        starts, columns = np.arange(len(values) + 1), np.zeros(len(values), dtype=np.int32)
        self._leaves = starts, columns, values

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Targets (n,) of rows."""
        rows = self._checked(X)
        out = np.zeros((len(rows), 1))
        self._walk(add_leaf_shares, rows, out, *self._leaves)
        found: NDArray[np.float64] = out[:, 0] / len(self._arrays["roots"])
        return found


class RegressionBoosting(Trees):
    """Gradient boosting on histograms: a sum of leaf values."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        values = floats_of(arrays, "leaf_value", (None,))
        self._check_nodes(len(values), np.float64)
        self._baseline = float(floats_of(arrays, "baseline", (1,))[0])
        self._leaves = *category_splits(arrays), values

    def predict(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Targets (n,) of rows; NaN is a missing value."""
        rows = self._checked(X)
        out = np.full((len(rows), 1), self._baseline)
        self._walk(add_leaf_values, rows, out, *self._leaves)
        return out[:, 0]


KINDS: dict[str, Any] = CLASSIFIERS | {
    "linear": Linear,
    "kernel-regression": KernelRegression,
    "network-regression": NetworkRegression,
    "regression-forest": RegressionForest,
    "regression-boosting": RegressionBoosting,
}


def kind_of(model: Any) -> str | None:
    """Name of an array model's kind; None for any other classifier or regressor."""
    return next((name for name, kind in KINDS.items() if type(model) is kind), None)


def from_arrays(kind: str, arrays: Arrays) -> Any:
    """Rebuild an array model; ValueError if an array is missing or has a wrong type or value."""
    try:
        return KINDS[kind](arrays)
    except KeyError as error:
        raise ValueError(f"{error} is missing") from None
