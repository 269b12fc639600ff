"""Find a registered file: data root, user's cache, its address; warn of unofficial content."""

import hashlib
import logging
import os
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO

from nearwise.safe_files import replacing
from nearwise.warn import warn_user

ENVIRONMENT_VARIABLE = "NEARWISE_DATA"
UCI_BASE = "https://archive.ics.uci.edu/ml/machine-learning-databases"
TIMEOUT_SECONDS = 60
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)


class ChecksumError(OSError):
    """A downloaded file is not the published one; nothing was kept."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set and how to recognise it.

    `path` is below the data root and below the cache, with forward slashes; `remote` below
    `UCI_BASE` or a whole address, None where it cannot be downloaded: `how_to_get` then says what
    to do. `sha256` are the digests accepted of a download; none if its reader checks the content.
    """

    path: str
    remote: str | None = None
    sha256: tuple[str, ...] = ()
    how_to_get: str = ""

    @property
    def url(self) -> str | None:
        """The official address, or None where there is none."""
        if self.remote is None or "://" in self.remote:
            return self.remote
        return f"{UCI_BASE}/{self.remote}"


def cache_dir() -> Path:
    """Return the folder of downloaded data; it may not exist yet.

    `$XDG_CACHE_HOME/nearwise/data` where that variable holds an absolute path; otherwise
    `~/.cache/nearwise/data` (`~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows).
    """
    variable = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(variable):
        base = Path(variable)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "nearwise" / "data"


def locate(
    file: DataFile, *, data_root: str | os.PathLike[str] | None = None, download: bool = True
) -> Path:
    """Return an existing path of `file`, downloading it into the cache if need be and allowed.

    `data_root` is searched first (default: the environment variable NEARWISE_DATA). Raises
    NotADirectoryError if it is given and is no folder, FileNotFoundError if the file is in none of
    the three places (the message names each and what to do), ChecksumError if the download differs
    from the published file.
    """
    tried = []
    root, where = find_root(data_root)
    for base, label in ((root, where), (cache_dir(), "cache")):
        if base is None:
            tried.append(f"{label}: not set")
            continue
        candidate = base / file.path
        if candidate.is_file():
            return candidate
        tried.append(f"{label}: no file {candidate}")
    if file.url is None:
        tried.append("download: not offered for this file")
    elif not download:
        tried.append(f"download: switched off (would be {file.url})")
    else:
        try:
            return fetch(file.url, cache_dir() / file.path, file.sha256)
        except ChecksumError:
            raise
        except OSError as error:
            tried.append(f"download: {error}")
    places = "\n".join(f"  {i}. {source}" for i, source in enumerate(tried, 1))
    how = file.how_to_get or f"Get {file.url} on a machine with network access."
    raise FileNotFoundError(
        f"{file.path} was found in none of three places:\n{places}\n{how} Put the file at "
        f"FOLDER/{file.path} and pass data_root=FOLDER or set {ENVIRONMENT_VARIABLE}=FOLDER."
    )


def find_root(data_root: str | os.PathLike[str] | None) -> tuple[Path | None, str]:
    """Return the data root (None if none is set) and its name in messages.

    Raises NotADirectoryError if `data_root` is given and is not a folder.
    """
    if data_root is not None:
        root = Path(data_root).expanduser()
        if not root.is_dir():
            raise NotADirectoryError(
                f"data_root={str(data_root)!r} is not a folder. Pass the folder that holds the "
                "data sets, or leave it out to use NEARWISE_DATA, the cache or a download."
            )
        return root, "data_root"
    value = os.environ.get(ENVIRONMENT_VARIABLE)
    return (Path(value).expanduser() if value else None), f"data root ({ENVIRONMENT_VARIABLE})"


def fetch(url: str, target: Path, sha256: tuple[str, ...]) -> Path:
    """Download `url` to `target`; the file appears whole and checked, or not at all.

    Raises ChecksumError if the digest of the bytes received is not among `sha256` (an empty tuple
    accepts any), OSError if the address cannot be read, ends early, or the file cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make the folder {target.parent}: {error}") from error
    _log.info("downloading %s to %s", url, target)
    try:
        with replacing(target) as file:
            digest = _copy(url, file)
            if sha256 and digest not in sha256:
                raise ChecksumError(
                    f"{url} has sha256 {digest}, expected {' or '.join(sha256)}. The file was "
                    "changed at its source or on the way; nothing was kept. Try again, or put a "
                    "copy you trust under the data root."
                )
    except ChecksumError:
        raise
    except (OSError, HTTPException) as error:
        raise OSError(f"cannot copy {url} to {target.parent}: {error}") from error
    return target


def _copy(url: str, file: BinaryIO) -> str:
    """Copy `url` into a file and return the sha256 of the content."""
    digest = hashlib.sha256()
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as reply:
        while chunk := reply.read(_CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
        # http.client ends a cut connection like a finished one
        announced = reply.headers.get("Content-Length")
        if announced is not None and file.tell() != int(announced):
            raise OSError(f"the connection ended after {file.tell():,} of {announced} bytes")
    return digest.hexdigest()


def warn_if_other_size(name: str, seen: int, official: int, paths: Sequence[Path]) -> None:
    """Warn if a registered set has a number of rows other than the official one."""
    if seen != official:
        warn_of_other(name, f"has {seen:,} rows, the official files give {official:,}", paths)


def warn_of_other(name: str, what: str, paths: Sequence[Path]) -> None:
    """Warn that a registered set is not the official one."""
    warn_user(
        f"Data set {name!r} {what}: {', '.join(map(str, paths))}. "
        "Its results are not comparable with published ones."
    )
