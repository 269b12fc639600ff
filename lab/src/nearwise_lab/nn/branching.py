"""Layers that split the channels: ConvNN on some, a convolution or full attention on the others."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens.problem import KeyPositions, checked_padding
from nearwise.nn.dropout import Dropout
from nearwise.nn.tokens.base import BlockOptions, check_heads, check_masks, check_tokens
from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import MultiHeadAttention


class TokenConvolution(nn.Module):
    """A convolution along the sequence of tokens, the same for every head.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
    kernel_size : int, default=9
        Tokens it spans; the sequence is padded with zeros.
    proj_drop : float, default=0
        Dropout of the output.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        kernel_size: int = 9,
        proj_drop: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        if kernel_size < 1:
            raise ValueError(f"kernel_size={kernel_size} must be positive.")
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.dim, self.num_heads, self.head_dim = dim, num_heads, dim // num_heads
        self.proj_in = nn.Linear(dim, dim, **factory)
        width = self.head_dim
        self.conv = nn.Conv1d(width, width, kernel_size, padding="same", **factory)
        self.proj = nn.Linear(dim, dim, **factory)
        self.proj_drop = Dropout(proj_drop)

    def forward(self, x: Tensor, *, key_padding_mask: Tensor | None = None) -> Tensor:
        """Convolve tokens (batch, N, dim); tokens that `key_padding_mask` names count as 0."""
        check_tokens(x, self.dim)
        batch, n_tokens, _ = x.shape
        x = self.proj_in(x)
        if key_padding_mask is not None:
            padding = checked_padding(key_padding_mask, batch, n_tokens)
            x = x.masked_fill(padding[..., None], 0.0)
        heads = x.view(batch, n_tokens, self.num_heads, self.head_dim).permute(0, 2, 3, 1)
        heads = self._convolved(heads.flatten(0, 1)).view(heads.shape).transpose(2, 3)
        return self.proj_drop(self.proj(heads.transpose(1, 2).flatten(2)))

    def _convolved(self, heads: Tensor) -> Tensor:
        """Convolve (B * H, head_dim, N), also for N = 0, where torch raises an error."""
        n_tokens = heads.shape[2]
        output: Tensor = self.conv(heads if n_tokens else F.pad(heads, (0, 1)))
        return output[..., :n_tokens]


class _Branching(nn.Module, ABC):
    """ConvNN on the first channels, another layer on the rest, and a linear layer on both."""

    _convnn_layer: ClassVar[type[ConvNNAttention]] = ConvNNAttention

    def __init__(self, dim: int, num_heads: int, branch_ratio: float, options: Any) -> None:
        super().__init__()
        self.n_convnn = n = split_width(dim, num_heads, branch_ratio)
        self.dim, self.n_rest, self.branch_ratio = dim, dim - n, branch_ratio
        self.convnn = self._convnn_layer(n, num_heads, **options) if n else None
        self._factory: Any = {name: options.get(name) for name in ("device", "dtype")}
        self.pointwise = nn.Linear(dim, dim, **self._factory) if 0 < n < dim else None

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        candidates: KeyPositions | None = None,
    ) -> Tensor:
        """Apply attention to tokens; arguments as in `TokenAttention.forward`.

        `candidates` concern the ConvNN branch only.
        """
        check_tokens(x, self.dim)
        check_masks(attn_mask, key_padding_mask)
        masks: dict[str, Any] = {"key_padding_mask": key_padding_mask, "is_causal": is_causal}
        first, rest = x.split((self.n_convnn, self.n_rest), dim=-1)
        parts = []
        if self.convnn is not None:
            parts.append(self.convnn(first, attn_mask, candidates=candidates, **masks))
        if self.n_rest:
            parts.append(self._attend_rest(rest, attn_mask, **masks))
        if self.pointwise is None:
            return parts[0]
        output: Tensor = self.pointwise(torch.cat(parts, dim=-1))
        return output

    @abstractmethod
    def _attend_rest(self, x: Tensor, attn_mask: Tensor | None, **masks: Any) -> Tensor:
        """Attend with the channels outside the ConvNN branch."""


class BranchingConv(_Branching):
    """ConvNN on a share of the channels, a convolution along the sequence on the others.

    `attn_mask` and `candidates` concern the ConvNN branch; a convolution reads both ways, so
    ``is_causal=True`` needs ``branch_ratio=1``.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
        Heads of each branch.
    branch_ratio : float in [0, 1], default=0.5
        Share of the channels in the ConvNN branch, rounded down to a multiple of the heads, at
        least one each, except with 0 and 1.
    kernel_size : int, default=9
        Of the convolution.
    **convnn
        Options of `ConvNNAttention`.

    Examples
    --------
    >>> layer = BranchingConv(24, num_heads=3, branch_ratio=0.25, n_neighbors=5)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    _convolution_layer: ClassVar[type[TokenConvolution]] = TokenConvolution

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        branch_ratio: float = 0.5,
        kernel_size: int = 9,
        **convnn: Any,
    ) -> None:
        super().__init__(dim, num_heads, branch_ratio, convnn)
        if self.n_rest:
            self.convolution = self._convolution_layer(
                self.n_rest, num_heads, kernel_size=kernel_size, **self._factory
            )

    def _attend_rest(self, x: Tensor, attn_mask: Tensor | None, **masks: Any) -> Tensor:
        if masks["is_causal"]:
            raise ValueError("A convolution uses later tokens too: is_causal must be False.")
        output: Tensor = self.convolution(x, key_padding_mask=masks["key_padding_mask"])
        return output


class BranchingAttention(_Branching):
    """ConvNN on a share of the channels, attention to all tokens on the others.

    Parameters
    ----------
    dim, num_heads, branch_ratio
        As for `BranchingConv`.
    **convnn
        Options of `ConvNNAttention`; those of `BlockOptions` hold for both branches.
    """

    def __init__(
        self, dim: int, num_heads: int = 8, *, branch_ratio: float = 0.5, **convnn: Any
    ) -> None:
        super().__init__(dim, num_heads, branch_ratio, convnn)
        if self.n_rest:
            block = {name: convnn[name] for name in BlockOptions.__annotations__ if name in convnn}
            self.attention = MultiHeadAttention(self.n_rest, num_heads, **block)

    def _attend_rest(self, x: Tensor, attn_mask: Tensor | None, **masks: Any) -> Tensor:
        output: Tensor = self.attention(x, attn_mask, **masks)
        return output


def split_width(dim: int, num_heads: int, ratio: float) -> int:
    """Channels of the ConvNN branch: a multiple of the heads.

    Raises ValueError if the heads do not divide the width, the ratio is outside [0, 1], or there
    is only one channel a head to share.
    """
    check_heads(dim, num_heads)
    if not 0 <= ratio <= 1:
        raise ValueError(f"branch_ratio={ratio} must lie in [0, 1]: it is a share of channels.")
    if ratio in (0, 1):
        return int(ratio) * dim
    if dim < 2 * num_heads:
        raise ValueError(
            f"dim={dim} cannot be split for num_heads={num_heads} in each of two branches. Take "
            "fewer heads, or branch_ratio 0 or 1."
        )
    width = int(ratio * dim) // num_heads * num_heads
    return min(max(width, num_heads), dim - num_heads)
