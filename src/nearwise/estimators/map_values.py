"""Values by which the points of a map are colored."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

from nearwise.estimators.inputs.by_text import in_text
from nearwise.estimators.inputs.dates import DateColumn
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel
from nearwise.estimators.noise.label_issues import unseen_proba
from nearwise.estimators.noise.noisy_labels import NoisyLabels

MapColoring = Literal["change", "doubt", "right", "confidence", "error", "width", "column"]
_MOST_CATEGORIES = 1_000  # further values of a column are "other values"
_FEW = 8  # numbers of a left-out column with at most so many values are categories
_DIGITS = 6  # significant digits of a value


@dataclass(frozen=True, eq=False)
class MapValues:
    """A value per point of a map.

    Attributes
    ----------
    kind : {"category", "number", "date"}
    values : float64 ndarray of shape (n,)
        Positions among `categories`, numbers, or days since 1970; NaN where missing.
    categories : list of str
        Names of the categories, empty for numbers.
    missing : str
        What a missing value means.
    ends : (float, float), or None
        Fixed ends of the scale; None for the values' own.
    """

    kind: Literal["category", "number", "date"]
    values: np.ndarray
    missing: str = "no value"
    categories: tuple[str, ...] = ()
    ends: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Fields as plain data; a missing value is None, others have six significant digits."""
        values: list[float | None]
        if self.kind == "category":
            values = [None if value != value else int(value) for value in self.values.tolist()]
        else:
            values = [
                None if value != value else float(f"{value:.{_DIGITS}g}")
                for value in self.values.tolist()
            ]
        return {
            "kind": self.kind,
            "values": values,
            "missing": self.missing,
            "categories": list(self.categories),
            "ends": self.ends,
        }


def prediction_values(model: FittedModel, by: MapColoring, issues: pd.DataFrame) -> MapValues:
    """Values from leave-one-out predictions, of all rows of the memory.

    Parameters
    ----------
    model : FittedClassifier or FittedRegressor
    by : {"doubt", "right", "confidence", "error", "width"}
        Probability of a wrong label; for a classifier whether the prediction has the given label,
        or its probability; for a regressor the distance of the target from the median
        prediction, or the width between the 5 and the 95 % quantile.
    issues : DataFrame
        `Review.issues` of the model.
    """
    classifies = isinstance(model, FittedClassifier)
    wrong_task = ("error", "width") if classifies else ("right", "confidence")
    if by in wrong_task:
        has = "classes" if classifies else "numbers"
        raise ValueError(f"by={by!r} is not of a model that predicts {has}.")
    missing = "not predicted without its label"
    if "independent" in issues:
        issues = issues[issues["independent"]]
    table = issues.set_index("id").reindex(model.bank.ids.numpy())
    if by == "doubt":
        return MapValues("number", table["suspicion"].to_numpy(), missing, ends=(0.0, 1.0))
    if isinstance(model, FittedClassifier):
        return _of_classes(model, by, table, missing)
    gap = (table["given"] - table["suggested"]).abs()
    found = gap if by == "error" else table["high"] - table["low"]
    return MapValues("number", found.to_numpy(dtype=float), missing)


def _of_classes(
    model: FittedClassifier, by: MapColoring, table: pd.DataFrame, missing: str
) -> MapValues:
    """Values from predictions that know nothing of a row's own label."""
    predicted, sure = table["suggested"].to_numpy(), table["proba_suggested"].to_numpy()
    if isinstance(model.predictor.label_model, NoisyLabels):  # suggestions use the given labels too
        proba = unseen_proba(model, torch.arange(len(model.bank)))
        predicted, sure = model.classes[proba.argmax(axis=1)], proba.max(axis=1)
    if by == "confidence":
        return MapValues("number", sure.astype(float), missing, ends=(0.0, 1.0))
    wrong = np.where(pd.isna(sure), np.nan, predicted != model.labels_at())
    return MapValues("category", wrong.astype(float), missing, ("right", "wrong"))


def change_values(came: np.ndarray) -> MapValues:
    """Values of the changes (n,) with which rows came; 0, the fit, is missing."""
    values = np.where(came > 0, came, np.nan).astype(float)
    return MapValues("number", values, "came with the fit")


def column_values(model: FittedModel, name: str, positions: np.ndarray) -> MapValues:
    """Values of a column of the remembered rows at some positions.

    ValueError if the model has no such column.
    """
    encoder: Any = model.predictor.encoder
    columns = [] if encoder.kind == "images" else encoder.columns
    if name not in columns:
        raise ValueError(f"The model has no column {name[:80]!r}.")
    column, kind = encoder.with_floats(model.rows_at(positions))[name], encoder.kinds[name]
    if kind == "number" or (kind == "left out" and _is_measured(column)):
        return MapValues("number", pd.to_numeric(column, errors="coerce").to_numpy(dtype=float))
    if kind == "date":
        date = DateColumn(**encoder.dates[name])
        values = date.numbers(column, name)[:, -1]
        if date.parts[-1] != "days":
            return MapValues("number", values)
        return MapValues("date", values + pd.Timestamp(date.origin).timestamp() / 86_400)
    return _categories(column)


def _is_measured(column: pd.Series) -> bool:
    is_number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return bool(is_number and column.nunique() > _FEW)


def _categories(column: pd.Series) -> MapValues:
    texts = column.astype(object).map(in_text, na_action="ignore")
    names = texts.value_counts().index.tolist()
    shown = tuple(map(str, names[:_MOST_CATEGORIES]))
    codes = pd.Series(range(len(names)), index=names, dtype=float).clip(upper=_MOST_CATEGORIES)
    if len(names) > _MOST_CATEGORIES:
        shown += ("other values",)
    return MapValues("category", texts.map(codes).to_numpy(dtype=float), categories=shown)
