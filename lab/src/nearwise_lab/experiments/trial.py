"""One trial: fit one method on one split, measure it, save the data of figures."""

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from nearwise.data import Dataset, split_dataset
from nearwise.metrics import evaluate_probabilities
from nearwise.metrics.shots import shot_breakdown, uneven
from nearwise.safe_files import plain
from nearwise_lab.corrupt import label_noise
from nearwise_lab.experiments.artifacts import keep_json, record_path, save_predictions
from nearwise_lab.experiments.measure import PeakMemory, one_row_ms, stored_mb
from nearwise_lab.experiments.methods import Method
from nearwise_lab.experiments.peers.foundation import Checkpoint
from nearwise_lab.interrupts import whole_or_nothing
from nearwise_lab.records import Record
from nearwise_lab.results.gallery import make_gallery
from nearwise_lab.results.measures import Predictions

NoiseKind = Literal["symmetric", "asymmetric"]
TEST_SIZE = 0.2
WARM_UP_ROWS = 8
HALVES = {"base-alone": "base_proba", "neighbors-alone": "neighbor_proba"}
CHOICES = ("temperature_", "oof_nll_", "n_rounds_", "n_epochs_")  # of peers


@dataclass(frozen=True)
class Split:
    """Training rows with their (possibly noisy) labels, clean test rows, further views of both."""

    dataset: Dataset
    seed: int
    test_index: np.ndarray
    X_train: Any
    y_train: np.ndarray
    X_test: Any
    y_test: np.ndarray
    classes: np.ndarray
    train_views: tuple[Any, ...] = ()
    test_views: tuple[Any, ...] = ()

    def views(self, method: Method, *, test: bool) -> dict[str, Any]:
        """Return further views of the rows as keyword argument, if the method takes them."""
        if not method.takes_views:
            return {}
        if not self.train_views:
            raise ValueError(
                f"{method.name} needs further views of the rows, and {self.dataset.name} has none."
            )
        return {"views": list(self.test_views if test else self.train_views)}


def make_split(
    dataset: Dataset, seed: int, noise: float = 0.0, noise_kind: NoiseKind = "symmetric"
) -> Split:
    """Split a data set by seed and put the noise into the training labels only."""
    train, test = split_dataset(dataset, seed, TEST_SIZE)
    X_train, y_train = dataset.rows(train)
    X_test, y_test = dataset.rows(test)
    classes = dataset.classes
    if noise > 0:
        y_train = label_noise(y_train, noise, noise_kind, seed, classes=classes)
    positions = np.searchsorted(classes, y_test)
    views = dataset.views.values()
    return Split(
        dataset, seed, test, X_train, y_train, X_test, positions, classes,
        tuple(view[train] for view in views), tuple(view[test] for view in views),
    )  # fmt: skip


def run_trial(
    method: Method,
    split: Split,
    blank: Record,
    out: Path,
    *,
    gallery: bool = True,
    weights: Checkpoint | None = None,
) -> list[Record]:
    """Fit and measure one method; rows of its halves come first, its own row last.

    `blank` has its final key and the facts that it states; artifacts go to the results folder
    `out`, with a gallery where the method explains its answers. `weights`: of a foundation model.
    """
    sizes = len(split.y_train), len(split.y_test), len(split.classes)
    blank = replace(blank, n_train=sizes[0], n_test=sizes[1], n_classes=sizes[2])
    with warnings.catch_warnings():
        # A solver at its iteration limit is part of the method as documented.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model: Any = method(split.seed, sizes[0], sizes[2], split.dataset.kind, weights)
        with whole_or_nothing(), PeakMemory() as memory:
            start, cpu_start = time.perf_counter(), time.process_time()
            model.fit(split.X_train, split.y_train, **split.views(method, test=False))
            costs = {
                "fit_seconds": time.perf_counter() - start,
                "fit_cpu_seconds": time.process_time() - cpu_start,
            }
        views = split.views(method, test=True)

        def predict(rows: slice) -> Any:
            some = {name: [view[rows] for view in given] for name, given in views.items()}
            return model.predict_proba(split.X_test[rows], **some)

        predict(slice(WARM_UP_ROWS))
        start = time.perf_counter()
        raw = predict(slice(None))
        costs["predict_us_per_row"] = 1e6 * (time.perf_counter() - start) / sizes[1]
        costs["one_row_ms"] = one_row_ms(lambda row: predict(slice(row, row + 1)), sizes[1])
        proba = align(raw, model.classes_, split.classes)
        last = model[-1] if hasattr(model, "steps") else model
        halves, null_mass = _halves(last, split, blank, views, out)
        whole = _scored(
            blank, split, proba, out, **costs, k=_neighbors_consulted(last, split),
            null_mass=null_mass, model_mb=stored_mb(model), peak_memory_mib=memory.mib,
            choice=_choices(last),
        )  # fmt: skip
        history = getattr(
            getattr(last, "report_", None), "history", getattr(last, "history_", None)
        )
        if history:
            keep_json(out, whole, "curves", history)
        if gallery and hasattr(last, "explain"):
            shown = make_gallery(last, split.dataset, split.test_index, _predictions(split, proba))
            keep_json(out, whole, "galleries", shown)
    return [*halves, whole]


def scored(
    blank: Record,
    predictions: Predictions,
    counts: np.ndarray,
    out: Path | None,
    *,
    details: Mapping[str, Any] | None = None,
    **values: Any,
) -> Record:
    """Compute the metrics of a row; its predictions are saved if there is a folder `out`.

    `counts` are the training rows of each class, `details` measures of an experiment's own,
    `values` further fields.
    """
    y, proba = predictions.y, predictions.proba
    shots = {"shots": shot_breakdown(y, proba, counts)} if uneven(counts) else {}
    metrics: dict[str, Any] = dict(evaluate_probabilities(y, proba))
    record = replace(blank, **metrics, details={**(details or {}), **shots}, **values)
    if out is not None:
        save_predictions(record_path(out, record, "predictions", "npz"), predictions)
    return record


def align(proba: Any, classes: np.ndarray, all_classes: np.ndarray) -> np.ndarray:
    """Spread probabilities over all classes, sorted; a class absent from training gets 0.

    `proba` (n_rows, n_known) has columns in the order of `classes`. Rows of what is returned,
    float64 (n_rows, n_classes), sum to 1 exactly.
    """
    proba = np.asarray(proba, dtype=np.float64)
    full = np.zeros((len(proba), len(all_classes)))
    full[:, np.searchsorted(all_classes, classes)] = proba
    return full / full.sum(axis=1, keepdims=True)


def _scored(blank: Record, split: Split, proba: np.ndarray, out: Path, **values: Any) -> Record:
    counts = np.bincount(np.searchsorted(split.classes, split.y_train), minlength=proba.shape[1])
    return scored(blank, _predictions(split, proba), counts, out, **values)


def _halves(
    model: Any, split: Split, blank: Record, views: dict[str, Any], out: Path
) -> tuple[list[Record], float | None]:
    """Measure the base alone and the neighbors alone, and the mean mass of the null."""
    if not hasattr(model, "query"):
        return [], None
    parts = model.query(split.X_test, **views).parts
    rows = []
    for half, attribute in HALVES.items():
        given = getattr(parts, attribute)
        if given is None:
            continue
        proba = align(given, model.classes_, split.classes)
        named = replace(blank, method=f"{blank.method}:{half}", part_of=blank.method)
        rows.append(_scored(named, split, proba, out))
    return rows, float(np.mean(parts.null_mass))


def _predictions(split: Split, proba: np.ndarray) -> Predictions:
    return Predictions(split.y_test, proba, split.test_index, [str(c) for c in split.classes])


def _neighbors_consulted(model: Any, split: Split) -> int | None:
    k = getattr(model, "n_neighbors_", None)
    if k is None and hasattr(model, "kneighbors"):  # n_neighbors="auto" is settled in fit
        k = len(model.kneighbors(split.X_test[:1])[0][0])
    return None if k is None else int(k)


def _choices(model: Any) -> dict[str, Any]:
    if report := getattr(model, "report_", None):
        names = ("temperature", "calibration_source", "oof_nll")
        return plain(report.choice | {name: getattr(report, name) for name in names})
    chosen = dict(getattr(model, "choice_", {}))
    chosen |= {n.rstrip("_"): getattr(model, n) for n in CHOICES if hasattr(model, n)}
    return plain(chosen)
