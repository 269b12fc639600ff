"""Attention to all tokens, or to those of a fixed pattern."""

from typing import Any, Literal, Unpack, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from nearwise.functional.tokens.problem import check_mask, checked_padding
from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention

SparseMode = Literal["all", "local", "strided"]


class MultiHeadAttention(TokenAttention):
    """Every token attends to all tokens, by PyTorch's fused attention.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
    **block
        See `BlockOptions`.

    Examples
    --------
    >>> layer = MultiHeadAttention(24, num_heads=3)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    def __init__(self, dim: int, num_heads: int = 8, **block: Unpack[BlockOptions]) -> None:
        super().__init__(dim, num_heads, **block)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        return dense_attention(
            query, key, value, masks=masks, scale=self.scale, dropout_p=self._dropout
        )


class SparseAttention(TokenAttention):
    """Attention to a band of near tokens, or to every token at a multiple of a step.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
    mode : {"all", "local", "strided"}, default="local"
        "local": tokens at most ``context // 2`` away; "strided": tokens whose distance is a
        multiple of `context`; "all": all of them.
    context : int, default=32
        Width of the band, or the step.
    **block
        See `BlockOptions`.

    References
    ----------
    Child et al., "Generating Long Sequences with Sparse Transformers", 2019, without its
    causality.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        mode: SparseMode = "local",
        context: int = 32,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        if mode not in get_args(SparseMode):
            raise ValueError(f"mode={mode!r} is not one of {', '.join(get_args(SparseMode))}.")
        if context < 1:
            raise ValueError(f"context={context} must be positive.")
        self.mode, self.context = mode, context

    def extra_repr(self) -> str:
        """Tell the pattern."""
        return f"mode={self.mode!r}, context={self.context}"

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        return dense_attention(
            query,
            key,
            value,
            masks=masks,
            scale=self.scale,
            dropout_p=self._dropout,
            pattern=self._pattern(query.shape[2], query.device),
        )

    def _pattern(self, n_tokens: int, device: torch.device) -> Tensor | None:
        """Which tokens may attend to which, (N, N); None: all to all."""
        if self.mode == "all":
            return None
        at = torch.arange(n_tokens, device=device)
        gap = (at[:, None] - at).abs()
        if self.mode == "local":
            return gap <= self.context // 2
        return gap % self.context == 0


def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    masks: Masks,
    scale: float,
    dropout_p: float,
    pattern: Tensor | None = None,
) -> Tensor:
    """Scaled dot-product attention under all kinds of masks at once.

    `pattern` is boolean, broadcastable to (B, H, N, N), and True where a token may attend. The
    output is 0 where a token may attend to none.
    """
    mask = combined_mask(query, key, masks, pattern)
    options: dict[str, Any] = {"dropout_p": dropout_p, "scale": scale}
    if mask is None:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=masks.is_causal, **options
        )
    mask, is_empty = with_some_key(mask)
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)
    return attended.masked_fill(is_empty, 0.0)


def combined_mask(
    query: Tensor, key: Tensor, masks: Masks, pattern: Tensor | None
) -> Tensor | None:
    """One mask for `scaled_dot_product_attention`; None where its own causal flag does."""
    allowed, bias = pattern, None
    shape = (*query.shape[:-1], key.shape[-2])
    if masks.attn_mask is not None:
        checked = expanded_mask(masks.attn_mask, shape)
        if checked.dtype == torch.bool:
            allowed = checked if allowed is None else allowed & checked
        else:
            bias = checked.to(query.dtype)
    if masks.key_padding_mask is not None:
        keep = ~checked_padding(masks.key_padding_mask, shape[0], shape[-1])[:, None, None]
        allowed = keep if allowed is None else allowed & keep
    if masks.is_causal and (allowed is not None or bias is not None):
        past = torch.ones(shape[-2:], dtype=torch.bool, device=query.device).tril()
        allowed = past if allowed is None else allowed & past
    if bias is not None:
        bias = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        return bias
    if allowed is not None:
        # A mask of fewer than two dimensions is refused by the fused kernels.
        return allowed.expand(*allowed.shape[:-2], *shape[-2:])
    return None


def expanded_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand an attention mask to (B, H, N, M), or say why it cannot be."""
    check_mask("attn_mask", mask, "may attend")
    try:
        return mask.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} cannot be broadcast to {tuple(shape)} "
            "(batch, heads, queries, keys)."
        ) from error


def with_some_key(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Let rows that forbid every key take all, for a softmax over nothing is NaN on some devices.

    Returns the mask and where (..., N, 1) it did so: what those rows attend to must become 0.
    """
    if mask.dtype == torch.bool:
        is_empty = ~mask.any(dim=-1, keepdim=True)
        return mask | is_empty, is_empty
    is_empty = torch.isneginf(mask).all(dim=-1, keepdim=True)
    return mask.masked_fill(is_empty, 0.0), is_empty
