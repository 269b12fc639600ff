"""What the sampled estimators of attention share: checked tokens, chosen keys, scores of slots."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nearwise.functional.tokens.attention import attend
from nearwise.functional.tokens.pairs import pair_scores
from nearwise.functional.tokens.problem import Tokens, make_problem


@dataclass(frozen=True)
class Chosen:
    """Tokens, and the keys that every query attends to for certain.

    Attributes
    ----------
    tokens : Tokens
    indices : int64 Tensor of shape (B, H, N, K)
        Distinct positions; -1 in empty slots.
    n_keys : int64 Tensor of shape (N,)
        Keys that each query could attend to before other masks: all, or those up to itself.
    """

    tokens: Tokens
    indices: Tensor
    n_keys: Tensor

    def scores(self, at: Tensor, empty: Tensor) -> Tensor:
        """Differentiable scores (B, H, N, L) of the keys at `at`; -inf where empty or masked."""
        t = self.tokens
        scores = pair_scores(t.query, t.key, at, euclidean=t.euclidean, scale=t.scale)
        if t.bias is not None:
            scores = scores + t.bias.gather(-1, at)
        if t.padding is not None:
            padding = t.padding[:, None, None].expand(*at.shape[:3], -1)
            empty = empty | padding.gather(-1, at)
        return scores.masked_fill(empty, -torch.inf)

    def has_nobody(self, rows: Tensor) -> Tensor:
        """Return which queries, by rows among all of batch and heads (R,), may attend to no key."""
        t = self.tokens
        n_heads, n_queries, n_all = *t.query.shape[1:3], t.key.shape[2]
        heads, at = rows // n_queries, rows % n_queries
        item, head = heads // n_heads, heads % n_heads
        allowed = torch.arange(n_all, device=rows.device) < self.n_keys[at, None]
        if t.bias is not None:
            allowed = allowed & ~torch.isneginf(t.bias[item, head, at])
        if t.padding is not None:
            allowed = allowed & ~t.padding[item]
        return ~allowed.any(-1)


def choose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    neighbors: Tensor | None,
    *,
    is_causal: bool,
    **options: Any,
) -> Chosen:
    """Check all arguments and select the nearest keys, unless they are given."""
    common = {"is_causal": is_causal, **options}
    if neighbors is None:
        with torch.no_grad():
            found = attend(query, key, value, n_neighbors, **common)
        neighbors = found.indices
    tokens = make_problem(
        query,
        key,
        value,
        n_neighbors,
        include_self="candidate",
        candidates=None,
        dropout_p=0.0,
        generator=None,
        **common,
    )
    n_queries, n_keys = tokens.query.shape[2], tokens.key.shape[2]
    own = torch.arange(1, n_queries + 1, device=query.device)
    may_see = own if is_causal else torch.full_like(own, n_keys)
    _check_neighbors(neighbors, query, n_neighbors, may_see)
    indices = neighbors.long().reshape(*tokens.query.shape[:3], n_neighbors)
    return Chosen(tokens, indices, may_see)


def check_samples(n_samples: int, least: int, why: str) -> None:
    """Refuse too few samples."""
    if n_samples < least:
        raise ValueError(f"n_samples={n_samples} must be at least {least}: {why}.")


def _check_neighbors(neighbors: Tensor, query: Tensor, n_neighbors: int, may_see: Tensor) -> None:
    shape = (*query.shape[:-1], n_neighbors)
    if neighbors.shape != shape or neighbors.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"neighbors must be integer positions of shape {shape}, -1 in empty slots; got "
            f"{neighbors.dtype} of shape {tuple(neighbors.shape)}."
        )
    in_order = neighbors.sort(dim=-1).values
    twice = (in_order.diff(dim=-1) == 0) & (in_order[..., 1:] >= 0)
    beyond = (neighbors >= may_see[:, None]) | (neighbors < -1)
    if neighbors.numel() and bool(twice.any() | beyond.any()):
        raise ValueError(
            "neighbors names a key twice, or one that the query may not see. Give each position "
            f"once, from 0 to {int(may_see.max()) - 1} (to the query's own with is_causal)."
        )
