"""A key space and who may be found in it; how votes fade with age."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nearwise.functional import Metric

_FADED = 1e-3  # share of its vote that the oldest row keeps


@dataclass(frozen=True)
class SpaceSpec:
    """One key space and who may be found in it.

    Attributes
    ----------
    name : str
        "features", "supervised" or "trained".
    scope : {"all", "fold"}
        "all": every row. "fold": a member finds only the rows it held out itself, whose keys come
        from the very model that also makes the query's key, fitted on neither's label.
    per_member : bool
        Whether each member has keys of its own.
    metric : Metric
    unit : float
        Typical neighbor distance; distances are divided by it.
    n_neighbors : int
        Neighbors asked for.
    """

    name: str
    scope: Literal["all", "fold"]
    per_member: bool
    metric: Metric
    unit: float
    n_neighbors: int

    def key(self, member: int) -> str:
        """Name of the bank's key space that a member uses."""
        return f"{self.name}_{member}" if self.per_member else self.name

    @property
    def judged_in(self) -> str:
        """Space whose neighbors tell a row's reliability: its own, or the features'.

        A trained space gathers its training rows around their labels, right or wrong, so there
        the features' neighbors are asked, once for all members.
        """
        return "features" if self.name == "trained" else self.name

    @property
    def side(self) -> str:
        """Name of the bank's column with the rows' reliability."""
        return f"side.reliability.{self.judged_in}"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `SpaceSpec(**data)` rebuilds it."""
        return asdict(self)


@dataclass(frozen=True)
class Forgetting:
    """How votes fade with age: by half every so many rows that came since.

    A faded row still wins where no newer one stands against it; only where they disagree does the
    newer one outvote it.

    Attributes
    ----------
    half_life : float
        In rows.
    first : int
        Rows of the first fit, which came at once.
    """

    half_life: float
    first: int

    def arrival(self, ids: Tensor) -> Tensor:
        """When each row came: its id, that of the last row for those of the first fit."""
        return ids.clamp_min(self.first - 1)

    def share(self, age: Tensor) -> Tensor:
        """Weight left at an age in rows, at least a thousandth."""
        return torch.exp2(-age / self.half_life).clamp_min(_FADED)
