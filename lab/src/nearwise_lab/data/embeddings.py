"""Embeddings in an npz file: detection of features, labels and test part."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearwise.data import Dataset
from nearwise.data.tables.npz import FEATURE_NAMES, Arrays

LABEL_NAMES = ("y", "Y", "labels", "label", "targets", "target")
# name of the target -> train features, train labels, test features, test labels
SPLIT_NAMES = {
    "y": ("X_train", "y_train", "X_test", "y_test"),
    "label": ("train", "train_label", "test", "test_label"),
}
_EXPECTED = (
    "Call the two-dimensional feature array X, features or embeddings and the labels y or "
    "labels, or give the label array's name as target; with a test part: "
    f"{', '.join(SPLIT_NAMES['y'])}."
)


def pick_embeddings(
    arrays: Arrays, name: str, source: str, *, where: str, files: tuple[Path, ...],
    target: str | None = None, views: bool = False,
) -> Dataset:  # fmt: skip
    """Make a data set of the arrays of an npz file that are features and labels.

    Two layouts are known. One part: a feature array called X, x, features, embeddings or data,
    and labels called y, Y, labels, label, targets or target. Two parts: X_train, y_train,
    X_test, y_test (the target is then called y); or train, train_label, test, test_label (label).
    There the features' names with _flip appended may give a second view, kept as "flip" where
    `views`. ValueError if the arrays are not there (the message lists what is), or their shapes do
    not fit; `where` is what the file is called in it.
    """
    found: tuple[Any, ...] | None = None
    for target_name, names in SPLIT_NAMES.items():
        if target in (None, target_name) and all(one in arrays for one in names):
            found = (target_name, *_two_parts(arrays, names, where, views))
            break
    if found is None:
        features = next((n for n in FEATURE_NAMES if n in arrays and arrays[n].ndim > 1), None)
        labels = target or next((one for one in LABEL_NAMES if one in arrays), None)
        if features is None or labels not in arrays or labels is None:
            named = f"the label array {labels!r}" if labels else "a label array"
            lacking = "a feature array" if features is None else named
            raise ValueError(f"{where} lacks {lacking}; it holds {sorted(arrays)}. {_EXPECTED}")
        X = _as_features(arrays[features], f"{where}: {features}")
        y = _as_labels(arrays[labels], len(X), f"{where}: {labels}")
        found = labels, X, y, None, {}
    named, X, y, test_index, kept = found
    return Dataset(
        name, X, y, named, "embeddings", source, test_index=test_index, files=files, views=kept
    )


def _two_parts(
    arrays: Arrays, names: tuple[str, str, str, str], where: str, views: bool
) -> tuple[Any, ...]:
    """Features, labels, rows of the test part, and views."""
    train, train_label, test, test_label = names
    X = _joined(arrays, train, test, where)
    n_train = len(arrays[train])
    sizes = {train_label: n_train, test_label: len(X) - n_train}
    y = [_as_labels(arrays[name], n, f"{where}: {name}") for name, n in sizes.items()]
    flips = (f"{train}_flip", f"{test}_flip")
    kept = {}
    if views and all(name in arrays for name in flips):
        kept["flip"] = _joined(arrays, *flips, where)
        if kept["flip"].shape != X.shape:
            raise ValueError(
                f"{where}: {flips[0]} and {flips[1]} give shape {kept['flip'].shape}, the plain "
                f"view {X.shape}. A view holds the same rows and dimensions."
            )
    return X, np.concatenate(y), np.arange(n_train, len(X), dtype=np.int64), kept


def _joined(arrays: Arrays, first: str, second: str, where: str) -> NDArray[np.float32]:
    parts = [_as_features(arrays[name], f"{where}: {name}") for name in (first, second)]
    if parts[0].shape[1] != parts[1].shape[1]:
        raise ValueError(
            f"{where}: {first} has {parts[0].shape[1]} dimensions, {second} "
            f"{parts[1].shape[1]}. Write both with the same embedder."
        )
    return np.concatenate(parts)


def _as_features(values: NDArray[np.generic], where: str) -> NDArray[np.float32]:
    """Return numbers of shape (n_rows, n_dims) as float32; ValueError for any other array."""
    if values.ndim != 2 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"{where} has shape {values.shape} and type {values.dtype}; features are numbers of "
            "shape (n_rows, n_dims). Embed or flatten each row first."
        )
    return values.astype(np.float32)


def _as_labels(values: NDArray[np.generic], n_rows: int, where: str) -> NDArray[np.generic]:
    if values.shape != (n_rows,):
        raise ValueError(
            f"{where} has shape {values.shape}; labels have shape ({n_rows},), one for each row "
            "of the features."
        )
    return values
