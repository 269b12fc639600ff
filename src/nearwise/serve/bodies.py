"""Request bodies and their checks: rows, labels and requested outputs."""

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.live import Version
from nearwise.names import did_you_mean, listed
from nearwise.safe_files import plain
from nearwise.serve.problems import ProblemError, problem_of_body

CELL = {"type": ["boolean", "number", "string", "null"]}
LABEL = {"type": ["boolean", "number", "string"]}
MOST_ROWS = 2**16  # limit for all services
MOST_NEIGHBORS = 1_000
_SHOWN = 12  # names in a message
_LONGEST = 80  # characters of a label in a message
B = TypeVar("B", bound=BaseModel)
_SMALL = 2**16  # bytes; parsing such a body takes 1 to 2 ms


def _check_cell(value: Any, where: str) -> Any:
    """Check a cell value; ValueError with its position."""
    if value is None or isinstance(value, str | bool):
        return value
    if not isinstance(value, int | float):
        raise ValueError(f"{where} is a list or an object; give a number, text, true or false")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is not a finite number; null stands for a missing value")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{where} is a whole number beyond 64 bits; give it as text")
    return value


def _check_cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, row in enumerate(rows):
        for name, value in row.items():
            _check_cell(value, f"{name[:60]!r} of row {number}")
    return rows


def _check_labels(labels: list[Any]) -> list[Any]:
    for number, label in enumerate(labels):
        if label is None:
            raise ValueError(f"label {number} is null; leave the row out")
        _check_cell(label, f"label {number}")
    return labels


def _not_endless(values: Any) -> Any:
    """Check the length of a list before its entries are checked."""
    if isinstance(values, list) and len(values) > MOST_ROWS:
        raise ValueError(f"{len(values)} entries are more than the {MOST_ROWS} of any request")
    return values


# Only the first mistake of a long list is reported.
Few = (Field(fail_fast=True), BeforeValidator(_not_endless))
Number = Annotated[float, Field(allow_inf_nan=False)]
Neighbors = Annotated[int, Field(ge=1, le=MOST_NEIGHBORS)]
Share = Annotated[float, Field(gt=0, lt=1)]
Label = Annotated[Any, AfterValidator(partial(_check_cell, where="label")), WithJsonSchema(LABEL)]
Table = Annotated[
    list[dict[str, Any]],
    *Few,
    AfterValidator(_check_cells),
    WithJsonSchema({"type": "array", "items": {"type": "object", "additionalProperties": CELL}}),
]
Labels = Annotated[
    list[Any],
    BeforeValidator(_not_endless),
    AfterValidator(_check_labels),
    WithJsonSchema({"type": "array", "items": LABEL}),
]


class Body(BaseModel):
    """A JSON object without further members."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Rows(Body):
    """Rows, in one of three forms.

    `rows`: table rows as objects, column to value, null for a missing value. `features`: a list of
    numbers per row, for a model of embeddings or numeric columns. `images`: a PNG, JPEG or other
    image file per row, in base64.
    """

    rows: Table | None = None
    features: Annotated[list[Annotated[list[Number | None], *Few]], *Few] | None = None
    images: Annotated[list[str], *Few] | None = None
    resize: bool = Field(False, description="Resize images to the size that the model takes.")

    @model_validator(mode="after")
    def _one_form(self) -> "Rows":
        given = [name for name in ("rows", "features", "images") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of rows, features and images; got {given or 'none'}")
        if not self.n_rows:
            raise ValueError(f"{given[0]} is empty; give some")
        return self

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows or self.features or self.images or [])


class Question(Rows):
    """Rows to predict, and the requested additional outputs."""

    confidence: Share | None = Field(
        None, description="Adds the set of classes that holds the true one this often."
    )
    novelty: bool = Field(False, description="Adds the out-of-distribution p-value.")
    coverage: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Adds whether to act on the prediction: of the surest, this share."
    )
    max_risk: Share | None = Field(
        None, description="Adds whether to act: so that at most this share is wrong."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> "Question":
        if self.coverage is not None and self.max_risk is not None:
            raise ValueError("coverage and max_risk both limit the answers; give one of them")
        return self


class WhyQuestion(Question):
    """Rows to explain."""

    n_neighbors: Neighbors = 5


class Labelled(Rows):
    """Rows with their labels."""

    labels: Labels
    groups: Labels | None = Field(
        None, description="What each row belongs to, for a model that was fitted with groups."
    )
    new_classes: bool = Field(
        False,
        description="Whether labels may be new classes; otherwise an unknown label is an error.",
    )

    @model_validator(mode="after")
    def _as_many(self) -> "Labelled":
        if len(self.labels) != self.n_rows:
            name = type(self).model_fields["labels"].alias or "labels"
            raise ValueError(f"{self.n_rows} rows have {len(self.labels)} {name}; give one each")
        if self.groups is not None and len(self.groups) != self.n_rows:
            raise ValueError(f"{self.n_rows} rows have {len(self.groups)} groups; give one each")
        return self


class NewLabel(Body):
    """A new label of a remembered row."""

    label: Label
    forget_classes: bool = Field(False, description="Even if a class loses its last row.")


class Decision(Body):
    """Decision about a suspected wrong label."""

    action: Literal["relabel", "keep", "remove"]
    label: Label | None = None
    forget_classes: bool = Field(False, description="Even if a class loses its last row.")

    @model_validator(mode="after")
    def _label_where_due(self) -> "Decision":
        if (self.label is not None) != (self.action == "relabel"):
            raise ValueError("relabel needs a label, keep and remove take none")
        return self


def reader(kind: type[B]) -> Callable[[Request], Awaitable[B]]:
    """Return a dependency that parses a body after the key check, in a thread if it is large."""

    def checked(content: bytes) -> B:
        try:
            body = kind.model_validate_json(content)
        except ValidationError as error:
            wrong = problem_of_body(error, kind)
            if wrong.status_code != 400:
                _refuse_repeated(content)
            raise wrong from None
        _refuse_repeated(content)
        return body

    async def read(request: Request) -> B:
        content = await request.body()
        work = partial(checked, content)
        return work() if len(content) < _SMALL else await run_in_threadpool(work)

    return read


def _refuse_repeated(content: bytes) -> None:
    """Raise ProblemError if an object of a valid body has a name twice."""
    json.loads(content, object_pairs_hook=_unrepeated, parse_int=str, parse_float=str)


def _unrepeated(pairs: list[tuple[str, Any]]) -> None:
    """Raise ProblemError if an object has a name twice: JSON leaves the meaning open."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProblemError(422, f"An object of the body has {twice[:60]!r} twice; give it once.")


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
    size = encoder.size if body.resize else None
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
