"""LiveModel: a saved model with durable changes, for services and several processes."""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Self

from nearwise.estimators.inputs.labels import check_weight
from nearwise.estimators.inputs.rows import AnyRows, Rows, Source
from nearwise.estimators.model.fitted_model import (
    FittedModel,
    FittedRegressor,
    FittedTargets,
    FolderState,
)
from nearwise.estimators.number_query import NumberQuery
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.online.feedback import Yardstick, feedback_summary, judge
from nearwise.estimators.online.refreshing import refuse_refresh
from nearwise.estimators.opening import load_any
from nearwise.estimators.query import Query
from nearwise.estimators.settings import Settings, check_count
from nearwise.estimators.storage.journaling import (
    KEEP,
    RELABEL,
    Draft,
    apply,
    draft_add,
    draft_keep,
    draft_relabel,
    draft_remove,
    draft_undo,
    pack_rows_to_add,
    plain_ids,
    undone_by,
)
from nearwise.estimators.storage.persistence import save_model
from nearwise.estimators.stored.logs import log_of
from nearwise.forking import heed_forks
from nearwise.memory import Change, StoreError
from nearwise.memory.journal import REFRESH
from nearwise.memory.stores import Snapshot
from nearwise.safe_files import plain

_PAUSE = 0.02  # longest pause before a retry, in seconds
_TRIES = 50  # most retries of a change after conflicts in a store
_WAIT = 30.0  # seconds to wait for another process that changes the same folder


class ReusedKeyError(ValueError):
    """Error for a key that another request has used already."""


class Version(NamedTuple):
    """One version of a live model.

    Attributes
    ----------
    number : int
        Number of changes since the fit, as in `LiveModel.version`.
    estimator : AttnKNNClassifier or AttnKNNRegressor
        Estimator with the settings.
    fitted : FittedClassifier or FittedRegressor
        Immutable state for predictions.
    """

    number: int
    estimator: Any
    fitted: Any

    def encoded(self, X: Any) -> list[AnyRows]:
        """Check and encode new rows, in all views; errors as in `predict_proba`."""
        return self.fitted.encoded(X)

    def if_changed(
        self, removed: Sequence[int] = (), labels: Mapping[int, Any] | None = None
    ) -> Self:
        """Hypothetical version without some rows, and with other labels of some.

        Nothing is refitted, even if `remove` of the estimator would refit to forget exactly.

        Parameters
        ----------
        removed : sequence of int
            Ids of remembered rows.
        labels : mapping of int to label, optional
            New labels by id, from the model's classes; or new targets.

        Raises
        ------
        ValueError
            If a row is not remembered, a label is unknown, or too few rows would stay.
        """
        fitted = self.fitted
        if labels:
            ids, y = list(labels), list(labels.values())
            fitted = by_settings.relabelled(fitted, ids, y, forget_classes=True)
        if removed:
            fitted = changes.without_rows(fitted, list(removed), forget_classes=True)
        return self._replace(fitted=fitted)

    def query(self, requests: Sequence[list[AnyRows]], **extras: Any) -> Any:
        """Query the encoded rows of several requests at once.

        Returns a `Query`, or a `NumberQuery` of a regressor; `extras` are its arguments.
        """
        views = [type(parts[0]).joined(parts) for parts in zip(*requests, strict=True)]
        if isinstance(self.fitted, FittedRegressor):
            return NumberQuery(self.fitted, views[0], **extras)
        return Query(self.fitted, views, **extras)


class LiveModel:
    """A saved classifier or regressor with durable changes.

    A change is applied to a copy of the model, written to a journal in the folder
    (`journal.sqlite3`), and only then used for predictions. The written data does not grow with
    the model. `load` of the estimator replays the journal, and `compact` folds it into the folder.
    Several processes may write to one folder in turn, each from the newest version; any number of
    others may follow it by `catch_up`. For a regressor, labels are targets.

    Parameters
    ----------
    folder : path
        Folder saved by `AttnKNNClassifier`, `AttnKNNRegressor` or ``nearwise fit``.
    trusted : sequence of str, default=()
        Trusted types in a saved base, as in `load` of the estimator.
    wait : float, default=30
        Seconds that a change waits for another process that changes the folder.
    trusted_store : str or path, optional
        URI of a store outside the folder, as in `load` of the estimator.

    Raises
    ------
    StoreError
        If the folder cannot be loaded, as in `load` of the estimator.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from nearwise import AttnKNNClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> folder = tempfile.mkdtemp()
    >>> AttnKNNClassifier(estimator=None, random_state=0).fit(X[::2], y[::2]).save(folder)
    >>> live = LiveModel(folder)
    >>> change = live.add(X[1:4], y[1:4])
    >>> change.version, change.ids
    (1, (75, 76, 77))
    >>> live.undo(1).kind
    'remove'
    >>> len(AttnKNNClassifier.load(folder).memory_)
    75
    """

    _yardstick: Yardstick | None  # of the last feedback

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        trusted: Sequence[str] = (),
        wait: float = _WAIT,
        trusted_store: str | os.PathLike[str] | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._trusted, self._trusted_store, self._wait = trusted, trusted_store, wait
        self._lock = threading.RLock()
        self._load()
        heed_forks(self, LiveModel._renew_lock, LiveModel._leave_log)

    def __enter__(self) -> "LiveModel":
        """Return the model itself; the end of the block closes its files."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close files and connections."""
        self.close()

    def close(self) -> None:
        """Close files and connections; the next call opens them again."""
        with self._lock:
            self._log.close()

    @property
    def model(self) -> Any:
        """The present classifier or regressor, for queries; change it only by `LiveModel`."""
        return self.now.estimator

    @property
    def now(self) -> Version:
        """The present version for predictions; it stays valid and unchanged for its user."""
        return self._opened[1]

    @property
    def version(self) -> int:
        """Version of the memory: the number of changes through the journal since the fit."""
        return self._state.version

    @property
    def lineage(self) -> str:
        """Identifier of the fit; versions and row ids are valid only within one lineage."""
        return self._state.lineage

    @property
    def n_pending(self) -> int:
        """Number of changes that `compact` would fold into the folder."""
        return self._state.version - self._state.saved

    @property
    def replay_seconds(self) -> float:
        """Estimated seconds to replay the pending changes when the folder is opened."""
        return self._log.replay_seconds(self._held)

    def add(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        views: Sequence[Any] | None = None,
        show: Any = None,
        key: str | None = None,
    ) -> Change:
        """Add new rows, as `add` of the estimator.

        Parameters
        ----------
        X, y, sample_weight, groups, views, show
            New rows, as in `add` of the estimator; a regressor has no `views`.
        key : str, optional
            Idempotency key: a repeated request with this key changes nothing and returns the
            original change.

        Returns
        -------
        change : Change
            `version`, and `ids` of the rows; `details["evicted"]` has the evicted ids.

        Raises
        ------
        ValueError
            As in `add` of the estimator, or (ReusedKeyError) if another request had the same key.
        BlockingIOError
            If another process did not finish its change in time.
        OSError
            If the journal cannot be written.
        StoreError
            If the folder has become unreadable. In all four cases nothing has changed.
        """
        source = Source.of(X, y, groups, show, like=self.now.fitted)
        return self._remember(source, sample_weight, views, key, feedback=False)

    def feedback(
        self,
        X: Any,
        y: Any,
        *,
        groups: Any = None,
        views: Sequence[Any] | None = None,
        show: Any = None,
        key: str | None = None,
    ) -> Change:
        """Add rows with newly known labels, and record the predictions made before.

        `feedback_summary` measures the quality of these predictions. The calibration rows for sets
        and p-values are recomputed only after 1 % of the memory has changed, as that takes long.

        Parameters
        ----------
        X, y, groups, views, show, key
            As in `add`.

        Returns
        -------
        change : Change
            As from `add`, of kind "feedback". `details["judged"]` has lists with one value per
            row: predicted, correct, confidence, proba_true. With enough calibration rows also
            novelty_p, n_known (their number) and in_set (whether the 90 % set contains the
            label), else None. For a regressor: target, predicted (mean), crps, level (PIT of the
            target), and likewise novelty_p, n_known and in_interval.

        Raises
        ------
        ValueError, BlockingIOError, OSError, StoreError
            As in `add`.
        """
        source = Source.of(X, y, groups, show, like=self.now.fitted)
        return self._remember(source, None, views, key, feedback=True)

    def feedback_summary(self, last: int | None = None) -> dict[str, Any]:
        """Quality of the predictions of all feedback rows, without undone changes.

        Parameters
        ----------
        last : int, optional
            Number of newest rows to use. Default: all.

        Returns
        -------
        summary : dict
            Measures: rows; accuracy; nll (without rows of classes new at that time, counted by
            new_classes); ece (15 bins of equal width); coverage of the 90 % sets; drift_evidence
            of all rows, see `nearwise.metrics.drift_evidence`. A measure is None if no row has it.
            For a regressor: rows; rmse, mae and crps, in the unit of the target; coverage of the
            90 % intervals; drift_evidence.
        """
        if last is not None:
            check_count("last", last, 1)
        of_numbers = isinstance(self.now.fitted, FittedRegressor)
        return feedback_summary(self.history(), last, of_numbers=of_numbers)

    def _remember(
        self,
        source: Source,
        sample_weight: Any,
        views: Sequence[Any] | None,
        key: str | None,
        *,
        feedback: bool,
    ) -> Change:
        known = self.now.fitted
        rows = Rows.given(source.X, known.columns, known.predictor.encoder, views)
        y = known.checked(source.y, len(rows))
        weight = check_weight(sample_weight, len(rows))
        source = source.naming(rows)._replace(X=rows.X, y=y)
        parts = pack_rows_to_add(source, weight, rows.further)
        request = [
            "feedback" if feedback else "add",
            sorted((name, sha256(part).hexdigest()) for name, part in parts.items()),
        ]

        def draft(fitted: FittedModel) -> Draft:
            if not feedback:
                return draft_add(self.model, parts)
            encoded = fitted.encoded(rows.X, None if views is None else rows.further)
            query = self.now.query([encoded], judged_by=self._judged_by(fitted))
            return draft_add(self.model, parts, judge(query, y))

        return self._commit(draft, request, key)

    def remove(self, ids: Any, *, forget_classes: bool = False, key: str | None = None) -> Change:
        """Remove rows by id, as `remove` of the estimator; errors as in `add`."""
        self._check_forgetting(forget_classes)
        return self._commit(
            lambda fitted: draft_remove(fitted.holding(ids), ids, forget_classes=forget_classes),
            ["remove", plain_ids(ids), forget_classes],
            key,
        )

    def relabel(
        self, ids: Any, y: Any, *, forget_classes: bool = False, key: str | None = None
    ) -> Change:
        """Relabel rows, as `relabel` of the estimator; errors as in `add`."""
        self._check_forgetting(forget_classes)
        labels = self.now.fitted.checked(y)
        return self._commit(
            lambda fitted: draft_relabel(
                fitted.holding(ids), ids, labels, forget_classes=forget_classes
            ),
            ["relabel", plain_ids(ids), plain(labels), forget_classes],
            key,
        )

    def _check_forgetting(self, forget_classes: bool) -> None:
        if forget_classes and isinstance(self.now.fitted, FittedRegressor):
            raise ValueError(
                "The model predicts numbers and has no classes to forget. Leave forget_classes "
                "(--forget-classes) out."
            )

    def keep(self, ids: Any, *, key: str | None = None) -> Change:
        """Record that labels of rows were checked and are right; errors as in `add`.

        Predictions do not change. `kept` returns the ids until the rows are relabelled.
        """
        return self._commit(
            lambda fitted: draft_keep(fitted.holding(ids), ids), ["keep", plain_ids(ids)], key
        )

    def kept(self) -> set[int]:
        """Ids of the rows with a present label that was checked and is right."""
        history = self.history()
        undone, found = undone_by(history), set[int]()
        for change in history:
            if change.kind == RELABEL:
                found -= set(change.ids)
            elif change.kind == KEEP and change.details["kept"] and change.version not in undone:
                found |= set() if change.details.get("undoes") else set(change.ids)
        return found & set(self.now.fitted.bank.ids.tolist())

    def undo(self, version: int, *, key: str | None = None) -> Change:
        """Undo the change with a version number.

        Added rows that are still in the memory are removed, relabelled rows get their former
        labels, and removed rows are added again under new ids. Rows evicted by an addition are
        not restored.

        Raises
        ------
        KeyError
            If there is no such version.
        ValueError
            If it is undone already, its rows have been removed since, or its removed rows are
            deleted by `compact`.
        """

        def draft(fitted: FittedModel) -> Draft:
            history = self.history()
            undone = undone_by(history)
            if version in undone:
                raise ValueError(
                    f"Change {version} was undone by change {undone[version]}. Undo that one to "
                    "have it back."
                )
            try:
                change = self._find(version=version)
            except KeyError:
                raise KeyError(
                    f"There is no change {version}: `history()` lists those that can be undone."
                ) from None
            evicted = {one for past in history for one in past.details.get("evicted") or ()}
            return draft_undo(self.model, fitted, change, evicted)

        return self._commit(draft, ["undo", int(version)], key)

    def history(self, last: int | None = None) -> list[Change]:
        """Return the changes since the fit, oldest first.

        Parameters
        ----------
        last : int, optional
            Number of newest changes. Default: all.
        """
        if last is not None:
            check_count("last", last, 1)
        return self._log.history(self._state, last)

    def catch_up(self) -> int:
        """Apply the later changes of other processes; returns the version.

        Raises
        ------
        StoreError
            If the folder or its journal has become unreadable. The model is then unchanged.
        """
        with self._lock:
            self._catch_up()
            return self.version

    def refuse_refresh(self) -> None:
        """Raise ValueError, with the reason, if the model cannot be refreshed."""
        refuse_refresh(self.now.fitted.predictor)

    def refresh(self) -> Change:
        """Refit to the present remembered rows, as `refresh` of the estimator, and save.

        Meanwhile predictions use the former version, and changes wait.

        Returns
        -------
        change : Change
            Change of kind "refresh"; it cannot be undone.

        Raises
        ------
        ValueError
            As in `refresh` of the estimator.
        OSError, StoreError
            As in `compact`. Nothing has changed then, except if the folder was saved and the
            journal could not be: the next change or `catch_up` continues from the new model.
        """
        self.refuse_refresh()
        log: Any = self._log  # a FolderLog, as a store is refused
        with self._lock, log.turn():
            self._catch_up()
            state, before = self._state, self.now.fitted
            change = Change(state.version + 1, REFRESH, (), {})
            fitted = by_settings.refreshed(self.model, before)
            held = {self._opened[0]: state._replace(version=change.version)}
            saved = save_model(self.model, replace(fitted, folders=held), self.folder, locked=True)
            log.note(state.lineage, change)
            self._reach(fitted, saved)
            self._yardstick = None
            return change

    def compact(self, *, keep_removed: bool = False) -> Snapshot | None:
        """Fold all changes into the folder, so that it opens as fast as after the fit.

        The history of changes (ids and times) is kept.

        Parameters
        ----------
        keep_removed : bool, default=False
            Whether removed rows stay in the journal, for `undo`. Otherwise they are deleted.

        Returns
        -------
        snapshot : Snapshot or None
            For a memory in a store: its version, its rows, and the recall of its searches.

        Raises
        ------
        OSError, StoreError
            As in `save` of the estimator; nothing has changed then. BlockingIOError if another
            process did not finish its change in time, or still reads rows to be deleted.
        """
        with self._lock, self._log.turn():
            self._catch_up()
            found = self._log.fold(self.model, self._held, keep_removed=keep_removed)
            self._catch_up()
            return found

    # --- inside -------------------------------------------------------------------------------

    def _leave_log(self) -> None:
        """Close the log before a process fork, unless a thread is changing the model."""
        if self._lock.acquire(blocking=False):
            try:
                self._log.leave()
            finally:
                self._lock.release()

    def _renew_lock(self) -> None:
        """Replace the lock by a new one, after a process fork."""
        self._lock = threading.RLock()

    def _load(self) -> None:
        estimator = load_any(self.folder, trusted=self._trusted, trusted_store=self._trusted_store)
        fitted = estimator.fitted_
        if isinstance(fitted, FittedTargets):
            raise ValueError(
                f"{self.folder} has {len(fitted.names)} targets, each with a model of its own in "
                "it. Open one of those, or change all by add and remove of the loaded estimator."
            )
        ((key, state),) = fitted.folders.items()
        self._log = log_of(self.folder, fitted, self._wait)
        self._opened = key, Version(state.version, estimator, fitted)  # one assignment, for readers
        self._params, self._yardstick = self._kept_params(), None

    @property
    def _state(self) -> FolderState:
        return self._held[1]

    @property
    def _held(self) -> tuple[FittedModel, FolderState]:
        key, now = self._opened
        return now.fitted, now.fitted.folders[key]

    def _kept_params(self) -> tuple[dict[str, Any], Settings]:
        """Parameters and settings that the journal does not store."""
        params = self.model.get_params(deep=False)
        settings = Settings.of(params.pop("settings"))
        return params, settings.changed(capacity=None, eviction="reservoir")

    def _reach(self, fitted: FittedModel, state: FolderState) -> None:
        """Publish a version that is on the disk."""
        key, now = self._opened
        fitted.folders[key] = state
        now.estimator.fitted_ = fitted
        self._opened = key, now._replace(number=state.version, fitted=fitted)

    def _catch_up(self) -> None:
        """Follow changes of the folder; the caller holds the lock."""
        (params, settings), (known, settings_known) = self._kept_params(), self._params
        same = settings == settings_known and all(params[k] is known[k] for k in known)
        if self.now.fitted is not self.model.fitted_ or not same:
            raise ValueError(
                "live.model was changed by its own methods, and the journal lacks that change. "
                f"Open the folder again (LiveModel({str(self.folder)!r})) and make the changes by "
                "its add, remove and relabel. Nothing was written."
            )
        found = self._log.follow(self.model, self._held)
        if found is None:
            self._log.leave()
            self._load()
        else:
            self._reach(*found)

    def _commit(
        self, make: Callable[[FittedModel], Draft], request: list[Any], key: str | None
    ) -> Change:
        """Write a change and then publish it; `request` identifies a repeated request."""
        key, digest = self._checked_key(key, request)
        with self._lock, self._log.turn():
            lineage = self._state.lineage
            for _ in range(_TRIES):
                self._catch_up()
                repeated = self._repeated(key, digest)
                if repeated is not None:
                    return repeated
                self._refuse_replaced(lineage, request)
                fitted, state = self._held
                made, change = apply(self.model, fitted, make(fitted))
                change = replace(change, version=state.version + 1, key=key, digest=digest)
                reached = self._log.write(self._held, made, change)
                if reached is not None:
                    self._reach(reached, state._replace(version=change.version))
                    return change
                time.sleep(random.uniform(0, _PAUSE))
        raise BlockingIOError(
            f"Other processes changed the memory {_TRIES} times while a change was made. Nothing "
            "was changed; try again."
        )

    def _refuse_replaced(self, lineage: str, request: list[Any]) -> None:
        """Raise StoreError for a change of rows if another model has replaced this one."""
        if self._state.lineage != lineage and request[0] != "add":
            raise StoreError(
                "changed",
                f"Another model has replaced the one in {self.folder}; ids and "
                "versions of the former do not apply to it. Nothing was changed; look rows up in "
                "the new one.",
            )

    @staticmethod
    def _checked_key(key: str | None, request: list[Any]) -> tuple[str | None, str]:
        """Key of a request as a plain str, and the hash that identifies a repeated request."""
        if key is not None and not isinstance(key, str):
            raise TypeError(f"key={key!r} must be a str, such as a UUID's.")
        plain_key = None if key is None else str.__str__(key)
        return plain_key, sha256(json.dumps(request).encode()).hexdigest()

    def _repeated(self, key: str | None, digest: str) -> Change | None:
        """Change made before by the same request; ReusedKeyError if another had its key."""
        if key is None:
            return None
        try:
            made = self._find(key=key)
        except KeyError:
            return None
        if made.digest != digest:
            raise ReusedKeyError(
                f"The key {key!r} was used by another request, change {made.version} "
                f"({made.kind}). Give every request a key of its own."
            )
        return made

    def _find(self, **named: Any) -> Change:
        """Change with a `version` or `key`; KeyError if there is none."""
        return self._log.find(self._state.lineage, **named)

    def _judged_by(self, fitted: Any) -> Any:
        """Calibration rows of a recent version; None with a store, for its own rows."""
        if not fitted.holds_memory:
            return None
        if self._yardstick is None or not self._yardstick.fits(fitted):
            self._yardstick = Yardstick.of(fitted)
        return self._yardstick.rows
