"""Dense attention with fast training on a CPU."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.devices import fast_bfloat16
from nearwise.nn.dropout import dropout, runs_as_written

_MOST_SCORES = 2**18  # per head; above it the formula takes far more memory than the fused pass


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention as in torch, but faster in training on a CPU.

    On a CPU the plain formula runs with dropout, for which torch computes in float32 and draws one
    number per weight; and in bfloat16 up to 512 x 512 tokens, where torch's fused backward pass
    takes two to seven times as long. Products then keep the dtype of the query, and every query
    must have an allowed key. In all other cases torch's own function is called.
    """
    if not _trains_faster(query, key, dropout_p):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale
        )
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query * scale) @ key.transpose(-1, -2)
    if is_causal:
        scores = scores.masked_fill(~causal_mask(query, key), -torch.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
    return dropout(torch.softmax(scores, dim=-1), dropout_p) @ value


def causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Boolean mask (N, M): a token attends to itself and to earlier tokens."""
    shape = query.shape[-2], key.shape[-2]
    return torch.ones(shape, dtype=torch.bool, device=query.device).tril()


def _trains_faster(query: Tensor, key: Tensor, dropout_p: float) -> bool:
    if not runs_as_written(query):
        return False
    if dropout_p:
        return True
    is_training = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    is_short = query.shape[-2] * key.shape[-2] <= _MOST_SCORES
    is_half = query.dtype == torch.bfloat16 and fast_bfloat16(query.device)
    return is_training and is_short and is_half
