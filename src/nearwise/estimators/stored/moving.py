"""Moving the memory of a fitted classifier to a store."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.inputs.labels import label_list
from nearwise.estimators.model.fitted_model import FittedClassifier, FittedRegressor
from nearwise.estimators.model.memory_views import (
    BASE,
    EMBEDDED,
    FINDABLE,
    FITTED,
    FOLD,
    GROUPED,
    OPINION,
    MemoryViews,
)
from nearwise.estimators.online.changes import without_rows
from nearwise.estimators.settings import Settings
from nearwise.estimators.storage.persistence import VERSION, pack_model
from nearwise.estimators.stored.folder import LOCATION, STORED_KIND, Location
from nearwise.estimators.stored.memory import (
    FactColumn,
    Layout,
    MemorySummary,
    SpaceFacts,
    distance_column,
)
from nearwise.estimators.stored.row_codec import RowCodec
from nearwise.estimators.uncertainty.calibration_rows import (
    CalibrationRows,
    calibration_rows,
)
from nearwise.memory import StoreError, write_folder
from nearwise.memory.store import OWN_STORE
from nearwise.memory.stores import Schema, SpaceSchema, StoredRows, engine_of
from nearwise.memory.stores.protocol import BATCH

_NOT_KEPT = (
    FOLD,
    FINDABLE,
    FITTED,
    BASE,
    EMBEDDED,
    *GROUPED,
)  # columns used only in predictions of remembered rows
_BATCH_BYTES = 2**28  # bytes of rows per written batch
_KEPT = 256  # rows in the folder, for rebuilding and testing a model


def move_memory(
    model: Any,
    folder: str | os.PathLike[str],
    store: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the memory of a fitted classifier to a store, and a model that searches it to a folder.

    Predictions of the new model equal predictions of the old one. Additions do not update values
    that need a pass over the whole memory: the reliability of old rows, their neighbors' votes on
    new classes, typical distances, and the calibration rows. `AttnKNNClassifier` updates all but
    the last.

    Parameters
    ----------
    model : AttnKNNClassifier
        Fitted classifier. A regressor is refused, as stores have no numeric targets.
    folder : path
        New or empty folder.
    store : str, optional
        URI of a new store, see `nearwise.memory.stores.engine_of`. Default: a folder named "rows"
        in `folder`.
    progress : callable, optional
        Called with the number of written rows and their total.

    Raises
    ------
    ValueError
        If the model cannot be moved: a regressor, soft labels, a capacity, or fading votes.
    StoreError
        If the folder or store exists already.
    """
    path, fitted = Path(folder), model.fitted_
    _check_movable(model, fitted)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError("foreign", f"{path} is there already. Give a new or empty folder.")
    uri = str(path / OWN_STORE) if store is None else _checked(store, path)
    located = OWN_STORE if store is None else engine_of(uri).located(uri)
    columns = _columns_of(fitted.predictor.views)
    layout, codec = _layout_of(fitted, columns), RowCodec()
    fitted = fitted.without_groups()  # a store has no leave-one-out
    rows = _rows_of(fitted, columns, layout, codec, progress or (lambda done, n_rows: None))
    first = next(rows)  # registers the schema of all rows for the summary
    tensors, meta, blobs = pack_model(model, _sample(fitted))  # may raise, before a store is made
    for n_views, calibration in layout.calibration.items():
        named = _pack_calibration(calibration)
        tensors |= {f"calibration/{n_views}/{name}": part for name, part in named.items()}
    views, n_facts = fitted.predictor.views, sum(column.width for column in layout.columns)
    widths = {name: keys.shape[1] for name, keys in fitted.bank.keys.items()}
    spaces = {spec.name: SpaceSchema(widths[spec.name], spec.metric) for spec in views.specs}
    opened = engine_of(uri).create(
        uri,
        Schema(spaces, n_facts),
        itertools.chain([first], rows),
        _summary_of(fitted, codec).model_dump(),
    )
    try:
        location = Location(
            uri=located,
            lineage=opened.lineage,
            columns=layout.columns,
            spaces=layout.spaces,
            views=sorted(layout.calibration),
            caveat=layout.calibration[1].caveat,
        )
        blobs[LOCATION] = location.model_dump_json().encode()
        write_folder(
            path, kind=STORED_KIND, format_version=VERSION, tensors=tensors, meta=meta, blobs=blobs
        )
    except BaseException:
        opened.drop()
        raise
    opened.close()


def _check_movable(model: Any, fitted: FittedClassifier) -> None:
    if isinstance(fitted, FittedRegressor):
        raise ValueError(
            "The model predicts numbers, and stores keep rows of classes alone. Keep its memory in "
            "its own folder, as it is: LiveModel and the commands change it there."
        )
    if not fitted.holds_memory:
        raise ValueError("The memory of this model is in a store already.")
    if fitted.bank.is_soft:
        raise ValueError("A memory with soft labels cannot be moved. Fit with hard labels.")
    capacity = Settings.of(model.settings).capacity
    if capacity is not None or fitted.stream.half_life is not None:
        raise ValueError(
            f"The model forgets rows by itself (capacity={capacity}), which a store does "
            "not. Set capacity to None first."
        )


def _checked(uri: str, folder: Path) -> str:
    """Make the path of a store absolute; ValueError if a URI cannot be kept in a folder."""
    if "://" not in uri:
        path = Path(uri).absolute()
        if path.is_relative_to(folder.absolute()):
            raise ValueError(
                f"The store {path} would be in the model's folder {folder}. Leave it out to have "
                f"it there as {OWN_STORE!r}, or give another folder."
            )
        return str(path)
    parts = urlsplit(uri)
    if parts.password is not None or {*parse_qs(parts.query)} & {"password", "sslpassword"}:
        raise ValueError(
            "The URI of the store holds a password, which lists of processes and logs show. Leave "
            "it out: PostgreSQL reads PGPASSWORD and ~/.pgpass."
        )
    return uri


def _sample(fitted: FittedClassifier) -> FittedClassifier:
    """Model with a small sample of the rows, some of each class, that loads and predicts."""
    labels, n_rows = fitted.label_positions.numpy(), len(fitted.bank)
    findable = fitted.predictor.views.rows().numpy()
    first = np.concatenate([findable[labels[findable] == c][:2] for c in range(fitted.n_classes)])
    kept = np.union1d(first, findable[: max(_KEPT - len(first), 2)])
    gone = np.setdiff1d(np.arange(n_rows), kept)
    if not len(gone):
        return fitted
    return without_rows(fitted, fitted.bank.ids[torch.from_numpy(gone)], forget_classes=True)


# --- content of the store -----------------------------------------------------------------------


def _columns_of(views: MemoryViews) -> dict[str, Tensor]:
    """Return the columns to store for all remembered rows, name to (n, ...)."""
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
        if rows.base_log_proba is not None:  # of all classes, also those added later
            kept[OPINION] = rows.base_log_proba
    return kept


def _layout_of(model: FittedClassifier, columns: dict[str, Tensor]) -> Layout:
    """Layout of the columns, with statistics of the memory."""
    predictor, views = model.predictor, model.predictor.views
    described = [
        {"name": name, "shape": [*part.shape[1:]], "dtype": str(part.dtype).removeprefix("torch.")}
        for name, part in columns.items()
    ]
    spaces = {}
    for spec in views.specs:
        known = views.space(spec).summary
        spaces[spec.name] = SpaceFacts(
            unit=known.unit,
            votes=known.votes.tolist(),
            own_opinion=known.own_opinion,
            usual=float(columns[spec.reliability].mean()),
        )
    calibration = {
        n_views: calibration_rows(predictor, model.n_classes, n_views).one_per_group()
        for n_views in {1, predictor.n_views}
    }
    return Layout([*map(FactColumn.model_validate, described)], spaces, calibration)


def _summary_of(model: FittedClassifier, codec: RowCodec) -> MemorySummary:
    """Summary of the memory of a model."""
    views, n_classes = model.predictor.views, model.n_classes
    weight, taken, found = views.bank.sample_weight, views.remembered_labels, views.rows()
    weight = weight if taken.certainty is None else weight * taken.certainty
    summary = MemorySummary(
        classes=label_list(model.classes),
        counts=[0.0] * n_classes,
        rows_per_class=[0] * n_classes,
        n_rows=len(model.bank),
        next_id=model.next_id,
        row_schemas=codec.schemas,
    )
    given = model.label_positions[found]
    counted = summary.counted(given, taken.labels[found], weight[found], 1)
    return counted.model_copy(update={"n_rows": len(model.bank)})


def _rows_of(
    model: FittedClassifier,
    columns: dict[str, Tensor],
    layout: Layout,
    codec: RowCodec,
    progress: Callable[[int, int], None],
) -> Iterator[StoredRows]:
    """Iterate over batches of the searchable rows of a model, in the order of their ids."""
    bank, labels = model.bank, model.label_positions
    found = model.predictor.views.rows()
    found = found[torch.argsort(bank.ids[found])]
    names = [spec.name for spec in model.predictor.views.specs]
    given = codec.table(model.rows, model.row_names)
    n_done, n_bytes = 0, max(1, given.nbytes // max(1, given.num_rows))
    for at in found.split(max(1, min(BATCH, _BATCH_BYTES // n_bytes))):
        yield StoredRows(
            bank.ids[at].numpy(),
            labels[at].numpy(),
            bank.sample_weight[at].numpy(),
            {name: bank.keys[name][at].float().numpy() for name in names},
            layout.facts({name: column[at] for name, column in columns.items()}, len(at)),
            codec.pack_table(given.take(at.numpy())),
        )
        n_done += len(at)
        progress(n_done, len(found))


def _pack_calibration(rows: CalibrationRows) -> dict[str, Tensor]:
    named = {"labels": rows.labels, "truth": rows.truth}
    named |= rows.parts._asdict() | {"distance": rows.distance}
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in named.items()}
