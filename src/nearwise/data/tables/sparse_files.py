"""Sparse rows in files: svmlight (libsvm), and npz as `scipy.sparse.save_npz` writes it."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from nearwise.data.tables.npz import read_arrays
from nearwise.data.tables.unpack import (
    COMPRESSED_SUFFIXES,
    ZIP_ERRORS,
    explained,
    unpack,
)

SUFFIXES = (".svmlight", ".libsvm", ".svm")
_MOST_COLUMNS = 1_000_000  # their map to 128 components takes 512 MB
_FORMATS = ("csr", "csc", "coo")
_OF_SCIPY = {"format.npy", "shape.npy", "data.npy"}


def is_sparse_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds sparse rows: by its suffix, or by the arrays in an npz."""
    path = Path(path)
    bare = path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path
    if path.suffix.lower() != ".npz" or not path.is_file():
        return bare.suffix.lower() in SUFFIXES
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) >= _OF_SCIPY
    except ZIP_ERRORS:
        return False


def read_sparse(
    path: str | os.PathLike[str],
) -> tuple[sparse.csr_array, NDArray[np.generic] | None]:
    """Read sparse rows and their labels; an npz has none.

    The index of a value in a svmlight file is the number of its column: a file that counts from 1
    has an empty column 0. Compressed files are unpacked.

    Returns
    -------
    X : csr_array of shape (n_rows, n_columns), float64
    y : ndarray of shape (n_rows,), or None
        int64 if all labels are whole numbers, else float64.

    Raises
    ------
    ValueError
        If the file cannot be read, has no rows, or has more than 1,000,000 columns.
    """
    where = str(path)
    content = Path(path).read_bytes()
    if Path(path).suffix.lower() == ".npz":
        read_arrays(content, where)  # checks sizes
        with explained(where, "a sparse matrix", "Write it with scipy.sparse.save_npz, as csr."):
            found = sparse.load_npz(io.BytesIO(content))
            if found.format not in _FORMATS:
                raise ValueError(f"its format is {found.format}")
            if found.format != "coo":  # which checks its indices itself
                found.check_format(full_check=True)
        return _checked(found, where), None
    lines = (
        "Each line is: label index:value index:value, with one number as label and rising indices."
    )
    with explained(where, "svmlight", lines):
        found, y = load_svmlight_file(io.BytesIO(unpack(content, where)), zero_based=True)
    whole = np.isfinite(y).all() and (np.abs(y) < 2**53).all() and (y == np.rint(y)).all()
    return _checked(found, where), y.astype(np.int64) if whole else y


def _checked(found: sparse.spmatrix, where: str) -> sparse.csr_array:
    n_rows, n_columns = found.shape
    if not n_rows:
        raise ValueError(f"{where} has no rows. Give at least one.")
    if n_columns > _MOST_COLUMNS:
        raise ValueError(
            f"{where} has {n_columns:,} columns, more than {_MOST_COLUMNS:,}. Leave rare ones out, "
            "or hash their names to fewer numbers."
        )
    return sparse.csr_array(found, dtype=np.float64)
