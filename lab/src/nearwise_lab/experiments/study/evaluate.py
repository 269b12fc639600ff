"""The study's evaluation: every weighting from one search per view; and rows of predictions."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.functional import distance_weights, uniform_weights
from nearwise_lab.experiments.study.inputs import StudyInputs, study_views
from nearwise_lab.experiments.study.model import Found, to_numpy
from nearwise_lab.experiments.study.replay import TrainedRun
from nearwise_lab.experiments.trial import scored
from nearwise_lab.nn.adaptive_k import entropy_adaptive_k, nearest_mask
from nearwise_lab.records import Record
from nearwise_lab.results.measures import Predictions

SHORT_METHODS = ("uniform", "distance", "attention")
TTA = "attention+tta"
NEIGHBOR_METHODS = (*SHORT_METHODS, TTA, "attention+k-ensemble", "attention+adaptive-k")
STUDY_NLL_CLIP = 1e-9


@dataclass(frozen=True)
class Prediction:
    """One method's probabilities (n_test, n_classes), float64, and the neighbors used.

    `seconds` are of encoding, searching and weighing all test rows (what methods share counts for
    each), 0 where they were not measured; `encoding_seconds` are the part that is the same however
    the neighbors are weighed.
    """

    method: str
    proba: np.ndarray
    k: int | None = None
    seconds: float = 0.0
    encoding_seconds: float = 0.0


def evaluate_run(run: TrainedRun, methods: Sequence[str]) -> Iterator[Prediction]:
    """Evaluate some of `NEIGHBOR_METHODS` on the test rows, all from one search.

    The views of test-time augmentation are only searched where it is used.
    """
    preset = run.preset
    k = min(preset.n_neighbors, len(run.memory.keys))
    found = run.find(run.inputs.x_test, max(k, *preset.ensemble_k, preset.adaptive_k_max))
    near = found.nearest(k)
    for method in methods:
        start, asked = time.perf_counter(), k
        if method == TTA:
            proba = _augmented(run, near)
        elif method == "attention+k-ensemble":
            sizes = sorted({min(size, found.indices.shape[1]) for size in preset.ensemble_k})
            parts = [run.vote(found.nearest(size)) for size in sizes]
            proba, asked = torch.stack(parts).mean(dim=0), sizes[-1]
        elif method == "attention+adaptive-k":
            proba, asked = _adaptive(run, found)
        else:
            proba = _plain(run, method, near)
        proba64 = to_numpy(proba)
        seconds = found.seconds + time.perf_counter() - start
        yield Prediction(method, proba64, asked, seconds, found.seconds - found.search_seconds)


def sweep(run: TrainedRun, sizes: Sequence[int]) -> Iterator[Prediction]:
    """Evaluate uniform, distance and attention at every neighborhood size, from one search.

    Sizes beyond the memory are left out.
    """
    sizes = [k for k in sorted(set(sizes)) if k <= len(run.memory.keys)]
    found = run.find(run.inputs.x_test, sizes[-1])
    for k in sizes:
        for method in SHORT_METHODS:
            start = time.perf_counter()
            proba = to_numpy(_plain(run, method, found.nearest(k)))
            yield Prediction(method, proba, k, found.seconds + time.perf_counter() - start)


def _plain(run: TrainedRun, method: str, near: Found) -> Tensor:
    if method == "attention":
        return run.vote(near)
    if method == "uniform":
        return run.vote(near, uniform_weights(near.distances))
    return run.vote(near, distance_weights(near.distances, run.preset.distance_temperature))


def _augmented(run: TrainedRun, original: Found) -> Tensor:
    """Mean of the probabilities of the original and four changed views."""
    views = study_views(run.inputs.x_test, run.inputs.seed, run.preset.views)
    votes = [run.vote(run.find(view, original.indices.shape[1])) for view in views]
    return torch.stack([run.vote(original), *votes]).mean(dim=0)


def _adaptive(run: TrainedRun, found: Found) -> tuple[Tensor, int]:
    """Apply the entropy rule: weights over k_max decide how many of the nearest are used."""
    wide = found.nearest(run.preset.adaptive_k_max)
    sizes = entropy_adaptive_k(run.weights(wide))
    mask = nearest_mask(sizes, wide.indices.shape[1])
    return run.vote(wide, run.weights(wide, mask)), round(float(sizes.float().mean()))


def study_nll(y: np.ndarray, proba: np.ndarray) -> float:
    """NLL in nats per row with the study's own clip at 1e-9."""
    picked = proba[np.arange(len(y)), y]
    return float(-np.log(np.maximum(picked, STUDY_NLL_CLIP)).mean())


def measured(
    blank: Record, prediction: Prediction, inputs: StudyInputs, folder: Path, **values: Any
) -> Record:
    """Fill a row from a prediction of the test rows, and keep that for figures.

    `values` are further fields; `details` are added to the study's own NLL (clip 1e-9).
    """
    y = inputs.y_test.numpy()
    details = {"nll_study": study_nll(y, prediction.proba), **values.pop("details", {})}
    if prediction.encoding_seconds:
        own = prediction.seconds - prediction.encoding_seconds
        details["search_and_weigh_us_per_row"] = 1e6 * own / len(y)
    return scored(
        replace(blank, **inputs.sizes),
        Predictions(y, prediction.proba, inputs.test_index, [str(c) for c in inputs.classes]),
        inputs.y_train.bincount(minlength=inputs.n_classes).numpy(),
        folder,
        k=prediction.k,
        predict_us_per_row=1e6 * prediction.seconds / len(y) if prediction.seconds else None,
        details=details,
        **values,
    )
