"""Attention to all tokens."""

from typing import Unpack

from torch import Tensor

from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention


class MultiHeadAttention(TokenAttention):
    """Every token attends to all tokens, by PyTorch's fused attention.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.

    Examples
    --------
    >>> layer = MultiHeadAttention(24, num_heads=3)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    def __init__(self, dim: int, num_heads: int = 8, **block: Unpack[BlockOptions]) -> None:
        super().__init__(dim, num_heads, **block)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        return self._dense(query, key, value, masks)
