"""What all token layers share: projections, heads, masks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from nearwise.functional.tokens.masks import check_mask
from nearwise.functional.tokens.problem import KeyPositions, as_positions


class BlockOptions(TypedDict, total=False):
    """Options that every layer takes, by the names of timm's attention layers.

    Attributes
    ----------
    qkv_bias : bool, default=False
        Whether the projections of query, key and value have a bias.
    qk_norm : bool, default=False
        Whether queries and keys are normalized, by `norm_layer`, before they meet.
    proj_bias : bool, default=True
        Whether the output projection has a bias.
    attn_drop, proj_drop : float in [0, 1), default=0
        Dropout of the attention weights, and of the output.
    norm_layer : callable, default=LayerNorm
        Makes the norm of `qk_norm` from a width.
    head_dim : int, optional
        Width of a head; default ``dim // num_heads``.
    device, dtype
        Of the parameters.
    """

    qkv_bias: bool
    qk_norm: bool
    proj_bias: bool
    attn_drop: float
    proj_drop: float
    norm_layer: Callable[..., nn.Module]
    head_dim: int | None
    device: torch.device | str | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class Masks:
    """Who may attend whom in one call of a layer; arguments as in `TokenAttention.forward`."""

    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    is_causal: bool = False
    candidates: Tensor | None = None

    def among(self, candidates: Tensor | None) -> "Masks":
        """Give the same masks with other candidates."""
        # not dataclasses.replace, which torch 2.6 cannot compile
        return Masks(self.attn_mask, self.key_padding_mask, self.is_causal, candidates)


class TokenAttention(nn.Module, ABC):
    """Base of the layers in which tokens attend to tokens.

    Project to heads, attend in a way that the subclass knows, merge the heads, project.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
        Must divide `dim`, unless `head_dim` is given.
    qkv_bias, qk_norm, proj_bias, attn_drop, proj_drop, norm_layer, head_dim, device, dtype
        See `BlockOptions`.

    Raises
    ------
    ValueError
        If the heads do not divide the width, or a dropout is outside [0, 1).
    """

    takes_candidates = False

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] = nn.LayerNorm,
        head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads, head_dim)
        for name, rate in (("attn_drop", attn_drop), ("proj_drop", proj_drop)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name}={rate} must lie in [0, 1).")
        self.dim, self.num_heads = dim, num_heads
        self.head_dim = head_dim or dim // num_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        inner = self.head_dim * num_heads
        factory: Any = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias, **factory)
        self.q_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.attn_drop = attn_drop
        self.proj = nn.Linear(inner, dim, bias=proj_bias, **factory)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        candidates: KeyPositions | None = None,
    ) -> Tensor:
        """Let tokens attend to tokens.

        Parameters
        ----------
        x : Tensor of shape (batch, N, dim)
        attn_mask : Tensor broadcastable to (batch, heads, N, N), optional
            Boolean, True where a token may attend; or floating, added to the scores.
        key_padding_mask : bool Tensor of shape (batch, N), optional
            True leaves a token out as a key.
        is_causal : bool, default=False
            Whether a token attends only to itself and tokens before it.
        candidates : int Tensor or array of shape (C,) or (batch, C), optional
            Positions of the only tokens that may be attended.

        Returns
        -------
        output : Tensor of shape (batch, N, dim)
            A token all of whose keys are masked attends to zeros, as in PyTorch's own attention:
            what it gets is the bias of the output projection.

        Raises
        ------
        ValueError
            If shapes do not fit, or a mask is of integers.
        """
        check_tokens(x, self.dim)
        if candidates is not None and not self.takes_candidates:
            raise ValueError(
                f"{type(self).__name__} decides by itself whom a token attends to. Leave "
                "candidates out, or take a layer of k nearest neighbors."
            )
        check_masks(attn_mask, key_padding_mask)
        masks = Masks(attn_mask, key_padding_mask, is_causal, positions_in(x, candidates))
        query, key, value = self._split(self.qkv(x))
        # Under autocast norms return single precision.
        query, key = (x.to(value.dtype) for x in (self.q_norm(query), self.k_norm(key)))
        output = self._attend(query, key, value, masks)
        output = self._gated(output, x)
        return self.proj_drop(self.proj(output.transpose(1, 2).flatten(2)))

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, N, head_dim) from their common projection."""
        batch, n_tokens, _ = projected.shape
        parts = projected.view(batch, n_tokens, 3, self.num_heads, self.head_dim)
        # Taken apart where they lie: so their gradients are put together in one copy.
        query, key, value = (x.transpose(1, 2) for x in parts.unbind(2))
        return query, key, value

    @abstractmethod
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        """Attend: tensors (B, H, N, head_dim) in, one like them out."""

    def _gated(self, output: Tensor, x: Tensor) -> Tensor:
        """Change the attended heads (B, H, N, head_dim) by what the tokens are."""
        return output

    @property
    def _dropout(self) -> float:
        return self.attn_drop if self.training else 0.0


def check_n_neighbors(n_neighbors: Any) -> None:
    """Refuse what is no number of neighbors."""
    if isinstance(n_neighbors, bool) or not isinstance(n_neighbors, Integral) or n_neighbors < 1:
        raise ValueError(f"n_neighbors={n_neighbors!r} must be an integer of at least 1.")


def check_heads(dim: int, num_heads: int, head_dim: int | None = None) -> None:
    """Refuse a width that the heads do not divide."""
    if dim < 1 or num_heads < 1:
        raise ValueError(f"dim={dim} and num_heads={num_heads} must be positive.")
    if head_dim is None and dim % num_heads:
        fitting = [n for n in range(1, min(dim, 33)) if dim % n == 0]
        raise ValueError(
            f"num_heads={num_heads} does not divide dim={dim}. Take one of "
            f"{', '.join(map(str, fitting))}, or give head_dim."
        )


def check_tokens(x: Tensor, dim: int) -> None:
    """Refuse an input that is no batch of tokens."""
    if x.ndim != 3 or x.shape[-1] != dim:
        raise ValueError(f"Tokens must be of shape (batch, N, {dim}); got {tuple(x.shape)}.")


def check_masks(attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> None:
    """Refuse masks of other kinds than a layer documents, also where it would not look at them."""
    check_mask("attn_mask", attn_mask, "may attend")
    check_mask("key_padding_mask", key_padding_mask, "leave out", takes_floats=False)


def positions_in(x: Tensor, candidates: KeyPositions | None) -> Tensor | None:
    """Positions of candidates among tokens (batch, N, dim); who attends to them checks them."""
    return None if candidates is None else as_positions(candidates, x.shape[1], x.device)
