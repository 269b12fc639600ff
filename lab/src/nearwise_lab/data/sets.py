"""The registered image sets: origin and forms of their files, and how to recognize them."""

from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True)
class Known:
    """Number of official rows of a part, and the sha256 of the first `checked_rows`.

    The sum is of their pixels (row after row, height x width x channels), then of their class
    numbers, one byte each: the same for every form of the files.
    """

    n_rows: int
    checked_rows: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class ImageSet:
    """A registered image set.

    `name` is that of its folder too, `shape` is (height, width, channels), `class_names` are in the
    order of the official class numbers (empty where the numbers are the names), `known` has size
    and check sum of each part, `downloads` the files to fetch where there is no copy.
    """

    name: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    n_classes: int
    target_name: str
    source: str
    known: dict[Part, Known]
    form: IdxFiles | ParquetShards
    downloads: dict[Part, tuple[DataFile, ...]]


def _hub_parquet(name: str, config: str) -> dict[Part, tuple[DataFile, ...]]:
    files: dict[Part, tuple[DataFile, ...]] = {}
    for part in PARTS:
        shard = f"{part}-00000-of-00001.parquet"
        url = f"{_HUB}/uoft-cs/{name}/resolve/main/{config}/{shard}"
        how = f"Get {url} on a machine with network access; several shards do as well."
        files[part] = (DataFile(f"{name}/{shard}", url, how_to_get=how),)
    return files


_CIFAR_SOURCE = "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images"
_MNIST: dict[str, dict[str, str]] = {  # names of the files, with their sha256
    "train": {
        "train-images-idx3-ubyte.gz":
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz":
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    },
    "test": {
        "t10k-images-idx3-ubyte.gz":
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz":
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
}  # fmt: skip
CIFAR10 = ImageSet(
    "cifar10", (32, 32, 3), CIFAR10_CLASSES, 10, "label", _CIFAR_SOURCE,
    {
        "train": Known(
            50000, 50000, "f912919bdea371136f1aa4feed6beeca728015a5f08b1899a29c932a7e30be2b"
        ),
        "test": Known(
            10000, 10000, "8193b3fbce55bec361cd1b8fd4880cb1649832dc4d6de6da1e7a21847a4843aa"
        ),
    },
    ParquetShards("img", "label", "plain_text"), _hub_parquet("cifar10", "plain_text"),
)  # fmt: skip
CIFAR100 = ImageSet(
    "cifar100", (32, 32, 3), CIFAR100_CLASSES, 100, "fine_label", _CIFAR_SOURCE,
    {
        "train": Known(50000),
        "test": Known(
            10000, 2000, "1d5d13baee5ac94815720175b8bd2fa9b4d5ccc55615f868f83cf96110b0c0c0"
        ),
    },
    ParquetShards("img", "fine_label", "cifar100"), _hub_parquet("cifar100", "cifar100"),
)  # fmt: skip
MNIST = ImageSet(
    "mnist", (28, 28, 1), (), 10, "digit",
    "LeCun, Cortes and Burges 1998, The MNIST database of handwritten digits",
    {
        "train": Known(
            60000, 60000, "edc0d1098aa497be14ace79ddd5171e5a3dcf9c4d196c015389203eb3ba1f59b"
        ),
        "test": Known(
            10000, 10000, "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b"
        ),
    },
    IdxFiles(_MNIST),
    {
        part: tuple(
            DataFile(f"mnist/{name}", f"{_MNIST_MIRROR}/{name}", (sha256,))
            for name, sha256 in _MNIST[part].items()
        )
        for part in PARTS
    },
)  # fmt: skip
IMAGE_SETS = {one.name: one for one in (CIFAR10, CIFAR100, MNIST)}
