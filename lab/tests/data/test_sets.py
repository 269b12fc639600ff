"""Promises of the registered image sets: every form, every part, every damaged file named."""

import os
import zipfile

import numpy as np
import pytest
from nearwise_lab.data import files, load_dataset, load_images, sets
from nearwise_lab.data import images as load
from nearwise_lab.data.files import ChecksumError, cache_dir
from nearwise_lab.data.images import cached_path, content_digest
from PIL import Image

from nearwise.data import split_dataset
from tests.data.cases import pixels, scratched, write_shard

pytestmark = pytest.mark.filterwarnings("ignore:Data set .* the official")
REAL_ROOT = os.environ.get("NEARWISE_DATA")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    return folder


def test_shards_are_read_in_order_with_class_names_and_the_official_test_part(root):
    train, test = pixels(12), pixels(5, seed=1)
    for i in range(3):
        path = root / "cifar10" / f"train-0000{i}-of-00003.parquet"
        write_shard(path, train[4 * i : 4 * i + 4], [2 * i, 9 - i], form="WEBP")
    write_shard(root / "cifar10" / "test-00000-of-00001.parquet", test, [3])
    dataset = load_dataset("cifar10", data_root=root)
    np.testing.assert_array_equal(dataset.X, np.concatenate([train, test]))
    assert dataset.y[:6].tolist() == ["airplane", "truck", "airplane", "truck", "bird", "ship"]
    assert dataset.y[12:].tolist() == ["cat"] * 5
    assert (dataset.kind, dataset.X.dtype, dataset.target_name) == ("images", np.uint8, "label")
    memory, held = split_dataset(dataset, seed=0)
    assert (memory.tolist(), held.tolist()) == (list(range(12)), [12, 13, 14, 15, 16])
    assert len(dataset.files) == 4


def test_class_names_sort_as_their_official_numbers():
    for names in (sets.CIFAR10_CLASSES, sets.CIFAR100_CLASSES):
        assert list(names) == sorted(set(names))
    assert (len(sets.CIFAR10_CLASSES), len(sets.CIFAR100_CLASSES)) == (10, 100)


def test_missing_shards_and_a_missing_test_part_are_named(root):
    folder = root / "cifar10"
    write_shard(root / "cifar100" / "train.parquet", pixels(1), [0], label="fine_label")
    with pytest.raises(FileNotFoundError, match="no test part"):
        load_dataset("cifar100", data_root=root)
    assert len(load_images("cifar100", split="train", data_root=root)) == 1
    write_shard(folder / "train-00001-of-00003.parquet", pixels(2), [0, 1])
    with pytest.raises(FileNotFoundError, match=r"train-00000-of-00003\.parquet, train-00002"):
        load_dataset("cifar10", data_root=root)


def test_a_test_part_alone_loads_for_questions_about_other_classes(root):
    write_shard(root / "cifar100" / "test-first-2000.parquet", pixels(3), [49], label="fine_label")
    with pytest.warns(UserWarning, match=r"has 3 rows, the official files give 60,000.*2000"):
        dataset = load_dataset("cifar100", data_root=root, download=False)
    assert dataset.y.tolist() == ["mountain"] * 3
    assert dataset.test_index is None
    with pytest.warns(UserWarning, match=r"has 3 rows, the official files give 10,000"):
        assert len(load_images("cifar100", split="test", data_root=root)) == 3


def test_a_slice_decodes_no_more_than_it_needs(root):
    folder = root / "cifar10"
    write_shard(folder / "train-00000-of-00002.parquet", pixels(6), range(6))
    write_shard(folder / "train-00001-of-00002.parquet", [scratched(pixels(1)[0])], [0])
    write_shard(folder / "test.parquet", pixels(9), range(9))
    dataset = load_images("cifar10", limit=(5, 2), data_root=root)
    np.testing.assert_array_equal(dataset.X[:5], pixels(6)[:5])
    assert dataset.test_index.tolist() == [5, 6]
    assert load_images("cifar10", limit=4, data_root=root).test_index.tolist() == [4, 5, 6, 7]
    assert not (cache_dir() / "decoded").exists()
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet, row 0 cannot be read"):
        load_images("cifar10", limit=7, data_root=root)


def test_the_second_load_decodes_nothing_and_a_damaged_copy_is_made_anew(root, monkeypatch):
    shard = root / "cifar10" / "test.parquet"
    write_shard(shard, pixels(6), range(6))
    first = load_images("cifar10", split="test", data_root=root)
    copy = cached_path("cifar10-test", [shard])
    assert [p.name for p in copy.parent.iterdir()] == [copy.name]
    decode = sets.ParquetShards.read
    calls = []

    def counted(self, *args):
        calls.append(args)
        return decode(self, *args)

    monkeypatch.setattr(sets.ParquetShards, "read", counted)
    second = load_images("cifar10", split="test", data_root=root)
    np.testing.assert_array_equal(second.X, first.X)
    assert second.y.tolist() == first.y.tolist()
    assert not calls

    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), bytes(content[:1000]), b"", b"text"):
        copy.write_bytes(damaged)
        calls.clear()
        third = load_images("cifar10", split="test", data_root=root)
        np.testing.assert_array_equal(third.X, first.X)
        assert len(calls) == 1
        with zipfile.ZipFile(copy) as archive:
            assert archive.testzip() is None

    write_shard(shard, pixels(6, seed=5), range(6))
    fresh = load_images("cifar10", split="test", data_root=root)
    np.testing.assert_array_equal(fresh.X, pixels(6, seed=5))


def test_without_a_writable_cache_images_load_all_the_same(root, tmp_path, monkeypatch):
    (tmp_path / "blocked").write_text("a file, not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blocked"))
    write_shard(root / "cifar10" / "test.parquet", pixels(2), [0])
    assert len(load_images("cifar10", split="test", data_root=root)) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-20], r"test\.parquet cannot be read as Parquet"),
        (lambda content: b"", r"test\.parquet cannot be read as Parquet"),
        (lambda content: content[:500] + bytes(2000) + content[2500:], r"test\.parquet"),
    ],
    ids=["truncated", "empty", "overwritten"],
)
def test_a_damaged_shard_is_refused_with_its_name(root, damage, message):
    path = root / "cifar10" / "test.parquet"
    write_shard(path, pixels(3), [0])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        load_images("cifar10", split="test", data_root=root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": "picture"}, r"lacks the columns \['img'\]; it has \['picture', 'label'\]"),
        ({"labels": [10]}, r"class numbers run from 10 to 10; those of cifar10 are 0 to 9"),
        ({"labels": ["cat"]}, r"column 'label' has the type string"),
        ({"images": pixels(2, (28, 28))}, r"images have shape \(28, 28, 1\), those of cifar10"),
        ({"images": []}, "has no rows"),
    ],
)
def test_a_shard_of_something_else_says_what_it_holds(root, options, message):
    images = options.pop("images", pixels(2))
    labels = options.pop("labels", [0])
    write_shard(root / "cifar10" / "test.parquet", images, labels, **options)
    with pytest.raises(ValueError, match=message):
        load_images("cifar10", split="test", data_root=root)


def test_digits_images_are_the_rows_of_digits_at_full_brightness():
    images, table = load_dataset("digits-images"), load_dataset("digits")
    assert images.X.shape == (1797, 8, 8, 1)
    assert images.y.tolist() == table.y.tolist()
    assert (images.X.min(), images.X.max()) == (0, 255)
    np.testing.assert_array_equal(
        np.rint(images.X.reshape(1797, 64) * (16 / 255)), table.X.to_numpy()
    )
    for own, other in zip(split_dataset(images, 3), split_dataset(table, 3), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("iris", {}, "'iris' is not an image set: pass one of cifar10, cifar100, mnist, dig"),
        ("cifar10", {"split": "val"}, "split='val' is not one of train, test, all"),
        ("digits-images", {"split": "test"}, "no official test part"),
        ("cifar10", {"limit": 0}, "limit=0 is not a number of rows"),
        ("cifar10", {"limit": (1, 2, 3)}, "is not a number of rows"),
        ("mnist", {"image_size": 32}, "'mnist' keeps its images"),
    ],
)
def test_options_that_do_not_fit_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_images(name, **options)


def test_with_no_copy_the_error_names_the_three_places(root):
    for name, address in (("cifar10", "huggingface"), ("mnist", "mnist/train-images")):
        with pytest.raises(FileNotFoundError) as caught:
            load_dataset(name, data_root=root, download=False)
        message = str(caught.value)
        assert f"1. data_root: no file {root / name}" in message
        assert f"2. cache: no file {cache_dir() / name}" in message
        assert "3. download: switched off (would be https://" in message
        assert address in message


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A CIFAR-10 of 12 + 5 rows that is offered for download; gives the folder."""
    folder = tmp_path / "served"
    spec, rows = sets.CIFAR10, {"train": pixels(12), "test": pixels(5, seed=1)}
    known, downloads = {}, {}
    for part, images in rows.items():
        path = folder / f"{part}-00000-of-00001.parquet"
        codes = np.arange(len(images)) % 10
        write_shard(path, images, codes)
        known[part] = sets.Known(len(images), len(images), content_digest(images, codes))
        downloads[part] = (files.DataFile(f"cifar10/{path.name}", path.as_uri()),)
    small = sets.ImageSet(**{**vars(spec), "known": known, "downloads": downloads})
    monkeypatch.setitem(load.IMAGE_SETS, "cifar10", small)
    return folder


@pytest.mark.filterwarnings("error")
def test_a_download_is_checked_by_its_pixels_and_kept(served):
    dataset = load_dataset("cifar10")
    np.testing.assert_array_equal(dataset.X, np.concatenate([pixels(12), pixels(5, seed=1)]))
    for path in served.iterdir():
        path.unlink()
    assert len(load_dataset("cifar10")) == 17


def test_a_download_of_other_pixels_is_refused_and_removed(served):
    write_shard(served / "test-00000-of-00001.parquet", pixels(5, seed=2), range(5))
    with pytest.raises(ChecksumError, match=r"test-00000-of-00001\.parquet did not hold .* test"):
        load_dataset("cifar10")
    names = [path.name for path in (cache_dir() / "cifar10").iterdir()]
    assert names == ["train-00000-of-00001.parquet"]


def test_other_pixels_in_a_data_root_are_reported(served, root):
    for part, n in (("train", 12), ("test", 5)):
        write_shard(root / "cifar10" / f"{part}.parquet", pixels(n, seed=7), range(n % 10))
    with pytest.warns(UserWarning, match="pixels or labels of the train part that differ") as seen:
        load_dataset("cifar10", data_root=root)
    assert {warning.filename for warning in seen} == {__file__}


@pytest.mark.skipif(not REAL_ROOT, reason="NEARWISE_DATA is not set")
def test_the_first_rows_of_the_real_files():
    if not os.path.isdir(os.path.join(REAL_ROOT, "cifar10")):
        pytest.skip("cifar10 is not there")
    dataset = load_images("cifar10", limit=(5, 3), data_root=REAL_ROOT, download=False)
    assert dataset.y.tolist() == [
        "frog",
        "truck",
        "truck",
        "deer",
        "automobile",
        *["cat", "ship", "ship"],
    ]
    assert dataset.X[0, 0, 0].tolist() == [59, 62, 63]


def test_a_picture_survives_the_way_through_every_form(root):
    """Red, green and blue stay in their places."""
    image = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    image[0, :, :16] = (250, 10, 60)
    write_shard(root / "cifar10" / "test.parquet", image, [0])
    from_shard = load_images("cifar10", split="test", data_root=root).X
    Image.fromarray(image[0]).save(root / "a.bmp")
    np.testing.assert_array_equal(from_shard, image)
