"""Training rows and batches."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrainingRows:
    """Columns, labels and ids of training, held-out or memory rows.

    Parameters
    ----------
    x_num : Tensor of shape (n, F), or uint8 Tensor of shape (n, c, h, w)
        Numeric columns or ready embeddings, finite; kept as float32. F may be 0. Or images with
        c of 1 or 3 channels; kept as uint8.
    labels : int64 Tensor of shape (n,) or float Tensor of shape (n, n_classes)
        Class positions from 0, or class probabilities.
    x_cat : int64 Tensor of shape (n, G), optional
        Category codes; 0 is unknown or missing.
    ids : int64 Tensor of shape (n,), optional
        Rows with equal ids never vote for each other. Default 0..n-1. Held-out rows outside the
        training rows need other ids, or -1, which never matches.
    sample_weight : Tensor of shape (n,), optional
        Non-negative weight of a row's loss and vote.
    second_x_num : Tensor of the shape of `x_num`, optional
        A second view of each row (such as the flipped image's embedding), drawn half the time.
    """

    x_num: Tensor
    labels: Tensor
    x_cat: Tensor | None = None
    ids: Tensor | None = None
    sample_weight: Tensor | None = None
    second_x_num: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "x_num", _columns_or_images("x_num", self.x_num))
        n = len(self.x_num)
        if self.ids is None:
            object.__setattr__(self, "ids", torch.arange(n, device=self.x_num.device))
        for name, tensor in self.tensors():
            if len(tensor) != n:
                raise ValueError(
                    f"{name} has {len(tensor)} rows but x_num has {n}. Pass one entry per row."
                )
        for name in ("x_num", "second_x_num", "sample_weight"):
            tensor = getattr(self, name)
            if tensor is None or not tensor.is_floating_point():
                continue
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} holds NaN or infinity. Impute or drop those rows first.")
        if self.second_x_num is not None:
            second = _columns_or_images("second_x_num", self.second_x_num)
            if second.shape != self.x_num.shape:
                raise ValueError(
                    f"second_x_num has shape {tuple(second.shape)} but x_num has "
                    f"{tuple(self.x_num.shape)}. Both views must have the same."
                )
            object.__setattr__(self, "second_x_num", second)
        if self.sample_weight is not None:
            object.__setattr__(self, "sample_weight", self.sample_weight.to(torch.float32))
        if self.labels.is_floating_point():
            object.__setattr__(self, "labels", self.labels.to(torch.float32))

    def __len__(self) -> int:
        return len(self.x_num)

    @property
    def row_ids(self) -> Tensor:
        """Ids of the rows, int64 of shape (n,)."""
        assert self.ids is not None  # set in __post_init__
        return self.ids

    @property
    def are_images(self) -> bool:
        """Whether the rows are images."""
        return self.x_num.ndim == 4

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of all fields that are set."""
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None:
                yield field.name, tensor

    def map(self, change: Any) -> "TrainingRows":
        """Return the rows with `change` applied to every tensor."""
        return TrainingRows(**{name: change(tensor) for name, tensor in self.tensors()})

    def to(self, device: torch.device | str) -> "TrainingRows":
        """Return the rows on `device`."""
        return self.map(lambda tensor: tensor.to(device))

    def take(self, positions: Tensor) -> "TrainingRows":
        """Return the rows at `positions` (int64), in that order."""
        return self.map(lambda tensor: tensor[positions.to(tensor.device)])


def _columns_or_images(name: str, tensor: Tensor) -> Tensor:
    if tensor.ndim == 2:
        return tensor.to(torch.float32)
    if tensor.ndim == 4 and tensor.dtype == torch.uint8 and tensor.shape[1] in (1, 3):
        return tensor
    raise ValueError(
        f"{name} must have shape (n, F), or be uint8 images of shape (n, c, h, w) with 1 or 3 "
        f"channels; got {tensor.dtype} of shape {tuple(tensor.shape)}."
    )


class Batch(NamedTuple):
    """Positions of a step's query rows (B,) and of further candidates (M,); disjoint."""

    queries: Tensor
    extra: Tensor


def epoch_batches(
    n_rows: int, batch_size: int, n_candidates: int | None, generator: torch.Generator
) -> Iterator[Batch]:
    """Split an epoch into batches of nearly equal size, and draw candidates for each.

    Candidates of a step are its own queries and `extra`, without repeats, `n_candidates` in all
    (None: all rows); all rows take turns. The order depends only on the CPU generator.
    """
    order = torch.randperm(n_rows, generator=generator)
    n_total = n_rows if n_candidates is None else min(n_rows, n_candidates)
    start = 0
    for queries in torch.tensor_split(order, count_batches(n_rows, batch_size)):
        stop = start + len(queries)
        others = torch.cat([order[stop:], order[:start]])
        yield Batch(queries, others[: max(0, n_total - len(queries))])
        start = stop


def count_batches(n_rows: int, batch_size: int) -> int:
    """Return the number of batches in an epoch."""
    return max(1, -(-n_rows // batch_size))


def split_batch(batch: Batch, n_pieces: int) -> list[Batch]:
    """Split the queries of a batch; queries of other pieces become candidates of each piece."""
    if n_pieces == 1:
        return [batch]
    parts = batch.queries.tensor_split(n_pieces)
    return [
        Batch(part, torch.cat([*parts[:i], *parts[i + 1 :], batch.extra]))
        for i, part in enumerate(parts)
    ]
