"""Tokens and pair scores at given positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.distances import unit_rows


def gather_tokens(tokens: Tensor, indices: Tensor) -> Tensor:
    """Return the tokens (B, H, N, K, D) at positions (B, H, N, K) of tokens (B, H, M, D)."""
    width = tokens.shape[-1]
    # One long table of rows: torch.gather would need an index per number.
    at = rows_of(indices, tokens.shape[2])
    return tokens.reshape(-1, width).index_select(0, at).view(*indices.shape, width)


def gather_slots(tokens: Tensor, indices: Tensor) -> Tensor:
    """Return tokens as `gather_tokens` does, with zeros in empty slots (-1).

    Zeros are needed since tokens may be NaN or infinite. Empty slots pass no gradient to tokens.
    """
    return gather_tokens(F.pad(tokens, (0, 0, 1, 0)), indices + 1)


def rows_of(indices: Tensor, n_tokens: int) -> Tensor:
    """Return flat row numbers of positions (B, H, N, K) in a table of all heads' tokens."""
    batch, heads = indices.shape[:2]
    first = torch.arange(batch * heads, device=indices.device) * n_tokens
    return (indices + first.view(batch, heads, 1, 1)).flatten()


def pair_scores(
    query: Tensor, key: Tensor, indices: Tensor, *, euclidean: bool, scale: float | Tensor
) -> Tensor:
    """Return scores (B, H, N, K), at least float32, of queries with the keys at `indices`.

    Empty slots (-1) count as zero vectors.
    `euclidean` scores are minus the Euclidean distance, others the dot product.
    """
    return paired_scores(query, gather_slots(key, indices), euclidean=euclidean, scale=scale)


def paired_scores(query: Tensor, keys: Tensor, *, euclidean: bool, scale: float | Tensor) -> Tensor:
    """Return scores (..., N, K) of queries (..., N, D) with their own keys (..., N, K, D).

    As `pair_scores`.
    """
    # At least single precision: products of half precision numbers overflow.
    keys, query = at_least_single(keys), at_least_single(query)[..., None, :]
    if not euclidean:
        return (keys @ query.mT)[..., 0] * scale
    squares = (at_least_double(query) - at_least_double(keys)).square().sum(-1)
    # The root has no slope at 0: there the gradient is 0.
    same = squares == 0
    apart = torch.where(same, 0.0, squares.masked_fill(same, 1.0).sqrt())
    return -apart.to(query.dtype) * scale


def at_least_single(x: Tensor) -> Tensor:
    """Convert half precision to single."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def at_least_double(x: Tensor) -> Tensor:
    """Convert to double precision, where squares of single precision are exact and finite.

    Apple's GPUs have only single precision.
    """
    return at_least_single(x) if x.device.type == "mps" else x.double()


def unit(x: Tensor) -> Tensor:
    """Scale vectors (..., D) to unit length, in at least single precision."""
    return unit_rows(at_least_single(x))
