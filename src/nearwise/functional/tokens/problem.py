"""Checked arguments of token attention, in four dimensions."""

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from nearwise.functional.tokens.pairs import unit

Meaning = Literal["may attend", "leave out"]


def check_mask(name: str, mask: Any, true_means: Meaning, *, takes_floats: bool = True) -> None:
    """Raise ValueError for a mask of integers, which would be added or inverted bit by bit.

    `name` and `true_means` are for the message. Valid are None, boolean tensors and, with
    `takes_floats`, floating ones.
    """
    if mask is None:
        return
    is_tensor = isinstance(mask, Tensor)
    if is_tensor and (mask.dtype == torch.bool or (takes_floats and mask.is_floating_point())):
        return
    kinds = f"boolean (True: {true_means})"
    kinds += " or floating (added to the scores)" if takes_floats else ""
    seen = mask.dtype if is_tensor else f"a {type(mask).__name__}"
    marks_keys, marks_holes = ("== 1", "== 0") if true_means == "may attend" else ("== 0", "== 1")
    raise ValueError(
        f"{name} must be a tensor, {kinds}; got {seen}. Where 1 marks what may be attended, as in "
        f"the attention_mask of a tokenizer, pass {name} {marks_keys}; where 1 marks what is left "
        f"out, pass {name} {marks_holes}."
    )


def checked_padding(mask: Tensor, batch: int, n_keys: int) -> Tensor:
    """Expand a key padding mask to (B, M); ValueError if it does not fit."""
    check_mask("key_padding_mask", mask, "leave out", takes_floats=False)
    if tuple(mask.shape) not in ((batch, n_keys), (n_keys,)):
        raise ValueError(
            f"key_padding_mask must be boolean (True: leave out) of shape ({batch}, {n_keys}); got "
            f"shape {tuple(mask.shape)}."
        )
    return mask.expand(batch, n_keys)


TokenMetric = Literal["matmul", "cosine", "euclidean"]
IncludeSelf = Literal["candidate", "always", "never"]
# outside of functions: torch 2.6 cannot compile get_args
_METRICS, _INCLUDE_SELF = get_args(TokenMetric), get_args(IncludeSelf)
KeyPositions = Tensor | np.ndarray | Sequence[int]

_HALVES = (torch.float16, torch.bfloat16)
_DTYPES = (*_HALVES, torch.float32, torch.float64)


class Found(NamedTuple):
    """Result of an implementation, slots in descending order of score, ties by lowest index.

    Weights are before dropout; each row sums to 1, or is 0 without an allowed key. A key with a NaN
    score comes first, and the weights are then NaN.
    """

    output: Tensor  # (B, H, N, Dv)
    indices: Tensor  # (B, H, N, K), int32; -1 with fewer than K allowed keys
    weights: Tensor  # (B, H, N, K)


class Tokens(NamedTuple):
    """Arguments of one attention in four dimensions, in the order of the operators' arguments."""

    query: Tensor  # (B, H, N, D); for the cosine metric at unit length, in float32 at least
    key: Tensor  # (B, H, M, D), as `query`
    value: Tensor  # (B, H, M, Dv)
    n_neighbors: int  # K, slots per query; at most the number of keys
    euclidean: bool  # whether scores are negative Euclidean distances; else dot products
    scale: float  # positive factor of the scores
    bias: Tensor | None = (
        None  # broadcast to (B, H, N, M), added to the scores; -inf forbids a pair
    )
    padding: Tensor | None = None  # (B, M), True forbids a key
    is_causal: bool = False
    include_self: str = "candidate"  # or "always" or "never"
    candidates: Tensor | None = None  # (B, C), int64 positions of allowed keys
    keep: Tensor | None = None  # (B, H, N, K), factors of the weights: 0 or 1 / (1 - p) if dropping


def make_problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    n_neighbors: int,
    *,
    metric: TokenMetric = "matmul",
    scale: float | None = None,
    attn_mask: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    include_self: IncludeSelf = "candidate",
    candidates: KeyPositions | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tokens:
    """Check all arguments, see `knn_attention`, and bring them into one form."""
    _check_tokens(query, key, value)
    if metric not in _METRICS:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(_METRICS)}.")
    if include_self not in _INCLUDE_SELF:
        known = ", ".join(_INCLUDE_SELF)
        raise ValueError(f"include_self={include_self!r} is not one of {known}.")
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1]) if metric == "matmul" else 1.0
    if not 0 < scale < math.inf:
        raise ValueError(f"scale={scale} must be positive and finite: larger is sharper.")
    n_queries, n_keys = query.shape[-2], key.shape[-2]
    if n_queries != n_keys and (is_causal or include_self != "candidate"):
        what = "is_causal" if is_causal else f"include_self={include_self!r}"
        raise ValueError(
            f"{what} is about a token and itself, but there are {n_queries} queries and {n_keys} "
            "keys. Leave it out for cross-attention."
        )
    lead = query.shape[:-2]
    batch, heads = (1,) * (2 - len(lead)) + tuple(lead) if len(lead) != 1 else (lead[0], 1)
    chosen = _check_candidates(candidates, batch, n_keys, key.device)
    n_slots = _n_slots(n_neighbors, n_keys, chosen, include_self)
    query4, key4, value4 = (x.reshape(batch, heads, *x.shape[-2:]) for x in (query, key, value))
    if metric == "cosine":
        query4, key4 = unit(query4), unit(key4)
    return Tokens(
        query4,
        key4,
        value4,
        n_neighbors=n_slots,
        euclidean=metric == "euclidean",
        scale=scale,
        bias=_bias(attn_mask, query, n_queries, n_keys, (batch, heads)),
        padding=(
            None if key_padding_mask is None else checked_padding(key_padding_mask, batch, n_keys)
        ),
        is_causal=is_causal,
        include_self=include_self,
        candidates=chosen,
        keep=_keep((batch, heads, n_queries, n_slots), value, dropout_p, generator),
    )


def _check_tokens(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    dims = {query.ndim, key.ndim, value.ndim}
    fits = len(dims) == 1 and dims <= {2, 3, 4}
    fits = fits and query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    fits = fits and query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    if not fits:
        raise ValueError(
            "query (..., N, D), key (..., M, D) and value (..., M, Dv) must agree, with 0, 1 or 2 "
            f"leading dimensions (batch, heads); got {shapes}."
        )
    if not (query.shape[-1] and value.shape[-1]):
        raise ValueError(f"Tokens and values need a width of at least 1: {shapes}.")
    kinds = {query.dtype, key.dtype, value.dtype}
    mixed = query.dtype == key.dtype == torch.float32 and value.dtype in _HALVES
    if (len(kinds) > 1 and not mixed) or query.dtype not in _DTYPES:
        raise ValueError(
            "query, key and value must be tensors that share one floating dtype (values may be of "
            "half precision beside float32); got "
            f"{query.dtype}, {key.dtype} and {value.dtype}. Convert them: "
            "torch.as_tensor(x, dtype=torch.float32)."
        )


def check_whole(name: str, number: Any, least: int = 1) -> None:
    """Raise ValueError unless a number is an integer of at least `least`."""
    if isinstance(number, bool) or not isinstance(number, Integral) or number < least:
        raise ValueError(f"{name}={number!r} must be an integer of at least {least}.")


def check_n_neighbors(n_neighbors: Any) -> None:
    """Raise ValueError unless the number of neighbors is a positive integer."""
    check_whole("n_neighbors", n_neighbors)


def _n_slots(
    n_neighbors: int, n_keys: int, candidates: Tensor | None, include_self: IncludeSelf
) -> int:
    """Slots per query: `n_neighbors`, at most the number of keys, at least one."""
    check_n_neighbors(n_neighbors)
    most = n_keys - (include_self == "never")
    if candidates is not None:
        most = min(most, candidates.shape[1] + (include_self == "always"))
    # not min(), which would make the number of slots symbolic in exports
    if most >= n_neighbors:
        return n_neighbors
    return most if most > 1 else 1


def _check_candidates(
    candidates: KeyPositions | None, batch: int, n_keys: int, device: torch.device
) -> Tensor | None:
    if candidates is None:
        return None
    positions = as_positions(candidates, n_keys)
    if positions.ndim == 2 and len(positions) != batch:
        raise ValueError(
            f"candidates has {len(positions)} rows, but the batch has {batch}. Give one row per "
            "entry, or one for all."
        )
    # Ascending, so that ties go to the lowest position.
    in_order = positions.sort(dim=-1).values
    if device.type != "cpu" and not torch.compiler.is_compiling():  # otherwise checked later
        check_positions(in_order, n_keys)
    return in_order.to(device).expand(batch, -1)


def as_positions(candidates: KeyPositions, n_keys: int) -> Tensor:
    """Convert candidates to an int64 tensor, (C,) or (batch, C), without reading their values.

    Raises ValueError if they are not integers, have another shape, or are empty.
    """
    positions = candidates if isinstance(candidates, Tensor) else torch.as_tensor(candidates)
    if positions.dtype not in (torch.int64, torch.int32) or positions.ndim not in (1, 2):
        raise ValueError(
            "candidates must be integer positions of keys, of shape (C,) or (batch, C); got "
            f"{positions.dtype} of shape {tuple(positions.shape)}."
        )
    if positions.shape[-1] == 0:
        raise ValueError(f"candidates is empty. Name some of the {n_keys} keys.")
    return positions.to(torch.int64)


def check_positions(in_order: Tensor | None, n_keys: int, *, distinct: bool = True) -> None:
    """Raise ValueError for ascending positions (..., C) that are invalid or repeated.

    Only checked on the CPU: reading them from another device would wait for it.
    """
    if in_order is None or in_order.device.type != "cpu" or in_order.numel() == 0:
        return
    low, high = int(in_order.min()), int(in_order.max())
    if low < 0 or high >= n_keys > 0:
        raise ValueError(
            f"candidates lie between {low} and {high}, but the keys are 0 to {n_keys - 1}."
        )
    if distinct and bool((in_order.diff(dim=-1) == 0).any()):
        raise ValueError("candidates names a key twice. Give each position once.")


def _bias(
    mask: Tensor | None, query: Tensor, n_queries: int, n_keys: int, lead: tuple[int, int]
) -> Tensor | None:
    if mask is None:
        return None
    check_mask("attn_mask", mask, "may attend")
    if mask.dtype == torch.bool:
        allowed = mask
        mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device)
        mask = mask.masked_fill(~allowed, -math.inf)
    shape = (*query.shape[:-2], n_queries, n_keys)
    try:
        whole = mask.to(query.dtype).expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} cannot be broadcast to {shape}, the scores of "
            f"{n_queries} queries and {n_keys} keys."
        ) from error
    return whole.reshape(*lead, n_queries, n_keys)


def _keep(
    shape: tuple[int, ...], value: Tensor, dropout_p: float, generator: torch.Generator | None
) -> Tensor | None:
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p={dropout_p} must lie in [0, 1).")
    if not dropout_p:
        return None
    drawn = torch.rand(shape, generator=generator, device=value.device)
    return (drawn >= dropout_p).to(value.dtype) / (1 - dropout_p)
