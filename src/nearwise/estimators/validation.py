"""Checks on what a user hands to the estimator, with errors that say what to do."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from nearwise.estimators.base import given_candidate
from nearwise.estimators.fitting import FitSettings
from nearwise.functional import METRICS
from nearwise.memory import INDEX_NAMES
from nearwise.training import HeadConfig, TrainConfig

_CHOICES: dict[str, tuple[Any, ...]] = {
    "preset": ("default", "fast"),
    "embedder": ("auto", "identity", "table", "deep", "mlp"),
    "metric": METRICS,
    "pooling": ("auto", "log-linear", "mixture"),
    "adaptive_k": (None, "entropy"),
    "calibration": ("auto", None),
    "index": INDEX_NAMES,
    "null_neighbor": (True, False),
}


def check_rows(estimator: Any, X: Any, *, reset: bool) -> pd.DataFrame | np.ndarray:
    """Bring rows into an array or a DataFrame and check names, width and values.

    DataFrames keep text and missing values; arrays and tensors must be finite numbers.
    """
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, pd.DataFrame):
        if not len(X):
            raise ValueError("Found array with 0 sample(s): the table is empty. Give some rows.")
        validate_data(estimator, X, skip_check_array=True, reset=reset)
        if not X.shape[1]:
            raise ValueError("0 feature(s): the table has no columns but the target.")
        return X
    _refuse_text(X)
    array: np.ndarray = validate_data(
        estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_min_samples=1
    )
    return array


def _refuse_text(X: Any) -> None:
    array = X if isinstance(X, np.ndarray) else None
    if array is not None and array.dtype.kind in "US":
        array = array.astype(object)
    if array is None or array.dtype.kind != "O":
        return
    text = next((v for v in array.ravel() if isinstance(v, str) and not _is_number(v)), None)
    if text is not None:
        raise ValueError(
            f"The array holds text ({text!r}) where numbers are expected. Pass a pandas DataFrame: "
            "its text columns are taken as categories."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_labels(y: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes and each row's class position, int64 (n,)."""
    if y is None:
        raise ValueError(
            "This AttnKNNClassifier estimator requires y to be passed, but the target y is None."
        )
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    values = column_or_1d(y, warn=True)
    if len(values) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows but y has {len(values)} labels. Give one label a row."
        )
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(
            f"y holds NaN or missing labels in {int(missing.sum())} of {n_rows} rows. Drop them."
        )
    check_classification_targets(values)
    classes, codes = np.unique(values, return_inverse=True)
    return classes, codes.astype(np.int64)


def check_class_sizes(classes: np.ndarray, codes: np.ndarray) -> None:
    """Refuse a single class, and classes with one row, which nothing can be left out of."""
    counts = np.bincount(codes)
    if len(classes) < 2:
        raise ValueError(
            f"All {len(codes)} rows belong to one class, {classes[0]!r}. A classifier needs at "
            "least 2 classes: add rows of another one."
        )
    single = [str(c) for c, count in zip(classes, counts, strict=True) if count == 1]
    if single:
        named = ", ".join(single[:5]) + (" ..." if len(single) > 5 else "")
        raise ValueError(
            f"{len(single)} classes have a single row ({named}); leaving it out leaves nothing to "
            "learn from. Fit without them and hand these rows to add() afterwards, which learns "
            "new classes, or give at least 2 rows of each class."
        )


def check_weight(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """Return sample weights as float64 (n,) with mean 1, or None."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {weight.shape} but X has {n_rows} rows. Give one weight a "
            "row."
        )
    if not np.isfinite(weight).all() or (weight < 0).any() or not weight.any():
        raise ValueError("sample_weight must be finite, not negative, and positive somewhere.")
    return weight / weight.mean()


def check_settings(estimator: Any, n_rows: int, n_classes: int, seed: int) -> FitSettings:
    """Check every parameter against the training rows and decide what "auto" means."""
    for name, allowed in _CHOICES.items():
        value = getattr(estimator, name)
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            options = ", ".join(repr(option) for option in allowed)
            raise ValueError(f"{name}={value!r} is not known. Use one of {options}.")
    base = estimator.base
    if isinstance(base, str) and base != "auto":
        raise ValueError(f'base={base!r} is not known. Use "auto", None or a classifier.')
    if base is not None and not isinstance(base, str):
        given_candidate(base)
    ks = _check_sizes(estimator.k_ensemble)
    k = _check_neighbors(estimator.n_neighbors, n_rows, ks)
    _count("num_heads", estimator.num_heads, 1)
    if estimator.n_members != "auto":
        _count("n_members", estimator.n_members, 2)
    train = dict(estimator.train_params or {})
    TrainConfig(**train)
    device = estimator.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return FitSettings(
        n_neighbors=k,
        fold_neighbors=max(8, k // 2) if estimator.n_neighbors == "auto" else k,
        embedder=estimator.embedder,
        base=base,
        fast=estimator.preset == "fast",
        metric=estimator.metric,
        pooling=estimator.pooling,
        null=estimator.null_neighbor,
        num_heads=estimator.num_heads,
        k_ensemble=ks,
        adaptive_k=estimator.adaptive_k,
        calibrate=estimator.calibration == "auto",
        index=estimator.index,
        memory_budget=estimator.memory_budget,
        train=train,
        head=HeadConfig(**(estimator.head_params or {})),
        seed=seed,
        device=device,
        n_jobs=estimator.n_jobs if estimator.n_jobs is not None else os.cpu_count(),
        checkpoint=None,
    )


def _check_neighbors(k: Any, n_rows: int, ks: tuple[int, ...] | None) -> int:
    if k == "auto":
        wanted = max(32, *(ks or (32,)))
        return min(wanted, n_rows - 2) if ks is None else min(wanted, n_rows - 1)
    _count("n_neighbors", k, 1)
    if k > n_rows - 1:
        raise ValueError(
            f"n_neighbors={k} exceeds the {n_rows} samples in the memory bank ({n_rows - 1} after "
            "leaving out the query). Lower n_neighbors or add samples."
        )
    if ks is not None and max(ks) > k:
        raise ValueError(
            f"k_ensemble={list(ks)} asks for more than n_neighbors={k}. Raise n_neighbors or "
            "lower the sizes."
        )
    return int(k)


def _check_sizes(sizes: Iterable[int] | None) -> tuple[int, ...] | None:
    if sizes is None:
        return None
    ks = tuple(int(size) for size in sizes)
    if not ks or min(ks) < 1:
        raise ValueError(f"k_ensemble={list(ks)} must name sizes of at least 1, such as (5, 10).")
    return ks


def _count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")


def check_checkpoint(
    estimator: Any,
    settings: FitSettings,
    rows: pd.DataFrame | np.ndarray,
    codes: np.ndarray,
    weight: np.ndarray | None,
) -> FitSettings:
    """Point the settings at the checkpoint folder of this very fit.

    The folder's name carries a hash of data and settings, so another fit never resumes from it.
    """
    if estimator.checkpoint_dir is None:
        return settings
    digest = hashlib.sha256()
    if isinstance(rows, pd.DataFrame):
        digest.update(pd.util.hash_pandas_object(rows, index=False).to_numpy().tobytes())
    else:
        digest.update(np.ascontiguousarray(rows).tobytes())
    digest.update(codes.tobytes() + (b"" if weight is None else weight.tobytes()))
    digest.update(repr(settings).encode())
    folder = Path(estimator.checkpoint_dir) / f"fit-{digest.hexdigest()[:16]}"
    return replace(settings, checkpoint=folder)
