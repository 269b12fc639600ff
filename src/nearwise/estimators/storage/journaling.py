"""Conversion of model changes to entries of a folder's journal, and back."""

import io
import warnings
from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pydantic import Field

from nearwise.estimators.inputs.groups import Groups
from nearwise.estimators.inputs.labels import label_list, label_values
from nearwise.estimators.inputs.rows import Source
from nearwise.estimators.model.fitted_model import FittedModel
from nearwise.estimators.model.memory_views import GROUP
from nearwise.estimators.online import by_settings, changes
from nearwise.estimators.settings import Settings
from nearwise.estimators.storage.model_schema import (
    Category,
    Count,
    Finite,
    LabelType,
    Part,
    Share,
    replace_former_eviction,
)
from nearwise.estimators.storage.row_storage import storable
from nearwise.memory import Change, StoreError
from nearwise.memory.arrow import frame_of, read_stream, tensors_of
from nearwise.memory.checks import as_ids
from nearwise.memory.eviction import EvictionName
from nearwise.memory.journal import REFRESH
from nearwise.training.settings import plain_message

ADD, REMOVE, RELABEL = "add", "remove", "relabel"
FEEDBACK, KEEP = "feedback", "keep"
_LABELS = "labels"  # part of a change with its labels; rows are in rows/0, rows/1, ...


class Draft(NamedTuple):
    """A change that is not applied yet; fields as in `Change`."""

    kind: str
    ids: tuple[int, ...]
    details: dict[str, Any]
    parts: dict[str, bytes]


class _Labels(Part):
    """Labels, or targets, of added or removed rows; weights, shown texts, groups (digests)."""

    labels: list[Category]
    dtype: LabelType
    weights: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None
    names: list[str] | None
    groups: list[int] | None = None


class Judged(Part):
    """Predictions of rows before their labels were known, one value per row.

    The predicted label, whether it is correct, its probability (`confidence`); the probability of
    the true label (0 for a new class); the out-of-distribution p-value among `n_known` rows; and
    whether the 90 % set contains the true label. The last three are None with too few calibration
    rows.
    """

    predicted: list[Category]
    correct: list[bool]
    confidence: list[Share]
    proba_true: list[Share]
    novelty_p: list[Share] | None
    n_known: Count | None
    in_set: list[bool] | None


class JudgedNumbers(Part):
    """Predictions of rows before their targets were known, one value per row.

    The target; the predicted mean; the CRPS; the target's level in the predicted distribution
    (PIT); then as in `Judged`, with `in_interval` for the 90 % interval.
    """

    target: list[Finite]
    predicted: list[Finite]
    crps: list[Finite]
    level: list[Share]
    novelty_p: list[Share] | None
    n_known: Count | None
    in_interval: list[bool] | None


class _Details(Part):
    """Detail of every kind of change: the version that it reverses."""

    undoes: int | None = None


class _Added(_Details):
    capacity: Annotated[int, Field(ge=2)] | None
    eviction: str  # also old names: a replayed change lists the evicted rows
    evicted: list[Count] | None = None
    judged: Judged | JudgedNumbers | None = None


class _Relabelled(_Details):
    labels: list[Category]
    dtype: LabelType
    former: list[Category]
    former_dtype: LabelType
    forget_classes: bool


class _Removed(_Details):
    forget_classes: bool


class _Kept(_Details):
    kept: bool


def pack_rows_to_add(
    source: Source, weight: np.ndarray | None, views: Sequence[Any] | None
) -> dict[str, bytes]:
    """Bytes of checked rows, their labels, weights, shown texts and groups."""
    parts = {f"rows/{i}": pack_table(rows) for i, rows in enumerate([source.X, *(views or [])])}
    groups = None if source.groups is None else source.groups.of_rows(len(source.X))
    parts[_LABELS] = _pack_labels(label_values(source.y), weight, source.names, groups)
    return parts


def draft_add(
    model: Any, parts: dict[str, bytes], judged: Judged | JudgedNumbers | None = None
) -> Draft:
    """Draft that adds packed rows; feedback with `judged`, the predictions made before."""
    own = Settings.of(model.settings)
    details = _Added(capacity=own.capacity, eviction=own.eviction, judged=judged).model_dump()
    return Draft(ADD if judged is None else FEEDBACK, (), details, parts)


def draft_remove(fitted: FittedModel, ids: Any, *, forget_classes: bool) -> Draft:
    """Draft that removes rows; it stores their content, so that it can be undone."""
    ids = tuple(dict.fromkeys(plain_ids(ids)))
    if not ids:
        raise ValueError("No ids were given. Name the rows to forget.")
    at = fitted.bank.positions(ids).tolist()
    rows, names = fitted.given(at)
    if isinstance(rows, pd.DataFrame):
        rows = rows.reset_index(drop=True)
    labels = _labels_of(fitted, ids)
    weights = fitted.bank.sample_weight[at].double().numpy() * fitted.weight_unit
    groups = fitted.bank.columns.get(GROUP)
    held = _pack_labels(labels, weights, names, None if groups is None else groups[at].numpy())
    details = _Removed(forget_classes=forget_classes).model_dump()
    return Draft(REMOVE, ids, details, {"rows/0": pack_table(rows), _LABELS: held})


def draft_relabel(fitted: FittedModel, ids: Any, y: Any, *, forget_classes: bool) -> Draft:
    """Draft that relabels rows; it stores the former labels, so that it can be undone."""
    labels, former = label_values(y), _labels_of(fitted, ids)
    details = _Relabelled(
        labels=label_list(labels),
        dtype=labels.dtype.str,
        former=label_list(former),
        former_dtype=former.dtype.str,
        forget_classes=forget_classes,
    )
    return Draft(RELABEL, plain_ids(ids), details.model_dump(), {})


def draft_keep(fitted: FittedModel, ids: Any, *, kept: bool = True) -> Draft:
    """Draft that marks labels as checked and right, or with `kept=False` withdraws the mark."""
    ids = tuple(dict.fromkeys(plain_ids(ids)))
    fitted.bank.positions(ids)  # raises for ids that are not remembered
    return Draft(KEEP, ids, _Kept(kept=kept).model_dump(), {})


def draft_undo(model: Any, fitted: FittedModel, change: Change, evicted: Set[int]) -> Draft:
    """Draft that reverses a change, for the present version of the model.

    Removed rows are added again under new ids. Of added rows, the rows still in the memory are
    removed; `evicted` are ids evicted because of a capacity.

    Raises
    ------
    ValueError
        If rows of the change are no longer remembered, or removed rows no longer stored.
    """
    what = f"Change {change.version} ({change.kind}) cannot be undone"
    ids = change.ids
    if change.kind in (ADD, FEEDBACK):
        ids = tuple(one for one in ids if one not in evicted)
        if not ids:
            raise ValueError(f"{what}: a capacity has made the memory forget all of its rows.")
    if change.kind != REMOVE and ids:
        fitted = fitted.holding(ids)
        gone = sorted(set(ids) - set(fitted.bank.ids.tolist()))
        if gone:
            named = ", ".join(map(str, gone[:5]))
            raise ValueError(f"{what}: the model no longer remembers {named}.")
    if change.kind == REFRESH:
        raise ValueError(f"{what}: the model as it was before is gone. Restore it from a copy.")
    undoes = {"undoes": change.version}
    if change.kind == KEEP:
        draft = draft_keep(fitted, change.ids, kept=not _Kept.model_validate(change.details).kept)
    elif change.kind in (ADD, FEEDBACK):
        draft = draft_remove(fitted, ids, forget_classes=True)
    elif change.kind == RELABEL:
        given = _Relabelled.model_validate(change.details)
        if label_list(_labels_of(fitted, change.ids)) != given.labels:
            raise ValueError(f"{what}: rows of it have been relabelled since.")
        former = np.array(given.former, dtype=np.dtype(given.former_dtype))
        draft = draft_relabel(fitted, change.ids, former, forget_classes=True)
    else:
        if not change.parts:
            raise ValueError(
                f"{what}: the model has been compacted since, which forgets removed rows for good. "
                "Add them again from where they came from."
            )
        if fitted.predictor.n_views > 1 and not fitted.predictor.tta:
            raise ValueError(
                f"{what}: keys of this model are means over {fitted.predictor.n_views} views of a "
                "row, and only the first is kept of removed rows. Add them again with their views."
            )
        draft = draft_add(model, dict(change.parts))
    return draft._replace(details=draft.details | undoes)


def undone_by(history: Sequence[Change]) -> dict[int, int]:
    """Versions that are undone now, with the version of the undo."""
    undone: dict[int, int] = {}
    for later in reversed(history):
        undoes = later.details.get("undoes")
        if later.version not in undone and undoes is not None:
            undone[undoes] = later.version
    return undone


def apply(model: Any, fitted: FittedModel, change: Draft | Change) -> tuple[FittedModel, Change]:
    """Apply a change to a version of a model; returns the new version and the recorded change.

    A draft is applied for the first time. A change from the journal is repeated exactly, with the
    same evicted rows.
    """
    details = change.details
    if change.kind in (ADD, FEEDBACK):
        added = _Added.model_validate(details)
        labels = _Labels.model_validate_json(change.parts[_LABELS])
        gone = None if added.evicted is None else torch.tensor(added.evicted, dtype=torch.int64)
        n_rows, n_views = len(labels.labels), len(change.parts) - 1
        rows = [unpack_table(change.parts[f"rows/{i}"], n_rows) for i in range(n_views)]
        names = None if labels.names is None else np.array(labels.names, dtype=object)
        y = np.array(labels.labels, dtype=np.dtype(labels.dtype))
        weight = None if labels.weights is None else np.array(labels.weights)
        bound = changes.Bound(added.capacity, cast(EvictionName, added.eviction), gone)
        digests = None if labels.groups is None else np.array(labels.groups, dtype=np.int64)
        groups = None if digests is None else Groups(digests, "")
        source = Source(rows[0], y, names, groups)
        made, fresh = by_settings.with_rows(model, fitted, source, weight, rows[1:] or None, bound)
        found = {"evicted": made.evicted.tolist()}
        return made, _made(change, tuple(fresh.tolist()), found)
    ids = np.array(change.ids, dtype=np.int64)
    if change.kind == KEEP:
        _Kept.model_validate(details)
        return fitted, _made(change, change.ids, {})
    how: tuple[Any, ...]
    if change.kind == REMOVE:
        forget, how = _Removed.model_validate(details).forget_classes, (changes.without_rows, ids)
    elif change.kind == RELABEL:
        new = _Relabelled.model_validate(details)
        y = np.array(new.labels, dtype=np.dtype(new.dtype))
        forget, how = new.forget_classes, (by_settings.relabelled, ids, y)
    else:
        raise ValueError(f"{change.kind!r} is not a change that this nearwise supports")
    made = by_settings.with_change(model, fitted, *how, forget_classes=forget)
    return made, _made(change, change.ids, {})


def replay(model: Any, fitted: FittedModel, found: Sequence[Change]) -> FittedModel:
    """Apply changes from the journal again; returns the new version, not published yet.

    Raises
    ------
    StoreError
        If a change cannot be applied, or gives other ids than recorded.
    """
    bound: dict[str, Any] = {}
    for change in found:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # issued when the change was made first
                fitted, made = apply(model, fitted, change)
            if made.ids != change.ids:
                raise ValueError(f"it gives the ids {made.ids[:3]}, not {change.ids[:3]}")
        except (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException) as error:
            raise StoreError(
                "invalid",
                f"Change {change.version} ({change.kind}) of the journal cannot be made again: "
                f"{plain_message(error)}. Restore the folder from a copy.",
            ) from error
        if change.kind in (ADD, FEEDBACK):
            bound = {name: change.details[name] for name in ("capacity", "eviction")}
    if bound:
        replace_former_eviction(bound)
        model.settings = Settings.of(model.settings).changed(**bound)
    return fitted


def pack_table(rows: Any) -> bytes:
    """Rows as an Arrow IPC stream: a table, or an array as one column of tensors."""
    if isinstance(rows, pd.DataFrame):
        table = pa.Table.from_pandas(storable(rows), preserve_index=False)
    else:
        array = np.ascontiguousarray(rows)
        table = pa.table({"row": pa.FixedShapeTensorArray.from_numpy_ndarray(array)})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue()


def unpack_table(stored: bytes, n_rows: int) -> Any:
    """Rows from the result of `pack_table`; ValueError for other data or numbers of rows."""
    table = read_stream(stored, n_rows)
    if table.schema.pandas_metadata is None:
        return tensors_of(table, "row")
    return frame_of(table)


def _pack_labels(
    y: np.ndarray,
    weight: np.ndarray | None,
    names: np.ndarray | None,
    groups: np.ndarray | None,
) -> bytes:
    held = _Labels(
        labels=label_list(y),
        dtype=y.dtype.str,
        weights=None if weight is None else weight.tolist(),
        names=None if names is None else names.tolist(),
        groups=None if groups is None else groups.tolist(),
    )
    return held.model_dump_json().encode()


def _labels_of(fitted: FittedModel, ids: Any) -> np.ndarray:
    return fitted.labels_at(fitted.bank.positions(ids))


def plain_ids(ids: Any) -> tuple[int, ...]:
    """Ids as plain data for JSON; ValueError unless they are a sequence of integers."""
    return tuple(as_ids(ids, torch.device("cpu"), unique=False).tolist())


def _made(change: Draft | Change, ids: tuple[int, ...], found: dict[str, Any]) -> Change:
    if isinstance(change, Change):
        return replace(change, ids=ids, details=change.details | found)
    return Change(0, change.kind, ids, change.details | found, change.parts)
