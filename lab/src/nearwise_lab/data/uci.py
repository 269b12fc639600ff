"""Read the original files of the UCI data sets and give their columns the documented names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearwise.data.tables.delimited import read_delimited

Table = tuple[pd.DataFrame, NDArray[np.generic], str]

# adult.names, section 7; the last is the label
ADULT_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation",
    "relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week",
    "native-country", "class",
)  # fmt: skip
ADULT_NUMERIC = (
    "age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week",
)  # fmt: skip
# letter-recognition.names, section 7; the first is the label
LETTER_COLUMNS = (
    "lettr", "x-box", "y-box", "width", "high", "onpix", "x-bar", "y-bar", "x2bar", "y2bar",
    "xybar", "x2ybr", "xy2br", "x-ege", "xegvy", "y-ege", "yegvx",
)  # fmt: skip
# magic04.names, section 7; the last is the label
MAGIC_COLUMNS = (
    "fLength", "fWidth", "fSize", "fConc", "fConc1", "fAsym", "fM3Long", "fM3Trans", "fAlpha",
    "fDist", "class",
)  # fmt: skip
# ionosphere.names gives no names; the repository's page calls them Attribute1 to Attribute34
IONOSPHERE_COLUMNS = (*(f"Attribute{i}" for i in range(1, 35)), "Class")
WINE_COLUMNS = (
    "fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides",
    "free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol",
    "quality",
)  # fmt: skip
GOOD_QUALITY = 6


def read_adult(paths: Sequence[Path]) -> Table:
    """Read adult.data and adult.test as one table, in that order.

    "?" becomes missing, the dot after the labels of adult.test is dropped, the eight nominal
    columns become categories with sorted levels, fnlwgt is kept. Labels are "<=50K" and ">50K".
    """
    parts = [_read_headless(path, ADULT_COLUMNS) for path in paths]
    for part, path in zip(parts, paths, strict=True):
        _check_numbers(part[list(ADULT_NUMERIC)], path)
    frame = pd.concat(parts, ignore_index=True)
    y = _labels(frame.pop("class").str.rstrip("."), paths[0])
    for column in frame.columns:
        if column not in ADULT_NUMERIC:
            frame[column] = frame[column].astype("category")
    return frame, y, "class"


def read_adult_as_codes(paths: Sequence[Path]) -> Table:
    """Read Adult as the study's notebook did: whole rows alone, text as the place of its level.

    Rows with a "?" are left out. Levels are sorted, so that their order means nothing.
    """
    frame, y, target = read_adult(paths)
    whole = frame.notna().all(axis=1).to_numpy()
    frame = frame[whole].reset_index(drop=True)
    for column in frame.select_dtypes("category"):
        frame[column] = frame[column].cat.remove_unused_categories().cat.codes.astype(np.int64)
    return frame, y[whole], target


def read_labelled(paths: Sequence[Path], columns: Sequence[str], target: str) -> Table:
    """Read one file without a header: numbers, and the class in the column `target`."""
    frame = _read_headless(paths[0], columns)
    y = _labels(frame.pop(target), paths[0])
    _check_numbers(frame, paths[0])
    return frame, y, target


def read_wine_quality(paths: Sequence[Path], multiclass: bool, drop_duplicates: bool) -> Table:
    """Read winequality-red.csv or winequality-white.csv (semicolons, with a header).

    The label is the quality, a whole number of 3 to 9, or 1 where that is at least 6, else 0.
    `drop_duplicates` leaves out each row whose *features* equal those of an earlier row.
    """
    path = paths[0]
    frame = _parse(path, sep=";", header=0)
    missing = [name for name in WINE_COLUMNS if name not in frame.columns]
    if missing:
        raise ValueError(
            f"{path} lacks the columns {missing}; it has {list(frame.columns)}. "
            "Replace it by the original UCI file."
        )
    frame = frame[list(WINE_COLUMNS)]
    _check_numbers(frame, path)
    if drop_duplicates:
        frame = frame.drop_duplicates(subset=list(WINE_COLUMNS[:-1]), keep="first")
    frame = frame.reset_index(drop=True)
    quality = _labels(frame.pop("quality"), path).astype(np.int64)
    if multiclass:
        return frame, quality, "quality"
    return frame, (quality >= GOOD_QUALITY).astype(np.int64), f"quality_at_least_{GOOD_QUALITY}"


def _check_numbers(frame: pd.DataFrame, path: Path) -> None:
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name].dtype):
            raise ValueError(
                f"{path}: column {name!r} holds text where numbers are expected. "
                "Replace it by the original UCI file."
            )


def _read_headless(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    # adult.test opens with the line "|1x3 Cross validator": a bar starts a comment
    frame = _parse(
        path,
        header=None,
        skipinitialspace=True,
        comment="|",
        na_values=["?"],
        keep_default_na=False,
    )
    if frame.shape[1] != len(columns):
        raise ValueError(
            f"{path} has {frame.shape[1]} columns, expected {len(columns)} "
            f"({columns[0]} ... {columns[-1]}). Replace it by the original UCI file."
        )
    frame.columns = pd.Index(columns)
    return frame


def _parse(path: Path, **options: Any) -> pd.DataFrame:
    try:
        return read_delimited(path, **options)
    except pd.errors.EmptyDataError as error:
        raise ValueError(f"{path} is empty. Replace it by the original UCI file.") from error
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} cannot be read as a table: {error}. Replace it by the original UCI file."
        ) from error


def _labels(column: "pd.Series[Any]", path: Path) -> NDArray[np.generic]:
    if column.isna().any():
        raise ValueError(
            f"{path}: {int(column.isna().sum())} of {len(column)} rows have no label. "
            "Replace it by the original UCI file."
        )
    values = column.to_numpy()
    return values.astype(str) if values.dtype == object else values
