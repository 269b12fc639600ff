"""ChangedIndex: add and remove rows of a fitted index without fitting it again."""

import torch
from torch import Tensor

from nearwise.functional import Neighbors, topk_neighbors
from nearwise.functional.search_torch import nearest_first
from nearwise.memory.index import BaseIndex

MOST_CHANGED = 0.05  # share of the rows beyond which a new index is fitted
_SLACK = 16  # extra candidates, since some of the nearest may be removed rows


class ChangedIndex:
    """A sealed index plus added rows (searched exactly) minus removed rows (masked).

    Both the sealed index and this one are immutable, so that queries of an older version of the
    rows are unaffected, and a single new row needs no fit. `sealed` is fitted to
    former rows; `keys` and unique `ids` are the present rows. The key of an id never changes.
    `rows` are the positions of the searchable rows, all by default. Searches return positions
    within `rows`; the lowest one wins a tie.
    """

    def __init__(
        self, sealed: BaseIndex, keys: Tensor, ids: Tensor, rows: Tensor | None = None
    ) -> None:
        rows = torch.arange(len(ids)) if rows is None else rows
        ids = ids[rows]
        self.sealed, self.ids, self.metric = sealed, ids, sealed.metric
        order = torch.argsort(ids)
        former = sealed.ids.to(ids.device)
        at = torch.searchsorted(ids[order], former).clamp_max(len(ids) - 1)
        stayed = ids[order][at] == former
        self._position = torch.where(stayed, order[at], -1)  # of every sealed row, -1 if removed
        is_new = torch.ones(len(ids), dtype=torch.bool)
        is_new[self._position[stayed]] = False
        self._tail = torch.nonzero(is_new)[:, 0]
        self._tail_keys = keys[rows[self._tail]]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def share_changed(self) -> float:
        """Number of added and removed rows, divided by the number of rows at the last fit."""
        gone = self.sealed.n_fitted - int((self._position >= 0).sum())
        return (gone + len(self._tail)) / max(self.sealed.n_fitted, 1)

    @property
    def has_lost_rows(self) -> bool:
        """Whether rows of the sealed index were removed."""
        return bool((self._position < 0).any())

    def search(self, query: Tensor, n_neighbors: int, query_ids: Tensor | None = None) -> Neighbors:
        """Find the nearest rows of each query; see `NeighborIndex.search`."""
        wanted = n_neighbors + (query_ids is not None)  # a query may find itself
        distances, positions = self._search_sealed(query, wanted)
        if len(self._tail):
            k = min(wanted, len(self._tail))
            new = topk_neighbors(query, self._tail_keys.to(query), k, metric=self.metric)
            distances = torch.cat([distances, new.distances], dim=1)
            in_tail = self._tail.to(new.indices.device)[new.indices]
            positions = torch.cat([positions, in_tail], dim=1)
        if query_ids is not None:
            own = (
                self.ids.to(positions.device)[positions] == query_ids.to(positions.device)[:, None]
            )
            distances = distances.masked_fill(own, float("inf"))
        return Neighbors(*nearest_first(distances, positions, n_neighbors))

    def _search_sealed(self, query: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """Distances, infinite for removed rows, and positions among the present rows."""
        n_left = int((self._position >= 0).sum())
        k = wanted
        while True:
            found = self.sealed.search(query, min(k, len(self.sealed)))
            positions = self._position.to(found.indices.device)[found.indices]
            there = positions >= 0
            enough = there.sum(1) >= min(wanted, n_left)
            if bool(enough.all()) or k >= len(self.sealed):
                return found.distances.masked_fill(~there, float("inf")), positions.clamp_min(0)
            k = k + _SLACK if k == wanted else 2 * k
