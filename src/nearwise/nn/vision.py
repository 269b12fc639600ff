"""Image embedders: map uint8 images to keys for the neighbor search."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.names import did_you_mean
from nearwise.nn.backbones import (
    NAMES,
    Backbone,
    BackboneSpec,
    Stem,
    build_backbone,
    named_backbone,
    pretrained_backbone,
)
from nearwise.nn.embedders import Embedder
from nearwise.nn.fast_cnn import SMALLEST_SIDE, WHITENING_IMAGES, FastCNN

_DIM = 256
_HIDDEN = 512
_DROPOUT = 0.1
_STATISTICS_CHUNK = 4096
_DEFAULT_SIDE = 32


class ImageEmbedder(Embedder):
    """Vision backbone and projection to the key, for uint8 images.

    The projection is a linear layer to at most 512, normalisation, GELU, dropout 0.1 and a linear
    layer to `dim`; a fast-cnn has none, unless `dim` is given. Pixels are scaled, resized and
    normalised here, on the device of the images: by the statistics of the training images
    (`fit_inputs`), or by those of a pretrained model.

    Parameters
    ----------
    backbone : str, default="resnet18"
        Name of a backbone, or source of a pretrained one. Names: "fast-cnn" (2 M parameters, for
        16 to 64 pixels, see `nearwise.nn.FastCNN`), "fast-cnn-wide" (6 M), "resnet18", "resnet50",
        "resnet-small" (0.3 M, for 8 to 32 pixels). Sources: "hf:NAME" or "hf:NAME@REVISION" for a
        vision model (ResNet, ViT, DINOv2, DINOv3, CLIP) of the Hugging Face hub, or a local folder;
        both come with weights (safetensors).
    dim : int, optional
        Width of the key; default 256, for a fast-cnn its last width.
    image_size : int or (int, int), optional
        Side, or height and width, of the backbone's input; images of another size are resized.
        Default 32 for the named backbones, the model's own size for others.
    channels : int, default=3
        Channels of the images, 1 or 3. One channel is repeated if the backbone takes three.
    projection_norm : {"batch", "layer"}, default="batch"
    stem : {"auto", "cifar", "strided", "imagenet"}, default="auto"
        First layers of a named backbone: a 3x3 convolution ("strided" halves the sides), or the
        7x7 convolution with max-pool. "auto" depends on the image size.
    pretrained : bool, default=False
        Whether to load ImageNet weights for "resnet18" and "resnet50". If they are not available,
        a warning is issued and the backbone starts from scratch.
    frozen : bool, default=False
        Whether to train only the projection, not the backbone.
    normalize : bool, default=True
        Whether to scale keys to unit L2 length.
    widths : sequence of int, optional
        Channels of a fast-cnn's blocks; default (64, 256, 256), wide (128, 384, 512).
    backbone_spec : dict, optional
        Entry of `config` to rebuild a backbone with random weights, without any download.

    Raises
    ------
    ValueError
        If an argument is not one of those listed, or a model cannot be loaded.
    ImportError
        If the extra "vision" is not installed.

    Examples
    --------
    >>> embedder = ImageEmbedder("resnet-small", dim=16, image_size=8, channels=1)
    >>> embedder(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape
    torch.Size([2, 16])
    """

    takes_images = True
    mean: Tensor
    std: Tensor
    fitted: Tensor

    def __init__(
        self,
        backbone: str = "resnet18",
        dim: int | None = None,
        *,
        image_size: int | tuple[int, int] | None = None,
        channels: int = 3,
        projection_norm: Literal["batch", "layer"] = "batch",
        stem: Stem = "auto",
        pretrained: bool = False,
        frozen: bool = False,
        normalize: bool = True,
        widths: Sequence[int] | None = None,
        backbone_spec: Mapping[str, Any] | None = None,
    ) -> None:
        _check_arguments(dim, channels, projection_norm, stem)
        network: Backbone | FastCNN
        if backbone_spec is not None:
            spec = BackboneSpec.from_dict(backbone_spec)
            network = build_backbone(spec)
        else:
            network, spec = _make_backbone(backbone, image_size, channels, stem, pretrained, widths)
        config = {
            "kind": "image",
            "backbone": backbone,
            "dim": dim,
            "channels": channels,
            "projection_norm": projection_norm,
            "frozen": frozen,
            "normalize": normalize,
            "backbone_spec": spec.to_dict(),
        }
        projected = dim is not None or isinstance(network, Backbone)
        dim = (dim or _DIM) if projected else network.width
        super().__init__(dim, normalize, config)
        self.image_size, self.channels, self.frozen = spec.image_size, channels, frozen
        self._spec = spec
        self.register_buffer("mean", _column(spec.mean or (0.5,) * spec.channels))
        self.register_buffer("std", _column(spec.std or (0.25,) * spec.channels))
        self.register_buffer("fitted", torch.tensor(spec.mean is not None))
        projection = (
            _projection(network.width, dim, projection_norm) if projected else nn.Identity()
        )
        self.trunk = nn.Sequential(OrderedDict(backbone=network, projection=projection))
        if frozen:
            network.requires_grad_(False)
            network.eval()

    @property
    def backbone(self) -> Backbone | FastCNN:
        """The vision model before the projection."""
        backbone = self.trunk.get_submodule("backbone")
        assert isinstance(backbone, Backbone | FastCNN)
        return backbone

    def train(self, mode: bool = True) -> "ImageEmbedder":
        """Set training mode; a frozen backbone stays in eval mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    @torch.no_grad()
    def fit_inputs(self, x_num: Tensor) -> None:
        """Set mean and deviation per channel from training images; whiten a fast-cnn's patches.

        Only the first call has an effect, and none if the model has pretrained statistics.
        """
        if bool(self.fitted) or len(x_num) == 0:
            return
        total = torch.zeros(2, self._spec.channels, device=x_num.device)
        for start in range(0, len(x_num), _STATISTICS_CHUNK):
            pixels = self._scaled(x_num[start : start + _STATISTICS_CHUNK])
            both = torch.stack([pixels, pixels.square()]).mean(dim=(3, 4))
            total += both.sum(dim=1) / len(x_num)
        mean, square = total.unsqueeze(-1).unsqueeze(-1)
        self.mean.copy_(mean)
        # A floor, so that images of one colour do not divide by zero.
        self.std.copy_((square - mean.square()).clamp_min(1e-6).sqrt().clamp_min(0.02))
        self.fitted.fill_(True)
        if isinstance(self.backbone, FastCNN):
            some = x_num[:: max(1, len(x_num) // WHITENING_IMAGES)]
            self.backbone.fit_inputs(self.embed(some))

    def begin_epoch(self, epoch: int) -> None:
        """Pass the epoch of training to a fast-cnn."""
        if isinstance(self.backbone, FastCNN):
            self.backbone.begin_epoch(epoch)

    def embed(self, x_num: Tensor, x_cat: Tensor | None = None) -> Tensor:
        """Return normalised pixels (B, c, h, w) of uint8 images, resized for the backbone."""
        pixels = self._scaled(x_num)
        if pixels.shape[-2:] != self.image_size:
            pixels = F.interpolate(
                pixels,
                size=self.image_size,
                mode=self._spec.resample,
                align_corners=False,
                antialias=True,
            )
        return (pixels - self.mean) / self.std

    def embed_mixed(
        self, x_num: Tensor, x_cat: Tensor | None, partner: Tensor, share: Tensor
    ) -> Tensor:
        """Return normalised pixels of MixUp images; see `Embedder.embed_mixed`."""
        pixels = self.embed(x_num)
        share = share.reshape(-1, 1, 1, 1)
        return share * pixels + (1 - share) * pixels[partner]

    def key(self, embedded: Tensor) -> Tensor:
        """Return the key (B, dim) of normalised pixels (B, c, h, w), always in float32."""
        return self._finished(self.trunk(embedded))

    def key_of_vector(self, vector: Tensor) -> Tensor:
        """Return the key (B, dim) of backbone outputs (B, width)."""
        return self._finished(self.trunk.get_submodule("projection")(vector))

    def _finished(self, projected: Tensor) -> Tensor:
        key = projected.float()
        return F.normalize(key, dim=-1) if self.normalize else key

    def vector_and_stages(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return vectors (B, width) for `key_of_vector`, and features of each depth by name.

        Input are uint8 images (B, c, h, w); see `Backbone.vector_and_stages`. Features are float32,
        averaged over the image.
        """
        vector, features = self.backbone.vector_and_stages(self.embed(images))
        return vector, {name: feature.float() for name, feature in features.items()}

    def _scaled(self, images: Tensor) -> Tensor:
        """Return pixels in [0, 1] with the channels of the backbone."""
        if images.ndim != 4 or images.shape[1] != self.channels or images.dtype != torch.uint8:
            raise ValueError(
                f"images must be uint8 of shape (n, {self.channels}, height, width), got "
                f"{images.dtype} of shape {tuple(images.shape)}. Convert them, or build the "
                "embedder with the channels they have."
            )
        pixels = images.to(torch.float32) / 255
        return pixels.expand(-1, self._spec.channels, -1, -1) if self.channels == 1 else pixels


def _make_backbone(
    backbone: str,
    image_size: int | tuple[int, int] | None,
    channels: int,
    stem: Stem,
    pretrained: bool,
    widths: Sequence[int] | None,
) -> tuple[Backbone | FastCNN, BackboneSpec]:
    size = None if image_size is None else _size(image_size)
    if backbone in NAMES:
        side = size or (_DEFAULT_SIDE, _DEFAULT_SIDE)
        if backbone.startswith("fast-cnn") and min(side) < SMALLEST_SIDE:
            raise ValueError(
                f"{backbone!r} takes images of at least {SMALLEST_SIDE} pixels per side, got "
                f'{side[0]} x {side[1]}. Take "resnet-small", or resize by image_size.'
            )
        return named_backbone(backbone, side, channels, stem, pretrained, widths)
    if not (backbone.startswith("hf:") or "/" in backbone or "\\" in backbone):
        hint = did_you_mean(backbone, NAMES)
        raise ValueError(
            f"Unknown backbone {backbone!r}.{hint} Known are {', '.join(NAMES)}. A "
            'model on the hub is "hf:NAME"; a local folder needs a "/" in its path.'
        )
    if not backbone.startswith("hf:") and not Path(backbone).is_dir():
        raise ValueError(
            f"{backbone!r} is not a folder here. A model on the hub is written 'hf:{backbone}'."
        )
    network, spec = pretrained_backbone(backbone.removeprefix("hf:"), size)
    if channels not in (1, spec.channels):
        raise ValueError(
            f"{backbone!r} takes images of {spec.channels} channels, got channels={channels}."
        )
    return network, spec


def _projection(width: int, dim: int, norm: Literal["batch", "layer"]) -> nn.Sequential:
    hidden = min(width, _HIDDEN)
    normalization = nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden)
    layers = [nn.Linear(width, hidden), normalization, nn.GELU(), nn.Dropout(_DROPOUT)]
    return nn.Sequential(*layers, nn.Linear(hidden, dim))


def _check_arguments(dim: int | None, channels: int, norm: str, stem: str) -> None:
    if dim is not None and dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}.")
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels}.")
    if norm not in ("batch", "layer"):
        raise ValueError(f'projection_norm must be "batch" or "layer", got {norm!r}.')
    if stem not in ("auto", "cifar", "strided", "imagenet"):
        raise ValueError(f'stem must be "auto", "cifar", "strided" or "imagenet", got {stem!r}.')


def _size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    sides = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"image_size must be one or two positive sides, got {image_size!r}.")
    return int(sides[0]), int(sides[1])


def _column(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1, 1)
