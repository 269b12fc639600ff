"""k-NN attention over tokens on a GPU: launches of the Triton kernels."""

import os
from typing import Any

import torch
from torch import Tensor

from nearwise.functional.tokens.cpu import interleaved
from nearwise.functional.tokens.pairs import centered
from nearwise.functional.tokens.problem import Found, Tokens
from nearwise.lab.triton import backward as backward_kernels
from nearwise.lab.triton import forward as forward_kernels

# Triton reads the variable when it is first imported; then its kernels run on a CPU, slowly.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MOST_SLOTS = 256  # neighbors that the kernels keep in registers
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MODES = {"candidate": 0, "always": 1, "never": 2}
_WHOLE_WIDTH = 256  # widest head whose queries stay in registers; wider ones come in chunks
_CHUNK = 128


def fault(query: Tensor, n_neighbors: int) -> str:
    """Tell why the kernels cannot attend for such queries; empty where they can."""
    if query.device.type != "cuda" and not (INTERPRETED and query.device.type == "cpu"):
        return f'the query lies on {query.device}. Move it to a CUDA device, or use "auto".'
    if query.dtype not in _DTYPES:
        return f'the query is {query.dtype}. Use float32, float16 or bfloat16, or "plain".'
    if n_neighbors > MOST_SLOTS:
        return (
            f"n_neighbors={n_neighbors} exceeds the {MOST_SLOTS} that its kernels keep in "
            'registers. Lower it, or use "plain".'
        )
    return ""


def attend(tokens: Tokens) -> Found:
    """Attend without writing a score to memory."""
    query, key, value = _tokens(tokens)
    if tokens.squared:
        query, key = centered(query, key, tokens.padding)
    batch, heads, n_queries, width = query.shape
    bias, padding, candidates = tokens.bias, tokens.padding, tokens.candidates
    output = interleaved(value.new_empty(1).expand(*query.shape[:3], value.shape[3]))
    slots = (*query.shape[:3], tokens.n_neighbors)
    indices = query.new_empty(slots, dtype=torch.int32)
    weights = value.new_empty(slots)
    if bias is not None:
        bias = bias.detach() if bias.stride(3) == 0 else _in_rows(bias)  # one column for all
    if padding is not None:
        padding = padding.view(torch.uint8)
    blocks = _forward_blocks(width, value.shape[3], tokens.n_neighbors, query.dtype)
    grid = (_n_tiles(n_queries, blocks["BLOCK_M"]) * batch * heads,)
    with torch.cuda.device_of(query):
        forward_kernels.attend_kernel[grid](
            query,
            key,
            value,
            # A part that is not there is never read: any pointer serves.
            query if bias is None else bias,
            query if padding is None else padding,
            query if candidates is None else candidates,
            query if tokens.keep is None else tokens.keep.contiguous(),
            output,
            indices,
            weights,
            *_steps(query),
            *_steps(key),
            *_steps(value),
            *_steps(output),
            *((0, 0, 0, 0) if bias is None else bias.stride()),
            *((0, 0) if padding is None else padding.stride()),
            0 if candidates is None else candidates.stride(0),
            heads,
            n_queries,
            key.shape[2] if candidates is None else candidates.shape[1],
            tokens.scale,
            WIDTH=width,
            VALUE_WIDTH=value.shape[3],
            N_SLOTS=tokens.n_neighbors,
            SQUARED=tokens.squared,
            CAUSAL=tokens.is_causal,
            MODE=_MODES[tokens.include_self],
            HAS_BIAS=bias is not None,
            HAS_PADDING=padding is not None,
            HAS_CANDIDATES=candidates is not None,
            HAS_KEEP=tokens.keep is not None,
            WIDEN=INTERPRETED,
            **blocks,
        )
    return Found(output, indices, weights)


def backward(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and of the selected scores (B, H, N, K)."""
    query, key, value = _tokens(tokens)
    sent = _in_rows(grad_output)
    heads, n_queries, n_slots = indices.shape[1:]
    grads = [interleaved(x) for x in (query, key, value)]
    grad_scores = torch.empty_like(weights)
    pulls = torch.empty_like(weights, dtype=torch.float32)
    keep = weights if tokens.keep is None else tokens.keep.contiguous()
    order, bounds = _slots_by_key(indices, key.shape[2])
    common: dict[str, Any] = {
        "WIDTH": query.shape[3],
        "VALUE_WIDTH": value.shape[3],
        "N_SLOTS": n_slots,
        "SQUARED": tokens.squared,
        "HAS_KEEP": tokens.keep is not None,
    }
    with torch.cuda.device_of(query):
        backward_kernels.query_kernel[(indices.numel() // n_slots,)](
            query,
            key,
            value,
            sent,
            keep,
            indices,
            weights,
            grad_weights.contiguous(),
            grads[0],
            grad_scores,
            pulls,
            *_steps(query),
            *_steps(key),
            *_steps(value),
            *_steps(sent),
            *_steps(grads[0]),
            heads,
            n_queries,
            tokens.scale,
            **common,
            **_backward_blocks(query.shape[3], value.shape[3], n_slots),
        )
        backward_kernels.key_kernel[(len(bounds) - 1,)](
            query,
            key,
            sent,
            keep,
            weights,
            pulls,
            order,
            bounds,
            grads[1],
            grads[2],
            *_steps(query),
            *_steps(key),
            *_steps(sent),
            *_steps(grads[1]),
            *_steps(grads[2]),
            heads,
            n_queries,
            key.shape[2],
            **common,
            **_backward_blocks(query.shape[3], value.shape[3], 16),
        )
    return grads[0], grads[1], grads[2], grad_scores


def _slots_by_key(indices: Tensor, n_keys: int) -> tuple[Tensor, Tensor]:
    """Slots in the order of the keys they hold, and where in it each key's begin.

    `indices` (B, H, N, K) become places ``(b * H + h) * M + index``; empty slots come last.
    """
    n_heads = indices.shape[0] * indices.shape[1]
    n_places = n_heads * n_keys
    dtype = torch.int32 if n_places < 2**31 else torch.int64
    first = torch.arange(n_heads, device=indices.device, dtype=dtype) * n_keys
    places = indices.to(dtype) + first.view(*indices.shape[:2], 1, 1)
    places = places.masked_fill_(indices < 0, n_places).flatten()
    places, order = places.sort(stable=True)  # stable: sums in the same order in every run
    edges = torch.arange(n_places + 1, device=indices.device, dtype=dtype)
    return order, torch.searchsorted(places, edges)


def _tokens(tokens: Tokens) -> tuple[Tensor, Tensor, Tensor]:
    return _in_rows(tokens.query), _in_rows(tokens.key), _in_rows(tokens.value)


def _in_rows(x: Tensor) -> Tensor:
    """Detach, and let the numbers of a row lie side by side."""
    x = x.detach()
    return x if x.stride(-1) == 1 else x.contiguous()


def _steps(x: Tensor) -> tuple[int, int, int]:
    """Return the steps in memory between batch items, heads and rows."""
    return x.stride(0), x.stride(1), x.stride(2)


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _n_tiles(n: int, block: int) -> int:
    return -(-n // block)


def _forward_blocks(
    width: int, value_width: int, n_slots: int, dtype: torch.dtype
) -> dict[str, int]:
    """Sizes of the tiles of the forward kernel.

    Scores (BLOCK_M, BLOCK_N), the kept keys (BLOCK_M, SLOTS) and the output (BLOCK_M, BLOCK_V) live
    in registers, which ptxas finds room for in these sizes; a product wants 16 of each side.
    """
    slots = max(2, _power_of_two(n_slots))
    whole = max(16, _power_of_two(width))
    block_d = whole if whole <= _WHOLE_WIDTH else _CHUNK
    single = dtype == torch.float32  # its products take no tensor cores, but many registers
    rows = 64 if slots <= 32 and block_d <= 128 else 32 if slots <= 64 else 16
    return {
        "SLOTS": slots,
        "BLOCK_M": min(rows, 32) if single else rows,
        "BLOCK_N": 32 if single or block_d > 128 else 64,
        "BLOCK_D": block_d,
        "BLOCK_V": max(16, min(_power_of_two(value_width), _CHUNK)),
        "num_warps": 8 if single else 4,
    }


def _backward_blocks(width: int, value_width: int, n_slots: int) -> dict[str, int]:
    """Sizes of the tiles of the backward kernels: some slots at a time, whole rows."""
    block_d, block_v = (max(16, _power_of_two(n)) for n in (width, value_width))
    widest = max(block_d, block_v)
    block_k = max(2, min(_power_of_two(n_slots), 2048 // widest))
    size = block_k * widest
    return {
        "BLOCK_K": block_k,
        "BLOCK_D": block_d,
        "BLOCK_V": block_v,
        "num_warps": 1 if size <= 1024 else 2 if size <= 2048 else 4,
    }
