"""Promises of load_dataset: every name, every file format, every mistake explained."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from nearwise_lab.data import dataset_names, load_dataset
from sklearn.datasets import load_breast_cancer

from nearwise.data import split_dataset

pytestmark = pytest.mark.filterwarnings("ignore:Data set .* the official")
REAL_SIZES = {
    "digits": (1797, 64, 10),
    "iris": (150, 4, 3),
    "wine": (178, 13, 3),
    "breast_cancer": (569, 30, 2),
    "adult": (48842, 14, 2),
    "adult-notebook": (45222, 14, 2),
    "wine-red": (1599, 11, 2),
    "wine-red-dd": (1359, 11, 2),
    "wine-red-multiclass": (1599, 11, 6),
    "wine-red-multiclass-dd": (1359, 11, 6),
    "wine-white": (4898, 11, 2),
    "wine-white-dd": (3961, 11, 2),
    "wine-white-multiclass": (4898, 11, 7),
    "wine-white-multiclass-dd": (3961, 11, 7),
    "letter": (20000, 16, 26),
    "magic04": (19020, 10, 2),
    "ionosphere": (351, 34, 2),
    "cifar10-features": (60000, 192, 10),
    "cifar10": (60000, 32, 32, 3, 10),
    "cifar100": (60000, 32, 32, 3, 100),
    "mnist": (70000, 28, 28, 1, 10),
    "digits-images": (1797, 8, 8, 1, 10),
}
KINDS = {"cifar10-features": "embeddings"} | dict.fromkeys(
    ("cifar10", "cifar100", "mnist", "digits-images"), "images"
)
REAL_ROOT = os.environ.get("NEARWISE_DATA")


def test_every_name_loads_from_a_data_root_with_labels_for_all_rows(data_root):
    for name in dataset_names():
        dataset = load_dataset(name, data_root=data_root, download=False)
        assert dataset.name == name
        assert len(dataset.X) == len(dataset.y) == len(dataset)
        assert dataset.kind == KINDS.get(name, "table")
        assert isinstance(dataset.X, pd.DataFrame) == (dataset.kind == "table")


@pytest.mark.parametrize("name", ["digits", "iris", "wine", "breast_cancer"])
def test_bundled_sets_need_no_files(name):
    dataset = load_dataset(name, download=False)
    assert (*dataset.X.shape, len(dataset.classes)) == REAL_SIZES[name]


def test_breast_cancer_labels_keep_their_meaning():
    dataset = load_dataset("breast_cancer")
    assert (dataset.y == "malignant").sum() == 212
    assert (dataset.y == "benign").sum() == 357


def test_bundled_sets_are_split_by_scikit_learns_own_class_numbers():
    dataset = load_dataset("breast_cancer")
    np.testing.assert_array_equal(dataset.strata, load_breast_cancer().target)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_ROOT, reason="NEARWISE_DATA is not set")
@pytest.mark.parametrize("name", REAL_SIZES)
@pytest.mark.filterwarnings("error")
def test_real_files_have_the_official_sizes(name):
    if name == "cifar100" and not list(Path(REAL_ROOT, "cifar100").glob("train*")):
        pytest.skip("the training part of cifar100 is not there")
    dataset = load_dataset(name, data_root=REAL_ROOT, download=False)
    assert (*dataset.X.shape, len(dataset.classes)) == REAL_SIZES[name]


def test_the_sizes_checked_cover_the_registry():
    assert set(REAL_SIZES) == set(dataset_names())


def test_adult_of_the_notebook_has_whole_rows_and_places_of_sorted_levels(data_root):
    dataset = load_dataset("adult-notebook", data_root=data_root)
    assert dataset.y.tolist() == ["<=50K", "<=50K", ">50K"]
    assert dataset.X["workclass"].tolist() == [1, 0, 0]  # State-gov, Private, Private
    assert dataset.X["education"].tolist() == [1, 0, 2]  # Bachelors, 11th, Some-college
    assert dataset.X["age"].tolist() == [39, 25, 44]
    assert all(pd.api.types.is_numeric_dtype(kind) for kind in dataset.X.dtypes)


def test_adult_joins_both_files_strips_the_dot_and_marks_missing_values(data_root):
    dataset = load_dataset("adult", data_root=data_root)
    assert dataset.y.tolist() == ["<=50K", ">50K", "<=50K", ">50K"]
    assert dataset.test_index is None
    assert dataset.X["fnlwgt"].tolist() == [77516, 83311, 226802, 160323]
    assert dataset.X.loc[1, ["workclass", "occupation", "native-country"]].isna().all()
    assert dataset.X.isna().sum().sum() == 3
    assert dataset.X["native-country"].dtype == "category"
    assert list(dataset.X["workclass"].cat.categories) == ["Private", "State-gov"]
    assert dataset.X["age"].dtype == np.int64


def test_wine_is_good_from_quality_six(data_root):
    assert load_dataset("wine-red", data_root=data_root).y.tolist() == [0, 1, 1, 1]
    multiclass = load_dataset("wine-white-multiclass", data_root=data_root)
    assert multiclass.y.tolist() == [5, 6, 7, 6]
    assert "quality" not in multiclass.X.columns


def test_dd_drops_rows_with_the_features_of_an_earlier_row_and_keeps_the_first(data_root):
    dataset = load_dataset("wine-red-multiclass-dd", data_root=data_root)
    assert dataset.y.tolist() == [5, 6, 6]
    assert dataset.X.index.tolist() == [0, 1, 2]
    assert not dataset.X.duplicated().any()


def test_headless_files_get_their_documented_names(data_root):
    letter = load_dataset("letter", data_root=data_root)
    assert letter.y.tolist() == ["T", "I"]
    assert letter.X.columns[0] == "x-box"
    assert letter.X.iloc[0].tolist() == [2, 8, 3, 5, 1, 8, 13, 0, 6, 6, 10, 8, 0, 8, 0, 8]
    magic = load_dataset("magic04", data_root=data_root)
    assert magic.X.columns.tolist()[-1] == "fDist"
    assert magic.y.tolist() == ["g", "h"]
    ionosphere = load_dataset("ionosphere", data_root=data_root)
    assert ionosphere.X.shape == (2, 34)
    assert ionosphere.y.tolist() == ["g", "b"]


def test_cifar10_features_keeps_the_official_test_part_and_offers_the_flipped_view(data_root):
    dataset = load_dataset("cifar10-features", data_root=data_root, views=True)
    assert dataset.X.dtype == np.float32
    assert dataset.y.tolist() == [0, 1, 2, 0, 1, 2, 2, 0, 1]
    train, test = split_dataset(dataset, seed=3)
    assert train.tolist() == [0, 1, 2, 3, 4, 5]
    assert test.tolist() == [6, 7, 8]
    stored = np.load(data_root / "cifar10-features" / "squeezenet_pca192.npz")
    np.testing.assert_array_equal(dataset.X[test], stored["test"].astype(np.float32))
    np.testing.assert_array_equal(
        dataset.views["flip"][train], stored["train_flip"].astype(np.float32)
    )
    assert load_dataset("cifar10-features", data_root=data_root).views == {}


@pytest.mark.filterwarnings("default:Data set")
def test_a_file_with_other_rows_than_the_official_one_is_reported(data_root):
    with pytest.warns(UserWarning, match=r"'letter' has 2 rows, the official files give 20,000"):
        load_dataset("letter", data_root=data_root)


@pytest.mark.parametrize(
    ("name", "file", "damage", "message"),
    [
        ("magic04", "tabular/magic04.data", lambda text: "1,2,3,g\n",
         r"magic04\.data has 4 columns, expected 11"),
        ("magic04", "tabular/magic04.data", lambda text: "", r"magic04\.data is empty"),
        ("letter", "tabular/letter-recognition.data", lambda text: text.replace("T,2,", "T,two,"),
         r"column 'x-box' holds text where numbers"),
        ("wine-red", "wine-quality/winequality-red.csv", lambda text: text.replace(";", ","),
         "lacks the columns"),
    ],
    ids=["width", "empty", "text", "commas"],
)  # fmt: skip
def test_a_registered_file_of_another_form_is_refused(data_root, name, file, damage, message):
    path = data_root / file
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=message):
        load_dataset(name, data_root=data_root)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("wine_red", "wine-red"), ("Adult", "adult"), ("cifar10-featurs", "cifar10-features")],
)
def test_an_unknown_name_brings_a_close_match(typed, meant):
    with pytest.raises(ValueError, match=f"Unknown data set '{typed}'. Did you mean .*'{meant}'"):
        load_dataset(typed)


def test_a_name_like_nothing_lists_what_is_known():
    with pytest.raises(ValueError, match=r"Unknown data set 'zzzz'\. Known: digits, iris"):
        load_dataset("zzzz")


@pytest.fixture
def frame():
    return pd.DataFrame(
        {"size": [1.5, 2.5, np.nan], "color": ["red", None, "blue"], "kind": ["a", "b", "a"]}
    )


def save(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_of_ones_own_loads_with_its_target(frame, tmp_path, suffix):
    dataset = load_dataset(save(frame, tmp_path / f"mine{suffix}"), target="kind")
    assert (dataset.name, dataset.target_name, dataset.kind) == ("mine", "kind", "table")
    assert dataset.y.tolist() == ["a", "b", "a"]
    assert dataset.X.columns.tolist() == ["size", "color"]
    assert dataset.X.isna().sum().sum() == 2


def test_file_colon_column_names_the_target(frame, tmp_path):
    path = save(frame, tmp_path / "mine.csv")
    assert load_dataset(f"{path}:kind").y.tolist() == ["a", "b", "a"]


def test_a_usual_target_name_is_found_and_two_are_refused(frame, tmp_path):
    path = save(frame.rename(columns={"kind": "label"}), tmp_path / "mine.csv")
    assert load_dataset(path).target_name == "label"
    path = save(frame.rename(columns={"kind": "label"}).assign(y=1), path)
    with pytest.raises(ValueError, match=r"several columns that may be it \(label, y\)"):
        load_dataset(path)


def test_a_y_beside_an_x_is_no_target(tmp_path):
    path = save(pd.DataFrame({"x": [1, 2], "y": [3, 4], "class": ["a", "b"]}), tmp_path / "m.csv")
    assert load_dataset(path).target_name == "class"
    assert load_dataset(save(pd.read_csv(path)[["class", "x"]], path)).X.columns.tolist() == ["x"]
    with pytest.raises(ValueError, match="none marked"):
        load_dataset(save(pd.DataFrame({"x": [1], "y": [2]}), path))


def test_a_missing_target_lists_the_columns(frame, tmp_path):
    path = save(frame, tmp_path / "mine.csv")
    expected = r"no column 'kid'\. Did you mean 'kind'\? It has \['size', 'color', 'kind'\]"
    with pytest.raises(ValueError, match=expected):
        load_dataset(path, target="kid")
    with pytest.raises(ValueError, match=r"which column is the target\?.*'size', 'color', 'kind'"):
        load_dataset(path)


def test_missing_labels_are_counted(frame, tmp_path):
    path = save(frame, tmp_path / "mine.csv")
    with pytest.raises(ValueError, match="1 of 3 rows have no value in the target 'color'"):
        load_dataset(path, target="color")


def test_a_table_of_nothing_but_the_target_is_refused(frame, tmp_path):
    path = save(frame[["kind"]], tmp_path / "mine.csv")
    with pytest.raises(ValueError, match="no column besides the target"):
        load_dataset(path, target="kind")


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No file .*absent\.csv"):
        load_dataset(tmp_path / "absent.csv", target="y")


def test_a_registered_name_does_not_take_another_target():
    assert load_dataset("iris", target="class").target_name == "class"
    with pytest.raises(ValueError, match="'iris' has the target 'class'"):
        load_dataset("iris", target="species")


@pytest.mark.parametrize(("features", "labels"), [("X", "y"), ("features", "labels")])
def test_an_npz_of_features_and_labels_gives_embeddings(tmp_path, features, labels):
    X = np.arange(12, dtype=np.float64).reshape(4, 3)
    np.savez(tmp_path / "mine.npz", **{features: X, labels: np.array(["a", "b", "a", "b"])})
    dataset = load_dataset(tmp_path / "mine.npz")
    assert dataset.kind == "embeddings"
    assert dataset.X.dtype == np.float32
    np.testing.assert_array_equal(dataset.X, X)
    assert dataset.target_name == labels
    assert dataset.y.tolist() == ["a", "b", "a", "b"]


def test_an_npz_may_name_its_label_array_and_carry_a_test_part(tmp_path):
    X = np.eye(3)
    np.savez(tmp_path / "one.npz", X=X, species=np.array([5, 6, 7]))
    assert load_dataset(tmp_path / "one.npz", target="species").y.tolist() == [5, 6, 7]
    np.savez(tmp_path / "two.npz", X_train=X, y_train=[0, 1, 0], X_test=X[:2], y_test=[1, 0])
    dataset = load_dataset(tmp_path / "two.npz")
    assert dataset.y.tolist() == [0, 1, 0, 1, 0]
    assert dataset.test_index.tolist() == [3, 4]
    assert load_dataset(f"{tmp_path / 'two.npz'}:y").test_index.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.eye(3)}, r"lacks a label array; it holds \['X'\]"),
        ({"Z": np.eye(3), "y": np.arange(3)}, r"lacks a feature array; it holds \['Z', 'y'\]"),
        ({"X": np.eye(3), "y": np.arange(4)}, r"y has shape \(4,\); labels have shape \(3,\)"),
        ({"X": np.zeros((3, 2, 2)), "y": np.arange(3)}, "Embed or flatten"),
        ({"X": np.array([["a"], ["b"]]), "y": np.arange(2)}, "features are numbers"),
        ({"X": np.zeros((0, 2)), "y": np.zeros(0)}, "has no rows"),
    ],
)
def test_an_npz_without_the_arrays_says_what_it_holds(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_dataset(tmp_path / "mine.npz")


def test_python_objects_in_an_npz_are_never_loaded(tmp_path):
    np.savez(tmp_path / "mine.npz", X=np.eye(2), y=np.array([{}, []], dtype=object))
    with pytest.raises(ValueError, match=r"mine\.npz cannot be read as npz.*numpy\.savez"):
        load_dataset(tmp_path / "mine.npz")


@pytest.mark.parametrize("damage", ["truncated", "text", "flipped"])
def test_a_damaged_npz_is_refused_with_its_name(tmp_path, damage):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50))
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes(
        {
            "truncated": content[:middle],
            "text": b"a,b\n1,2\n",
            "flipped": content[:middle] + bytes(8) + content[middle + 8 :],
        }[damage]
    )
    with pytest.raises(ValueError, match=r"mine\.npz cannot be read as npz"):
        load_dataset(path)


def test_rows_and_to_frame_follow_the_positions_asked_for(frame, tmp_path):
    dataset = load_dataset(save(frame, tmp_path / "mine.csv"), target="kind")
    X, y = dataset.rows(np.array([2, 0]))
    assert X["color"].tolist() == ["blue", "red"]
    assert y.tolist() == ["a", "a"]
    pd.testing.assert_frame_equal(
        dataset.to_frame(), pd.read_csv(tmp_path / "mine.csv"), check_dtype=False
    )
