"""What a store keeps of every row beside its keys: of the rows of a fit, and of rows that come."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.classifier.inputs.rows import AnyRows
from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.model.log_linear_pool import with_new_classes
from nearwise.classifier.model.memory_views import (
    BASE,
    FINDABLE,
    FITTED,
    FOLD,
    OPINION,
    MemoryViews,
    SpaceSpec,
)
from nearwise.classifier.model.predictor import as_float
from nearwise.classifier.online.updates import predict_new
from nearwise.classifier.storage.journaling import label_list
from nearwise.classifier.stored.row_codec import RowCodec
from nearwise.classifier.stored.working_set import (
    Column,
    Layout,
    MemorySummary,
    SpaceFacts,
    StoredFittedModel,
    StoredViews,
    distance_column,
)
from nearwise.classifier.uncertainty.calibration_rows import calibration_rows
from nearwise.memory import MemoryBank
from nearwise.memory.stores import Schema, SpaceSchema, StoredRows
from nearwise.memory.stores.protocol import BATCH
from nearwise.nn.neighbor_set import OWN_NEIGHBORS, from_zero

_NOT_KEPT = (FOLD, FINDABLE, FITTED, BASE)  # columns that only predictions of remembered rows need
_BATCH_BYTES = 2**28  # of rows that are written at once
_AT_ONCE = 4_096  # rows whose neighbors are fetched at once
_NEW_CLASS = 4  # rows by which the reliability of a class that came later is drawn to the usual


# --- of the rows of a fit -----------------------------------------------------------------------


def columns_of_fit(views: MemoryViews) -> dict[str, Tensor]:
    """Give what a store keeps of all remembered rows, name to (n, ...)."""
    bank = views.bank
    kept = {
        name: column
        for name, column in bank.columns.items()
        if name not in _NOT_KEPT and not name.startswith(("own.", "apart."))
    }
    for spec in views.specs:
        rows = views.space(spec).rows
        kept[spec.reliability] = rows.reliability
        kept[distance_column(spec)] = rows.own_distance
        if rows.base_log_proba is not None:  # of all classes, those that came later included
            kept[OPINION] = rows.base_log_proba
    return kept


def layout_of(model: FittedModel, columns: dict[str, Tensor]) -> Layout:
    """Describe the columns, and the memory as a whole, of a model that holds its memory."""
    predictor, views = model.predictor, model.predictor.views
    described = [
        Column(name, tuple(column.shape[1:]), str(column.dtype).removeprefix("torch."))
        for name, column in columns.items()
    ]
    spaces = {}
    for spec in views.specs:
        usual, known = float(columns[spec.reliability].mean()), views.space(spec).summary
        spaces[spec.name] = SpaceFacts(known.unit, known.votes.tolist(), known.own_opinion, usual)
    calibration = {
        n_views: calibration_rows(predictor, model.n_classes, n_views)
        for n_views in {1, predictor.n_views}
    }
    return Layout(described, spaces, calibration)


def schema_of(bank: MemoryBank, specs: list[SpaceSpec], layout: Layout) -> Schema:
    """Return what a store keeps of the rows of a memory."""
    spaces = {spec.name: SpaceSchema(bank.keys[spec.name].shape[1], spec.metric) for spec in specs}
    return Schema(spaces, layout.n_facts)


def summary_of(model: FittedModel, codec: RowCodec) -> MemorySummary:
    """Count what a model remembers that holds its memory."""
    views, labels = model.predictor.views, model.label_positions
    weight, taken = views.bank.sample_weight, views.remembered_labels
    if taken.certainty is not None:
        weight = weight * taken.certainty
    found = views.rows()
    counts = torch.bincount(taken.labels[found], weight[found], model.n_classes)
    n_of_class = torch.bincount(labels[found], minlength=model.n_classes)
    return MemorySummary(
        label_list(model.classes),
        counts.tolist(),
        n_of_class.tolist(),
        len(model.bank),
        model.bank.next_id,
        codec.schemas,
    )


def rows_of_fit(
    model: FittedModel, columns: dict[str, Tensor], layout: Layout, codec: RowCodec
) -> Iterator[StoredRows]:
    """Give the rows of a model that may be found, in batches, in the order of their ids."""
    bank, labels = model.bank, model.label_positions
    found = model.predictor.views.rows()
    found = found[torch.argsort(bank.ids[found])]
    names = [spec.name for spec in model.predictor.views.specs]
    given = codec.table(model.rows, model.row_names)
    n_bytes = max(1, given.nbytes // max(1, given.num_rows))
    for at in found.split(max(1, min(BATCH, _BATCH_BYTES // n_bytes))):
        yield StoredRows(
            bank.ids[at].numpy(),
            labels[at].numpy(),
            bank.sample_weight[at].numpy(),
            {name: bank.keys[name][at].float().numpy() for name in names},
            layout.facts({name: column[at] for name, column in columns.items()}),
            codec.pack_table(given.take(at.numpy())),
        )


# --- of rows that come --------------------------------------------------------------------------


class Counted(NamedTuple):
    """What rows count for: classes that they are taken to be of, and how much, (n,) each."""

    taken: np.ndarray
    weights: np.ndarray


def rows_to_add(
    model: StoredFittedModel,
    views: list[AnyRows],
    given: Any,
    names: np.ndarray | None,
    labels: np.ndarray,
    weight: np.ndarray | None,
    codec: RowCodec,
) -> tuple[StoredRows, Counted]:
    """Describe rows as the store keeps them; `model` is a fork that fetches.

    `labels` are class positions, new ones among them.
    """
    predictor, memory = model.predictor, stored(model)
    n_rows, first = len(labels), memory.summary.next_id
    keys, columns = predictor.keys_of_new(views)
    columns |= predictor.label_model.columns_of_new(lambda: predict_new(predictor, views))
    n_based = None
    for column in memory.layout.columns:  # the rest follows from the neighbors
        if column.name == OPINION:
            n_based = columns[OPINION].shape[1]
            missing = column.width - n_based
            columns[OPINION] = torch.nn.functional.pad(columns[OPINION], (0, missing))
        columns.setdefault(column.name, torch.zeros(n_rows, *column.shape))
    weights = torch.ones(n_rows) if weight is None else as_float(weight)
    rows = StoredRows(
        np.arange(first, first + n_rows),
        labels.astype(np.int64),
        weights.float().numpy(),
        {name: part.float().numpy() for name, part in keys.items()},
        memory.layout.facts(columns),
        codec.pack(given, names),
    )
    return _judged(model, rows, n_based, are_new=True)


def relabelled(model: StoredFittedModel, ids: np.ndarray, labels: np.ndarray) -> StoredRows:
    """Describe remembered rows as they are with other labels; `model` is a fork that fetches."""
    memory = stored(model)
    memory.relabelled = dict(zip(ids.tolist(), labels.tolist(), strict=True))
    rows = replace(memory.reader.fetch(ids, rows=True), labels=labels.astype(np.int64))
    return _judged(model, rows, None, are_new=False)[0]


def _judged(
    model: StoredFittedModel, rows: StoredRows, n_based: int | None, *, are_new: bool
) -> tuple[StoredRows, Counted]:
    """Store what the neighbors of rows predict for them, and the rows' weights.

    Opinions on the rows are of the first `n_based` classes; of the others the neighbors vote. None
    where there are none, or of all classes.
    """
    memory, blocks, counted = stored(model), [], []
    for start in range(0, len(rows), _AT_ONCE):
        ids = rows.ids[start : start + _AT_ONCE]
        memory.empty()
        if are_new:
            memory.take_in_new(rows)
        positions = memory.hold(ids)
        blocks.append(_by_neighbors(model, positions, n_based))
        counted.append(Counted(memory.labels[positions].numpy(), memory.weighed(positions).numpy()))
    columns = memory.layout.read(rows.facts)
    known = {n: torch.cat([b[n] for b in blocks]) for n in blocks[0]}
    columns |= {name: values for name, values in known.items() if name in columns}
    everyone = Counted(*map(np.concatenate, zip(*counted, strict=True)))
    return replace(rows, facts=memory.layout.facts(columns)), everyone


def _by_neighbors(
    model: StoredFittedModel, positions: Tensor, n_based: int | None
) -> dict[str, Tensor]:
    """Columns that follow from the neighbors of rows at positions of the working set."""
    memory, columns = stored(model), dict[str, Tensor]()
    n_known = len(model.predictor.prior)
    for spec in memory.specs:
        k = min(OWN_NEIGHBORS, max(1, memory.summary.n_rows - 1))
        keys, ids = memory.bank.keys[spec.name][positions], memory.bank.ids[positions]
        near = memory.search(spec, keys, k, ids)
        n_judging = max(1, near.indices.shape[1] - 1)  # the last would stand by for one left out
        labels = memory.labels
        agree = labels[near.indices[:, :n_judging]] == labels[positions][:, None]
        columns[spec.reliability] = torch.where(
            labels[positions] < n_known,
            agree.float().mean(1),
            _of_new_class(memory, spec, positions, agree),
        )
        apart = from_zero(near.distances, spec.metric)
        columns[distance_column(spec)] = apart[:, :n_judging].mean(1)
        if spec is memory.specs[0] and n_based is not None:
            opinion = memory.bank.columns[OPINION][positions]
            if n_based < opinion.shape[1]:
                near_labels, n_classes = labels[near.indices], opinion.shape[1]
                known = opinion[:, :n_based]
                opinion = with_new_classes(known, near.distances, near_labels, n_classes)
            columns[OPINION] = opinion
    return columns


def _of_new_class(memory: StoredViews, spec: SpaceSpec, positions: Tensor, agree: Tensor) -> Tensor:
    """Reliability of rows whose class may have few rows yet; see `MemoryViews`."""
    per_class = torch.zeros(memory.bank.n_classes)
    known = torch.tensor(memory.summary.rows_per_class, dtype=torch.float32)
    per_class[: len(known)] = known
    labels = memory.labels[positions]
    others = (per_class + torch.bincount(labels, minlength=len(per_class)))[labels] - 1
    usual = memory.layout.spaces[spec.name].usual
    n_voting = others.clamp(0, agree.shape[1])
    return (agree.float().sum(1) + _NEW_CLASS * usual) / (n_voting + _NEW_CLASS)


# --- the memory as a whole ----------------------------------------------------------------------


def with_counts(
    summary: MemorySummary,
    classes: np.ndarray,
    labels: np.ndarray,
    counted: Counted,
    sign: int,
) -> MemorySummary:
    """Count rows in (`sign` 1) or out (-1); `labels` are class positions as given."""
    n_classes = len(classes)

    def wider(values: list[Any]) -> np.ndarray:
        return np.pad(np.asarray(values), (0, n_classes - len(values)))

    counts = wider(summary.counts) + sign * np.bincount(counted.taken, counted.weights, n_classes)
    n_of_class = wider(summary.rows_per_class) + sign * np.bincount(labels, minlength=n_classes)
    return replace(
        summary,
        classes=label_list(classes),
        counts=np.maximum(counts, 0.0).tolist(),
        rows_per_class=n_of_class.tolist(),
        n_rows=summary.n_rows + sign * len(labels),
    )


def stored(model: FittedModel) -> StoredViews:
    """Give the views of a model whose memory is in a store."""
    views = model.predictor.views
    assert isinstance(views, StoredViews)  # the caller knows
    return views
