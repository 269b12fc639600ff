"""StoredFeatures: features that were made elsewhere, as one more encoder to probe."""

import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from nearwise.probes.encoders import digest_of
from nearwise.probes.feature_set import FeatureSet

_LABELS = ("y", "labels")
_ARRAYS = (("X",), ("features",), ("embeddings",), ("train", "test"), ("X_train", "X_test"))


class StoredFeatures:
    """One vector for each row of a data set.

    Parameters
    ----------
    X : array of shape (n, D)
        In the order of the data set, its training part first.
    y : array of shape (n,), optional
        Labels that came with the features, to check the order of the rows by.
    """

    def __init__(self, X: ArrayLike, y: ArrayLike | None = None) -> None:
        self.X = np.asarray(X)
        self.y = None if y is None else np.asarray(y)
        if self.X.ndim != 2 or not self.X.size:
            raise ValueError(
                f"Stored features have shape {self.X.shape}. Pass one vector per row, (n, D)."
            )
        if self.X.dtype.kind not in "fiub":
            raise ValueError(f"Stored features are {self.X.dtype}, no numbers. Pass floats.")

    def fingerprint(self) -> str:
        """Hash of the features."""
        return f"stored:{digest_of(torch.from_numpy(np.ascontiguousarray(self.X)))}"

    def take(self, rows: Any, labels: NDArray[Any]) -> FeatureSet:
        """Features of some rows of the data set, with their labels.

        Raises
        ------
        ValueError
            If there are fewer features than rows.
        """
        numbers = np.asarray(rows, dtype=np.int64)
        if len(numbers) and numbers.max() >= len(self.X):
            raise ValueError(
                f"There are {len(self.X)} rows of stored features, and the data set has row "
                f"{int(numbers.max())}. Give features of the same rows in the same order."
            )
        if self.y is not None:
            if self.y.shape != (len(self.X),):
                raise ValueError(
                    f"The features come with labels of shape {self.y.shape} for {len(self.X)} "
                    "rows. Give one per row, or leave them out."
                )
            own = self.y[numbers]
            other = np.flatnonzero(own.astype(str) != labels.astype(str))
            if len(other):
                row = other[0]
                raise ValueError(
                    f"{len(other)} of {len(labels)} labels that came with the features are not "
                    f"those of the data set, first that of row {numbers[row]}: {own[row]!s} and "
                    f"{labels[row]!s}. Give features in the order of the data set; leave y out if "
                    "it names classes otherwise."
                )
        meta = {"pool": "stored", "context": "full", "tokens": 1, "parameters": None}
        return FeatureSet(self.X[numbers].astype(np.float32), labels, numbers, meta)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> "StoredFeatures":
        """Read features from a file.

        Parameters
        ----------
        path : path
            npy of shape (n, D); or npz with an array "X" (or "features", "embeddings") and perhaps
            the labels "y" (or "labels") to check the order by; or npz with
            "train" and "test" (or "X_train" and "X_test"), which are put after one another.

        Raises
        ------
        ValueError
            If the file holds none of these.
        """
        file = Path(path)
        try:
            loaded = np.load(file, allow_pickle=False)
        except (ValueError, EOFError, BadZipFile) as error:
            raise ValueError(
                f"{file} is not an npy or npz file of numbers, or was cut short. Write it with "
                "numpy.save or numpy.savez."
            ) from error
        if isinstance(loaded, np.ndarray):
            return cls(loaded)
        with loaded:
            y = next((loaded[name] for name in _LABELS if name in loaded), None)
            for names in _ARRAYS:
                if all(name in loaded for name in names):
                    X = np.concatenate([loaded[name] for name in names])
                    return cls(X, y if len(names) == 1 else None)
            raise ValueError(
                f"{file} holds {', '.join(loaded.files)}. Name the array of all rows X, or those "
                "of the two parts train and test."
            )
