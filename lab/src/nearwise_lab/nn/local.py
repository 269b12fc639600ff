"""Attention within a sliding window along the sequence, with rotary positions."""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.functional.tokens.pairs import unit
from nearwise.nn.tokens.base import BlockOptions, Masks, TokenAttention, check_tokens

_THETA = 10000.0


def turned(
    x: Tensor, positions: Tensor, middle: int, is_key: bool, xpos_base: float | None
) -> Tensor:
    """Turn queries or keys (..., n, head_dim) so that their products depend on their distance.

    `xpos_base` is the number of tokens after which xPos has faded by its first step, from the
    position `middle` on; None: no xPos. Su et al., "RoFormer", 2021; Sun et al., "A
    Length-Extrapolatable Transformer", 2022.
    """
    # In single precision, whatever the tokens are in.
    width, at = x.shape[-1], positions.float()
    step = torch.arange(0, width, 2, device=x.device).float()
    angles = (at[:, None] * (1.0 / _THETA ** (step / width))).repeat(1, 2)
    scale = torch.ones((), device=x.device)
    if xpos_base is not None:
        fading = (step + 0.4 * width) / (1.4 * width)
        scale = (fading ** ((at - middle) / xpos_base)[:, None]).repeat(1, 2)
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
        if rotary and self.head_dim % 2:
            raise ValueError(f"Rotary positions need an even head_dim; got {self.head_dim}.")
        self.rotary, base = rotary, xpos_scale_base or max(1, window_size // 2)
        if base <= 0:
            raise ValueError(f"xpos_scale_base={xpos_scale_base} must be positive.")
        self.xpos_base = base if use_xpos else None
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
        """Apply attention to tokens; arguments as in `TokenAttention.forward`, no candidates."""
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
        if self.rotary:
            middle = len(at) // 2
            query = turned(query, at + self.rotary_offset, middle, False, self.xpos_base)
            key = turned(key, at, middle, True, self.xpos_base)
        return self._dense(query, key, value, masks, near)[:, :, :n_tokens]
