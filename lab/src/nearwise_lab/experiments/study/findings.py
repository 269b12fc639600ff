"""Diagnostics of a run: the leak, the collapse, the error against k, norms, a map, a gallery."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import linregress
from sklearn.decomposition import PCA
from torch import Tensor

from nearwise.functional import topk_neighbors
from nearwise_lab.experiments.study.inputs import StudyInputs, as_images
from nearwise_lab.experiments.study.model import training_neighbors, unit
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.results.gallery import make_gallery
from nearwise_lab.results.measures import Predictions

CURVE_SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
FITTED_UP_TO = 50  # a + b / k is claimed for k far below the size of a class
_MAP_ROWS = 1000
_PURITY_NEIGHBORS = 16


class HyperbolaFit(NamedTuple):
    """Fit of ``a + b / k``; `r2`, the share of variance explained, is 1 of constant errors."""

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
    if len({*sizes}) < 2 or min(sizes) < 1 or len(sizes) != len(errors):
        raise ValueError(
            f"a + b / k needs errors of two or more different sizes from 1 on, got {list(sizes)} "
            f"and {len(errors)} errors."
        )
    if len({*errors}) == 1:
        return HyperbolaFit(float(errors[0]), 0.0, 1.0)
    line = linregress(1 / np.asarray(sizes, dtype=np.float64), errors)
    return HyperbolaFit(float(line.intercept), float(line.slope), float(line.rvalue**2))


def error_against_k(run: TrainedRun) -> dict[str, Any]:
    """`error_curve` of a replay's test rows."""
    found = run.find(run.inputs.x_test, CURVE_SIZES[-1])
    labels = run.memory.labels[found.indices].cpu()
    return error_curve(labels, run.inputs.y_test, len(run.memory.keys), run.inputs.n_classes)


def error_curve(
    neighbor_labels: Tensor, y: Tensor, n_memory: int, n_classes: int
) -> dict[str, Any]:
    """Error of the uniform vote of the first k of `neighbor_labels` (n, k_max) at each size.

    Sizes up to 50 are fitted by ``a + b / k``; `best_k` is the smallest of the best.
    """
    sizes = [k for k in CURVE_SIZES if k <= neighbor_labels.shape[1]]
    votes = [_counts(neighbor_labels[:, :k], n_classes) for k in sizes]
    errors = [float((counts.argmax(dim=1) != y).float().mean()) for counts in votes]
    finding: dict[str, Any] = {"k": sizes, "error": errors}
    n_fitted = sum(k <= FITTED_UP_TO for k in sizes)
    if n_fitted > 1:
        fit = fit_hyperbola(sizes[:n_fitted], errors[:n_fitted])
        finding |= {**fit._asdict(), "fitted_up_to": sizes[n_fitted - 1]}
    return finding | {"best_k": sizes[int(np.argmin(errors))], "sqrt_n": math.sqrt(n_memory)}


def leak(run: TrainedRun) -> dict[str, float]:
    """Loss of the vote on the training rows, with and without each row among its neighbors.

    In nats per row, of plain labels and unmixed, unaugmented rows. `self_weight` is the mean
    attention on oneself, with its standard error over rows and its even share 1 / k.
    """
    memory, k = run.memory, run.preset.n_neighbors
    finding: dict[str, float] = {}
    for name, leave in (("with", False), ("without", True)):
        found = training_neighbors(memory.keys, k, leave_self_out=leave)
        proba = run.vote(found)
        rows = torch.arange(len(proba), device=proba.device)
        finding[f"knn_loss_{name}_self"] = float(-proba[rows, memory.labels].log().mean())
        if not leave:
            on_self = (run.weights(found) * (found.indices == rows[:, None])).sum(dim=1)
            finding["self_weight"] = float(on_self.mean())
            finding["self_weight_error"] = float(on_self.std() / math.sqrt(len(on_self)))
            finding["even_share"] = 1 / found.indices.shape[1]
    return finding


def collapse(run: TrainedRun) -> dict[str, float]:
    """Compare the purity of test rows' neighbors with the accuracy of their vote.

    purity is the mean share of the most common label, excess what it is over the accuracy of the
    uniform vote, memory_purity the mean share of a remembered row's neighbors, itself left out,
    that carry its label; attention_entropy is over log k.
    """
    memory, k = run.memory, run.preset.n_neighbors
    found = run.find(run.inputs.x_test, k)
    weights = run.weights(found)
    entropy = float(torch.special.entr(weights).sum(dim=1).mean())
    remembered = training_neighbors(memory.keys, k, leave_self_out=True).indices
    alike = memory.labels[remembered] == memory.labels[:, None]
    return {
        **_agreement(memory.labels[found.indices].cpu(), run.inputs),
        "memory_purity": float(alike.float().mean()),
        "attention_entropy": entropy / math.log(max(weights.shape[1], 2)),
    }


def _agreement(labels: Tensor, inputs: StudyInputs) -> dict[str, float]:
    counts = _counts(labels, inputs.n_classes)
    agreed = float((counts.amax(dim=1) / labels.shape[1]).mean())
    accuracy = float((counts.argmax(dim=1) == inputs.y_test).float().mean())
    return {"purity": agreed, "accuracy": accuracy, "excess": agreed - accuracy}


def _counts(labels: Tensor, n_classes: int) -> Tensor:
    return torch.zeros(len(labels), n_classes).scatter_add_(1, labels, torch.ones(labels.shape))


def sphere(run: TrainedRun) -> dict[str, Any]:
    """Norms of the memory's embeddings; agreement of inner-product and L2 neighbor orders.

    On the sphere ``||q - k||^2 = 2 - 2 q.k``, so only ties can differ; keys are scaled to unit
    length for the order.
    """
    norms, k = run.memory.keys.norm(dim=1), min(run.preset.n_neighbors, len(run.memory.keys))
    query, keys = unit(run.find(run.inputs.x_test, 1).query), unit(run.memory.keys)
    by_distance = topk_neighbors(query, keys, k, metric="euclidean").indices
    by_product = topk_neighbors(query, keys, k, metric="inner_product").indices
    return {
        "norms": {name: float(getattr(norms, name)()) for name in ("mean", "std", "min", "max")},
        "k": k,
        "same_order": float((by_distance == by_product).all(dim=1).float().mean()),
    }


def temperatures(run: TrainedRun) -> dict[str, list[float]]:
    """Learned temperatures of the heads."""
    return {"temperatures": run.model.attention.temperature.tolist()}


# What the experiment "theory" finds of a replay, by condition.
REPLAY_FINDINGS: dict[str, Callable[[TrainedRun], dict[str, Any]]] = {
    "norms": sphere,
    "error-against-k": error_against_k,
    "temperatures": temperatures,
    "collapse": collapse,
    "leak": leak,
}
CLASSIFIER_FINDINGS = ("error-against-k", "collapse", "temperatures")


def classifier_findings(model: Any, inputs: StudyInputs) -> dict[str, dict[str, Any]]:
    """Find `CLASSIFIER_FINDINGS` of an `AttnKNNClassifier` fitted to these training rows."""
    n_memory = len(model.memory_)
    _, ids = model.kneighbors(inputs.X_test, n_neighbors=min(CURVE_SIZES[-1], n_memory))
    labels = inputs.y_train[torch.from_numpy(ids)]
    near = labels[:, :_PURITY_NEIGHBORS]
    return {
        "error-against-k": error_curve(labels, inputs.y_test, n_memory, inputs.n_classes),
        "collapse": _agreement(near, inputs) | {"k": near.shape[1]},
        "temperatures": {"temperatures": [float(model.report_.temperature)]},
    }


def memory_map(run: TrainedRun) -> dict[str, Any]:
    """Two principal components of up to 1000 remembered and as many test keys, for a figure.

    Labels are class positions; `explained` is the share of variance in the two components.
    """
    asked = run.find(run.inputs.x_test[:_MAP_ROWS], 1).query.cpu()
    keys, labels = unit(run.memory.keys).cpu(), run.memory.labels.cpu()
    return _drawn_map(keys, labels, asked, run.inputs)


def classifier_map(model: Any, inputs: StudyInputs) -> dict[str, Any]:
    """Draw the map that `memory_map` draws, of the memory of a fitted classifier.

    Keys are those of the trained space, where there is one, else of the features.
    """
    bank = model.memory_
    space = "trained" if "trained" in bank.keys else "features"
    labels = bank.labels.argmax(dim=1) if bank.is_soft else bank.labels
    asked = torch.from_numpy(model.keys(inputs.X_test[:_MAP_ROWS], space))
    return _drawn_map(bank.keys[space].float(), labels, asked, inputs) | {"space": space}


def _drawn_map(keys: Tensor, labels: Tensor, asked: Tensor, inputs: StudyInputs) -> dict[str, Any]:
    every = slice(None, None, max(1, len(keys) // _MAP_ROWS))
    shown = keys[every][:_MAP_ROWS].numpy()
    plane = PCA(2, svd_solver="full").fit(shown)
    memory, test = (plane.transform(some).round(4).tolist() for some in (shown, asked.numpy()))
    return {
        "memory": memory,
        "memory_label": labels[every][:_MAP_ROWS].tolist(),
        "test": test,
        "test_label": inputs.y_test[:_MAP_ROWS].tolist(),
        "classes": [str(c) for c in inputs.classes],
        "explained": float(plane.explained_variance_ratio_.sum()),
    }


def image_gallery(model: Any, inputs: StudyInputs, proba: np.ndarray) -> dict[str, Any]:
    """Wrong and uncertain test images as input of the networks, with their neighbors.

    `model` explains images; `proba` (n_test, n_classes) is its prediction.
    """
    y = inputs.y_test.numpy()
    seen = replace(
        inputs.dataset, X=as_images(inputs.x_test), y=inputs.classes[y], test_index=None,
        strata=None, views={}, row_names=None,
    )  # fmt: skip
    predictions = Predictions(y, proba, np.arange(len(y)), [str(c) for c in inputs.classes])
    gallery = make_gallery(model, seen, predictions.test_index, predictions)
    for row in gallery["rows"]:
        row["test_row"] = int(inputs.test_index[row["test_row"]])
    return gallery


class Explained:
    """A replay with the method `explain`, as in `AttnKNNClassifier`."""

    def __init__(self, run: TrainedRun) -> None:
        self.run = run

    def explain(self, images: np.ndarray) -> list[Any]:
        """Neighbors of images (n, h, w, c), with weights and pixels."""
        run, inputs = self.run, self.run.inputs
        found = run.find(torch.from_numpy(images).permute(0, 3, 1, 2), run.preset.n_neighbors)
        parts = found.indices, found.distances.sqrt(), run.weights(found)
        labels = run.memory.labels.cpu()
        return [
            SimpleNamespace(
                null_mass=0.0,
                neighbors=[
                    SimpleNamespace(
                        id=row, label=str(inputs.classes[labels[row]]), distance=distance,
                        weight=weight, row=inputs.x_train[row].permute(1, 2, 0).flatten().numpy(),
                    )
                    for row, distance, weight in zip(*of_image, strict=True)
                ],
            )
            for of_image in zip(*(part.tolist() for part in parts), strict=True)
        ]  # fmt: skip
