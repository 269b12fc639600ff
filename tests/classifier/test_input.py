"""Every mistake in data or settings is named: what is wrong, what was seen, what to do."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from nearwise.classifier import AttnKNNClassifier, report_columns
from tests.classifier.cases import (
    CHEAP,
    attn_knn,
    blobs,
    fitted,
    reopened,
    same,
    sums_to_one,
    table,
)

SETTINGS = {
    "preset": ("quick", "preset='quick' is not known. Use one of 'default', 'instant'"),
    "embedder": ("resnet", "embedder='resnet' is not known. Use one of 'auto', 'identity'"),
    "metric": ("euclidian", "metric='euclidian' is not known. Use one of 'euclidean'"),
    "calibration": ("platt", "calibration: Input should be 'auto' or 'per-class'.*got 'platt'"),
    "index": ("faiss", "index: Input should be 'auto', 'exact'.*got 'faiss'"),
    "estimator": ("forest", "estimator='forest' is not known. Use \"auto\", None or a classifier"),
    "n_neighbors": ("five", "n_neighbors='five' must be a whole number of at least 1"),
    "max_per_class": (1, "max_per_class: Input should be greater than or equal to 2.*got 1"),
    "device": ("gpu", 'device=\'gpu\' is not known. Use "auto", "cpu"'),
    "head": ({"epoch": 3}, "Unknown head setting 'epoch'. Did you mean 'epochs'"),
    "train": ({"epoch": 3}, "Unknown training setting 'epoch'. Did you mean 'epochs'"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_misspelt_settings_are_named_with_what_is_known(name):
    value, message = SETTINGS[name]
    with pytest.raises(ValueError, match=message):
        fitted(**{name: value})


def test_the_preset_that_went_is_named_with_what_to_take():
    with pytest.raises(ValueError, match=r'"fast" is no preset any more: take "instant", or cv=3'):
        fitted(preset="fast")


@pytest.mark.parametrize("name", ["base", "embedder", "tta", "device", "capacity", "eviction"])
def test_parameters_that_are_called_otherwise_now_are_named_with_it(name):
    said = r"estimator=\.\.\." if name == "base" else rf"settings=Settings\({name}="
    with pytest.raises(TypeError, match=said):
        AttnKNNClassifier(**{name: None})
    with pytest.raises(ValueError, match=said):
        AttnKNNClassifier().set_params(**{name: None})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_neighbors", 0),
        ("n_neighbors", 2.5),
        ("n_neighbors", True),
        ("preset", ["instant"]),
        ("metric", np.array([1, 2])),
    ],
    ids=str,
)
def test_values_of_the_wrong_kind_are_named(name, value):
    with pytest.raises(ValueError, match=f"{name}=.*(must|not known)"):
        fitted(**{name: value})


@pytest.mark.parametrize(
    "base",
    [LinearRegression(), KMeans(), SVC(), LogisticRegression, object(), StandardScaler()],
    ids=lambda base: getattr(base, "__name__", type(base).__name__),
)
def test_a_base_that_gives_no_class_probabilities_is_refused(base):
    with pytest.raises(ValueError, match=r'is not usable\. Give None, "auto", or a scikit-learn'):
        fitted(estimator=base)


def test_a_pipeline_is_a_base_too():
    X, y = blobs()
    model = fitted(X, y, estimator=make_pipeline(StandardScaler(), LogisticRegression()))
    assert model.score(X, y) > 0.7


@pytest.fixture(scope="module")
def model():
    return attn_knn(**CHEAP).fit(*blobs())


def spoiled(value):
    X = blobs()[0].copy()
    X[[4, 9], 1] = value
    return X


QUERIES = {
    "infinity": (spoiled(np.inf), "contains infinity in 2 of 90 rows, first in row 4"),
    "minus infinity": (spoiled(-np.inf), "contains infinity in 2 of 90 rows"),
    "too large": (spoiled(-1e300), r"\['x1'\] hold numbers too large .* up to 1e\+300 .*Rescale"),
    "too far": (spoiled(1e38), r"\['x1'\] hold numbers too large .* up to 1e\+38 .*Rescale"),
    "too few columns": (np.zeros((2, 3)), "X has 3 features, but AttnKNNClassifier is expecting 4"),
    "too many columns": (
        np.zeros((2, 5)),
        "X has 5 features, but AttnKNNClassifier is expecting 4",
    ),
    "no rows": (np.zeros((0, 4)), r"Found array with 0 sample\(s\)"),
    "one dimension": (np.zeros(4), "Expected 2D array, got 1D array"),
    "text": (np.array([["a", "1", "2", "3"]]), r"holds text \('a'\) where numbers are expected"),
    "text in a list": ([[1, 2, 3, "b"]], r"holds text \('b'\) where numbers are expected"),
    "text in a table": (
        pd.DataFrame({"a": ["u"], "b": [1], "c": [1], "d": [1]}),
        "held numbers in training and now holds 'u'",
    ),
}


@pytest.mark.parametrize("case", QUERIES)
@pytest.mark.parametrize("method", ["predict", "predict_proba", "explain", "kneighbors"])
def test_bad_queries_are_named(model, case, method):
    queries, message = QUERIES[case]
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(queries)


@pytest.mark.parametrize("case", ["infinity", "too large", "no rows", "one dimension", "text"])
def test_bad_training_rows_are_named(case):
    X, message = QUERIES[case]
    with pytest.raises(ValueError, match=message):
        attn_knn(**CHEAP).fit(X, [0, 1] * (len(X) // 2))


LABELS = {
    "one class": (lambda y: y * 0, "All 90 rows belong to one class, 0.*at least 2 classes"),
    "single rows": (lambda y: np.arange(90), "Each of the 90 rows is the only one of its class"),
    "too few": (lambda y: y[:-1], "X has 90 rows but y has 89 labels"),
    "missing": (lambda y: np.where(y == 2, np.nan, y), "missing labels in 30 of 90 rows"),
    "continuous": (lambda y: y + 0.5, r"such as 0\.5, a quantity.*3 different.*pandas\.cut"),
    "floats that merge whole numbers": (
        lambda y: 1e22 + y * 1e8,
        r"From 2\*\*53 on a float stands",
    ),
    "none": (lambda y: None, "requires y to be passed, but the target y is None"),
    "two columns": (lambda y: np.column_stack([y, y]), "1d array"),
}


@pytest.mark.parametrize("case", LABELS)
def test_bad_labels_are_named(case):
    X, y = blobs()
    change, message = LABELS[case]
    with pytest.raises(ValueError, match=message):
        attn_knn(**CHEAP).fit(X, change(y))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(89), r"sample_weight has shape \(89,\) but X has 90 rows"),
        (-np.ones(90), "negative, infinite or missing"),
        (np.full(90, np.nan), "negative, infinite or missing"),
        (np.zeros(90), "Every sample_weight is zero"),
    ],
    ids=["short", "negative", "NaN", "zero"],
)
def test_bad_weights_are_named(weight, message):
    with pytest.raises(ValueError, match=message):
        attn_knn(**CHEAP).fit(*blobs(), sample_weight=weight)


def test_more_neighbors_than_rows_are_refused_with_both_numbers():
    with pytest.raises(
        ValueError,
        match=r"n_neighbors=60 exceeds the 60 samples in the memory bank \(59 after leaving out",
    ):
        fitted(*blobs(60), n_neighbors=60)


TABLES = {
    "empty": (lambda f: f.iloc[:0], "the table is empty"),
    "no columns": (lambda f: f[[]], "no columns but the target"),
    "infinity": (lambda f: f.assign(age=np.inf), "'age' holds infinity in 120 rows"),
    "too large": (
        lambda f: f.assign(age=f["age"] * 1e300, income=f["income"] * 1e60),
        r"\['age', 'income'\] hold numbers too large to compute with in 32 bits, up to .*e\+300",
    ),
    "nothing but gaps": (
        lambda f: f[["age", "town"]].assign(age=np.nan, town=None),
        r"All 2 columns are empty \('age', 'town'\): no cell holds a value",
    ),
    "lists": (lambda f: f.assign(age=[[1]] * len(f)), "'age' holds list values"),
    "complex": (lambda f: f.assign(age=1j), "'age' holds complex numbers"),
    "twice": (
        lambda f: pd.concat([f, f[["age"]]], axis=1),
        r"^Columns \['age'\] occur more than once. Rename or drop them",
    ),
    "twice as text": (lambda f: f.assign(**{"1": 0}).rename(columns={"age": 1}), r"\['1'\] occur"),
}


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables_are_named(case):
    frame, y = table()
    change, message = TABLES[case]
    changed = change(frame)
    with pytest.raises(ValueError, match=message):
        attn_knn(**CHEAP).fit(changed, y[: len(changed)])


def test_repeated_columns_are_named_at_prediction_too():
    frame, y = table()
    model = attn_knn(**CHEAP).fit(frame, y)
    with pytest.raises(ValueError, match=r"^Columns \['age'\] occur more than once"):
        model.predict(pd.concat([frame, frame[["age"]]], axis=1))


def test_unknown_categories_are_taken_as_missing_and_counted():
    frame, y = table()
    model = attn_knn(**CHEAP).fit(frame, y)
    strange = frame.iloc[:10].copy()
    strange["town"] = ["Quito"] * 3 + ["Lima"] * 7
    with pytest.warns(UserWarning, match=r"not in the training table: town \(3\)\. They are taken"):
        proba = model.predict_proba(strange)
    assert sums_to_one(proba)
    gone = strange.copy()
    gone.loc[gone.index[:3], "town"] = None
    assert same(proba, model.predict_proba(gone))


def test_new_gaps_are_filled_and_counted():
    frame, y = table()
    model = attn_knn(**CHEAP).fit(frame, y)
    holes = frame.iloc[:10].copy()
    holes.loc[holes.index[:4], "age"] = np.nan
    with pytest.warns(UserWarning, match=r"none in training: age \(4\)"):
        assert sums_to_one(model.predict_proba(holes))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_proba(frame)


def test_a_failed_fit_does_not_spoil_the_fitted_model():
    X, y = blobs()
    model = fitted(X, y)
    before = model.predict_proba(X)
    with pytest.raises(ValueError, match="one class"):
        model.fit(X, y * 0)
    assert same(model.predict_proba(X), before)


EMPTY = {
    "numbers": np.nan,
    "objects": None,
    "text": pd.Series([None] * 120, dtype="string"),
    "whole numbers": pd.Series([None] * 120, dtype="Int64"),
    "truth values": pd.Series([None] * 120, dtype="boolean"),
    "dates": pd.Series([pd.NaT] * 120),
    "categories": pd.Series(pd.Categorical([None] * 120, ["a", "b"])),
}


@pytest.mark.parametrize("wish", [None, "keep", "number", "category", "date"])
@pytest.mark.parametrize("kind", EMPTY)
def test_a_column_without_any_value_is_left_out_with_a_warning(kind, wish):
    frame, y = table()
    frame = frame.assign(fax=EMPTY[kind])
    columns = None if wish is None else {"fax": wish}
    with pytest.warns(UserWarning, match="'fax' is left out: no value in any row"):
        model = attn_knn(preset="instant", estimator=None, columns=columns).fit(frame, y)
    assert model.report_.columns["fax"] == "left out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        proba = model.predict_proba(frame)
        assert (model.predict_proba(frame.drop(columns="fax")) == proba).all()
    filled = frame.assign(fax=np.where(frame.index < 7, "some", None))
    with pytest.warns(UserWarning, match=r"had none in training: fax \(7\).*ignored"):
        assert (model.predict_proba(filled) == proba).all()


def test_a_column_of_an_array_without_any_value_is_left_out(tmp_path):
    X, y = blobs()
    wide = np.insert(X, 1, np.nan, axis=1)
    with pytest.warns(UserWarning, match="'x1' is left out: no value in any row"):
        model = attn_knn(**CHEAP).fit(wide, y)
    assert (model.predict_proba(wide) == attn_knn(**CHEAP).fit(X, y).predict_proba(X)).all()
    opened = reopened(model, tmp_path / "m")
    assert (opened.predict_proba(wide) == model.predict_proba(wide)).all()
    assert list(opened.explain(wide[:1])[0].neighbors[0].row) == [f"x{i}" for i in range(5)]
    with pytest.warns(UserWarning, match=r"x1 \(90\)"):
        assert opened.predict(np.nan_to_num(wide)).shape == (90,)


def test_values_that_came_later_are_used_after_a_refresh():
    X, y = blobs()
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = attn_knn(**CHEAP).fit(frame.assign(late=np.nan), y)
    model.add(frame.assign(late=1.5), y)
    assert model.refresh().report_.columns["late"] == "number"


def test_the_report_of_columns_is_given_where_none_can_be_used():
    frame = pd.DataFrame({"id": range(30), "text": [f"t{i}" for i in range(30)], "no": None})
    assert [column.use for column in report_columns(frame)] == ["left out"] * 3
    with pytest.raises(ValueError, match=r"Every column is left out, 'id' first"):
        attn_knn(**CHEAP).fit(frame, [0, 1] * 15)
    with pytest.raises(ValueError, match="Text is not read as language: give embed"):
        attn_knn(**CHEAP).fit(frame[["text"]], [0, 1] * 15)
