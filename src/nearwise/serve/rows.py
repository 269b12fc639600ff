"""Rows and labels of a body in the input form of a model."""

import base64
import binascii
import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pandas as pd

from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.live import Version
from nearwise.names import did_you_mean, listed
from nearwise.safe_files import plain
from nearwise.serve.bodies import Form, Label, Rows
from nearwise.serve.problems import ProblemError

_SHOWN = 12  # names in a message
_LONGEST = 80  # characters of a label in a message


def form_of(version: Version) -> Form:
    """Return the member of a body that the rows of a model are given in."""
    if version.fitted.predictor.encoder.kind == "images":
        return "images"
    return "features" if version.fitted.columns.names is None else "rows"


def rows_for(version: Version, body: Rows) -> Any:
    """Convert rows to the input form of a model.

    Raises
    ------
    ProblemError
        With 422 if the model takes another form, a column is unknown or missing, or an image cannot
        be read; 501 if the package to decode images is missing.
    """
    encoder: Any = version.fitted.predictor.encoder
    return (_images_for if encoder.kind == "images" else _table_for)(encoder, body)


def _images_for(encoder: ImageEncoder, body: Rows) -> Any:
    from nearwise.data.images.decode import Encoded, decode_images

    if body.images is None:
        raise ProblemError(422, "The model takes images; give them as images, in base64.")
    files = []
    for number, text in enumerate(body.images):
        try:
            files.append(Encoded(f"image {number}", base64.b64decode(text, validate=True)))
        except (binascii.Error, ValueError):
            raise ProblemError(422, f"Image {number} is not a file in base64.") from None
    size = encoder.size if body.resize or encoder.resizes else None
    try:
        found = decode_images(files, len(files), image_size=size, color=encoder.color)
    except (ValueError, MemoryError) as error:
        raise ProblemError(422, str(error)) from None
    except ImportError as error:
        raise ProblemError(501, str(error)) from None
    if found.shape[1:3] != encoder.size:
        height, width = encoder.size
        raise ProblemError(
            422,
            f"The images have {found.shape[1]} x {found.shape[2]} pixels, the model takes {height} "
            f"x {width}. Resize them, or set resize: true.",
        )
    return found


def _table_for(encoder: TableEncoder, body: Rows) -> Any:
    if body.images is not None or body.resize:
        raise ProblemError(422, "The model does not take images; give rows or features, no resize.")
    if body.features is not None:
        widths = {len(row) for row in body.features}
        if len(widths) > 1:
            ends = f"{min(widths)} to {max(widths)}"
            raise ProblemError(422, f"features have rows of {ends} numbers.")
        return np.array(body.features, dtype=np.float64)  # null becomes NaN
    assert body.rows is not None  # checked
    known = set(encoder.columns)
    for number, row in enumerate(body.rows):
        if row.keys() != known:
            check_columns(row.keys(), encoder, f"Row {number}")
    return pd.DataFrame(body.rows, columns=encoder.columns)


def labels_for(version: Version, labels: list[Label], *, new_classes: bool) -> np.ndarray:
    """Convert labels to an array: targets, new classes, or only known classes of a model."""
    if version.fitted.numbers is not None:
        return np.array(labels, dtype=np.float64)
    known = version.fitted.classes.tolist()
    if not new_classes:
        strange = next((label for label in labels if not _is_among(label, known)), None)
        if strange is not None:
            shown = ", ".join(map(_as_json, known[:_SHOWN])) + (", ..." * (len(known) > _SHOWN))
            hint = did_you_mean(strange, known) if isinstance(strange, str) else ""
            raise ProblemError(
                422,
                f"{_as_json(strange)} is not one of the {len(known)} classes {shown}.{hint} If it "
                "is a new one, set new_classes: true where rows are added.",
            )
    found = np.empty(len(labels), dtype=object)
    found[:] = labels
    return found


def _as_json(label: Any) -> str:
    return json.dumps(plain(label), ensure_ascii=False)[:_LONGEST]


def _is_among(label: Label, known: list[Any]) -> bool:
    return any(label == one and isinstance(label, bool) == isinstance(one, bool) for one in known)


def check_columns(there: Collection[str], encoder: TableEncoder, where: str) -> None:
    """Raise ProblemError 422 for unknown columns and for missing ones that a model needs."""
    needed = [name for name in encoder.columns if name not in set(encoder.left_out)]
    strange = [name for name in there if name not in encoder.columns]
    missing = [name for name in needed if name not in there]
    if not strange and not missing:
        return
    what = f"has {_listed(strange)}" if strange else f"lacks {_listed(missing)}"
    why = "the model was not fitted on it" if strange else "the model was fitted on it"
    free = [name for name in encoder.columns if name not in there]
    hint = did_you_mean(strange[0], free) if strange else ""
    raise ProblemError(
        422,
        f"{where} {what}; {why}.{hint} The model needs the columns "
        f"{_listed(needed)}. null stands for a missing value.",
    )


def _listed(names: list[Any]) -> str:
    return listed([str(name) for name in names], n=_SHOWN)
