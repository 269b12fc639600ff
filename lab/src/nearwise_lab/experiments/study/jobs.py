"""Jobs: what an experiment measures, row by row; finished rows are skipped, failures kept."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from nearwise.metrics import evaluate_probabilities
from nearwise.metrics.shots import shot_breakdown, uneven
from nearwise.names import did_you_mean
from nearwise_lab.experiments.artifacts import (
    artifact_path,
    record_folder,
    save_json,
    save_predictions,
)
from nearwise_lab.experiments.progress import Bar
from nearwise_lab.experiments.study.evaluate import Prediction, study_nll
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.interrupts import whole_or_nothing
from nearwise_lab.records import Record, RunFolder
from nearwise_lab.results.measures import Predictions


@dataclass(frozen=True)
class Job:
    """A part of an experiment whose rows are made together.

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


def run_jobs(jobs: Sequence[Job], folder: RunFolder, bar: Bar) -> None:
    """Run the jobs whose rows are not finished; each row is on disk before the next begins.

    A job that raises leaves a failed row, with the reason, for each of its missing rows, and the
    next job goes on. Ctrl-C ends the run.
    """
    bar.expect(len(jobs))
    for job in jobs:
        bar.show(job.title)
        finished = folder.finished()
        missing = [record for record in job.wanted if record.key not in finished]
        if not missing:
            bar.skip()
            continue
        done: list[Record] = []
        try:
            for record in _each_whole(job.make(missing)):
                done.append(replace(record, time=now()))
                folder.append(done[-1:])
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:1000]
            made = {record.key for record in done}
            failed = [
                replace(record, status="failed", reason=reason, time=now())
                for record in missing
                if record.key not in made
            ]
            folder.append(failed)
            done += failed
        bar.done(done[-1] if done else missing[-1])


def _each_whole(records: Iterable[Record]) -> Iterator[Record]:
    """Pass on the records of fits that Ctrl-C did not cut short."""
    coming = iter(records)
    while True:
        with whole_or_nothing():
            record = next(coming, None)
        if record is None:
            return
        yield record


def measured(
    blank: Record,
    prediction: Prediction,
    inputs: StudyInputs,
    folder: Any = None,
    **values: Any,
) -> Record:
    """Fill a row from a prediction, and keep the prediction for figures.

    Parameters
    ----------
    blank : Record
    prediction : Prediction
        Of the test rows.
    inputs : StudyInputs
    folder : Path, optional
        Results folder; None keeps no prediction.
    **values
        Further fields; `details` are added to the study's own NLL (clip 1e-9).
    """
    y = inputs.y_test.numpy()
    metrics: dict[str, Any] = dict(evaluate_probabilities(y, prediction.proba))
    details = {"nll_study": study_nll(y, prediction.proba), **values.pop("details", {})}
    if prediction.encoding_seconds:
        own = prediction.seconds - prediction.encoding_seconds
        details["search_and_weigh_us_per_row"] = 1e6 * own / len(y)
    counts = inputs.y_train.cpu().bincount(minlength=inputs.n_classes).numpy()
    if uneven(counts):
        details["shots"] = shot_breakdown(y, prediction.proba, counts)
    record = replace(
        blank,
        **sizes(inputs),
        **metrics,
        k=prediction.k,
        predict_us_per_row=1e6 * prediction.seconds / len(y) if prediction.seconds else None,
        details=details,
        **values,
    )
    if folder is not None:
        kept = Predictions(y, prediction.proba, inputs.test_index, [str(c) for c in inputs.classes])
        save_predictions(record_path(folder, record, "predictions", "npz"), kept)
    return record


def sizes(inputs: StudyInputs) -> dict[str, Any]:
    """n_train, n_test and n_classes of a record."""
    return {
        "n_train": len(inputs.y_train),
        "n_test": len(inputs.y_test),
        "n_classes": inputs.n_classes,
    }


def record_path(folder: Any, record: Record, what: str, suffix: str) -> Any:
    """Where an artifact of a record lies."""
    return artifact_path(
        record_folder(folder, record), what, record.dataset, record.method, record.seed, suffix
    )


def keep_json(folder: Any, record: Record, what: str, value: Any) -> None:
    """Keep JSON beside a record, such as its training curves."""
    save_json(record_path(folder, record, what, "json"), value)


def chosen_ablations(
    known: Mapping[str, dict[str, Any]], preset: StudyPreset
) -> dict[str, dict[str, Any]]:
    """Parts to switch: those the preset names, or all that are known."""
    if preset.ablations is None:
        return dict(known)
    return {name: known[name] for name in preset.ablations if name in known}


def refuse_unknown_parts(known: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Raise ValueError if the user's "ablations" name a part that is none; name the nearest."""
    for name in changes.get("ablations") or ():
        if name not in known:
            raise ValueError(
                f"ablations: {name!r} is no part of the method.{did_you_mean(name, known)} "
                f"Known: {', '.join(known)}."
            )


def by_method(records: Iterable[Record]) -> dict[str, Record]:
    """Blank rows by their method."""
    return {record.method: record for record in records}


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
