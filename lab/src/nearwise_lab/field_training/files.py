"""Trained neural fields, found again by their runs' settings."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearwise_lab.nn.field.config import WEIGHTS, FieldFile, describe_model


def find_models(folder: str | Path, wanted: Mapping[str, Any]) -> list[FieldFile]:
    """Find the saved models below a folder whose `run` holds the wanted settings.

    Names of files and folders play no role.

    Parameters
    ----------
    folder : path
        Searched with all folders in it; need not exist.
    wanted : mapping
        Entries that `run` must have, such as ``{"objective": "sparse", "seed": 0}``.

    Returns
    -------
    found : list of FieldFile
        Those with the most steps first, then by path. Damaged ones are left out.
    """
    found = []
    # os.walk passes over what another process removes meanwhile
    places = sorted(Path(directory) for directory, _, names in os.walk(folder) if WEIGHTS in names)
    for directory in places:
        try:
            one = describe_model(directory)
        except ValueError:
            continue
        if all(name in one.run and one.run[name] == value for name, value in wanted.items()):
            found.append(one)
    return sorted(found, key=lambda one: -int(one.run.get("step", 0)))
