"""DiskStore: rows in a folder, most of them in Lance and FAISS files that are read on demand.

Later changes are in a journal (SQLite) and in memory, where they are searched exactly. `snapshot`
merges both into new files, and only then drops the old ones.
"""

import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from nearwise.cached import cached_property
from nearwise.functional import topk_neighbors
from nearwise.memory.arrow import read_stream
from nearwise.memory.gate import subfolder
from nearwise.memory.journal import Change, Journal
from nearwise.memory.store import (
    StoreError,
    folder_generation,
    locked_folder,
    read_folder,
    write_folder,
)
from nearwise.memory.stores.access import OneProcess
from nearwise.memory.stores.bulk import Bulk
from nearwise.memory.stores.bulk_files import Files
from nearwise.memory.stores.protocol import (
    BATCH,
    SPARE,
    Edit,
    Schema,
    Snapshot,
    StoredRows,
    Verified,
    refuse_unknown,
    replaced,
)
from nearwise.memory.ties import tie_order
from nearwise.warn import warn_user

KIND = "rows on disk"
_VERSION = 2  # 1 has no checksums of its bulk
_HEAD = "head"
_BULK = "bulk-[0-9a-f]{8}"
_Count = Annotated[int, Field(ge=0)]
_PART = {"put": "store/put", "removed": "store/removed", "summary": "store/summary"}  # of a change


class _Head(BaseModel):
    """Content of the folder "head"; the last four fields describe a `Bulk`."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)
    lineage: str
    version: _Count
    summary: dict[str, Any]
    bulk: Annotated[str, Field(pattern=f"^{_BULK}$")]
    rows: Annotated[Schema, Field(alias="schema"), PlainSerializer(Schema.to_json)]
    probes: dict[str, _Count]
    files: Files | None = None


class _Tail(NamedTuple):
    """Changes since the files were written: new rows, and ids of replaced or removed rows."""

    rows: StoredRows
    hidden: np.ndarray

    def changed(self, bulk: Bulk, put: StoredRows, removed: np.ndarray) -> "_Tail":
        gone = np.concatenate([put.ids, removed])
        stays = ~np.isin(self.rows.ids, gone)
        rows = StoredRows.joined([self.rows.take(stays), put])
        rows = rows.take(np.argsort(rows.ids))
        return _Tail(rows, np.union1d(self.hidden, gone[bulk.places(gone) >= 0]))


class DiskReader:
    """One version of a `DiskStore`; see `RowReader`."""

    def __init__(self, bulk: Bulk, tail: _Tail, version: int, summary: dict[str, Any]) -> None:
        self._bulk, self._tail = bulk, tail
        self.version, self.summary = version, summary

    @cached_property
    def _tail_in_order(self) -> StoredRows:
        """Rows of the tail in tie order."""
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
        """Return rows by id; see `RowReader.fetch`."""
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
        """Yield all rows in the order of their ids; see `RowReader.scan`."""
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
    """Rows in a folder, for memories larger than RAM; see `RowStore`.

    Below 100,000 rows, and for the metric "manhattan", searches are exact and the keys are in RAM.

    A snapshot keeps the former files for present readers, and the next snapshot deletes them: the
    content of removed rows leaves the disk with the second snapshot after their removal.
    """

    wait: float | None = None

    def __init__(self, uri: str) -> None:
        super().__init__()
        self.uri = self.place = self.located(uri)
        self._journal = Journal(self._head_folder)
        if os.path.lexists(self._head_folder):  # otherwise `_read_head` raises
            subfolder(self.uri, _HEAD)
        self._generation, self._head = _read_head(self._head_folder)
        self._open()

    @property
    def _head_folder(self) -> Path:
        return Path(self.uri) / _HEAD

    @staticmethod
    def located(uri: str) -> str:
        """Return the absolute path; see `RowStore.located`."""
        return os.path.abspath(uri)

    @classmethod
    def create(
        cls, uri: str, schema: Schema, rows: Iterable[StoredRows], summary: dict[str, Any]
    ) -> "DiskStore":
        """Make a store in a folder that is new or empty; see `RowStore.create`."""
        folder = Path(uri)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError("foreign", f"{folder} is there already. Give a new or empty folder.")
        folder.mkdir(parents=True, exist_ok=True)
        name = f"bulk-{secrets.token_hex(4)}"
        try:
            bulk = Bulk.write(folder / name, schema, rows)
            bulk.judge()
            lineage = secrets.token_hex(8)
            head = _Head(
                lineage=lineage,
                version=0,
                summary=summary,
                bulk=name,
                rows=schema,
                probes=bulk.probes,
                files=bulk.files,
            )
            _write_head(folder / _HEAD, head, None)
        except BaseException:
            shutil.rmtree(folder / name, ignore_errors=True)
            raise
        return cls(uri)

    @classmethod
    def open(cls, uri: str) -> "DiskStore":
        """Open a store; see `RowStore.open`."""
        return cls(uri)

    @property
    def schema(self) -> Schema:
        """Stored columns of a row."""
        return self._head.rows

    @property
    def lineage(self) -> str:
        """Identifier of the memory that the versions belong to."""
        return self._head.lineage

    def _open(self) -> None:
        generation, found = _read_head(self._head_folder)
        if found.lineage != self.lineage:
            raise replaced(self.place)
        self._generation, self._head = generation, found
        bulk = Bulk(subfolder(self.uri, found.bulk), found.rows, found.probes, found.files)
        tail = _Tail(self.schema.no_rows(), np.empty(0, np.int64))
        self._reader = DiskReader(bulk, tail, self._head.version, self._head.summary)

    def reader(self) -> DiskReader:
        """Open the newest version; see `RowStore.reader`."""
        self.refuse_fork()
        while True:
            if folder_generation(self._head_folder) != self._generation:
                self._open()
            try:
                changes = self._journal.since(self.lineage, self._reader.version)
            except StoreError as error:
                if error.reason != "changed":
                    raise
                self._open()  # folded in just now
                continue
            for change in changes:
                try:
                    self._follow(change)
                except (ValueError, KeyError, RecursionError) as error:
                    raise StoreError(
                        "invalid",
                        f"Change {change.version} of {self.uri} cannot be made again: {error}. "
                        "Restore the folder from a copy.",
                    ) from error
            state = self._journal.state()
            if (self._head.version if state is None else state.latest) < self._reader.version:
                warn_user(f"{self.uri} was put back to an older state, and is taken as it is now.")
                self._open()
                continue
            return self._reader

    def _follow(self, change: Change) -> None:
        put = _unpack_rows(change.parts[_PART["put"]], self.schema)
        removed = np.frombuffer(change.parts[_PART["removed"]], "<i8")
        tail = self._reader._tail.changed(self._reader._bulk, put, removed)
        summary = json.loads(change.parts[_PART["summary"]])
        self._reader = DiskReader(self._reader._bulk, tail, change.version, summary)

    def apply(self, edit: Edit, expect: int) -> DiskReader:
        """Write a change; see `RowStore.apply`."""
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
        """Return the changes; see `RowStore.history`."""
        self.refuse_fork()
        with Journal(self._head_folder) as journal:  # does not wait for a writer
            return journal.history(lineage, last)

    def find(self, lineage: str, *, version: int | None = None, key: str | None = None) -> Change:
        """Return one change; see `RowStore.find`."""
        self.refuse_fork()
        change = self._journal.find(lineage, version=version, key=key)
        own = {name: part for name, part in change.parts.items() if name not in _PART.values()}
        return replace(change, parts=own)

    def snapshot(self, *, keep_removed: bool = False) -> Snapshot:
        """Write the present rows and indexes to new files; see `RowStore.snapshot`."""
        with locked_folder(self._head_folder, wait=self.wait):
            now, before, others = self.reader(), self._head, self._bulks()
            now._bulk.check_bytes()  # or damaged data would get new checksums
            name = f"bulk-{secrets.token_hex(4)}"
            try:
                bulk = Bulk.write(Path(self.uri) / name, self.schema, now.scan())
                recall = bulk.judge()
                update = {"version": now.version, "bulk": name, "summary": now.summary}
                update |= {"probes": bulk.probes, "files": bulk.files}
                head = before.model_copy(update=update)
                _write_head(self._head_folder, head, self._generation)
            except BaseException:
                if _read_head(self._head_folder)[1].bulk != name:
                    shutil.rmtree(Path(self.uri) / name, ignore_errors=True)
                raise
            self._journal.fold(self.lineage, now.version, keep="remove" if keep_removed else None)
            self._open()
            # Open readers still use the former files; the next snapshot deletes them.
            for folder in others:
                if folder.name != before.bulk:
                    shutil.rmtree(folder)
        return Snapshot(now.version, len(self._reader._bulk.ids), recall)

    def _bulks(self) -> list[Path]:
        names = [name for name in os.listdir(self.uri) if re.fullmatch(_BULK, name)]
        return [subfolder(self.uri, name) for name in names]

    def verify(self) -> Verified:
        """Check every byte of the files; see `RowStore.verify`."""
        bulk = self.reader()._bulk
        bulk.verify()
        checked, files = ["ids of the rows", "indexes"], "checksums of the rows' files"
        if bulk.files is not None:
            return Verified([files, *checked], [])
        why = "an older nearwise wrote none; 'nearwise compact' adds them"
        return Verified(checked, [f"{files} ({why})"])

    def accept_loss(self) -> bool:
        """Continue without lost changes; see `RowStore.accept_loss`."""
        with locked_folder(self._head_folder, wait=self.wait):
            return self._journal.accept_loss(self.lineage, self._head.version)

    def close(self) -> None:
        """Close the journal; the next call opens it again. Nothing happens in a fork."""
        if not self.is_forked:
            self._journal.close()

    def drop(self) -> None:
        """Delete the store; see `RowStore.drop`."""
        self.close()
        shutil.rmtree(self.uri)


def _write_head(folder: Path, head: _Head, replaces: str | None) -> None:
    write_folder(
        folder,
        kind=KIND,
        format_version=_VERSION,
        tensors={},
        meta=head.model_dump(by_alias=True),
        replaces=replaces,
        locked=replaces is not None,
    )


def _read_head(folder: Path) -> tuple[str, _Head]:
    """Read the generation and content of the folder "head"."""
    found = read_folder(folder, kind=KIND, newest_version=_VERSION)
    try:
        head = _Head.model_validate_json(json.dumps(found.meta))
        if {*head.probes} != {*head.rows.spaces}:
            raise ValueError("indexes of other spaces")
        if (head.files is None) != (found.version == 1):
            raise ValueError("checksums of the rows' files")
    except ValueError as error:
        raise StoreError(
            "invalid", f"{folder} holds what nearwise never writes ({error}). Restore it."
        ) from error
    return found.generation, head


def _pack_rows(rows: StoredRows) -> bytes:
    sink, batch = io.BytesIO(), rows.to_arrow()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _unpack_rows(stored: bytes, schema: Schema) -> StoredRows:
    table = read_stream(stored)
    if not table.schema.equals(schema.no_rows().to_arrow().schema):
        raise ValueError("rows of a change have other columns than the store")
    return StoredRows.from_arrow(table)
