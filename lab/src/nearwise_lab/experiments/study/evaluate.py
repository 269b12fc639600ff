"""The study's evaluation: every weighting from one search per view."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nearwise.functional import distance_weights, uniform_weights
from nearwise_lab.experiments.study.model import unit, vote
from nearwise_lab.experiments.study.neighbors import (
    Found,
    Memory,
    attention_vote,
    attention_weights,
    look_up,
)
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.experiments.study.views import study_views
from nearwise_lab.nn.adaptive_k import entropy_adaptive_k, nearest_mask

NEIGHBOR_METHODS = (
    "uniform", "distance", "attention", "attention+tta", "attention+k-ensemble",
    "attention+adaptive-k",
)  # fmt: skip
STUDY_NLL_CLIP = 1e-9


@dataclass(frozen=True)
class Prediction:
    """One method's answer.

    Attributes
    ----------
    method : str
    proba : float64 ndarray of shape (n_test, n_classes)
        Rows sum to 1.
    k : int or None
        Neighbors consulted.
    seconds : float
        Encoding, searching and weighing of all test rows; what methods share counts for each.
    encoding_seconds : float
        The part of `seconds` that encoding takes, however the neighbors are weighed.
    """

    method: str
    proba: np.ndarray
    k: int | None
    seconds: float
    encoding_seconds: float = 0.0


def neighbor_methods(run: TrainedRun) -> tuple[str, ...]:
    """Names that `evaluate_run` gives; columns have no views to augment."""
    return tuple(m for m in NEIGHBOR_METHODS if run.inputs.is_images or m != "attention+tta")


def evaluate_run(
    run: TrainedRun, *, memory: Memory | None = None, methods: tuple[str, ...] | None = None
) -> Iterator[Prediction]:
    """Evaluate the study's weightings on the test rows.

    Parameters
    ----------
    run : TrainedRun
    memory : Memory, optional
        What is remembered, where it differs from what the run was trained with.
    methods : tuple of str, optional
        Those to use; all by default. The views of test-time augmentation are only searched where
        it is used.

    Yields
    ------
    prediction : Prediction
    """
    wanted = neighbor_methods(run) if methods is None else methods
    memory = run.memory if memory is None else memory
    preset = run.preset
    k = min(preset.n_neighbors, len(memory.keys))
    k_max = max(k, *preset.ensemble_k, preset.adaptive_k_max)
    found = look_up(run.model, run.inputs.x_test, memory, k_max, preset.precision)
    k_max = found.indices.shape[1]
    near = found.nearest(k)
    for method in wanted:
        start = time.perf_counter()
        shared, asked = found.seconds, k
        if method == "uniform":
            proba = _plain_vote(uniform_weights(near.distances), near, memory, run)
        elif method == "distance":
            weights = distance_weights(near.distances, preset.distance_temperature)
            proba = _plain_vote(weights, near, memory, run)
        elif method == "attention":
            proba = attention_vote(run.model, near, memory)
        elif method == "attention+tta":
            proba = _augmented(run, near, memory)
        elif method == "attention+k-ensemble":
            sizes = sorted({min(size, k_max) for size in preset.ensemble_k})
            parts = [attention_vote(run.model, found.nearest(size), memory) for size in sizes]
            proba, asked = torch.stack(parts).mean(dim=0), sizes[-1]
        elif method == "attention+adaptive-k":
            proba, asked = _adaptive(run, found, memory)
        else:
            raise ValueError(f"unknown method {method!r}; known: {', '.join(NEIGHBOR_METHODS)}.")
        proba64 = to_numpy(proba)
        seconds = shared + time.perf_counter() - start
        encoding = found.seconds - found.search_seconds
        yield Prediction(method, proba64, asked, seconds, encoding)


def sweep(run: TrainedRun, sizes: tuple[int, ...]) -> Iterator[tuple[int, Prediction]]:
    """Evaluate uniform, distance and attention at every neighborhood size, from one search.

    Sizes beyond the memory are left out.
    """
    memory, preset = run.memory, run.preset
    sizes = tuple(k for k in sorted(set(sizes)) if k <= len(memory.keys))
    found = look_up(run.model, run.inputs.x_test, memory, sizes[-1], preset.precision)
    for k in sizes:
        near = found.nearest(k)
        for method in ("uniform", "distance", "attention"):
            start = time.perf_counter()
            if method == "attention":
                proba = attention_vote(run.model, near, memory)
            elif method == "uniform":
                proba = _plain_vote(uniform_weights(near.distances), near, memory, run)
            else:
                weights = distance_weights(near.distances, preset.distance_temperature)
                proba = _plain_vote(weights, near, memory, run)
            seconds = found.seconds + time.perf_counter() - start
            yield k, Prediction(method, to_numpy(proba), k, seconds)


def to_numpy(proba: Tensor) -> np.ndarray:
    """Probabilities as float64 whose rows sum to 1 exactly."""
    rows: np.ndarray = proba.double().cpu().numpy()
    return rows / rows.sum(axis=1, keepdims=True)


def study_nll(y: np.ndarray, proba: np.ndarray) -> float:
    """NLL in nats per row with the study's own clip at 1e-9."""
    picked = proba[np.arange(len(y)), y]
    return float(-np.log(np.maximum(picked, STUDY_NLL_CLIP)).mean())


def _plain_vote(weights: Tensor, found: Found, memory: Memory, run: TrainedRun) -> Tensor:
    return vote(weights, memory.labels[found.indices], run.model.n_classes)


def _augmented(run: TrainedRun, original: Found, memory: Memory) -> Tensor:
    """Mean of the probabilities of the original and four changed views."""
    k = original.indices.shape[1]
    total = attention_vote(run.model, original, memory)
    views = study_views(run.inputs.x_test, run.inputs.seed, run.preset.views)
    for view in views:
        found = look_up(run.model, view, memory, k, run.preset.precision)
        total = total + attention_vote(run.model, found, memory)
    return total / (1 + len(views))


def _adaptive(run: TrainedRun, found: Found, memory: Memory) -> tuple[Tensor, int]:
    """Apply the entropy rule: weights over k_max decide how many of the nearest are used."""
    wide = found.nearest(run.preset.adaptive_k_max)
    k_max = wide.indices.shape[1]
    sizes = entropy_adaptive_k(attention_weights(run.model, wide, memory))
    mask = nearest_mask(sizes, k_max)
    return attention_vote(run.model, wide, memory, mask), round(float(sizes.float().mean()))


def key_norms(keys: Tensor) -> dict[str, float]:
    """Mean, spread and range of the L2 norms of keys (n, dim)."""
    norms = keys.norm(dim=1)
    return {
        "mean": float(norms.mean()),
        "std": float(norms.std()),
        "min": float(norms.min()),
        "max": float(norms.max()),
    }


def same_order(query: Tensor, keys: Tensor, k: int) -> float:
    """Share of queries whose nearest `k` by inner product and by L2 are the same, in order.

    On the sphere ``||q - k||^2 = 2 - 2 q.k``, so only ties can differ; keys are scaled to unit
    length here.
    """
    from nearwise.functional import topk_neighbors

    query, keys = unit(query), unit(keys)
    by_distance = topk_neighbors(query, keys, k, metric="euclidean").indices
    by_product = topk_neighbors(query, keys, k, metric="inner_product").indices
    return float((by_distance == by_product).all(dim=1).float().mean())
