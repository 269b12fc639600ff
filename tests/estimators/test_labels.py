"""Classes have the type of the labels, however these are stored, and kinds do not mix."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators.inputs.by_text import labels_as_classes
from nearwise.estimators.inputs.labels import check_labels
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, same

TWO = 2**53  # from here on floats skip whole numbers
STORED = {
    "Int64": (pd.Series([0, 1, 0, 1], dtype="Int64"), "i", [0, 1]),
    "UInt8": (pd.array([0, 1, 0, 1], dtype="UInt8"), "u", [0, 1]),
    "large Int64": (pd.Series([TWO, TWO + 1] * 2, dtype="Int64"), "i", [TWO, TWO + 1]),
    "boolean": (pd.Series([True, False] * 2, dtype="boolean"), "b", [False, True]),
    "string": (pd.Series(["b", "a"] * 2, dtype="string"), "O", ["a", "b"]),
    "a table's column": (pd.DataFrame({"y": pd.array([1, 2] * 2, "Int64")}), "i", [1, 2]),
    "categories": (pd.Series([1, 2] * 2, dtype="Int64").astype("category"), "i", [1, 2]),
    "objects of int": (np.array([1, 0, np.int64(1), 0], dtype=object), "i", [0, 1]),
    "large objects of int": (np.array([TWO + 1, TWO] * 2, dtype=object), "i", [TWO, TWO + 1]),
    "objects of bool": (np.array([True, np.bool_(False)] * 2, dtype=object), "b", [False, True]),
    "objects of str": (np.array(["b", "a"] * 2, dtype=object), "O", ["a", "b"]),
    "objects of whole float": (np.array([1.0, 0] * 2, dtype=object), "f", [0, 1]),
    "a list of str": (["b", "a"] * 2, "U", ["a", "b"]),
}


@pytest.mark.parametrize("case", STORED)
@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_classes_have_the_type_of_what_the_labels_hold(case):
    y, kind, wanted = STORED[case]
    classes, codes = check_labels(y, 4)
    assert (classes.dtype.kind, classes.tolist()) == (kind, wanted)
    assert classes[codes].tolist() == np.asarray(y).ravel().tolist()


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string"])
def test_a_missing_label_is_counted_however_labels_are_stored(dtype):
    y = pd.Series([1, 0, None, 1], dtype="Int64").astype(dtype)
    with pytest.raises(ValueError, match=r"missing labels in 1 of 4 rows\. Drop them"):
        check_labels(y, 4)
    with pytest.raises(ValueError, match=r"missing labels in 1 of 2 rows"):
        check_labels(["a", np.nan], 2)


MIXED = {
    "objects": (np.array(["a", 1, "a", 1], dtype=object), r"numbers \(1\) and text \('a'\)"),
    "list": (["a", 1, "a", 1], r"numbers \(1\) and text \('a'\)"),
    "truth": ([True, 2, False, 2], r"numbers \(2\) and truth values \(True\)"),
    "series": (pd.Series(["a", True] * 2), r"text \('a'\) and truth values \(True\)"),
}


@pytest.mark.parametrize("case", MIXED)
def test_labels_of_several_types_are_named_with_an_example_each(case):
    y, message = MIXED[case]
    with pytest.raises(ValueError, match=f"mixes labels of several types: {message}.*astype"):
        check_labels(y, 4)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Decimal("1.5"), r"holds Decimal values, such as Decimal\('1\.5'\)"),
        (2**70, "whole numbers beyond 64 bits, such as 1180591620717411303424"),
        (pd.Timestamp("2024-01-01"), "holds Timestamp values"),
    ],
    ids=["decimal", "huge", "date"],
)
def test_labels_that_name_no_class_are_called_what_they_are(value, message):
    with pytest.raises(ValueError, match=f"Unknown label type: y .*{message}.*Give text"):
        check_labels(np.array([value, value], dtype=object), 2)


def test_objects_that_are_quantities_are_still_refused_as_such():
    with pytest.raises(ValueError, match=r"such as 0\.5, a quantity"):
        check_labels(np.array([0.5, 1.5], dtype=object), 2)


def test_nullable_labels_are_fitted_added_and_changed_as_whole_numbers():
    X, y = blobs()
    answers = []
    for labels in (pd.Series(y, dtype="Int64"), pd.Series(y)):
        model = attn_knn(**CHEAP).fit(X, labels)
        model.add(X[:2], labels[:2] + 7)
        model.relabel([0], labels[1:2])
        model.partial_fit(X[:3], labels[:3].astype(object), classes=labels.unique())
        assert model.classes_.dtype == np.int64 and model.classes_.tolist() == [0, 1, 2, 7, 8]
        answers.append(model.predict_proba(X))
    assert same(*answers)


TRUTH = np.array([False, True])


@pytest.mark.parametrize("change", ["add", "partial_fit", "relabel", "declare"])
@pytest.mark.parametrize(
    ("known", "given", "message"),
    [
        (TRUTH, [0, 1], r"labels are numbers \(0\) but the classes are truth values \(False\)"),
        (np.arange(2), TRUTH, r"labels are truth values \(False\) but the classes are numbers"),
        (np.array(["a", "b"]), TRUTH, r"labels are truth values \(False\) but the.* text \('a'\)"),
    ],
    ids=["numbers to truth", "truth to numbers", "truth to text"],
)
def test_labels_of_another_kind_than_the_classes_are_refused(change, known, given, message):
    X, y = blobs(n_classes=2)
    model = fitted(X, known[y])
    changes = {
        "add": lambda: model.add(X[:2], given),
        "partial_fit": lambda: model.partial_fit(X[:2], given),
        "relabel": lambda: model.relabel([0, 1], given),
        "declare": lambda: model.partial_fit(X[:2], known, classes=given),
    }
    with pytest.raises(ValueError, match=f"{message}.*of the kind the model was fitted with"):
        changes[change]()
    assert len(model.memory_) == 90 and model.classes_.tolist() == known.tolist()


def test_whole_floats_are_whole_numbers_to_a_model_of_whole_numbers():
    X, y = blobs()
    model = fitted(X, y)
    model.add(X[:2], [2.0, 7.0])
    assert model.classes_.dtype.kind == "i" and model.classes_.tolist() == [0, 1, 2, 7]
    model.relabel([], [])


@pytest.mark.parametrize(
    ("classes", "labels", "expected"),
    [
        (["0", "1", "2+"], [0, 1, 3], ["0", "1", "3"]),
        (["1", "2"], [1.0, 2.0], ["1", "2"]),
        ([1, 2], ["01", "2", "x"], [1, 2, "x"]),
        (["01", "1"], [1, 1], ["1", "1"]),
        (["01", "001"], ["1", "01"], ["1", "01"]),
        ([1, 2], [2, 3], [2, 3]),
    ],
    ids=["text", "floats", "numbers", "nearest text", "text is never another", "the same type"],
)
def test_labels_of_a_file_are_the_classes_that_they_spell(classes, labels, expected):
    found = labels_as_classes(
        pd.Series(labels, name="y", index=range(5, 5 + len(labels))), np.array(classes)
    )
    assert found.tolist() == expected and found.name == "y" and found.index[0] == 5
