"""Conversion of fitted scikit-learn classifiers and regressors to array models."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline

from nearwise.estimators.model.array_models import (
    CODES,
    Arrays,
    Boosting,
    Forest,
    KernelLogistic,
    Logistic,
    MultilayerPerceptron,
)
from nearwise.estimators.model.array_regressors import (
    KernelRegression,
    Linear,
    NetworkRegression,
    RegressionBoosting,
    RegressionForest,
)

_WORDS = CODES // 32


def as_arrays(model: Any) -> Any:
    """Convert a fitted scikit-learn classifier (of class positions) or regressor to an array model.

    Predictions are equal to the last bit, those of naive Bayes up to rounding. Returns `model`
    itself if there is no array form.
    """
    kind = type(model)
    if kind is LogisticRegression and model.solver != "liblinear":
        return Logistic(_of_classes(model, {"coef": model.coef_, "intercept": model.intercept_}))
    if kind is MultinomialNB:
        return Logistic(_of_classes(model, _as_linear(model)))
    if kind in (Ridge, RidgeCV) and np.ndim(model.coef_) == 1:
        return Linear(_linear(model))
    if kind in (ExtraTreesClassifier, RandomForestClassifier) and model.n_outputs_ == 1:
        return Forest(_of_classes(model, forest_nodes(model) | _leaf_shares(model)))
    if kind in (ExtraTreesRegressor, RandomForestRegressor) and model.n_outputs_ == 1:
        return RegressionForest(forest_nodes(model) | {"leaf_value": _leaves(model)[:, 0]})
    if kind is HistGradientBoostingClassifier and _codes_fit(model):
        return Boosting(_of_classes(model, _boosted(model)))
    if kind is HistGradientBoostingRegressor and _codes_fit(model):
        return RegressionBoosting(_boosted(model))
    if kind is MLPClassifier and model.activation == "relu":
        return MultilayerPerceptron(_of_classes(model, _layers(model)))
    if kind is MLPRegressor and model.activation == "relu" and model.n_outputs_ == 1:
        return NetworkRegression(_layers(model))
    return _on_kernel(model) if kind is Pipeline else model


def one_output(model: Any, nodes: Arrays, output: int) -> Forest:
    """Convert one output of a forest of several; `nodes` are the result of `forest_nodes`."""
    classes = np.asarray(model.classes_[output], dtype=np.int64)
    return Forest(nodes | _leaf_shares(model, output) | {"classes": classes})


def _on_kernel(model: Pipeline) -> Any:
    """Convert a linear model on an RBF kernel with a fixed width to an array model."""
    kernel, linear = model[0], as_arrays(model[-1])
    on_kernel = {Logistic: KernelLogistic, Linear: KernelRegression}.get(type(linear))
    if on_kernel is None or len(model) != 2 or type(kernel) is not Nystroem:
        return model
    if kernel.kernel != "rbf" or kernel.gamma is None:
        return model
    return on_kernel(_kernel(kernel) | linear.to_arrays())


def _of_classes(model: Any, arrays: Arrays) -> Arrays:
    return arrays | {"classes": np.asarray(model.classes_, dtype=np.int64)}


def _as_linear(model: MultinomialNB) -> Arrays:
    """Coefficients of naive Bayes; of the second of two classes against the first."""
    coef, intercept = model.feature_log_prob_, model.class_log_prior_
    if len(model.classes_) == 2:
        coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
    return {"coef": coef, "intercept": intercept}


def _linear(model: Ridge | RidgeCV) -> Arrays:
    return {"coef": model.coef_, "intercept": np.float64(model.intercept_)}


def _kernel(kernel: Nystroem) -> Arrays:
    return {
        "components": kernel.components_,
        "normalization": kernel.normalization_,
        "gamma": np.float64(kernel.gamma),
    }


def _layers(model: MLPClassifier | MLPRegressor) -> Arrays:
    arrays: Arrays = {}
    for i, (coef, intercept) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        arrays |= {f"coef_{i}": coef, f"intercept_{i}": intercept}
    return arrays


def _leaves(model: Any, output: int = 0) -> NDArray[Any]:
    """Class shares, or the value, in each leaf of all trees of a forest, (n_leaves, C)."""
    trees = [estimator.tree_ for estimator in model.estimators_]
    return np.concatenate([tree.value[tree.children_left < 0, output] for tree in trees])


def _leaf_shares(model: Any, output: int = 0) -> Arrays:
    """Class shares of the leaves, without the zeros."""
    shares = _leaves(model, output)
    which, classes = np.nonzero(shares)
    return {
        "leaf_start": np.searchsorted(which, np.arange(len(shares) + 1)).astype(np.int64),
        "leaf_class": classes.astype(np.int32),
        "leaf_share": shares[which, classes],
    }


def forest_nodes(model: Any) -> Arrays:
    """Concatenated nodes of all trees of a forest."""
    trees = [estimator.tree_ for estimator in model.estimators_]
    roots = np.cumsum([0] + [tree.node_count for tree in trees[:-1]])
    left = np.concatenate([tree.children_left for tree in trees])
    right = np.concatenate([tree.children_right for tree in trees])
    feature = np.concatenate([tree.feature for tree in trees])
    threshold = np.concatenate([tree.threshold for tree in trees])
    leaf = left < 0
    shift = np.repeat(roots, [tree.node_count for tree in trees])
    return {
        "n_features": np.array([model.n_features_in_], dtype=np.int64),
        "roots": roots.astype(np.int64),
        "left": np.where(leaf, -1, left + shift).astype(np.int32),
        "right": np.where(leaf, np.cumsum(leaf) - 1, right + shift).astype(np.int32),
        "feature": np.where(leaf, 0, feature).astype(np.int32),
        "threshold": round_down(np.where(leaf, 0.0, threshold)),
    }


def _boosted(model: HistGradientBoostingClassifier | HistGradientBoostingRegressor) -> Arrays:
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
    return {
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


def _codes_fit(model: Any) -> bool:
    """Whether every category of a boosting model is a whole number from 0 to 255."""
    _, categories = _columns_inside(model)
    return all(
        ((values >= 0) & (values < CODES) & (values == np.floor(values))).all()
        for values in categories.values()
    )


def _columns_inside(
    model: Any,
) -> tuple[NDArray[np.int64], dict[int, NDArray[np.float64]]]:
    """Original position of each internal column of a boosting model, and the categories.

    Internally, category columns come first, and categories are numbered in ascending order.
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

    Codes that training did not have follow the missing values.
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


def pack_codes(is_left: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack flags (n, 256) into the bits that `add_leaf_values` reads, uint32 (n, 8)."""
    bits = is_left.reshape(-1, _WORDS, 32).astype(np.uint32)
    packed: NDArray[np.uint32] = (bits << np.arange(32, dtype=np.uint32)).sum(2, dtype=np.uint32)
    return packed


def unpack_codes(words: NDArray[Any]) -> NDArray[np.bool_]:
    """Undo `pack_codes`: words (n, 8) to flags (n, 256)."""
    bits = words.astype(np.uint32)[:, :, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return bits.astype(bool).reshape(len(words), CODES)


def round_down(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round each value down to a float32.

    A float32 is at most a float64 threshold if and only if it is at most the rounded threshold.
    """
    rounded = values.astype(np.float32)
    below = np.nextafter(rounded, np.float32(-np.inf))
    return np.where(rounded.astype(np.float64) > values, below, rounded).astype(np.float32)
