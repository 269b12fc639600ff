"""Photographs of mixed sizes and colors get a common form; other images stay strict."""

import os
import warnings

import pytest
from PIL import Image

from nearwise.data import load_image_folder
from nearwise.data.images.mixed import common_form


def saved(folder, *sizes, mode="RGB", exif=None):
    """Files of images of these heights and widths."""
    first = len(list(folder.iterdir()))
    files = [folder / f"{first + i:03}.png" for i in range(len(sizes))]
    for file, (height, width) in zip(files, sizes, strict=True):
        Image.new(mode, (width, height)).save(file, exif=exif or Image.Exif())
    return files


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ([(70, 80), (70, 81)], 128),
        ([(20, 20), (70, 70), (70, 70)], 128),
        ([(20, 70), (70, 20), (64, 64)], 128),
        ([(20, 20), (70, 70)], None),  # as many small ones as photographs
        ([(64, 64), (63, 64)], None),
        ([(70, 80), (70, 80)], None),
    ],
)
def test_sizes_are_chosen_if_they_differ_and_most_images_are_photographs(tmp_path, sizes, size):
    files = saved(tmp_path, *sizes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert common_form(files, "photos", None, None, 128) == (size, None)
    assert len(said) == (size is not None)


def test_what_is_given_is_not_chosen(tmp_path):
    files = saved(tmp_path, (70, 80), (90, 90)) + saved(tmp_path, (70, 80), mode="L")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert common_form(files, "photos", 66, "grey", 128) == (66, "grey")
    with pytest.warns(UserWarning, match="1 of 3 images are grey, and are read as color"):
        assert common_form(files, "photos", 66, None, 128) == (66, "rgb")


def test_a_turned_photograph_has_the_size_that_it_is_shown_in(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 8
    files = saved(tmp_path, (70, 80)) + saved(tmp_path, (80, 70), exif=turned)
    assert common_form(files, "photos", None, None, 128) == (None, None)
    files += saved(tmp_path, (70, 80), exif=turned)
    with pytest.warns(UserWarning, match="resized to 128 x 128"):
        assert common_form(files, "photos", None, None, 128) == (128, None)


def test_damaged_files_do_not_count_and_are_named_later(tmp_path):
    folder = tmp_path / "all" / "cat"
    folder.mkdir(parents=True)
    saved(folder, (70, 80), (90, 90))
    (folder / "broken.png").write_bytes(b"no image")
    resized = pytest.warns(UserWarning, match="2 images with sides of 70 to 90 pixels are resized")
    with resized, pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        load_image_folder(tmp_path / "all", mixed_size=128)
    with resized, pytest.warns(UserWarning, match="1 of 3 left out"):
        read = load_image_folder(tmp_path / "all", mixed_size=128, skip_damaged=True)
    assert read.X.shape == (2, 128, 128, 3)
    with pytest.raises(ValueError, match="differ in size"):
        load_image_folder(tmp_path / "all", skip_damaged=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    files = [tmp_path / "pipe.png", *saved(tmp_path, (70, 80), (70, 80))]
    assert common_form(files, "photos", None, None, 128) == (None, None)
