"""What clients send, checked: rows, labels, and what is asked about them."""

import base64
import binascii
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearwise.classifier.inputs.images import ImageEncoder
from nearwise.classifier.live import Version
from nearwise.names import did_you_mean, listed
from nearwise.serve.problems import ProblemError

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Cell = bool | Whole | Number | str | None
Label = bool | Whole | Number | str
_MOST_NEIGHBORS = 1_000
_SHOWN = 12  # names in a message


class Body(BaseModel):
    """A JSON object that has no other members than these."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Rows(Body):
    """Rows, in one of three forms.

    `rows` of a table: an object per row, column to value, null where it is missing. `features`: a
    list of numbers per row, for a model of embeddings or of numbers. `images`: PNG, JPEG or another
    image file per row, in base64.
    """

    rows: list[dict[str, Cell]] | None = None
    features: list[list[Number | None]] | None = None
    images: list[str] | None = None
    resize: bool = Field(False, description="Bring images to the size that the model knows.")

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
    """Rows to predict, and what else is asked."""

    confidence: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Adds the set of classes that holds the true one this often."
    )
    novelty: bool = Field(False, description="Adds the out-of-distribution p-value.")
    coverage: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Adds whether to act on the prediction: of the surest, this share."
    )
    max_risk: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Adds whether to act: so that at most this share is wrong."
    )

    @model_validator(mode="after")
    def _one_limit(self) -> "Question":
        if self.coverage is not None and self.max_risk is not None:
            raise ValueError("coverage and max_risk both limit the answers; give one of them")
        return self


class WhyQuestion(Question):
    """Rows to explain."""

    n_neighbors: Annotated[int, Field(ge=1, le=_MOST_NEIGHBORS)] = 5


class Labelled(Rows):
    """Rows with their labels."""

    labels: list[Label]
    new_classes: bool = Field(
        False, description="Whether labels may be new; otherwise a label that is none is an error."
    )

    @model_validator(mode="after")
    def _as_many(self) -> "Labelled":
        if len(self.labels) != self.n_rows:
            raise ValueError(f"{self.n_rows} rows have {len(self.labels)} labels; give one each")
        return self


class NewLabel(Body):
    """Another label of a remembered row."""

    label: Label


class Decision(Body):
    """What is done about a label that looks wrong."""

    action: Literal["relabel", "keep", "remove"]
    label: Label | None = None

    @model_validator(mode="after")
    def _label_where_due(self) -> "Decision":
        if (self.label is not None) != (self.action == "relabel"):
            raise ValueError("relabel needs a label, keep and remove take none")
        return self


def rows_for(version: Version, body: Rows) -> Any:
    """Bring rows into the form that a model takes.

    Raises
    ------
    ProblemError
        With 422 if the model takes another form, a column is unknown or missing, or an image cannot
        be read; 501 where no reader of images is installed.
    """
    encoder = version.fitted.predictor.encoder
    if isinstance(encoder, ImageEncoder):
        if body.images is None:
            raise ProblemError(422, "The model knows images; give them as images, in base64.")
        return _decoded(body.images, encoder, resize=body.resize)
    if body.images is not None or body.resize:
        raise ProblemError(422, "The model knows no images; give rows or features, no resize.")
    if body.features is not None:
        return _matrix(body.features)
    assert body.rows is not None  # checked
    return _table(body.rows, encoder.columns, set(encoder.left_out))


def labels_for(version: Version, labels: list[Label], *, new_classes: bool) -> np.ndarray:
    """Bring labels into an array, those of a model's classes if there may be no new ones."""
    known = version.fitted.classes.tolist()
    if not new_classes:
        strange = next((label for label in labels if not _is_among(label, known)), None)
        if strange is not None:
            hint = did_you_mean(str(strange), [str(one) for one in known])
            raise ProblemError(
                422,
                f"{strange!r} is none of the {len(known)} classes {_listed(known)}.{hint} If it is "
                "a new one, say new_classes: true where rows are added.",
            )
    found = np.empty(len(labels), dtype=object)
    found[:] = labels
    return found


def _is_among(label: Label, known: list[Any]) -> bool:
    return any(label == one and isinstance(label, bool) == isinstance(one, bool) for one in known)


def _matrix(features: list[list[float | None]]) -> np.ndarray:
    widths = {len(row) for row in features}
    if len(widths) > 1:
        raise ProblemError(422, f"features have rows of {min(widths)} to {max(widths)} numbers.")
    return np.array(features, dtype=np.float64)  # null becomes NaN


def _table(rows: list[dict[str, Cell]], columns: list[str], optional: set[str]) -> pd.DataFrame:
    known = set(columns)
    for number, row in enumerate(rows):
        if row.keys() == known:
            continue
        strange = [name for name in row if name not in known]
        missing = [name for name in columns if name not in row and name not in optional]
        if strange or missing:
            what = f"has {_listed(strange)}, which" if strange else f"lacks {_listed(missing)}, and"
            told = "the model was not fitted on" if strange else "the model was fitted on it"
            hint = did_you_mean((strange or missing)[0], [n for n in columns if n not in row])
            raise ProblemError(
                422,
                f"Row {number} {what} {told}.{hint} The model's columns are {_listed(columns)}; "
                "null stands for a missing value.",
            )
    return pd.DataFrame(rows, columns=columns)


def _decoded(images: list[str], encoder: ImageEncoder, *, resize: bool) -> Any:
    from nearwise.data.images.decode import Encoded, decode_images

    files = []
    for number, text in enumerate(images):
        try:
            files.append(Encoded(f"image {number}", base64.b64decode(text, validate=True)))
        except (binascii.Error, ValueError):
            raise ProblemError(422, f"Image {number} is no base64 of a file.") from None
    size = encoder.size if resize else None
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
            f"The images have {found.shape[1]} x {found.shape[2]} pixels, the model knows {height} "
            f"x {width}. Resize them, or say resize: true.",
        )
    return found


def _listed(names: list[Any]) -> str:
    return listed([str(name) for name in names], n=_SHOWN)
