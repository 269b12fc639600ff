"""Decode Arrow data of uncertain origin after a full check.

Arrow uses stored offsets, lengths and indices without a check and may read outside the buffer. So
stored bytes are decoded here only: plain column types, the expected number of rows, and every
buffer valid for its type.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_EXTENSIONS = ("arrow.fixed_shape_tensor", "pandas.period", "pandas.interval")


def read_stream(stored: bytes, n_rows: int | None = None) -> pa.Table:
    """Read a table from an IPC stream.

    Parameters
    ----------
    stored : bytes
    n_rows : int, optional
        Expected number of rows; needed if no column has a buffer, such as a column of nulls.

    Raises
    ------
    ValueError
        If it is damaged, or was not written by nearwise.
    """
    with _explained(), pa.ipc.open_stream(pa.py_buffer(stored)) as stream:
        _check_types(stream.schema)
        return _checked(stream.read_all(), n_rows)


def read_rows(stored: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Read a table from record batches of one row each; ValueError as from `read_stream`."""
    with _explained():
        _check_types(schema)
        batches = [pa.ipc.read_record_batch(pa.py_buffer(row), schema) for row in stored]
        if any(batch.num_rows != 1 for batch in batches):
            raise ValueError("a row is none, or several")
        return _checked(pa.Table.from_batches(batches, schema))


def checked(table: pa.Table | pa.RecordBatch, n_rows: int | None = None) -> Any:
    """Validate every buffer of a table and return the table; ValueError as from `read_stream`."""
    with _explained():
        return _checked(table, n_rows)


def _checked(table: Any, n_rows: int | None = None) -> Any:
    _check_types(table.schema)
    if n_rows is not None and table.num_rows != n_rows:
        raise ValueError(f"there are {table.num_rows} rows instead of {n_rows}")
    table.validate(full=True)
    return table


def tensors_of(table: pa.Table, name: str) -> np.ndarray:
    """Return a column of tensors as an array; ValueError for another type or missing values."""
    with _explained():
        column = table.column(name)
        if not isinstance(column.type, pa.FixedShapeTensorType) or column.null_count:
            raise ValueError(f"the column {name!r} holds no arrays, or not one in each row")
        array: np.ndarray = column.combine_chunks().to_numpy_ndarray()
        return array


def frame_of(table: pa.Table) -> Any:
    """Turn a checked table into a DataFrame; ValueError if its pandas metadata is wrong."""
    with _explained():
        frame = table.to_pandas(integer_object_nulls=True)
        if frame.shape != table.shape:  # the metadata declares columns to be an index
            raise ValueError(f"{table.shape[1]} columns become {frame.shape[1]}")
        return frame


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Raise every decoding error as a ValueError, since stored bytes may be arbitrary."""
    try:
        yield
    except (MemoryError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"rows cannot be decoded: {error}") from error


def _check_types(schema: pa.Schema) -> None:
    for field in schema:
        if not _is_known(field.type):
            raise ValueError(f"the column {field.name!r} is of type {field.type}")


def _is_known(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return kind.extension_name in _EXTENSIONS and _is_sound(kind)
    if pa.types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size > 0 and pa.types.is_primitive(kind.value_type)
    return _is_plain(kind)


def _is_plain(kind: pa.DataType) -> bool:
    odd = pa.types.is_nested, pa.types.is_run_end_encoded, pa.types.is_dictionary
    return not isinstance(kind, pa.BaseExtensionType) and not any(one(kind) for one in odd)


def _is_sound(kind: pa.BaseExtensionType) -> bool:
    """Whether the parameters of an extension type match its storage type."""
    if isinstance(kind, pa.FixedShapeTensorType):
        size = 1
        for width in kind.shape:
            size *= max(width, 0)
        ordered = kind.permutation is None or list(kind.permutation) == list(range(len(kind.shape)))
        numbers = pa.types.is_primitive(kind.value_type)
        return bool(numbers and ordered and size == kind.storage_type.list_size)
    return all(_is_plain(part.type) for part in _parts(kind.storage_type))


def _parts(kind: pa.DataType) -> list[pa.Field]:
    named = pa.types.is_struct(kind)
    return [kind.field(i) for i in range(kind.num_fields)] if named else [pa.field("", kind)]
