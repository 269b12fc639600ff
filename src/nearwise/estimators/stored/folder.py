"""Model folders with their memory in a store; the user names the location of an outside store."""

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from nearwise.estimators.model.fitted_model import FolderState
from nearwise.estimators.storage import class_parts
from nearwise.estimators.storage.model_schema import Part, Size
from nearwise.estimators.storage.persistence import (
    VERSION,
    accept_lost_changes,
    changes_of,
    rebuilt,
)
from nearwise.estimators.storage.stored_parts import InvalidPartError, part_of_folder, under
from nearwise.estimators.stored.memory import (
    FactColumn,
    Layout,
    SpaceFacts,
    StoredMemory,
    at_version,
)
from nearwise.estimators.uncertainty.calibration_rows import CalibrationRows
from nearwise.estimators.uncertainty.explain import Parts
from nearwise.memory import Change, Folder, StoreError, folder_kind, read_folder
from nearwise.memory.gate import subfolder
from nearwise.memory.store import OWN_STORE
from nearwise.memory.stores import RowStore, engine_of

STORED_KIND = "attention k-NN classifier with its memory in a store"
LOCATION = "memory"  # part of the folder with the location of the memory
_MILVUS = ("milvus+http://", "milvus+https://")
_OLDEST = 5  # oldest format version that still opens


class Location(Part):
    """Location of a memory in a store, and layout of its rows."""

    uri: str
    lineage: str
    columns: list[FactColumn]
    spaces: dict[str, SpaceFacts]
    views: Annotated[list[Size], Field(min_length=1)]
    caveat: str


def is_stored(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a model with its memory in a store."""
    try:
        return folder_kind(folder) == STORED_KIND
    except StoreError:  # a later read explains the error
        return False


def open_stored(
    kind: Any,
    folder: str | os.PathLike[str],
    trusted: Sequence[str] = (),
    trusted_store: str | os.PathLike[str] | None = None,
) -> Any:
    """Open a classifier of class `kind` written by `move_memory`; its memory stays in the store."""
    path = Path(folder)
    if kind.folder_parts is not class_parts:
        why = f"{path} holds {STORED_KIND!r}. Open it by {class_parts.OPENED_BY}."
        raise StoreError("foreign", why)
    content = _read(path)
    location, uri = _located(content, path, trusted_store)
    model, store = rebuilt(kind, content, trusted, path), _open_store(location, uri, path)
    reader = store.reader()
    try:
        with part_of_folder("memory"):
            layout = _unpack_layout(location, under(content.tensors, "calibration/"))
            fitted = model.fitted_
            memory = StoredMemory.over(fitted.predictor.views, store, reader, layout)
            predictor = replace(fitted.predictor, views=memory)
            fitted = at_version(replace(fitted, predictor=predictor, row_names=None), reader)
    except InvalidPartError as error:
        raise _invalid(path, error) from error
    state = FolderState(content.generation, store.lineage, reader.version, reader.version)
    model.fitted_ = replace(fitted, folders={os.path.realpath(path): state})
    return model


def history_of(
    folder: str | os.PathLike[str], trusted_store: str | os.PathLike[str] | None = None
) -> list[Change]:
    """All changes of a saved model, oldest first, without loading it."""
    path = Path(folder)
    if not is_stored(path):
        refuse_trusted_store(path, trusted_store)
        return changes_of(path)
    store = _open_store(*_located(_read(path), path, trusted_store), path)
    with contextlib.closing(store):
        return store.history(store.lineage)


def accept_loss(
    kind: Any,
    folder: str | os.PathLike[str],
    trusted_store: str | os.PathLike[str] | None = None,
) -> bool:
    """Reset a model of class `kind` to its last written state if later changes are lost.

    Returns whether any were lost. Databases have no journal in a folder, and lose none.
    """
    path = Path(folder)
    if not is_stored(path):
        return accept_lost_changes(kind, path)
    store = _open_store(*_located(_read(path), path, trusted_store), path)
    with contextlib.closing(store):
        return store.accept_loss()


def _read(path: Path) -> Folder:
    return read_folder(path, kind=STORED_KIND, newest_version=VERSION, oldest_version=_OLDEST)


def refuse_trusted_store(
    folder: str | os.PathLike[str], trusted_store: str | os.PathLike[str] | None
) -> None:
    """Raise ValueError if a store is given for a model with its memory in its folder."""
    if trusted_store is not None:
        raise ValueError(
            f"The memory of {folder} is in its own folder. Leave --store (trusted_store) out."
        )


def _located(
    content: Folder, path: Path, trusted_store: str | os.PathLike[str] | None
) -> tuple[Location, str]:
    """Location of a folder's memory, and the URI to open: in the folder, or given by the user.

    A URI from an untrusted folder could send the user's credentials elsewhere, or name files with
    more of them. An outside store is therefore opened only by the user's URI.
    """
    try:
        location = Location.model_validate_json(content.blobs[LOCATION])
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
        located = engine_of(location.uri).located(location.uri)
    except (KeyError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise _invalid(path, error) from error
    if is_own:
        refuse_trusted_store(path, trusted_store)
        return location, str(subfolder(path, OWN_STORE))
    given = None if trusted_store is None else os.fspath(trusted_store)
    if given is not None and engine_of(given).located(given) == located:
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
        f"The memory of {path} is outside its folder, in {located}. {problem}; nothing was opened "
        "there. If you know that store, repeat the command with "
        f"--store {shlex.quote(located)} (in Python trusted_store={located!r}){settings}.",
    )


def _open_store(location: Location, uri: str, path: Path) -> RowStore:
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


def _unpack_layout(location: Location, tensors: dict[str, Tensor]) -> Layout:
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
    return Layout(location.columns, location.spaces, calibration)
