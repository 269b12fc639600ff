"""A model folder whose memory is in a store: made from one that holds its memory, and opened."""

import itertools
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from nearwise.classifier.model.fitted_model import FittedModel
from nearwise.classifier.online.changes import without_rows
from nearwise.classifier.storage.journaling import FolderState
from nearwise.classifier.storage.model_schema import Count, Finite, Part, Positive, Share, Size
from nearwise.classifier.storage.persistence import VERSION, pack_model, rebuilt
from nearwise.classifier.storage.stored_parts import InvalidPartError, part_of_folder, under
from nearwise.classifier.stored.changes import ChangeableModel
from nearwise.classifier.stored.facts import (
    columns_of_fit,
    layout_of,
    rows_of_fit,
    schema_of,
    summary_of,
)
from nearwise.classifier.stored.row_codec import RowCodec
from nearwise.classifier.stored.working_set import (
    Column,
    Layout,
    MemorySummary,
    SpaceFacts,
    StoredViews,
)
from nearwise.classifier.uncertainty.calibration_rows import CalibrationRows
from nearwise.classifier.uncertainty.explain import Parts
from nearwise.memory import Change, Folder, StoreError, folder_kind, read_folder, write_folder
from nearwise.memory.gate import subfolder
from nearwise.memory.store import OWN_STORE
from nearwise.memory.stores import RowStore, StoredRows, engine_of

STORED_KIND = "attention k-NN classifier with its memory in a store"
_MILVUS = ("milvus+http://", "milvus+https://")
_LOCATION = "memory"  # the part of the folder that holds where the memory is
_OLDEST = 5  # format version that still opens
_KEPT = 256  # rows that stay in the folder, which a model is rebuilt and tried with


class _Column(Part):
    """Of `Column`: numbers that a row has in a store."""

    name: str
    shape: list[Count]
    dtype: Literal["float32", "float64", "int64", "bool"]


class _Space(Part):
    """Of `SpaceFacts`: what was known of a key space when its memory was moved."""

    unit: Positive
    votes: Annotated[list[Finite], Field(min_length=6, max_length=6)]
    own_opinion: Finite | None
    usual: Share


class _Location(Part):
    """Where the memory is that the folder does not hold, and how rows lie there."""

    uri: str
    lineage: str
    columns: list[_Column]
    spaces: dict[str, _Space]
    views: Annotated[list[Size], Field(min_length=1)]
    caveat: str


def is_stored(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is that of a model whose memory is in a store."""
    try:
        return folder_kind(folder) == STORED_KIND
    except StoreError:  # reading it explains what is wrong
        return False


def move_memory(
    model: Any,
    folder: str | os.PathLike[str],
    store: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the memory of a fitted classifier to a store, and a model that searches it to a folder.

    Predictions of the new model are those of the old one. What an addition does not change in it,
    as it would take a pass over the memory: the reliability of rows remembered before, what their
    neighbors say of classes that a base lacks, typical distances, and the calibration rows;
    `AttnKNNClassifier` renews all but the last.

    Parameters
    ----------
    model : AttnKNNClassifier
    folder : path
        New or empty.
    store : str, optional
        URI of a store that is not there yet, see `nearwise.memory.stores.engine_of`. By default a
        folder named "rows" in `folder`.
    progress : callable, optional
        Called with the rows written and their total.

    Raises
    ------
    ValueError
        If the model cannot be moved: soft labels, a capacity, or a memory that fades.
    StoreError
        If the folder or store exists already.
    """
    path, fitted = Path(folder), model._fitted
    _check_movable(model, fitted)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StoreError("foreign", f"{path} is there already. Give a new or empty folder.")
    uri = str(path / OWN_STORE) if store is None else _checked(store, path)
    place = OWN_STORE if store is None else engine_of(uri).located(uri)
    columns = columns_of_fit(fitted.predictor.views)
    layout, codec = layout_of(fitted, columns), RowCodec()
    rows = rows_of_fit(fitted, columns, layout, codec)
    first = next(rows)  # packs the schema of all, which the summary names
    tensors, meta, blobs = pack_model(model, _sample(fitted))  # what it refuses, it refuses here
    for n_views, calibration in layout.calibration.items():
        named = _pack_calibration(calibration)
        tensors |= {f"calibration/{n_views}/{name}": part for name, part in named.items()}
    opened = engine_of(uri).create(
        uri,
        schema_of(fitted.bank, fitted.predictor.views.specs, layout),
        _followed(first, rows, fitted.predictor.views.n_findable, progress),
        asdict(summary_of(fitted, codec)),
    )
    try:
        location = _Location(
            uri=place,
            lineage=opened.lineage,
            columns=[_Column(**c._asdict() | {"shape": list(c.shape)}) for c in layout.columns],
            spaces={name: _Space(**facts._asdict()) for name, facts in layout.spaces.items()},
            views=sorted(layout.calibration),
            caveat=layout.calibration[1].caveat,
        )
        blobs[_LOCATION] = location.model_dump_json().encode()
        write_folder(
            path, kind=STORED_KIND, format_version=VERSION, tensors=tensors, meta=meta, blobs=blobs
        )
    except BaseException:
        opened.drop()
        raise
    opened.close()


def open_stored(
    kind: Any,
    folder: str | os.PathLike[str],
    trusted: Sequence[str] = (),
    trusted_store: str | os.PathLike[str] | None = None,
) -> Any:
    """Open a classifier of class `kind` that `move_memory` wrote; its memory stays in the store."""
    path = Path(folder)
    content = _read(path)
    location, uri = _located(content, path, trusted_store)
    model, store = rebuilt(kind, content, trusted, path), _open_store(location, uri, path)
    reader = store.reader()
    try:
        with part_of_folder("memory"):
            layout = _unpack_layout(location, under(content.tensors, "calibration/"))
            model._publish(_published(model._fitted, layout, store, reader))
    except InvalidPartError as error:
        raise _invalid(path, error) from error
    state = FolderState(content.generation, store.lineage, reader.version, reader.version)
    model._folders = {os.path.realpath(path): state}
    return model


def changes_of_store(
    folder: str | os.PathLike[str], trusted_store: str | os.PathLike[str] | None = None
) -> list[Change]:
    """All changes of a memory since it was moved to a store, oldest first; nothing is rebuilt."""
    path = Path(folder)
    store = _open_store(*_located(_read(path), path, trusted_store), path)
    try:
        return store.history(store.lineage)
    finally:
        store.close()


def accept_lost_changes_of_store(
    folder: str | os.PathLike[str], trusted_store: str | os.PathLike[str] | None = None
) -> bool:
    """Go on from a memory as it was last written, if changes since are lost; whether they were."""
    from nearwise.memory.stores.disk import DiskStore  # databases keep no journal in a folder

    path = Path(folder)
    store = _open_store(*_located(_read(path), path, trusted_store), path)
    try:
        return isinstance(store, DiskStore) and store.accept_loss()
    finally:
        store.close()


def _read(path: Path) -> Folder:
    return read_folder(path, kind=STORED_KIND, newest_version=VERSION, oldest_version=_OLDEST)


def refuse_trusted_store(
    folder: str | os.PathLike[str], trusted_store: str | os.PathLike[str] | None
) -> None:
    """Raise ValueError where a store is named for a model whose memory is in its folder."""
    if trusted_store is not None:
        raise ValueError(
            f"The memory of {folder} is in its own folder. Leave --store (trusted_store) out."
        )


def _located(
    content: Folder, path: Path, trusted_store: str | os.PathLike[str] | None
) -> tuple[_Location, str]:
    """Say where the memory of a folder is: there, or where the user says; nothing is opened.

    Credentials go to where a URI leads, and it may name files with more of them: a folder, which
    may come from anybody, only names the place, and the URI that is opened is the user's.
    """
    try:
        location = _Location.model_validate_json(content.blobs[_LOCATION])
        is_own = location.uri == OWN_STORE
        is_server, is_path = "://" in location.uri, os.path.isabs(location.uri)
        if location.uri.startswith(_MILVUS):
            raise StoreError(
                "older",
                f"The memory of {path} is in Milvus, which nearwise no longer supports. Open it "
                "with the version that wrote it, or fit the model again and move its memory to a "
                "folder or to PostgreSQL.",
            )
        if not location.uri.isprintable() or not (is_own or is_server or is_path):
            raise ValueError(f"its store is {location.uri!r}")
        place = engine_of(location.uri).located(location.uri)
    except (KeyError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise _invalid(path, error) from error
    if is_own:
        refuse_trusted_store(path, trusted_store)
        return location, str(subfolder(path, OWN_STORE))
    given = None if trusted_store is None else os.fspath(trusted_store)
    if given is not None and engine_of(given).located(given) == place:
        return location, given
    risk = "where your credentials go" if is_server else "what is read and changed elsewhere"
    problem = (
        f"A model folder must not decide {risk}"
        if given is None
        else f"The store that you named is another: {engine_of(given).located(given)}"
    )
    settings = ", with the user name or settings that you connect with" if is_server else ""
    raise StoreError(
        "untrusted",
        f"The memory of {path} is outside its folder, in {place}. {problem}; nothing was opened "
        "there. If you know that store, repeat the command with "
        f"--store {shlex.quote(place)} (in Python trusted_store={place!r}){settings}.",
    )


def _open_store(location: _Location, uri: str, path: Path) -> RowStore:
    store = engine_of(uri).open(uri)
    if store.lineage != location.lineage:
        raise StoreError(
            "changed",
            f"The store {store.place} holds the memory of another model than {path}. Restore both "
            "from one copy, or move the model again.",
        )
    return store


def _invalid(path: Path, error: Exception) -> StoreError:
    return StoreError(
        "invalid", f"{path} holds what nearwise never writes: {error}. Restore it from a copy."
    )


def _published(model: FittedModel, layout: Layout, store: RowStore, reader: Any) -> ChangeableModel:
    views = StoredViews.over(
        model.predictor.views,
        reader=reader,
        layout=layout,
        summary=MemorySummary.of(reader),
        store=store,
    )
    predictor = replace(model.predictor, views=views)
    made = ChangeableModel(
        predictor=predictor,
        columns=model.columns,
        classes=model.classes,
        rows=model.rows,
        row_names=None,
        weight_unit=model.weight_unit,
        target_name=model.target_name,
        stream=model.stream,
    )
    return made.at(reader)


def refuse_moved() -> NoReturn:
    """Refuse to move what was moved."""
    raise ValueError("The memory of this model is in a store already.")


def _check_movable(model: Any, fitted: FittedModel) -> None:
    if not fitted.holds_memory:
        refuse_moved()
    if fitted.bank.is_soft:
        raise ValueError("A memory with soft labels cannot be moved. Fit with hard labels.")
    if model.capacity is not None or fitted.stream.half_life is not None:
        raise ValueError(
            f"The model forgets rows by itself (capacity={model.capacity}), which a store does "
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


def _sample(fitted: FittedModel) -> FittedModel:
    """Give a model with few of the rows, some of each class, that opens and predicts."""
    labels, n_rows = fitted.label_positions.numpy(), len(fitted.bank)
    findable = fitted.predictor.views.rows().numpy()
    first = np.concatenate([findable[labels[findable] == c][:2] for c in range(fitted.n_classes)])
    kept = np.union1d(first, findable[: max(_KEPT - len(first), 2)])
    gone = np.setdiff1d(np.arange(n_rows), kept)
    if not len(gone):
        return fitted
    return without_rows(fitted, fitted.bank.ids[torch.from_numpy(gone)], forget_classes=True)


def _followed(
    first: StoredRows,
    rows: Iterator[StoredRows],
    n_rows: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[StoredRows]:
    n_done = 0
    for batch in itertools.chain([first], rows):
        yield batch
        n_done += len(batch)
        if progress is not None:
            progress(n_done, n_rows)


def _pack_calibration(rows: CalibrationRows) -> dict[str, Tensor]:
    named = {"labels": rows.labels, "truth": rows.truth}
    named |= rows.parts._asdict() | {"distance": rows.distance}
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in named.items()}


def _unpack_layout(location: _Location, tensors: dict[str, Tensor]) -> Layout:
    calibration = {}
    for n_views in location.views:
        named = {name: part.numpy() for name, part in under(tensors, f"{n_views}/").items()}
        calibration[n_views] = CalibrationRows(
            named["labels"],
            Parts(*(named[name] for name in Parts._fields)),
            named["distance"],
            named["truth"],
            location.caveat,
        )
    columns = [Column(c.name, tuple(c.shape), c.dtype) for c in location.columns]
    spaces = {name: SpaceFacts(**facts.model_dump()) for name, facts in location.spaces.items()}
    return Layout(columns, spaces, calibration)
