"""Images of a vision transformer's run: training, validation and test part, and their scale."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.data import split_dataset
from nearwise.data.dataset import hold_out
from nearwise.data.images.folder import list_folder
from nearwise_lab.data import load_images
from nearwise_lab.experiments.vit.image_rows import ImageFiles, ImageTensor
from nearwise_lab.experiments.vit.learner import PixelScale, channel_scale
from nearwise_lab.experiments.vit.settings import VitSettings
from nearwise_lab.training.augment import FullAugmentation

SETS = {"cifar10": "cifar10", "cifar100": "cifar100", "mnist": "mnist", "digits": "digits-images"}
UPRIGHT = ("mnist", "digits")  # a mirrored digit is another sign
SPLIT_SEED = 0  # of sets without an official test part: one test part for all seeds
_IN_MEMORY = 2**32  # bytes of decoded images from folders; more is decoded batch by batch
# Mean and deviation of ImageNet's training images, as torchvision's models take them.
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Rows = ImageTensor | ImageFiles


@dataclass(frozen=True)
class VitData:
    """The parts of a data set, on the CPU.

    Attributes
    ----------
    name : str
    train, test : ImageTensor or ImageFiles
    validation : the same, or None
    classes : list of str
    scale : PixelScale
    image_size : int
        Side of the model's input in pixels.
    channels : int
    native_size : int
        Side of images as they are augmented.
    """

    name: str
    train: Rows
    validation: Rows | None
    test: Rows
    classes: list[str]
    scale: PixelScale
    image_size: int
    channels: int
    native_size: int

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

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

    Parameters
    ----------
    settings : VitSettings

    Raises
    ------
    ValueError
        If the data set is not known, images are not square, or a folder has no test part.
    FileNotFoundError
        If there are no files; the message names the paths that were tried.
    """
    train: Rows
    test: Rows
    train, test, classes = (_registered if settings.dataset in SETS else _folder)(settings)
    train, test = _first(train, settings.train_limit), _first(test, settings.test_limit)
    height, width = _size(train)
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
        train, validation = _take(train, kept), _take(train, held)
    return VitData(
        name=settings.dataset,
        train=train,
        validation=validation,
        test=test,
        classes=classes,
        scale=PixelScale(mean, std, None if size == height == width else size),
        image_size=size,
        channels=train.pixels.shape[1] if isinstance(train, ImageTensor) else 3,
        native_size=min(height, width),
    )


def augmentation(settings: VitSettings, data: VitData) -> FullAugmentation | None:
    """Random changes of the training images; None where there are none.

    `augment` pads an eighth of the side before the crop: 4 pixels of 32, as is usual for CIFAR.
    """
    changes: dict[str, Any] = {}
    if settings.augment:
        changes |= {"crop_padding": max(1, data.native_size // 8)}
        changes |= {"flip": settings.dataset not in UPRIGHT}
    for name in ("color_jitter", "rotation", "cutout"):
        if getattr(settings, name):
            changes[name] = getattr(settings, name)
    return FullAugmentation(**changes) if changes else None


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
    train, test = split_dataset(data, SPLIT_SEED)
    whole = ImageTensor(pixels, torch.from_numpy(codes.astype(np.int64)))
    return whole.take(_rows(train)), whole.take(_rows(test)), [str(name) for name in names]


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
    size = settings.resize or 224
    # Files come class by class; in a fixed order of no meaning the first of them are a sample.
    made: dict[str, Any] = {
        part: _take(
            ImageFiles(files, torch.tensor(codes), size),
            np.random.default_rng(SPLIT_SEED).permutation(len(files)),
        )
        for part, (files, codes) in parts.items()
    }
    limits = {"train": settings.train_limit, "test": settings.test_limit}
    made = {part: _first(rows, limits[part]) for part, rows in made.items()}
    if sum(len(rows) for rows in made.values()) * 3 * size**2 > _IN_MEMORY:
        return made["train"], made["test"], classes
    held = {
        part: ImageTensor(rows.images(torch.arange(len(rows))), rows.labels)
        for part, rows in made.items()
    }
    return held["train"], held["test"], classes


def _size(rows: Rows) -> tuple[int, int]:
    if isinstance(rows, ImageFiles):
        return rows.size, rows.size
    return int(rows.pixels.shape[2]), int(rows.pixels.shape[3])


def _first(rows: Rows, limit: int | None) -> Rows:
    return rows if limit is None else _take(rows, np.arange(min(limit, len(rows))))


def _take(rows: Rows, index: NDArray[np.int64]) -> Rows:
    return rows.take(_rows(index))


def _rows(index: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.asarray(index, dtype=np.int64))
