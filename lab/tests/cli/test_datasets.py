"""The registry on the command line."""

import warnings

import pytest
from nearwise_lab import data
from nearwise_lab.data import dataset_names


@pytest.mark.parametrize("width", [120, 80, 40])
def test_names_are_never_cut(nearwise, tmp_path, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = nearwise("datasets", "--data-root", tmp_path)
    lines = result.out.splitlines()
    assert result.exit_code == 0
    for name in dataset_names():
        assert any(name in line.split("\t") for line in lines), name


def test_the_list_does_not_warn_of_sets_that_nobody_asked_for(nearwise, tmp_path, monkeypatch):
    load = data.load_dataset

    def warning(name, **options):
        warnings.warn(f"{name} has other rows", stacklevel=2)
        return load(name, **options)

    monkeypatch.setattr(data, "load_dataset", warning)
    assert nearwise("datasets", "--data-root", tmp_path).err == ""
    assert "iris has other rows" in nearwise("datasets", "iris").err


def test_one_data_set_is_described(nearwise):
    result = nearwise("datasets", "iris")
    assert result.exit_code == 0
    assert "150" in result.out


def test_a_wrong_name_gives_the_nearest(nearwise):
    result = nearwise("datasets", "iriss")
    assert result.exit_code == 2
    assert "'iris'" in result.err


def test_images_show_their_shape(nearwise, tmp_path):
    result = nearwise("datasets", "--data-root", tmp_path)
    assert "8 x 8 x 1" in result.out
    result = nearwise("datasets", "digits-images")
    assert "images: 8 x 8 pixels, 1 channel (grey)" in result.out


def test_a_folder_that_is_no_image_set_is_explained(nearwise, tmp_path):
    result = nearwise("datasets", tmp_path)
    assert result.exit_code == 2
    assert "no class folders" in result.err


def test_one_damaged_set_does_not_hide_the_others(nearwise, tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test.parquet").write_text("damaged")
    result = nearwise("datasets", "--data-root", tmp_path)
    assert result.exit_code == 0
    assert "cannot be read: 'nearwise datasets NAME' shows why" in result.out
    result = nearwise("datasets", "cifar10", "--data-root", tmp_path)
    assert result.exit_code == 2
    assert "test.parquet cannot be read as Parquet" in result.err
