"""Example requests with the columns of the served model; /docs sends them unchanged."""

from typing import Any, cast

import numpy as np

from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.live import Version
from nearwise.html import picture
from nearwise.safe_files import plain
from nearwise.serve.protocol import model_inputs

_DIGITS = 6
Row = tuple[dict[str, Any], list[dict[str, Any]]]  # as members of a body, and as tensors


def examples(version: Version, task: Any) -> dict[str, Any]:
    """Return an example body for each kind of request, by the name of its class.

    Numbers are medians, categories the most frequent ones; dates and pixels are taken from a
    remembered row.
    """
    label = version.fitted.look_up([a_remembered_id(version)])[0].label
    is_image = version.fitted.predictor.encoder.kind == "images"
    row, tensors = (_image_row if is_image else _table_row)(version, model_inputs(version))
    found: dict[str, Any] = plain(
        {
            "ProjectRequest": row,
            "PredictRequest": row,
            "ExplainRequest": row | {"n_neighbors": 3},
            "LabeledRows": row | {f"{task.LABEL}s": [label]},
            "NewLabel": {task.LABEL: label},
            "Decision": {"action": "keep"},
            "InferRequest": {"inputs": tensors},
        }
    )
    return found


def _image_row(version: Version, inputs: list[dict[str, Any]]) -> Row:
    pixels = np.asarray(_remembered(version)["image"])
    data = pixels.ravel().tolist()
    image = picture(pixels).partition(",")[2]
    return {"images": [image]}, [inputs[0] | {"shape": [1, *pixels.shape], "data": data}]


def _table_row(version: Version, inputs: list[dict[str, Any]]) -> Row:
    fitted = version.fitted
    encoder = cast(TableEncoder, fitted.predictor.encoder)
    medians = dict(zip(encoder.numeric, encoder.median, strict=True))
    remembered = _remembered(version) if encoder.dates or encoder.texts else {}
    types = {report["name"]: report["type"].lower() for report in encoder.report}
    row: dict[str, Any] = {}
    for column, kind in encoder.kinds.items():
        if kind == "number":
            row[column] = float(f"{medians[column]:.{_DIGITS}g}")
            if types.get(column, "").startswith(("int", "uint")):
                row[column] = round(row[column])
        elif kind == "category":
            row[column] = encoder.categories[column][0]
        elif kind in ("date", "text"):
            row[column] = str(remembered[column])
    if fitted.columns.names is None:
        values = list(row.values())
        return {"features": [values]}, [inputs[0] | {"shape": [1, len(values)], "data": values}]
    tensors = [
        one | {"shape": [1], "data": [row[one["name"]]]} for one in inputs if one["name"] in row
    ]
    return {"rows": [row]}, tensors


def _remembered(version: Version) -> dict[str, Any]:
    found: dict[str, Any] = version.fitted.look_up([a_remembered_id(version)])[0].row
    return found


def a_remembered_id(version: Version) -> int:
    """Return the id of a remembered row, the same one each time."""
    return version.fitted.draw_id(np.random.default_rng(0))
