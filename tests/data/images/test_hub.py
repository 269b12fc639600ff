"""Promises of image_dataset, with small data sets in memory."""

import numpy as np
import pytest
from PIL import Image

from nearwise.data import image_dataset
from tests.data.cases import encode, pixels, scratched

NAMES = ["zebra", "ant", "bee"]


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    global datasets  # imported here: two seconds for every process that only collects tests
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")


def table(images, labels, features=None, **columns):
    own = {
        "picture": datasets.Image(),
        "kind": datasets.ClassLabel(names=NAMES),
        **(features or {}),
    }
    pictures = [Image.fromarray(i) if isinstance(i, np.ndarray) else i for i in images]
    return datasets.Dataset.from_dict(
        {"picture": pictures, "kind": labels, **columns}, features=datasets.Features(own)
    )


def test_columns_are_found_by_their_features_and_names_become_labels():
    images = pixels(4, (5, 6, 3))
    extra = {"row": datasets.Value("int64")}
    dataset = image_dataset(table(images, [0, 2, 1, 0], extra, row=[1, 2, 3, 4]), name="zoo")
    np.testing.assert_array_equal(dataset.X, images)
    assert dataset.y.tolist() == ["zebra", "bee", "ant", "zebra"]
    assert dataset.strata.tolist() == [0, 2, 1, 0]
    assert (dataset.name, dataset.kind, dataset.target_name) == ("zoo", "images", "kind")
    assert dataset.test_index is None


def test_a_selected_and_formatted_table_gives_its_own_rows():
    rows = table(pixels(4), [0, 1, 2, 0]).select([3, 1]).with_format("numpy")
    dataset = image_dataset(rows)
    np.testing.assert_array_equal(dataset.X, pixels(4)[[3, 1]])
    assert dataset.y.tolist() == ["zebra", "ant"]


@pytest.mark.parametrize("test", ["test", "validation"])
def test_tables_of_train_and_test_give_the_test_part(test):
    both = datasets.DatasetDict(
        {test: table(pixels(2, seed=1), [1, 2]), "train": table(pixels(3), [0, 0, 1])}
    )
    dataset = image_dataset(both)
    np.testing.assert_array_equal(dataset.X, np.concatenate([pixels(3), pixels(2, seed=1)]))
    assert dataset.test_index.tolist() == [3, 4]
    assert dataset.y.tolist() == ["zebra", "zebra", "ant", "ant", "bee"]


def test_image_files_on_disk_are_read(tmp_path):
    (tmp_path / "a.png").write_bytes(encode(pixels(1)[0]))
    dataset = image_dataset(table([str(tmp_path / "a.png")], [1]))
    np.testing.assert_array_equal(dataset.X, pixels(1))
    (tmp_path / "a.png").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"rows, row 0 \(.*a\.png\) cannot be read"):
        image_dataset(table([str(tmp_path / "a.png")], [1]))


def test_text_and_numbers_do_as_labels_where_they_are_named_so():
    rows = datasets.Dataset.from_dict(
        {"img": [Image.fromarray(pixels(1)[0])] * 2, "label": ["b", "a"], "level": [3, 4]},
        features=datasets.Features(
            img=datasets.Image(), label=datasets.Value("string"), level=datasets.Value("int64")
        ),
    )
    dataset = image_dataset(rows)
    assert dataset.y.tolist() == ["b", "a"]
    assert dataset.y.dtype.kind == "U"
    assert dataset.strata is None
    assert image_dataset(rows, label_column="level").y.tolist() == [3, 4]


def test_two_columns_of_classes_must_be_chosen_from():
    rows = table(pixels(2), [0, 1], {"other": datasets.ClassLabel(names=["x", "y"])}, other=[1, 0])
    with pytest.raises(ValueError, match=r"holds the labels\? several may be it \(kind, other\)"):
        image_dataset(rows)
    assert image_dataset(rows, label_column="other").y.tolist() == ["y", "x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_column": "img"}, r"no column 'img'; pass image_column= one of \['picture'"),
        ({"image_column": "kind"}, "not Image"),
        ({"label_column": "class"}, r"no column 'class'; pass label_column= one of"),
    ],
)
def test_a_wrong_column_lists_what_there_is(options, message):
    with pytest.raises(ValueError, match=message):
        image_dataset(table(pixels(2), [0, 1]), **options)


def test_missing_images_and_labels_are_named():
    with pytest.raises(ValueError, match="rows, row 1 has no image"):
        image_dataset(table([pixels(1)[0], None], [0, 1]))
    for missing in (-1, None):
        with pytest.raises(
            ValueError, match=r"rows: 1 of 2 rows have no label in 'kind', .* row 1"
        ):
            image_dataset(table(pixels(2), [0, missing]))


def test_damaged_mixed_and_missing_tables_are_explained():
    damaged = table([pixels(1)[0], {"bytes": scratched(pixels(1)[0]), "path": None}], [0, 1])
    with pytest.raises(ValueError, match="rows, row 1 cannot be read as an image"):
        image_dataset(damaged)
    mixed = table([pixels(1)[0], pixels(1, (4, 4, 3))[0]], [0, 1])
    with pytest.raises(ValueError, match=r"rows, row 0 is 32 x 32, rows, row 1 is 4 x 4"):
        image_dataset(mixed)
    assert image_dataset(mixed, image_size=4, color="grey").X.shape == (2, 4, 4, 1)
    with pytest.raises(ValueError, match=r"The tables are test; none is called train"):
        image_dataset(datasets.DatasetDict(test=mixed))
    with pytest.raises(ValueError, match="image_dataset got a list"):
        image_dataset([1, 2])
    with pytest.raises(ValueError, match="has no rows"):
        image_dataset(mixed.select([]))
