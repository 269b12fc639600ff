"""CIFAR-10N: the labels that people gave to the training images of CIFAR-10."""

import hashlib
import os
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nearwise.data.tables.npz import read_arrays
from nearwise_lab.data.files import DataFile, locate, warn_of_other
from nearwise_lab.data.sets import CIFAR10_CLASSES

HumanLabels = Literal["worse", "aggregate"]
_N_ROWS = 50000
_FILE = DataFile(
    "cifar10-extras/cifar10n_human.npz",
    how_to_get=(
        "It is made from data/CIFAR-10_human.pt of github.com/UCSC-REAL/cifar-10-100n: "
        "numpy.savez with the arrays worse_label and aggre_label, in that order of rows."
    ),
)
# array in the file, and the sha256 of its values, a byte each
_KNOWN = {
    "worse": ("worse_label", "11a306ed336e3bc81aaac36322ddf12de379d0df1883aa43e10ba562a98f6b2a"),
    "aggregate": (
        "aggre_label",
        "2bd5e02e39c9c79772cf4c794f7b74630ac1aaeeac4b807a63c11e9a375f8404",
    ),
}


def load_human_labels(
    kind: HumanLabels, *, data_root: str | os.PathLike[str] | None = None
) -> NDArray[np.str_]:
    """Load the human labels of CIFAR-10's training images (CIFAR-10N).

    Licence: CC BY-NC 4.0, for non-commercial use with attribution.

    Parameters
    ----------
    kind : {"worse", "aggregate"}
        Of three people's labels for an image: "worse" is a wrong one where any is wrong (40.2 % of
        the rows are), "aggregate" the majority's (9.0 % are wrong).
    data_root : path, optional
        Folder searched first; default: the environment variable NEARWISE_DATA, then the cache.

    Returns
    -------
    labels : text ndarray of shape (50000,)
        Class names like those of ``load_dataset("cifar10").y``, for its first 50,000 rows in their
        order; a warning where they are not the published ones.

    Raises
    ------
    ValueError, FileNotFoundError
        If `kind` is unknown, or the file does not hold 50,000 class numbers; if it is in none of
        the places (it is not offered for download).

    References
    ----------
    Wei et al., "Learning with Noisy Labels Revisited: A Study Using Real-World Human Annotations",
    ICLR 2022.
    """
    if kind not in _KNOWN:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(_KNOWN)}.")
    path = locate(_FILE, data_root=data_root)
    name, sha256 = _KNOWN[kind]
    arrays = read_arrays(path)
    if name not in arrays:
        raise ValueError(f"{path} lacks the array {name!r}; it holds {sorted(arrays)}.")
    codes = arrays[name]
    if codes.shape != (_N_ROWS,) or codes.dtype.kind not in "iu":
        raise ValueError(
            f"{path}: {name} has shape {codes.shape} and type {codes.dtype}; expected {_N_ROWS:,} "
            "class numbers. Replace the file."
        )
    if codes.min() < 0 or codes.max() >= len(CIFAR10_CLASSES):
        raise ValueError(
            f"{path}: {name} runs from {codes.min()} to {codes.max()}; class numbers are 0 to "
            f"{len(CIFAR10_CLASSES) - 1}. Replace the file."
        )
    if hashlib.sha256(codes.astype(np.uint8).data).hexdigest() != sha256:
        what = f"has {kind} labels that differ from the official ones (sha256)"
        warn_of_other("CIFAR-10N", what, (path,))
    return np.array(CIFAR10_CLASSES)[codes.astype(np.int64)]
