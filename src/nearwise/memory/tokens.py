"""TokenMemory: keys and values of earlier tokens, for attention of later tokens."""

import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from nearwise.functional import Metric
from nearwise.functional.distances import check_metric
from nearwise.functional.tokens.complement import stratified_sample
from nearwise.functional.tokens.pairs import gather_tokens
from nearwise.functional.tokens.problem import check_whole
from nearwise.memory import checks
from nearwise.memory.eviction import arrival_draws
from nearwise.memory.gate import taken_apart
from nearwise.memory.index import IndexName, NeighborIndex
from nearwise.memory.make_index import INDEX_NAMES, make_index
from nearwise.memory.store import read_folder, write_folder

TokenEviction = Literal["age", "reservoir"]
TOKEN_EVICTIONS: tuple[TokenEviction, ...] = get_args(TokenEviction)


class TokenStream:
    """Tokens of one document or another unit that shares a memory; see `TokenMemory`.

    `key` and `value` (heads, n_tokens, D) are None before the first token; `ids` ascend and count
    all `n_seen` tokens ever added.
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
        """Forget all tokens; ids start from 0 again."""
        self.key: Tensor | None = None
        self.value: Tensor | None = None
        self.ids = torch.empty(0, dtype=torch.int64)
        self.n_seen = 0
        self._indexes: list[NeighborIndex] = []

    def append(self, key: Tensor, value: Tensor) -> None:
        """Remember tokens (heads, n, D) with values (heads, n, Dv); forget the excess."""
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

        Raises ValueError if an id is not remembered; the stream is then unchanged.
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
        """Replace all tokens by these."""
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
        else:  # smallest draws of all tokens ever added: a uniform sample of them
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
        """Append tokens, in the indexes too."""
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


_KIND = "token memory"
_VERSION = 1


class Recalled(NamedTuple):
    """Retrieved tokens of each query: the nearest tokens first, then sampled ones.

    Attributes
    ----------
    key : Tensor of shape (B, H, N, L, D)
        Without gradient, like the other fields.
    value : Tensor of shape (B, H, N, L, Dv)
    log_counts : float32 Tensor of shape (B, H, N, L)
        Logarithm of the number of remembered tokens each slot represents: 0 for the nearest,
        -inf in empty slots. Added to a score it makes the softmax right.
    ids : int64 Tensor of shape (B, H, N, L)
        Number of the token in its stream, counted from the first one; -1 in empty slots.
    """

    key: Tensor
    value: Tensor
    log_counts: Tensor
    ids: Tensor


class TokenMemory:
    """Keys and values of earlier tokens, searched by `NeighborIndex`.

    Parameters
    ----------
    num_heads : int
        Number of heads; each has its own keys and index.
    n_streams : int, default=1
        Number of documents with separate memories, one per batch item. With 1, all items share one
        memory.
    capacity : int, optional
        Maximum number of tokens per stream; by default all.
    metric : {"inner_product", "cosine", "euclidean", "sqeuclidean"}, default="inner_product"
        Measure of nearness.
    eviction : {"age", "reservoir"}, default="age"
        Tokens to forget when a stream is full: the oldest, or random ones. With "reservoir" all
        tokens ever added are remembered with the same probability.
    index : {"exact", "auto", "faiss-flat-ip", "faiss-flat-l2", "hnsw", "ivf-flat"}, default="exact"
        Neighbor index, see `make_index`; "auto" chooses by `capacity`, or by the number of tokens
        in the first call. All but "exact" search on the CPU. Every index holds its own copy of
        the keys.
    seed : int, default=0
        Seed of "reservoir".

    Raises
    ------
    ValueError
        If a number is not a positive integer or a name unknown.

    Examples
    --------
    >>> memory = TokenMemory(num_heads=2, capacity=100)
    >>> memory.add(torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8))
    >>> memory.recall(torch.randn(1, 2, 5, 8), 4).key.shape
    torch.Size([1, 2, 5, 4, 8])
    """

    def __init__(
        self,
        num_heads: int,
        *,
        n_streams: int = 1,
        capacity: int | None = None,
        metric: Metric = "inner_product",
        eviction: TokenEviction = "age",
        index: IndexName = "exact",
        seed: int = 0,
    ) -> None:
        for name, number in (("num_heads", num_heads), ("n_streams", n_streams)):
            check_whole(name, number)
        if capacity is not None:  # None for no limit
            check_whole("capacity", capacity)
        if eviction not in TOKEN_EVICTIONS:
            known = ", ".join(TOKEN_EVICTIONS)
            raise ValueError(f"eviction={eviction!r} is not known. Use one of {known}.")
        if index not in INDEX_NAMES:
            known = ", ".join(INDEX_NAMES)
            raise ValueError(f"index={index!r} is not known. Use one of {known}.")
        self.num_heads, self.capacity, self.metric = num_heads, capacity, check_metric(metric)
        self.eviction, self.index, self.seed = eviction, index, seed
        self._streams = [
            TokenStream(self.metric, index, capacity, eviction, seed) for _ in range(n_streams)
        ]

    @property
    def n_streams(self) -> int:
        """Number of documents with separate memories."""
        return len(self._streams)

    @property
    def n_tokens(self) -> list[int]:
        """Number of tokens per stream."""
        return [len(stream) for stream in self._streams]

    def __repr__(self) -> str:
        return (
            f"TokenMemory(num_heads={self.num_heads}, n_streams={self.n_streams}, "
            f"capacity={self.capacity}, metric={self.metric!r}, n_tokens={self.n_tokens})"
        )

    def ids(self, stream: int = 0) -> Tensor:
        """Ids of the tokens of a stream, ascending: int64 of shape (n_tokens,).

        Raises ValueError if there is no such stream.
        """
        return self._stream(stream).ids

    def add(self, key: Tensor, value: Tensor, keep: Tensor | None = None) -> None:
        """Remember tokens; a full stream forgets others.

        Parameters
        ----------
        key : Tensor of shape (B, H, N, D)
            Finite for remembered tokens. B is the number of streams; with one stream any number,
            remembered in order.
        value : Tensor of shape (B, H, N, Dv)
            Finite for remembered tokens. Both are stored without gradients.
        keep : bool Tensor of shape (B, N), optional
            True for tokens to remember; by default all.

        Raises
        ------
        ValueError
            If shapes do not fit, or a key or value to remember is NaN or infinite.
        """
        self._check_heads("key", key)
        self._check_heads("value", value)
        if key.shape[:3] != value.shape[:3]:
            raise ValueError(
                f"key {tuple(key.shape)} and value {tuple(value.shape)} must agree in all but "
                "their last dimension."
            )
        if keep is None:
            keep = torch.ones(len(key), key.shape[2], dtype=torch.bool, device=key.device)
        if keep.dtype != torch.bool or keep.shape != (len(key), key.shape[2]):
            raise ValueError(
                f"keep must be boolean of shape ({len(key)}, {key.shape[2]}); got {keep.dtype} of "
                f"shape {tuple(keep.shape)}."
            )
        key, value = key.detach(), value.detach()
        for name, x in (("key", key), ("value", value)):
            if not bool((x.isfinite() | ~keep[:, None, :, None]).all()):
                raise ValueError(
                    f"{name} holds NaN or infinity. Check where the model's numbers overflow."
                )
        self._check_widths(key.shape[-1], value.shape[-1])
        for item, own_key, own_value, stays in zip(range(len(key)), key, value, keep, strict=True):
            stream = self._streams[item if self.n_streams > 1 else 0]
            if bool(stays.any()):
                stream.append(own_key[:, stays], own_value[:, stays])

    def recall(
        self,
        query: Tensor,
        n_neighbors: int,
        n_samples: int = 0,
        *,
        jitter: bool = True,
        generator: torch.Generator | None = None,
    ) -> Recalled:
        """Find the nearest tokens of every query, and sample others.

        Parameters
        ----------
        query : Tensor of shape (B, H, N, D)
        n_neighbors : int
            At least 1; slots are empty if a stream has fewer tokens.
        n_samples : int, default=0
            Number of sampled tokens besides the nearest, to estimate attention to all of the
            memory: see docs/reference/layers.md.
        jitter : bool, default=True
            Whether to sample at random; False takes the same tokens at every call.
        generator : torch.Generator, optional
            Random generator on the device of the query.

        Returns
        -------
        recalled : Recalled
            Tokens with L = n_neighbors + n_samples slots.

        Raises
        ------
        ValueError
            If shapes do not fit, `n_neighbors` is below 1 or `n_samples` below 0.
        """
        self._check_heads("query", query)
        if n_neighbors < 1 or n_samples < 0:
            raise ValueError(
                f"n_neighbors={n_neighbors} must be at least 1 and n_samples={n_samples} at "
                "least 0."
            )
        for stream in self._streams:
            if stream.key is not None and stream.key.shape[-1] != query.shape[-1]:
                raise ValueError(
                    f"query is {query.shape[-1]} wide, the remembered keys {stream.key.shape[-1]}. "
                    "Use one memory per layer, or clear() it."
                )
        query = query.detach()
        queries = [rows[None] for rows in query] if self.n_streams > 1 else [query]
        known = [stream.value.shape[-1] for stream in self._streams if stream.value is not None]
        width = known[0] if known else query.shape[-1]
        found = [
            self._ask(stream, rows, n_neighbors, n_samples, jitter, generator)
            or _nothing(rows, width, n_neighbors + n_samples)
            for stream, rows in zip(self._streams, queries, strict=True)
        ]
        return Recalled(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _ask(
        self,
        stream: TokenStream,
        query: Tensor,
        n_neighbors: int,
        n_samples: int,
        jitter: bool,
        generator: torch.Generator | None,
    ) -> Recalled | None:
        """Retrieve tokens of one stream for queries (B, H, N, D)."""
        if stream.key is None or stream.value is None:
            return None
        batch, heads, n_queries, width = query.shape
        rows = query.transpose(0, 1).reshape(heads, batch * n_queries, width)
        at = stream.nearest(rows, n_neighbors)
        counts = (at >= 0).long()
        if n_samples:
            drawn, stand_for = stratified_sample(
                at, len(stream), n_samples, jitter=jitter, generator=generator
            )
            at, counts = torch.cat([at, drawn], -1), torch.cat([counts, stand_for], -1)
        at = at.clamp_min(0)
        log_counts = counts.float().log()
        ids = stream.ids.to(at.device)[at].masked_fill(counts == 0, -1)
        parts = (
            gather_tokens(stream.key[None], at.to(stream.key.device)[None])[0].to(query),
            gather_tokens(stream.value[None], at.to(stream.key.device)[None])[0].to(query),
            log_counts,
            ids,
        )
        return Recalled(*(p.unflatten(1, (batch, n_queries)).transpose(0, 1) for p in parts))

    def remove(self, ids: Tensor | Sequence[int], stream: int = 0) -> None:
        """Forget the tokens with these ids in a stream.

        Raises
        ------
        ValueError
            If an id is not remembered, or there is no such stream. Nothing is forgotten then.
        """
        self._stream(stream).forget(torch.as_tensor(ids, dtype=torch.int64))

    def clear(self, streams: Sequence[int] | None = None) -> None:
        """Forget all tokens of all or some streams, for example where a new document begins.

        Raises
        ------
        ValueError
            If there is no such stream. Nothing is forgotten then.
        """
        try:
            named = range(self.n_streams) if streams is None else list(streams)
        except TypeError:
            raise ValueError(f"streams={streams!r} is no sequence. Pass [{streams!r}].") from None
        for stream in [self._stream(at) for at in named]:
            stream.forget_all()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the memory to a folder, safe against crashes; see `nearwise.memory.write_folder`.

        Raises
        ------
        StoreError
            If the folder holds something else.
        """
        tensors = {}
        for at, stream in enumerate(self._streams):
            tensors[f"ids.{at}"] = stream.ids
            if stream.key is not None and stream.value is not None:
                tensors[f"key.{at}"] = stream.key.contiguous()
                tensors[f"value.{at}"] = stream.value.contiguous()
        meta: dict[str, Any] = {
            "num_heads": self.num_heads,
            "n_streams": self.n_streams,
            "capacity": self.capacity,
            "metric": self.metric,
            "eviction": self.eviction,
            "index": self.index,
            "seed": self.seed,
        }
        seen = [stream.n_seen for stream in self._streams]
        whole = {"options": meta, "n_seen": seen}
        write_folder(path, kind=_KIND, format_version=_VERSION, tensors=tensors, meta=whole)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], device: torch.device | str = "cpu"
    ) -> "TokenMemory":
        """Read a memory that `save` wrote; it retrieves the same tokens.

        Raises
        ------
        StoreError
            If the folder is missing, foreign, torn, newer than this library, or holds what `save`
            never writes.
        """
        folder = read_folder(path, kind=_KIND, newest_version=_VERSION)
        with taken_apart(path):
            options, n_seen = folder.meta["options"], folder.meta["n_seen"]
            if options["n_streams"] != len(n_seen):
                raise ValueError(f"{len(n_seen)} numbers for {options['n_streams']} streams")
            memory = cls(**options)
            for at, (stream, seen) in enumerate(zip(memory._streams, n_seen, strict=True)):
                ids = folder.tensors[f"ids.{at}"]
                key, value = (
                    folder.tensors.get(f"{name}.{at}", ids).to(device) for name in ("key", "value")
                )
                held = memory.num_heads, len(ids)
                if ids.dtype != torch.int64 or (
                    len(ids) and not held == key.shape[:2] == value.shape[:2]
                ):
                    raise ValueError(f"stream {at} is not {held[0]} heads of {held[1]} tokens")
                stream.restore(key, value, ids, int(seen))
        return memory

    def _stream(self, at: int) -> TokenStream:
        try:
            return self._streams[at]
        except (IndexError, TypeError):
            raise ValueError(
                f"stream={at!r} is not one of the {self.n_streams} streams of this memory. Pass 0 "
                f"to {self.n_streams - 1}, or make it with a larger n_streams."
            ) from None

    def _check_widths(self, *new: int) -> None:
        for stream in self._streams:
            if stream.key is None or stream.value is None:
                continue
            held = (stream.key.shape[-1], stream.value.shape[-1])
            if held != new:
                raise ValueError(
                    f"key and value are {new[0]} and {new[1]} wide, the remembered ones {held[0]} "
                    f"and {held[1]}. Use one memory per layer, or clear() it."
                )

    def _check_heads(self, name: str, x: Tensor) -> None:
        heads, streams = self.num_heads, self.n_streams
        if x.ndim != 4 or x.shape[1] != heads or (streams > 1 and len(x) != streams):
            batch = "any batch" if streams == 1 else f"{streams} streams"
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}. Pass (batch, heads, N, width) with {batch} "
                f"and {heads} heads."
            )


def _nothing(query: Tensor, value_width: int, n_slots: int) -> Recalled:
    """Only empty slots, for queries (B, H, N, D)."""
    slots = (*query.shape[:3], n_slots)
    return Recalled(
        query.new_zeros(*slots, query.shape[-1]),
        query.new_zeros(*slots, value_width),
        torch.full(slots, -torch.inf, device=query.device),
        torch.full(slots, -1, device=query.device),
    )
