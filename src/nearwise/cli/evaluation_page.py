"""The page behind ``nearwise evaluate --report``: scores, diagrams, curves and hard cases."""

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.estimators import AttnKNNClassifier
    from nearwise.experiments import Record
    from nearwise.experiments.artifacts import Predictions

_METHOD = "attention"


def write_page(
    path: Path,
    model: "AttnKNNClassifier",
    data: str,
    features: "pd.DataFrame",
    labels: "np.ndarray",
    proba: "np.ndarray",
    scores: dict[str, dict[str, float]],
    null_mass: float,
) -> None:
    """Write one self-contained HTML file about a model on labelled rows.

    Parameters
    ----------
    path : Path
        Where the page goes.
    model : AttnKNNClassifier
        Fitted.
    data : str
        Name of the file evaluated on.
    features : DataFrame of shape (n_rows, n_columns)
        Its rows, as the model knows them.
    labels : int64 ndarray of shape (n_rows,)
        Positions of the true labels among the model's classes.
    proba : ndarray of shape (n_rows, n_classes)
        The model's probabilities.
    scores : dict of str to dict
        Metrics of "model", "base alone" and "neighbors alone".
    null_mass : float
        Mean mass of the null neighbor.
    """
    import numpy as np

    from nearwise.data import Dataset
    from nearwise.experiments.artifacts import (
        Predictions,
        artifact_path,
        make_gallery,
        save_json,
        save_predictions,
    )
    from nearwise.experiments.records import write_aside
    from nearwise.report.page import make_page, render_page
    from nearwise.report.summary import Results

    name = "standard input" if data == "-" else Path(data).stem
    rows = np.arange(len(labels), dtype=np.int64)
    predictions = Predictions(labels, proba, rows, [str(label) for label in model.classes_])
    dataset = Dataset(
        name, features, model.classes_[labels], model.target_name_, "table", source=data
    )
    with tempfile.TemporaryDirectory() as folder:

        def place(what: str, suffix: str) -> Path:
            return artifact_path(folder, what, name, _METHOD, 0, suffix)

        save_predictions(place("predictions", "npz"), predictions)
        save_json(place("curves", "json"), model.history_)
        save_json(place("galleries", "json"), make_gallery(model, dataset, rows, predictions))
        results = Results(_records(name, model, predictions, scores, null_mass), Path(folder))
        page = make_page(Path(folder), results, f"{model.target_name_}, predicted on {name}")
    lead = (
        f"A model that remembers {len(model.memory_)} rows, measured on {len(labels)} rows it has "
        "not learned from. Beside it stand its two halves: the base alone and the neighbors alone."
    )
    write_aside(path, render_page(replace(page, lead=lead)).encode("utf-8"))


def _records(
    name: str,
    model: "AttnKNNClassifier",
    predictions: "Predictions",
    scores: dict[str, dict[str, float]],
    null_mass: float,
) -> "list[Record]":
    """Lay the halves and the whole out as rows of a comparison with one method."""
    from nearwise.experiments import Record
    from nearwise.experiments.measure import command_line, hardware, versions

    facts: dict[str, Any] = {
        "dataset": name,
        "seed": 0,
        "n_train": len(model.memory_),
        "n_test": len(predictions.y),
        "n_classes": len(predictions.classes),
        "versions": versions(),
        "hardware": hardware(),
        "command": command_line(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    parts: dict[str, dict[str, Any]] = {
        f"{_METHOD}:base-alone": scores["base alone"] | {"part_of": _METHOD},
        f"{_METHOD}:neighbors-alone": scores["neighbors alone"] | {"part_of": _METHOD},
        _METHOD: scores["model"] | {"null_mass": null_mass},
    }
    return [Record(method=method, **facts, **values) for method, values in parts.items()]
