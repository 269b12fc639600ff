"""k-NN attention over tokens on a GPU: launches of the Triton kernels."""

import os

import torch
from torch import Tensor

from nearwise.functional.tokens.cpu import interleaved
from nearwise.functional.tokens.problem import Found, Tokens
from nearwise_lab.triton import backward as backward_kernels
from nearwise_lab.triton import forward as forward_kernels

# Triton reads the variable when it is first imported; then its kernels run on a CPU, slowly.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MOST_SLOTS = 256  # neighbors that the kernels keep in registers
WIDEST = 128  # head whose rows stay in registers
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def fault(tokens: Tokens) -> str:
    """Return why the kernels cannot attend so; empty where they can.

    They take dot products and distances, causal or not, padding, and a token that may not attend
    to itself. What plain operations do as well is left to them.
    """
    device = tokens.query.device
    width = max(tokens.query.shape[-1], tokens.value.shape[-1])
    reasons = {
        f"the tokens lie on {device}, not on a CUDA device": not (
            device.type == "cuda" or (INTERPRETED and device.type == "cpu")
        ),
        f"its kernels take no {tokens.query.dtype}": tokens.query.dtype not in _DTYPES,
        f"its kernels take at most {MOST_SLOTS} neighbors": tokens.n_neighbors > MOST_SLOTS,
        f"its kernels take heads of a width of at most {WIDEST}": width > WIDEST,
        "its kernels take no attn_mask": tokens.bias is not None,
        "its kernels take no candidates": tokens.candidates is not None,
        'its kernels take no include_self="always"': tokens.include_self == "always",
        "its kernels take no dropout": tokens.keep is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def attend(tokens: Tokens) -> Found:
    """Attend without writing a score to memory."""
    query, key, value = (_in_one_piece(x) for x in tokens[:3])
    batch, heads, n_queries, width = query.shape
    value_width, slots = value.shape[3], (*query.shape[:3], tokens.n_neighbors)
    output = interleaved(tokens.value.new_empty(1).expand(*query.shape[:3], value_width))
    indices = query.new_empty(slots, dtype=torch.int32)
    weights = tokens.value.new_empty(slots)
    blocks = _blocks(width, value_width, tokens.n_neighbors, query.dtype)
    grid = (-(-n_queries // blocks["BLOCK_M"]) * batch * heads,)
    with torch.cuda.device_of(query):
        forward_kernels.attend_kernel[grid](
            query,
            key,
            value,
            None if tokens.padding is None else tokens.padding.contiguous().view(torch.uint8),
            output,
            indices,
            weights,
            heads,
            n_queries,
            key.shape[2],
            tokens.scale,
            WIDTH=width,
            VALUE_WIDTH=value_width,
            N_SLOTS=tokens.n_neighbors,
            SQUARED=tokens.euclidean,
            CAUSAL=tokens.is_causal,
            NOT_ITSELF=tokens.include_self == "never",
            **blocks,
        )
    return Found(output, indices, weights)


def backward(
    tokens: Tokens, indices: Tensor, weights: Tensor, grad_output: Tensor, grad_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, and of the selected scores (B, H, N, K)."""
    query, key, value, sent = (_in_one_piece(x) for x in (*tokens[:3], grad_output))
    widths = {"WIDTH": query.shape[3], "VALUE_WIDTH": value.shape[3]}
    block_d, block_v = (max(16, _power_of_two(n)) for n in widths.values())
    grads = (
        torch.empty_like(query),
        *(torch.zeros_like(x, dtype=torch.float32) for x in (key, value)),
    )
    grad_scores = torch.empty_like(weights)
    with torch.cuda.device_of(query):
        backward_kernels.backward_kernel[(indices.numel() // indices.shape[3],)](
            query,
            key,
            value,
            indices.contiguous(),
            weights.contiguous(),
            sent,
            grad_weights.contiguous(),
            *grads,
            grad_scores,
            query.shape[2],
            key.shape[2],
            tokens.scale,
            **widths,
            N_SLOTS=indices.shape[3],
            SQUARED=tokens.euclidean,
            BLOCK_K=min(16, _power_of_two(indices.shape[3])),
            BLOCK_D=block_d,
            BLOCK_V=block_v,
            num_warps=1 if max(block_d, block_v) <= 64 else 2,
        )
    # A layer splits heads so: then what comes next needs no copy.
    ours = [interleaved(x).copy_(grad) for x, grad in zip(tokens[:3], grads, strict=True)]
    return ours[0], ours[1], ours[2], grad_scores


def _in_one_piece(x: Tensor) -> Tensor:
    """Detach, and lay rows, heads and batch items one after the other."""
    if INTERPRETED and x.dtype == torch.bfloat16:  # which the interpreter cannot multiply
        x = x.float()
    return x.detach().contiguous()


def _power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def _blocks(width: int, value_width: int, n_slots: int, dtype: torch.dtype) -> dict[str, int]:
    """Sizes of the tiles of the forward kernel.

    Scores (BLOCK_M, BLOCK_N), the kept keys (BLOCK_M, SLOTS) and the output (BLOCK_M, BLOCK_V) live
    in registers, which ptxas finds room for in these sizes; a product needs 16 of each side.
    """
    slots = max(2, _power_of_two(n_slots))
    single = dtype == torch.float32  # its products take no tensor cores, but many registers
    rows = 64 if slots <= 32 else 32 if slots <= 64 else 16
    if single:
        rows = min(rows, 32 if width <= 64 else 16)
    return {
        "SLOTS": slots,
        "BLOCK_M": rows,
        "BLOCK_N": 32 if single else 64,
        "BLOCK_D": max(16, _power_of_two(width)),
        "BLOCK_V": max(16, _power_of_two(value_width)),
        "num_warps": 8 if single else 4,
    }
