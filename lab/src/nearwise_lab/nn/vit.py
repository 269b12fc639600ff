"""A vision transformer with any token layer for attention."""

import inspect
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nearwise.nn.dropout import Dropout
from nearwise.nn.tokens.base import check_name
from nearwise_lab.nn.layers import LayerFactory, token_layer

Positions = Literal["learned", "sincos", "sincos-2d", "none"]


class PatchEmbedding(nn.Module):
    """Cut images into patches and project each to a token."""

    def __init__(self, patch_size: int, in_channels: int, dim: int, norm: bool = False) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(dim) if norm else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Turn images (B, C, H, W) into tokens (B, N, dim), row by row."""
        tokens: Tensor = self.norm(self.proj(images).flatten(2).transpose(1, 2))
        return tokens


class TokenPositions(nn.Module):
    """Add its position to each token.

    "sincos" counts all tokens in a row, with the prefix, and needs an even `dim`; "sincos-2d"
    encodes row and column in half of the channels each (`dim` is a multiple of 4), and leaves the
    prefix as is.
    """

    def __init__(
        self, kind: Positions, grid_size: tuple[int, int], num_prefix_tokens: int, dim: int
    ) -> None:
        super().__init__()
        check_name("positions", kind, get_args(Positions))
        divisor = {"sincos": 2, "sincos-2d": 4}.get(kind, 1)
        if dim % divisor:
            raise ValueError(f"positions={kind!r} need a dim that {divisor} divides; got {dim}.")
        self.kind = kind
        n_tokens = num_prefix_tokens + math.prod(grid_size)
        if kind == "learned":
            self.table = nn.Parameter(torch.empty(1, n_tokens, dim))
            nn.init.trunc_normal_(self.table, std=0.02)
        elif kind != "none":
            self.register_buffer("table", self._waves(grid_size, n_tokens, dim), persistent=False)

    def _waves(self, grid_size: tuple[int, int], n_tokens: int, dim: int) -> Tensor:
        """Table (1, N, dim) of sines and cosines."""
        if self.kind == "sincos":
            return waves(torch.arange(n_tokens).float(), dim, interleave=True)[None]
        where = torch.cartesian_prod(*(torch.arange(n).float() for n in grid_size))
        halves = [waves(at, dim // 2, interleave=False) for at in where.unbind(1)]
        return F.pad(torch.cat(halves, dim=1), (0, 0, n_tokens - len(where), 0))[None]

    def forward(self, tokens: Tensor) -> Tensor:
        """Add positions to tokens (B, N, dim)."""
        if self.kind == "none":
            return tokens
        return tokens + self.table.to(tokens.dtype)


def waves(at: Tensor, dim: int, interleave: bool) -> Tensor:
    """Sines and cosines (n, dim) of positions (n,), of wavelengths from 2 pi to 10,000 x 2 pi.

    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, sec. 3.5.
    """
    frequency = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
    angles = at[:, None] * frequency
    both = (angles.sin(), angles.cos())
    return torch.stack(both, dim=-1).flatten(1) if interleave else torch.cat(both, dim=1)


class DropPath(nn.Module):
    """Stochastic depth: skip a branch for a share `rate` of the examples in training.

    Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path={rate} must lie in [0, 1).")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Zero whole examples (B, ...)."""
        if not self.training or self.rate == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1)
        kept = torch.rand(shape, device=x.device) >= self.rate
        return x * kept.to(x.dtype) / (1 - self.rate)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"{self.rate:.3g}"


class Block(nn.Module):
    """A pre-norm transformer layer: ``x + attn(norm(x))``, then ``x + mlp(norm(x))``.

    `dropout` is of both branches and the hidden layer, `drop_path` as in `DropPath`.
    """

    def __init__(
        self,
        attn: nn.Module,
        dim: int,
        mlp_dim: int,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.norm2 = nn.LayerNorm(dim)
        layers = {"fc1": nn.Linear(dim, mlp_dim), "act": nn.GELU(), "drop": Dropout(dropout)}
        self.mlp = nn.Sequential(OrderedDict(layers, fc2=nn.Linear(mlp_dim, dim)))
        self.drop = Dropout(dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Transform tokens (B, N, dim)."""
        x = x + self.drop_path(self.drop(self.attn(self.norm1(x))))
        return x + self.drop_path(self.drop(self.mlp(self.norm2(x))))


Pooling = Literal["token", "mean"]
Init = Literal["truncated-normal", "torch"]
LayerChoice = str | LayerFactory


class VisionTransformer(nn.Module):
    """Classify images by attention among the tokens of their patches.

    Parameters
    ----------
    image_size : int or tuple of int, default=224
        Height and width in pixels.
    patch_size : int, default=16
    in_channels : int, default=3
    n_classes : int, default=1000
    dim : int, default=192
        Width of a token.
    depth : int, default=12
        Layers.
    num_heads : int, default=3
    mlp_dim : int, optional
        Width of the hidden layer after attention; default four times `dim`.
    layer : str, callable, or sequence of `depth` of them, default="KNNAttention"
        A token layer by name or class: one for all layers, or one each.
    layer_options : mapping, or sequence of `depth` of them, optional
        Their options. Layers that take `grid_size` and `num_prefix_tokens` get them.
    pooling : {"token", "mean"}, default="token"
        What is classified: the class token, or the mean of the patches (then there is no class
        token).
    num_registers : int, default=0
        Learned tokens beside the class token.
    positions : {"learned", "sincos", "sincos-2d", "none"}, default="learned"
        See `TokenPositions`.
    patch_norm : bool, default=False
        Whether patches pass a LayerNorm when they become tokens.
    final_norm : bool, default=True
        Whether tokens pass a LayerNorm before they are pooled.
    dropout, attn_drop : float in [0, 1), default=0
        Of the branches of each layer, and of the attention.
    drop_path : float in [0, 1), default=0
        Rate of the last layer; it rises linearly from 0 at the first. See `DropPath`.
    init : {"truncated-normal", "torch"}, default="truncated-normal"
        First weights: linear layers and tokens of deviation 0.02, or each layer's own in torch and
        tokens of deviation 1.
    random_state : int, optional
        Seed of the first weights; torch's random state stays as it was. Default: drawn from it.

    Raises
    ------
    ValueError
        If a layer is not known, patches do not fill the image, or heads do not divide the width.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021.

    Examples
    --------
    >>> model = VisionTransformer(image_size=32, patch_size=8, n_classes=10, dim=24, depth=2,
    ...                           layer="KNNAttention", layer_options={"n_neighbors": 5})
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_channels: int = 3,
        n_classes: int = 1000,
        dim: int = 192,
        depth: int = 12,
        num_heads: int = 3,
        mlp_dim: int | None = None,
        layer: LayerChoice | Sequence[LayerChoice] = "KNNAttention",
        layer_options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        pooling: Pooling = "token",
        num_registers: int = 0,
        positions: Positions = "learned",
        patch_norm: bool = False,
        final_norm: bool = True,
        dropout: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
        init: Init = "truncated-normal",
        random_state: int | None = None,
    ) -> None:
        super().__init__()
        check_name("pooling", pooling, get_args(Pooling))
        check_name("init", init, get_args(Init))
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else image_size
        height, width = self.image_size
        if patch_size < 1 or height % patch_size or width % patch_size:
            raise ValueError(
                f"patch_size={patch_size} does not divide the image of {height} x {width} pixels. "
                "Change one of them."
            )
        self.grid_size = (height // patch_size, width // patch_size)
        self.in_channels, self.pooling = in_channels, pooling
        self.num_prefix_tokens = num_registers + (pooling == "token")
        layers = _one_each(layer, depth, "layer")
        options = _one_each(layer_options or {}, depth, "layer_options")
        with torch.random.fork_rng(devices=[], enabled=random_state is not None):
            if random_state is not None:
                torch.manual_seed(random_state)
            self.patch_embed = PatchEmbedding(patch_size, in_channels, dim, patch_norm)
            self.prefix_tokens: nn.Parameter | None = None
            if self.num_prefix_tokens:
                self.prefix_tokens = nn.Parameter(torch.empty(1, self.num_prefix_tokens, dim))
            self.positions = TokenPositions(positions, self.grid_size, self.num_prefix_tokens, dim)
            blocks = []
            for i in range(depth):
                attention = self._attention(layers[i], dim, num_heads, attn_drop, options[i])
                rate = drop_path * i / max(1, depth - 1)
                blocks.append(Block(attention, dim, mlp_dim or 4 * dim, dropout, rate))
            self.blocks = nn.Sequential(*blocks)
            self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
            self.head = nn.Linear(dim, n_classes)
            if init == "truncated-normal":
                self._initialize()
            elif self.prefix_tokens is not None:
                nn.init.normal_(self.prefix_tokens)

    def _attention(
        self, layer: LayerChoice, dim: int, num_heads: int, attn_drop: float, options: Any
    ) -> nn.Module:
        """Build a layer; it gets the grid if it takes one."""
        make = token_layer(layer)
        known = inspect.signature(make).parameters
        takes_any = any(x.kind is inspect.Parameter.VAR_KEYWORD for x in known.values())
        names = [name for name in ("grid_size", "num_prefix_tokens") if name in known]
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        if attn_drop and (takes_any or "attn_drop" in known):
            settings["attn_drop"] = attn_drop
        return make(dim, num_heads, **{**settings, **options})

    def _initialize(self) -> None:
        """Draw linear layers and tokens from a normal distribution of deviation 0.02."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.prefix_tokens is not None:
            nn.init.trunc_normal_(self.prefix_tokens, std=0.02)

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the tokens (B, prefix + N, dim) after the last layer and norm.

        Parameters
        ----------
        images : Tensor of shape (B, in_channels, height, width)
        """
        expected = (self.in_channels, *self.image_size)
        if tuple(images.shape[1:]) != expected:
            raise ValueError(
                f"Images must be of shape (batch, {', '.join(map(str, expected))}); got "
                f"{tuple(images.shape)}. Resize them, or set image_size and in_channels."
            )
        tokens = self.patch_embed(images)
        if self.prefix_tokens is not None:
            prefix = self.prefix_tokens.expand(tokens.shape[0], -1, -1)
            tokens = torch.cat([prefix.to(tokens.dtype), tokens], dim=1)
        features: Tensor = self.norm(self.blocks(self.positions(tokens)))
        return features

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, n_classes) of images (B, in_channels, height, width)."""
        tokens = self.forward_features(images)
        is_token = self.pooling == "token"
        pooled = tokens[:, 0] if is_token else tokens[:, self.num_prefix_tokens :].mean(1)
        logits: Tensor = self.head(pooled)
        return logits


def _one_each(choice: Any, depth: int, name: str) -> list[Any]:
    """Return one choice for each layer."""
    if depth < 1:
        raise ValueError(f"depth={depth} must be positive.")
    if isinstance(choice, list | tuple):
        if len(choice) != depth:
            raise ValueError(f"{name} names {len(choice)} layers, but depth={depth}.")
        return list(choice)
    return [choice] * depth
