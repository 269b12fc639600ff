"""The memory of a regressor: rows with numeric targets."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nearwise.estimators.model.memory_views import MemoryViews, SpaceSpec
from nearwise.functional import Neighbors
from nearwise.memory.checks import as_ids
from nearwise.nn import NumberSet, RememberedNumbers
from nearwise.nn.neighbor_set import from_zero, typical_distance

# Columns of the bank.
TARGET = "target"  # float64 (n,)
TRUST = "trust"  # float64 (n,): probabilities that the targets are right, if some may be wrong
LOCATION = "location"  # float64 (n,): leave-one-out predictions of the base


class NumberRetrieval(NamedTuple):
    """Neighbors of some queries, in every key space.

    Attributes
    ----------
    found : list of Neighbors
        One per key space that was searched.
    spaces : list of NumberSet
        Head inputs of the neighbors, one per searched space.
    is_left_out : bool
        Whether the queries are remembered rows.
    """

    found: list[Neighbors]
    spaces: list[NumberSet]
    is_left_out: bool

    @property
    def farthest(self) -> np.ndarray:
        """Distances to the k-th neighbor in the feature space, float64 (n,)."""
        return self.found[0].distances[:, -1].double().numpy()


class NumberViews(MemoryViews):
    """Memory with all rows in one class and their targets in columns of the bank."""

    def retrieve_numbers(
        self, keys: dict[str, Tensor], locations: Tensor | None, positions: Tensor | None = None
    ) -> NumberRetrieval:
        """Search every space and build the neighbor sets.

        Parameters
        ----------
        keys : dict of str to Tensor of shape (n, width)
            Queries by space.
        locations : float64 Tensor of shape (n,), optional
            Predictions of the base, if there is one.
        positions : int64 Tensor of shape (n,), optional
            Bank positions of queries that are remembered rows; each is left out by its id.
        """
        ids = None if positions is None else self.bank.ids[positions]
        found, spaces = [], []
        for spec in self.specs:
            one = self.search(spec, keys[spec.name], spec.n_neighbors, ids)
            log_weight = torch.log(self.weight(one.indices))
            found.append(one)
            spaces.append(self.numbers(spec).describe(one, locations, positions, log_weight))
        return NumberRetrieval(found, spaces, positions is not None)

    @property
    def trusted_weight(self) -> Tensor:
        """Weight of each target: the row's weight times its trust, (n,)."""
        weight = self.bank.sample_weight
        trust = self.bank.columns.get(TRUST)
        return weight if trust is None else weight * trust.to(weight.dtype)

    def weight(self, positions: Tensor) -> Tensor:
        """Weights of rows as neighbors: as in `MemoryViews`, times their trust."""
        trust = self.bank.columns.get(TRUST)
        weight = super().weight(positions)
        return weight if trust is None else weight * trust[positions].to(weight.dtype)

    def numbers(self, spec: SpaceSpec) -> RememberedNumbers:
        """Remembered rows of a space, with their nearest rows and targets."""
        key = ("numbers", spec.name)
        if key not in self.derived:
            bank = self.bank
            apart = bank.columns[f"apart.{spec.name}"]
            self.derived[key] = RememberedNumbers(
                bank.columns[TARGET],
                self.own_neighbors(spec),
                apart,
                typical_distance(from_zero(apart, spec.metric)),
                self.n_columns,
                supervised=spec.name == "supervised",
                locations=bank.columns.get(LOCATION),
                weight=self.trusted_weight,
                metric=spec.metric,
                groups=self.groups,
            )
        found: RememberedNumbers = self.derived[key]
        return found

    def relabel_rows(self, ids: Any, labels: Tensor) -> None:
        """Replace the targets (n,) of rows by trusted ones, without a new search."""
        at = self.bank.positions(as_ids(ids, self.bank.ids.device))  # checks that ids are distinct
        for name, new in ((TARGET, labels.double()), (TRUST, 1.0)):
            if name in self.bank.columns:
                self.bank.columns[name] = self.bank.columns[name].clone()
                self.bank.columns[name][at] = new
        self.forget_labels()
