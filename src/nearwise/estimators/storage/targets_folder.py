"""Folders of models of several targets: one folder inside per target, each a model of its own."""

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from nearwise.estimators.inputs.shared_work import shared_work
from nearwise.estimators.model.fitted_model import FittedTargets
from nearwise.estimators.several import estimators_of, has_same_rows, of_target
from nearwise.estimators.storage.model_schema import Part
from nearwise.estimators.storage.persistence import (
    VERSION,
    invalid,
    note_folder,
    refuse_later_changes,
    save_model,
)
from nearwise.memory import (
    StoreError,
    check_writable,
    folder_kind,
    read_folder,
    write_folder,
)
from nearwise.memory.gate import subfolder
from nearwise.memory.store import sync_folder
from nearwise.names import listed
from nearwise.warn import warn_user

KIND = "attention k-NN models of several targets"
_OLDEST = 8  # oldest format version that still opens
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,60}")  # names that are folder names as they are
_TAKEN = ("memory", "manifest", "journal")


class StoredTarget(Part):
    """A target, and the folder of its model."""

    name: str
    folder: str = Field(pattern=_PLAIN.pattern + "$")


class StoredTargets(Part):
    """All targets of a folder."""

    targets: list[StoredTarget] = Field(min_length=2)


def is_of_targets(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds the models of several targets."""
    try:
        return folder_kind(folder) == KIND
    except StoreError:  # a later read explains the error
        return False


def target_folders(folder: str | os.PathLike[str]) -> dict[str, Path]:
    """Folder of each target's model; StoreError if `folder` is torn or invalid."""
    path = Path(folder)
    content = read_folder(path, kind=KIND, newest_version=VERSION, oldest_version=_OLDEST)
    try:
        stored = StoredTargets.model_validate(content.meta)
        found = {one.name: subfolder(path, one.folder) for one in stored.targets}
        if len(set(found.values())) < len(stored.targets):
            raise ValueError("two targets share a name or a folder")
    except (ValidationError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise invalid(path, error) from error
    return found


def save_targets(model: Any, folder: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write the models of all targets into a new folder, which then replaces an old one.

    Errors as in `AttnKNNClassifier.save`.
    """
    path = Path(os.path.realpath(folder))
    check_writable(path, kind=KIND, format_version=VERSION)
    fitted: FittedTargets = model.fitted_
    names = _folder_names(fitted.names)
    if not overwrite:
        _refuse_changes(fitted, path, names, model.folder_parts.KIND)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    targets = [{"name": n, "folder": f} for n, f in zip(fitted.names, names, strict=True)]
    states = []
    try:
        write_folder(new, kind=KIND, format_version=VERSION, tensors={}, meta={"targets": targets})
        for one, name, inside in zip(estimators_of(model), fitted.names, names, strict=True):
            with of_target(name):
                states.append(save_model(one, one.fitted_, new / inside))
        _replace(path, new)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    for one, inside, state in zip(fitted.models, names, states, strict=True):
        one.folders.clear()
        note_folder(one, path / inside, state)


def load_targets(kind: Any, folder: str | os.PathLike[str], trusted: Sequence[str]) -> Any:
    """Load an estimator of class `kind` from a folder of `save_targets`.

    Warns if the models do not remember the same rows.
    """
    found = target_folders(folder)
    with shared_work():
        each = [kind.load(path, trusted=trusted) for path in found.values()]
    models = [one.fitted_ for one in each]
    whole: Any = each[0]
    whole.fitted_ = FittedTargets(list(found), models)
    if not has_same_rows(models):
        most = max(len(one.bank) for one in models)
        behind = [n for n, one in zip(found, models, strict=True) if len(one.bank) < most]
        warn_user(
            f"The models in {folder} do not remember the same rows: a change was interrupted, or "
            f"made in one of them. Make it in all ({listed(behind or list(found))} lack it)."
        )
    return whole


def _folder_names(names: Sequence[str]) -> list[str]:
    """Folder of each target: its name if that is plain and distinct, else "target-NUMBER"."""
    taken, found = set(_TAKEN), []
    for number, name in enumerate(names):
        plain = bool(_PLAIN.fullmatch(name)) and name.casefold() not in taken
        found.append(name if plain and not name.endswith((" ", ".")) else f"target-{number}")
        taken.add(found[-1].casefold())
    return found


def _refuse_changes(fitted: FittedTargets, path: Path, names: Sequence[str], kind: str) -> None:
    """Raise StoreError if the folder has had changes since the models were loaded from it."""
    for one, inside in zip(fitted.models, names, strict=True):
        before = one.folders.get(os.path.realpath(path / inside))
        if before is not None and (path / inside).is_dir():
            generation = before.generation
            check_writable(path / inside, kind=kind, format_version=VERSION, replaces=generation)
            refuse_later_changes(path / inside, before)


def _replace(path: Path, new: Path) -> None:
    """Move a complete new folder to a path, and delete the old one."""
    old = path.with_name(new.name.removesuffix(".new") + ".old")
    if path.exists():
        os.rename(path, old)
    os.rename(new, path)
    sync_folder(path.parent)
    shutil.rmtree(old, ignore_errors=True)
