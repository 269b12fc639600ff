"""Images of a vision transformer's run: training, validation and test part, and their scale."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nearwise.data import split_dataset
from nearwise.data.dataset import hold_out
from nearwise.data.images.decode import Encoded, decode_images
from nearwise.data.images.folder import list_folder
from nearwise_lab.data import load_images
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.nn.pixel_scale import PixelScale

SETS = {"cifar10": "cifar10", "cifar100": "cifar100", "mnist": "mnist", "digits": "digits-images"}
SPLIT_SEED = 0  # of sets without an official test part: one test part for all seeds
_IN_MEMORY = 2**32  # bytes of decoded images from folders; more is decoded batch by batch
# Mean and deviation of ImageNet's training images, as torchvision's models take them.
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTensor:
    """Images (n, channels, height, width), uint8, with class numbers (n,), in one tensor."""

    pixels: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.pixels.ndim != 4 or self.pixels.dtype != torch.uint8:
            raise ValueError(
                "pixels must be uint8 of shape (n, channels, height, width); got "
                f"{self.pixels.dtype} of shape {tuple(self.pixels.shape)}."
            )
        if len(self.pixels) != len(self.labels):
            raise ValueError(f"{len(self.pixels)} images have {len(self.labels)} labels.")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return int(self.pixels.shape[2]), int(self.pixels.shape[3])

    def images(self, rows: Tensor) -> Tensor:
        """Return uint8 images (B, channels, height, width) of some rows (B,)."""
        return self.pixels[rows.to(self.pixels.device)]

    def to(self, device: torch.device) -> "ImageTensor":
        """Return the same rows on `device`."""
        return ImageTensor(self.pixels.to(device), self.labels.to(device))

    def take(self, rows: Any) -> "ImageTensor":
        """Return the rows at some positions, an array or tensor."""
        chosen = torch.as_tensor(rows)
        return ImageTensor(self.pixels[chosen], self.labels[chosen])


@dataclass(frozen=True)
class ImageFiles:
    """Images that are decoded on request, on several threads, and brought to a square of `size`.

    Methods are those of `ImageTensor`; images come on the device of the labels.
    """

    files: Sequence[Path]
    labels: Tensor
    size: tuple[int, int]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def images(self, rows: Tensor) -> Tensor:
        """Decode some rows."""
        chosen = [self.files[row] for row in rows.tolist()]
        encoded = (Encoded(str(file), file) for file in chosen)
        pixels = decode_images(encoded, len(chosen), image_size=self.size[0], color="rgb")
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().to(self.labels.device)

    def to(self, device: torch.device) -> "ImageFiles":
        """Put the labels, and images decoded later, on `device`."""
        return replace(self, labels=self.labels.to(device))

    def take(self, rows: Any) -> "ImageFiles":
        """Return some rows."""
        chosen = torch.as_tensor(rows)
        files = [self.files[row] for row in chosen.tolist()]
        return ImageFiles(files, self.labels[chosen.to(self.labels.device)], self.size)


Rows = ImageTensor | ImageFiles


@dataclass(frozen=True)
class VitData:
    """The parts of a data set, on the CPU.

    `image_size` is the side of the model's input in pixels.
    """

    train: Rows
    validation: Rows | None
    test: Rows
    classes: list[str]
    scale: PixelScale
    image_size: int
    channels: int

    def fingerprint(self) -> str:
        """Hash of labels and of pixels (of files: of their names)."""
        digest = hashlib.sha256()
        for part in (self.train, self.validation, self.test):
            if part is None:
                continue
            digest.update(part.labels.numpy().tobytes())
            if isinstance(part, ImageTensor):
                digest.update(part.pixels.contiguous().numpy().tobytes())
            else:
                digest.update("\n".join(file.name for file in part.files).encode())
        return digest.hexdigest()


def load_vit_data(settings: VitSettings) -> VitData:
    """Load the images of a run.

    Raises ValueError if images are not square, or a folder has no test part, and FileNotFoundError,
    with the paths that were tried, if there are no files.
    """
    train, test, classes = (_registered if settings.dataset in SETS else _folder)(settings)
    train, test = _first(train, settings.train_limit), _first(test, settings.test_limit)
    height, width = train.size
    if height != width and not settings.resize:
        raise ValueError(
            f"Images of {settings.dataset} are {height} x {width} pixels; the model takes squares. "
            "Give --resize."
        )
    mean, std = channel_scale(train.pixels) if isinstance(train, ImageTensor) else _IMAGENET
    size = settings.resize or height
    validation: Rows | None = None
    if settings.validation_share:
        kept, held = hold_out(train.labels.numpy(), settings.validation_share, settings.seed)
        train, validation = train.take(kept), train.take(held)
    return VitData(
        train=train,
        validation=validation,
        test=test,
        classes=classes,
        scale=PixelScale(mean, std, None if size == height == width else size),
        image_size=size,
        channels=train.pixels.shape[1] if isinstance(train, ImageTensor) else 3,
    )


def channel_scale(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of uint8 images, in [0, 1].

    A channel that never changes gets deviation 1.
    """
    n_channels = images.shape[1]
    count = images.numel() // n_channels
    total, squares = torch.zeros(2, n_channels, dtype=torch.float64)
    for part in images.split(4096):
        pixels = part.double() / 255
        total += pixels.sum(dim=(0, 2, 3)).cpu()
        squares += pixels.square().sum(dim=(0, 2, 3)).cpu()
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, 1.0)
    return tuple(mean.tolist()), tuple(std.tolist())


def _registered(settings: VitSettings) -> tuple[Rows, Rows, list[str]]:
    # The default ./Data, or any folder without this set, hides neither NEARWISE_DATA nor the cache.
    root = Path(settings.data_path)
    limits = (settings.train_limit, settings.test_limit)
    # Decode no more rows than are requested, where that can be specified.
    limit: Any = limits if all(limits) and settings.dataset != "digits" else None
    try:
        data = load_images(
            SETS[settings.dataset],
            data_root=root if (root / settings.dataset).is_dir() else None,
            limit=limit,
        )
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} The setting for data_root is data_path.") from error
    if data.test_index is None and settings.dataset != "digits":
        raise ValueError(
            f"Only the test part of {settings.dataset} was found. Add its training part."
        )
    names, codes = np.unique(data.y, return_inverse=True)
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(np.asarray(data.X), -1, 1)))
    whole = ImageTensor(pixels, torch.from_numpy(codes.astype(np.int64)))
    train, test = split_dataset(data, SPLIT_SEED)
    return whole.take(train), whole.take(test), [str(name) for name in names]


def _folder(settings: VitSettings) -> tuple[Rows, Rows, list[str]]:
    """Read `dataset` as a folder, or as one of that name under `data_path`."""
    places = [Path(settings.dataset), Path(settings.data_path) / settings.dataset]
    if settings.dataset == "imagenet":
        places = [places[1], Path(settings.data_path)]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        known = ", ".join([*SETS, "imagenet"])
        raise FileNotFoundError(
            f"There is no data set {settings.dataset!r} ({known}) and no folder "
            f"{' or '.join(map(str, places))}. Give its folder, or the one above by --data-path."
        )
    parts, classes = list_folder(found)
    if "test" not in parts:
        raise ValueError(
            f"{found} has no folders train and test (or val), so there is nothing to test on."
        )
    side, made = settings.resize or 224, []
    for part, limit in (("train", settings.train_limit), ("test", settings.test_limit)):
        files, codes = parts[part]
        # Files come class by class; in a fixed order of no meaning the first are a sample.
        order = np.random.default_rng(SPLIT_SEED).permutation(len(files))
        made.append(_first(ImageFiles(files, torch.tensor(codes), (side, side)).take(order), limit))
    if sum(map(len, made)) * 3 * side**2 <= _IN_MEMORY:
        made = [ImageTensor(rows.images(torch.arange(len(rows))), rows.labels) for rows in made]
    return made[0], made[1], classes


def _first(rows: Any, limit: int | None) -> Any:
    return rows if limit is None else rows.take(torch.arange(min(limit, len(rows))))
