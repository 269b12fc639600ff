"""Bulk: immutable files of a store on disk, with most of its rows.

Rows are in a Lance data set; FAISS IVF-Flat indexes beside it are memory-mapped page by page.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch

from nearwise.cached import cached_property
from nearwise.functional import topk_neighbors
from nearwise.memory.arrow import checked
from nearwise.memory.index import ExactIndex
from nearwise.memory.make_index import AUTO_EXACT_BELOW
from nearwise.memory.store import StoreError, sync_folder
from nearwise.memory.stores.access import OneProcess, package
from nearwise.memory.stores.bulk_files import (
    IDS,
    Files,
    check_digests,
    check_sizes,
    noted,
    read_ids,
    torn,
)
from nearwise.memory.stores.protocol import BATCH, SPARE, Schema, SpaceSchema, StoredRows
from nearwise.memory.stores.recall import JUDGED_BY, RECALL_QUERIES, widened
from nearwise.memory.ties import tie_order, tie_ranks

_ROWS = "rows.lance"
_ROWS_PER_CELL = 39  # that FAISS needs to train the center of a cell
_FEWEST_PROBES = 16  # searched cells, at first
_LISTS = ".lists"  # suffix of a file with the merged cells of several indexes
_SHARD = 2**30  # bytes of keys per index in memory
_ID_BYTES = 8  # per row, stored by FAISS beside its key


class Bulk(OneProcess):
    """Rows in files, in the order of their ids.

    Parameters
    ----------
    folder : path
    schema : Schema
    probes : dict of str to int
        Number of searched cells per space; 0: exact search of all rows.
    files : Files, optional
        Sizes and checksums recorded by `write`.

    Raises
    ------
    StoreError
        If the sizes of the files or the checksum of the ids differ from the recorded ones.
    """

    def __init__(
        self, folder: Path, schema: Schema, probes: dict[str, int], files: Files | None = None
    ) -> None:
        super().__init__()
        check_sizes(folder, files)
        self.folder, self.schema, self.probes, self.files = folder, schema, probes, files
        self.ids = read_ids(folder, files)
        self._exact: dict[str, ExactIndex] = {}
        self._mapped: dict[str, Any] = {}

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Raise a StoreError if the files are missing or cannot be read."""
        try:
            yield
        except BaseException as error:
            # A panic of Lance (Rust) is no Exception.
            unreadable = isinstance(error, ValueError | RuntimeError) or (
                type(error).__name__ == "PanicException"
            )
            if (unreadable or isinstance(error, OSError)) and not self.folder.is_dir():
                raise StoreError(
                    "changed",
                    "Rows were rewritten twice since this version was opened, and its files are "
                    "gone. Open the model again.",
                ) from error
            if unreadable and not isinstance(error, StoreError):
                raise torn(self.folder, f"they cannot be read ({error})") from error
            raise

    @cached_property
    def _rows(self) -> Any:
        described = f"{_ROWS}/_"  # Lance's metadata files
        files = (self.files or {}).items()
        check_digests(self.folder, {n: file for n, file in files if n.startswith(described)})
        rows = package("lance").dataset(str(self.folder / _ROWS))
        parts = [part for fragment in rows.get_fragments() for part in fragment.data_files()]
        if rows.base_paths() or any(part.base_id is not None for part in parts):
            raise torn(self.folder, f"{_ROWS} names files elsewhere")
        if rows.schema != self.schema.no_rows().to_arrow().schema:
            raise torn(self.folder, f"{_ROWS} has other columns than the store")
        if rows.count_rows() != len(self.ids):
            raise torn(self.folder, f"{_ROWS} has {rows.count_rows()} rows for {len(self.ids)} ids")
        return rows

    @cached_property
    def _order(self) -> np.ndarray:
        """Positions of the rows in tie order, for exact searches."""
        return tie_order(self.ids)

    def search(
        self, space: str, query: np.ndarray, k: int, probes: int | None = None
    ) -> np.ndarray:
        """Positions of candidates, (n_queries, k); -1 if the searched cells hold fewer."""
        if self.probes[space]:
            with self._there():
                index = self._index(space)
            n_cells = self.probes[space] if probes is None else probes
            parameters = package("faiss").SearchParametersIVF(nprobe=n_cells)
            vectors = _as_indexed(query, self.schema.spaces[space])
            found: np.ndarray = index.search(vectors, k, params=parameters)[1]
            if (found >= len(self.ids)).any():
                raise torn(self.folder, f"the index of the space {space!r} finds what is no row")
            return found
        if space not in self._exact:
            with self._there():
                keys = torch.from_numpy(self._all_keys(space)[self._order])
            self._exact[space] = ExactIndex(self.schema.spaces[space].metric).fit(keys)
        near = self._exact[space].search(torch.from_numpy(query), k).indices
        return self._order[near.numpy()]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Positions of rows by their ids, -1 for ids that are not in the files."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)

    def take(self, positions: np.ndarray, *, rows: bool) -> StoredRows:
        """Return the rows at these positions, in the given order."""
        order = np.argsort(positions)
        with self._there():
            table = self._rows.take(positions[order], columns=self._columns(rows))
            return StoredRows.from_arrow(table).take(np.argsort(order))

    def scan(self) -> Iterator[StoredRows]:
        """Yield all rows in batches, in order of ids."""
        with self._there():
            yield from map(StoredRows.from_arrow, self._batches())

    def keys(self, space: str) -> Iterator[np.ndarray]:
        """Yield all keys of a space in batches, in order of ids."""
        width = self.schema.spaces[space].width
        for batch in self._batches(f"key {space}"):
            # a copy: PyTorch does not support read-only arrays
            yield batch.column(0).flatten().to_numpy().reshape(-1, width).copy()

    def _batches(self, *columns: str) -> Iterator[pa.RecordBatch]:
        """Yield all rows in batches, with some columns or (default) all."""
        with self._there():
            for batch in self._rows.to_batches(columns=[*columns] or None, batch_size=BATCH):
                yield checked(batch)

    def _all_keys(self, space: str) -> np.ndarray:
        nothing = np.empty((0, self.schema.spaces[space].width), np.float32)
        return np.concatenate([nothing, *self.keys(space)])

    def _columns(self, rows: bool) -> list[str]:
        keys = [f"key {name}" for name in self.schema.spaces]
        facts = ["facts"] if self.schema.n_facts else []
        return ["id", "label", "weight", *facts, *keys, *(["row"] if rows else [])]

    def _index(self, space: str) -> Any:
        if space not in self._mapped:
            self._mapped[space] = self._read_index(space)
        return self._mapped[space]

    def _read_index(self, space: str) -> Any:
        """Memory-map an index, and check that it fits the rows and its file."""
        faiss, path, schema = package("faiss"), self._path(space), self.schema.spaces[space]
        lists, flags = path.with_suffix(_LISTS), faiss.IO_FLAG_READ_ONLY
        flags |= faiss.IO_FLAG_SKIP_IVF_DATA if lists.exists() else faiss.IO_FLAG_MMAP
        try:
            index = faiss.read_index(str(path), flags)
        except RuntimeError as error:
            raise torn(self.folder, f"{path.name} cannot be read ({error})") from error
        kept = (type(index), index.d, index.ntotal, index.metric_type)
        if kept != (faiss.IndexIVFFlat, schema.width, len(self.ids), _faiss_metric(schema)):
            raise torn(self.folder, f"the index of {space!r} is none of its rows")
        cells = faiss.downcast_InvertedLists(index.invlists)
        if not _within(cells, os.path.getsize(lists if lists.exists() else path)):
            raise torn(self.folder, f"the index of {space!r} goes on beyond the end of its file")
        if lists.exists():
            cells.filename = str(lists)  # replaces the file name stored in the index
            cells.do_mmap()
        return index

    def _path(self, space: str) -> Path:
        return self.folder / f"space{list(self.schema.spaces).index(space)}.faiss"

    def check_bytes(self) -> None:
        """Compare every file with its checksum, if recorded; StoreError "torn"."""
        check_sizes(self.folder, self.files)
        check_digests(self.folder, self.files or {})

    def verify(self) -> None:
        """Check every byte, and that ids, rows and indexes are consistent.

        StoreError "torn" names the damaged part.
        """
        self.check_bytes()
        start = 0
        for batch in self._batches("id"):
            ids = batch.column(0).to_numpy()
            if not np.array_equal(ids, self.ids[start : start + len(ids)]):
                raise torn(self.folder, f"{_ROWS} has other ids than {IDS}")
            start += len(ids)
        for space in filter(self.probes.get, self.probes):
            self._verify_index(space)

    def _verify_index(self, space: str) -> None:
        """Compare the vectors of an index with the keys of its rows."""
        index, start = self._read_index(space), 0
        try:
            index.make_direct_map(True)  # each row once
            for keys in self.keys(space):
                indexed = index.reconstruct_batch(np.arange(start, start + len(keys)))
                wanted = _as_indexed(keys, self.schema.spaces[space])
                if not np.allclose(indexed, wanted, rtol=1e-6, atol=1e-7, equal_nan=True):
                    raise torn(self.folder, f"the index of {space!r} has other keys than its rows")
                start += len(keys)
        except (RuntimeError, AssertionError) as error:  # of FAISS
            raise torn(self.folder, f"the index of {space!r} is none of its rows") from error

    # --- writing --------------------------------------------------------------------------------

    @classmethod
    def write(cls, folder: Path, schema: Schema, rows: Iterable[StoredRows]) -> Self:
        """Write rows, given in the order of their ids, and index them."""
        folder.mkdir()
        ids: list[np.ndarray] = [np.empty(0, np.int64)]
        failed: list[BaseException] = []  # exceptions of `rows`; Lance raises its own instead

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                last = -1
                for batch in rows:
                    if (np.diff(batch.ids, prepend=last) <= 0).any():
                        raise ValueError("Rows must come in the order of their ids, each once.")
                    ids.append(batch.ids)
                    last = batch.ids[-1] if len(batch) else last
                    yield batch.to_arrow()
            except BaseException as error:
                failed.append(error)
                raise

        fields = schema.no_rows().to_arrow().schema
        reader = pa.RecordBatchReader.from_batches(fields, batches())
        try:
            package("lance").write_dataset(reader, str(folder / _ROWS))
        except OSError:
            if failed:
                raise failed[0] from None
            raise
        np.save(folder / IDS, np.concatenate(ids))
        bulk = cls(folder, schema, dict.fromkeys(schema.spaces, 0))
        for name, space in schema.spaces.items():
            if len(bulk.ids) >= AUTO_EXACT_BELOW and space.metric != "manhattan":
                bulk.probes[name] = bulk._write_index(name, space)
        for file in folder.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        sync_folder(folder)
        bulk.files = noted(folder)
        return bulk

    def _write_index(self, name: str, space: SpaceSchema) -> int:
        """Build the index of a space; return the number of cells to search."""
        faiss, n_rows = package("faiss"), len(self.ids)
        n_cells = max(1, min(int(4 * n_rows**0.5), n_rows // _ROWS_PER_CELL))
        index = faiss.index_factory(space.width, f"IVF{n_cells},Flat", _faiss_metric(space))
        index.cp.spherical = space.metric == "cosine"
        n_sample = min(n_rows, _ROWS_PER_CELL * n_cells)
        some = np.sort(np.random.default_rng(0).choice(n_rows, n_sample, replace=False))
        sample = self._rows.take(some, columns=[f"key {name}"]).column(0).combine_chunks()
        index.train(_as_indexed(sample.flatten().to_numpy().reshape(-1, space.width), space))
        path, shards, n_added = self._path(name), list[Path](), 0
        empty = faiss.serialize_index(index)
        for keys in self.keys(name):
            at = np.arange(n_added, n_added + len(keys))
            index.add_with_ids(_as_indexed(keys, space), at)
            n_added += len(keys)
            if index.ntotal * space.width * 4 >= _SHARD and n_added < n_rows:
                shards.append(path.with_suffix(f".{len(shards)}"))
                faiss.write_index(index, str(shards[-1]))
                index = faiss.deserialize_index(empty)
        if shards:  # the keys did not fit into memory at once
            from faiss.contrib.ondisk import merge_ondisk

            shards.append(path.with_suffix(f".{len(shards)}"))
            faiss.write_index(index, str(shards[-1]))
            index = faiss.deserialize_index(empty)
            merge_ondisk(index, list(map(str, shards)), str(path.with_suffix(_LISTS)))
            for shard in shards:
                shard.unlink()
        _settle_ties(index, tie_ranks(self.ids))
        faiss.write_index(index, str(path))
        return _FEWEST_PROBES

    def judge(self) -> dict[str, float]:
        """Measure the recall of every space, and search more cells if it is too low."""
        found = {}
        for name, space in self.schema.spaces.items():
            found[name] = 1.0
            if not self.probes[name]:
                continue
            chosen = np.random.default_rng(0).choice(len(self.ids), RECALL_QUERIES, replace=False)
            queries = self.take(np.sort(chosen), rows=False).keys[name]
            search = partial(self.search, name, queries, JUDGED_BY + SPARE)
            true = self._true_neighbors(name, space, queries)
            self.probes[name], found[name] = widened(
                name, search, true, self.probes[name], self.n_cells(name)
            )
        return found

    def n_cells(self, space: str) -> int:
        """Cells of the index of a space."""
        return int(self._index(space).nlist)

    def _true_neighbors(self, name: str, space: SpaceSchema, queries: np.ndarray) -> np.ndarray:
        ranks, start = tie_ranks(self.ids), 0
        distances = np.full((len(queries), 0), np.inf)
        positions = np.full((len(queries), 0), -1)
        for keys in self.keys(name):
            order = start + np.argsort(ranks[start : start + len(keys)])
            rows, k = torch.from_numpy(keys[order - start]), min(JUDGED_BY, len(keys))
            near = topk_neighbors(torch.from_numpy(queries), rows, k, metric=space.metric)
            distances = np.concatenate([distances, near.distances.numpy()], axis=1)
            positions = np.concatenate([positions, order[near.indices.numpy()]], axis=1)
            best = np.lexsort((ranks[positions], distances))[:, :JUDGED_BY]
            distances = np.take_along_axis(distances, best, 1)
            positions = np.take_along_axis(positions, best, 1)
            start += len(keys)
        return positions


def _within(cells: Any, n_bytes: int) -> bool:
    """Whether all cells of an index lie within a file of this many bytes."""
    row, end = cells.code_size + _ID_BYTES, min(cells.totsize, n_bytes)
    found = (cells.lists.at(cell) for cell in range(cells.nlist))
    return cells.totsize <= n_bytes and all(
        one.size <= one.capacity and one.offset + one.capacity * row <= end for one in found
    )


def _faiss_metric(space: SpaceSchema) -> int:
    faiss = package("faiss")
    by_product = space.metric in ("cosine", "inner_product")
    metric: int = faiss.METRIC_INNER_PRODUCT if by_product else faiss.METRIC_L2
    return metric


def _as_indexed(keys: np.ndarray, space: SpaceSchema) -> np.ndarray:
    if space.metric == "cosine":
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True).clip(1e-30)
    return np.ascontiguousarray(keys, np.float32)


def _settle_ties(index: Any, ranks: np.ndarray) -> None:
    """Sort the rows of each cell by their ranks: FAISS returns the first of equal rows."""
    faiss, lists = package("faiss"), index.invlists
    for cell in range(index.nlist):
        n = lists.list_size(cell)
        if n == 0:
            continue
        ids = faiss.rev_swig_ptr(lists.get_ids(cell), n)
        codes = faiss.rev_swig_ptr(lists.get_codes(cell), n * lists.code_size).reshape(n, -1)
        order = np.argsort(ranks[ids])
        ids, codes = ids[order], codes[order]
        lists.update_entries(cell, 0, n, faiss.swig_ptr(ids), faiss.swig_ptr(codes))
