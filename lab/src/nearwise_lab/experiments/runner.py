"""Runner of experiments: measures missing rows, saves each, and shows progress."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from nearwise_lab.experiments.progress import Bar, shown_bar
from nearwise_lab.interrupts import whole_or_nothing
from nearwise_lab.records import Record, RunFolder, now

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """Rows of an experiment that one call computes.

    Attributes
    ----------
    title : str
        For the progress bar.
    wanted : tuple of Record
        Blank rows with their final keys; the job is skipped where all are finished.
    make : callable
        Takes the rows that are still missing and returns them filled.
    """

    title: str
    wanted: tuple[Record, ...]
    make: Callable[[Sequence[Record]], Iterable[Record]]


class Binding(NamedTuple):
    """Settings bound to the rows that `mine` selects; other values raise an error."""

    name: str
    values: dict[str, Any]
    mine: Callable[[Record], bool]


@dataclass(frozen=True)
class Experiment:
    """Declaration of an experiment: settings, bindings and jobs.

    Attributes
    ----------
    settings : dict
        Of the whole folder.
    bindings : sequence of Binding
        Data sets, presets and weights.
    jobs : callable (say) -> iterable of sequences of Job
        All rows, in the order in which they are made; `say` shows what a job is doing.
    belongs : callable (Record) -> bool
        Whether a row of the folder belongs to the request.
    """

    settings: dict[str, Any]
    bindings: Sequence[Binding]
    jobs: Callable[[Say], Iterable[Sequence[Job]]]
    belongs: Callable[[Record], bool]


def run(experiment: Experiment, out: str | PathLike[str], progress: bool) -> list[Record]:
    """Measure the missing rows of an experiment in a folder, and return all its rows.

    Each row is on disk before the next begins, so that a run that was killed goes on. A job that
    raises leaves a failed row, with the reason, for each of its missing rows, and the next job
    goes on; failed rows are tried again by the next run. Ctrl-C ends the run.
    """
    with RunFolder(Path(out), experiment.settings) as folder:
        for binding in experiment.bindings:
            folder.bind(*binding)
        with shown_bar(0, progress, out) as bar:
            for jobs in experiment.jobs(bar.show):
                bar.expect(len(jobs))
                for job in jobs:
                    _do(job, folder, bar)
        return [record for record in folder.records if experiment.belongs(record)]


def _do(job: Job, folder: RunFolder, bar: Bar) -> None:
    bar.show(job.title)
    finished = folder.finished()
    missing = [record for record in job.wanted if record.key not in finished]
    if not missing:
        bar.skip()
        return
    last, made = missing[-1], set()
    try:
        for record in _each_whole(job, missing):
            last = replace(record, time=now())
            made.add(last.key)
            folder.append([last])
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:1000]
        failed = [
            replace(record, status="failed", reason=reason, time=now())
            for record in missing
            if record.key not in made
        ]
        folder.append(failed)
        last = (failed or [last])[-1]
    bar.done(last)


def _each_whole(job: Job, missing: Sequence[Record]) -> Iterator[Record]:
    """Pass on the records of fits that Ctrl-C did not cut short."""
    with whole_or_nothing():
        coming = iter(job.make(missing))
    while True:
        with whole_or_nothing():
            record = next(coming, None)
        if record is None:
            return
        yield record


def checked_seeds(seeds: Sequence[int]) -> list[int]:
    """Distinct seeds; ValueError where there is none, or a negative one."""
    checked = list(dict.fromkeys(int(s) for s in seeds))
    if not checked or min(checked) < 0:
        raise ValueError(f"seeds={list(seeds)} must hold at least one non-negative integer.")
    return checked
