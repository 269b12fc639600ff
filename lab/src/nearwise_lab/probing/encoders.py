"""Encoders that experiments compare: pixels, patches, untrained weights, trained models."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nearwise.nn import ImageEmbedder, lite0
from nearwise.probes.encoders import Encoder, in_channels, module_fingerprint, seen_only
from nearwise_lab.nn.pixel_scale import PixelScale
from nearwise_lab.nn.vit import VisionTransformer


class Patches:
    """Square patches: one token per patch, row-major, of all its pixels.

    Pixels outside the context are black.

    Parameters
    ----------
    size : int
        Side of a patch; must divide both sides of the image.
    image_size : (int, int)
        Height and width.
    channels : int
    """

    ordered = True

    def __init__(self, size: int, image_size: tuple[int, int], channels: int) -> None:
        height, width = image_size
        if size < 1 or height % size or width % size:
            raise ValueError(
                f"Patches of size {size} do not fill images of {height} x {width}. Take a size "
                "that divides both sides."
            )
        self.size, self.token_dim = size, channels * size * size
        self.num_tokens = (height // size) * (width // size)

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Patches (B, H W / size^2, C size^2) of images (B, C, H, W)."""
        seen = seen_only(x, context)
        return nn.functional.unfold(seen, self.size, stride=self.size).transpose(1, 2)

    def fingerprint(self) -> str:
        """Name the encoder and its size."""
        return f"patches:{self.size}"


class Pixels(Patches):
    """The image itself: one token per pixel, row-major, of its colours.

    Pixels outside the context are black, so that token i is the same position in every image.

    Parameters
    ----------
    image_size : (int, int)
        Height and width.
    channels : int
    """

    def __init__(self, image_size: tuple[int, int], channels: int) -> None:
        super().__init__(1, image_size, channels)

    def fingerprint(self) -> str:
        """Name the encoder; it holds nothing else."""
        return "pixels"


class SparsePoints:
    """The pixels seen, as a set: one token per point, of its position and colours.

    The order of the points means nothing: the position is in the token, and a probe learns no
    position embedding for them.

    Parameters
    ----------
    image_size : (int, int)
        Height and width.
    channels : int
    features : nn.Module, optional
        From (y, x) in [-1, 1], shape (n, 2), to features (n, F), such as Fourier features; they
        replace the bare coordinates.
    """

    ordered = False
    num_tokens = None

    def __init__(
        self, image_size: tuple[int, int], channels: int, features: nn.Module | None = None
    ) -> None:
        self.features = features
        grid = torch.cartesian_prod(*(torch.linspace(-1, 1, side) for side in image_size))
        with torch.no_grad():
            self._places = grid.flip(1) if features is None else features(grid)
        self.token_dim = channels + self._places.shape[1]

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Points (B, n, 2 + C) as (x, y, colours), or (B, n, F + C); n is H W without context."""
        colors = x.flatten(2).transpose(1, 2)
        places = self._places.to(x).expand(len(x), -1, -1)
        tokens = torch.cat([places, colors], dim=2)
        if context is None:
            return tokens
        return tokens.gather(1, context[:, :, None].expand(-1, -1, tokens.shape[2]))

    def fingerprint(self) -> str:
        """Name the encoder, with the weights of its features."""
        return "points" if self.features is None else f"points:{module_fingerprint(self.features)}"


class RandomInit:
    """An untrained encoder: the effect of its architecture alone.

    Parameters
    ----------
    make : callable () -> Encoder
        Builds the encoder; torch is seeded around it, and left as it was.
    seed : int, default=0
    """

    def __init__(self, make: Callable[[], Encoder], seed: int = 0) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = make()
        self.seed = seed
        self.token_dim, self.num_tokens = self.encoder.token_dim, self.encoder.num_tokens
        self.ordered = getattr(self.encoder, "ordered", True)
        self.has_cls = getattr(self.encoder, "has_cls", False)

    def to(self, device: torch.device | str) -> "RandomInit":
        """Move the encoder where it is a module."""
        if isinstance(self.encoder, nn.Module):
            self.encoder.to(device).eval()
        return self

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of the untrained encoder."""
        return self.encoder.encode(x, context)

    def parameters(self) -> Any:
        """Weights of the encoder, none where it is not a module."""
        return self.encoder.parameters() if isinstance(self.encoder, nn.Module) else iter(())

    def fingerprint(self) -> str:
        """Hash of the initial weights."""
        if isinstance(self.encoder, nn.Module):
            return f"random:{module_fingerprint(self.encoder)}"
        return f"random:{self.seed}:{type(self.encoder).__qualname__}"


class VisionTransformerEncoder(nn.Module):
    """A vision transformer with any attention layer: its last tokens, after the last norm.

    The token of the whole image comes first where the model has one, then those of the patches,
    row by row; registers are left out.

    Parameters
    ----------
    model : VisionTransformer
    scale : PixelScale
        What its training made of pixels.
    config : mapping, optional
        What decides the model beside its weights and its repr, for the cache of features.
    """

    ordered = True
    trained_on: Any = None

    def __init__(
        self,
        model: VisionTransformer,
        scale: PixelScale,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.scale = model, scale
        self.config = {"mean": scale.mean, "std": scale.std, "model": dict(config or {})}
        self.has_cls = model.pooling == "token"
        self.token_dim: int = model.head.in_features
        patches = model.grid_size[0] * model.grid_size[1]
        self.num_tokens: int | None = patches + self.has_cls

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of images in [0, 1]; pixels outside the context are black."""
        x = in_channels(seen_only(x, context), self.model.in_channels)
        tokens = self.model.forward_features(self.scale.of_unit(x))
        patches = tokens[:, self.model.num_prefix_tokens :]
        return torch.cat([tokens[:, :1], patches], dim=1) if self.has_cls else patches


class EmbedderEncoder(nn.Module):
    """An embedder of the classifier: one token per image, its key.

    Parameters
    ----------
    embedder : ImageEmbedder
    """

    ordered, num_tokens = True, 1

    def __init__(self, embedder: ImageEmbedder) -> None:
        super().__init__()
        self.embedder = embedder
        self.config = embedder.config
        self.token_dim = embedder.dim

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Keys (B, 1, dim) of images in [0, 1]; pixels outside the context are black."""
        pixels = (255 * seen_only(x, context)).round().to(torch.uint8)
        keys: Tensor = self.embedder(pixels, None)
        return keys[:, None]


class PhotographEncoder(nn.Module):
    """EfficientNet-Lite0 of the extra "images": the 4 x 4 cells of its last map as tokens."""

    ordered, num_tokens, token_dim = True, lite0.N_TOKENS, lite0.WIDTH
    config: ClassVar = {"sha256": lite0.SHA256}

    def __init__(self) -> None:
        super().__init__()
        self.network = lite0.lite0()

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens (B, 16, 1280) of images in [0, 1]; pixels outside the context are black."""
        last: Tensor = self.network(seen_only(x, context))
        return last.flatten(2).transpose(1, 2)
