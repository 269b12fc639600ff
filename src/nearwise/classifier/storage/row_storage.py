"""Training rows on disk: arrays as tensors, tables as Parquet."""

import datetime
import io
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from nearwise.memory import Folder
from nearwise.memory.arrow import checked


def pack_rows(rows: pd.DataFrame | np.ndarray) -> tuple[dict[str, Tensor], dict[str, bytes]]:
    """Training rows as a tensor (arrays) or a Parquet blob (tables)."""
    if isinstance(rows, np.ndarray):
        return {"rows": torch.from_numpy(rows)}, {}
    buffer = io.BytesIO()
    storable(rows).to_parquet(buffer, index=False)
    return {}, {"rows": buffer.getvalue()}


def append_frame(rows: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Put new rows, of the same columns, after others; a column may be empty in them."""
    new = new.set_axis(rows.columns, axis=1)
    rows, new = rows.copy(deep=False), new.copy(deep=False)
    for name in rows.columns:
        if not new[name].isna().all() or pd.api.types.is_bool_dtype(rows[name]):
            continue
        dtype: Any = rows[name].dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iu":  # without a value for gaps
            dtype = pd.UInt64Dtype() if dtype.kind == "u" else pd.Int64Dtype()
            rows[name] = rows[name].astype(dtype)
        try:
            nothing: Any = [None] * len(new)
            gaps = pd.Series(pd.array(nothing, dtype=dtype), index=new.index)
        except (TypeError, ValueError, NotImplementedError):
            gaps = pd.Series([None] * len(new), index=new.index, dtype=object)
        new[name] = gaps
    return pd.concat([rows, new], ignore_index=True)


def storable(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn columns that Parquet cannot hold (mixed types, intervals) into text.

    Numbers of several types, truth values among them, and those beyond 64 bits become floats.
    """
    columns = {}
    for i, name in enumerate(rows.columns):
        column = rows.iloc[:, i]
        try:
            array = pa.Array.from_pandas(column)
            if pa.types.is_nested(array.type) or _mixes_dates(column):
                raise TypeError("nested values, or days beside moments, become text")
            if isinstance(column.dtype, pd.CategoricalDtype):
                _refuse_odd_categories(column.dtype)
        except (pa.ArrowException, TypeError, OverflowError):
            kinds = {type(value) for value in column.astype(object).dropna()}
            if kinds and all(
                issubclass(kind, int | float | np.number | np.bool_) for kind in kinds
            ):
                column = column.astype(float)
            else:
                column = column.astype(object).map(str, na_action="ignore")
        columns[name] = column
    return pd.DataFrame(columns)


def _mixes_dates(column: pd.Series) -> bool:
    """Whether days and moments are in one column: Arrow would keep only the days."""
    if not pd.api.types.is_object_dtype(column.dtype):
        return False
    kinds = {type(value) for value in column.dropna()}
    return len(kinds) > 1 and all(issubclass(kind, datetime.date) for kind in kinds)


def _refuse_odd_categories(dtype: pd.CategoricalDtype) -> None:
    if isinstance(dtype.categories.dtype, pd.IntervalDtype | pd.PeriodDtype):
        raise TypeError(f"categories of {dtype.categories.dtype} come back from no Parquet file")


def unpack_rows(folder: Folder, n_rows: int, n_columns: int) -> pd.DataFrame | np.ndarray:
    """Training rows from what `pack_rows` returned; ValueError for any other shape."""
    if "rows" in folder.tensors:
        array: np.ndarray = folder.tensors["rows"].numpy()
        shape = (len(array), int(np.prod(array.shape[1:])))
        _refuse_other_shape(shape, (n_rows, n_columns))
        return array
    stored = io.BytesIO(folder.blobs["rows"])
    # The file's header is checked before its content: a small one may unpack to much.
    found = pq.ParquetFile(stored)
    shape = (found.metadata.num_rows, len(found.schema_arrow.names))
    _refuse_other_shape(shape, (n_rows, n_columns))
    rows = checked(found.read(), n_rows).to_pandas()
    _refuse_other_shape(rows.shape, (n_rows, n_columns))
    return rows


def _refuse_other_shape(shape: tuple[int, int], expected: tuple[int, int]) -> None:
    if shape != expected:
        raise ValueError(
            f"there are {shape[0]} x {shape[1]} values; expected {expected[0]} x {expected[1]}"
        )
