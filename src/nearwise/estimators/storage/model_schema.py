"""Schema of the JSON part of a model folder, with conversions from older versions.

Everything else is refused by an error that names it.
"""

import inspect
from collections.abc import Container
from numbers import Number
from typing import Annotated, Any, Literal, get_type_hints

import numpy as np
import sklearn.model_selection
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nearwise.data.tables.spellings import Decimal
from nearwise.estimators.inputs.columns import Use
from nearwise.functional import Metric
from nearwise.memory import IndexName
from nearwise.nn import lite0
from nearwise.training import Augmentation, HeadConfig, TrainConfig
from nearwise.warn import warn_user

_TABLE_SPACES = ("features", "supervised", "text", "trained")
_LARGEST = 2**53  # largest count
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Size = Annotated[int, Field(ge=1, le=_LARGEST)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Category = str | bool | int | float
_SPLITTERS = (
    "KFold",
    "StratifiedKFold",
    "GroupKFold",
    "StratifiedGroupKFold",
    "LeaveOneOut",
    "ShuffleSplit",
    "StratifiedShuffleSplit",
    "GroupShuffleSplit",
    "PredefinedSplit",
)
_NOW_SETTINGS = ("embedder", "tta", "device", "capacity", "eviction")  # parameters in old versions
_FORMER_SETTINGS = ("pooling", "null", "num_heads", "tta_merge", "memory_budget")
_FORMER_EVICTIONS = ("class-balanced", "importance")
_PLAIN: TypeAdapter[Any] = TypeAdapter(int | float | Literal["auto", "latest"] | None)
# A numpy dtype of labels: booleans, numbers, objects, text, datetimes and timedeltas.
LabelType = Annotated[
    str, Field(pattern=r"^([|<>=](b1|[iuf][1248]|O)|[<>=](U\d{1,9}|[Mm]8\[\w{1,4}\]))$")
]

Moment = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]


class Part(BaseModel):
    """JSON object of the schema; unknown names, missing names and other types are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")


class StoredBank(Part):
    """Schema of `MemoryBank`."""

    spaces: list[str]
    columns: list[str]
    n_classes: Size
    next_id: Count


class StoredDate(Part):
    """Schema of `DateColumn`."""

    layout: str
    zone: str
    origin: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    parts: Annotated[list[str], Field(min_length=1)]


class StoredColumn(Part):
    """Schema of `ColumnReport`."""

    name: str
    type: str
    missing: Count
    distinct: Count | None
    use: Use
    parts: list[str]
    gap_words: list[str]
    reason: str
    change: str


class StoredSpelling(Part):
    """Schema of `Spelling`."""

    decimal: Decimal
    thousands: Literal["", ".", ",", "'", " "]
    sign: Annotated[str, Field(max_length=32)]
    bare: bool
    minus: str


class StoredEmbedder(Part):
    """Schema of `TextEmbedder`: where its files are, and their digest."""

    folder: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class StoredTerms(Part):
    """Schema of `TextColumn`, without its arrays."""

    words: list[str]
    ngrams: list[str]
    n_components: Size
    embedder: StoredEmbedder | None = None  # missing without one


class StoredSparse(Part):
    """Schema of `SparseColumns`, without its axes."""

    n_columns: Size


class StoredTable(Part):
    """Schema of `TableEncoder`."""

    columns: list[str]
    kinds: dict[str, Use]
    categories: dict[str, list[Category]]
    median: list[Finite]
    mean: list[Finite]
    scale: list[Positive]
    has_gaps: list[bool]
    dates: dict[str, StoredDate]
    gap_words: dict[str, list[str]]
    durations: list[str] = Field(default_factory=list)  # missing in older models
    spellings: dict[str, StoredSpelling] = Field(default_factory=dict)  # missing in older models
    decimal: Decimal = ""
    report: list[StoredColumn]
    texts: dict[str, StoredTerms] = Field(default_factory=dict)  # missing in older models
    sparse_columns: StoredSparse | None = None  # missing in older models


class StoredImages(Part):
    """Schema of `ImageEncoder`."""

    height: Size
    width: Size
    channels: Literal[1, 3]
    resizes: bool = False  # missing in older models


class StoredSpec(Part):
    """Schema of `SpaceSpec`."""

    name: str
    metric: Metric
    unit: Positive
    n_neighbors: Size


class StoredIndex(Part):
    """Schema of `IndexState`, without its arrays."""

    name: Literal["exact", "faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"]
    n_fitted: Size


class StoredAcceptance(Part):
    """Schema of `Acceptance`."""

    share: Share
    temperature: Positive
    source: str
    nll: float


class StoredCorrection(Part):
    """Schema of `ClassCorrection`."""

    shift: list[Finite]
    scale: list[Positive]
    bias: list[Finite]
    source: str
    wanted: list[Share] | None


class StoredLabelModel(Part):
    """Schema of a label model for wrong labels."""

    matrix: list[list[Share]]
    rate: Share
    interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    low: list[list[Share]]
    high: list[list[Share]]
    source: str


class StoredHead(Part):
    """Schema of the settings of `PretrainedNeighborHead`."""

    width: Size
    n_layers: Annotated[int, Field(ge=1, le=64)]  # bounded, as layers are built before the check
    num_heads: Size
    hidden: Size


class StoredNetwork(Part):
    """Schema of `NeighborNetwork`; the embedder checks its own settings."""

    embedder: dict[str, Any]
    n_classes: Size
    head: bool
    similarity: Literal["euclidean", "cosine"]
    learn_scale: bool


class StoredEmbedding(Part):
    """Schema of `Embedding`."""

    kind: str
    networks: Annotated[list[StoredNetwork], Field(min_length=1)]


class StoredFeatures(Part):
    """Schema of `FeatureSpace`."""

    kind: Literal["standard", "quantile", "raw", "whitened"]


class StoredStage(Part):
    """Schema of `StageSpace`."""

    encoder: StoredTable
    features: StoredFeatures


class StoredPhotographs(Part):
    """Schema of `PhotographModels`: name and hash of its network, and the encoder of features."""

    embedder: Literal["efficientnet-lite0"]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    encoder: StoredTable


class StoredCandidate(Part):
    """Schema of `Candidate`; `kind` is an array model, or "skops" for any other classifier."""

    name: str
    view: Literal["dense", "ordinal", "ordinal_filled", "sparse_terms", "text_terms"]
    kind: Literal["logistic", "kernel-logistic", "gaussian", "mlp", "forest", "boosting", "skops"]
    n_models: Size


class StoredBase(Part):
    """Schema of `Base`."""

    gates: dict[str, Positive]
    n_classes: Size
    nll: dict[str, float]
    candidates: list[StoredCandidate]


class StoredMerging(Part):
    """Schema of the merge of several views of a row."""

    merge: Literal["probabilities", "logits"]
    temperatures: Annotated[list[Positive], Field(min_length=3, max_length=3)]
    classes: StoredCorrection | None


class StoredJudgement(Part):
    """Schema of `Judgement`."""

    acceptance: StoredAcceptance
    part_temperatures: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    class_correction: StoredCorrection | None
    views: StoredMerging | None = None
    choice: dict[str, Any]


class StoredStream(Part):
    """Schema of `StreamState`."""

    seed: int
    refreshed_at: Count
    refreshed_size: Count
    first: Count
    declared: bool
    half_life: Positive | None
    changed: Count = 0  # missing in older models, which were not recalibrated


class StoredJournal(Part):
    """Schema of the last journal change that the folder itself contains."""

    lineage: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    version: Count


class StoredCommon(Part):
    """Common schema of the JSON parts of all folders."""

    bank: StoredBank
    specs: Annotated[list[StoredSpec], Field(min_length=1)]
    index: IndexName
    indexes: dict[str, StoredIndex] = Field(default_factory=dict)  # missing in older models
    choice: dict[str, Any]
    history: list[dict[str, Any]]
    head: StoredHead
    params: dict[str, Any]
    n_features_in: Count
    feature_names_in: list[str]
    target_name: str
    group_name: str | None = None
    fitted_at: Moment | None = None  # missing in older models
    weight_unit: Positive
    stream: StoredStream
    row_names: list[str] | None
    journal: StoredJournal | None = None
    versions: dict[str, str]


class StoredModel(StoredCommon):
    """Schema of the complete JSON part of a classifier's folder."""

    encoder: StoredTable | StoredImages
    acceptance: StoredAcceptance
    part_temperatures: Annotated[list[Positive], Field(min_length=2, max_length=2)]
    class_correction: StoredCorrection | None
    tta: list[Literal["flip", "shift"]]
    n_views: Size
    label_model: StoredLabelModel | None
    views: StoredMerging | None = None
    of_fit: StoredJudgement | None = None
    use_head: bool = True
    stages: list[dict[str, StoredStage]] | None = None
    photographs: StoredPhotographs | None = None
    features: StoredFeatures | None = None
    texts: StoredStage | None = None
    embedding: StoredEmbedding | None = None
    base: StoredBase | None = None
    classes: Annotated[list[Category], Field(min_length=2)]
    classes_dtype: LabelType


class StoredNumberCandidate(StoredCandidate):
    """Schema of `NumberCandidate`."""

    kind: Literal[  # type: ignore[assignment]
        "linear",
        "kernel-regression",
        "network-regression",
        "regression-forest",
        "regression-boosting",
        "skops",
    ]
    center: Finite
    scale: Positive
    least: Finite
    most: Finite
    logs: bool


class StoredNumberBase(Part):
    """Schema of `NumberBase`."""

    weights: dict[str, Positive]
    center: Finite
    candidates: Annotated[list[StoredNumberCandidate], Field(min_length=1)]


class StoredSpread(Part):
    """Schema of `Spread`."""

    factor: Positive
    left_out: Positive
    crps: float


class StoredRegressor(StoredCommon):
    """Schema of the complete JSON part of a regressor's folder."""

    encoder: StoredTable
    features: StoredFeatures
    texts: StoredStage | None = None
    center: Finite
    scale: Positive
    spread: StoredSpread
    bounds: Annotated[list[Finite | None], Field(min_length=2, max_length=2)]
    base: StoredNumberBase | None


def check_number_json(meta: dict[str, Any]) -> None:
    """Check the JSON part of a regressor's folder; ValueError names the first wrong entry."""
    try:
        model = StoredRegressor.model_validate(meta)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    if model.bank.n_classes != 1:
        raise ValueError(f"bank.n_classes: {model.bank.n_classes} for a regressor")
    _check_common(model)
    _check_columns(model)
    names = [spec.name for spec in model.specs]
    wanted = ["features"] if model.base is None else ["features", "supervised"]
    wanted += ["text"] * (model.texts is not None)
    if sorted(names) != wanted:
        raise ValueError(f"specs: {names} for a model with the spaces {wanted}")
    if model.base is not None:
        known = [one.name for one in model.base.candidates]
        if sorted(known) != sorted(model.base.weights):
            raise ValueError("base.weights: not one per candidate")
    low, high = model.bounds
    if low is not None and high is not None and low > high:
        raise ValueError("bounds: the lower is above the upper")


def check_json(meta: dict[str, Any]) -> None:
    """Check names, types and ranges of the JSON part of a classifier's folder.

    The ValueError names the first wrong entry.
    """
    try:
        model = StoredModel.model_validate(meta)
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    _check_lengths(model)


def check_params(kind: Any, params: dict[str, Any]) -> None:
    """Raise ValueError for constructor parameters of `kind` with unknown names or wrong types."""
    hints = get_type_hints(kind.__init__)
    known = inspect.signature(kind).parameters
    for name in known:
        if name not in params and name != "estimator":  # a user's estimator is stored separately
            raise ValueError(f"params.{name}: missing")
    for name, value in params.items():
        if name not in known:
            raise ValueError(f"params.{name}: {kind.__name__} has no such parameter")
        if name not in hints:  # parameter of a user's subclass
            continue
        try:
            adapter = TypeAdapter(hints[name], config=ConfigDict(arbitrary_types_allowed=True))
            adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(f"params.{name}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    # For a union, the path includes the names of the schema classes tried.
    parts = [str(part) for part in first["loc"] if not str(part).startswith("Stored")]
    where = ".".join(parts)
    value = repr(first["input"])
    shown = "" if first["type"] == "missing" or len(value) > 80 else f", not {value}"
    what = first["msg"].removeprefix("Value error, ")
    return f"{where}: {what}{shown}" if where else f"{what}{shown}"


def _check_lengths(model: StoredModel) -> None:
    """Raise ValueError if parts of the JSON do not fit each other."""
    n_classes = len(model.classes)
    if model.bank.n_classes != n_classes:
        raise ValueError(f"bank.n_classes: {model.bank.n_classes} for {n_classes} classes")
    if len({*map(repr, model.classes)}) != n_classes:
        raise ValueError("classes: one occurs twice")
    _, is_text, width = model.classes_dtype.partition("U")
    if is_text and int(width) > 64 + 4 * max(len(str(label)) for label in model.classes):
        raise ValueError(f"classes_dtype: {width} characters for much shorter labels")
    if model.label_model is not None:
        for name in ("matrix", "low", "high"):
            _check_square(f"label_model.{name}", getattr(model.label_model, name))
    if isinstance(model.encoder, StoredTable):
        _check_columns(model)
    _check_common(model)
    names = [spec.name for spec in model.specs]
    is_image = isinstance(model.encoder, StoredImages)
    if model.photographs is not None:
        if not is_image:
            raise ValueError("photographs: not for a table")
        _check_table("photographs.encoder", model.photographs.encoder)
        if len(model.photographs.encoder.columns) != lite0.WIDTH:
            raise ValueError(f"photographs.encoder: not {lite0.WIDTH} columns")
        is_image = False  # what follows is about networks trained on images
    if not is_image and not {*names} <= {*_TABLE_SPACES}:
        raise ValueError(f"specs: {names}; a table has {', '.join(_TABLE_SPACES)}")
    if ("text" in names) != (model.texts is not None):
        raise ValueError("texts: these do not fit the spaces")
    if "trained" in names and model.embedding is None:
        raise ValueError("embedding: missing where specs have a trained space")
    if (model.stages is not None) != is_image or (model.features is None) != is_image:
        raise ValueError("stages, features: these do not fit the kind of rows")
    if (model.n_views > 1) != (model.views is not None):
        raise ValueError("views: these do not fit the number of views of a row")
    if is_image and model.embedding is None:
        raise ValueError("embedding: missing for images")
    if model.stages is not None and model.embedding is not None:
        if len(model.stages) != len(model.embedding.networks):
            raise ValueError("stages: not one entry per network")
        for number, stages in enumerate(model.stages):
            for name, stage in stages.items():
                _check_table(f"stages.{number}.{name}.encoder", stage.encoder)
    if model.base is not None and model.base.n_classes > n_classes:
        raise ValueError(f"base.n_classes: {model.base.n_classes} for {n_classes} classes")
    if model.base is not None and is_image:
        raise ValueError("base: not for images")


def _check_columns(model: Any) -> None:
    """Raise ValueError if the columns of a table do not fit each other."""
    if len(model.feature_names_in) not in (0, model.n_features_in):
        raise ValueError("feature_names_in: not one name per column")
    _check_table("encoder", model.encoder)


def _check_common(model: StoredCommon) -> None:
    """Raise ValueError if key spaces do not fit each other or the bank."""
    for spec in model.specs:
        if spec.n_neighbors > model.bank.next_id:
            raise ValueError(
                f"specs.{spec.name}.n_neighbors: {spec.n_neighbors} where there were never more "
                f"than {model.bank.next_id} rows"
            )
    names = [spec.name for spec in model.specs]
    if len({*names}) != len(names):
        raise ValueError("specs: one name occurs twice")
    if not {*model.indexes} <= {*names}:
        raise ValueError(f"indexes: {[*model.indexes]} for the spaces {names}")


def _check_square(where: str, matrix: list[list[float]]) -> None:
    if any(len(row) != len(matrix) for row in matrix):
        raise ValueError(f"{where}: not a square matrix")


def _check_table(where: str, table: StoredTable) -> None:
    kinds = [table.kinds.get(name) for name in table.columns]
    if None in kinds or len(set(table.columns)) != len(kinds) or len(table.kinds) != len(kinds):
        raise ValueError(f"{where}.kinds: not one kind per column")
    dated = {name for name in table.columns if table.kinds[name] == "date"}
    if {*table.dates} != dated:
        raise ValueError(f"{where}.dates: not one entry per column of dates")
    if {*table.texts} != {name for name in table.columns if table.kinds[name] == "text"}:
        raise ValueError(f"{where}.texts: not one entry per column of text")
    numbers = kinds.count("number") + sum(len(date.parts) for date in table.dates.values())
    numbers += sum(one.n_components for one in table.texts.values())
    for name in ("median", "mean", "scale", "has_gaps"):
        if len(getattr(table, name)) != numbers:
            raise ValueError(f"{where}.{name}: not one entry per number of a row")
    if not {*table.spellings} <= {n for n in table.columns if table.kinds[n] == "number"}:
        raise ValueError(f"{where}.spellings: of what is no column of numbers")
    if {*table.categories} != {n for n in table.columns if table.kinds[n] == "category"}:
        raise ValueError(f"{where}.categories: not one list per column of categories")


# --- parameters of the constructor --------------------------------------------------------------


def stored_cv(cv: Any) -> Any:
    """Plain form of `cv` for JSON; other splitters become "auto", with a warning."""
    if cv is None or isinstance(cv, str | Number):
        return cv
    kind = type(cv)
    name = kind.__name__
    if name not in _SPLITTERS or kind is not getattr(sklearn.model_selection, name):
        warn_user(
            f"cv={name} is not stored, as only splitters of sklearn.model_selection are: the "
            'loaded model has cv="auto", which its refresh would take. Predictions are the same.'
        )
        return "auto"
    params = {name: getattr(cv, name) for name in inspect.signature(kind).parameters}
    if not isinstance(params.get("random_state"), int | np.integer | None):
        params["random_state"] = None  # the state of a generator changes with use
    return {"splitter": name} | params


def read_cv(stored: Any) -> Any:
    """Rebuild `cv`; ValueError if it is neither plain nor a known splitter."""
    if not isinstance(stored, dict):
        return _PLAIN.validate_python(stored, strict=True)
    params = dict(stored)
    if (name := params.pop("splitter", None)) not in _SPLITTERS:
        raise ValueError(f"{name!r} is not a splitter of sklearn.model_selection")
    return getattr(sklearn.model_selection, name)(**params)


def replace_former(params: dict[str, Any], known: Container[str]) -> None:
    """Convert parameters of older versions, in place, to the `known` present ones."""
    if params.get("preset") == "fast":  # affected only the fit, not predictions
        params["preset"] = "default"
    if "cv" in known and {"n_members", "validation_fraction"} <= params.keys():
        _join_old_cv(params)
    if "base" in params and "base" not in known:
        params["estimator"] = params.pop("base")
    replace_former_eviction(params)
    if isinstance(params.get("settings"), dict):
        params["settings"] = _without_former(params["settings"])
    moved = [name for name in _NOW_SETTINGS if name in params and name not in known]
    if moved:
        former = {name: params.pop(name) for name in moved}
        params["settings"] = (params.get("settings") or {}) | former


def _without_former(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop settings of older versions; dropped training settings cause a warning."""
    kept = {name: value for name, value in settings.items() if name not in _FORMER_SETTINGS}
    lost: list[str] = []
    for name, kind in (("train", TrainConfig), ("head", HeadConfig)):
        if isinstance(kept.get(name), dict):
            kept[name] = _known(kept[name], kind, lost)
    train = kept.get("train")
    if isinstance(train, dict) and isinstance(train.get("augment"), dict):
        kept["train"] = train | {"augment": _known(train["augment"], Augmentation, lost)}
    if lost:
        warn_user(
            f"The model was trained with {', '.join(lost)}, which nearwise no longer has. Its "
            "predictions stay as they are; further trainings go without."
        )
    return kept


def _known(values: dict[str, Any], kind: type[BaseModel], lost: list[str]) -> dict[str, Any]:
    """Select the settings that `kind` has; append the names of the others to `lost`."""
    lost += [name for name in values if name not in kind.model_fields]
    return {name: value for name, value in values.items() if name in kind.model_fields}


def replace_former_eviction(params: dict[str, Any]) -> None:
    """Replace an eviction of older versions by "reservoir", in place, with a warning."""
    if params.get("eviction") in _FORMER_EVICTIONS:
        warn_user(
            f"The model forgets rows by eviction={params['eviction']!r}, which nearwise no longer "
            'has. Further rows are forgotten by "reservoir".'
        )
        params["eviction"] = "reservoir"


def _join_old_cv(params: dict[str, Any]) -> None:
    """Set `cv` from the two parameters that folders up to version 6 have instead."""
    n_folds = _PLAIN.validate_python(params.pop("n_members"), strict=True)
    share = _PLAIN.validate_python(params.pop("validation_fraction"), strict=True)
    if isinstance(share, float):
        params["cv"] = share
    else:
        asked = isinstance(n_folds, int) and n_folds > 1
        params["cv"] = n_folds if asked else "auto"
