"""Promises of folders of images: classes by folder, parts by folder, every oddity named."""

import numpy as np
import pytest
from PIL import Image

from nearwise.data import load_image_folder, read_images, split_dataset
from nearwise.data.images.folder import image_files
from tests.data.cases import encode, pixels


@pytest.fixture
def folder(tmp_path):
    """Two classes, three forms, and things that are skipped."""
    root = tmp_path / "pets"
    put(root / "dog" / "b.PNG", 0)
    put(root / "dog" / "a.bmp", 1, form="BMP")
    put(root / "cat" / "z.webp", 2, form="WEBP", lossless=True)
    (root / "cat" / ".DS_Store").write_text("hidden")
    (root / ".git").mkdir()
    (root / "README.txt").write_text("about")
    return root


def put(path, seed, shape=(4, 5, 3), form="PNG", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels(1, shape, seed)[0], form, **options))


def test_classes_and_files_come_in_the_order_of_their_names(folder):
    dataset = load_image_folder(folder)
    assert (dataset.name, dataset.kind, dataset.target_name) == ("pets", "images", "class")
    assert dataset.y.tolist() == ["cat", "dog", "dog"]
    assert [path.name for path in dataset.files] == ["z.webp", "a.bmp", "b.PNG"]
    assert dataset.row_names == ("pets/cat/z.webp", "pets/dog/a.bmp", "pets/dog/b.PNG")
    expected = [pixels(1, (4, 5, 3), seed)[0] for seed in (2, 1, 0)]
    np.testing.assert_array_equal(dataset.X, expected)
    assert dataset.test_index is None


@pytest.mark.parametrize("test", ["test", "val", "Validation"])
def test_train_and_test_folders_give_the_test_part(tmp_path, test):
    for i, name in enumerate(
        ("train/b/1.png", "train/a/1.png", "train/a/2.png", f"{test}/b/0.png")
    ):
        put(tmp_path / "set" / name, i)
    dataset = load_image_folder(str(tmp_path / "set"))
    assert dataset.y.tolist() == ["a", "a", "b", "b"]
    assert dataset.test_index.tolist() == [3]
    assert [part.tolist() for part in split_dataset(dataset, 0)] == [[0, 1, 2], [3]]
    part = load_image_folder(tmp_path / "set", split="test")
    assert part.y.tolist() == ["b"]
    assert part.test_index is None
    assert len(load_image_folder(tmp_path / "set", split="train")) == 3


def test_a_train_folder_alone_is_looked_into_and_a_class_of_trains_is_a_class(tmp_path):
    put(tmp_path / "one" / "train" / "cat" / "1.png", 0)
    assert load_image_folder(tmp_path / "one").y.tolist() == ["cat"]
    put(tmp_path / "two" / "train" / "1.png", 0)
    put(tmp_path / "two" / "test" / "1.png", 0)
    assert load_image_folder(tmp_path / "two").y.tolist() == ["test", "train"]


def test_mixed_sizes_and_colors_name_the_files_and_the_arguments(folder):
    put(folder / "dog" / "c.png", 3, shape=(6, 5, 3))
    with pytest.raises(ValueError, match=r"z\.webp is 4 x 5, .*c\.png is 6 x 5\. Pass image_size"):
        load_image_folder(folder)
    assert load_image_folder(folder, image_size=8).X.shape == (4, 8, 8, 3)
    put(folder / "dog" / "c.png", 3, shape=(4, 5))
    with pytest.raises(ValueError, match=r'z\.webp is rgb, .*c\.png is grey\. Pass color="rgb"'):
        load_image_folder(folder)
    assert load_image_folder(folder, color="grey").X.shape == (4, 4, 5, 1)


def other_files_alone(folder):
    (folder / "eel").mkdir()
    for name in ("1.tif", "2.TIF", "notes"):
        (folder / "eel" / name).write_text("x")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda f: (f / "eel").mkdir(), r"The class folder .*eel holds no image\. Add some, or"),
        (other_files_alone, r"folder .*eel holds no image \(PNG.* but other files: 2 \.tif"),
        (
            lambda f: (f / "dog" / "n.png").write_text("x"),
            r"n\.png cannot be read as an image.*skip_damaged=True \(--skip-damaged\)",
        ),
        (lambda f: put(f / "dog" / "in" / "n.png", 0), r"in is a folder within a class folder"),
        (lambda f: put(f / "n.png", 0), r"n\.png lies beside the class folders \(1 such"),
    ],
    ids=["empty class", "other files", "text as png", "nested", "loose"],
)
def test_what_does_not_belong_is_named(folder, build, message):
    build(folder)
    with pytest.raises(ValueError, match=message):
        load_image_folder(folder)


def test_files_of_other_kinds_are_left_out_and_said(folder):
    for name in ("n.txt", "Thumbs.db"):
        (folder / "dog" / name).write_text("x")
    with pytest.warns(UserWarning, match=r"left out 2 files .*: dog/Thumbs\.db, dog/n\.txt\.$"):
        dataset = load_image_folder(folder)
    assert [path.name for path in dataset.files] == ["z.webp", "a.bmp", "b.PNG"]


def test_all_damaged_images_are_named_at_once_or_left_out_when_asked(tmp_path):
    for i, name in enumerate(("train/a/1", "train/a/2", "train/b/1", "test/a/1", "test/b/1")):
        put(tmp_path / f"{name}.png", i)
    cut = [tmp_path / "train" / "a" / "1.png", tmp_path / "test" / "a" / "1.png"]
    for path in cut:
        path.write_bytes(path.read_bytes()[:50])
    said = r"2 of 5 images cannot be read: .*train/a/1\.png \(.*test/a/1\.png \("
    with pytest.raises(ValueError, match=said):
        load_image_folder(tmp_path)
    with pytest.warns(UserWarning, match=rf"{said}.* 2 of 5 left out\.$"):
        dataset = load_image_folder(tmp_path, skip_damaged=True)
    places = ["train/a/2.png", "train/b/1.png", "test/b/1.png"]
    assert [str(path.relative_to(tmp_path)) for path in dataset.files] == places
    assert [name.partition("/")[2] for name in dataset.row_names] == places
    assert (dataset.y.tolist(), dataset.test_index.tolist()) == (["a", "b", "b"], [2])
    expected = [pixels(1, (4, 5, 3), seed)[0] for seed in (1, 2, 4)]
    np.testing.assert_array_equal(dataset.X, expected)


def test_images_of_16_bits_are_left_out_as_damaged_ones_are(folder):
    for name in ("cat/deep.png", "dog/deep.png"):
        Image.fromarray(np.full((4, 5), 999, np.uint16)).save(folder / name)
    said = r"2 of 5 images cannot be read: .*deep\.png \(it has more than 8 bits per channel"
    with pytest.raises(ValueError, match=said):
        load_image_folder(folder)
    with pytest.warns(UserWarning, match=said):
        assert len(load_image_folder(folder, skip_damaged=True)) == 3


def test_a_folder_of_nothing_but_damage_is_an_error_even_then(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_text("x")
    with pytest.raises(ValueError, match=r"No image is left: .*1\.png cannot be read"):
        load_image_folder(tmp_path, skip_damaged=True)


def test_images_without_labels_are_read_from_folders_within_folders(folder):
    X = read_images(folder / "dog")
    np.testing.assert_array_equal(X, [pixels(1, (4, 5, 3), seed)[0] for seed in (1, 0)])
    with pytest.warns(UserWarning, match=r"left out 1 file whose ending is none .*: README\.txt"):
        X = read_images(folder)
    np.testing.assert_array_equal(X, load_image_folder(folder).X)
    (folder / "eel").mkdir()
    with pytest.raises(ValueError, match=r"eel holds no image\. Add some"):
        read_images(folder / "eel")


def test_links_that_lead_in_circles_list_each_image_once(folder):
    (folder / "dog" / "up").symlink_to("..")
    (folder / "dog" / "top").symlink_to(folder)
    (folder / "again").symlink_to("cat")
    (folder / "dog" / "0.png").symlink_to("b.PNG")
    (folder / "README.txt").unlink()
    said = r"each image is read once; left out what .* again: again, dog/0\.png, dog/top, dog/up\.$"
    with pytest.warns(UserWarning, match=said):
        files = image_files(folder)
    assert [str(path.relative_to(folder)) for path in files] == [
        "cat/z.webp",
        "dog/a.bmp",
        "dog/b.PNG",
    ]


def test_links_to_images_elsewhere_are_followed(folder, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "dogs").symlink_to(folder / "dog")
    (tmp_path / "here" / "one.webp").symlink_to(folder / "cat" / "z.webp")
    X = read_images(tmp_path / "here")
    np.testing.assert_array_equal(X, [pixels(1, (4, 5, 3), seed)[0] for seed in (1, 0, 2)])
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "dog").symlink_to(folder / "dog")
    (tmp_path / "classes" / "cat").mkdir()
    (tmp_path / "classes" / "cat" / "1.webp").symlink_to(folder / "cat" / "z.webp")
    assert load_image_folder(tmp_path / "classes").y.tolist() == ["cat", "dog", "dog"]


def test_a_link_to_an_image_of_the_same_class_is_left_out_and_of_another_refused(folder):
    (folder / "dog" / "0.png").symlink_to("b.PNG")
    with pytest.warns(UserWarning, match=r"left out what symbolic links lead to again: dog/0\.png"):
        dataset = load_image_folder(folder)
    assert [path.name for path in dataset.files] == ["z.webp", "a.bmp", "b.PNG"]
    (folder / "cat" / "dog.png").symlink_to("../dog/b.PNG")
    with pytest.raises(ValueError, match=r"dog\.png and .*b\.PNG are one image, reached by a symb"):
        load_image_folder(folder)


def test_an_image_of_both_parts_is_refused(tmp_path):
    put(tmp_path / "train" / "a" / "1.png", 0)
    (tmp_path / "test").symlink_to("train")
    with pytest.raises(ValueError, match=r"train/a/1\.png and .*test/a/1\.png are one image"):
        load_image_folder(tmp_path)


def test_a_folder_without_class_folders_is_explained(tmp_path):
    with pytest.raises(ValueError, match="has no class folders: it holds no folders"):
        load_image_folder(tmp_path)
    put(tmp_path / "1.png", 0)
    with pytest.raises(ValueError, match=r"it holds 1 images\. Put the images of each class in a"):
        load_image_folder(tmp_path)


def test_test_classes_must_be_known_and_the_test_part_one(tmp_path):
    for name in ("train/a/1.png", "train/b/1.png", "test/c/1.png"):
        put(tmp_path / name, 0)
    with pytest.raises(ValueError, match=r"test has the class folders c, which .*train lacks"):
        load_image_folder(tmp_path)
    put(tmp_path / "val" / "a" / "1.png", 0)
    with pytest.raises(ValueError, match=r"holds test, val: which .*train to learn from, .*test"):
        load_image_folder(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "tests"}, "split='tests' is not one of train, test, all"),
        ({"split": "test"}, "no folders train and test"),
    ],
)
def test_options_that_do_not_fit_a_folder_are_explained(folder, options, message):
    with pytest.raises(ValueError, match=message):
        load_image_folder(folder, **options)


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a folder\. Pass one with a folder"):
        load_image_folder(tmp_path / "absent")
