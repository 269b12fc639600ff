"""Durable folders: tensors, JSON and bytes that are replaced as a whole or not at all.

A write puts new files, named after their generation, beside the old ones, and replaces
``manifest.json`` last. A process killed at any moment leaves the old or the new content, never a
mixture; what a killed write left behind is removed by the next one.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

MANIFEST = "manifest.json"
_FORMAT = "nearwise folder"
# Only such names are ever written, read or removed.
_OURS = re.compile(r"(tensors|meta|blob\d+|manifest)-[0-9a-f]{16}\.(safetensors|json|bin)")

Reason = Literal["missing", "foreign", "torn", "newer"]


class StoreError(ValueError):
    """A folder cannot be read or must not be written over.

    Attributes
    ----------
    reason : {"missing", "foreign", "torn", "newer"}
        What is wrong with the folder.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Folder:
    """What `read_folder` found.

    Attributes
    ----------
    tensors : dict of str to Tensor
        On the CPU, with the dtypes they were written with.
    meta : dict
        The JSON object.
    blobs : dict of str to bytes
        Other parts.
    version : int
        The format version the folder was written with.
    """

    tensors: dict[str, Tensor]
    meta: dict[str, Any]
    blobs: dict[str, bytes]
    version: int


def write_folder(
    path: str | os.PathLike[str],
    *,
    kind: str,
    format_version: int,
    tensors: Mapping[str, Tensor | np.ndarray],
    meta: Mapping[str, Any],
    blobs: Mapping[str, bytes] | None = None,
) -> None:
    """Write a folder, or replace one of the same kind, so that a crash leaves one or the other.

    Parameters
    ----------
    path : path
        The folder; made if it is not there.
    kind : str
        What the folder holds. A folder of another kind is not written over.
    format_version : int
        Version of the content, at least 1; `read_folder` refuses what is newer than it knows.
    tensors : mapping of str to Tensor or ndarray
        Stored as safetensors.
    meta : mapping
        Stored as JSON.
    blobs : mapping of str to bytes, optional
        Other parts, stored as they are.

    Raises
    ------
    StoreError
        If `path` is a file, holds files that are not ours, or was written by a newer version.
    OSError
        If the disk is full or does not let us write. What was there before is unchanged.
    ValueError
        If `meta` is not JSON or a tensor has a dtype that cannot be stored.
    """
    folder = Path(path)
    contents = _encode(tensors, meta, blobs or {})
    generation = secrets.token_hex(8)
    try:
        if folder.is_file():
            raise StoreError("foreign", f"{folder} is a file. Give the name of a folder.")
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _refuse_foreign(folder, kind, format_version)
            _write_generation(folder, kind, format_version, generation, contents)
            _remove_stale(folder)
    except OSError as error:
        _explain(folder, error)


def read_folder(path: str | os.PathLike[str], *, kind: str, newest_version: int) -> Folder:
    """Read a folder and check every byte against its manifest.

    Parameters
    ----------
    path : path
        A folder made by `write_folder`.
    kind : str
        The kind it must have.
    newest_version : int
        The newest format version the caller understands.

    Returns
    -------
    folder : Folder
        Tensors, JSON and other parts.

    Raises
    ------
    StoreError
        If there is nothing at `path`, or it is foreign, torn or newer; `reason` says which.
    """
    folder = Path(path)
    manifest = _read_manifest(folder, kind, newest_version)
    while True:
        try:
            return _read_generation(folder, manifest)
        except StoreError:
            # A writer may have replaced the manifest we started from: follow it.
            now = _read_manifest(folder, kind, newest_version)
            if now["generation"] == manifest["generation"]:
                raise
            manifest = now


def _encode(
    tensors: Mapping[str, Tensor | np.ndarray], meta: Mapping[str, Any], blobs: Mapping[str, bytes]
) -> list[tuple[str, str, bytes]]:
    """Return (part, file stem, bytes); nothing is written before everything could be encoded."""
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


def _refuse_foreign(folder: Path, kind: str, format_version: int) -> None:
    if (folder / MANIFEST).exists():
        _read_manifest(folder, kind, format_version)
        return
    foreign = [name for name in os.listdir(folder) if not _OURS.fullmatch(name)]
    if foreign:
        raise StoreError(
            "foreign",
            f"{folder} holds files that are not ours ({min(foreign)!r} among {len(foreign)}) and "
            "would not be written over. Give an empty or new folder.",
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process write at a time."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_generation(
    folder: Path, kind: str, version: int, generation: str, contents: list[tuple[str, str, bytes]]
) -> None:
    suffix = {"meta": "json", "tensors": "safetensors"}
    files, written = {}, []
    try:
        for part, stem, content in contents:
            name = f"{stem}-{generation}.{suffix.get(stem, 'bin')}"
            written.append(folder / name)
            _write_file(folder / name, content)
            digest = hashlib.sha256(content).hexdigest()
            files[part] = {"file": name, "size": len(content), "sha256": digest}
        manifest = {
            "format": _FORMAT,
            "kind": kind,
            "version": version,
            "generation": generation,
            "files": files,
        }
        aside = folder / f"manifest-{generation}.json"
        written.append(aside)
        _write_file(aside, json.dumps(manifest, indent=1).encode())
        _sync_folder(folder)
        os.replace(aside, folder / MANIFEST)
    except BaseException:
        for file in written:
            with contextlib.suppress(OSError):
                file.unlink()
        raise
    _sync_folder(folder)
    _sync_folder(folder.parent)


def _write_file(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(handle, view[: 2**26]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    # Some file systems cannot sync a folder; the files in it are synced in any case.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_stale(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    current = {entry["file"] for entry in manifest["files"].values()}
    for name in os.listdir(folder):
        if _OURS.fullmatch(name) and name not in current:
            # What cannot be removed now is removed after the next write.
            with contextlib.suppress(OSError):
                (folder / name).unlink()


def _explain(folder: Path, error: OSError) -> NoReturn:
    reason = os.strerror(error.errno) if error.errno else str(error)
    raise OSError(
        error.errno,
        f"could not write to {folder}: {reason}. What was there before is unchanged. "
        "Free space, or give a folder that can be written to.",
    ) from error


def _read_manifest(folder: Path, kind: str, newest_version: int) -> dict[str, Any]:
    if not folder.exists():
        raise StoreError("missing", f"There is nothing at {folder}. Check the path.")
    if not (folder / MANIFEST).is_file():
        raise StoreError(
            "foreign",
            f"{folder} is not a folder saved by nearwise: it has no {MANIFEST}. Check the path.",
        )
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        found = (manifest["format"], manifest["kind"], manifest["version"], manifest["generation"])
        names = [entry["file"] for entry in manifest["files"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            "foreign",
            f"{folder / MANIFEST} was not written by nearwise or is damaged ({error!r}). "
            "Check the path, or restore the folder from a copy.",
        ) from error
    if found[0] != _FORMAT or found[1] != kind:
        raise StoreError(
            "foreign", f"{folder} holds {found[1]!r} and {kind!r} was expected. Check the path."
        )
    if not isinstance(found[2], int) or found[2] > newest_version:
        raise StoreError(
            "newer",
            f"{folder} has format version {found[2]} and this nearwise knows up to "
            f"{newest_version}. Upgrade nearwise: pip install -U nearwise.",
        )
    if not all(isinstance(name, str) and _OURS.fullmatch(name) for name in names):
        raise StoreError("foreign", f"{folder / MANIFEST} names files that nearwise never writes.")
    return dict(manifest)


def _read_generation(folder: Path, manifest: dict[str, Any]) -> Folder:
    parts = {part: _read_part(folder, entry) for part, entry in manifest["files"].items()}
    try:
        tensors = load_tensors(parts.pop("tensors"))
        meta = json.loads(parts.pop("meta"))
    except (KeyError, ValueError, SafetensorError) as error:
        raise _torn(folder, f"a part is missing or cannot be decoded ({error!r})") from error
    blobs = {part.removeprefix("blob:"): content for part, content in parts.items()}
    return Folder(tensors, meta, blobs, manifest["version"])


def _read_part(folder: Path, entry: dict[str, Any]) -> bytes:
    try:
        content = (folder / entry["file"]).read_bytes()
    except FileNotFoundError:
        raise _torn(folder, f"{entry['file']} is missing") from None
    if len(content) != entry.get("size"):
        raise _torn(
            folder, f"{entry['file']} has {len(content)} bytes instead of {entry.get('size')}"
        )
    if hashlib.sha256(content).hexdigest() != entry.get("sha256"):
        raise _torn(folder, f"{entry['file']} does not match its checksum")
    return content


def _torn(folder: Path, what: str) -> StoreError:
    return StoreError("torn", f"{folder} is torn: {what}. Restore it from a copy or save it again.")
