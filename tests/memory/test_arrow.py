"""Arrow bytes from elsewhere are read in full or refused; they never reach other memory."""

import io
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from nearwise.memory.arrow import frame_of, read_rows, read_stream, tensors_of
from nearwise.memory.stores.protocol import StoredRows


def stream(table):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue()


LARGE = pa.large_string(), pa.large_binary()


def forged(content, kind, new):
    """Put numbers in place of the offsets, or indices, of the texts "ab" and "cd"."""
    code = "q" if kind in LARGE else "i"
    old = (0, 1) if pa.types.is_dictionary(kind) else (0, 2, 4)
    head, found, tail = content.rpartition(struct.pack(f"<{len(old)}{code}", *old))
    assert found
    return head + struct.pack(f"<{len(new)}{code}", *new) + tail


INDEXED = pa.dictionary(pa.int32(), pa.string())
FORGED = {
    "an offset behind the end": (pa.string(), (0, 2**30, 2**30 + 5)),
    "an offset before the start": (pa.string(), (0, -5, 3)),
    "offsets that fall": (pa.string(), (0, 5, 2)),
    "a text of two billion bytes": (pa.string(), (0, 1, 2**31 - 1)),
    "a long offset behind the end": (pa.large_string(), (0, 2**40, 2**40 + 1)),
    "bytes behind the end": (pa.binary(), (0, 2**30, 2**30 + 5)),
    "long bytes behind the end": (pa.large_binary(), (0, 2**40, 2**40 + 1)),
    "an index behind the dictionary": (INDEXED, (0, 2**30)),
    "an index before the dictionary": (INDEXED, (0, -3)),
}


def two(kind):
    return pa.table({"a": pa.array(["ab", "cd"], kind)})


@pytest.mark.parametrize("name", FORGED)
def test_what_does_not_lie_in_its_buffer_is_refused(name):
    kind, numbers = FORGED[name]
    content = stream(two(kind))
    assert read_stream(content, 2).num_rows == 2
    with pytest.raises(ValueError, match="rows cannot be decoded"):
        read_stream(forged(content, kind, numbers), 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_text_that_is_no_utf8_is_refused(kind):
    with pytest.raises(ValueError, match="UTF8"):
        read_stream(stream(two(kind)).replace(b"abcd", b"a\xff\xfed"), 2)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_a_packed_row_that_points_elsewhere_is_refused(kind):
    table = two(kind).slice(0, 1)
    row = table.to_batches()[0].serialize().to_pybytes()
    assert read_rows([row, row], table.schema).num_rows == 2
    code = "q" if kind in LARGE else "i"
    before = struct.pack(f"<2{code}", 0, 2)
    assert before in row
    wrong = row.replace(before, struct.pack(f"<2{code}", 2**30, 2**30 + 2))
    with pytest.raises(ValueError, match="rows cannot be decoded"):
        read_rows([row, wrong], table.schema)


def tensors(**options):
    kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], **options)
    flat = pa.array(np.arange(12, dtype=np.float32))
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(flat, 6))


ODD = {
    "lists": pa.array([[1], [2]]),
    "structures": pa.array([{"a": 1}, {"a": 2}]),
    "maps": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "a union": pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
    "runs": pa.RunEndEncodedArray.from_arrays([2], [1]),
    "another extension": pa.ExtensionArray.from_storage(
        pa.opaque(pa.int64(), "type", "vendor"), pa.array([1, 2])
    ),
    "tensors in another order": tensors(permutation=[1, 0]),
    "lists of nothing": pa.array([[], []], pa.list_(pa.float32(), 0)),
}


@pytest.mark.parametrize("name", ODD)
def test_a_type_that_nearwise_never_stores_is_refused(name):
    with pytest.raises(ValueError, match="is of type"):
        read_stream(stream(pa.table({"a": ODD[name]})), 2)


def test_rows_are_as_many_as_they_should_be():
    nothing = pa.table({"a": pa.nulls(2**20)})  # takes no room
    with pytest.raises(ValueError, match=r"1048576 rows instead of 2"):
        read_stream(stream(nothing), 2)
    with pytest.raises(ValueError, match="a row is none, or several"):
        read_rows([nothing.to_batches()[0].serialize().to_pybytes()], nothing.schema)


def test_a_table_that_hides_a_column_is_refused():
    column = {"name": "a", "field_name": "a", "pandas_type": "int64", "numpy_type": "int64"}
    stored = {"index_columns": ["a"], "column_indexes": [], "columns": [column]}
    metadata = {"pandas": json.dumps(stored)}
    table = pa.table({"a": [1, 2], "b": [3, 4]}).replace_schema_metadata(metadata)
    with pytest.raises(ValueError, match="2 columns become 1"):
        frame_of(read_stream(stream(table), 2))


def test_tensors_come_back_and_gaps_are_refused():
    table = pa.table({"row": tensors()})
    assert tensors_of(read_stream(stream(table), 2), "row").shape == (2, 2, 3)
    gaps = pa.table({"row": pa.array([None, None], tensors().type)})
    for wrong in (gaps, pa.table({"row": [1, 2]}), pa.table({"other": tensors()})):
        with pytest.raises(ValueError, match="rows cannot be decoded"):
            tensors_of(read_stream(stream(wrong), 2), "row")


ROWS = StoredRows(
    np.arange(2), np.arange(2), np.ones(2, np.float32),
    {"features": np.ones((2, 3), np.float32)}, np.ones((2, 1), np.float32), [b"a", b"b"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("id", pa.array([0.0, 1.0])),
        ("label", pa.array([0, None])),
        ("weight", pa.array([1.0, 1.0])),
        ("row", pa.array([b"a", None], pa.large_binary())),
        ("row", pa.array(["a", "b"])),
        ("key features", pa.array([1, 2])),
        ("key features", pa.array([[1.0] * 3, None], pa.list_(pa.float32(), 3))),
        ("facts", pa.array([[1.0], [1.0]], pa.list_(pa.float64(), 1))),
    ],
)
def test_rows_of_a_store_have_the_types_that_were_written(name, column):
    batch = ROWS.to_arrow()
    assert StoredRows.from_arrow(batch).rows == [b"a", b"b"]
    at = batch.schema.names.index(name)
    with pytest.raises(ValueError, match=r"of type|cannot be decoded"):
        StoredRows.from_arrow(batch.set_column(at, name, column))


def test_damaged_bytes_are_an_error_or_rows_and_never_end_the_process():
    here = os.path.dirname(__file__)
    done = subprocess.run(
        [sys.executable, os.path.join(here, "damaged_arrow.py"), "1", "600"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    refused, read = map(int, done.stdout.split())
    assert refused > 200 and read > 50
