"""What must hold before the first epoch."""

import torch
from torch import Tensor

from nearwise.nn import NeighborNetwork
from nearwise.training.augment import Augmentation
from nearwise.training.config import TrainConfig
from nearwise.training.rows import TrainingRows
from nearwise.training.sampling import count_batches


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
            _check_kind(name, rows, network)
    if config.augment is not None:
        _check_augmentation(train, config.augment)
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


def _check_kind(name: str, rows: TrainingRows, network: NeighborNetwork) -> None:
    if rows.are_images == network.embedder.takes_images:
        return
    seen, wanted = ("images", "columns") if rows.are_images else ("columns", "images")
    raise ValueError(
        f"The {name} rows are {seen}, but {type(network.embedder).__name__} takes {wanted}. Build "
        "the network with another embedder."
    )


def _check_augmentation(rows: TrainingRows, augment: Augmentation) -> None:
    if not rows.are_images:
        raise ValueError("augment changes images, and the training rows are columns. Leave it out.")
    side = min(rows.x_num.shape[2:])
    for name in ("crop_padding", "cutout"):
        if getattr(augment, name) >= side:
            raise ValueError(
                f"augment has {name}={getattr(augment, name)}, but images have a side of {side} "
                "pixels. Choose a smaller one."
            )


def check_shares(n_rows: int, batch_size: int, n_processes: int) -> None:
    """Raise ValueError where batches are too small for each process to have two rows."""
    smallest = n_rows // count_batches(n_rows, batch_size)
    if n_processes > 1 and smallest < 2 * n_processes:
        raise ValueError(
            f"Batches of {smallest} rows cannot be shared by {n_processes} processes, 2 rows each. "
            "Raise batch_size, or start fewer processes."
        )
