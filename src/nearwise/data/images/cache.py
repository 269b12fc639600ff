"""Decoded images kept in the user's cache, so that a second load takes no decoding."""

import hashlib
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nearwise.data.files import cache_dir
from nearwise.data.images.decode import Images

Rows = tuple[Images, NDArray[np.int64]]
_VERSION = b"1"  # another decoding of the same files needs another number
_log = logging.getLogger(__name__)


def cached(name: str, files: Sequence[Path], make: Callable[[], Rows]) -> Rows:
    """Return what `make` gives, from the cache where these very files were decoded before.

    The key is the sha256 of the files' contents. A copy that is damaged is made anew; one that
    cannot be written is done without.

    Parameters
    ----------
    name : str
        Start of the copy's name.
    files : sequence of Path
        What `make` reads.
    make : callable
        Gives images of shape (n_rows, height, width, channels) and class numbers.
    """
    path = cached_path(name, files)
    rows = _read(path)
    if rows is None:
        rows = make()
        _write(path, rows)
    return rows


def cached_path(name: str, files: Sequence[Path]) -> Path:
    """Return where the decoded copy of these files lies, or would lie."""
    key = hashlib.sha256(_VERSION)
    for file in files:
        with file.open("rb") as stream:
            key.update(hashlib.file_digest(stream, "sha256").digest())
    return cache_dir() / "decoded" / f"{name}-{key.hexdigest()[:20]}.npz"


def _read(path: Path) -> Rows | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            X, codes = stored["X"], stored["codes"]
    except FileNotFoundError:
        return None
    # the archive's own check sums tell a damaged copy
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        _log.warning("%s is damaged (%s); decoding again", path, error)
        return None
    return X, codes


def _write(path: Path, rows: Rows) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as stream:
                np.savez(stream, X=rows[0], codes=rows[1])
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("decoded images are not kept: %s", error)
