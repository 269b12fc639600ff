"""DiskStore: rows in a folder, most of them in Lance and FAISS files that are read where needed.

Rows lie in a Lance data set, and below it FAISS IVF-Flat indexes that the operating system maps
into memory page by page. What changed since those were written is in a journal (SQLite) and held in
memory, where it is searched exactly. `snapshot` writes both again, and only then drops the old.
"""

import contextlib
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import torch

from nearwise.functional import topk_neighbors
from nearwise.memory.index import ExactIndex
from nearwise.memory.journal import Change, Journal
from nearwise.memory.make_index import AUTO_EXACT_BELOW
from nearwise.memory.store import (
    StoreError,
    folder_generation,
    locked_folder,
    read_folder,
    sync_folder,
    write_folder,
)
from nearwise.memory.stores.access import OneProcess, package
from nearwise.memory.stores.protocol import (
    BATCH,
    SPARE,
    Edit,
    Schema,
    Snapshot,
    SpaceSchema,
    StoredRows,
    refuse_unknown,
    replaced,
)
from nearwise.memory.stores.recall import JUDGED_BY, RECALL_QUERIES, widened
from nearwise.memory.ties import tie_order, tie_ranks
from nearwise.warn import warn_user

KIND = "rows on disk"
_VERSION = 1
_HEAD, _IDS, _ROWS = "head", "ids.npy", "rows.lance"
_PART = {"put": "store/put", "removed": "store/removed", "summary": "store/summary"}  # of a change
_ROWS_PER_CELL = 39  # that FAISS needs to find the center of a cell
_FEWEST_PROBES = 16  # cells that are searched
_LISTS = ".lists"  # ending of a file with cells that were merged from several indexes
_SHARD = 2**30  # bytes of keys that are indexed at once


class _Head(NamedTuple):
    """Properties of the folder; `probes` are the cells searched in each space, 0: all."""

    generation: str
    lineage: str
    version: int
    bulk: str
    schema: Schema
    summary: dict[str, Any]
    probes: dict[str, int]


class _Bulk(OneProcess):
    """Rows in files, in the order of their ids."""

    def __init__(self, folder: Path, schema: Schema, probes: dict[str, int]) -> None:
        super().__init__()
        self.folder, self.schema, self.probes = folder, schema, probes
        self.ids: np.ndarray = np.load(folder / _IDS, mmap_mode="r")
        self._exact: dict[str, ExactIndex] = {}
        self._mapped: dict[str, Any] = {}

    @contextlib.contextmanager
    def _there(self) -> Iterator[None]:
        """Raise if the files are gone by now."""
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if self.folder.is_dir():
                raise
            raise StoreError(
                "changed",
                "Rows were rewritten twice since this version was opened, and its files are "
                "gone. Open the model again.",
            ) from error

    @cached_property
    def _rows(self) -> Any:
        return package("lance").dataset(str(self.folder / _ROWS))

    @cached_property
    def _order(self) -> np.ndarray:
        """Positions in the order in which equally near rows are found, where search is exact."""
        return tie_order(self.ids)

    def search(
        self, space: str, query: np.ndarray, k: int, probes: int | None = None
    ) -> np.ndarray:
        """Positions of candidates, (n_queries, k); -1 where the cells searched hold no more."""
        if self.probes[space]:
            with self._there():
                index = self._index(space)
            n_cells = self.probes[space] if probes is None else probes
            parameters = package("faiss").SearchParametersIVF(nprobe=n_cells)
            vectors = _as_indexed(query, self.schema.spaces[space])
            found: np.ndarray = index.search(vectors, k, params=parameters)[1]
            return found
        if space not in self._exact:
            with self._there():
                keys = torch.from_numpy(self._all_keys(space)[self._order])
            self._exact[space] = ExactIndex(self.schema.spaces[space].metric).fit(keys)
        near = self._exact[space].search(torch.from_numpy(query), k).indices
        return self._order[near.numpy()]

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Positions of rows by their ids, -1 where they are not in the files."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)

    def take(self, positions: np.ndarray, *, rows: bool) -> StoredRows:
        """Give rows by their positions, in that order."""
        order = np.argsort(positions)
        with self._there():
            table = self._rows.take(positions[order], columns=self._columns(rows))
        return StoredRows.from_arrow(table).take(np.argsort(order))

    def scan(self) -> Iterator[StoredRows]:
        """Give all rows, in order."""
        for batch in self._rows.to_batches(batch_size=BATCH):
            yield StoredRows.from_arrow(batch)

    def keys(self, space: str) -> Iterator[np.ndarray]:
        """Give all keys of a space, in order."""
        width = self.schema.spaces[space].width
        for batch in self._rows.to_batches(columns=[f"key {space}"], batch_size=BATCH):
            # a copy: PyTorch takes no arrays that are read-only
            yield batch.column(0).flatten().to_numpy().reshape(-1, width).copy()

    def _all_keys(self, space: str) -> np.ndarray:
        nothing = np.empty((0, self.schema.spaces[space].width), np.float32)
        return np.concatenate([nothing, *self.keys(space)])

    def _columns(self, rows: bool) -> list[str]:
        keys = [f"key {name}" for name in self.schema.spaces]
        facts = ["facts"] if self.schema.n_facts else []
        return ["id", "label", "weight", *facts, *keys, *(["row"] if rows else [])]

    def _index(self, space: str) -> Any:
        if space not in self._mapped:
            faiss, path = package("faiss"), self._path(space)
            flags = faiss.IO_FLAG_READ_ONLY | faiss.IO_FLAG_ONDISK_SAME_DIR
            if not path.with_suffix(_LISTS).exists():  # which are mapped without this flag only
                flags |= faiss.IO_FLAG_MMAP
            self._mapped[space] = faiss.read_index(str(path), flags)
        return self._mapped[space]

    def _path(self, space: str) -> Path:
        return self.folder / f"space{list(self.schema.spaces).index(space)}.faiss"

    # --- writing --------------------------------------------------------------------------------

    @classmethod
    def write(cls, folder: Path, schema: Schema, rows: Iterable[StoredRows]) -> Self:
        """Write rows, given in the order of their ids, and index them."""
        folder.mkdir()
        ids: list[np.ndarray] = [np.empty(0, np.int64)]
        failed: list[BaseException] = []  # in `rows`; Lance would raise an error of its own

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
        np.save(folder / _IDS, np.concatenate(ids))
        bulk = cls(folder, schema, dict.fromkeys(schema.spaces, 0))
        for name, space in schema.spaces.items():
            if len(bulk.ids) >= AUTO_EXACT_BELOW and space.metric != "manhattan":
                bulk.probes[name] = bulk._write_index(name, space)
        for file in folder.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        sync_folder(folder)
        return bulk

    def _write_index(self, name: str, space: SpaceSchema) -> int:
        """Index a space, and say how many cells are to be searched."""
        faiss, n_rows = package("faiss"), len(self.ids)
        n_cells = max(1, min(int(4 * n_rows**0.5), n_rows // _ROWS_PER_CELL))
        by_product = space.metric in ("cosine", "inner_product")
        metric = faiss.METRIC_INNER_PRODUCT if by_product else faiss.METRIC_L2
        index = faiss.index_factory(space.width, f"IVF{n_cells},Flat", metric)
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
        if shards:  # more than is held at once
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
        """Measure the recall of every space, and search more cells where it is too low."""
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


def _as_indexed(keys: np.ndarray, space: SpaceSchema) -> np.ndarray:
    if space.metric == "cosine":
        keys = keys / np.linalg.norm(keys, axis=1, keepdims=True).clip(1e-30)
    return np.ascontiguousarray(keys, np.float32)


def _settle_ties(index: Any, ranks: np.ndarray) -> None:
    """Put the rows of each cell in the order of these ranks: FAISS finds the first of copies."""
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


class _Tail(NamedTuple):
    """What came since the files were written: rows, and ids in the files that count no more."""

    rows: StoredRows
    hidden: np.ndarray

    def changed(self, bulk: _Bulk, put: StoredRows, removed: np.ndarray) -> "_Tail":
        gone = np.concatenate([put.ids, removed])
        stays = ~np.isin(self.rows.ids, gone)
        rows = StoredRows.joined([self.rows.take(stays), put])
        rows = rows.take(np.argsort(rows.ids))
        return _Tail(rows, np.union1d(self.hidden, gone[bulk.places(gone) >= 0]))


class DiskReader:
    """One version of a `DiskStore`; see `RowReader`."""

    def __init__(self, bulk: _Bulk, tail: _Tail, version: int, summary: dict[str, Any]) -> None:
        self._bulk, self._tail = bulk, tail
        self.version, self.summary = version, summary

    @cached_property
    def _tail_in_order(self) -> StoredRows:
        """Rows of the tail in the order in which equally near ones are found."""
        return self._tail.rows.take(tie_order(self._tail.rows.ids))

    def search(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None = None
    ) -> np.ndarray:
        """Find candidates; see `RowReader.search`."""
        self._bulk.refuse_fork()
        parts = [self._in_bulk(space, query, k, exclude)]
        rows = self._tail_in_order
        if len(rows):
            metric = self._bulk.schema.spaces[space].metric
            keys = torch.from_numpy(rows.keys[space])
            wanted = min(len(rows), k + (exclude is not None))
            near = topk_neighbors(torch.from_numpy(query), keys, wanted, metric=metric)
            parts.append(_without(rows.ids[near.indices.numpy()], exclude))
        return np.concatenate(parts, axis=1)

    def _in_bulk(
        self, space: str, query: np.ndarray, k: int, exclude: np.ndarray | None
    ) -> np.ndarray:
        n_rows = len(self._bulk.ids)
        if not n_rows:
            return np.empty((len(query), 0), np.int64)
        enough = min(k, n_rows - len(self._tail.hidden) - (exclude is not None))
        wanted = min(n_rows, k + SPARE + (exclude is not None))
        probes = self._bulk.probes[space]
        while True:
            positions = self._bulk.search(space, query, wanted, probes)
            ids = np.where(positions >= 0, self._bulk.ids[np.maximum(positions, 0)], -1)
            ids[np.isin(ids, self._tail.hidden)] = -1
            ids = _without(ids, exclude)
            too_few = (ids >= 0).sum(1) < enough
            if not too_few.any():
                return ids
            if wanted < n_rows and (positions[too_few] >= 0).all(1).any():
                wanted = min(n_rows, 2 * wanted)
            elif probes < (n_cells := self._bulk.n_cells(space) if probes else 0):
                probes = min(2 * probes, n_cells)
            else:
                return ids

    def fetch(self, ids: np.ndarray, *, rows: bool = False) -> StoredRows:
        """Give rows by id; see `RowReader.fetch`."""
        self._bulk.refuse_fork()
        tail = self._tail.rows if rows else replace(self._tail.rows, rows=None)
        new = np.isin(ids, tail.ids)
        at = self._bulk.places(ids)
        there = (at >= 0) & ~np.isin(ids, self._tail.hidden)
        refuse_unknown(ids, new | there)
        parts = [tail.take(np.searchsorted(tail.ids, ids[new]))]
        if there.any():
            parts.append(self._bulk.take(at[there], rows=rows))
        return StoredRows.joined(parts).by_id(ids)

    def scan(self) -> Iterator[StoredRows]:
        """Give all rows in the order of their ids; see `RowReader.scan`."""
        self._bulk.refuse_fork()
        tail, hidden = self._tail.rows, self._tail.hidden
        n_given = 0
        for batch in self._bulk.scan():
            n_until = int(np.searchsorted(tail.ids, batch.ids[-1], side="right"))
            between = tail.take(np.arange(n_given, n_until))
            n_given = n_until
            kept = StoredRows.joined([batch.take(~np.isin(batch.ids, hidden)), between])
            yield kept.take(np.argsort(kept.ids))
        for start in range(n_given, len(tail), BATCH):
            yield tail.take(np.arange(start, min(start + BATCH, len(tail))))


def _without(ids: np.ndarray, exclude: np.ndarray | None) -> np.ndarray:
    return ids if exclude is None else np.where(ids == exclude[:, None], -1, ids)


class DiskStore(OneProcess):
    """Rows in a folder that holds more than memory does; see `RowStore`.

    Below 100,000 rows, and for the metric "manhattan", searches are exact and the keys are held in
    memory.

    A snapshot keeps the files before it for those who still read them, and the next one removes
    them: what removed rows held is gone from the disk with the second snapshot after their removal.
    """

    wait: float | None = None

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = self.place = self.located(uri)
        self._journal = Journal(self._head_folder)
        self._head = _read_head(self._head_folder)
        self._open()

    @property
    def _head_folder(self) -> Path:
        return Path(self.uri) / _HEAD

    @staticmethod
    def located(uri: str) -> str:
        """Give the absolute path; see `Engine.located`."""
        return os.path.abspath(uri)

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "DiskStore":
        """Make a store in a folder that is new or empty; see `Engine.create`."""
        folder = Path(uri)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError("foreign", f"{folder} is there already. Give a new or empty folder.")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"bulk-{secrets.token_hex(4)}"
        try:
            bulk = _Bulk.write(folder / name, schema, rows)
            bulk.judge()
            lineage = secrets.token_hex(8)
            head = _Head("", lineage, 0, name, schema, summary, bulk.probes)
            _write_head(folder / _HEAD, head, None)
        except BaseException:
            shutil.rmtree(folder / name, ignore_errors=True)
            raise
        return cls(uri)

    @classmethod
    def open(cls, uri: str) -> "DiskStore":
        """Open a store; see `Engine.open`."""
        return cls(uri)

    @property
    def schema(self) -> Schema:
        """What is kept of each row."""
        return self._head.schema

    @property
    def lineage(self) -> str:
        """Name of the memory that versions count from."""
        return self._head.lineage

    def _open(self) -> None:
        found = _read_head(self._head_folder)
        if found.lineage != self.lineage:
            raise replaced(self.place)
        self._head = found
        bulk = _Bulk(Path(self.uri) / self._head.bulk, self.schema, self._head.probes)
        tail = _Tail(self.schema.no_rows(), np.empty(0, np.int64))
        self._reader = DiskReader(bulk, tail, self._head.version, self._head.summary)

    def reader(self) -> DiskReader:
        """Open the newest version; see `RowStore.reader`."""
        self.refuse_fork()
        while True:
            if folder_generation(self._head_folder) != self._head.generation:
                self._open()
            try:
                changes = self._journal.since(self.lineage, self._reader.version)
            except StoreError as error:
                if error.reason != "changed":
                    raise
                self._open()  # folded in just now
                continue
            for change in changes:
                self._follow(change)
            state = self._journal.state()
            if (self._head.version if state is None else state.latest) < self._reader.version:
                warn_user(f"{self.uri} was put back to an older state, and is taken as it is now.")
                self._open()
                continue
            return self._reader

    def _follow(self, change: Change) -> None:
        put = _unpack_rows(change.parts[_PART["put"]])
        removed = np.frombuffer(change.parts[_PART["removed"]], "<i8")
        tail = self._reader._tail.changed(self._reader._bulk, put, removed)
        summary = json.loads(change.parts[_PART["summary"]])
        self._reader = DiskReader(self._reader._bulk, tail, change.version, summary)

    def apply(self, edit: Edit, expect: int) -> DiskReader:
        """Make a change; see `RowStore.apply`."""
        with locked_folder(self._head_folder, wait=self.wait):
            if self.reader().version != expect:
                raise StoreError(
                    "changed",
                    f"{self.uri} is at version {self._reader.version}, and the change was made "
                    f"from {expect}. Read it again.",
                )
            parts = {
                _PART["put"]: _pack_rows(edit.put),
                _PART["removed"]: edit.removed.astype("<i8").tobytes(),
                _PART["summary"]: json.dumps(edit.summary).encode(),
            }
            change = replace(edit.change, parts={**edit.change.parts, **parts})
            self._journal.append(self.lineage, self._head.version, change)
            self._follow(change)
            return self._reader

    def history(self, lineage: str, last: int | None = None) -> list[Change]:
        """Give the changes; see `RowStore.history`."""
        with Journal(self._head_folder) as journal:  # changes under way are not waited for
            return journal.history(lineage, last)

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Give one change; see `RowStore.find`."""
        change = self._journal.find(lineage, version=version, key=key)
        own = {name: part for name, part in change.parts.items() if name not in _PART.values()}
        return replace(change, parts=own)

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Write rows and indexes again, as they are now; see `RowStore.snapshot`."""
        with locked_folder(self._head_folder, wait=self.wait):
            now, before = self.reader(), self._head
            name = f"bulk-{secrets.token_hex(4)}"
            try:
                bulk = _Bulk.write(Path(self.uri) / name, self.schema, now.scan())
                recall = bulk.judge()
                head = before._replace(
                    version=now.version, bulk=name, summary=now.summary, probes=bulk.probes
                )
                _write_head(self._head_folder, head, before.generation)
            except BaseException:
                if _read_head(self._head_folder).bulk != name:
                    shutil.rmtree(Path(self.uri) / name, ignore_errors=True)
                raise
            self._journal.fold(self.lineage, now.version, keep="remove" if keep_removed else None)
            self._open()
            # Who still reads the former files keeps them until the next time.
            for folder in Path(self.uri).glob("bulk-*"):
                if folder.name not in (name, before.bulk):
                    shutil.rmtree(folder)
        return Snapshot(now.version, len(self._reader._bulk.ids), recall)

    def close(self) -> None:
        """Close the journal; the next call opens it again. In a fork it is the parent's."""
        if not self.is_forked:
            self._journal.close()

    def drop(self) -> None:
        """Remove the store; see `RowStore.drop`."""
        self.close()
        shutil.rmtree(self.uri)


def _write_head(folder: Path, head: _Head, replaces: str | None) -> None:
    meta = head._asdict() | {"schema": head.schema.to_json()}
    del meta["generation"]
    write_folder(
        folder,
        kind=KIND,
        format_version=_VERSION,
        tensors={},
        meta=meta,
        replaces=replaces,
        locked=replaces is not None,
    )


def _read_head(folder: Path) -> _Head:
    found = read_folder(folder, kind=KIND, newest_version=_VERSION)
    try:
        schema = Schema.from_json(found.meta.pop("schema"))
        return _Head(found.generation, schema=schema, **found.meta)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            "invalid", f"{folder} holds what nearwise never writes ({error!r}). Restore it."
        ) from error


def _pack_rows(rows: StoredRows) -> bytes:
    sink, batch = io.BytesIO(), rows.to_arrow()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _unpack_rows(stored: bytes) -> StoredRows:
    with pa.ipc.open_stream(stored) as stream:
        return StoredRows.from_arrow(stream.read_all())
