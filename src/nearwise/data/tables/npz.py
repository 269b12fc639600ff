"""Arrays in npz files: read with checks of their sizes, and written."""

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from nearwise.data.tables.unpack import ZIP_ERRORS, ZIP_MAGIC, ExpansionError, check_expansion

FEATURE_NAMES = ("X", "x", "features", "embeddings", "embedding", "data")
Arrays = dict[str, NDArray[np.generic]]


def read_arrays(source: str | os.PathLike[str] | bytes, where: str = "") -> Arrays:
    """Read all arrays of an npz file, given as a path or as its bytes (which `where` names).

    ValueError if the file is not an npz, holds no array, holds Python objects (those are never
    loaded), structured or complex arrays, or arrays that declare more than the file holds.
    """
    where = where or ("The content" if isinstance(source, bytes) else str(source))
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
        if not content.startswith(ZIP_MAGIC):
            raise ValueError("it is not a zip archive of arrays")
        _check_sizes(content, where)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            arrays: Arrays = {name: archive[name] for name in archive.files}
    except ExpansionError:
        raise
    except (SyntaxError, *ZIP_ERRORS) as error:
        raise ValueError(
            f"{where} cannot be read as npz: {error}. Write it with numpy.savez, "
            "numbers or fixed-width text only."
        ) from error
    if not arrays:
        raise ValueError(f"{where} holds no arrays. Write them with numpy.savez.")
    return arrays


def _check_sizes(content: bytes, where: str) -> None:
    """Read the headers of all arrays and refuse what declares more than there is."""
    n_bytes = 0
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename:
                raise ValueError(f"{name!r} in it is not an array (.npy)")
            with archive.open(info) as member:
                shape, dtype = _read_header(member)
                held = info.file_size - member.tell()
            if dtype.hasobject:
                raise ValueError(f"{name!r} holds Python objects, which are never loaded")
            if dtype.kind in "cV":
                raise ValueError(f"{name!r} holds {dtype} values, not one number or text per entry")
            declared = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or declared != held:
                raise ValueError(f"{name!r} declares {shape} of {dtype} and holds {held} bytes")
            n_bytes += declared
    check_expansion(n_bytes, len(content), where)


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    else:  # 3.0 differs in the names of fields, which are refused
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    return shape, dtype


def write_arrays(arrays: Arrays) -> bytes:
    """Return the bytes of an npz file with these arrays, whatever their names.

    `numpy.savez` cannot store an array called "file"; a column may be called so.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
    return stream.getvalue()
