"""Embeddings in an npz file: which arrays are features, which labels, which the test part."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearwise.data.tables.npz import FEATURE_NAMES, Arrays

LABEL_NAMES = ("y", "Y", "labels", "label", "targets", "target")
# name of the target -> train features, train labels, test features, test labels
SPLIT_NAMES = {
    "y": ("X_train", "y_train", "X_test", "y_test"),
    "label": ("train", "train_label", "test", "test_label"),
}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Features and labels of an npz file.

    Parameters
    ----------
    X : float32 ndarray of shape (n_rows, n_dims)
        Embeddings; the training part first where the file has two parts.
    y : ndarray of shape (n_rows,)
        Labels.
    target_name : str
        Name of the label array.
    test_index : int64 ndarray, optional
        Rows of the test part; None where the file has one part.
    views : dict of str to float32 ndarray of shape (n_rows, n_dims)
        Other views of the same rows.
    """

    X: NDArray[np.float32]
    y: NDArray[np.generic]
    target_name: str
    test_index: NDArray[np.int64] | None
    views: dict[str, NDArray[np.float32]]


def pick_embeddings(
    arrays: Arrays, *, where: str, target: str | None = None, views: bool = False
) -> Embeddings:
    """Choose features and labels among the arrays of an npz file.

    Two layouts are known. One part: a feature array called X, x, features, embeddings or data,
    and labels called y, Y, labels, label, targets or target. Two parts: X_train, y_train,
    X_test, y_test (the target is then called y); or train, train_label, test, test_label (label).
    There the features' names with _flip appended may give a second view.

    Returns `embeddings`, Embeddings: features as float32. Raises ValueError if the arrays are not
    there (the message lists what is), or their shapes do not fit.

    Parameters
    ----------
    arrays : dict of str to ndarray
        As `read_arrays` gives them.
    where : str
        What the file is called in errors.
    target : str, optional
        Name of the label array, or what the target of a two-part file is called; default: the
        known names above.
    views : bool, default=False
        Whether to keep the second view, as "flip".
    """
    for target_name, names in SPLIT_NAMES.items():
        if target in (None, target_name) and all(name in arrays for name in names):
            return _two_parts(arrays, names, target_name, where, views)
    features = next((n for n in FEATURE_NAMES if n in arrays and arrays[n].ndim > 1), None)
    labels = target or next((name for name in LABEL_NAMES if name in arrays), None)
    if features is None or labels not in arrays or labels is None:
        lacking = (
            "a feature array"
            if features is None
            else (f"the label array {labels!r}" if labels else "a label array")
        )
        raise ValueError(f"{where} lacks {lacking}; it holds {sorted(arrays)}. {_expected()}")
    X = _as_features(arrays[features], f"{where}: {features}")
    y = _as_labels(arrays[labels], len(X), f"{where}: {labels}")
    return Embeddings(X, y, labels, None, {})


def _two_parts(
    arrays: Arrays, names: tuple[str, str, str, str], target_name: str, where: str, views: bool
) -> Embeddings:
    train, train_label, test, test_label = names
    X = _joined(arrays, train, test, where)
    n_train = len(arrays[train])
    y = np.concatenate(
        [
            _as_labels(arrays[train_label], n_train, f"{where}: {train_label}"),
            _as_labels(arrays[test_label], len(X) - n_train, f"{where}: {test_label}"),
        ]
    )
    flips = (f"{train}_flip", f"{test}_flip")
    kept = {}
    if views and all(name in arrays for name in flips):
        kept["flip"] = _joined(arrays, *flips, where)
        if kept["flip"].shape != X.shape:
            raise ValueError(
                f"{where}: {flips[0]} and {flips[1]} give shape {kept['flip'].shape}, the plain "
                f"view {X.shape}. A view holds the same rows and dimensions."
            )
    test_index = np.arange(n_train, len(X), dtype=np.int64)
    return Embeddings(X, y, target_name, test_index, kept)


def _joined(arrays: Arrays, first: str, second: str, where: str) -> NDArray[np.float32]:
    parts = [_as_features(arrays[name], f"{where}: {name}") for name in (first, second)]
    if parts[0].shape[1] != parts[1].shape[1]:
        raise ValueError(
            f"{where}: {first} has {parts[0].shape[1]} dimensions, {second} "
            f"{parts[1].shape[1]}. Write both with the same embedder."
        )
    return np.concatenate(parts)


def _as_features(values: NDArray[np.generic], where: str) -> NDArray[np.float32]:
    """Return `values` of shape (n_rows, n_dims) as float32.

    Raises ValueError if they are not two-dimensional numbers.
    """
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


def _expected() -> str:
    return (
        "Call the two-dimensional feature array X, features or embeddings and the labels y or "
        "labels, or give the label array's name as target; with a test part: "
        f"{', '.join(SPLIT_NAMES['y'])}."
    )
