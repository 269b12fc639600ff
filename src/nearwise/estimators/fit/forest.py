"""The forest that begins the base of a table, which predicts its own rows out of bag."""

import warnings
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier

from nearwise.estimators.inputs.table import LARGE
from nearwise.functional.threads import coarse_threads

FEW = 1_000  # rows up to which threads cost more than they save
_PARTS = 3  # of the groups; each is left out by a block of trees
_DRAWS = 3  # of such parts


def forest_settings(n_rows: int, *, seed: int, n_jobs: int | None) -> dict[str, Any]:
    """Choose a forest for this many rows: large tables get fewer trees with larger leaves."""
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
    """Fit trees to samples of the rows, and predict each row by those that did not learn it.

    Parameters
    ----------
    view : ndarray of shape (n, width)
    labels : int array of shape (n,)
    weight : ndarray of shape (n,), optional
    options : dict
        Of the forest; see `forest_settings`.
    groups : int array of shape (n,), optional
        Trees learn two thirds of the groups, and predict the rows of the others. By default they
        learn a bootstrap sample of the rows.
    begun : ExtraTreesClassifier, optional
        The first trees of the same forest; of groups all are fitted anew.

    Returns
    -------
    model : ExtraTreesClassifier
    out_of_bag : ndarray of shape (n, n_known)
        Probabilities of ``model.classes_``; NaN or 0 where every tree has learned a row.
    """
    if groups is not None:
        weighted = groups if weight is None else groups[weight > 0]
        if len(np.unique(weighted)) > 1:
            return _of_groups(view, labels, weight, options, groups)
    model = ExtraTreesClassifier(bootstrap=True, oob_score=True, warm_start=True)
    model = (begun or model).set_params(**options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some inputs do not have OOB scores")
        model.fit(view, labels, sample_weight=weight)
    out_of_bag = np.asarray(model.oob_decision_function_)
    return model, out_of_bag if groups is None else np.zeros_like(out_of_bag)


def _of_groups(
    view: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None,
    options: dict[str, Any],
    groups: np.ndarray,
) -> tuple[ExtraTreesClassifier, np.ndarray]:
    names, own = np.unique(groups, return_inverse=True)
    rng = np.random.default_rng(options["random_state"])
    blocks: list[np.ndarray] = []
    weight = np.ones(len(labels)) if weight is None else weight
    weighs = np.bincount(own, weight) > 0  # without weight nothing is learned of a group
    n_parts = min(_PARTS, int(weighs.sum()))
    for _ in range(_DRAWS):
        order = rng.permutation(len(names))
        halves = (np.array_split(order[kind[order]], n_parts) for kind in (weighs, ~weighs))
        blocks += [np.isin(own, np.concatenate(part)) for part in zip(*halves, strict=True)]
    ends = np.linspace(0, options["n_estimators"], len(blocks) + 1).round().astype(int)
    model = ExtraTreesClassifier(warm_start=True).set_params(**options)
    for left_out, end in zip(blocks, ends[1:], strict=True):
        model.set_params(n_estimators=int(end)).fit(
            view, labels, sample_weight=np.where(left_out, 0.0, weight)
        )
    total = np.zeros((len(labels), len(model.classes_)))
    numbers = view.astype(np.float32)
    for left_out, start, end in zip(blocks, ends, ends[1:], strict=False):
        for tree in model.estimators_[start:end]:
            total[left_out] += tree.predict_proba(numbers[left_out])
    return model, total / np.maximum(total.sum(1, keepdims=True), np.finfo(float).tiny)
