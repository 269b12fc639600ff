"""The registered image sets: origin and forms of their files, and how to recognize them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nearwise.data.images.decode import Images
from nearwise_lab.data.files import DataFile
from nearwise_lab.data.formats import IdxFiles, ParquetShards

Part = Literal["train", "test"]
PARTS: tuple[Part, Part] = ("train", "test")
_HUB = "https://huggingface.co/datasets"
# the mirror that PyTorch keeps; the original address no longer answers
_MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"

CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank", "telephone",
    "television", "tiger", "tractor", "train", "trout", "tulip", "turtle", "wardrobe", "whale",
    "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip


class Form(Protocol):
    """One way in which the files of a set may lie in a folder."""

    def find(self, folder: Path, part: str) -> tuple[Path, ...]:
        """Return the files of a part in order; empty where there are none."""

    def read(
        self, paths: tuple[Path, ...], part: str, limit: int | None
    ) -> tuple[Images, NDArray[np.int64]]:
        """Return at most `limit` images, (n_rows, height, width, channels), and class numbers."""


@dataclass(frozen=True)
class Known:
    """What the official rows of a part are.

    Parameters
    ----------
    n_rows : int
        How many the official files give.
    checked_rows : int
        How many of the first rows `sha256` is about; 0 where none is known.
    sha256 : str
        Of the pixels of these rows (row after row, height x width x channels), then of their
        class numbers, one byte each: the same for every form of the files.
    """

    n_rows: int
    checked_rows: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class ImageSet:
    """A registered image set.

    Parameters
    ----------
    name : str
        Registry name, and name of its folder.
    shape : (int, int, int)
        Height, width and channels.
    class_names : tuple of str
        Names in the order of the official class numbers; empty where the numbers are the names.
    n_classes : int
        How many classes there are.
    target_name, source : str
        As in `Dataset`.
    known : dict of part to Known
        Size and check sum of each part.
    form : Form
    downloads : dict of part to tuple of DataFile
        Files to fetch where there is no copy.
    """

    name: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    n_classes: int
    target_name: str
    source: str
    known: dict[Part, Known]
    form: Form
    downloads: dict[Part, tuple[DataFile, ...]]


def _hub_parquet(name: str, config: str) -> dict[Part, tuple[DataFile, ...]]:
    def file(part: Part) -> DataFile:
        shard = f"{part}-00000-of-00001.parquet"
        url = f"{_HUB}/uoft-cs/{name}/resolve/main/{config}/{shard}"
        return DataFile(
            f"{name}/{shard}",
            url,
            how_to_get=(f"Get {url} on a machine with network access; several shards do as well."),
        )

    return {part: (file(part),) for part in PARTS}


def _mnist(name: str, sha256: str) -> DataFile:
    return DataFile(f"mnist/{name}", f"{_MNIST_MIRROR}/{name}", (sha256,))


_CIFAR_SOURCE = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
_MNIST_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}

CIFAR10 = ImageSet(
    name="cifar10",
    shape=(32, 32, 3),
    class_names=CIFAR10_CLASSES,
    n_classes=10,
    target_name="label",
    source=_CIFAR_SOURCE,
    known={
        "train": Known(
            50000, 50000, "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b"
        ),
        "test": Known(
            10000, 10000, "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa"
        ),
    },
    form=ParquetShards("img", "label", "plain_text"),
    downloads=_hub_parquet("cifar10", "plain_text"),
)
CIFAR100 = ImageSet(
    name="cifar100",
    shape=(32, 32, 3),
    class_names=CIFAR100_CLASSES,
    n_classes=100,
    target_name="fine_label",
    source=_CIFAR_SOURCE,
    known={
        "train": Known(50000),
        "test": Known(
            10000, 2000, "1d5d13baee5ac94815720175b8bd2fa9b4d5ccc55615f868f83cf96110b0c0c0"
        ),
    },
    form=ParquetShards("img", "fine_label", "cifar100"),
    downloads=_hub_parquet("cifar100", "cifar100"),
)
MNIST = ImageSet(
    name="mnist",
    shape=(28, 28, 1),
    class_names=(),
    n_classes=10,
    target_name="digit",
    source="LeCun, Cortes and Burges 1998, The MNIST database of handwritten digits",
    known={
        "train": Known(
            60000, 60000, "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b"
        ),
        "test": Known(
            10000, 10000, "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b"
        ),
    },
    form=IdxFiles(_MNIST_FILES),
    downloads={
        "train": (
            _mnist(
                _MNIST_FILES["train"][0],
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            _mnist(
                _MNIST_FILES["train"][1],
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
        ),
        "test": (
            _mnist(
                _MNIST_FILES["test"][0],
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            _mnist(
                _MNIST_FILES["test"][1],
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    },
)
IMAGE_SETS = {one.name: one for one in (CIFAR10, CIFAR100, MNIST)}
