"""Forest of the base of a table, with out-of-bag predictions of its training rows."""

import warnings
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

from nearwise.estimators.inputs.table import LARGE
from nearwise.functional.threads import coarse_threads

FEW = 1_000  # most rows for a fit in one thread
_PARTS = 3  # parts of the groups; each is left out by a block of trees
_DRAWS = 3  # random partitions of the groups


def forest_settings(n_rows: int, *, seed: int, n_jobs: int | None) -> dict[str, Any]:
    """Choose settings of a forest: large tables get fewer trees with larger leaves."""
    leaf, trees = (2, 120) if n_rows > LARGE else (1, 200)
    return {
        "n_estimators": trees,
        "min_samples_leaf": leaf,
        "n_jobs": 1 if n_jobs is None and n_rows <= FEW else n_jobs or coarse_threads(),
        "random_state": seed,
    }


def fit_forest(
    view: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    options: dict[str, Any],
    *,
    groups: np.ndarray | None = None,
    begun: ExtraTreesClassifier | None = None,
) -> tuple[ExtraTreesClassifier, np.ndarray]:
    """Fit a forest and its out-of-bag predictions of the training rows.

    Parameters
    ----------
    view : ndarray of shape (n, width)
    labels : int array of shape (n,)
    weight : ndarray of shape (n,), optional
    options : dict
        Settings of the forest; see `forest_settings`.
    groups : int array of shape (n,), optional
        Each tree is trained on two thirds of the groups, and predicts the others. By default a
        tree is trained on a bootstrap sample of the rows.
    begun : ExtraTreesClassifier, optional
        Forest with the first trees, to be extended; ignored with groups.

    Returns
    -------
    model : ExtraTreesClassifier
    out_of_bag : ndarray of shape (n, n_known)
        Probabilities of ``model.classes_``; NaN or 0 if every tree was trained on the row.
    """
    if groups is not None:
        weighted = groups if weight is None else groups[weight > 0]
        if len(np.unique(weighted)) > 1:
            forest = ExtraTreesClassifier(warm_start=True).set_params(**options)
            total = _of_groups(forest, view, labels, weight, groups)[0]
            return forest, total / np.maximum(total.sum(1, keepdims=True), np.finfo(float).tiny)
    model = ExtraTreesClassifier(bootstrap=True, oob_score=True, warm_start=True)
    model = (begun or model).set_params(**options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores")
        model.fit(view, labels, sample_weight=weight)
    out_of_bag = np.asarray(model.oob_decision_function_)
    return model, out_of_bag if groups is None else np.zeros_like(out_of_bag)


def _of_groups(
    model: ExtraTreesClassifier | ExtraTreesRegressor,
    view: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    groups: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit blocks of trees, each without some groups; sums and counts of left-out predictions."""
    options = model.get_params()
    names, own = np.unique(groups, return_inverse=True)
    rng = np.random.default_rng(options["random_state"])
    blocks: list[np.ndarray] = []
    weight = np.ones(len(labels)) if weight is None else weight
    weighs = np.bincount(own, weight) > 0  # groups without weight are not trained on
    n_parts = min(_PARTS, int(weighs.sum()))
    for _ in range(_DRAWS):
        order = rng.permutation(len(names))
        halves = (np.array_split(order[kind[order]], n_parts) for kind in (weighs, ~weighs))
        blocks += [np.isin(own, np.concatenate(part)) for part in zip(*halves, strict=True)]
    ends = np.linspace(0, options["n_estimators"], len(blocks) + 1).round().astype(int)
    for left_out, end in zip(blocks, ends[1:], strict=True):
        model.set_params(n_estimators=int(end)).fit(
            view, labels, sample_weight=np.where(left_out, 0.0, weight)
        )
    counts, numbers = np.zeros(len(labels)), view.astype(np.float32)
    total = np.zeros((len(labels), len(getattr(model, "classes_", [0]))))
    for left_out, start, end in zip(blocks, ends, ends[1:], strict=False):
        counts[left_out] += end - start
        for tree in model.estimators_[start:end]:
            if isinstance(model, ExtraTreesClassifier):
                total[left_out] += tree.predict_proba(numbers[left_out])
            else:
                total[left_out, 0] += tree.predict(numbers[left_out])
    return total, counts


def fit_number_forest(
    view: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray | None,
    options: dict[str, Any],
    groups: np.ndarray | None,
) -> tuple[ExtraTreesRegressor, np.ndarray]:
    """Fit a regression forest and its out-of-bag predictions; the mean for rows in all samples."""
    mean = float(np.average(targets, weights=weight))
    if groups is not None and len(np.unique(groups)) > 1:
        forest = ExtraTreesRegressor(warm_start=True).set_params(**options)
        total, counts = _of_groups(forest, view, targets, weight, groups)
        return forest, np.where(counts > 0, total[:, 0] / np.maximum(counts, 1), mean)
    model = ExtraTreesRegressor(bootstrap=True, oob_score=True).set_params(**options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores")
        model.fit(view, targets, sample_weight=weight)
    # scikit-learn predicts 0 for a row in every sample.
    in_all = np.ones(len(targets), dtype=bool)
    for sample in model.estimators_samples_:
        in_all[np.setdiff1d(np.flatnonzero(in_all), sample)] = False
    return model, np.where(in_all, mean, model.oob_prediction_)
