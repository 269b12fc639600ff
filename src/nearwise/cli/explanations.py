"""What lies behind a prediction, as columns of a table or as lines of JSON."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearwise.estimators import Explanation


def weightiest(explanation: "Explanation", count: int) -> list[Any]:
    """Give the neighbors of one row, largest weight first.

    Parameters
    ----------
    explanation : Explanation
        What the classifier says about one row.
    count : int
        How many; 0 gives all.

    Returns
    -------
    neighbors : list of Neighbor
        At most `count`.
    """
    ordered = sorted(explanation.neighbors, key=lambda neighbor: -neighbor.weight)
    return ordered[:count] if count else ordered


def neighbor_columns(explanations: Sequence["Explanation"], count: int) -> dict[str, list[Any]]:
    """Lay the neighbors out as columns, one row for each explained row.

    Parameters
    ----------
    explanations : sequence of Explanation
        One for each row.
    count : int
        Neighbors shown; 0 gives all.

    Returns
    -------
    columns : dict of str to list
        null_mass, then neighbor_1_id, neighbor_1_label, neighbor_1_weight,
        neighbor_1_distance, neighbor_2_id, ...; None where a row has fewer neighbors.
    """
    shown = [weightiest(explanation, count) for explanation in explanations]
    columns: dict[str, list[Any]] = {"null_mass": [e.null_mass for e in explanations]}
    for place in range(max((len(row) for row in shown), default=0)):
        for field in ("id", "label", "weight", "distance"):
            columns[f"neighbor_{place + 1}_{field}"] = [
                getattr(row[place], field) if place < len(row) else None for row in shown
            ]
    return columns


def json_record(
    explanation: "Explanation", count: int, kept: Mapping[Any, Any], classes: Sequence[Any]
) -> dict[Any, Any]:
    """Turn one explanation into what JSON holds.

    Parameters
    ----------
    explanation : Explanation
        What the classifier says about one row.
    count : int
        Neighbors shown; 0 gives all.
    kept : mapping
        Values copied from the row itself.
    classes : sequence
        The model's classes, in the order of its probabilities.

    Returns
    -------
    record : dict
        Kept values, prediction, proba by class, null_mass, neighbors (id, label, weight,
        distance, row, and proba_without: the prediction had this neighbor not been there).
    """
    names = [str(label) for label in classes]
    neighbors = [
        {
            "id": neighbor.id,
            "label": neighbor.label,
            "weight": neighbor.weight,
            "distance": neighbor.distance,
            "proba_without": dict(zip(names, neighbor.proba_without, strict=True)),
            "row": neighbor.row,
        }
        for neighbor in weightiest(explanation, count)
    ]
    return {
        **kept,
        "prediction": explanation.label,
        "proba": {str(label): value for label, value in explanation.proba.items()},
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
    from nearwise.experiments.records import plain, write_aside

    text = "".join(json.dumps(plain(record), ensure_ascii=False) + "\n" for record in records)
    if out == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_aside(Path(out), text.encode("utf-8"))
