"""Saving and loading of fitted models as folders, with a journal of changes.

`class_parts` and `number_parts` have the functions that differ between classifier and regressor.
"""

import inspect
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from nearwise.estimators.model.fitted_model import (
    FittedModel,
    FolderState,
    StreamState,
)
from nearwise.estimators.settings import Settings
from nearwise.estimators.storage.journaling import REMOVE, replay
from nearwise.estimators.storage.model_schema import (
    StoredJournal,
    check_params,
    read_cv,
    replace_former,
    stored_cv,
)
from nearwise.estimators.storage.row_storage import (
    pack_indexes,
    pack_rows,
    unpack_rows,
)
from nearwise.estimators.storage.stored_base import dump_model, load_model, untrusted_types
from nearwise.estimators.storage.stored_parts import (
    InvalidPartError,
    part_of_folder,
)
from nearwise.functional.devices import choose_device
from nearwise.memory import (
    Change,
    Folder,
    Journal,
    StoreError,
    folder_generation,
    folder_kind,
    locked_folder,
    read_folder,
    write_folder,
)
from nearwise.training.settings import plain_message
from nearwise.warn import warn_user

# Raised when the stored format or the parameters change; tests/store has a folder of each version.
VERSION = 8
_FEW = 4  # rows in the test of a folder
_CLOSE = 1e-6  # tolerance for a user's base, which may sum in another order each time


def versions() -> dict[str, str]:
    """Versions of the packages that a model depends on."""
    import sklearn

    import nearwise

    return {
        "nearwise": nearwise.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "scikit-learn": sklearn.__version__,
        "numpy": np.__version__,
    }


def plain_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as plain data for JSON; numpy numbers and sequences become Python types."""
    return {str(name): _plain_value(value) for name, value in params.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _plain_value(value.model_dump())
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain_value(entry) for name, entry in value.items()}
    if isinstance(value, torch.device):
        return str(value)
    if isinstance(value, list | tuple | range):
        return [_plain_value(item) for item in value]
    return value


def pack_model(
    model: Any, fitted: FittedModel
) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, bytes]]:
    """Tensors, JSON and blobs of one version of an estimator."""
    tensors, meta, blobs = model.folder_parts.pack_predictor(fitted.predictor)
    meta["indexes"], learned = pack_indexes(fitted.predictor.views)
    row_tensors, row_blobs = pack_rows(fitted.rows)
    params = model.get_params(deep=False)
    if params.get("settings") is not None:
        params["settings"] = Settings.of(params["settings"]).stored()
    if "cv" in params:
        params["cv"] = stored_cv(params["cv"])
    params = plain_params(params)
    if not (params["estimator"] is None or isinstance(params["estimator"], str)):
        blobs["param.base"] = dump_model(params.pop("estimator"))
    if not isinstance(params.get("random_state"), int | None):
        params["random_state"] = None  # a generator's state changes, and the model needs none
    meta |= model.folder_parts.own_meta(fitted) | {
        "params": params,
        "n_features_in": fitted.columns.n_features_in_,
        "feature_names_in": fitted.columns.names or [],
        "target_name": fitted.target_name,
        "group_name": fitted.group_name,
        "fitted_at": fitted.fitted_at,
        "weight_unit": fitted.weight_unit,
        "stream": asdict(fitted.stream),
        "row_names": None if fitted.row_names is None else fitted.row_names.tolist(),
        "versions": versions(),
    }
    return tensors | learned | row_tensors, plain_params(meta), blobs | row_blobs


def save_model(
    model: Any,
    fitted: FittedModel,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    locked: bool = False,
) -> FolderState:
    """Write a version of an estimator to a folder, atomically; see `AttnKNNClassifier.save`.

    `locked`: the caller holds the folder's lock. Returns the new state of the folder.
    """
    path = Path(folder)
    before = None if overwrite else fitted.folders.get(os.path.realpath(path))
    tensors, meta, blobs = pack_model(model, fitted)
    own = [blob for name, blob in blobs.items() if name.startswith(("base/", "param.base"))]
    trusted = sorted({name for blob in own for name in untrusted_types(blob)})
    goes_on = before is not None and not before.fitted_anew
    if before is not None and goes_on:
        meta["journal"] = {"lineage": before.lineage, "version": before.version}

    def check(written: Folder) -> None:
        if before is not None:
            refuse_later_changes(path, before)
        _check_written(model, fitted, written, trusted, path)

    generation = write_folder(
        path,
        kind=model.folder_parts.KIND,
        format_version=VERSION,
        tensors=tensors,
        meta=meta,
        blobs=blobs,
        check=check,
        replaces=None if before is None else before.generation,
        locked=locked,
    )
    state = FolderState(generation, lineage=generation, version=0, saved=0)
    if before is not None and goes_on:
        state = before._replace(generation=generation, saved=before.version)
    with nullcontext() if locked else locked_folder(path):
        _clear_journal(path, state)
    if trusted:
        warn_user(
            f"{path} holds a base with parts that are only loaded where you trust them. Open it "
            f"with {type(model).__name__}.load({str(path)!r}, trusted={trusted})."
        )
    return state


def note_folder(fitted: FittedModel, folder: str | os.PathLike[str], state: FolderState) -> None:
    """Record the state of a folder that this version, or an earlier one, was written to."""
    key = os.path.realpath(folder)
    held = fitted.folders.get(key)
    if held is not None and held.lineage == state.lineage:  # changed since the folder was written
        state = state._replace(version=max(held.version, state.version))
    fitted.folders[key] = state


def refuse_later_changes(path: Path, before: FolderState) -> None:
    """Raise StoreError if a folder has changes after the state that a model has of it."""
    with Journal(path) as journal:
        later = journal.since(before.lineage, before.version)
    if later:
        n_changes = f"{len(later)} change" + ("s" if len(later) > 1 else "")
        raise StoreError(
            "changed",
            f"{path} has had {n_changes} since it was loaded, and saving now would undo that. Load "
            "it again and repeat the change, save to another folder, or pass overwrite=True to "
            "replace it all the same.",
        )


def _clear_journal(path: Path, state: FolderState) -> None:
    """Remove changes from the journal that the folder contains, except removals, for undo.

    The caller holds the folder's lock. Loading reads the folder first, so that a failure here costs
    only disk space.
    """
    if folder_generation(path) != state.generation:
        return  # saved by another process since
    with Journal(path) as journal:
        try:
            journal.fold(state.lineage, state.version, keep=REMOVE)
        except StoreError:  # journal of the replaced model
            journal.discard()
        except OSError as error:
            warn_user(f"{path} is saved, but its journal could not be cleared: {error}")


def _check_written(
    model: Any, fitted: FittedModel, written: Folder, trusted: Sequence[str], path: Path
) -> None:
    """Raise StoreError if the written folder does not load as the saved model.

    Parts of nearwise must be equal to the bit. A user's base must give the same predictions, as
    its content cannot be compared.
    """
    try:
        stored = rebuilt(type(model), written, trusted, path)
        parts, opened = model.folder_parts, stored.fitted_
        again, _, _ = parts.pack_predictor(opened.predictor)
        changed = [name for name in again if not _same_bits(again[name], written.tensors[name])]
        if changed or parts.own_meta(fitted) != parts.own_meta(opened):
            raise StoreError("invalid", f"{[*changed, 'classes'][0]} comes back otherwise")
        few = [parts.predictions(one, _columns_of_few(one)) for one in (fitted, opened)]
        gap = float((few[0] - few[1]).abs().max())
        if not gap <= _CLOSE:
            raise StoreError("invalid", f"its base predicts otherwise (by {gap:.2g})")
    except StoreError as error:
        raise StoreError(
            "invalid",
            f"{path} was not written: what was read back is not the model "
            f"({error.__cause__ or error}). What was there before is unchanged. This is a fault of "
            "nearwise, or of a base that does not predict the same twice; please report it.",
        ) from error


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal, NaN to NaN."""
    first, second = (tensor.cpu().numpy().tobytes() for tensor in (one, other))
    return one.dtype == other.dtype and first == second


def load_model_folder(kind: Any, folder: str | os.PathLike[str], trusted: Sequence[str]) -> Any:
    """Load an estimator of class `kind` from a folder of `save_model`."""
    path = Path(folder)
    content, state, changes = _read_with_changes(path, kind.folder_parts)
    model = rebuilt(kind, content, trusted, path)
    fitted = replay(model, model.fitted_, changes)
    state = state._replace(version=state.version + len(changes))
    model.fitted_ = fitted
    note_folder(fitted, path, state)
    return model


def parts_of(path: Path) -> Any:
    """Return the module of parts for a folder's kind; `class_parts` for an unknown kind."""
    from nearwise.estimators.storage import class_parts, number_parts

    kind = folder_kind(path)
    return number_parts if kind == number_parts.KIND else class_parts


def changes_of(folder: str | os.PathLike[str]) -> list[Change]:
    """All changes of a saved estimator since its fit, oldest first, without loading it."""
    path = Path(folder)
    _, state = _read(path, None)
    with Journal(path) as journal:
        return journal.history(state.lineage)


def accept_lost_changes(kind: Any, folder: str | os.PathLike[str]) -> bool:
    """Reset a folder to its last saved state if later changes are lost; True if they were.

    Versions and history then start again, so that no version number means two states.
    """
    path = Path(folder)
    with locked_folder(path), Journal(path) as journal:
        content, state = _read(path, kind.folder_parts)
        if not journal.accept_loss(state.lineage, state.saved):
            return False
        model = rebuilt(kind, content, (), path)
        save_model(model, model.fitted_, path, overwrite=True, locked=True)
    return True


def _read_with_changes(path: Path, parts: Any) -> tuple[Folder, FolderState, list[Change]]:
    """Read a folder, and the later changes in its journal."""
    before = None
    with Journal(path) as journal:
        while True:
            content, state = _read(path, parts)
            try:
                changes = journal.since(state.lineage, state.saved)
                if folder_generation(path) == state.generation:
                    return content, state, changes
            except StoreError as error:
                if error.reason != "changed":
                    raise
                if state.generation == before:
                    raise StoreError(
                        "torn",
                        f"{path} is older than its journal, which was folded into a later state "
                        "of the folder. Restore both from one copy.",
                    ) from error
            before = state.generation  # the folder was saved in between: read it again


def _read(path: Path, parts: Any) -> tuple[Folder, FolderState]:
    """Read a folder of the kind of `parts`; None means any kind."""
    found = parts or parts_of(path)
    try:
        content = read_folder(
            path, kind=found.KIND, newest_version=VERSION, oldest_version=found.OLDEST
        )
    except StoreError as error:
        other = parts_of(path) if error.reason == "foreign" else found
        if other.KIND == found.KIND or folder_kind(path) != other.KIND:
            raise
        raise StoreError(
            "foreign",
            f"{path} holds {other.KIND!r} and {found.KIND!r} was expected. Open it by "
            f"{other.OPENED_BY}.",
        ) from error
    lineage, version = content.generation, 0
    if content.meta.get("journal") is not None:
        try:
            held = StoredJournal.model_validate(content.meta["journal"])
        except ValidationError as error:
            raise invalid(path, error) from error
        lineage, version = held.lineage, held.version
    return content, FolderState(content.generation, lineage, version, saved=version)


def invalid(path: Path, error: Exception) -> StoreError:
    """Error for a folder whose content is impossible."""
    return StoreError(
        "invalid",
        f"{path} holds what nearwise never writes: {plain_message(error)}. Restore it from a "
        "copy, or fit the model again.",
    )


def rebuilt(kind: Any, content: Folder, trusted: Sequence[str], path: Path) -> Any:
    """Rebuild an estimator from a folder's content; StoreError names the first wrong part."""
    parts = kind.folder_parts
    try:
        with part_of_folder("JSON"):
            content = parts.checked(content, path)
            meta = content.meta
            params = dict(meta["params"])
            replace_former(params, inspect.signature(kind).parameters)
            check_params(kind, params)
        with part_of_folder("params.cv"):
            if "cv" in params:
                params["cv"] = read_cv(params["cv"])
        with part_of_folder("param.base"):
            if "param.base" in content.blobs:
                params["estimator"] = load_model(content.blobs["param.base"], trusted)
        with part_of_folder("params"):
            if params.get("settings") is not None:
                params["settings"] = Settings.of(params["settings"])
            model = kind(**params)
        columns = parts.Columns()
        columns.n_features_in_ = meta["n_features_in"]
        if meta["feature_names_in"]:
            columns.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
        names = meta["row_names"]
        predictor = parts.unpack_predictor(content, trusted)
        with part_of_folder("rows"):
            reduced = getattr(predictor.encoder, "sparse_columns", None)
            width = columns.n_features_in_ if reduced is None else reduced.n_components
            rows = unpack_rows(content, len(predictor.views.bank), width)
        predictor.to(_device_here(model))
        with part_of_folder("row_names"):
            if names is not None and len(names) != len(rows):
                raise ValueError(f"{len(names)} names for {len(rows)} rows")
        with part_of_folder("model"):
            common = {
                "predictor": predictor,
                "columns": columns,
                "rows": rows,
                "row_names": None if names is None else np.array(names, dtype=object),
                "weight_unit": meta["weight_unit"],
                "target_name": meta["target_name"],
                "group_name": meta.get("group_name"),
                "fitted_at": meta.get("fitted_at"),
                "stream": StreamState(**meta["stream"]),
            }
            fitted = parts.rebuilt(meta, common)
            model.fitted_ = fitted = fitted.fading()
        with part_of_folder("models"):
            _columns_of_few(fitted)
    except InvalidPartError as error:
        raise invalid(path, error) from error
    return model


def _columns_of_few(fitted: Any) -> dict[str, Tensor]:
    """Bank columns of a few remembered rows, computed again as a test of the models.

    Finds errors that no single check of a folder finds: ValueError if keys or columns are not
    finite, or not of the width in the bank.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = fitted.encoded(fitted.rows[:_FEW], [])
        keys, columns = fitted.predictor.keys_of_new(rows)
    held = fitted.bank.keys | fitted.bank.columns
    for name, made in (keys | columns).items():
        if made.shape[1:] != held[name].shape[1:] or not bool(torch.isfinite(made).all()):
            raise ValueError(f"{name} of remembered rows is not what the memory holds")
    return columns


def _device_here(model: Any) -> torch.device:
    """Device for a loaded model; "auto" if the saved device is not available here."""
    try:
        return choose_device(Settings.of(model.settings).device)
    except ValueError as error:
        device = choose_device("auto")
        warn_user(
            f'Saved with a device that is not here ({error}); the model is on {device}, by "auto".'
        )
        model.settings = Settings.of(model.settings).changed(device="auto")
        return device
