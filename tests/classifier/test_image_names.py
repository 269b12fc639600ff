"""Images that come with the names of their files keep them."""

import warnings

import numpy as np
from PIL import Image

from nearwise.data import load_image_folder
from tests.classifier.cases import attn_knn, reopened
from tests.classifier.image_cases import BRIEF, named_folder, patches


def pixels_of(name, root):
    with Image.open(root.parent / name) as image:
        return np.asarray(image)[..., None]


def test_a_neighbor_is_named_by_its_file_after_add_remove_save_and_load(tmp_path):
    first, more = named_folder(tmp_path / "first"), named_folder(tmp_path / "more", 6, seed=1)
    model = attn_knn(**BRIEF).fit(first)
    assert model.fitted_.target_name == "class"
    model.add(more)
    model.remove(model.memory_.ids[:3])
    model.add(*patches(2, seed=2))  # an array, whose rows have no name
    loaded = reopened(model, tmp_path / "model")
    assert len(loaded.fitted_.row_names) == len(loaded.memory_) == 100 + 6 - 3 + 2
    assert loaded.fitted_.row_names[-2:].tolist() == ["", ""]
    assert sum(name.startswith("more/") for name in loaded.fitted_.row_names) == 6
    seen = set()
    for why in loaded.explain(more, None):
        for neighbor in why.neighbors:
            name = neighbor.row.get("file")
            seen.add(name and name.partition("/")[0])
            if name is not None:
                np.testing.assert_array_equal(neighbor.row["image"], pixels_of(name, first))
                assert name.split("/")[1] == neighbor.label
    assert {"first", "more"} <= seen


def test_arrays_that_must_not_be_written_to_are_taken_without_a_warning():
    X, y = patches(100)
    X.flags.writeable = False
    model = attn_knn(**BRIEF)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not writable")
        model.fit(X, y).add(X[:3], y[:3])
        assert len(model.predict(X[:5])) == 5


def test_a_stream_of_data_sets_keeps_their_names(tmp_path):
    first, more = named_folder(tmp_path / "first"), named_folder(tmp_path / "more", 6, seed=1)
    model = attn_knn(**BRIEF).partial_fit(load_image_folder(first, image_size=8))
    assert all(name.startswith("first/") for name in model.fitted_.row_names)
    model.partial_fit(load_image_folder(more))
    assert model.fitted_.row_names[-6:].tolist() == sorted(load_image_folder(more).row_names)
    assert attn_knn(**BRIEF).fit(*patches(100)).fitted_.row_names is None
