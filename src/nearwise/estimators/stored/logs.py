"""Logs of the changes of a live model: a journal in its folder, or its store."""

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from nearwise.estimators.model.fitted_model import FittedClassifier, FittedModel, FolderState
from nearwise.estimators.storage.journaling import replay
from nearwise.estimators.storage.persistence import save_model
from nearwise.estimators.stored.memory import at_version, stored
from nearwise.memory import Change, Journal, StoreError, folder_generation, locked_folder
from nearwise.memory.stores import Snapshot
from nearwise.warn import warn_user

Version = tuple[Any, FolderState]  # a fitted model; with a store, a classifier
# Changes times remembered rows; the second if every change refits (benchmarks/live_changes.py).
_ADDED_PER_SECOND, _REFITTED_PER_SECOND = 1_000_000, 10_000


class FolderLog:
    """Log in the journal of a model folder; a file lock excludes other processes.

    `held` is the caller's version, here and in `StoreLog`.
    """

    def __init__(self, folder: Path, wait: float) -> None:
        self._folder, self._wait, self._journal = folder, wait, Journal(folder)

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Context that locks the folder against changes by other processes."""
        return locked_folder(self._folder, wait=self._wait)

    def follow(self, model: Any, held: Version) -> Version | None:
        """Newest version of the model; None if the folder must be opened again."""
        fitted, state = held
        moved = os.path.realpath(self._folder) not in fitted.folders
        if moved or folder_generation(self._folder) != state.generation:
            return None  # saved by another process: the same model, or a new one
        try:
            later = self._journal.since(state.lineage, state.version)
        except StoreError as error:
            if error.reason != "changed":
                raise
            return None  # the journal was folded into the folder just now
        there = self._journal.state()
        latest = there.latest if there is not None and there.lineage == state.lineage else 0
        if latest < state.version and state.version > state.saved:
            warn_user(
                f"{self._journal.path} lacks changes that this process has made or seen: it was "
                "replaced by an older one, and its folder too. The model is again what these hold."
            )
            return None
        made = replay(model, fitted, later)
        return made, state._replace(version=state.version + len(later))

    def write(self, held: Version, made: FittedModel, change: Change) -> FittedModel:
        """Write a change to the journal; returns the new version."""
        self._journal.append(held[1].lineage, held[1].saved, change)
        return made

    def fold(self, model: Any, held: Version, *, keep_removed: bool) -> None:
        """Save the model and clear the journal; `keep_removed` keeps removed rows in it."""
        fitted, state = held
        fitted.folders[os.path.realpath(self._folder)] = save_model(
            model, fitted, self._folder, locked=True
        )
        if not keep_removed:
            self._journal.fold(state.lineage, state.version)

    def note(self, lineage: str, change: Change) -> None:
        """Record a change that the folder contains already."""
        self._journal.note(lineage, change)

    def find(self, lineage: str, **named: Any) -> Change:
        """Change with a `version` or `key`; KeyError if there is none."""
        return self._journal.find(lineage, **named)

    def history(self, held: FolderState, last: int | None) -> list[Change]:
        """Last changes, oldest first."""
        with Journal(self._folder) as journal:  # without waiting for changes in progress
            there, found = journal.state(), journal.history(held.lineage, last)
        if there is not None and there.lineage != held.lineage:
            return []  # a new model has replaced this one and its journal
        if held.version > max(held.saved, found[-1].version if found else 0):
            raise StoreError("torn", f"{journal.path} lacks changes that were made through it.")
        return found

    def replay_seconds(self, held: Version) -> float:
        """Estimated seconds to replay the unsaved changes when the folder is opened."""
        fitted, state = held
        at_once = _REFITTED_PER_SECOND if fitted.predictor.forgets_exactly else _ADDED_PER_SECOND
        return (state.version - state.saved) * len(fitted.bank) / at_once

    def leave(self) -> None:
        """Close the journal before a process fork or a new log, unless a thread writes to it.

        SQLite cannot distinguish two processes that share a connection.
        """
        if not self._journal.is_writing:
            self._journal.close()

    def close(self) -> None:
        """Close the journal; the next call opens it again."""
        self._journal.close()


class StoreLog:
    """Log in the store of a model's memory; on a conflict the slower process repeats its change."""

    def __init__(self, fitted: FittedClassifier, wait: float) -> None:
        self._store = stored(fitted).store
        self._store.wait = wait
        self.find, self.close = self._store.find, self._store.close

    def turn(self) -> contextlib.AbstractContextManager[None]:
        """Empty context, as a store needs no lock."""
        return contextlib.nullcontext()

    def follow(self, model: Any, held: Version) -> Version | None:
        """Newest version of the model; None if another model has replaced it."""
        fitted, state = held
        try:
            reader = self._store.reader()
        except StoreError as error:
            if error.reason != "changed":
                raise
            return None
        if reader is stored(fitted).reader:
            return held
        return at_version(fitted, reader), state._replace(version=reader.version)

    def write(self, held: Version, made: Any, change: Change) -> FittedClassifier | None:
        """Write a change to the store; returns the new version, None after a conflict."""
        kept = {} if change.kind in ("add", "feedback") else dict(change.parts)
        edit = stored(made).edit(replace(change, parts=kept), made.classes)
        try:
            return at_version(held[0], self._store.apply(edit, held[1].version))
        except StoreError as error:
            if error.reason != "changed":
                raise
            return None

    def fold(self, model: Any, held: Version, *, keep_removed: bool) -> Snapshot:
        """Compact the store for fast searches; see `RowStore.snapshot`."""
        found = self._store.snapshot(keep_removed=keep_removed)
        folders = held[0].folders
        folders |= {key: one._replace(saved=found.version) for key, one in folders.items()}
        return found

    def history(self, held: FolderState, last: int | None) -> list[Change]:
        """Last changes, oldest first."""
        return self._store.history(held.lineage, last)

    def replay_seconds(self, held: Version) -> float:
        """Return 0, as a store replays no changes."""
        return 0.0

    def leave(self) -> None:
        """Do nothing: readers may use the store, and a forked process cannot."""


def log_of(folder: Path, fitted: Any, wait: float) -> FolderLog | StoreLog:
    """Log for a model that was loaded from a folder."""
    return FolderLog(folder, wait) if fitted.holds_memory else StoreLog(fitted, wait)
