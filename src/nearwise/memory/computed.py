"""Disk cache of computed arrays."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nearwise.memory.gate import taken_apart
from nearwise.memory.store import MANIFEST, StoreError, read_folder, write_folder
from nearwise.warn import warn_user


def read_or_compute(
    path: Path,
    compute: Callable[[], Mapping[str, Tensor | np.ndarray]],
    *,
    kind: str,
    version: int,
    what: str,
) -> dict[str, Tensor]:
    """Read named arrays from a folder, or compute them and write the folder.

    The name of `path` is a hash of every input of the arrays. A damaged folder is removed and
    written again, with a UserWarning. If the folder cannot be written, a UserWarning is issued and
    the arrays are still returned. `what` is the name of the arrays in messages.
    """
    try:
        found = read_folder(path, kind=kind, newest_version=version)
        with taken_apart(path):  # the file orders tensors in its own way
            return {name: found.tensors[name] for name in found.meta.get("names", found.tensors)}
    except StoreError as error:
        # without a manifest, another process is writing it, or was killed in the middle
        if error.reason != "missing" and (path / MANIFEST).exists():
            warn_user(f"Stored {what} cannot be used and are computed again: {error}")
            shutil.rmtree(path, ignore_errors=True)
    arrays = dict(compute())
    try:
        write_folder(
            path, kind=kind, format_version=version, tensors=arrays, meta={"names": list(arrays)}
        )
    except (OSError, StoreError) as error:
        warn_user(f"{what.capitalize()} are not kept: {error}")
    return {name: torch.as_tensor(array) for name, array in arrays.items()}
