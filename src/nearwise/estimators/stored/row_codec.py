"""Encoding of original rows as bytes, one by one, for a store."""

import base64
import contextlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from nearwise.estimators.storage.row_storage import append_frame, storable
from nearwise.memory.arrow import frame_of, read_rows, tensors_of

_NUMBER = 2  # bytes in front of a row: number of its schema
_ROW, _FILE = "row", "file"  # columns for rows of an array
_SHOWN = b"nearwise.shown"  # marks the schema of a table whose last column is shown with its rows


class RowCodec:
    """Codec of rows; schemas are stored once, and columns may get new types.

    Parameters
    ----------
    schemas : sequence of str
        Schemas used so far; the attribute `schemas` has new ones at its end.
    """

    def __init__(self, schemas: Sequence[str] = ()) -> None:
        self.schemas = list(schemas)

    def pack(self, rows: pd.DataFrame | np.ndarray, names: np.ndarray | None) -> list[bytes]:
        """Pack rows, and what is shown with them."""
        return self.pack_table(self.table(rows, names))

    def table(self, rows: pd.DataFrame | np.ndarray, names: np.ndarray | None) -> pa.Table:
        """Convert rows to a table for `pack_table`, and register its schema."""
        table = _as_table(rows, names)
        for text in self.schemas:  # an empty column, for example, gets its earlier type
            known = _schema(text)
            if known.names == table.schema.names:
                with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
                    return table.cast(known)
        self.schemas.append(_text(table.schema))
        return table

    def pack_table(self, table: pa.Table) -> list[bytes]:
        """Pack rows of a table from `table`."""
        mark = self.schemas.index(_text(table.schema)).to_bytes(_NUMBER, "little")
        return [
            mark + batch.slice(i, 1).serialize().to_pybytes()
            for batch in table.to_batches()
            for i in range(batch.num_rows)
        ]

    def unpack(
        self, packed: Sequence[bytes]
    ) -> tuple[pd.DataFrame | np.ndarray, np.ndarray | None]:
        """Unpack one or more rows, and what is shown with them, or None."""
        marks = np.array([int.from_bytes(row[:_NUMBER], "little") for row in packed])
        tables, order = [], []
        for mark in np.unique(marks):
            if mark >= len(self.schemas):
                raise ValueError(f"a row has the schema {mark} of {len(self.schemas)}")
            at = np.flatnonzero(marks == mark)
            of_mark = [packed[i][_NUMBER:] for i in at.tolist()]
            tables.append(read_rows(of_mark, _schema(self.schemas[mark])))
            order.append(at)
        back = np.argsort(np.concatenate(order))
        parts, texts = zip(*map(_without_texts, tables), strict=True)
        names = None
        if any(own is not None for own in texts):
            filled = (own or [""] * len(part) for part, own in zip(parts, texts, strict=True))
            names = np.array([text for own in filled for text in own], dtype=object)[back]
        if tables[0].schema.pandas_metadata is None:
            return np.concatenate([tensors_of(table, _ROW) for table in parts])[back], names
        rows, *others = map(frame_of, parts)
        for other in others:
            rows = append_frame(rows, other)
        return rows.iloc[back].reset_index(drop=True), names


def _text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _without_texts(table: pa.Table) -> tuple[pa.Table, list[str] | None]:
    """Split off the texts that are shown with rows, if there are any."""
    schema = table.schema
    of_array = schema.pandas_metadata is None and _FILE in schema.names
    if not (of_array or _SHOWN in (schema.metadata or {})):
        return table, None
    last = table.num_columns - 1
    texts = [str(text or "") for text in table.column(last).to_pylist()]
    return table.remove_column(last), texts


def _as_table(rows: pd.DataFrame | np.ndarray, names: np.ndarray | None) -> pa.Table:
    if isinstance(rows, np.ndarray):
        columns = {_ROW: pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(rows))}
        return pa.table(columns if names is None else columns | {_FILE: pa.array(names.tolist())})
    table = pa.Table.from_pandas(storable(rows), preserve_index=False)
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):  # its values would need a separate message
            plain = table.column(i).cast(field.type.value_type)
            table = table.set_column(i, field.name, plain)
    if names is not None:
        marked = table.schema.metadata | {_SHOWN: b""}
        table = table.append_column(_FILE, pa.array(names.tolist(), pa.string()))
        table = table.replace_schema_metadata(marked)
    return table.combine_chunks()
