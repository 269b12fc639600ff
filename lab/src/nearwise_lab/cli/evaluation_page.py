"""The page behind ``nearwise evaluate --report``: scores, diagrams, curves and hard cases."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearwise.cli.answer_columns import trust_in_words
from nearwise.cli.rows.scored_rows import ScoredRows
from nearwise.conditions import require_extra

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nearwise.data.dataset import Kind
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.estimators.opening import Estimator
    from nearwise_lab.report.document import Document


# how the page names the model and its halves
_METHODS = {"model": "attention", "base alone": "base alone", "neighbors alone": "neighbors alone"}
_PARTS = (
    ("attention", "The whole model: attention over the nearest rows, pooled with the base."),
    ("base alone", "The base with its temperature, without neighbors."),
    ("neighbors alone", "The neighbors, with the class prior in place of the base."),
)


def page_writer() -> Callable[..., None]:
    """Return `write_page`; ImportError if the extra that it needs is missing."""
    require_extra("The page of --report", "figures", "matplotlib", of="nearwise-lab")
    return write_page


def write_page(
    path: Path,
    model: "Estimator",
    data: str,
    features: "pd.DataFrame | np.ndarray",
    scored: ScoredRows,
    numbers: dict[str, Any],
) -> None:
    """Write one self-contained HTML file about a model on labelled rows.

    Parameters
    ----------
    path : Path
        Where the page goes.
    model : AttnKNNClassifier or AttnKNNRegressor
        Fitted.
    data : str
        Name of the file evaluated on.
    features : DataFrame of shape (n_rows, n_columns), or images
        Its rows, as inputs of the model.
    scored : ScoredRows
        Their labels, the predictions of the model and its halves, and whether it learned from them.
        Then there is no gallery: among the neighbors of each row would be the row itself.
    numbers : dict
        What was measured, as in the JSON of the command.
    """
    from nearwise.estimators import AttnKNNClassifier
    from nearwise.safe_files import write_aside
    from nearwise_lab.cli.numbers_page import numbers_document
    from nearwise_lab.report.writers import document_html

    name = "standard input" if data == "-" else Path(data).stem
    lead = (
        f"A model with {len(model.memory_)} {scored.noun} in memory, measured on "
        f"{scored.measured_on}. {' '.join(scored.remarks)}"
    )
    if isinstance(model, AttnKNNClassifier):
        document = _of_classes(model, name, data, features, scored, numbers, lead)
    else:
        document = numbers_document(model, name, features, scored, numbers, lead, _facts())
    write_aside(path, document_html(document).encode())


def _of_classes(
    model: "AttnKNNClassifier",
    name: str,
    data: str,
    features: "pd.DataFrame | np.ndarray",
    scored: ScoredRows,
    numbers: dict[str, Any],
    lead: str,
) -> "Document":
    import numpy as np
    import pandas as pd

    from nearwise.data import Dataset
    from nearwise.safe_files import plain
    from nearwise_lab.report.compare import model_document
    from nearwise_lab.results.gallery import make_gallery
    from nearwise_lab.results.measures import Predictions

    labels = scored.y
    rows = np.arange(len(labels), dtype=np.int64)
    classes = [str(label) for label in model.classes_]
    predictions = {
        _METHODS[part]: Predictions(labels, values, rows, classes)
        for part, values in scored.halves.items()
    }
    gallery = None
    if scored.new:
        kind: Kind = "table" if isinstance(features, pd.DataFrame) else "images"
        dataset = Dataset(
            name, features, model.classes_[labels], model.fitted_.target_name, kind, source=data
        )
        gallery = plain(make_gallery(model, dataset, rows, predictions[_METHODS["model"]]))
    parts = {"model": "metrics", "base alone": "base_alone", "neighbors alone": "neighbors_alone"}
    halves = "Its two parts are beside it: the base alone and the neighbors alone."
    return model_document(
        f"{model.fitted_.target_name}, predicted on {name}",
        f"{lead} {halves} {trust_in_words(numbers)}",
        name,
        predictions,
        {_METHODS[part]: numbers[key] for part, key in parts.items()},
        parts=_PARTS,
        sizes=(len(model.memory_), len(labels), len(classes)),
        history=plain(model.report_.history),
        gallery=gallery,
        facts=_facts(),
    )


def _facts() -> list[tuple[str, str]]:
    """Return hardware, versions, command and time of the evaluation."""
    from nearwise.conditions import command_line, hardware, versions
    from nearwise_lab.report.commands import readable_command

    def listed(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {value}" for name, value in values.items())

    return [
        ("Hardware", listed(hardware())),
        ("Versions", listed(versions())),
        ("Command", readable_command(command_line())),
        ("Finished", datetime.now(UTC).isoformat(timespec="seconds")),
    ]
