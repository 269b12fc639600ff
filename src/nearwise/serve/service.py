"""Service: a live model behind lanes for predictions, changes, quick and slow reads."""

import asyncio
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch

from nearwise.estimators import LiveModel
from nearwise.estimators.column_profile import ColumnProfile
from nearwise.estimators.live import Version
from nearwise.estimators.map_values import (
    MapColoring,
    MapValues,
    change_values,
    column_values,
    prediction_values,
)
from nearwise.estimators.memory_map import (
    MapMethod,
    MemoryMap,
    drawn_positions,
    memory_map,
    rounded,
)
from nearwise.estimators.model.fitted_model import (
    FittedClassifier,
    FittedModel,
    FittedRegressor,
    RememberedRow,
)
from nearwise.estimators.noise.expected import ExpectedWrong, expected_wrong
from nearwise.estimators.noise.findings import findings
from nearwise.estimators.noise.review import Review, held_out_losses
from nearwise.estimators.online.feedback import known_rows
from nearwise.estimators.storage.journaling import ADD, FEEDBACK
from nearwise.estimators.uncertainty.explain import without_pixels
from nearwise.estimators.uncertainty.trust import Trust, measure_trust
from nearwise.forking import heed_forks
from nearwise.html.card import face_of
from nearwise.html.rendering import png
from nearwise.memory import Change, StoreError, UnknownIdError
from nearwise.serve import classes, numbers
from nearwise.serve.answers.status import Step
from nearwise.serve.asked_rows import Ask, attempt, call_each, encoded, not_remembered
from nearwise.serve.batching import Lane, QueueFullError
from nearwise.serve.layouts import Layouts
from nearwise.serve.monitoring import Monitoring
from nearwise.serve.problems import ProblemError

T = TypeVar("T")
_LOG = logging.getLogger("nearwise.serve")
_FOLLOW_EVERY = 0.5  # seconds
_LONGEST_REPLAY = 10.0  # seconds to replay the journal when a model is opened
_MOST_JOBS = 100  # kept in memory
_FEWEST_JUDGED, _MOST_JUDGED = 30, 5_000  # limits of rows for `effect`
_SIDE = 256  # largest side of a thumbnail, in pixels
_MOST_SHOWN = 2**15  # most neighbors in a request, over all rows


@dataclass(frozen=True)
class Limits:
    """Limits of a service.

    `max_queue`: waiting requests per lane. `max_rows`: rows per request and per batch.
    `max_body`: bytes. `deadline`: seconds until a request is cancelled.
    """

    max_queue: int = 64
    max_rows: int = 4096
    max_body: int = 8 * 2**20
    deadline: float = 10.0


@dataclass
class Job:
    """Background work that takes longer than a request may; times are ISO 8601 in UTC."""

    id: int
    kind: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    started: str | None = None
    finished: str | None = None
    memory_version: int | None = None
    problem: str | None = None


class Effect(NamedTuple):
    """Effect of changes on the NLL of `n_rows` held-out rows.

    `before`: NLL without the changes. `difference`: NLL with the changes minus `before`; `spread`:
    half width of its 95 % interval over rows.
    """

    before: float
    difference: float
    spread: float
    n_rows: int


class Reviewed(NamedTuple):
    """Review of a version: `found` as by `Review.findings`, `issues` by row id.

    `expected` is the expected number of wrong labels, or targets.
    """

    version: Version
    lineage: str
    found: pd.DataFrame
    issues: pd.DataFrame
    expected: ExpectedWrong


class Service:
    """A saved model that serves many clients and can be changed meanwhile.

    Parameters
    ----------
    live : LiveModel
        Closed by `close`.
    limits : Limits, optional
    read_only : bool, default=False
        Whether changes are refused.
    follow : bool, default=False
        Whether to apply changes of other processes within a second. Before its own changes a
        service always applies them.
    """

    def __init__(
        self,
        live: LiveModel,
        limits: Limits | None = None,
        *,
        read_only: bool = False,
        follow: bool = False,
    ) -> None:
        self.live, self.limits, self.read_only = live, limits or Limits(), read_only
        self.task = task_of(live.now.fitted)
        self.monitoring = Monitoring(self)
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._job_ids = itertools.count(1)
        self._is_folding = False
        self._derived: dict[str, tuple[Version, Any]] = {}
        self._first: Version | None = None  # version before this service's first change
        self._first_lineage = ""
        self._reviewed: Reviewed | None = None
        self._effect: tuple[FittedClassifier, Effect] | None = None
        most = self.limits.max_queue
        self.predictions = Lane(
            "predictions", self._predict, max_waiting=most, max_rows=self.limits.max_rows
        )
        self._changes = Lane("changes", call_each, max_waiting=most)
        self._readings = Lane("readings", call_each, max_waiting=most)
        self._asks = Lane("asks", call_each, max_waiting=most)
        self._pictures = Lane("pictures", call_each, max_waiting=most)
        self._layouts = Layouts(call_each, most)
        self._noting = threading.Lock()  # guards `_derived`, which two lanes write
        self.getting_ready: Step | None = None  # and its progress
        self._warming: Future[None] | None = None
        self._begun: OrderedDict[str, tuple[Version, Future[Any]]] = OrderedDict()
        self._closing = threading.Event()
        self._follows, self._follower = follow, threading.Thread()
        self.start()
        heed_forks(self, Service._forget_jobs)

    def start(self) -> None:
        """Start the thread that follows the folder, if requested and not running yet."""
        if self._follows and not self._follower.is_alive():
            self._follower = threading.Thread(target=self._follow, name="follower", daemon=True)
            self._follower.start()

    def _forget_jobs(self) -> None:
        """Reset all jobs in a fork: they belong to the parent process."""
        self._closing, self._noting = threading.Event(), threading.Lock()
        self._jobs.clear()
        self._begun.clear()
        self._warming = self.getting_ready = None
        self._is_folding = False

    def close(self) -> None:
        """Answer waiting requests, finish the present change, and close the journal."""
        self._closing.set()
        if self._follower.is_alive():
            self._follower.join()
        reading = (self.predictions, self._asks, self._pictures, self._readings, self._layouts)
        for lane in (*reading, self._changes):
            lane.close()
        self.live.close()

    # --- before the first question --------------------------------------------------------------

    def get_ready(self) -> None:
        """Start to compute cached values of the first query; predictions are not blocked."""
        self.getting_ready = Step(step=WARM_UP[0][0], progress=0.0)
        self._warming = self._readings.submit(self._warm_up)

    async def until_ready(self) -> None:
        """Wait for `get_ready`; TimeoutError after the deadline."""
        if self._warming is not None:
            waiting = asyncio.shield(asyncio.wrap_future(self._warming))
            await asyncio.wait_for(waiting, self.limits.deadline)

    def _warm_up(self) -> None:
        try:
            for n_done, (step, work) in enumerate(WARM_UP):
                if self._closing.is_set():
                    return
                self.getting_ready = Step(step=step, progress=n_done / len(WARM_UP))
                work(self.live.now)
        except Exception as error:  # the query that needs it raises the error
            _LOG.error("getting ready failed", exc_info=error)
        finally:
            self.getting_ready = None

    # --- predictions ----------------------------------------------------------------------------

    async def predict(
        self,
        rows: Callable[[Version], Any],
        n_rows: int,
        ask: Ask,
        form: Callable[[Any], T],
    ) -> T:
        """Predict rows, and return the answer in the form made by `form`.

        `rows` converts them to the model's input form. `rows` and `form` run in the thread of the
        predictions, since decoding images or writing JSON of thousands of rows would block other
        requests.

        Raises
        ------
        ProblemError
            If the rows do not fit the model, or it cannot answer the query.
        """
        self.check_size(n_rows, ask)
        answer = self.predictions.submit((ask, rows, form), group=ask, n_rows=n_rows)
        return await self._within_deadline(answer)

    def check_size(self, n_rows: int, ask: Ask) -> None:
        """Raise ProblemError if a query has too many rows, or too many neighbors to show."""
        self.check_rows(n_rows)
        n_shown = n_rows * (ask.n_neighbors or 0)
        if n_shown > _MOST_SHOWN:
            raise ProblemError(
                413,
                f"{n_rows} rows with {ask.n_neighbors} neighbors each are more than {_MOST_SHOWN} "
                "neighbors. Ask for fewer rows or neighbors at once.",
            )

    def check_rows(self, n_rows: int) -> None:
        """Raise ProblemError if a request has too many rows."""
        if n_rows > self.limits.max_rows:
            raise ProblemError(
                413, f"{n_rows} rows are more than the {self.limits.max_rows} of one request."
            )

    def _predict(self, requests: list[tuple[Ask, Callable[[Version], Any], Any]]) -> list[Any]:
        """Answer equal queries; by a newer version if rows of this one are gone."""
        results = self._answered(requests)
        if any(isinstance(one, StoreError) and one.reason == "changed" for one in results):
            self.live.catch_up()
            results = self._answered(requests)
        return results

    def _answered(self, requests: list[tuple[Ask, Callable[[Version], Any], Any]]) -> list[Any]:
        """Answer equal queries by one version of the model."""
        ask, version = requests[0][0], self.live.now
        given = [attempt(partial(rows, version)) for _, rows, _ in requests]
        each, warnings = encoded(version, given)
        sound = [one for one in each if not isinstance(one, Exception)]
        if not sound:
            return each
        n_rows = sum(len(one[0]) for one in sound)
        self.monitoring.rows.inc(n_rows)
        self.monitoring.batch_rows.observe(n_rows)
        # Fails with too few calibration rows, or if no threshold keeps the risk.
        found = attempt(lambda: self.task.answers(version, sound, ask))
        results, start = [], 0
        for one, said, (_, _, form) in zip(each, warnings, requests, strict=True):
            if isinstance(one, Exception) or isinstance(found, Exception):
                results.append(one if isinstance(one, Exception) else found)
                continue
            rows = slice(start, start + len(one[0]))
            results.append(attempt(partial(form, found.of_rows(rows, said))))
            start = rows.stop
        return results

    # --- changes --------------------------------------------------------------------------------

    async def undo(self, version: int, key: str | None = None) -> Change:
        """Reverse a change, see `change`; 404 if the version does not exist."""

        def make(live: LiveModel) -> Change:
            try:
                return live.undo(version, key=key)
            except KeyError:
                raise ProblemError(404, f"There is no change {version}.") from None

        return await self.change(make, key)

    async def change(self, make: Callable[[LiveModel], Change], key: str | None = None) -> Change:
        """Make a change after all earlier ones; durable on return.

        `key`: idempotency key of the request, named by the error of a late change.

        Raises
        ------
        ProblemError
            422 if the model rejects it; 404 if a row is not remembered; 409 if its key was used by
            another request; 403 if the service is read-only; 503 while a job runs; 504 after the
            deadline: then the message says whether the change may still be made.
        """
        self._check_writable()

        def work() -> Change:
            lineage = self.live.lineage
            self.live.catch_up()
            if self.live.lineage != lineage:
                raise ProblemError(
                    409,
                    "Another model has replaced the one that was served. Nothing was "
                    "changed; look rows up in the new one.",
                )
            before = self.live.now
            change = make(self.live)
            if self._first is None or self._first_lineage != lineage:
                self._first, self._first_lineage = before, lineage
            return change

        answer = self._changes.submit(work)
        try:
            change = await self._within_deadline(answer)
        except TimeoutError:
            raise _late_change(is_made=not answer.cancelled(), has_key=key is not None) from None
        if self.live.replay_seconds > _LONGEST_REPLAY and not self._is_folding:
            self._is_folding = True
            try:
                self._changes.submit(self._fold)
            except QueueFullError:  # try again after the next change
                self._is_folding = False
        return change

    def _fold(self) -> None:
        """Fold the changes into the folder, so that the model opens quickly after a restart."""
        try:
            self.live.compact(keep_removed=True)
        except (OSError, StoreError) as error:  # the changes stay valid without it
            _LOG.error("the journal is as long as it was: %s", error)
        finally:
            self._is_folding = False

    def start_job(self, kind: str, work: Callable[[LiveModel], object]) -> Job:
        """Queue background work; `job` returns its progress."""
        self._check_writable()
        job = Job(next(self._job_ids), kind)

        def run() -> None:
            job.state, job.started = "running", _now()
            problem = attempt(lambda: work(self.live))
            if isinstance(problem, ProblemError):
                job.problem = problem.detail
            elif isinstance(problem, Exception):
                job.problem = "It failed; the log says more."
                _LOG.error("%s failed", kind, exc_info=problem)
            job.finished, job.memory_version = _now(), self.live.version
            job.state = "failed" if job.problem else "done"

        self._changes.submit(run)
        self._jobs[job.id] = job
        while len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)
        return job

    def job(self, number: int) -> Job:
        """Return a job by its number."""
        if number not in self._jobs:
            raise ProblemError(404, f"There is no job {number}; the last {_MOST_JOBS} are kept.")
        return self._jobs[number]

    def _check_writable(self) -> None:
        if self.read_only:
            raise ProblemError(403, "This service is read-only.")
        if any(job.state in ("waiting", "running") for job in self._jobs.values()):
            raise ProblemError(503, "A job is changing the model. Send it again when it is done.")

    # --- memory content -------------------------------------------------------------------------

    def remembered(self, row: int) -> tuple[Version, dict[str, Any]]:
        """Return id, label, weight and values of a remembered row; 404 if it does not exist."""
        version = self.live.now
        found = _look_up(version, row)
        values = {"id": found.id, self.task.LABEL: found.label, "weight": found.weight}
        values |= {"row": without_pixels(found.row)}
        return version, values | ({} if found.show is None else {"show": found.show})

    async def picture(self, row: int) -> bytes:
        """Thumbnail of a remembered row as PNG; 404 if it has no picture, or no readable one."""

        def work() -> bytes:
            pixels = face_of(_look_up(self.live.now, row)).picture
            if pixels is None:  # the same words in all cases, which tell nothing of other files
                raise ProblemError(404, "The row has no picture, or its file is not readable.")
            return png(pixels, _SIDE)

        return await self._within_deadline(self._pictures.submit(work))

    async def read(self, work: Callable[[], T]) -> T:
        """Do slow read-only work, one after the other, without blocking predictions."""
        return await self._within_deadline(self._readings.submit(work))

    async def ask(self, work: Callable[[], T]) -> T:
        """Do read-only work of less than a second, without waiting for slow work."""
        return await self._within_deadline(self._asks.submit(work))

    async def ask_again(self, question: str, work: Callable[[], T]) -> T:
        """Do work as `ask` does, for a client that retries after a TimeoutError.

        The work continues between retries, so that no query is too long to be answered.
        """
        now = self.live.now
        version, answer = self._begun.pop(question, (None, None))
        if answer is None or version is None or version.fitted is not now.fitted:
            answer = self._asks.submit(work)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(answer))
            found: T = await asyncio.wait_for(waiting, self.limits.deadline)
        except TimeoutError:
            self._begun[question] = now, answer
            while len(self._begun) > self.limits.max_queue:
                self._begun.popitem(last=False)
            raise
        return found

    def issues(self) -> tuple[Version, Any]:
        """Rows with suspected wrong labels, most suspicious first, without confirmed ones."""
        version, found = self._once("issues", _label_issues)
        suspect = found["given"] != found["suggested"]
        if self.task is numbers:
            suspect = found["suspicion"] > 0.5
        return version, found[suspect & ~found["id"].isin(self.live.kept())]

    def findings(self) -> tuple[Version, pd.DataFrame]:
        """Rows for manual review, see `Review.findings`, without confirmed ones."""
        version, found = self._once("findings", self._findings)
        return version, found[~found["id"].isin(self.live.kept())]

    def expected_wrong(self) -> ExpectedWrong:
        """Estimate the number of wrong labels, or targets, with its interval."""
        return self._once("expected", lambda now: expected_wrong(now.fitted))[1]

    def _findings(self, version: Version) -> pd.DataFrame:
        return findings(version.fitted, self._of(version, "issues", _label_issues))

    def review(self, *, again: bool = False) -> Reviewed:
        """Rows for manual review. They keep their order while they are decided, until `again`."""
        known, now = self._reviewed, self.live.now
        if known is None or known.lineage != self.live.lineage:
            again = True
        if again and (known is None or known.version.fitted is not now.fitted):
            issues = self._of(now, "issues", _label_issues)
            found = self._of(now, "findings", self._findings)
            expected, by_id = self.expected_wrong(), issues.set_index("id")
            known = Reviewed(now, self.live.lineage, found, by_id, expected)
            self._reviewed = known
        assert known is not None  # made above
        return known

    @property
    def is_reviewed(self) -> bool:
        """Whether `review` has an answer already, so that it takes no time."""
        return self._reviewed is not None and self._reviewed.lineage == self.live.lineage

    def summary(self) -> tuple[Version, dict[str, Any]]:
        """Classes or range of the targets, and the quality on the calibration rows."""
        return self._once("summary", lambda now: self.task.summary(now.fitted))

    def trust(self) -> tuple[Version, Trust]:
        """Measure the calibration and risk of predictions."""
        if self.task is numbers:
            raise ProblemError(
                422,
                "Trust is measured of classes, and this model predicts numbers. GET /feedback "
                "measures its answers to rows whose targets have become known.",
            )
        return self._once("trust", lambda now: measure_trust(now.fitted))

    def map(self, method: MapMethod = "pca") -> tuple[Version, Any]:
        """Project the memory to two dimensions; by PCA of its keys, or by t-SNE."""
        version, laid = self.laid_out(method)
        fitted, rows = version.fitted, laid.positions
        x, y = rounded(laid.points).T
        found = {"n_remembered": fitted.n_remembered, "id": fitted.bank.ids.numpy()[rows]}
        found |= {"x": x, "y": y}
        if self.task is numbers:
            found["target"] = fitted.labels_at(rows)
        else:
            found |= {"classes": fitted.classes, "label": fitted.codes[rows]}
        return version, found | {"explained_variance": laid.explained_variance}

    def map_values(self, by: MapColoring, column: str | None = None) -> tuple[Version, MapValues]:
        """Values of the rows of a map, in its order, by which they are colored.

        Raises
        ------
        ProblemError
            422 if `column` is missing, or given without `by="column"`.
        """
        if (by == "column") != (column is not None):
            raise ProblemError(422, 'column names the column of by="column"; give both or none.')
        version = self.live.now
        rows = drawn_positions(version.fitted)
        if column is not None:
            return version, column_values(version.fitted, column, rows)
        if by == "change":
            return version, change_values(self._came(version.fitted)[rows])
        issues = self._of(version, "issues", _label_issues)
        found = self._of(
            version, f"map of {by}", lambda now: prediction_values(now.fitted, by, issues)
        )
        return version, replace(found, values=found.values[rows])

    def column_profile(self) -> tuple[Version, ColumnProfile]:
        """Columns of the remembered rows, for comparisons."""
        return self._once("columns", lambda now: ColumnProfile.of(now.fitted))

    def laid_out(self, method: MapMethod) -> tuple[Version, MemoryMap]:
        """Return the cached map of the present version."""
        report = self._layouts.report
        return self._once(f"map by {method}", lambda now: memory_map(now.fitted, method, report))

    def projected(
        self, method: MapMethod, rows: Callable[[Version], Any]
    ) -> tuple[Version, torch.Tensor, list[list[float]]]:
        """Project rows onto the map; returns the version, their keys (n, d), and a point each."""
        version, laid = self.laid_out(method)
        keys = version.fitted.predictor.feature_keys(version.encoded(rows(version))[0])
        return version, keys, laid.project(keys.float().numpy()).tolist()

    async def read_map(
        self, method: MapMethod, work: Callable[[], T], is_gone: Callable[[], Awaitable[bool]]
    ) -> T:
        """Do work with a map; t-SNE runs in its own thread, while at least one client waits."""
        if method == "pca":
            return await self.ask(work)
        return await self._layouts.answer(work, self.limits.deadline, is_gone)

    @property
    def layout_progress(self) -> float | None:
        """Progress of the running slow layout, or None."""
        return self._layouts.progress

    def _came(self, fitted: FittedClassifier) -> np.ndarray:
        """Version that added each remembered row; 0 for rows of the fit."""
        came = np.zeros(len(fitted.bank), dtype=np.int64)
        position = {row: at for at, row in enumerate(fitted.bank.ids.tolist())}
        for change in self.live.history():
            if change.kind in (ADD, FEEDBACK):
                came[[position[row] for row in change.ids if row in position]] = change.version
        return came

    def effect(self) -> "Effect | None":
        """Measure the effect of all changes by this service on held-out rows.

        Changed rows are left out. None before the first change, or with fewer than 30 remaining
        calibration rows.
        """
        start, now = self._first, self.live.now
        if self._effect is not None and self._effect[0] is now.fitted:
            return self._effect[1]
        if start is None or start.fitted is now.fitted or self._first_lineage != self.live.lineage:
            return None
        touched = {
            row for one in self.live.history() for row in one.ids if one.version > start.number
        }
        each = [one.fitted.bank.ids[one.fitted.predictor.judged] for one in (start, now)]
        both = set(each[0].tolist()) & set(each[1].tolist())
        rows = sorted(both - touched)
        if len(rows) > _MOST_JUDGED:
            rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_JUDGED, False)).tolist()
        if len(rows) < _FEWEST_JUDGED:
            return None
        before = held_out_losses(start.fitted, rows)
        gaps = held_out_losses(now.fitted, rows) - before
        spread = 1.96 * float(gaps.std(ddof=1)) / len(gaps) ** 0.5
        found = Effect(float(before.mean()), float(gaps.mean()), spread, len(gaps))
        self._effect = now.fitted, found
        return found

    def _once(self, name: str, make: Callable[[Version], T]) -> tuple[Version, T]:
        """Return the present version and a cached value derived from it."""
        version = self.live.now
        return version, self._of(version, name, make)

    def _of(self, version: Version, name: str, make: Callable[[Version], T]) -> T:
        """Return a cached value derived from a version; values of other versions are dropped."""
        known = self._derived.get(name)
        if known is None or known[0].fitted is not version.fitted:
            known = version, make(version)
            with self._noting:
                there = self._derived.items()
                kept = {n: one for n, one in there if one[0].fitted is version.fitted}
                self._derived = kept | {name: known}
        found: T = known[1]
        return found

    # --- inside -----------------------------------------------------------------------------------

    async def _within_deadline(self, answer: "Future[T]") -> T:
        return await asyncio.wait_for(asyncio.wrap_future(answer), self.limits.deadline)

    def _follow(self) -> None:
        problem = ""
        while not self._closing.wait(_FOLLOW_EVERY):
            try:
                self.live.catch_up()
                problem = ""
            except Exception as error:  # continue with the present version
                if str(error) != problem:
                    _LOG.error("could not follow the model's folder: %s", error)
                problem = str(error)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def task_of(fitted: FittedModel) -> Any:
    """Return the task module of a model: `classes` or `numbers`."""
    return numbers if isinstance(fitted, FittedRegressor) else classes


def _late_change(*, is_made: bool, has_key: bool) -> ProblemError:
    made = "may still be made" if is_made else "was not made"
    again = "Send it again."
    if has_key:
        again = "Send it again under the same Idempotency-Key: it is made once."
    elif is_made:
        again = "Look at /changes before you send it again."
    return ProblemError(504, f"The change took longer than the deadline, and {made}. {again}")


WARM_UP: Sequence[tuple[str, Callable[[Version], object]]] = (
    ("predictions of remembered rows", lambda now: known_rows(now.fitted)),
)


def _look_up(version: Version, row: int) -> RememberedRow:
    """Look up a remembered row; 404 if it does not exist."""
    try:
        (found,) = version.fitted.look_up([row])
    except UnknownIdError:
        raise not_remembered() from None
    return found


def _label_issues(version: Version) -> Any:
    return Review(version.fitted).issues()
