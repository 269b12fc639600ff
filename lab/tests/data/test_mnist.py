"""MNIST as it is published: idx files."""

import gzip
from functools import partial

import numpy as np
import pytest
from nearwise_lab.data import load_dataset, load_images

from tests.data.cases import idx_bytes, pixels, write_mnist


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def test_mnist_is_grey_with_whole_numbers(root):
    write_mnist(root / "mnist", 6, 4)
    dataset = load_dataset("mnist", data_root=root)
    assert dataset.X.shape == (10, 28, 28, 1)
    np.testing.assert_array_equal(dataset.X[:6, ..., 0], pixels(6, (28, 28), seed=6))
    assert dataset.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert dataset.y.dtype == np.int64
    assert dataset.test_index.tolist() == [6, 7, 8, 9]
    assert load_images("mnist", limit=2, data_root=root).y.tolist() == [0, 1, 0, 1]


IMAGES = idx_bytes(pixels(4, (28, 28)))
packed = partial(gzip.compress, mtime=0)  # the same bytes, hence test names, in every process


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(IMAGES)[:-30], "cannot be decompressed"),
        (b"no gzip", "cannot be decompressed"),
        (packed(IMAGES) + b"rest", "cannot be decompressed"),
        (packed(IMAGES + b"rest"), "announces 4 x 28 x 28 = 3,136 bytes and holds 3,140"),
        (packed(IMAGES[:-1]), "announces 4 x 28 x 28 = 3,136 bytes and holds 3,135"),
        (packed(b"\0\0\x0d\x03" + IMAGES[4:]), "starts with the bytes 00000d03; .* 00000803"),
        (packed(IMAGES[:9]), "starts with the bytes 00000803"),
        (packed(idx_bytes(np.zeros((0, 28, 28)))), "announces 0 x 28 x 28"),
        (packed(idx_bytes(pixels(3, (28, 28)))), "has 3 images, .* has 4 labels"),
        (packed(b""), "starts with the bytes of nothing"),
    ],
)
def test_a_damaged_idx_file_is_refused_with_its_name(root, content, message):
    write_mnist(root / "mnist", 2, 4)
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(content)
    with pytest.raises(ValueError, match=rf"t10k-images-idx3-ubyte\.gz .*{message}|{message}"):
        load_images("mnist", split="test", data_root=root)


def test_a_missing_label_file_is_named(root):
    write_mnist(root / "mnist", 2, 4)
    (root / "mnist" / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"but not train-labels-idx1-ubyte\.gz"):
        load_dataset("mnist", data_root=root)
