"""StoredModel: a model whose memory is in a store, changed while it answers."""

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

from nearwise.classifier.live import LiveModel
from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.storage.journaling import Draft, apply
from nearwise.classifier.stored.changes import ChangeableModel
from nearwise.classifier.stored.facts import stored
from nearwise.classifier.stored.folder import is_stored
from nearwise.classifier.uncertainty.calibration_rows import CalibrationRows, calibration_rows
from nearwise.memory import Change, StoreError
from nearwise.memory.stores import Edit, RowStore, Snapshot

_PAUSE = 0.02  # seconds, at most, before a change is tried again
_TRIES = 50  # of a change, where other processes change the same store


def open_live(
    folder: str | os.PathLike[str],
    *,
    trusted: Sequence[str] = (),
    wait: float | None = None,
    trusted_store: str | os.PathLike[str] | None = None,
) -> LiveModel:
    """Open a saved model to change it while it answers, wherever its memory is.

    Parameters
    ----------
    folder, trusted, wait, trusted_store
        As of `LiveModel`.

    Returns
    -------
    live : LiveModel
        A `StoredModel` where the memory is in a store.
    """
    options = {} if wait is None else {"wait": wait}
    kind = StoredModel if is_stored(folder) else LiveModel
    return kind(folder, trusted=trusted, trusted_store=trusted_store, **options)


class StoredModel(LiveModel):
    """A model whose memory is in a store; several processes may change it.

    Changes are made as those of `LiveModel`, and written to the store instead of the folder. A
    change takes the same time however many rows are remembered. What needs all of these (`refresh`,
    `kept`) is refused.

    Parameters
    ----------
    folder, trusted, wait, trusted_store
        As of `LiveModel`; written by `move_memory` or ``nearwise move``.
    """

    _of_store = True

    @property
    def _store(self) -> RowStore:
        store = stored(self._now.fitted).store
        store.wait = self._wait
        return store

    @property
    def replay_seconds(self) -> float:
        """How much longer the model takes to open for its changes: hardly."""
        return 0.0

    def close(self) -> None:
        """Close the store's connections; the next call opens them again."""
        with self._lock:
            self._store.close()

    def history(self, last: int | None = None) -> list[Change]:
        """Give the changes since the memory was moved; see `LiveModel.history`."""
        return self._store.history(self.lineage, last)

    def refuse_refresh(self) -> NoReturn:
        """Refuse: a fit needs the memory in this process."""
        stored(self._now.fitted).refuse("A refresh is a fit to the remembered rows, which")

    def refresh(self) -> NoReturn:
        """Refuse, as `refuse_refresh`."""
        self.refuse_refresh()

    def compact(self, *, keep_removed: bool = False) -> Snapshot:
        """Write the rows to where they are searched fastest; see `RowStore.snapshot`."""
        with self._lock:
            found = self._store.snapshot(keep_removed=keep_removed)
            self._catch_up()
            self._reach(self._now.fitted, self._state._replace(saved=found.version))
            return found

    # --- inside -------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        now = self._now
        try:
            reader = self._store.reader()
        except StoreError as error:
            if error.reason != "changed":
                raise
            self._load()  # another model has replaced this one
            return
        if reader is stored(now.fitted).reader:
            return
        assert isinstance(now.fitted, ChangeableModel)  # `_load` saw to it
        self._reach(now.fitted.at(reader), self._state._replace(version=reader.version))

    def _judged_by(self, fitted: FittedModel) -> CalibrationRows:
        predictor = fitted.predictor
        return calibration_rows(predictor, fitted.n_classes, predictor.n_views)

    def _find(self, **named: Any) -> Change:
        return self._store.find(self.lineage, **named)

    def _commit(
        self, make: Callable[[FittedModel], Draft], request: list[Any], key: str | None
    ) -> Change:
        key, digest = self._checked_key(key, request)
        with self._lock:
            lineage = self.lineage
            for _ in range(_TRIES):
                self._catch_up()
                self._refuse_replaced(lineage, request)
                repeated = self._repeated(key, digest)
                if repeated is not None:
                    return repeated
                now = self._now
                made, change = apply(self.model, now.fitted, make(now.fitted))
                version = self._state.version + 1
                change = replace(change, version=version, key=key, digest=digest)
                try:
                    reader = self._store.apply(_edit(made, change), version - 1)
                except StoreError as error:
                    if error.reason != "changed":
                        raise
                    time.sleep(random.uniform(0, _PAUSE))  # another process was faster
                    continue
                assert isinstance(now.fitted, ChangeableModel)  # `_load` saw to it
                self._reach(now.fitted.at(reader), self._state._replace(version=version))
                return change
        raise BlockingIOError(
            f"Other processes changed {self._store.place} {_TRIES} times while a change was made. "
            "Nothing was changed; try again."
        )


def _edit(made: FittedModel, change: Change) -> Edit:
    assert isinstance(made, ChangeableModel)  # changes of a store make nothing else
    pending = made.pending
    if pending is None:  # labels that were checked and kept
        pending = made._unchanged().pending
        assert pending is not None  # it is what changes give
    kept = {} if change.kind in ("add", "feedback") else dict(change.parts)
    return Edit(replace(change, parts=kept), asdict(pending.summary), pending.put, pending.removed)
