"""Parts of the study's jobs: rows filled from predictions, and the ablations that are made."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nearwise.names import did_you_mean
from nearwise_lab.experiments.study.evaluate import Prediction, study_nll
from nearwise_lab.experiments.study.inputs import StudyInputs
from nearwise_lab.experiments.study.presets import StudyPreset
from nearwise_lab.experiments.trial import scored
from nearwise_lab.records import Record
from nearwise_lab.results.measures import Predictions


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
    details = {"nll_study": study_nll(y, prediction.proba), **values.pop("details", {})}
    if prediction.encoding_seconds:
        own = prediction.seconds - prediction.encoding_seconds
        details["search_and_weigh_us_per_row"] = 1e6 * own / len(y)
    kept = Predictions(y, prediction.proba, inputs.test_index, [str(c) for c in inputs.classes])
    return scored(
        replace(blank, **sizes(inputs)),
        kept,
        inputs.y_train.cpu().bincount(minlength=inputs.n_classes).numpy(),
        folder,
        k=prediction.k,
        predict_us_per_row=1e6 * prediction.seconds / len(y) if prediction.seconds else None,
        details=details,
        **values,
    )


def sizes(inputs: StudyInputs) -> dict[str, Any]:
    """n_train, n_test and n_classes of a record."""
    return {
        "n_train": len(inputs.y_train),
        "n_test": len(inputs.y_test),
        "n_classes": inputs.n_classes,
    }


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
