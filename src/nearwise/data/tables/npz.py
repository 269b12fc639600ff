"""Arrays in npz files: reading with size checks, writing, conversion from and to tables."""

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nearwise.data.tables.unpack import ZIP_ERRORS, ZIP_MAGIC, ExpansionError, check_expansion

FEATURE_NAMES = ("X", "x", "features", "embeddings", "embedding", "data")
Arrays = dict[str, NDArray[np.generic]]


def read_arrays(source: str | os.PathLike[str] | bytes, where: str = "") -> Arrays:
    """Read all arrays of an npz file, given as a path or as bytes (named `where`).

    ValueError if the file is not an npz, holds no array, holds Python objects (never loaded),
    structured or complex arrays, or arrays with a larger declared size than the file.
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
    """Check the headers of all arrays; ValueError if one declares more than its file holds."""
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
    else:  # 3.0 differs only in field names; structured arrays are rejected
        shape, _, dtype = np.lib.format.read_array_header_2_0(member)
    return shape, dtype


def write_arrays(arrays: Arrays) -> bytes:
    """Return the bytes of an npz file with these arrays, with any names.

    `numpy.savez` cannot store an array named "file"; a column may have this name.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(values), allow_pickle=False)
    return stream.getvalue()


def to_table(arrays: Arrays, where: str) -> pd.DataFrame:
    """Convert a feature array to columns f0, f1, ..., and other arrays of its length to columns."""
    matrix = next((n for n in FEATURE_NAMES if n in arrays and arrays[n].ndim == 2), None)
    n_rows = len(arrays[matrix]) if matrix else len(np.atleast_1d(next(iter(arrays.values()))))
    columns: Arrays = {}
    if matrix:
        X = arrays[matrix]
        columns |= {f"f{i}": X[:, i] for i in range(X.shape[1])}
    columns |= {n: a for n, a in arrays.items() if n != matrix and a.shape == (n_rows,)}
    left = {name: a.shape for name, a in arrays.items() if name != matrix and name not in columns}
    if not columns or left:
        raise ValueError(
            f"{where} is not a table: it holds { ({n: a.shape for n, a in arrays.items()}) }. "
            f"Store one two-dimensional feature array ({', '.join(FEATURE_NAMES)}) and "
            "one-dimensional arrays of the same length."
        )
    return pd.DataFrame({name: _as_column(values) for name, values in columns.items()})


def _as_column(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Decode bytes, and convert numbers wider than 64 bits to float64."""
    if values.dtype.kind == "S":
        return np.asarray([bytes(value).decode() for value in values])
    return (
        values.astype(np.float64)
        if values.dtype.itemsize > 8 and values.dtype.kind == "f"
        else values
    )


def of_table(table: pd.DataFrame) -> Arrays:
    """Convert columns f0, f1, ... of one numeric type to one array X, others to one array each."""
    packed: list[str] = []
    while f"f{len(packed)}" in table.columns and "X" not in table.columns:
        packed.append(f"f{len(packed)}")
    types = set(table[packed].dtypes)
    arrays: Arrays = {}
    # one array for embeddings; with several types each column is an array
    if len(types) == 1 and isinstance(kind := types.pop(), np.dtype) and kind.kind in "fiu":
        arrays["X"] = table[packed].to_numpy()
    else:
        packed = []
    for name in table.columns:
        if name not in packed:
            arrays[name] = _plain(table[name])
    return arrays


def _plain(column: "pd.Series[Any]") -> NDArray[np.generic]:
    """Return a column as numbers, truth values or fixed-width text."""
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        numeric = column.astype(float) if column.isna().any() else column
        return np.asarray(numeric.to_numpy())
    if column.isna().any():
        raise ValueError(
            f"Column {column.name!r} has missing text, which npz cannot hold. Write Parquet or CSV."
        )
    return column.astype(str).to_numpy(dtype=str)
