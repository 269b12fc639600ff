"""Attention within a sliding window along the sequence, with rotary positions."""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens.pairs import unit
from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention, check_tokens

_THETA = 10000.0


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

    All pairs are scored, under a mask.

    Parameters
    ----------
    dim, num_heads, **block
        Width of a token, heads (8 by default), and what every layer takes: see `BlockOptions`.
    window_size : int, default=128
    causal : bool, default=False
        Whether a token attends only to itself and tokens before it.
    exact_window : bool, default=True
        Whether tokens farther than `window_size` are left out; else the sequence is cut into
        windows, and a token attends to its own, the one before and the one behind.
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
        Let zeros that fill up the last window take part, as the published code does; no masks.

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
        n_tokens = query.shape[2]
        if self.legacy_layout:
            if masks.attn_mask is not None or masks.key_padding_mask is not None:
                raise ValueError("A layer with legacy_layout=True supports no masks. Leave it out.")
            lacking = -n_tokens % self.window_size
            query, key, value = (F.pad(x, (0, 0, 0, lacking)) for x in (query, key, value))
        at = torch.arange(query.shape[2], device=query.device)
        if self.exact_window:
            near = (at[:, None] - at).abs() <= self.window_size
        else:
            window = at // self.window_size
            near = (window[:, None] - window).abs() <= 1
        if self.positions is not None:
            middle = len(at) // 2
            query = self.positions.turn(query, at + self.rotary_offset, middle, is_key=False)
            key = self.positions.turn(key, at, middle, is_key=True)
        return self._dense(query, key, value, masks, near)[:, :, :n_tokens]
