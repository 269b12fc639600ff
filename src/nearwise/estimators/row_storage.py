"""Training rows on disk: arrays as tensors, tables as Parquet."""

import io

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from nearwise.memory import Folder


def pack_rows(rows: pd.DataFrame | np.ndarray) -> tuple[dict[str, Tensor], dict[str, bytes]]:
    """Training rows as a tensor (arrays) or a Parquet blob (tables)."""
    if isinstance(rows, np.ndarray):
        return {"rows": torch.from_numpy(rows)}, {}
    buffer = io.BytesIO()
    _storable(rows).to_parquet(buffer, index=False)
    return {}, {"rows": buffer.getvalue()}


def append_frame(rows: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Put new rows, of the same columns, behind others; a column may be empty in them."""
    new = new.set_axis(rows.columns, axis=1)
    empty = [name for name in rows.columns if new[name].isna().all()]
    types = {
        name: "Int64" if pd.api.types.is_integer_dtype(rows[name]) else rows[name].dtype
        for name in empty
        if not pd.api.types.is_bool_dtype(rows[name])
    }
    rows = rows.astype({name: dtype for name, dtype in types.items() if dtype == "Int64"})
    return pd.concat([rows, new.astype(types)], ignore_index=True)


def _storable(rows: pd.DataFrame) -> pd.DataFrame:
    """Turn columns that Parquet cannot hold (mixed types, intervals) into text."""
    columns = {}
    for place, name in enumerate(rows.columns):
        column = rows.iloc[:, place]
        try:
            pa.Array.from_pandas(column)
            if isinstance(column.dtype, pd.CategoricalDtype):
                _refuse_odd_categories(column.dtype)
        except (pa.ArrowException, TypeError):
            column = column.astype(object).map(str, na_action="ignore")
        columns[name] = column
    return pd.DataFrame(columns)


def _refuse_odd_categories(dtype: pd.CategoricalDtype) -> None:
    if isinstance(dtype.categories.dtype, pd.IntervalDtype | pd.PeriodDtype):
        raise TypeError(f"categories of {dtype.categories.dtype} come back from no Parquet file")


def unpack_rows(folder: Folder) -> pd.DataFrame | np.ndarray:
    """Training rows from what `pack_rows` returned."""
    if "rows" in folder.tensors:
        array: np.ndarray = folder.tensors["rows"].numpy()
        return array
    return pd.read_parquet(io.BytesIO(folder.blobs["rows"]))
