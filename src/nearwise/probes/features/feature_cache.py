"""Features on disk in pieces, found again by the content they were made from."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nearwise.memory.computed import read_or_compute
from nearwise.probes.features.encoder import digest_of, fingerprint_of

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

        def counted() -> dict[str, NDArray[Any]]:
            self.computed += 1
            return {_X: compute()}

        path = self.folder / name
        found = read_or_compute(path, counted, kind=KIND, version=FORMAT_VERSION, what="features")
        return np.asarray(found[_X].numpy())
