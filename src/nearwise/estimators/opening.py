"""Loading a model folder of any estimator."""

import os
from collections.abc import Sequence
from pathlib import Path

from nearwise.estimators.classifier import AttnKNNClassifier
from nearwise.estimators.regressor import AttnKNNRegressor
from nearwise.estimators.storage.persistence import parts_of
from nearwise.estimators.storage.targets_folder import is_of_targets, target_folders

Estimator = AttnKNNClassifier | AttnKNNRegressor


def estimator_of(folder: str | os.PathLike[str]) -> type[Estimator]:
    """Estimator class of a model folder; StoreError if there is no folder.

    AttnKNNClassifier for an unknown kind of folder; its `load` explains the error.
    """
    path = Path(folder)
    parts = parts_of(next(iter(target_folders(path).values())) if is_of_targets(path) else path)
    return AttnKNNRegressor if parts is AttnKNNRegressor.folder_parts else AttnKNNClassifier


def load_any(
    folder: str | os.PathLike[str],
    *,
    trusted: Sequence[str] = (),
    trusted_store: str | os.PathLike[str] | None = None,
) -> Estimator:
    """Load the estimator of a folder; parameters and errors as in its `load`."""
    kind = estimator_of(folder)
    model: Estimator = kind.load(folder, trusted=trusted, trusted_store=trusted_store)
    return model
