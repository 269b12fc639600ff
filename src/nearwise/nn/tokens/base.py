"""Base of token attention layers: projections, heads and masks."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypedDict

import torch
from torch import Tensor, nn

from nearwise.functional.tokens.problem import (
    KeyPositions,
    check_mask,
    check_whole,
    checked_padding,
)
from nearwise.nn.dense_attention import causal_mask, dense_attention
from nearwise.nn.dropout import Dropout
from nearwise.nn.tokens.configured import check_options, configured


class BlockOptions(TypedDict, total=False):
    """Common options of all layers, named as in timm's attention layers.

    Attributes
    ----------
    qkv_bias : bool, default=False
        Whether the projections of query, key and value have a bias.
    qk_norm : bool, default=False
        Whether to normalize queries and keys by `norm_layer` before the scores.
    proj_bias : bool, default=True
        Whether the output projection has a bias.
    attn_drop, proj_drop : float in [0, 1), default=0
        Dropout of the attention weights, and of the output.
    norm_layer : callable, default=LayerNorm
        Makes the norm of `qk_norm` from a width.
    head_dim : int, optional
        Width of a head; default ``dim // num_heads``. timm's name is `attn_head_dim`.
    scale_norm, gated, dim_out
        Passed by timm; only False, False and the width of the tokens are allowed.
    device, dtype
        Device and dtype of the parameters.
    """

    qkv_bias: bool
    qk_norm: bool
    proj_bias: bool
    attn_drop: float
    proj_drop: float
    norm_layer: Callable[..., nn.Module]
    head_dim: int | None
    attn_head_dim: int | None
    scale_norm: bool
    gated: bool
    dim_out: int | None
    device: torch.device | str | None
    dtype: torch.dtype | None


@dataclass(frozen=True)
class Masks:
    """Keys that each query may attend to; arguments as in `TokenAttention.forward`."""

    attn_mask: Tensor | None = None
    key_padding_mask: Tensor | None = None
    is_causal: bool = False
    candidates: KeyPositions | None = None

    def among(self, candidates: KeyPositions | None) -> "Masks":
        """Return the same masks with other candidates."""
        # not dataclasses.replace, which torch 2.6 cannot compile
        return Masks(self.attn_mask, self.key_padding_mask, self.is_causal, candidates)


class TokenAttention(nn.Module, ABC):
    """Base of layers in which tokens attend to tokens.

    Project to heads, attend as the subclass defines, merge the heads, project.

    Parameters
    ----------
    dim : int
        Width of a token.
    num_heads : int, default=8
        Number of heads; must divide `dim`, unless `head_dim` is given.
    qkv_bias, qk_norm, proj_bias, attn_drop, proj_drop, norm_layer, head_dim, attn_head_dim,
    scale_norm, gated, dim_out, device, dtype
        See `BlockOptions`.

    Raises
    ------
    ValueError
        If the heads do not divide the width, a width is not positive, a dropout is outside
        [0, 1), or timm passes a norm, a gate or another output width.
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
        *,
        attn_head_dim: int | None = None,
        scale_norm: bool = False,
        gated: bool = False,
        dim_out: int | None = None,
        **unknown: Any,
    ) -> None:
        check_options(type(self), unknown, self._options())
        super().__init__()
        for name, asked, only in (
            ("scale_norm", scale_norm, False),
            ("gated", gated, False),
            ("dim_out", dim if dim_out is None else dim_out, dim),
            ("head_dim", head_dim if attn_head_dim is None else attn_head_dim, head_dim),
        ):
            if asked != only and not (name == "head_dim" and only is None):
                raise ValueError(
                    f"{type(self).__name__} has no {name}={asked!r}, which timm's attention has: "
                    f"only {name}={only!r}. Take a model without it, or another layer there."
                )
        head_dim = attn_head_dim if head_dim is None else head_dim
        if head_dim is None:
            check_heads(dim, num_heads)
            head_dim = dim // num_heads
        for name, number in (("dim", dim), ("num_heads", num_heads), ("head_dim", head_dim)):
            check_whole(name, number)
        for name, rate in (("attn_drop", attn_drop), ("proj_drop", proj_drop)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name}={rate} must lie in [0, 1).")
        self.dim, self.num_heads = dim, num_heads
        self.head_dim = head_dim
        self.scale = 1 / math.sqrt(self.head_dim)
        inner = self.head_dim * num_heads
        factory: Any = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(dim, 3 * inner, bias=qkv_bias, **factory)
        self.q_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.attn_drop = attn_drop
        self.proj = nn.Linear(inner, dim, bias=proj_bias, **factory)
        self.proj_drop = Dropout(proj_drop)

    @classmethod
    def configured(cls, **options: Any) -> type[Self]:
        """Return a subclass with preset options, for models that make layers from a class.

        The same options give the same class; its layers can be pickled and copied. Models such as
        timm's pass further options to the class; they must not contradict the preset ones.

        Raises
        ------
        TypeError
            If the layer has no such option.

        Examples
        --------
        >>> from nearwise.nn import KNNAttention
        >>> KNNAttention.configured(n_neighbors=5)(24, num_heads=3)  # doctest: +ELLIPSIS
        KNNAttention(
          n_neighbors=5, metric='matmul'...
        """
        made: type[Self] = configured(cls, options, cls._options())
        return made

    @classmethod
    def _options(cls) -> set[str]:
        """Return the names of the options of a layer."""
        known = set(inspect.signature(cls).parameters) | set(BlockOptions.__annotations__)
        return known - {"dim", "block", "options", "unknown"}

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        *,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        candidates: KeyPositions | None = None,
    ) -> Tensor:
        """Attend tokens to tokens.

        Returns `output`, Tensor of shape (batch, N, dim). If all keys of a token are masked, its
        output is the bias of the output projection, as in PyTorch's own attention. Raises
        ValueError if shapes do not fit, or a mask is of integers.

        Parameters
        ----------
        x : Tensor of shape (batch, N, dim)
        attn_mask : Tensor broadcastable to (batch, heads, N, N), optional
            Boolean, True where a token may attend; or floating, added to the scores.
        key_padding_mask : bool Tensor of shape (batch, N), optional
            True excludes a token as a key.
        is_causal : bool, default=False
            Whether a token attends only to itself and tokens before it.
        candidates : int Tensor or array of shape (C,) or (batch, C), optional
            Positions of the allowed keys; default all.
        """
        check_tokens(x, self.dim)
        if candidates is not None and not self.takes_candidates:
            raise ValueError(
                f"{type(self).__name__} decides by itself which tokens a token attends to. Leave "
                "candidates out, or take a layer of k nearest neighbors."
            )
        check_masks(attn_mask, key_padding_mask)
        masks = Masks(attn_mask, key_padding_mask, is_causal, candidates)
        return self._merged(self._gated(self._attend(*self._heads(x), masks), x))

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return normalized query, key and value (B, H, N, head_dim) of tokens."""
        query, key, value = self._split(self.qkv(x))
        # Under autocast norms return single precision.
        return self.q_norm(query).to(value.dtype), self.k_norm(key).to(value.dtype), value

    def _merged(self, output: Tensor) -> Tensor:
        """Return tokens (B, N, dim) from attended heads (B, H, N, head_dim)."""
        return self.proj_drop(self.proj(output.transpose(1, 2).flatten(2)))

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value (B, H, N, head_dim) from their common projection."""
        batch, n_tokens, _ = projected.shape
        parts = projected.view(batch, n_tokens, 3, self.num_heads, self.head_dim)
        # Views from `unbind`, so that their gradients are joined in one copy.
        query, key, value = (x.transpose(1, 2) for x in parts.unbind(2))
        return query, key, value

    @abstractmethod
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> Tensor:
        """Attend: tensors (B, H, N, head_dim) in, one of the same shape out."""

    def _dense(
        self, query: Tensor, key: Tensor, value: Tensor, masks: Masks, pattern: Tensor | None = None
    ) -> Tensor:
        """Scaled dot-product attention under all masks; 0 for tokens without an allowed key.

        `pattern` is boolean, broadcastable to (B, H, N, N), and True where a token may attend.
        """
        mask = combined_mask(query, key, masks, pattern)
        options: dict[str, Any] = {"dropout_p": self._dropout, "scale": self.scale}
        if mask is None:
            return dense_attention(query, key, value, is_causal=masks.is_causal, **options)
        mask, is_empty = with_some_key(mask)
        attended = dense_attention(query, key, value, mask, **options)
        return attended.masked_fill(is_empty, 0.0)

    def _gated(self, output: Tensor, x: Tensor) -> Tensor:
        """Gate the attended heads (B, H, N, head_dim) by the tokens; by default not at all."""
        return output

    @property
    def _dropout(self) -> float:
        return self.attn_drop if self.training else 0.0


def check_heads(dim: int, num_heads: int, *, name: str = "dim") -> None:
    """Raise ValueError unless the heads divide the width, an argument called `name`."""
    check_whole(name, dim)
    check_whole("num_heads", num_heads)
    if dim % num_heads:
        fitting = [n for n in range(1, min(dim, 33)) if dim % n == 0]
        raise ValueError(
            f"num_heads={num_heads} does not divide {name}={dim}. Take one of "
            f"{', '.join(map(str, fitting))}."
        )


def check_name(name: str, given: Any, known: Sequence[str]) -> None:
    """Raise ValueError if an option is not one of the `known` ones."""
    if given not in known:
        raise ValueError(f"{name}={given!r} is not one of {', '.join(known)}.")


def check_tokens(x: Tensor, dim: int) -> None:
    """Raise ValueError unless the input is a batch of tokens."""
    if x.ndim != 3 or x.shape[-1] != dim:
        raise ValueError(f"Tokens must be of shape (batch, N, {dim}); got {tuple(x.shape)}.")


def check_masks(attn_mask: Tensor | None, key_padding_mask: Tensor | None) -> None:
    """Raise ValueError for unsupported kinds of masks, even unused ones."""
    check_mask("attn_mask", attn_mask, "may attend")
    check_mask("key_padding_mask", key_padding_mask, "leave out", takes_floats=False)


def combined_mask(
    query: Tensor, key: Tensor, masks: Masks, pattern: Tensor | None
) -> Tensor | None:
    """Merge all masks for `scaled_dot_product_attention`; None if its causal flag suffices."""
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
        past = causal_mask(query, key)
        allowed = past if allowed is None else allowed & past
    if bias is not None:
        bias = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        return bias
    if allowed is not None:
        # Fused kernels need a mask of at least two dimensions.
        return allowed.expand(*allowed.shape[:-2], *shape[-2:])
    return None


def expanded_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Expand an attention mask to (B, H, N, M); ValueError if it cannot be broadcast."""
    check_mask("attn_mask", mask, "may attend")
    try:
        return mask.expand(shape)
    except RuntimeError as error:
        raise ValueError(
            f"attn_mask of shape {tuple(mask.shape)} cannot be broadcast to {tuple(shape)} "
            "(batch, heads, queries, keys)."
        ) from error


def with_some_key(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Allow all keys in rows that forbid every key: an empty softmax may be NaN.

    Returns the mask and a mask (..., N, 1) of the changed rows, to set their output to 0.
    """
    if mask.dtype == torch.bool:
        is_empty = ~mask.any(dim=-1, keepdim=True)
        return mask | is_empty, is_empty
    is_empty = torch.isneginf(mask).all(dim=-1, keepdim=True)
    return mask.masked_fill(is_empty, 0.0), is_empty
