"""Service: a live model behind three lanes: predictions, changes, and long reads."""

import asyncio
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from nearwise.classifier import LiveModel
from nearwise.classifier.fit.embedding import AnyRows
from nearwise.classifier.live import ReusedKeyError, Version
from nearwise.classifier.memory_map import MapMethod, MemoryMap, memory_map
from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.noise.label_issues import can_find_label_issues, label_issues
from nearwise.classifier.noise.review import held_out_losses, review
from nearwise.classifier.query import Query
from nearwise.classifier.storage.journaling import ADD, FEEDBACK
from nearwise.classifier.uncertainty.explain import without_pixels
from nearwise.classifier.uncertainty.trust import Trust, measure_trust
from nearwise.forking import heed_forks
from nearwise.memory import Change, StoreError, UnknownIdError
from nearwise.serve.batching import Lane, QueueFullError
from nearwise.serve.monitoring import Monitoring
from nearwise.serve.problems import ProblemError

T = TypeVar("T")
_LOG = logging.getLogger("nearwise.serve")
_BOUND_CONFIDENCE = 0.95  # of the bound on the share of wrong answers
_OF_SELECTION = ("score_name", "threshold", "expected_risk", "risk_bound", "confidence")
_FOLLOW_EVERY = 0.5  # seconds
_LONGEST_REPLAY = 10.0  # seconds that opening the model may take longer for its changes
_MOST_JOBS = 100  # that are remembered
_FEWEST_JUDGED, _MOST_JUDGED = 30, 5_000  # rows that an effect is measured on
_REFUSED = (ValueError, TypeError, OverflowError)  # by the model, of what it was given
_MOST_SHOWN = 2**15  # neighbors of all rows of a request


@dataclass(frozen=True)
class Limits:
    """What a service accepts.

    `max_queue`: requests that may wait, of each lane. `max_rows`: most rows of a request, and of
    requests answered together. `max_body`: bytes. `deadline`: seconds until an answer is given up.
    """

    max_queue: int = 64
    max_rows: int = 4096
    max_body: int = 8 * 2**20
    deadline: float = 10.0


@dataclass(frozen=True)
class Ask:
    """A query about rows; equal queries are answered together."""

    confidence: float | None = None
    novelty: bool = False
    coverage: float | None = None
    max_risk: float | None = None
    n_neighbors: int | None = None

    @property
    def is_selective(self) -> bool:
        """Whether to choose the predictions to act on."""
        return self.coverage is not None or self.max_risk is not None


class Answers(NamedTuple):
    """What was found for the rows of a request; None where it was not requested.

    `proba` (n, n_classes), `sets` bool (n, n_classes), `novelty_p` (n,), `accepted` bool (n,),
    `explanations` one per row, `selection` of all requests that were answered together.
    """

    version: int
    classes: np.ndarray
    proba: np.ndarray
    sets: np.ndarray | None
    novelty_p: np.ndarray | None
    accepted: np.ndarray | None
    selection: dict[str, Any] | None
    explanations: list[Any] | None

    def of_rows(self, rows: slice) -> "Answers":
        """Those of some rows."""

        def cut(values: Any) -> Any:
            return None if values is None else values[rows]

        return self._replace(
            proba=cut(self.proba),
            sets=cut(self.sets),
            novelty_p=cut(self.novelty_p),
            accepted=cut(self.accepted),
            explanations=cut(self.explanations),
        )

    @property
    def predicted(self) -> np.ndarray:
        """Most probable classes, (n,)."""
        found: np.ndarray = self.classes[self.proba.argmax(axis=1)]
        return found

    def records(self) -> list[dict[str, Any]]:
        """One object per row: label, proba by class, and what else was requested."""
        names = [str(label) for label in self.classes.tolist()]
        records: list[dict[str, Any]] = []
        labels, proba = self.predicted.tolist(), self.proba.tolist()
        for row, label in enumerate(labels):
            record: dict[str, Any] = {"label": label}
            if self.explanations is not None:
                record |= self.explanations[row].to_dict()
                del record["prediction"]
            record["proba"] = dict(zip(names, proba[row], strict=True))
            if self.sets is not None:
                record["set"] = self.classes[self.sets[row]].tolist()
            if self.novelty_p is not None:
                record["novelty_p"] = self.novelty_p[row]
            if self.accepted is not None:
                record["accepted"] = self.accepted[row]
            records.append(record)
        return records


@dataclass
class Job:
    """Work that takes longer than a request may."""

    id: int
    kind: str
    state: Literal["waiting", "running", "done", "failed"] = "waiting"
    started: float | None = None
    finished: float | None = None
    memory_version: int | None = None
    problem: str | None = None


class Effect(NamedTuple):
    """Difference that changes made to the NLL of `n_rows` rows predicted without their labels.

    `before`: NLL without the changes. `difference`: what they added to it, give or take `spread`
    (95 %, over rows).
    """

    before: float
    difference: float
    spread: float
    n_rows: int


class Service:
    """A saved model that answers many clients and is changed while it does.

    Parameters
    ----------
    live : LiveModel
        Closed by `close`.
    limits : Limits, optional
    read_only : bool, default=False
        Whether changes are refused.
    follow : bool, default=False
        Whether changes that other processes make are applied here, within a second. A service that
        makes changes itself first applies those of others.
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
        self.monitoring = Monitoring(self)
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._job_ids = itertools.count(1)
        self._is_folding = False
        self._derived: dict[str, tuple[Version, Any]] = {}
        self._first: Version | None = None  # before the first change that was made here
        self._first_lineage = ""
        self._effect: tuple[FittedModel, Effect] | None = None
        most = self.limits.max_queue
        self.predictions = Lane(
            "predictions", self._predict, max_waiting=most, max_rows=self.limits.max_rows
        )
        self._changes = Lane("changes", _call_each, max_waiting=most)
        self._readings = Lane("readings", _call_each, max_waiting=most)
        self._asks = Lane("asks", _call_each, max_waiting=most)
        self._closing = threading.Event()
        self._follows, self._follower = follow, threading.Thread()
        self.start()
        heed_forks(self, Service._forget_jobs)

    def start(self) -> None:
        """Follow the folder in this process, if it is to be followed and is not yet."""
        if self._follows and not self._follower.is_alive():
            self._follower = threading.Thread(target=self._follow, name="follower", daemon=True)
            self._follower.start()

    def _forget_jobs(self) -> None:
        """Leave jobs to the process that began them."""
        self._closing = threading.Event()
        self._jobs.clear()
        self._is_folding = False

    def close(self) -> None:
        """Answer what waits, finish the change under way, and close the journal."""
        self._closing.set()
        if self._follower.is_alive():
            self._follower.join()
        for lane in (self.predictions, self._asks, self._readings, self._changes):
            lane.close()
        self.live.close()

    # --- predictions ----------------------------------------------------------------------------

    async def predict(
        self,
        rows: Callable[[Version], Any],
        n_rows: int,
        ask: Ask,
        form: Callable[[Answers], T],
    ) -> T:
        """Predict rows, and give the answer in a form.

        `rows` brings them into the form that a version of the model takes. That and `form` are
        called by the thread that predicts: decoding images, or writing JSON of thousands of rows,
        would keep others waiting.

        Raises
        ------
        ProblemError
            If the model cannot take the rows, or not answer the query.
        """
        self.check_rows(n_rows)
        n_shown = n_rows * (ask.n_neighbors or 0)
        if n_shown > _MOST_SHOWN:
            raise ProblemError(
                413,
                f"{n_rows} rows with {ask.n_neighbors} neighbors each are more than {_MOST_SHOWN} "
                "neighbors. Ask for fewer rows or neighbors at once.",
            )
        answer = self.predictions.submit((ask, rows, form), group=ask, n_rows=n_rows)
        return await self._within_deadline(answer)

    def check_rows(self, n_rows: int) -> None:
        """Refuse more rows than a request may have."""
        if n_rows > self.limits.max_rows:
            raise ProblemError(
                413, f"{n_rows} rows are more than the {self.limits.max_rows} of one request."
            )

    def _predict(self, requests: list[tuple[Ask, Callable[[Version], Any], Any]]) -> list[Any]:
        """Answer equal queries; by a newer version where this one's rows are gone."""
        results = self._answered(requests)
        if any(isinstance(one, StoreError) and one.reason == "changed" for one in results):
            self.live.catch_up()
            results = self._answered(requests)
        return results

    def _answered(self, requests: list[tuple[Ask, Callable[[Version], Any], Any]]) -> list[Any]:
        """Answer equal queries, all by one version of the model."""
        ask, version = requests[0][0], self.live.now
        given = [_attempt(partial(rows, version)) for _, rows, _ in requests]
        encoded = _encoded(version, given)
        sound = [one for one in encoded if not isinstance(one, Exception)]
        if not sound:
            return encoded
        n_rows = sum(len(one[0]) for one in sound)
        self.monitoring.rows.inc(n_rows)
        self.monitoring.batch_rows.observe(n_rows)
        # Refused where there are too few calibration rows, or no threshold keeps the risk.
        found = _attempt(lambda: answers(version, version.query(sound, **_extras(ask)), ask))
        results, start = [], 0
        for one, (_, _, form) in zip(encoded, requests, strict=True):
            if isinstance(one, Exception) or isinstance(found, Exception):
                results.append(one if isinstance(one, Exception) else found)
                continue
            rows = slice(start, start + len(one[0]))
            results.append(_attempt(partial(form, found.of_rows(rows))))
            start = rows.stop
        return results

    # --- changes --------------------------------------------------------------------------------

    async def change(self, make: Callable[[LiveModel], Change]) -> Change:
        """Make a change, in turn with others; durable when it returns.

        Raises
        ------
        ProblemError
            422 if the model refuses it, 404 if a row is not remembered, 409 if its key was used by
            another, 403 if the service is read-only, 503 while a job runs, 504 if it was not made
            in time: then the message says whether it may be made all the same.
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
            made = "was not made" if answer.cancelled() else "may still be made"
            raise ProblemError(
                504,
                f"The change took longer than the deadline, and {made}. If it had an "
                "Idempotency-Key, send it again under the same one: it is made once. Otherwise "
                "look at /changes first.",
            ) from None
        if self.live.replay_seconds > _LONGEST_REPLAY and not self._is_folding:
            self._is_folding = True
            try:
                self._changes.submit(self._fold)
            except QueueFullError:  # after the next change, then
                self._is_folding = False
        return change

    def _fold(self) -> None:
        """Fold the changes in, so that a service that is started again opens the model soon."""
        try:
            self.live.compact(keep_removed=True)
        except (OSError, StoreError) as error:  # the changes are made all the same
            _LOG.error("the journal is as long as it was: %s", error)
        finally:
            self._is_folding = False

    def start_job(self, kind: str, work: Callable[[LiveModel], object]) -> Job:
        """Queue work that takes longer than a request may; `job` gives its progress."""
        self._check_writable()
        job = Job(next(self._job_ids), kind)

        def run() -> None:
            job.state, job.started = "running", time.time()
            problem = _attempt(lambda: work(self.live))
            if isinstance(problem, ProblemError):
                job.problem = problem.detail
            elif isinstance(problem, Exception):
                job.problem = "It failed; the log says more."
                _LOG.error("%s failed", kind, exc_info=problem)
            job.finished, job.memory_version = time.time(), self.live.version
            job.state = "failed" if job.problem else "done"

        self._changes.submit(run)
        self._jobs[job.id] = job
        while len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)
        return job

    def job(self, number: int) -> Job:
        """Look a job up."""
        if number not in self._jobs:
            raise ProblemError(404, f"There is no job {number}; the last {_MOST_JOBS} are kept.")
        return self._jobs[number]

    def _check_writable(self) -> None:
        if self.read_only:
            raise ProblemError(403, "This service is read-only.")
        if any(job.state in ("waiting", "running") for job in self._jobs.values()):
            raise ProblemError(503, "A job is changing the model. Send it again when it is done.")

    # --- what the memory holds ------------------------------------------------------------------

    def remembered(self, row: int) -> tuple[Version, dict[str, Any]]:
        """Look a remembered row up: its id, label, weight and values; 404 if there is none."""
        version = self.live.now
        try:
            (found,) = version.fitted.look_up([row])
        except UnknownIdError:
            raise _not_remembered() from None
        return version, found._asdict() | {"row": without_pixels(found.row)}

    async def read(self, work: Callable[[], T]) -> T:
        """Read what takes long, one after the other, while predictions go on."""
        return await self._within_deadline(self._readings.submit(work))

    async def ask(self, work: Callable[[], T]) -> T:
        """Do work that takes part of a second, and need not wait for what takes long."""
        return await self._within_deadline(self._asks.submit(work))

    def issues(self) -> tuple[Version, Any]:
        """Rows whose labels look wrong, most suspicious first, without those that were kept."""
        version, found = self._once("issues", _label_issues)
        suspect = (found["given"] != found["suggested"]) & ~found["id"].isin(self.live.kept())
        return version, found[suspect]

    def review(self) -> tuple[Version, Any]:
        """All that a person should check, as `AttnKNNClassifier.review`, without rows kept."""
        version, found = self._once("review", self._review)
        return version, found[~found["id"].isin(self.live.kept())]

    def _review(self, version: Version) -> Any:
        issues = None
        if can_find_label_issues(version.fitted.predictor):
            issues = self._of(version, "issues", _label_issues)
        return review(version.fitted, issues)

    def trust(self) -> tuple[Version, Trust]:
        """How far predictions can be trusted."""
        return self._once("trust", lambda now: measure_trust(now.fitted))

    def map(self, method: MapMethod = "pca", *, doubt: bool = False) -> tuple[Version, Any]:
        """Lay the memory out in two dimensions; by PCA of its keys, or by t-SNE.

        `doubt`: also the probability that each label is wrong; 422 where the model cannot estimate
        it.
        """
        version, laid = self.laid_out(method)
        fitted, rows = version.fitted, laid.positions
        found = {
            "id": fitted.bank.ids.numpy()[rows],
            "label": fitted.labels_at(rows),
            "x": laid.points[:, 0].round(4),
            "y": laid.points[:, 1].round(4),
            "version": self._came(fitted)[rows],
            "explained_variance": laid.explained_variance,
        }
        if doubt:
            issues = self._of(version, "issues", _label_issues).set_index("id")
            found["doubt"] = issues["suspicion"].reindex(found["id"]).round(4).to_numpy()
        return version, found

    def laid_out(self, method: MapMethod) -> tuple[Version, MemoryMap]:
        """Give the map of the present version, which is made once."""
        return self._once(f"map by {method}", lambda now: memory_map(now.fitted, method))

    def _came(self, fitted: FittedModel) -> np.ndarray:
        """Version with which each remembered row came; 0 for those of the fit."""
        came = np.zeros(len(fitted.bank), dtype=np.int64)
        position = {row: at for at, row in enumerate(fitted.bank.ids.tolist())}
        for change in self.live.history():
            if change.kind in (ADD, FEEDBACK):
                came[[position[row] for row in change.ids if row in position]] = change.version
        return came

    def effect(self) -> "Effect | None":
        """Measure what all changes since the first that this service made did to held-out rows.

        Rows that a change touched are left out. None before the first change, or where no row is
        left for calibration.
        """
        start, now = self._first, self.live.now
        if self._effect is not None and self._effect[0] is now.fitted:
            return self._effect[1]
        if start is None or start.fitted is now.fitted or self._first_lineage != self.live.lineage:
            return None
        touched = {
            row for one in self.live.history() for row in one.ids if one.version > start.number
        }
        both = set(start.fitted.bank.ids.tolist()) & set(now.fitted.bank.ids.tolist())
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
        """Give the present version, and what is made of it once."""
        version = self.live.now
        return version, self._of(version, name, make)

    def _of(self, version: Version, name: str, make: Callable[[Version], T]) -> T:
        """Give what is made of a version, once; what was made of others is dropped."""
        known = self._derived.get(name)
        if known is None or known[0].fitted is not version.fitted:
            made = make(version)
            there = self._derived.items()
            self._derived = {n: one for n, one in there if one[0].fitted is version.fitted}
            known = self._derived[name] = version, made
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
            except Exception as error:  # answers go on with the version that is known
                if str(error) != problem:
                    _LOG.error("could not follow the model's folder: %s", error)
                problem = str(error)


def answers(version: Version, query: Query, ask: Ask) -> Answers:
    """Give what was requested of a query's rows."""
    chosen = None
    if ask.is_selective:
        chosen = query.selection(
            coverage=ask.coverage, max_risk=ask.max_risk, confidence=_BOUND_CONFIDENCE
        )
    return Answers(
        version.number,
        query.model.classes,
        query.proba(),
        None if ask.confidence is None else query.sets(ask.confidence),
        query.novelty_p_value() if ask.novelty else None,
        None if chosen is None else chosen.accepted,
        None if chosen is None else {name: getattr(chosen, name) for name in _OF_SELECTION},
        None if ask.n_neighbors is None else query.explanations(),
    )


def _label_issues(version: Version) -> Any:
    return label_issues(version.fitted, 5, "nearwise")


def _encoded(version: Version, given: list[Any]) -> list[list[AnyRows] | Exception]:
    """Encode the rows of each request; what cannot be is that request's own exception.

    Arrays are checked and encoded at once, as that takes as long for one row as for many. A table's
    columns could change their type by being joined.
    """
    arrays = [one for one in given if isinstance(one, np.ndarray)]
    alike = {(one.shape[1:], one.dtype) for one in arrays}
    if 1 < len(arrays) == len(given) and len(alike) == 1:
        whole = _attempt(lambda: version.encoded(np.concatenate(arrays)))
        if not isinstance(whole, Exception):
            ends = np.cumsum([len(one) for one in arrays])
            return [
                [view.take(np.arange(end - len(one), end)) for view in whole]
                for one, end in zip(arrays, ends, strict=True)
            ]
    return [
        one if isinstance(one, Exception) else _attempt(partial(version.encoded, one))
        for one in given
    ]


def _extras(ask: Ask) -> dict[str, Any]:
    explain: int | Literal[False] = False if ask.n_neighbors is None else ask.n_neighbors
    novelty = ask.novelty or ask.is_selective
    return {"sets": ask.confidence is not None, "novelty": novelty, "explain": explain}


def _not_remembered() -> ProblemError:
    return ProblemError(404, "The row is not remembered (or no longer).")


def _attempt(work: Callable[[], T]) -> T | Exception:
    """Do what a client requests; an exception is its answer, and nobody else's."""
    try:
        return work()
    except StoreError as error:  # though a ValueError, it is not a mistake of a client
        return error
    except UnknownIdError:
        return _not_remembered()
    except ReusedKeyError as error:
        return ProblemError(409, str(error))
    except ImportError as error:  # an extra
        return ProblemError(501, str(error))
    except _REFUSED as error:
        return ProblemError(422, str(error))
    except Exception as error:
        return error


def _call_each(requests: Sequence[Callable[[], Any]]) -> list[Any]:
    """Do the work of each request; an exception is its answer."""
    return [_attempt(work) for work in requests]
