"""What must hold before the first epoch."""

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training.config import TrainConfig
from nearwise.training.rows import TrainingRows


def check_training(
    network: NeighborNetwork,
    train: TrainingRows,
    held_out: TrainingRows | None,
    config: TrainConfig,
) -> None:
    """Raise ValueError where rows, labels, ids and settings do not fit the network."""
    if len(train) < 2:
        raise ValueError(
            f"Training needs at least 2 rows, got {len(train)}: a row cannot be its own neighbor."
        )
    if len(torch.unique(train.row_ids)) < len(train):
        raise ValueError("Ids of the training rows repeat. Give each row an id of its own.")
    if config.ce_weight and network.head is None:
        raise ValueError("ce_weight needs a linear head. Build the network with head=True.")
    if config.monitored == "head" and network.head is None:
        raise ValueError('monitor="head" needs a linear head. Build the network with head=True.')
    for name, rows in (("train", train), ("held_out", held_out)):
        if rows is not None:
            _check_labels(name, rows.labels, network.n_classes)
    if held_out is None:
        return
    if len(held_out) == 0:
        raise ValueError("held_out has no rows. Pass None to train without early stopping.")
    if torch.isin(held_out.row_ids.cpu(), train.row_ids.cpu()).any():
        raise ValueError(
            "Some held_out ids are also training ids. Give held-out rows ids of their own: rows "
            "with equal ids are taken for one row and left out."
        )


def _check_labels(name: str, labels: Tensor, n_classes: int) -> None:
    if labels.ndim == 2 and labels.shape[1] == n_classes:
        return
    hard = labels.ndim == 1 and not labels.is_floating_point()
    if not hard or (len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < n_classes):
        raise ValueError(
            f"{name} labels must be class positions from 0 to {n_classes - 1}, int64 of shape "
            f"(n,), or probabilities of shape (n, {n_classes}); got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
