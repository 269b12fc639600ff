"""Request bodies and their checks: rows, labels and requested outputs."""

import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from nearwise.serve.problems import ProblemError, problem_of_body

CELL = {"type": ["boolean", "number", "string", "null"]}
LABEL = {"type": ["boolean", "number", "string"]}
MOST_ROWS = 2**16  # limit for all services
MOST_NEIGHBORS = 1_000
Form = Literal["rows", "features", "images"]  # members that hold rows
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
Id = Annotated[int, Field(ge=0, lt=2**63)]
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
    """Rows, in one of three forms."""

    forms: ClassVar[tuple[str, ...]] = get_args(Form)  # exactly one of them is given

    rows: Table | None = Field(
        default=None, description="Rows of a table: column to value, null for a missing value."
    )
    features: Annotated[list[Annotated[list[Number | None], *Few]], *Few] | None = Field(
        default=None, description="A list of numbers per row: embeddings, or numeric columns."
    )
    images: Annotated[list[str], *Few] | None = Field(
        default=None, description="A PNG, JPEG or other image file per row, in base64."
    )
    resize: bool = Field(
        default=False, description="Resize images to the size that the model takes."
    )

    @model_validator(mode="after")
    def _one_form(self) -> "Rows":
        given = [name for name in self.forms if getattr(self, name) is not None]
        if len(given) != 1:
            forms, got = ", ".join(self.forms), " and ".join(given) or "none"
            raise ValueError(f"give one of {forms}; got {got}")
        if not self.n_rows:
            raise ValueError(f"{given[0]} is empty; give some")
        return self

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows or self.features or self.images or [])


class ProjectRequest(Rows):
    """Rows to project onto the map."""


class PredictRequest(Rows):
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
    def _one_limit(self) -> "PredictRequest":
        if self.coverage is not None and self.max_risk is not None:
            raise ValueError("coverage and max_risk both limit the answers; give one of them")
        return self


class NewLabels(RootModel[dict[Id, Label]]):
    """Other labels of remembered rows, by id."""

    model_config = ConfigDict(strict=True)


class ExplainRequest(PredictRequest):
    """Rows to explain, optionally as if the memory had changed."""

    forms: ClassVar[tuple[str, ...]] = (*Rows.forms, "remembered")

    remembered: Id | None = Field(
        None, description="Id of a remembered row, which is left out of its own neighbors."
    )
    n_neighbors: Neighbors = Field(5, description="Most neighbors per row.")
    without: Annotated[list[Id], *Few] = Field(
        default=[], description="Ids of remembered rows that are left out."
    )
    relabel: NewLabels = Field(
        default=NewLabels({}), description="Labels that remembered rows are given, by id."
    )
    column_shares: bool = Field(
        False, description="Adds what a row and each neighbor differ by, in shares of columns."
    )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return super().n_rows if self.remembered is None else 1

    @property
    def takes_longer(self) -> bool:
        """Whether a version of its own answers, or distances are split by column."""
        is_hypothetical = self.remembered is not None or self.without or self.relabel.root
        return bool(is_hypothetical or self.column_shares)


class LabeledRows(Rows):
    """Rows with their labels."""

    labels: Labels = Field(description="Label of each row.")
    groups: Labels | None = Field(
        None, description="What each row belongs to, for a model that was fitted with groups."
    )
    show: Annotated[list[str | None], *Few] | None = Field(
        None,
        description="What to show with each row: path of an image file, URL or text; else null.",
    )
    new_classes: bool = Field(
        False,
        description="Whether labels may be new classes; otherwise an unknown label is an error.",
    )

    @model_validator(mode="after")
    def _as_many(self) -> "LabeledRows":
        for name, labels in self.label_lists.items():
            if len(labels) != self.n_rows:
                raise ValueError(f"{self.n_rows} rows have {len(labels)} {name}; give one each")
        if self.groups is not None and len(self.groups) != self.n_rows:
            raise ValueError(f"{self.n_rows} rows have {len(self.groups)} groups; give one each")
        if self.show is not None and len(self.show) != self.n_rows:
            raise ValueError(f"{self.n_rows} rows have {len(self.show)} in show; give one each")
        return self

    @property
    def label_lists(self) -> dict[str, list[Any]]:
        """Lists with a label per row, by what they are called."""
        return {type(self).model_fields["labels"].alias or "labels": self.labels}


class NewLabel(Body):
    """A new label of a remembered row."""

    label: Label = Field(description="The new label, one of the model's classes.")
    forget_classes: bool = Field(False, description="Even if a class loses its last row.")


class Decision(Body):
    """Decision about a suspected wrong label."""

    action: Literal["relabel", "keep", "remove"]
    label: Label | None = Field(None, description="The new label, to relabel.")
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
