"""Promises of split_dataset."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import train_test_split

from nearwise.data import Dataset, hold_out, split_dataset


def labelled(y, **more) -> Dataset:
    y = np.asarray(y)
    return Dataset("mine", pd.DataFrame({"a": range(len(y))}), y, "y", "table", "here", **more)


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_the_split_is_scikit_learns_stratified_one(seed):
    y = load_wine().target
    train, test = split_dataset(labelled(y), seed)
    expected = train_test_split(np.arange(178), test_size=0.2, stratify=y, random_state=seed)
    np.testing.assert_array_equal(train, expected[0])
    np.testing.assert_array_equal(test, expected[1])


@pytest.mark.parametrize(
    "divide", [lambda y: split_dataset(labelled(y), 0), lambda y: hold_out(y, 4, 0)]
)
def test_the_only_row_of_a_class_is_one_to_learn_from(divide):
    train, test = divide(["rare"] + ["a"] * 10 + ["b"] * 9)
    assert 0 in train and len(test) == 4
    assert sorted([*train, *test]) == list(range(20))


def test_strata_take_the_place_of_labels():
    strata = load_breast_cancer().target
    names = np.array(["malignant", "benign"])[strata]  # sorted the other way round
    expected = train_test_split(
        np.arange(len(names)), test_size=0.2, stratify=strata, random_state=3
    )
    train, test = split_dataset(labelled(names, strata=strata), 3)
    assert train.tolist() == expected[0].tolist()
    assert test.tolist() == expected[1].tolist()


@pytest.mark.parametrize("size", [5, 0.05])
def test_held_out_rows_keep_the_classes_in_proportion(size):
    labels = np.array(["a"] * 60 + ["b"] * 40)
    memory, held_out = hold_out(labels, size, seed=1)
    assert sorted([*memory, *held_out]) == list(range(100))
    assert np.unique(labels[held_out], return_counts=True)[1].tolist() == [3, 2]
    assert (np.diff(memory) > 0).all() and (np.diff(held_out) > 0).all()
    assert hold_out(labels, size, seed=1)[1].tolist() == held_out.tolist()
    assert hold_out(labels, size, seed=2)[1].tolist() != held_out.tolist()


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((2, 4, 4, 3)),
        np.zeros((2, 4, 4), dtype=np.uint8),
        np.zeros((2, 4, 4, 4), dtype=np.uint8),
        np.zeros((2, 3, 4, 4), dtype=np.uint8),
        np.zeros((2, 0, 4, 1), dtype=np.uint8),
        pd.DataFrame({"a": [1, 2]}),
    ],
    ids=["float", "no channels", "four channels", "channels first", "no pixels", "table"],
)
def test_images_are_bytes_with_one_or_three_channels_last(X):
    with pytest.raises(ValueError, match=r"images have .*; pass a uint8 array of shape"):
        Dataset("mine", X, np.array([0, 1]), "y", "images", "here")


def test_images_split_like_any_rows_and_are_no_table():
    X = np.arange(20, dtype=np.uint8).reshape(20, 1, 1, 1)
    dataset = Dataset("mine", X, np.arange(20) % 2, "y", "images", "here")
    train, test = split_dataset(dataset, 0)
    assert (len(train), len(test), len(dataset)) == (16, 4, 20)
    np.testing.assert_array_equal(dataset.rows(test)[0], X[test])
    with pytest.raises(ValueError, match=r"images of shape \(1, 1, 1\), which are not a table"):
        dataset.to_frame()


def split_of(*given):
    return lambda: split_dataset(labelled(given[0]), 0, *given[1:])


def held_out_of(*given):
    return lambda: hold_out(*given, seed=0)


def made_of(y):
    return lambda: Dataset("mine", pd.DataFrame({"a": range(3)}), y, "y", "table", "here")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (split_of(["a", "b", "c"]), "each of its 3 rows is the only one of its class"),
        (split_of([0, 0, 1, 1, 2, 2]), r"\(6 rows, 3 classes\) cannot be split"),
        *((split_of([0, 0, 1, 1], share), "not a share") for share in (0, 1, -0.1, 1.5)),
        *((held_out_of([0, 0, 1, 1], n), "nor a share") for n in (0, 4, -1, 0.0, 1.0, 1.5, True)),
        (held_out_of([0, 0, 1, 1, 2, 2], 2), "cannot be split with size=2 into 4 and 2 rows"),
        (made_of(np.zeros(2)), "X has 3 rows, y has 2 rows"),
        (made_of(np.zeros((3, 2))), "one label per row"),
        (made_of(np.array([0.0, np.nan, 1.0])), "1 of 3 rows have no value"),
    ],
)
def test_what_cannot_be_split_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
