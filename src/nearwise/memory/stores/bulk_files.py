"""Files of a bulk: their sizes and checksums, and the ids of its rows."""

import hashlib
import io
import os
from pathlib import Path

import numpy as np

from nearwise.memory.gate import StoreError, check_tree, opened

IDS = "ids.npy"
Files = dict[str, tuple[int, str]]  # bytes and SHA-256 of each, by name within the bulk
_HEADER = 128  # bytes before the ids, for any number of ids
_AT_ONCE = 2**20  # ids that are compared at once
_BLOCK = 2**20  # bytes that are read at once


def noted(folder: Path) -> Files:
    """Return the size and checksum of every file."""
    return {name: (size, _digest(folder, name)) for name, size in check_tree(folder).items()}


def check_sizes(folder: Path, files: Files | None) -> None:
    """Check type and size of every file without reading it.

    Parameters
    ----------
    folder : path
    files : Files or None
        Recorded sizes; None for stores of an older version: then only the types are checked.

    Raises
    ------
    StoreError
        "foreign" for a link, a pipe or a device; "torn" if a file is missing, was added, or has
        another size.
    """
    try:
        sizes = check_tree(folder)
    except FileNotFoundError as error:
        raise torn(folder, f"{error.filename} is missing") from error
    if files is None:
        return
    for name in sorted({*sizes} ^ {*files}):
        raise torn(folder, f"{name} {'is missing' if name in files else 'was not written with it'}")
    for name, (size, _) in files.items():
        if sizes[name] != size:
            raise torn(folder, f"{name} has {sizes[name]} bytes instead of {size}")


def check_digests(folder: Path, files: Files) -> None:
    """Compare the checksums of files with the recorded ones; StoreError "torn"."""
    for name, (_, digest) in files.items():
        if _digest(folder, name) != digest:
            raise torn(folder, f"{name} does not match its checksum")


def read_ids(folder: Path, files: Files | None) -> np.ndarray:
    """Map the ids of all rows into memory, int64 (n_rows,), read-only.

    StoreError "torn" unless they increase strictly and match their checksum.
    """
    if files is not None and files.get(IDS, (0, ""))[1] != _digest(folder, IDS):
        raise torn(folder, f"{IDS} does not match its checksum")
    with opened(folder, IDS) as (file, size):
        n_rows, rest = divmod(size - _HEADER, np.dtype(np.int64).itemsize)
        if rest or n_rows < 0 or file.read(_HEADER) != _header(n_rows):
            raise torn(folder, f"{IDS} is no list of ids")
        if not n_rows:
            return np.empty(0, np.int64)
        ids = np.memmap(file, np.dtype("<i8"), "r", _HEADER, (n_rows,))
    for start in range(0, n_rows, _AT_ONCE):
        some = ids[max(0, start - 1) : start + _AT_ONCE]
        if some[0] < 0 or (np.diff(some) <= 0).any():
            raise torn(folder, f"{IDS} is not in the order of the ids")
    return ids


def _header(n_rows: int) -> bytes:
    """Return the bytes that NumPy writes before this many ids."""
    header = io.BytesIO()
    described = {"descr": "<i8", "fortran_order": False, "shape": (n_rows,)}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _digest(folder: Path, name: str) -> str:
    digest = hashlib.sha256()
    with opened(folder, name) as (file, _):
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def torn(folder: Path, what: str) -> StoreError:
    """Return the StoreError of a damaged bulk."""
    return StoreError(
        "torn", f"The rows in {os.fspath(folder)} are torn: {what}. Restore the store from a copy."
    )
