"""One stream of remembered tokens: keys and values of every head, found by an index a head."""

from typing import Literal, get_args

import torch
from torch import Tensor

from nearwise.functional import Metric
from nearwise.memory import checks
from nearwise.memory.eviction import arrival_draws
from nearwise.memory.index import IndexName, NeighborIndex, make_index

TokenEviction = Literal["age", "reservoir"]
TOKEN_EVICTIONS: tuple[TokenEviction, ...] = get_args(TokenEviction)


class TokenStream:
    """Tokens of one document, or of whatever else is remembered together.

    Parameters
    ----------
    metric, index
        As in `make_index`.
    capacity : int, optional
    eviction : {"age", "reservoir"}
    seed : int
        See `TokenMemory`.

    Attributes
    ----------
    key, value : Tensor of shape (heads, n_tokens, D) and (heads, n_tokens, Dv), or None
        None before the first token.
    ids : int64 Tensor of shape (n_tokens,)
        Ascending: a token's place among all that ever came.
    n_seen : int
        Tokens that ever came.
    """

    def __init__(
        self,
        metric: Metric,
        index: IndexName,
        capacity: int | None,
        eviction: TokenEviction,
        seed: int,
    ) -> None:
        self.metric, self.index = metric, index
        self.capacity, self.eviction, self.seed = capacity, eviction, seed
        self.forget_all()

    def __len__(self) -> int:
        return len(self.ids)

    def forget_all(self) -> None:
        """Start anew; ids go on only within what follows."""
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.ids = torch.empty(0, dtype=torch.int64)
        self.n_seen = 0
        self._indexes: list[NeighborIndex] = []

    def append(self, key: Tensor, value: Tensor) -> None:
        """Remember tokens (heads, n, D) with values (heads, n, Dv); forget what is too much."""
        ids = torch.arange(self.n_seen, self.n_seen + key.shape[1])
        self.n_seen += key.shape[1]
        both = torch.cat([self.ids, ids])
        stays = self._survivors(both)
        old, new = stays[: len(self)], stays[len(self) :]
        self._keep(old)
        if bool(new.any()):
            at = new.nonzero()[:, 0].to(key.device)
            self._put(key[:, at], value[:, at], ids[new])

    def forget(self, ids: Tensor) -> None:
        """Forget the tokens with these ids.

        Raises
        ------
        ValueError
            If an id is not remembered. Nothing is forgotten then.
        """
        stays = torch.ones(len(self), dtype=torch.bool)
        stays[checks.find_ids(ids, self.ids, "memory")] = False
        self._keep(stays)

    def nearest(self, query: Tensor, n_neighbors: int) -> Tensor:
        """Positions (heads, N, n_neighbors) of the nearest keys to queries (heads, N, D).

        -1 in the last slots where fewer tokens are remembered.
        """
        found = torch.full((*query.shape[:2], n_neighbors), -1, device=query.device)
        n_here = min(n_neighbors, len(self))
        if n_here:
            for head, index in enumerate(self._indexes):
                indices = index.search(query[head], n_here).indices
                found[head, :, :n_here] = indices.to(query.device)
        return found

    def restore(self, key: Tensor, value: Tensor, ids: Tensor, n_seen: int) -> None:
        """Hold exactly these tokens."""
        self.forget_all()
        if len(ids):
            self._put(key, value, ids)
        self.n_seen = n_seen

    def _survivors(self, ids: Tensor) -> Tensor:
        """Mask of the tokens that stay."""
        stays = torch.ones(len(ids), dtype=torch.bool)
        surplus = 0 if self.capacity is None else len(ids) - self.capacity
        if surplus <= 0:
            return stays
        if self.eviction == "age":
            stays[:surplus] = False
        else:  # the smallest draws of all that ever came: an even sample of them
            draws = torch.from_numpy(arrival_draws(ids, self.seed))
            stays[draws.argsort(descending=True)[:surplus]] = False
        return stays

    def _keep(self, stays: Tensor) -> None:
        if self.key is None or self.value is None or bool(stays.all()):
            return
        if not bool(stays.any()):
            seen = self.n_seen
            self.forget_all()
            self.n_seen = seen
            return
        gone = self.ids[~stays]
        for index in self._indexes:
            index.remove(gone)
        at = stays.nonzero()[:, 0].to(self.key.device)
        self.key, self.value = self.key[:, at], self.value[:, at]
        self.ids = self.ids[stays]

    def _put(self, key: Tensor, value: Tensor, ids: Tensor) -> None:
        """Append to what is held, in the indexes too."""
        if self.key is None or self.value is None:
            self.key, self.value, self.ids = key, value, ids
            rows = self.capacity or key.shape[1]
            self._indexes = [make_index(self.index, self.metric, rows).fit(own, ids) for own in key]
            return
        key, value = key.to(self.key), value.to(self.value)
        for index, own in zip(self._indexes, key, strict=True):
            index.add(own, ids)
        self.key = torch.cat([self.key, key], dim=1)
        self.value = torch.cat([self.value, value], dim=1)
        self.ids = torch.cat([self.ids, ids])
