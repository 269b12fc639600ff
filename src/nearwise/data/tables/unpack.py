"""Compressed files and non-tables: detection and bounded unpacking."""

import bz2
import gzip
import io
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, cast

import pyarrow as pa

Note = Callable[[str], None]

# Real tables unpack to 2 to 100 times their size; malicious ones to 230 times and far beyond.
MAX_RATIO = 200
FREE_BYTES = 50_000_000  # always allowed
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")
ZIP_MAGIC = b"PK\x03\x04"
# errors for damaged, truncated, encrypted or unusually packed bytes
ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError, struct.error,
    ValueError, IndexError,
)  # fmt: skip
_CHUNK = 1 << 20
_LAYERS = 3  # most nested archives
_OPENERS: dict[bytes, Callable[[BinaryIO], BinaryIO]] = {
    b"\x1f\x8b": lambda raw: cast(BinaryIO, gzip.GzipFile(fileobj=raw)),
    b"BZh": lambda raw: cast(BinaryIO, bz2.BZ2File(raw)),
    b"\xfd7zXZ\x00": lambda raw: cast(BinaryIO, lzma.LZMAFile(raw)),  # noqa: SIM115 - `_read_bounded` closes it
    b"\x28\xb5\x2f\xfd": lambda raw: cast(BinaryIO, pa.input_stream(raw, compression="zstd")),
}
_NO_TABLES = (
    (rb"%PDF", "a PDF"),
    (rb"SQLite format 3", "an SQLite database"),
    (rb"\x89HDF", "an HDF5 file"),
    (rb"\x93NUMPY", "a single array (.npy; numpy.savez writes arrays with names into an npz)"),
    (rb"ARROW1\0", "an Arrow (Feather) file"),
    (rb"\xd0\xcf\x11\xe0", "an old Excel file (.xls)"),
    (rb"\x89PNG|\xff\xd8\xff|GIF8", "an image"),
    (rb"\x80[\x02-\x05]", "a Python pickle, which is never loaded"),
    (rb"version https://git-lfs", "a Git LFS pointer instead of the file itself (git lfs pull)"),
    (rb"(?i)\s*(<!doctype html|<html)", "an HTML page, perhaps of a download that failed"),
    (rb"\s*<\?xml", "an XML file"),
)


class ExpansionError(ValueError):
    """A file that declares or unpacks to far more than its size allows."""


@contextmanager
def explained(where: str, form: str, advice: str) -> Iterator[None]:
    """Raise every parser error for damaged bytes as a ValueError with advice."""
    try:
        yield
    except (MemoryError, ExpansionError):
        raise
    except Exception as error:  # a damaged part fails anywhere in pyarrow, pandas or openpyxl
        reason = str(error).rstrip(".")
        raise ValueError(f"{where} cannot be read as {form}: {reason}. {advice}") from error


def check_expansion(n_bytes: int, n_stored: int, where: str, *, ratio: int = MAX_RATIO) -> None:
    """Raise ExpansionError for content far larger than its file.

    `ExpansionError` if `n_bytes` (declared, or counted so far) exceed both `FREE_BYTES` and `ratio`
    times the `n_stored` bytes of the file.
    """
    if _is_out_of_proportion(n_bytes, n_stored, ratio):
        raise ExpansionError(
            f"{where} unpacks to {n_bytes / 1e6:,.0f} MB or more from {n_stored / 1e6:,.3f} MB, "
            f"over {ratio} times its size: damaged, or made to exhaust the memory. If it "
            "is a table, unpack it, or store it with smaller types."
        )


def _is_out_of_proportion(n_bytes: int, n_stored: int, ratio: int = MAX_RATIO) -> bool:
    return n_bytes > max(FREE_BYTES, ratio * n_stored)


def unpack(content: bytes, where: str) -> bytes:
    """Unpack gzip, bzip2, xz, zstd or a zip of one file; return other content unchanged.

    ValueError if the content is damaged, a zip holds several files, or it expands too much (see
    `check_expansion`).
    """
    for _ in range(_LAYERS):
        opener = next((o for magic, o in _OPENERS.items() if content.startswith(magic)), None)
        if opener is None and (opener := _only_member(content, where)) is None:
            return content
        content = _read_bounded(opener, content, where)
    return content


def _only_member(content: bytes, where: str) -> Callable[[BinaryIO], BinaryIO] | None:
    """Return an opener of the only file of a zip; None for no zip, an npz or a workbook."""
    names = zip_names(content) if content.startswith(ZIP_MAGIC) else []
    if not names or is_workbook(names) or any(name.endswith(".npy") for name in names):
        return None
    if len(names) > 1:
        raise ValueError(
            f"{where} is a zip archive of {len(names)} files ({', '.join(names[:5])}). Unpack it "
            "and pass the table in it."
        )
    return lambda raw: cast(BinaryIO, zipfile.ZipFile(raw).open(names[0]))


def zip_names(content: bytes) -> list[str]:
    """Return the names of the files in a zip archive; none if it cannot be read."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [name for name in archive.namelist() if name and not name.endswith("/")]
    except ZIP_ERRORS:
        return []


def is_workbook(names: Sequence[str]) -> bool:
    """Return whether a zip archive with these files is an Excel workbook."""
    return "xl/workbook.xml" in names


def _read_bounded(opener: Callable[[BinaryIO], BinaryIO], content: bytes, where: str) -> bytes:
    raw, parts, taken = io.BytesIO(content), bytearray(), 0
    try:
        with opener(raw) as stream:
            # relative to the bytes read so far, to stop early
            while not _is_out_of_proportion(len(parts), taken) and (chunk := stream.read(_CHUNK)):
                parts += chunk
                taken = raw.tell()
    except ZIP_ERRORS as error:
        raise ValueError(
            f"{where} is compressed and cannot be unpacked: {error}. It is damaged or cut short; "
            "fetch or write it again."
        ) from error
    check_expansion(len(parts), taken, where)
    return bytes(parts)


def refuse_other_kinds(content: bytes, where: str) -> None:
    """Raise ValueError, with the likely kind of file, if the content is not a table."""
    start = content[:512].removeprefix(b"\xef\xbb\xbf")
    for pattern, what in _NO_TABLES:
        if re.match(pattern, start):
            raise ValueError(
                f"{where} looks like {what}. Pass a table: CSV, Parquet, Excel (.xlsx), JSON "
                "or npz."
            )
    if content[257:262] == b"ustar":
        raise ValueError(f"{where} is a tar archive. Unpack it and pass the table in it.")
