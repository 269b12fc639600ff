"""What explains a replay: the leak, the collapse, the error against k, norms and orders."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise_lab.experiments.study.evaluate import key_norms, same_order
from nearwise_lab.experiments.study.model import unit
from nearwise_lab.experiments.study.neighbors import (
    attention_vote,
    attention_weights,
    look_up,
    purity,
    training_neighbors,
)
from nearwise_lab.experiments.study.replay import TrainedRun

CURVE_SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
FITTED_UP_TO = 50  # a + b / k is claimed for k far below the size of a class
_MAP_ROWS = 1000


@dataclass(frozen=True)
class HyperbolaFit:
    """Least-squares fit of ``a + b / k``.

    Attributes
    ----------
    a, b : float
        Error at infinite k, and what a single neighbor adds.
    r2 : float
        Share of the variance explained; 1 where the errors are constant.
    """

    a: float
    b: float
    r2: float


def fit_hyperbola(sizes: Sequence[int], errors: Sequence[float]) -> HyperbolaFit:
    """Fit errors against neighborhood sizes by ``a + b / k``.

    Raises
    ------
    ValueError
        If there are fewer than two different sizes, or one is below 1.
    """
    k, error = np.asarray(sizes, dtype=np.float64), np.asarray(errors, dtype=np.float64)
    if len(np.unique(k)) < 2 or k.min() < 1 or k.shape != error.shape:
        raise ValueError(
            f"a + b / k needs errors of two or more different sizes from 1 on, got {list(sizes)} "
            f"and {len(error)} errors."
        )
    columns = np.stack([np.ones_like(k), 1 / k], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, error, rcond=None)
    residual = float(((error - columns @ [a, b]) ** 2).sum())
    total = float(((error - error.mean()) ** 2).sum())
    return HyperbolaFit(float(a), float(b), 1.0 if total < 1e-18 else 1 - residual / total)


def error_against_k(run: TrainedRun, sizes: Sequence[int] = CURVE_SIZES) -> dict[str, Any]:
    """Error of the uniform vote at each size, the fitted ``a + b / k`` and the best size.

    Returns
    -------
    finding : dict
        k, error (lists), a, b, r2, fitted_up_to (sizes up to 50 are fitted), best_k (the smallest
        of the best), sqrt_n.
    """
    n = len(run.memory.keys)
    kept = [k for k in sizes if k <= n]
    found = look_up(run.model, run.inputs.x_test, run.memory, kept[-1], run.preset.precision)
    return error_curve(
        run.memory.labels[found.indices].cpu(), run.inputs.y_test, kept, n, run.inputs.n_classes
    )


def error_curve(
    neighbor_labels: Tensor, y: Tensor, sizes: Sequence[int], n_memory: int, n_classes: int
) -> dict[str, Any]:
    """Error of the uniform vote of the first k of `neighbor_labels` (n, k_max) at each size.

    `sizes` ascend; the finding is that of `error_against_k`.
    """
    votes = torch.zeros(len(y), n_classes)
    errors, start = [], 0
    for k in sizes:
        added = neighbor_labels[:, start:k]
        votes.scatter_add_(1, added, torch.ones(added.shape))
        errors.append(float((votes.argmax(dim=1) != y).float().mean()))
        start = k
    finding: dict[str, Any] = {"k": list(sizes), "error": errors}
    n_fitted = sum(k <= FITTED_UP_TO for k in sizes)
    if n_fitted > 1:
        fit = fit_hyperbola(sizes[:n_fitted], errors[:n_fitted])
        finding |= {"a": fit.a, "b": fit.b, "r2": fit.r2, "fitted_up_to": sizes[n_fitted - 1]}
    return finding | {"best_k": sizes[int(np.argmin(errors))], "sqrt_n": math.sqrt(n_memory)}


def leak(run: TrainedRun) -> dict[str, float]:
    """Loss of the vote on the training rows, with each among its own neighbors and without.

    Returns
    -------
    finding : dict
        knn_loss_with_self, knn_loss_without_self (nats per row, plain labels, unmixed and
        unaugmented rows), self_weight (mean attention on oneself) with its standard error over the
        training rows (self_weight_error), and its even share 1 / k.
    """
    memory, k = run.memory, run.preset.n_neighbors
    finding: dict[str, float] = {}
    for name, leave in (("with", False), ("without", True)):
        found = training_neighbors(memory.keys, k, leave_self_out=leave)
        proba = attention_vote(run.model, found, memory)
        rows = torch.arange(len(proba), device=proba.device)
        finding[f"knn_loss_{name}_self"] = float(-proba[rows, memory.labels].log().mean())
        if not leave:
            own = found.indices == rows[:, None]
            weights = attention_weights(run.model, found, memory)
            on_self = (weights * own).sum(dim=1)
            finding["self_weight"] = float(on_self.mean())
            finding["self_weight_error"] = float(on_self.std() / math.sqrt(len(on_self)))
            finding["even_share"] = 1 / found.indices.shape[1]
    return finding


def collapse(run: TrainedRun) -> dict[str, float]:
    """How far the neighbors of a test row agree, beside how often they are right.

    Returns
    -------
    finding : dict
        purity (mean share of the most common label), accuracy of the uniform vote, excess
        (purity - accuracy: what the neighbors agree on without being right), memory_purity (mean
        share of a remembered row's neighbors, itself left out, that carry its label),
        attention_entropy over log k.
    """
    found = look_up(
        run.model, run.inputs.x_test, run.memory, run.preset.n_neighbors, run.preset.precision
    )
    agreed = purity(found, run.memory.labels, run.model.n_classes)
    weights = attention_weights(run.model, found, run.memory)
    k = found.indices.shape[1]
    entropy = float(torch.special.entr(weights).sum(dim=1).mean()) / math.log(max(k, 2))
    labels = run.memory.labels[found.indices].cpu()
    counts = torch.zeros(len(labels), run.model.n_classes)
    counts.scatter_add_(1, labels, torch.ones(labels.shape))
    accuracy = float((counts.argmax(dim=1) == run.inputs.y_test).float().mean())
    remembered = training_neighbors(
        run.memory.keys, run.preset.n_neighbors, leave_self_out=True
    ).indices
    alike = run.memory.labels[remembered] == run.memory.labels[:, None]
    return {
        "purity": agreed,
        "accuracy": accuracy,
        "excess": agreed - accuracy,
        "memory_purity": float(alike.float().mean()),
        "attention_entropy": entropy,
    }


def classifier_findings(
    neighbor_labels: Tensor, y: Tensor, n_memory: int, n_classes: int, model: Any, k: int = 16
) -> dict[str, dict[str, Any]]:
    """Error against k, purity and temperature of a fitted `AttnKNNClassifier`.

    Parameters
    ----------
    neighbor_labels : int64 Tensor of shape (n_test, k_max)
        Labels of the rows that the classifier finds nearest, nearest first.
    y : int64 Tensor of shape (n_test,)
    n_memory, n_classes : int
    model : AttnKNNClassifier
    k : int, default=16
        Neighbors of the purity.
    """
    k_max = neighbor_labels.shape[1]
    k = min(k, k_max)
    sizes = [size for size in CURVE_SIZES if size <= k_max]
    near = neighbor_labels[:, :k]
    counts = torch.zeros(len(y), n_classes).scatter_add_(1, near, torch.ones(near.shape))
    agreed = float((counts.max(dim=1).values / k).mean())
    accuracy = float((counts.argmax(dim=1) == y).float().mean())
    return {
        "error-against-k": error_curve(neighbor_labels, y, sizes, n_memory, n_classes),
        "collapse": {"purity": agreed, "accuracy": accuracy, "excess": agreed - accuracy, "k": k},
        "temperatures": {"temperatures": [float(model.report_.temperature)]},
    }


def sphere(run: TrainedRun) -> dict[str, Any]:
    """Norms of the memory's keys, and whether inner product and L2 order neighbors alike."""
    found = look_up(run.model, run.inputs.x_test, run.memory, 1, run.preset.precision)
    k = min(run.preset.n_neighbors, len(run.memory.keys))
    return {
        "norms": key_norms(run.memory.keys),
        "k": k,
        "same_order": same_order(found.query, run.memory.keys, k),
    }


def memory_map(run: TrainedRun, n_rows: int = _MAP_ROWS) -> dict[str, Any]:
    """Two principal components of up to `n_rows` remembered and as many test keys, for a figure.

    Returns
    -------
    drawn : dict
        memory and test: lists of [x, y]; memory_label and test_label: class positions; classes;
        explained: share of the keys' variance in the two components.
    """
    found = look_up(run.model, run.inputs.x_test[:n_rows], run.memory, 1, run.preset.precision)
    keys, labels = unit(run.memory.keys).cpu(), run.memory.labels.cpu()
    y, classes = run.inputs.y_test[:n_rows], run.inputs.classes
    return _drawn_map(keys, labels, found.query.cpu(), y, classes, n_rows)


def classifier_map(
    model: Any, rows: Any, y: Tensor, classes: Any, n_rows: int = _MAP_ROWS
) -> dict[str, Any]:
    """Draw the map that `memory_map` draws, of the memory of a fitted classifier.

    Keys are those of the trained space, where there is one, else of the features.

    Parameters
    ----------
    model : AttnKNNClassifier
    rows : array of shape (n_test, ...)
        Test rows as the classifier takes them.
    y : int64 Tensor of shape (n_test,)
        Class positions of the test rows.
    classes : sequence
        Names by position.
    """
    bank = model.memory_
    space = "trained" if "trained" in bank.keys else "features"
    labels = bank.labels.argmax(dim=1) if bank.is_soft else bank.labels
    asked = torch.from_numpy(model.keys(rows[:n_rows], space))
    drawn = _drawn_map(bank.keys[space].float(), labels, asked, y[:n_rows], classes, n_rows)
    return drawn | {"space": space}


def _drawn_map(
    keys: Tensor, labels: Tensor, asked: Tensor, y: Tensor, classes: Any, n_rows: int
) -> dict[str, Any]:
    step = max(1, len(keys) // n_rows)
    shown = keys[::step][:n_rows]
    center = shown.mean(dim=0)
    _, spread, axes = torch.linalg.svd(shown - center, full_matrices=False)
    share = spread.square()

    def place(points: Tensor) -> list[list[float]]:
        placed: list[list[float]] = ((points - center) @ axes[:2].T).round(decimals=4).tolist()
        return placed

    return {
        "memory": place(shown),
        "memory_label": labels[::step][:n_rows].tolist(),
        "test": place(asked),
        "test_label": y.tolist(),
        "classes": [str(c) for c in classes],
        "explained": float(share[:2].sum() / share.sum()),
    }
