"""Open Inference Protocol v2: convert tensors to rows, and answers to tensors."""

from types import NoneType
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from nearwise.estimators.inputs.images import ImageEncoder
from nearwise.estimators.inputs.table import TableEncoder
from nearwise.estimators.live import Version
from nearwise.serve.asked_rows import Answers, Ask
from nearwise.serve.bodies import Few, Neighbors, Share
from nearwise.serve.problems import ProblemError
from nearwise.serve.rows import check_columns

_BITS = (8, 16, 32, 64)
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    **{f"UINT{n}": np.dtype(f"uint{n}") for n in _BITS},
    **{f"INT{n}": np.dtype(f"int{n}") for n in _BITS},
    **{f"FP{n}": np.dtype(f"float{n}") for n in _BITS[1:]},
    "BYTES": object,
}
_PLAIN = {  # outputs that need no explanation
    "label", "proba", "prediction_set", "act", "novelty_p",
    "prediction", "median", "interval", "quantiles",
}  # fmt: skip
_OF_CONFIDENCE = {"prediction_set"}, {"interval", "act"}  # of classes, of numbers
Outputs = dict[str, tuple[str, list[int]]]  # data type and shape, by name
Size = Annotated[int, Field(ge=0, le=2**31)]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")  # clients send parameters of other servers


class InputTensor(_Open):
    """One tensor: a column of the table, "features", or "image"."""

    name: str = Field(description='A column, "features" or "image".')
    shape: Annotated[list[Size], Field(fail_fast=True, min_length=1, max_length=4)]
    datatype: str = Field(description="BOOL, BYTES, FP64, INT64, UINT8 and the like.")
    data: list[Any] = Field(description="The values, flat or nested by row.")


class OutputWish(_Open):
    """A requested output."""

    name: str
    parameters: dict[str, Any] = {}


class Parameters(_Open):
    """Options of a query; the defaults apply if an output needs them."""

    n_neighbors: Neighbors = Field(default=5, description="Most neighbors per row.")
    confidence: Share = Field(default=0.9, description="Of prediction sets and intervals.")
    coverage: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Share of rows to act on, the surest first."
    )
    max_risk: Share | None = Field(default=None, description="Share of wrong ones among these.")


class InferRequest(_Open):
    """A request to predict rows."""

    id: str | None = None
    parameters: Parameters = Parameters()
    inputs: Annotated[list[InputTensor], *Few, Field(min_length=1)]
    outputs: Annotated[list[OutputWish], *Few] | None = None


def wanted_outputs(request: InferRequest, known: Outputs) -> tuple[tuple[str, ...], Ask]:
    """Names of the requested outputs, and the query options that they need."""
    names = tuple(one.name for one in request.outputs or []) or tuple(known)[:2]
    strange = [name for name in names if name not in known]
    if len(set(names)) < len(names):
        raise ProblemError(422, "An output is requested twice.")
    if strange:
        raise ProblemError(
            422, f"There is no output {strange[0]!r}. The outputs are {', '.join(known)}."
        )
    wished = request.parameters
    of_numbers = "max_width" in type(wished).model_fields
    other = "max_width" if of_numbers else "max_risk"
    limits = {"coverage": wished.coverage, other: getattr(wished, other)}
    if "act" in names and [*limits.values()].count(None) != 1:
        raise ProblemError(422, f"The output 'act' needs the parameter coverage or {other}.")
    return names, Ask(
        confidence=wished.confidence if {*names} & _OF_CONFIDENCE[of_numbers] else None,
        novelty="novelty_p" in names,
        n_neighbors=wished.n_neighbors if {*names} - _PLAIN else None,
        quantiles=getattr(wished, "quantiles", None) if "quantiles" in names else None,
        **(limits if "act" in names else {}),
    )


def rows_of_tensors(version: Version, inputs: list[InputTensor]) -> Any:
    """Rows for a model, from one tensor per column, from "features" or from "image"."""
    encoder: Any = version.fitted.predictor.encoder
    tensors = {tensor.name: _array(tensor) for tensor in inputs}
    if len(tensors) < len(inputs):
        raise ProblemError(422, "Two inputs have the same name.")
    return (_image_of if encoder.kind == "images" else _table_of)(encoder, tensors)


def _image_of(encoder: ImageEncoder, tensors: dict[str, np.ndarray]) -> np.ndarray:
    if list(tensors) != ["image"]:
        raise ProblemError(422, f"The model takes one input, image; got {', '.join(tensors)}.")
    image = tensors["image"]
    if image.ndim != 4 or image.dtype != np.uint8:
        raise ProblemError(422, "image must be UINT8 of shape [n, height, width, channels].")
    return image


def _table_of(encoder: TableEncoder, tensors: dict[str, np.ndarray]) -> np.ndarray | pd.DataFrame:
    if list(tensors) == ["features"] and "features" not in encoder.columns:
        features = tensors["features"]
        if features.ndim != 2 or features.dtype.kind not in "fiu":
            raise ProblemError(422, "features must be numbers of shape [n, columns].")
        return features.astype(np.float64)
    check_columns(tensors, encoder, "The request (a tensor per column, or 'features')")
    columns = {}
    for name, tensor in tensors.items():
        if tensor.ndim > 2 or (tensor.ndim == 2 and tensor.shape[1] != 1):
            raise ProblemError(422, f"{name} must have the shape [n] or [n, 1].")
        columns[name] = tensor.reshape(-1)
    if len({len(column) for column in columns.values()}) > 1:
        raise ProblemError(422, "The inputs have different numbers of rows.")
    return pd.DataFrame(columns).reindex(columns=encoder.columns)


def _array(tensor: InputTensor) -> np.ndarray:
    if tensor.datatype not in _DTYPES:
        known = ", ".join(_DTYPES)
        raise ProblemError(
            422, f"{tensor.name}: datatype {tensor.datatype!r} is not one of {known}."
        )
    if tensor.shape[0] == 0:
        raise ProblemError(422, f"{tensor.name} has no rows.")
    text = tensor.datatype == "BYTES"
    flat = _flat(tensor.data)
    kinds: tuple[type, ...] = (bool,) if tensor.datatype == "BOOL" else (int,)
    if text or tensor.datatype.startswith("FP"):
        kinds = (str, NoneType) if text else (int, float, NoneType)  # None: a missing value
    wrong = [value for value in flat if not _is_a(value, kinds)]
    if len(flat) != np.prod(tensor.shape, dtype=np.float64) or wrong:
        got = f"holds {type(wrong[0]).__name__} values" if wrong else f"has {len(flat)}"
        raise ProblemError(
            422, f"{tensor.name}: {tensor.datatype} of shape {tensor.shape} is announced; it {got}."
        )
    try:
        array = np.array(flat, dtype=_DTYPES[tensor.datatype])
    except (OverflowError, ValueError, TypeError) as error:
        raise ProblemError(422, f"{tensor.name} is not {tensor.datatype}: {error}.") from None
    return array.reshape(tensor.shape)


def _is_a(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _flat(data: list[Any]) -> list[Any]:
    """Flatten the data of a tensor, which may be flat or nested."""
    while data and isinstance(data[0], list):
        if not all(isinstance(one, list) for one in data):
            raise ProblemError(422, "The data of a tensor mix lists and values.")
        data = [value for one in data for value in one]
    return data


def infer_answer(
    name: str, request: InferRequest, wanted: tuple[str, ...], found: Answers
) -> dict[str, Any]:
    """Return the protocol's response; warnings are joined by newlines into one parameter."""
    warnings = {"warnings": "\n".join(found.warnings)} if found.warnings else {}
    return {
        "model_name": name,
        "model_version": str(found.version),
        **({} if request.id is None else {"id": request.id}),
        "parameters": {"memory_version": found.version} | warnings,
        "outputs": [_output(one, found) for one in wanted],
    }


def _output(name: str, found: Answers) -> dict[str, Any]:
    values = found.output(name)
    kind = datatype_of(values)
    data = values.ravel()
    if kind == "BYTES":
        data = np.array([str(value) for value in data.tolist()], dtype=object)
    return {"name": name, "datatype": kind, "shape": list(values.shape), "data": data.tolist()}


def datatype_of(labels: np.ndarray) -> Literal["BOOL", "INT64", "FP64", "BYTES"]:
    """Return the protocol's data type of labels."""
    kinds: dict[str, Literal["BOOL", "INT64", "FP64"]] = {"b": "BOOL", "i": "INT64", "f": "FP64"}
    return kinds.get(labels.dtype.kind, "BYTES")


def _datatype_of_column(encoder: TableEncoder, name: str) -> str:
    if encoder.kinds[name] == "category":
        categories = encoder.categories[name]
        if categories and not any(isinstance(value, str) for value in categories):
            return "BOOL" if isinstance(categories[0], bool) else "FP64"
    return "FP64" if encoder.kinds[name] == "number" else "BYTES"


def model_inputs(version: Version) -> list[dict[str, Any]]:
    """Describe the input tensors of a model."""
    encoder: Any = version.fitted.predictor.encoder
    columns = version.fitted.columns
    if encoder.kind == "images":
        shape = [-1, encoder.height, encoder.width, encoder.channels]
        return [{"name": "image", "datatype": "UINT8", "shape": shape}]
    if columns.names is None:
        shape = [-1, columns.n_features_in_]
        return [{"name": "features", "datatype": "FP64", "shape": shape}]
    return [
        {"name": one, "datatype": _datatype_of_column(encoder, one), "shape": [-1]}
        for one in encoder.columns
    ]


def model_metadata(name: str, version: Version, task: Any) -> dict[str, Any]:
    """Describe inputs, outputs and task of a model."""
    fitted = version.fitted
    about = {"task": [task.TASK], "target": [fitted.target_name]}
    if fitted.numbers is None:
        about["classes"] = [str(label) for label in fitted.classes.tolist()]
    else:
        about["range"] = [str(end) for end in (fitted.numbers.min(), fitted.numbers.max())]
    return {
        "name": name,
        "versions": [str(version.number)],
        "platform": "nearwise",
        "inputs": model_inputs(version),
        "outputs": [
            {"name": output, "datatype": datatype, "shape": shape}
            for output, (datatype, shape) in task.outputs(fitted).items()
        ],
        "parameters": about,
    }
