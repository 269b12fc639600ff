"""Durable folders of tensors, JSON and bytes: a write replaces all of them or none.

A write puts new files, named after their generation, beside the old ones, and replaces
``manifest.json`` last. A process killed at any moment leaves the old or the new content, never a
mixture; the next write removes the files that a killed write left behind.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from nearwise.memory.gate import StoreError, opened

MANIFEST = "manifest.json"
_FORMAT: Literal["nearwise folder"] = "nearwise folder"
# Only files with such names are ever written, read or removed.
_NAME = r"(tensors|meta|blob\d+|manifest|journal)-[0-9a-f]{16}\.(safetensors|json|bin)"
_OURS = re.compile(_NAME)
OWN_STORE = "rows"  # subfolder of a model: the row store of its memory, created first
_POLL = 0.005  # seconds between two tries of a lock
_LARGEST_MANIFEST = 2**24  # bytes; hundreds of parts take some tens of thousands


@dataclass(frozen=True)
class Folder:
    """Content of a folder, as `read_folder` or `verify_folder` returns it.

    Attributes
    ----------
    kind : str
        Kind of the content.
    tensors : dict of str to Tensor
        On the CPU, with the dtypes they were written with.
    meta : dict
        The JSON object.
    blobs : dict of str to bytes
        Other parts.
    version : int
        The format version the folder was written with.
    generation : str
        Random name of this state of the folder; every write makes a new one.
    sizes : dict of str to int
        Bytes of every part.
    """

    kind: str
    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    blobs: dict[str, bytes]
    version: int
    generation: str
    sizes: dict[str, int]


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True)
    file: Annotated[str, Field(pattern=f"^{_NAME}$")]
    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class JournalMark(BaseModel):
    """Manifest entry of a journal: its lineage, and a version that it must have reached."""

    model_config = ConfigDict(strict=True)
    lineage: str
    version: Annotated[int, Field(ge=0)]


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)
    format: Literal["nearwise folder"]
    kind: str
    version: Annotated[int, Field(ge=1)]
    generation: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    files: dict[str, _Entry]
    journal: JournalMark | None = None


def write_folder(
    path: str | os.PathLike[str],
    *,
    kind: str,
    format_version: int,
    tensors: Mapping[str, Tensor | np.ndarray],
    meta: Mapping[str, Any],
    blobs: Mapping[str, bytes] | None = None,
    check: Callable[[Folder], None] | None = None,
    replaces: str | None = None,
    locked: bool = False,
) -> str:
    """Write a folder, or replace one of the same kind, atomically.

    Parameters
    ----------
    path : path
        The folder; created if missing.
    kind : str
        Kind of the content. A folder of another kind is not overwritten.
    format_version : int
        Version of the content, at least 1; `read_folder` refuses newer versions than its own.
    tensors : mapping of str to Tensor or ndarray
        Stored as safetensors.
    meta : mapping
        Stored as JSON.
    blobs : mapping of str to bytes, optional
        Other parts, stored as they are.
    check : callable, optional
        Called with the new content, read back from disk, before it replaces the old one.
        An exception ends the write; the old content stays.
    replaces : str, optional
        Expected generation of an existing folder. Default: any.
    locked : bool, default=False
        Whether the caller holds `locked_folder` already.

    Returns
    -------
    generation : str
        Name of the new content; `read_folder` returns it too.

    Raises
    ------
    StoreError
        If `path` is a file, holds files that are not ours, was written by a newer version, or has
        another generation than `replaces`.
    OSError
        If the disk is full or read-only. The former content is unchanged.
    ValueError
        If `meta` is not JSON or a tensor has a dtype that cannot be stored.
    """
    folder = Path(path)
    contents = _encode(tensors, meta, blobs or {})
    generation = secrets.token_hex(8)
    try:
        if folder.is_file():
            raise StoreError("foreign", f"{folder} is a file. Give the name of a folder.")
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.nullcontext() if locked else locked_folder(folder):
                _refuse_foreign(folder, kind, format_version, replaces)
                mark = None if replaces is None else journal_mark(folder)
                _write_generation(folder, kind, format_version, generation, contents, mark, check)
                _remove_stale(folder)
        except BaseException:
            if is_new:
                with contextlib.suppress(OSError):  # not empty: another process writes into it
                    folder.rmdir()
            raise
    except OSError as error:
        _explain(folder, error)
    return generation


def read_folder(
    path: str | os.PathLike[str], *, kind: str, newest_version: int, oldest_version: int = 1
) -> Folder:
    """Read a folder and check every byte against its manifest.

    Parameters
    ----------
    path : path
        A folder made by `write_folder`.
    kind : str
        Expected kind of the content.
    newest_version : int
        The newest format version the caller understands.
    oldest_version : int, default=1
        The oldest.

    Returns
    -------
    folder : Folder
        Tensors, JSON and other parts.

    Raises
    ------
    StoreError
        If there is nothing at `path`, or it is foreign, torn, newer or older; `reason` says which.
    """
    folder = Path(path)
    manifest = _read_manifest(folder, kind, newest_version)
    if manifest.version < oldest_version:
        raise StoreError(
            "older",
            f"{folder} has format version {manifest.version}, which this nearwise no longer reads "
            f"(it reads {oldest_version} to {newest_version}). Make it again: nearwise fit for a "
            "model.",
        )
    while True:
        try:
            return _read_generation(folder, manifest)
        except StoreError:
            # A writer may have replaced the manifest meanwhile: read the new one.
            now = _read_manifest(folder, kind, newest_version)
            if now.generation == manifest.generation:
                raise
            manifest = now


def folder_generation(path: str | os.PathLike[str]) -> str:
    """Return the generation of a folder from its manifest; StoreError as `read_folder`."""
    return _parse_manifest(Path(path)).generation


def journal_mark(path: str | os.PathLike[str]) -> JournalMark | None:
    """Read the journal's mark in a manifest; None if there is no journal or no manifest."""
    folder = Path(path)
    return _parse_manifest(folder).journal if os.path.lexists(folder / MANIFEST) else None


def mark_journal(path: str | os.PathLike[str], mark: JournalMark | None) -> None:
    """Record in the manifest that there is a journal, or none; the caller holds the lock."""
    folder = Path(path)
    if journal_mark(folder) == mark or not os.path.lexists(folder / MANIFEST):
        return
    manifest = _parse_manifest(folder).model_copy(update={"journal": mark})
    put_whole(folder, MANIFEST, manifest.model_dump_json(indent=1).encode())


def put_whole(folder: Path, name: str, content: bytes) -> None:
    """Write a file atomically: a kill leaves the old or the new one."""
    aside = folder / f"{name.partition('.')[0]}-{secrets.token_hex(8)}.json"
    try:
        _write_file(aside, content)
        os.replace(aside, folder / name)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def folder_kind(path: str | os.PathLike[str]) -> str:
    """Return the kind of a folder's content from its manifest; StoreError as `read_folder`."""
    return _parse_manifest(Path(path)).kind


def verify_folder(path: str | os.PathLike[str]) -> Folder:
    """Check the manifest and every byte of a folder of any kind.

    Parameters
    ----------
    path : path
        A folder made by `write_folder`.

    Returns
    -------
    folder : Folder

    Raises
    ------
    StoreError
        If there is nothing at `path`, or it is foreign or torn.
    """
    return _read_generation(Path(path), _parse_manifest(Path(path)))


def check_writable(
    path: str | os.PathLike[str], *, kind: str, format_version: int, replaces: str | None = None
) -> bool:
    """Raise the errors of `write_folder` early; return whether the folder has content.

    Files left behind by a killed first write do not count as content.

    Raises
    ------
    StoreError
        If it holds another kind of thing, files that are not ours, a newer version, or another
        generation than it `replaces`.
    """
    folder = Path(path)
    if not folder.is_dir():
        return False
    _refuse_foreign(folder, kind, format_version, replaces)
    return (folder / MANIFEST).exists()


def _encode(
    tensors: Mapping[str, Tensor | np.ndarray], meta: Mapping[str, Any], blobs: Mapping[str, bytes]
) -> list[tuple[str, str, bytes]]:
    """Encode all parts as (part, file stem, bytes), before anything is written."""
    try:
        text = json.dumps(dict(meta), indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"meta cannot be written as JSON: {error}. "
            "Use str, int, float, bool, None, lists and dicts."
        ) from error
    ready = {name: _as_tensor(name, value) for name, value in tensors.items()}
    parts = [("meta", "meta", text.encode()), ("tensors", "tensors", dump_tensors(ready))]
    for i, (name, blob) in enumerate(blobs.items()):
        parts.append((f"blob:{name}", f"blob{i}", bytes(blob)))
    return parts


def _as_tensor(name: str, value: Tensor | np.ndarray) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except TypeError as error:
        raise ValueError(
            f"tensor {name!r} has dtype {getattr(value, 'dtype', type(value))}, which cannot be "
            "stored. Use numbers or bool; put text into meta."
        ) from error
    # A copy: safetensors refuses tensors that share memory.
    return tensor.detach().cpu().contiguous().clone()


def _refuse_foreign(folder: Path, kind: str, format_version: int, replaces: str | None) -> None:
    if (folder / MANIFEST).exists():
        there = _read_manifest(folder, kind, format_version)
        if replaces is not None and there.generation != replaces:
            raise StoreError(
                "changed",
                f"{folder} has been written since it was loaded, and saving now would undo that. "
                "Load it again and repeat the change, save to another folder, or pass "
                "overwrite=True to replace it all the same.",
            )
        return
    foreign = [n for n in os.listdir(folder) if n != OWN_STORE and not _OURS.fullmatch(n)]
    if foreign:
        raise StoreError(
            "foreign",
            f"{folder} holds files that are not ours ({min(foreign)!r} among {len(foreign)}) and "
            "would not be written over. Give an empty or new folder.",
        )


@contextlib.contextmanager
def locked_folder(path: str | os.PathLike[str], *, wait: float | None = None) -> Iterator[None]:
    """Lock a folder for writing, against other processes and threads.

    Parameters
    ----------
    path : path
        The folder itself is locked; readers need no lock.
    wait : float, optional
        Seconds to wait for another writer. Default: no limit.

    Raises
    ------
    BlockingIOError
        If another process is still writing after that time.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        if wait is None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        else:
            _lock_within(handle, path, wait)
        yield
    finally:
        # Closing alone would leave the lock with a child that was forked meanwhile.
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock_within(handle: int, path: str | os.PathLike[str], wait: float) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"another process is changing {os.fspath(path)}, and was not ready within "
                    f"{wait:g} s. Nothing was changed; try again when it has finished.",
                ) from None
            time.sleep(_POLL)


def _write_generation(
    folder: Path,
    kind: str,
    version: int,
    generation: str,
    contents: list[tuple[str, str, bytes]],
    mark: JournalMark | None,
    check: Callable[[Folder], None] | None,
) -> None:
    suffix = {"meta": "json", "tensors": "safetensors"}
    files, written = {}, []
    try:
        for part, stem, content in contents:
            name = f"{stem}-{generation}.{suffix.get(stem, 'bin')}"
            written.append(folder / name)
            _write_file(folder / name, content)
            digest = hashlib.sha256(content).hexdigest()
            files[part] = _Entry(file=name, size=len(content), sha256=digest)
        manifest = _Manifest(
            format=_FORMAT,
            kind=kind,
            version=version,
            generation=generation,
            files=files,
            journal=mark,
        )
        aside = folder / f"manifest-{generation}.json"
        written.append(aside)
        _write_file(aside, manifest.model_dump_json(indent=1).encode())
        sync_folder(folder)
        if check is not None:
            check(_read_generation(folder, manifest))
        os.replace(aside, folder / MANIFEST)
    except BaseException:
        # After an interrupt right behind the replacement, the new files are the current ones.
        if not _is_current(folder, generation):
            for file in written:
                with contextlib.suppress(OSError):
                    file.unlink()
        raise
    sync_folder(folder)
    sync_folder(folder.parent)


def _is_current(folder: Path, generation: str) -> bool:
    try:
        return folder_generation(folder) == generation
    except StoreError:
        return False


def _write_file(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view[: 2**26]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Ensure that file names in a folder survive a loss of power."""
    # Some file systems cannot sync a folder; its files are synced in any case.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_stale(folder: Path) -> None:
    current = {entry.file for entry in _parse_manifest(folder).files.values()}
    for name in os.listdir(folder):
        if _OURS.fullmatch(name) and name not in current:
            # Files that cannot be removed now are removed after the next write.
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _explain(folder: Path, error: OSError) -> NoReturn:
    reason = os.strerror(error.errno) if error.errno else str(error)
    raise OSError(
        error.errno,
        f"could not write to {folder}: {reason}. What was there before is unchanged. "
        "Free space, or give a folder that can be written to.",
    ) from error


def _read_manifest(folder: Path, kind: str, newest_version: int) -> _Manifest:
    manifest = _parse_manifest(folder)
    if manifest.kind != kind:
        raise StoreError(
            "foreign",
            f"{folder} holds {manifest.kind!r} and {kind!r} was expected. Check the path.",
        )
    if manifest.version > newest_version:
        raise StoreError(
            "newer",
            f"{folder} has format version {manifest.version} and this nearwise reads up to "
            f"{newest_version}. Upgrade nearwise: pip install -U nearwise.",
        )
    return manifest


def _parse_manifest(folder: Path) -> _Manifest:
    if not folder.exists():
        raise StoreError("missing", f"There is nothing at {folder}. Check the path.")
    path = folder / MANIFEST
    try:
        with opened(folder, MANIFEST) as (file, size):
            if size > _LARGEST_MANIFEST:
                raise StoreError("foreign", f"{path} has {size} bytes, too many for a manifest.")
            text = file.read(size)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            "foreign",
            f"{folder} is not a folder saved by nearwise: it has no {MANIFEST}. Check the path.",
        ) from None
    try:
        return _Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(
            "foreign",
            f"{path} was not written by nearwise or is damaged ({where or 'JSON'}: "
            f"{first['msg']}). Check the path, or restore the folder from a copy.",
        ) from None


def _read_generation(folder: Path, manifest: _Manifest) -> Folder:
    parts = {part: _read_part(folder, entry) for part, entry in manifest.files.items()}
    for needed in ("tensors", "meta"):
        if needed not in parts:
            raise _torn(folder, f"the part {needed!r} is missing from {MANIFEST}")
    try:
        tensors = load_tensors(parts.pop("tensors"))
        meta = json.loads(parts.pop("meta"))
    except (ValueError, RecursionError, SafetensorError) as error:
        raise _torn(folder, f"a part cannot be decoded ({error!r})") from error
    if not isinstance(meta, dict):
        raise _torn(folder, "its JSON part is not an object")
    blobs = {part.removeprefix("blob:"): content for part, content in parts.items()}
    sizes = {part: entry.size for part, entry in manifest.files.items()}
    return Folder(manifest.kind, tensors, meta, blobs, manifest.version, manifest.generation, sizes)


def _read_part(folder: Path, entry: _Entry) -> bytes:
    try:
        with opened(folder, entry.file) as (file, size):
            if size != entry.size:
                raise _torn(folder, f"{entry.file} has {size} bytes instead of {entry.size}")
            content = file.read(size)
    except FileNotFoundError:
        raise _torn(folder, f"{entry.file} is missing") from None
    if hashlib.sha256(content).hexdigest() != entry.sha256:
        raise _torn(folder, f"{entry.file} does not match its checksum")
    return content


def _torn(folder: Path, what: str) -> StoreError:
    return StoreError("torn", f"{folder} is torn: {what}. Restore it from a copy or save it again.")
