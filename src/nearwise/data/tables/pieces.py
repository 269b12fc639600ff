"""Tables in pieces: files of a folder, and runs of rows of a file."""

from collections.abc import Collection
from itertools import accumulate
from pathlib import Path

import pandas as pd

from nearwise.data.tables.cells import Cells
from nearwise.data.tables.documents import parse_parquet, rows_of_groups
from nearwise.data.tables.files import PARQUET_MAGIC, is_table, open_table, read_cells
from nearwise.data.tables.numeric_columns import Learned
from nearwise.data.tables.unpack import Note
from nearwise.names import listed
from nearwise.warn import warn_user

PIECE_ROWS, PIECE_BYTES = 20_000, 4 << 20  # of Parquet; of any other file


def table_files(folder: Path) -> list[Path]:
    """List the tables in a folder and the folders within it, by their endings, sorted.

    What begins with "." or "_" is skipped; other files are left out with a warning. ValueError
    if there is no table.
    """
    inside = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    shown = sorted(p for p in inside if not any(part.startswith((".", "_")) for part in p.parts))
    tables = [folder / path for path in shown if is_table(path)]
    others = [str(path) for path in shown if not is_table(path)]
    if not tables:
        but = f", but {listed(others, n=5)}" if others else ""
        raise ValueError(f"The folder {folder} holds no table{but}. Give a folder of tables.")
    if others:
        warn_user(f"{folder}: {listed(others, n=5)} left out: not a table by its ending.")
    return tables


def count_pieces(path: Path, piece_rows: int = PIECE_ROWS, piece_bytes: int = PIECE_BYTES) -> int:
    """Return in how many pieces a table may be read, by its size, without reading its rows.

    0 for a Parquet file without rows.
    """
    groups = _groups(path)
    if groups is not None and not sum(groups):
        return 0
    size, most = (path.stat().st_size, piece_bytes) if groups is None else (sum(groups), piece_rows)
    return max(1, -(-size // most))


class PieceReader:
    """Reads pieces of tables as `read_table` reads the whole: the same values and types.

    From Parquet only the row groups that hold the piece are read, from any other file all of it.
    What was read last is kept for the next piece.
    """

    def __init__(self) -> None:
        self._held: tuple[object, tuple[pd.DataFrame, Cells]] | None = None

    def read(
        self,
        path: Path,
        piece: int,
        n_pieces: int,
        *,
        header: bool | None = None,
        known: Collection[str] = (),
        like: Learned | None = None,
        note: Note | None = None,
    ) -> tuple[pd.DataFrame, Cells, slice]:
        """Read piece number `piece`, from 0, of `n_pieces` of about as many rows each.

        Gives a table, its cells as in `read_cells`, and which of its rows are the piece.
        """
        groups = None if n_pieces == 1 or header is False else _groups(path)
        if not groups:
            if self._held is None or self._held[0] != path:
                self._held = None  # of two tables one is in memory
                self._held = (
                    path,
                    read_cells(path, header=header, known=known, like=like, note=note),
                )
            table, cells = self._held[1]
            start, stop = _bounds(len(table), piece, n_pieces)
        else:
            ends = list(accumulate(groups))
            start, stop = _bounds(ends[-1], piece, n_pieces)
            taken = [i for i, end in enumerate(ends) if start < end and end - groups[i] < stop]
            if self._held is None or self._held[0] != (path, taken):
                self._held = None
                some = parse_parquet(path, str(path), taken)
                self._held = (path, taken), (some, lambda names: some[list(names)])
            table, cells = self._held[1]
            before = ends[taken[0]] - groups[taken[0]]
            start, stop = start - before, stop - before
        return table, cells, slice(start, stop)


def _bounds(n_rows: int, piece: int, n_pieces: int) -> tuple[int, int]:
    return n_rows * piece // n_pieces, n_rows * (piece + 1) // n_pieces


def _groups(path: Path) -> list[int] | None:
    """Rows of each row group of a Parquet file; None if it is read as a whole."""
    with open_table(path) as file:
        if file.read(len(PARQUET_MAGIC)) != PARQUET_MAGIC:
            return None
    return rows_of_groups(path, str(path))
