"""The memory on disk: original rows (tensors or Parquet) and trained indexes."""

import datetime
import io
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from nearwise.estimators.model.memory_views import MemoryViews
from nearwise.estimators.storage.stored_parts import part_of_folder, under
from nearwise.memory import Folder, MemoryBank
from nearwise.memory.arrow import checked
from nearwise.memory.index import IndexState

_ABSENT = -1  # cell of a row that is not in the index
_WITH_CELLS = "ivf-flat"


def pack_rows(rows: pd.DataFrame | np.ndarray) -> tuple[dict[str, Tensor], dict[str, bytes]]:
    """Training rows as a tensor (arrays) or a Parquet blob (tables)."""
    if isinstance(rows, np.ndarray):
        return {"rows": torch.from_numpy(rows)}, {}
    buffer = io.BytesIO()
    storable(rows).to_parquet(buffer, index=False)
    return {}, {"rows": buffer.getvalue()}


def append_frame(rows: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Append rows with the same columns; a column of the new rows may be empty."""
    new = new.set_axis(rows.columns, axis=1)
    rows, new = rows.copy(deep=False), new.copy(deep=False)
    for name in rows.columns:
        if not new[name].isna().all() or pd.api.types.is_bool_dtype(rows[name]):
            continue
        dtype: Any = rows[name].dtype
        if isinstance(dtype, np.dtype) and dtype.kind in "iu":  # cannot hold gaps
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
    """Convert columns that Parquet cannot store (mixed types, intervals) to text.

    Numbers of several types, including booleans, and numbers beyond 64 bits become floats.
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
    """Whether a column mixes dates and datetimes; Arrow would keep only the dates."""
    if not pd.api.types.is_object_dtype(column.dtype):
        return False
    kinds = {type(value) for value in column.dropna()}
    return len(kinds) > 1 and all(issubclass(kind, datetime.date) for kind in kinds)


def _refuse_odd_categories(dtype: pd.CategoricalDtype) -> None:
    if isinstance(dtype.categories.dtype, pd.IntervalDtype | pd.PeriodDtype):
        raise TypeError(f"categories of {dtype.categories.dtype} come back from no Parquet file")


def unpack_rows(folder: Folder, n_rows: int, n_columns: int) -> pd.DataFrame | np.ndarray:
    """Training rows from the result of `pack_rows`; ValueError for any other shape."""
    if "rows" in folder.tensors:
        array: np.ndarray = folder.tensors["rows"].numpy()
        shape = (len(array), int(np.prod(array.shape[1:])))
        _refuse_other_shape(shape, (n_rows, n_columns))
        return array
    stored = io.BytesIO(folder.blobs["rows"])
    # The file's header is checked before its content: a small file may unpack to a huge table.
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


def pack_indexes(views: MemoryViews) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """JSON and tensors of the indexes of a memory."""
    meta: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for space, state in views.index_states().items():
        cells = torch.full((len(views.bank),), _ABSENT, dtype=torch.int32)
        here = torch.isin(state.ids, views.bank.ids)
        cells[views.bank.positions(state.ids[here])] = state.cells[here]
        meta[space] = {"name": state.name, "n_fitted": state.n_fitted}
        arrays = {"cells": cells, **state.learned}
        tensors |= {f"index/{space}/{name}": array for name, array in arrays.items()}
    return meta, tensors


def unpack_indexes(
    meta: dict[str, Any], tensors: dict[str, Tensor], bank: MemoryBank
) -> dict[str, IndexState]:
    """Check and return index states, by space, from the result of `pack_indexes`."""
    states = {}
    for space, described in meta.get("indexes", {}).items():
        with part_of_folder(f"index/{space}"):
            arrays = under(tensors, f"index/{space}/")
            cells = arrays.pop("cells")
            _check_index(described, cells, arrays, len(bank), bank.keys[space].shape[1])
            here = cells != _ABSENT
            states[space] = IndexState(
                **described, ids=bank.ids[here], cells=cells[here], learned=arrays
            )
    return states


def _check_index(
    described: dict[str, Any], cells: Tensor, learned: dict[str, Tensor], n_rows: int, width: int
) -> None:
    """Raise ValueError for arrays that no index has, or that do not fit each other."""
    has_cells = described["name"] == _WITH_CELLS
    expected = {"centers"} if has_cells else set()
    if not expected <= {*learned} <= expected | ({"mean"} if has_cells else set()):
        raise ValueError(f"an index {described['name']!r} does not have the arrays {[*learned]}")
    for name, array in learned.items():
        n_dims = 2 if name == "centers" else 1
        if array.dtype != torch.float32 or array.ndim != n_dims or array.shape[-1] != width:
            raise ValueError(f"{name} is {array.dtype} of shape {tuple(array.shape)}")
    n_cells = len(learned["centers"]) if has_cells else 1
    if cells.dtype != torch.int32 or cells.shape != (n_rows,):
        raise ValueError(f"cells is {cells.dtype} of shape {tuple(cells.shape)}; {n_rows} rows")
    if len(cells) and not _ABSENT <= int(cells.min()) <= int(cells.max()) < n_cells:
        raise ValueError(f"cells holds values that are not from {_ABSENT} to {n_cells - 1}")
    if int((cells != _ABSENT).sum()) > described["n_fitted"]:
        raise ValueError(f"n_fitted is {described['n_fitted']}, and cells has more rows")
