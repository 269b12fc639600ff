"""Pieces of tables: the rows of the whole, with the types they have there."""

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nearwise.data.tables.files import read_table
from nearwise.data.tables.pieces import PieceReader, count_pieces, table_files


def test_a_folder_without_tables_is_refused(tmp_path):
    (tmp_path / "read.me").touch()
    with pytest.raises(ValueError, match=r"holds no table, but 'read.me'"):
        table_files(tmp_path)
    (tmp_path / "a.csv.gz").touch()
    with pytest.warns(UserWarning, match=r"'read.me' left out"):
        assert table_files(tmp_path) == [tmp_path / "a.csv.gz"]


def odd_table() -> pa.Table:
    """Types that depend on gaps, which are in one row group each."""
    n = 23
    gap = [i in (3, 20) for i in range(n)]
    numbers = [None if missing else i for i, missing in enumerate(gap)]
    return pa.table(
        {
            "int": pa.array(numbers, pa.int8()),
            "whole": pa.array(range(n), pa.int64()),
            "bool": pa.array([None if v is None else v % 2 == 0 for v in numbers]),
            "decimal": pa.array(numbers, pa.decimal128(6, 2)),
            "text": [None if v is None else f"t{v}" for v in numbers],
            "date": pa.array(numbers, pa.timestamp("us")),
            "kind": pa.array([f"k{i % 3}" for i in range(n)]).dictionary_encode(),
        }
    )


@pytest.mark.parametrize("n_pieces", [1, 2, 5, 23])
@pytest.mark.parametrize("suffix", ["parquet", "csv", "nostats.parquet"])
def test_pieces_are_the_rows_of_the_whole_with_its_types(tmp_path, suffix, n_pieces):
    path = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        odd_table().to_pandas().to_csv(path, index=False)
    else:
        stats = suffix == "parquet"
        pq.write_table(odd_table(), path, row_group_size=5, write_statistics=stats)
    whole, reader = read_table(path), PieceReader()
    tables = [reader.read(path, i, n_pieces) for i in range(n_pieces)]
    found = [table.iloc[rows].reset_index(drop=True) for table, _, rows in tables]
    for piece in found:
        assert (piece.dtypes.drop("kind") == whole.dtypes.drop("kind")).all()
    joined = pd.concat([piece.astype({"kind": str}) for piece in found], ignore_index=True)
    pd.testing.assert_frame_equal(joined, whole.astype({"kind": str}))


def test_pieces_are_counted_by_size(tmp_path):
    pq.write_table(odd_table(), tmp_path / "t.parquet", row_group_size=5)
    assert count_pieces(tmp_path / "t.parquet", piece_rows=5) == 5
    (tmp_path / "t.csv").write_text("x\n" + "1\n" * 50)
    assert count_pieces(tmp_path / "t.csv", piece_bytes=51) == 2
    assert count_pieces(tmp_path / "t.csv") == 1
    with pytest.raises(FileNotFoundError, match="Did you mean"):
        count_pieces(tmp_path / "tt.csv")
