"""Convolutional network for small images that trains in minutes on a CPU."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.functional.threads import one_thread

# Channels of the blocks; the wide network needs 2.8 times the arithmetic.
FAST_CNN_WIDTHS: dict[str, tuple[int, ...]] = {
    "fast-cnn": (64, 256, 256),
    "fast-cnn-wide": (128, 384, 512),
}
SMALLEST_SIDE = 9  # smaller images vanish within three blocks
_PATCH = 2
_LEAST_VARIANCE = 5e-4  # added to the variance of each component of a patch
WHITENING_IMAGES = 2_000
_BIAS_EPOCHS = 3  # epochs in which the bias of the whitened layer is trained
_LOGIT_SCALE = 9.0
_REPAYING = 8  # images; from here on channels last is faster on a CPU


class FastCNN(nn.Module):
    """Whitened 2x2 convolution, blocks of two 3x3 convolutions, global max pooling.

    Each block halves the sides: convolution, 2x2 max-pool, batch normalisation without learned
    scale, GELU, convolution, normalisation, GELU. Convolutions start as partial identities. The
    first layer is set to whiten patches of training images (`fit_inputs`) and not trained, except
    for its bias in the first three epochs.

    Parameters
    ----------
    channels : int
        Channels of the images, 1 or 3.
    widths : sequence of int, default=(64, 256, 256)
        Channels of each block.

    Raises
    ------
    ValueError
        If there is no block, or a width is below 1.

    References
    ----------
    Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv 2404.00498.

    Examples
    --------
    >>> FastCNN(3, widths=(8, 16, 16))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16])
    """

    def __init__(self, channels: int, widths: Sequence[int] = FAST_CNN_WIDTHS["fast-cnn"]) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise ValueError(
                f"widths={widths!r} must be one positive number of channels per block."
            )
        whitened = 2 * channels * _PATCH**2
        self.width = int(widths[-1])
        self.whiten = nn.Conv2d(channels, whitened, _PATCH)
        self.whiten.weight.requires_grad_(False)
        nn.init.zeros_(_bias(self.whiten))
        self.blocks = nn.ModuleList(_Block(*pair) for pair in pairwise((whitened, *widths)))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return features (B, width) of normalised pixels (B, c, h, w)."""
        return self._maps(pixels)[-1].amax(dim=(2, 3)) / _LOGIT_SCALE

    def vector_and_stages(self, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vector of `forward`, and each block's output averaged over the image."""
        maps = self._maps(pixels)
        stages = {f"block{i}": found.mean(dim=(2, 3)) for i, found in enumerate(maps, start=1)}
        return maps[-1].amax(dim=(2, 3)) / _LOGIT_SCALE, stages

    def _maps(self, pixels: Tensor) -> list[Tensor]:
        if pixels.device.type == "cpu" and len(pixels) >= _REPAYING:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        found = [F.gelu(self.whiten(pixels))]
        for block in self.blocks:
            found.append(block(found[-1]))
        return found[1:]

    @torch.no_grad()
    @one_thread()  # the order of sums, and so checkpoints, must not depend on threads
    def fit_inputs(self, pixels: Tensor) -> None:
        """Set the first layer to whiten patches of normalised training images (n, c, h, w)."""
        patches = F.unfold(pixels, _PATCH).transpose(1, 2).flatten(0, 1)
        covariance = (patches.T @ patches).double() / len(patches)
        variances, components = torch.linalg.eigh(covariance.cpu())
        filters = (components / (variances.clamp_min(0) + _LEAST_VARIANCE).sqrt()).T.flip(0)
        both = torch.cat([filters, -filters]).reshape(self.whiten.weight.shape)
        self.whiten.weight.copy_(both)

    def begin_epoch(self, epoch: int) -> None:
        """Train the first layer's bias only in the first epochs; `epoch` counts from 1."""
        _bias(self.whiten).requires_grad_(epoch <= _BIAS_EPOCHS)


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _convolution(n_in, n_out), _normalization(n_out)
        self.conv2, self.norm2 = _convolution(n_out, n_out), _normalization(n_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


def _convolution(n_in: int, n_out: int) -> nn.Conv2d:
    layer = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(layer.weight[:n_in])
    return layer


def _normalization(width: int) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(width, momentum=0.4)
    layer.weight.requires_grad_(False)
    return layer


def _bias(layer: nn.Conv2d) -> nn.Parameter:
    assert isinstance(layer.bias, nn.Parameter)  # built with one
    return layer.bias
