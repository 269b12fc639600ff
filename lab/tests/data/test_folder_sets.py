"""Folders of images among the data sets that experiments read."""

import pytest
from nearwise_lab.data import describe_dataset, load_dataset, load_images

from tests.data.cases import encode, pixels


@pytest.fixture
def folder(tmp_path):
    """Two classes: one cat, two dogs."""
    for seed, name in enumerate(("cat/1.png", "dog/1.png", "dog/2.png")):
        put(tmp_path / "pets" / name, seed)
    return tmp_path / "pets"


def put(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels(1, (4, 5, 3), seed)[0], "PNG"))


def test_a_folder_is_a_data_set_and_its_files_name_the_rows(folder):
    for load in (load_dataset, load_images):
        dataset = load(folder)
        assert dataset.y.tolist() == ["cat", "dog", "dog"]
        assert dataset.row_names == ("pets/cat/1.png", "pets/dog/1.png", "pets/dog/2.png")
    assert load_dataset("digits-images").row_names is None
    with pytest.raises(ValueError, match="limit=3 is not for folders"):
        load_images(folder, limit=3)


def test_load_dataset_keeps_its_options_apart(folder):
    with pytest.raises(ValueError, match="with the target 'class'"):
        load_dataset(folder, target="label")


def test_a_summary_speaks_of_images(folder):
    put(folder / "dog" / "c.png", 1)
    summary = describe_dataset(load_dataset(folder))
    assert (summary.n_rows, summary.n_columns, summary.image_shape) == (4, 60, (4, 5, 3))
    assert summary.n_duplicates == 1
    assert summary.classes == {"cat": 1, "dog": 3}
    assert "images: 4 x 5 pixels, 3 channels (color)" in str(summary)
    assert "missing" not in str(summary)
