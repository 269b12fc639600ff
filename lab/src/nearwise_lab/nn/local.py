"""Attention within a sliding window along the sequence, with rotary positions."""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens.pairs import unit
from nearwise.functional.tokens.problem import checked_padding
from nearwise.nn.dense_attention import dense_attention
from nearwise.nn.tokens.base import (
    BlockOptions,
    Masks,
    TokenAttention,
    check_tokens,
    expanded_mask,
    with_some_key,
)

_THETA = 10000.0
_FEW_WINDOWS = 4  # each window of a longer sequence is attended with the two beside it


class RotaryPositions(nn.Module):
    """Turn queries and keys so that their products depend on the distance of the tokens.

    `xpos_scale_base` is the number of tokens after which xPos has faded by its first step; None: no
    xPos. Su et al., "RoFormer", 2021; Sun et al., "A Length-Extrapolatable Transformer", 2022.
    """

    inv_freq: Tensor
    fading: Tensor

    def __init__(
        self,
        head_dim: int,
        xpos_scale_base: float | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if head_dim % 2:
            raise ValueError(f"Rotary positions need an even head_dim; got {head_dim}.")
        if xpos_scale_base is not None and xpos_scale_base <= 0:
            raise ValueError(f"xpos_scale_base={xpos_scale_base} must be positive.")
        self.head_dim, self.xpos_scale_base = head_dim, xpos_scale_base
        # Positions are not state: they follow from the width, in full precision.
        self.register_buffer("inv_freq", torch.empty(0, device=device), persistent=False)
        self.register_buffer("fading", torch.empty(0, device=device), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the frequencies."""
        step = torch.arange(0, self.head_dim, 2, device=self.inv_freq.device).float()
        self.inv_freq = 1.0 / (_THETA ** (step / self.head_dim))
        self.fading = (step + 0.4 * self.head_dim) / (1.4 * self.head_dim)

    def turn(self, x: Tensor, positions: Tensor, middle: int, is_key: bool) -> Tensor:
        """Turn queries or keys (..., n, head_dim) at `positions` (n,).

        At the position `middle` xPos neither fades nor swells.
        """
        at = positions.to(torch.float32)
        angles = (at[:, None] * self.inv_freq.float()).repeat(1, 2)
        scale = torch.ones((), device=x.device)
        if self.xpos_scale_base is not None:
            power = (at - middle) / self.xpos_scale_base
            scale = (self.fading.float() ** power[:, None]).repeat(1, 2)
            scale = 1 / scale if is_key else scale
        first, second = x.chunk(2, dim=-1)
        swapped = torch.cat([-second, first], dim=-1)
        cos, sin = (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)
        return x * cos + swapped * sin


class LocalAttention(TokenAttention):
    """Every token attends to the tokens at most `window_size` away.

    The sequence is cut into windows; the tokens of one see the window before, their own and the
    one behind. Memory grows with N times the window. A sequence of a few windows is attended
    whole, under a mask: that is faster.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    window_size : int, default=128
    causal : bool, default=False
        Whether a token attends only to itself and tokens before it.
    exact_window : bool, default=True
        Whether tokens farther than `window_size` are left out; else a token attends to its three
        windows whole.
    rotary : bool, default=True
        Whether queries and keys carry rotary positions.
    rotary_offset : int, default=0
        Added to the positions of the queries.
    use_xpos : bool, default=False
    xpos_scale_base : float, optional
        Default ``window_size // 2``.
    qk_rmsnorm : bool, default=False
        Whether queries and keys are brought to unit length and scaled, channel by channel.
    qk_scale : float, default=8.0
        Factor of the scores with `qk_rmsnorm`.
    prenorm : bool, default=False
        Whether the input passes a LayerNorm.
    gate_values : bool, default=False
        Whether each head's output is multiplied by a gate in (0, 1) from the token.
    legacy_layout : bool, default=False
        Let the zeros that fill up the last window take part, as the published code does.

    References
    ----------
    github.com/lucidrains/local-attention.

    Examples
    --------
    >>> layer = LocalAttention(24, num_heads=3, window_size=4)
    >>> layer(torch.randn(2, 17, 24)).shape
    torch.Size([2, 17, 24])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        window_size: int = 128,
        causal: bool = False,
        exact_window: bool = True,
        rotary: bool = True,
        rotary_offset: int = 0,
        use_xpos: bool = False,
        xpos_scale_base: float | None = None,
        qk_rmsnorm: bool = False,
        qk_scale: float = 8.0,
        prenorm: bool = False,
        gate_values: bool = False,
        legacy_layout: bool = False,
        **block: Unpack[BlockOptions],
    ) -> None:
        super().__init__(dim, num_heads, **block)
        if window_size < 1:
            raise ValueError(f"window_size={window_size} must be positive.")
        factory: Any = {"device": block.get("device"), "dtype": block.get("dtype")}
        self.window_size, self.causal, self.exact_window = window_size, causal, exact_window
        self.legacy_layout, self.rotary_offset = legacy_layout, rotary_offset
        self.norm = nn.LayerNorm(dim, **factory) if prenorm else nn.Identity()
        self.positions: RotaryPositions | None = None
        if rotary:
            base = (xpos_scale_base or max(1, window_size // 2)) if use_xpos else None
            self.positions = RotaryPositions(self.head_dim, base, block.get("device"))
        self.qk_rmsnorm = qk_rmsnorm
        if qk_rmsnorm:
            self.scale = qk_scale
            self.q_scale = nn.Parameter(torch.ones(self.head_dim, **factory))
            self.k_scale = nn.Parameter(torch.ones(self.head_dim, **factory))
        self.gate = nn.Linear(dim, num_heads, **factory) if gate_values else None

    def extra_repr(self) -> str:
        """Return the window."""
        return f"window_size={self.window_size}, causal={self.causal}"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, **masks: Any) -> Tensor:
        """Let tokens attend; arguments as in `TokenAttention.forward`, no candidates."""
        check_tokens(x, self.dim)
        masks["is_causal"] = masks.get("is_causal", False) or self.causal
        return super().forward(self.norm(x), attn_mask, **masks)

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._split(projected)
        if self.qk_rmsnorm:
            query = unit(query).to(query.dtype) * self.q_scale
            key = unit(key).to(key.dtype) * self.k_scale
        return query, key, value

    def _gated(self, output: Tensor, x: Tensor) -> Tensor:
        if self.gate is None:
            return output
        return output * self.gate(x).sigmoid().transpose(1, 2)[..., None]

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        n_tokens, window = query.shape[2], self.window_size
        few = _FEW_WINDOWS if self.exact_window else 1
        if n_tokens == 0 or (n_tokens <= few * window and not self.legacy_layout):
            return self._attend_whole(query, key, value, masks)
        lacking = -n_tokens % window
        query, key, value = (F.pad(x, (0, 0, 0, lacking)) for x in (query, key, value))
        n_behind = 0 if self.causal else 1
        own = query.unflatten(2, (-1, window))
        key, value = (_with_neighbors(x, window, n_behind) for x in (key, value))
        if self.positions is not None:
            n_keys = key.shape[3]
            at = torch.arange(n_keys, device=key.device)
            # The own window is the second of the keys'.
            here = at[window : 2 * window] + self.rotary_offset
            own = self.positions.turn(own, here, n_keys // 2, is_key=False)
            key = self.positions.turn(key, at, n_keys // 2, is_key=True)
        mask = self._mask(query, n_tokens, masks)
        # Filled up rows are cut off, but NaN in them would get into gradients.
        mask, is_empty = with_some_key(mask.expand(*(1,) * (5 - mask.ndim), *mask.shape))
        mask = mask.expand(-1, self.num_heads, -1, -1, -1)
        # Windows beside heads: the fused kernels take four dimensions.
        own, key, value = (x.flatten(1, 2) for x in (own, key, value))
        output = dense_attention(
            own,
            key,
            value,
            attn_mask=mask.flatten(1, 2),
            dropout_p=self._dropout,
            scale=self.scale,
        )
        output = output.unflatten(1, (self.num_heads, -1)).masked_fill(is_empty, 0.0)
        return output.flatten(2, 3)[:, :, :n_tokens]

    def _attend_whole(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        """Attend to all tokens, under a mask where they fill more than a window."""
        at, pattern = torch.arange(query.shape[2], device=key.device), None
        if len(at) > self.window_size:
            pattern = (at[:, None] - at).abs() <= self.window_size
        if self.positions is not None:
            n_tokens = len(at)
            here = at + self.rotary_offset
            query = self.positions.turn(query, here, n_tokens // 2, is_key=False)
            key = self.positions.turn(key, at, n_tokens // 2, is_key=True)
        return self._dense(query, key, value, masks, pattern)

    def _mask(self, query: Tensor, n_tokens: int, masks: Masks) -> Tensor:
        """Keys each query may attend to, broadcastable to (B, H, windows, w, keys of a window)."""
        batch, heads, n_padded, _ = query.shape
        window = self.window_size
        at = torch.arange(n_padded, device=query.device).view(-1, window)
        spread = torch.arange(-window, window if self.causal else 2 * window, device=query.device)
        keys = at[:, :1] + spread  # (windows, keys)
        last = n_padded if self.legacy_layout else n_tokens
        allowed = ((keys >= 0) & (keys < last))[:, None]
        gap = at[:, :, None] - keys[:, None]
        if self.exact_window:
            allowed = allowed & (gap.abs() <= window)
        if masks.is_causal:
            allowed = allowed & (gap >= 0)
        inside = keys.clamp(0, n_tokens - 1)
        bias = None
        if masks.key_padding_mask is not None:
            padding = checked_padding(masks.key_padding_mask, batch, n_tokens)
            allowed = allowed & ~padding[:, None, inside][:, :, :, None]
        if masks.attn_mask is not None:
            whole = expanded_mask(masks.attn_mask, (batch, heads, n_tokens, n_tokens))
            part = whole[:, :, at.clamp_max(n_tokens - 1)[:, :, None], inside[:, None]]
            if part.dtype == torch.bool:
                allowed = allowed & part
            else:
                bias = part
                allowed = allowed & ~torch.isneginf(part)
        return allowed if bias is None else bias.masked_fill(~allowed, -torch.inf)


def _with_neighbors(x: Tensor, window: int, n_behind: int) -> Tensor:
    """Each window (B, H, W, w, D) with the one before and `n_behind` after it, zeros outside."""
    padded = F.pad(x, (0, 0, window, n_behind * window))
    size = (2 + n_behind) * window
    return padded.unfold(2, size, window).mT
