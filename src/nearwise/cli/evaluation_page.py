"""The page behind ``nearwise evaluate --report``: scores, diagrams, curves and hard cases."""

import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearwise.cli.scored_rows import ScoredRows
from nearwise.cli.trust_columns import trust_in_words

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.data.dataset import Kind
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.lab.experiments import Record

# how the page names the model and its halves
_METHODS = {
    "model": "attention",
    "base alone": "base alone",
    "neighbors alone": "neighbors alone",
}


def write_page(
    path: Path,
    model: "AttnKNNClassifier",
    data: str,
    features: "pd.DataFrame | np.ndarray",
    scored: ScoredRows,
    scores: dict[str, dict[str, float]],
    null_mass: float,
    trust: dict[str, Any],
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
    features : DataFrame of shape (n_rows, n_columns), or images
        Its rows, as the model knows them.
    scored : ScoredRows
        Their labels, what the model and its halves say, and whether it learned from them. Then
        there is no gallery: among the neighbors of each row would be the row itself.
    scores : dict of str to dict
        Metrics of the same three.
    null_mass : float
        Mean mass of the null neighbor.
    trust : dict
        What `measure_trust` found.
    """
    import numpy as np
    import pandas as pd

    from nearwise.data import Dataset
    from nearwise.lab.experiments.artifacts import (
        Predictions,
        artifact_path,
        make_gallery,
        save_json,
        save_predictions,
    )
    from nearwise.lab.report.page import make_page, render_page
    from nearwise.lab.report.summary import Results
    from nearwise.safe_files import write_aside

    name = "standard input" if data == "-" else Path(data).stem
    labels = scored.y
    rows = np.arange(len(labels), dtype=np.int64)
    classes = [str(label) for label in model.classes_]
    predictions = {
        _METHODS[part]: Predictions(labels, values, rows, classes)
        for part, values in scored.halves.items()
    }
    whole = _METHODS["model"]
    kind: Kind = "table" if isinstance(features, pd.DataFrame) else "images"
    dataset = Dataset(name, features, model.classes_[labels], model.target_name_, kind, source=data)
    with tempfile.TemporaryDirectory() as folder:

        def place(what: str, method: str, suffix: str) -> Path:
            return artifact_path(folder, what, name, method, 0, suffix)

        for method, values in predictions.items():
            save_predictions(place("predictions", method, "npz"), values)
        save_json(place("curves", whole, "json"), model.history_)
        if scored.new:
            gallery = make_gallery(model, dataset, rows, predictions[whole])
            save_json(place("galleries", whole, "json"), gallery)
        results = Results(_records(name, model, len(labels), scores, null_mass), Path(folder))
        page = make_page(Path(folder), results, f"{model.target_name_}, predicted on {name}")
    lead = " ".join(
        [
            f"A model that remembers {len(model.memory_)} {scored.noun}, measured on "
            f"{scored.measured_on}.",
            *scored.remarks,
            "Beside it stand its two halves: the base alone and the neighbors alone.",
            trust_in_words(trust),
        ]
    )
    write_aside(path, render_page(replace(page, lead=lead)).encode("utf-8"))


def _records(
    name: str,
    model: "AttnKNNClassifier",
    n_rows: int,
    scores: dict[str, dict[str, float]],
    null_mass: float,
) -> "list[Record]":
    """Lay the model and its halves out as methods that were compared on the same rows."""
    from nearwise.conditions import command_line, hardware, versions
    from nearwise.lab.experiments import Record

    facts: dict[str, Any] = {
        "dataset": name,
        "seed": 0,
        "n_train": len(model.memory_),
        "n_test": n_rows,
        "n_classes": len(model.classes_),
        "versions": versions(),
        "hardware": hardware(),
        "command": command_line(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    records = [Record(method=_METHODS[part], **(facts | scores[part])) for part in scores]
    return [replace(records[0], null_mass=null_mass), *records[1:]]
