"""Features on disk in pieces, found again by the content they were made from."""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nearwise.memory.store import StoreError, read_folder, write_folder
from nearwise.probes.encoder import digest_of, fingerprint_of

KIND = "nearwise-features"
FORMAT_VERSION = 1
_X = "features"


class FeatureShards:
    """The pieces of one extraction.

    Parameters
    ----------
    folder : Path or None
        Where they lie; None keeps nothing.

    Attributes
    ----------
    computed : int
        Pieces that were computed rather than read.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.computed = 0

    @classmethod
    def of(cls, cache: str | os.PathLike[str] | None, named: dict[str, Any]) -> Self:
        """Pieces in the folder of `cache` that is named by a hash of all that decides them.

        Parameters
        ----------
        cache : path or None
        named : dict
            encoder, images, rows, settings.
        """
        if cache is None:
            return cls(None)
        facts = {
            "encoder": fingerprint_of(named["encoder"], named["images"]),
            "images": digest_of(named["images"]),
            "rows": digest_of(named["rows"]),
            "settings": named["settings"],
            "version": FORMAT_VERSION,
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return cls(Path(cache) / digest[:32])

    def stored(self, name: str, compute: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Give a piece, from its folder or computed and written there.

        Warns
        -----
        UserWarning
            If a stored piece is damaged: it is computed and written again. If it cannot be
            written: it is returned all the same.
        """
        if self.folder is None:
            self.computed += 1
            return compute()
        path = self.folder / name
        try:
            found = read_folder(path, kind=KIND, newest_version=FORMAT_VERSION)
            return np.asarray(found.tensors[_X].numpy())
        except StoreError as error:
            if error.reason != "missing":
                warnings.warn(
                    f"Stored features cannot be used and are computed again: {error}",
                    UserWarning,
                    stacklevel=3,
                )
                shutil.rmtree(path, ignore_errors=True)  # named by a hash of ours: nobody else's
        piece = compute()
        self.computed += 1
        try:
            write_folder(
                path, kind=KIND, format_version=FORMAT_VERSION, tensors={_X: piece}, meta={}
            )
        except OSError as error:
            warnings.warn(f"Features are not kept: {error}", UserWarning, stacklevel=3)
        return piece
