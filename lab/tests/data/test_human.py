"""Promises of load_human_labels."""

import os

import numpy as np
import pytest
from nearwise_lab.data import load_human_labels

REAL_ROOT = os.environ.get("NEARWISE_DATA", "")
FILE = os.path.join("cifar10-extras", "cifar10n_human.npz")


def save(root, **arrays):
    (root / "cifar10-extras").mkdir()
    np.savez(root / FILE, **arrays)
    return root


@pytest.mark.filterwarnings("ignore:Data set 'CIFAR-10N' has")
def test_the_labels_are_class_names_in_the_order_of_the_file(tmp_path):
    codes = np.arange(50000) % 10
    root = save(tmp_path, worse_label=codes, aggre_label=codes[::-1])
    assert load_human_labels("worse", data_root=root)[:3].tolist() == [
        "airplane", "automobile", "bird",
    ]  # fmt: skip
    assert load_human_labels("aggregate", data_root=root)[0] == "truck"


def test_labels_in_another_order_are_reported(tmp_path):
    root = save(tmp_path, worse_label=np.arange(50000) % 10)
    with pytest.warns(UserWarning, match="'CIFAR-10N' has worse labels that differ"):
        load_human_labels("worse", data_root=root)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"aggre_label": np.zeros(50000, int)}, r"lacks the array 'worse_label'; .*\['aggre_label"),
        ({"worse_label": np.zeros(10, int)}, r"worse_label has shape \(10,\) and type int64"),
        ({"worse_label": np.full(50000, 10)}, "runs from 10 to 10"),
    ],
)
def test_another_file_is_refused_with_its_name(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=rf"cifar10n_human\.npz.*{message}"):
        load_human_labels("worse", data_root=save(tmp_path, **arrays))


def test_an_unknown_kind_and_a_missing_file_are_explained():
    with pytest.raises(ValueError, match="kind='bad' is not one of worse, aggregate"):
        load_human_labels("bad")
    with pytest.raises(FileNotFoundError, match=r"made from data/CIFAR-10_human\.pt"):
        load_human_labels("worse")


@pytest.mark.skipif(
    not os.path.isfile(os.path.join(REAL_ROOT, FILE)), reason="the file is not here"
)
@pytest.mark.filterwarnings("error")
def test_the_real_labels_are_the_published_ones():
    worse = load_human_labels("worse", data_root=REAL_ROOT)
    assert worse.shape == (50000,)
    assert worse[:4].tolist() == ["deer", "truck", "airplane", "dog"]
    assert load_human_labels("aggregate", data_root=REAL_ROOT)[0] == "frog"
