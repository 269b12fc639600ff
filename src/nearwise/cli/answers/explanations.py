"""What lies behind a prediction, as columns of a table or as lines of JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearwise.safe_files import standard_output

if TYPE_CHECKING:
    from nearwise.classifier import Explanation


def neighbor_columns(explanations: Sequence["Explanation"]) -> dict[str, list[Any]]:
    """Lay the neighbors out as columns, one row for each explained row.

    Parameters
    ----------
    explanations : sequence of Explanation
        One for each row.

    Returns
    -------
    columns : dict of str to list
        null_mass, then neighbor_1_id, neighbor_1_label, neighbor_1_weight,
        neighbor_1_distance, for images from files neighbor_1_file, neighbor_2_id, ...; None where
        a row has fewer neighbors.
    """
    columns: dict[str, list[Any]] = {"null_mass": [e.null_mass for e in explanations]}
    neighbors = [one for e in explanations for one in e.neighbors]
    have_files = any({"file", "image"} <= one.row.keys() for one in neighbors)
    for i in range(max((len(e.neighbors) for e in explanations), default=0)):
        for field in ("id", "label", "weight", "distance"):
            columns[f"neighbor_{i + 1}_{field}"] = [
                getattr(e.neighbors[i], field) if i < len(e.neighbors) else None
                for e in explanations
            ]
        if have_files:
            columns[f"neighbor_{i + 1}_file"] = [
                e.neighbors[i].row.get("file") if i < len(e.neighbors) else None
                for e in explanations
            ]
    return columns


def plain_columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Give a remembered row without pixels, which would fill a file; an image has its name."""
    return {name: value for name, value in row.items() if getattr(value, "ndim", 0) == 0}


def json_record(
    explanation: "Explanation", kept: Mapping[Any, Any], classes: Sequence[Any]
) -> dict[Any, Any]:
    """Turn one explanation into what JSON holds.

    Parameters
    ----------
    explanation : Explanation
        What the classifier says about one row.
    kept : mapping
        Values copied from the row itself.
    classes : sequence
        The model's classes, in the order of its probabilities.

    Returns
    -------
    record : dict
        Kept values, prediction, proba, base_proba and neighbor_proba by class, null_mass,
        neighbors (id, label, weight, distance, row, and proba_without: the prediction had this
        neighbor not been there).
    """
    names = [str(label) for label in classes]

    def by_class(proba: Any) -> dict[str, float]:
        return dict(zip(names, proba, strict=True))

    neighbors = [
        {
            "id": neighbor.id,
            "label": neighbor.label,
            "weight": neighbor.weight,
            "distance": neighbor.distance,
            "proba_without": by_class(neighbor.proba_without),
            "row": plain_columns(neighbor.row),
        }
        for neighbor in explanation.neighbors
    ]
    return {
        **kept,
        "prediction": explanation.label,
        "proba": by_class(explanation.proba),
        "base_proba": by_class(explanation.base_proba),
        "neighbor_proba": by_class(explanation.neighbor_proba),
        "null_mass": explanation.null_mass,
        "neighbors": neighbors,
    }


def write_json_lines(records: Sequence[Mapping[Any, Any]], out: str) -> None:
    """Write one JSON object a line; the file appears whole or not at all.

    Parameters
    ----------
    records : sequence of mapping
        One for each row.
    out : str
        File, or "-" for standard output.
    """
    from nearwise.json_values import plain
    from nearwise.safe_files import write_aside

    text = "".join(json.dumps(plain(record), ensure_ascii=False) + "\n" for record in records)
    if out == "-":
        with standard_output() as stream:
            stream.write(text)
    else:
        write_aside(Path(out), text.encode("utf-8"))
