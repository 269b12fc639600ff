"""Checks of labels and sample weights: label types, class sizes, and new labels after a fit."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from nearwise.data.tables.cells import EXACT_BELOW
from nearwise.names import listed, spelled_alike
from nearwise.warn import warn_user


def label_values(y: Any) -> np.ndarray:
    """Labels as an array (n,) with the type of their values; gaps stay gaps.

    Nullable pandas columns and object arrays become integers, booleans or text. ValueError for
    values of several types, or of a type that cannot be a class.
    """
    if isinstance(y, torch.Tensor):
        y = y.detach().cpu().numpy()
    elif isinstance(y, pd.DataFrame | pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        y = y.to_numpy()  # scikit-learn would make floats of nullable whole numbers
    elif isinstance(y, list | tuple) and len(set(map(_kind, set(map(type, y))))) > 1:
        y = np.array(y, dtype=object)  # numpy would make text of ["a", 1]
    values: np.ndarray = column_or_1d(y, warn=True)
    if values.dtype != object or pd.isna(values).any():
        return values
    return _settled(values.tolist(), values)


def _kind(of: type) -> str:
    """Name of a Python type's kind of labels."""
    if issubclass(of, bool | np.bool_):
        return "truth values"
    if issubclass(of, int | float | np.integer | np.floating):
        return "numbers"
    return "text" if issubclass(of, str) else of.__name__


def _settled(found: list[Any], values: np.ndarray) -> np.ndarray:
    """Convert an object array to the common type of its values."""
    kinds = {kind: of for of in set(map(type, found)) for kind in [_kind(of)]}
    examples = {kind: next(v for v in found if type(v) is of) for kind, of in kinds.items()}
    if len(kinds) > 1:
        types = " and ".join(f"{kind} ({examples[kind]!r})" for kind in sorted(kinds))
        raise ValueError(
            f"y mixes labels of several types: {types}. Give all of them as one type, for example "
            "as text (y.astype(str))."
        )
    if "text" in kinds or not kinds:
        return values
    if "truth values" in kinds:
        return values.astype(bool)
    whole = all(isinstance(v, int | np.integer) for v in found)
    numbers = np.array(found) if "numbers" in kinds else values
    if numbers.dtype.kind not in ("iu" if whole else "f"):
        kind, example = next(iter(examples.items()))
        content = "whole numbers beyond 64 bits" if whole else f"{kind} values"
        raise ValueError(
            f"Unknown label type: y holds {content}, such as {example!r}. Give text, whole numbers "
            "or truth values, for example y.astype(str)."
        )
    return numbers


def check_labels(y: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Check labels; returns the sorted classes and each row's class position, int64 (n,)."""
    if y is None:
        raise ValueError(
            "This AttnKNNClassifier estimator requires y to be passed, but the target y is None."
        )
    values = label_values(y)
    if len(values) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows but y has {len(values)} labels. Give one label per row."
        )
    missing = pd.isna(values)
    if missing.any():
        raise ValueError(
            f"y holds NaN or missing labels in {int(missing.sum())} of {n_rows} rows. Drop them."
        )
    if values.dtype.kind == "f" and EXACT_BELOW <= (most := np.abs(values).max()) < np.inf:
        raise ValueError(
            f"y holds floats of up to {most}. From 2**53 on a float stands for several whole "
            "numbers, so classes would be merged. Give whole numbers or text."
        )
    try:
        check_classification_targets(values)
    except ValueError as error:
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise
        raise ValueError(
            f"Unknown label type: continuous. y holds numbers such as {values[0]}, a quantity "
            f"rather than a class ({len(np.unique(values))} different ones in {n_rows} rows). Name "
            "the column that holds classes, or cut the numbers into ranges first (pandas.cut)."
        ) from error
    classes, codes = np.unique(values, return_inverse=True)
    return classes, codes.astype(np.int64)


def warn_of_alike_labels(labels: list[Any], known: list[Any]) -> None:
    """Warn of new classes that differ from another class only in case or blanks."""
    if alike := spelled_alike(labels, known):
        new, other = next(iter(alike.items()))
        warn_user(
            f"{new!r} and {other!r} are two classes, which differ only in case or blanks"
            f"{f' (and {len(alike) - 1} more such pairs)' if len(alike) > 1 else ''}. If they are "
            "one class, correct the labels."
        )


_KINDS = {"b": "truth values", "O": "text", "U": "text", "S": "text", "T": "text"}


def positions_among(known: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """Class positions of labels, with new classes after the known ones; and the new classes.

    ValueError if labels and classes mix text, numbers and truth values: "1" and 1 would become
    two classes, True and 1 one class.
    """
    kinds = [_KINDS.get(values.dtype.kind, "numbers") for values in (known, labels)]
    if kinds[0] != kinds[1] and len(labels):
        raise ValueError(
            f"The labels are {kinds[1]} ({labels.tolist()[0]!r}) but the classes are {kinds[0]} "
            f"({known.tolist()[0]!r}). Give labels of the kind the model was fitted with."
        )
    if known.dtype.kind in "iu" and labels.dtype.kind == "f" and (labels % 1 == 0).all():
        labels = labels.astype(np.int64)  # 3.0 is the class 3
    positions = {label: position for position, label in enumerate(known.tolist())}
    fresh = [label for label in dict.fromkeys(labels.tolist()) if label not in positions]
    positions |= {label: len(positions) + i for i, label in enumerate(fresh)}
    return np.array([positions[label] for label in labels.tolist()], dtype=np.int64), fresh


def check_class_sizes(
    classes: np.ndarray, codes: np.ndarray, groups: np.ndarray | None = None
) -> None:
    """Raise ValueError for a single class, or if no class has two rows, or two groups."""
    if len(classes) < 2:
        raise ValueError(
            f"All {len(codes)} rows belong to one class, {classes.tolist()[0]!r}. A classifier "
            "needs at least 2 classes: add rows of another one."
        )
    if lone_rows(codes).all():
        raise ValueError(
            f"Each of the {len(codes)} rows is the only one of its class "
            f"({listed(classes.tolist())}), so that nothing can be learned about any. Give at "
            "least 2 rows of some class, or another column as the target."
        )
    if groups is not None and lone_rows(codes, groups).all():
        raise ValueError(
            f"Every class is in one group alone ({len(np.unique(groups))} groups, {len(classes)} "
            "classes), so that nothing shows how a new group is told apart. Give groups that share "
            "classes, or none."
        )


def lone_rows(codes: np.ndarray, groups: np.ndarray | None = None) -> np.ndarray:
    """Mask of rows that are the only row, or in the only group, of their class, bool (n,)."""
    pairs = np.unique(np.stack([codes, groups]), axis=1)[0] if groups is not None else codes
    found: np.ndarray = np.bincount(pairs, minlength=1)[codes] == 1
    return found


def judging_weight(
    codes: np.ndarray, weight: np.ndarray | None, groups: np.ndarray | None = None
) -> np.ndarray | None:
    """Weights (n,) of leave-one-out losses: zero for the only row or group of a class.

    If such a row or group is left out, its class has no rows.
    """
    lone = lone_rows(codes, groups)
    if not lone.any():
        return weight
    return np.where(lone, 0.0, 1.0 if weight is None else weight)


def warn_of_lone_rows(
    classes: np.ndarray, codes: np.ndarray, groups: np.ndarray | None = None
) -> None:
    """Warn of classes with a single row or group, and of its effect."""
    single = classes[np.unique(codes[lone_rows(codes, groups)])]
    if len(single) and groups is not None:
        many = f"{len(single)} classes have" if len(single) > 1 else "One class has"
        warn_user(
            f"{many} rows of a single group ({listed(single.tolist())}). They are in the memory "
            "and can be neighbors, but are never held out: attention and calibration are fitted "
            "to the other classes."
        )
    elif len(single):
        many = f"{len(single)} classes have" if len(single) > 1 else "One class has"
        warn_user(
            f"{many} a single row ({listed(single.tolist())}). It is in the memory and can be a "
            "neighbor, but is never held out: attention and calibration are fitted to the other "
            "classes."
        )


def check_weight(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """Check sample weights; float64 (n,), or None."""
    if sample_weight is None:
        return None
    weight = np.asarray(sample_weight, dtype=np.float64)
    if weight.shape != (n_rows,):
        raise ValueError(
            f"sample_weight has shape {weight.shape} but X has {n_rows} rows. Give one weight "
            "per row."
        )
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(
            "sample_weight holds negative, infinite or missing values. Give finite weights of at "
            "least 0."
        )
    if not weight.any():
        raise ValueError("Every sample_weight is zero. Give a positive weight to some rows.")
    return weight


def unit_weight(sample_weight: Any, n_rows: int) -> tuple[np.ndarray | None, float]:
    """Check sample weights and divide them by their mean; returns both."""
    weight = check_weight(sample_weight, n_rows)
    if weight is None:
        return None, 1.0
    unit = float(weight.mean())
    return weight / unit, unit


def label_list(y: np.ndarray) -> list[Any]:
    """Labels as plain data for JSON; datetimes as integers in their unit."""
    plain: list[Any] = (y.view(np.int64) if y.dtype.kind in "mM" else y).tolist()
    return plain
