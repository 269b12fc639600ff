"""In which columns the head compared a row with its neighbors, and whether it found them near."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nearwise.classifier.model.predictor import Attended, Predictor
from nearwise.nn.neighbor_set import SeenColumns


class ComparedColumn(NamedTuple):
    """A column in which the head compared a row with one of its neighbors.

    Attributes
    ----------
    name : str
    attention : float
        Share of the head's attention over columns, in [0, 1]. Those of a neighbor sum to 1. It says
        what the head read, not how the prediction would change.
    near : bool
        Whether the two are nearer to each other there than the row is to its neighbors on average.
    """

    name: str
    attention: float
    near: bool


def in_words(columns: tuple[ComparedColumn, ...], n_columns: int = 3) -> str:
    """Name the columns with most attention: "near in age and balance, far in tenure"."""
    shown = columns[:n_columns]
    parts = []
    for word, near in (("near", True), ("far", False)):
        names = [one.name for one in shown if one.near == near]
        if names:
            *most, last = names
            parts.append(f"{word} in {', '.join(most)} and {last}" if most else f"{word} in {last}")
    return ", ".join(parts)


class Comparison(NamedTuple):
    """What the head read of the neighbors that are shown, in F columns.

    Attributes
    ----------
    names : list of str
    attention : Tensor of shape (n, n_shown, F)
    near : bool Tensor of shape (n, n_shown, F)
    """

    names: list[str]
    attention: Tensor
    near: Tensor

    def of(self, row: int, at: int) -> tuple[ComparedColumn, ...]:
        """Give the columns of one neighbor, most attention first."""
        facts = zip(
            self.names,
            self.attention[row, at].tolist(),
            self.near[row, at].tolist(),
            strict=True,
        )
        return tuple(
            sorted((ComparedColumn(*one) for one in facts), key=lambda one: -one.attention)
        )


def compared_columns(
    predictor: Predictor, attended: list[Attended], positions: Tensor
) -> Comparison | None:
    """Give what the head read of neighbors, by their weight in each space; None if it reads none.

    Parameters
    ----------
    predictor : Predictor
    attended : list of Attended
        One per view.
    positions : int64 Tensor of shape (n, n_shown)
        Of neighbors in the bank.
    """
    encoder: Any = predictor.encoder
    models: Any = predictor.row_models
    total, attention, near = torch.zeros(()), torch.zeros(()), torch.zeros(())
    for one in attended:
        for found, weights, space in zip(
            one.view.found, one.output.weights, one.view.spaces, strict=True
        ):
            if not isinstance(space.columns, SeenColumns):
                return None
            read = predictor.head.read_columns(space)[1]
            apart = space.columns.apart()
            is_there = torch.isfinite(space.log_weight)[:, :, None]
            usual = (apart * is_there).sum(1, keepdim=True) / is_there.sum(
                1, keepdim=True
            ).clamp_min(1)
            # A neighbor may be found in one space and not in another.
            same = (found.indices[:, None, :] == positions[:, :, None]) & is_there[:, None, :, 0]
            share = same * (weights[:, None, :] + 1e-6)
            total = total + share.sum(2, keepdim=True)
            attention = attention + share @ read
            near = near + share @ (apart <= usual).float()
    parts = [*encoder.sources, *encoder.categorical]
    seen = [parts[at] for at in models.seen.tolist()]
    names = list(dict.fromkeys(seen))
    # A date is several numbers of one column.
    fold = torch.tensor([[name == one for name in names] for one in seen], dtype=torch.float32)
    total = total.clamp_min(1e-9)
    return Comparison(names, attention / total @ fold, near / total @ (fold / fold.sum(0)) > 0.5)
