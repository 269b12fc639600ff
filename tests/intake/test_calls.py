"""What may be handed to a fitted model, in any container, and what each bad call answers."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags

from nearwise.estimators import AttnKNNClassifier, ColumnWarning
from nearwise.memory import ExactIndex, make_index
from nearwise.memory.ties import tie_order
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, same, sums_to_one
from tests.reference.search import slow_topk


def mixed(n=90, seed=0):
    """Two numbers with a gap, and a town with an umlaut; number labels."""
    X, y = blobs(n, 3, 2, seed)
    frame = pd.DataFrame(X, columns=["length", "width"])
    frame["size"] = np.array(["smäll", "big", "smäll"])[y]
    frame.loc[3, "width"] = np.nan
    return frame, y


@pytest.fixture(scope="module")
def of_table():
    frame, y = mixed()
    return attn_knn(**CHEAP).fit(frame, y)


@pytest.fixture(scope="module")
def of_numbers():
    frame, y = mixed()
    return attn_knn(**CHEAP).fit(frame[["length", "width"]], y)


@pytest.fixture(scope="module")
def of_array():
    X, y = blobs()
    return attn_knn(**CHEAP).fit(X, y)


FRAME = mixed()[0]
CONTAINERS = {
    "polars": pl.from_pandas(FRAME),
    "polars categories": pl.from_pandas(FRAME).with_columns(pl.col("size").cast(pl.Categorical)),
    "pyarrow": pa.Table.from_pandas(FRAME),
    "record batch": pa.RecordBatch.from_pandas(FRAME),
    "dict of columns": {name: FRAME[name].tolist() for name in FRAME},
    "list of dicts": FRAME.to_dict("records"),
    "other order": FRAME[["size", "width", "length"]],
    "objects": FRAME.astype(object),
    "categories": FRAME.astype({"size": "category"}),
    "nullable": FRAME.convert_dtypes(),
    "another index": FRAME.set_axis(range(1000, 1000 + len(FRAME))),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_every_container_of_a_table_predicts_the_same(of_table, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(of_table.predict_proba(CONTAINERS[kind]), of_table.predict_proba(FRAME))


@pytest.mark.parametrize("kind", ["polars", "pyarrow", "dict of columns", "list of dicts"])
def test_every_container_is_learned_from_alike(of_table, kind):
    y = mixed()[1]
    labels = {"polars": pl.Series("y", y), "pyarrow": pa.chunked_array([y])}.get(kind, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = attn_knn(**CHEAP).fit(CONTAINERS[kind], labels)
        model.add(CONTAINERS[kind], labels)
    assert model.feature_names_in_.tolist() == ["length", "width", "size"]
    assert model.classes_.tolist() == [0, 1, 2] and len(model.memory_) == 180


@pytest.mark.parametrize("row", [0, 3], ids=["whole", "with a gap"])
def test_one_row_as_series_or_dict_gives_one_prediction(of_table, row):
    wanted = of_table.predict_proba(FRAME.iloc[[row]])
    series = FRAME.iloc[row]
    for one in (series, series[::-1], series.to_dict(), dict(reversed(series.to_dict().items()))):
        assert same(of_table.predict_proba(one), wanted)
        assert len(of_table.explain(one, 2)) == 1


def test_a_series_is_a_row_of_an_array_too(of_array):
    X = pd.DataFrame(blobs()[0])
    assert same(of_array.predict_proba(X.iloc[5]), of_array.predict_proba(X.to_numpy()[5:6]))


def test_extra_columns_are_named_and_ignored(of_table):
    wide = FRAME.assign(note="x", **{"2024": 1})
    with pytest.warns(ColumnWarning, match=r"not fitted on: the columns 'note', '2024'\. They are"):
        proba = of_table.predict_proba(wide)
    assert same(proba, of_table.predict_proba(FRAME))


def test_numbers_without_names_are_taken_by_position(of_numbers):
    frame = FRAME[["length", "width"]]
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        by_position = of_numbers.predict_proba(frame.to_numpy())
    assert same(by_position, of_numbers.predict_proba(frame))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert same(of_numbers.predict_proba(frame.to_numpy().tolist()), by_position)


QUERIES = {
    "0 rows": (FRAME.iloc[:0], r"Found array with 0 sample\(s\): the table is empty"),
    "no dicts": ([], r"Found array with 0 sample\(s\)"),
    "missing column": (FRAME[["length", "size"]], "X lacks the column 'width', which the class"),
    "a column twice": (
        pd.concat([FRAME, FRAME[["size"]]], axis=1),
        r"^Columns \['size'\] occur mo",
    ),
    "misspelt column": (
        FRAME.rename(columns={"width": "widht"}),
        r"lacks the column 'width'.* Did you mean 'widht'\? It has: the columns 'length', 'widht'",
    ),
    "wrong columns": (pd.DataFrame({"a": [1]}), "X lacks the columns 'length', 'width', 'size'"),
    "dict without a column": ({"length": 1.0, "size": "big"}, "lacks the column 'width'"),
    "text in numbers": (
        FRAME.assign(length=["5.1", "5,2", "x"] * 30),
        r"'length' held numbers in training and now holds '5,2' in row 1 \(.*; 60 such rows of 90",
    ),
    "infinity": (
        FRAME.assign(width=[1, np.inf, -np.inf] * 30),
        r"'width' holds infinity in 60 rows, first in row 1 \(",
    ),
    "1e38": (FRAME.assign(width=1e38), "'width'.*too large to compute with in 32 bits"),
    "1e300": (FRAME.assign(width=1e300), "'width'.*too large to compute with in 32 bits"),
    "array": (
        FRAME.to_numpy(),
        "X is an array, and the classifier was fitted on a table in which the column 'size' held "
        "text or dates. Give a DataFrame .* the columns 'length', 'width', 'size'",
    ),
    "array of numbers": (np.zeros((2, 3)), "X is an array, and .* the column 'size' held text"),
    "list of lists": (FRAME.to_numpy().tolist(), "X is an array, and .* the column 'size' held"),
    "one row": (FRAME.to_numpy()[0], r"Expected 2D array, got 1D array .*\(3,\).*dict or Series"),
    "one column": (FRAME["width"], r"X is a Series of 90 values.*X\.to_frame\(\)"),
    "polars column": (pl.Series("a", [1, 2]), "X is a Series that gives no table"),
    "lazy polars": (pl.from_pandas(FRAME).lazy(), r"X is a LazyFrame.*Give X\.collect\(\)"),
    "arrow column": (pa.chunked_array([[1, 2]]), "X is a ChunkedArray that gives no table"),
    "a word": ("big", "is not a folder of images"),
    "images": (np.zeros((2, 8, 8, 3), dtype=np.uint8), "fitted on a table; X holds images"),
}


def spoiled(value):
    X = blobs()[0].copy()
    X[[4, 9], 1] = value
    return X


OF_ARRAY = {
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
ASKED = [("of_table", one) for one in QUERIES.values()]
ASKED += [("of_array", one) for one in OF_ARRAY.values()]


@pytest.mark.parametrize(("model", "case"), ASKED, ids=[*QUERIES, *OF_ARRAY])
@pytest.mark.parametrize("method", ["predict", "kneighbors", "explain"])
def test_bad_queries_say_what_was_seen_and_what_to_do(request, model, case, method):
    queries, message = case
    with pytest.raises(ValueError, match=message):
        getattr(request.getfixturevalue(model), method)(queries)


@pytest.mark.parametrize("size", [1e20, 1e29])
def test_rows_far_from_everything_get_probabilities(of_table, of_array, size):
    far = FRAME.iloc[:2].assign(length=size)
    assert sums_to_one(of_table.predict_proba(far))
    assert sums_to_one(of_array.predict_proba(np.full((1, 4), size)))


def test_a_row_of_gaps_gets_probabilities(of_table):
    empty = {"length": np.nan, "width": None, "size": None}
    with pytest.warns(UserWarning, match=r"none in training: length \(1\)"):
        assert sums_to_one(of_table.predict_proba(empty))


ADDED = {
    "truth values": (FRAME[:1], [True], "labels are truth values"),
    "no rows": (FRAME[:0], [], r"Found array with 0 sample\(s\)"),
    "missing column": (FRAME[["size"]], np.zeros(90, int), "lacks the columns 'length', 'width'"),
    "text in numbers": (FRAME[:1].assign(width="wide"), [0], "now holds 'wide' in row 0"),
    "array": (FRAME.to_numpy()[:1], [0], "X is an array"),
}


@pytest.mark.parametrize("case", ADDED)
def test_bad_rows_are_not_added(of_table, case):
    X, y, message = ADDED[case]
    before = len(of_table.memory_)
    with pytest.raises(ValueError, match=message):
        of_table.add(X, y)
    assert len(of_table.memory_) == before


def test_sparse_rows_go_through_a_few_dense_columns():
    X, y = blobs(n_features=12)
    pipeline = make_pipeline(TruncatedSVD(3, random_state=0), attn_knn(**CHEAP))
    assert pipeline.fit(csr_matrix(X[:60]), y[:60]).score(csr_matrix(X[60:]), y[60:]) > 0.6


def test_gaps_in_arrays_are_those_of_a_table():
    X, y = blobs()
    X[::5, 1] = np.nan
    frame = pd.DataFrame(X, columns=list("abcd"))
    of_array, of_frame = fitted(X, y), fitted(frame, y)
    assert same(of_array.predict_proba(X), of_frame.predict_proba(frame))
    assert same(of_array.predict_proba(None), of_frame.predict_proba(None))
    objects = X.astype(object)
    objects[::5, 1] = None
    assert same(of_array.predict_proba(objects), of_array.predict_proba(X))
    assert get_tags(AttnKNNClassifier()).input_tags.allow_nan


@pytest.mark.parametrize("kind", ["random", "lattice"])
def test_manhattan_finds_what_the_slow_search_finds(kind, tmp_path):
    X, y = blobs(60)
    if kind == "lattice":
        X = np.random.default_rng(0).integers(-1, 2, (60, 4)).astype(float)
    model = fitted(X, y, metric="manhattan")
    for one in (model, model.save(tmp_path / "m") or AttnKNNClassifier.load(tmp_path / "m")):
        keys = one.memory_.keys["features"].numpy()
        distances, ids = one.kneighbors(None, 6)
        order = tie_order(np.arange(60))
        slow_d, slow_i = slow_topk(keys, keys[order], 6, "manhattan", range(60), order)
        assert same(ids, order[slow_i])
        np.testing.assert_allclose(distances, slow_d, rtol=1e-5)
        first = one.explain(X[:1])[0].neighbors[0]
        apart = np.abs(one.keys(X[:1])[0] - keys[first.id]).sum()
        assert first.distance == pytest.approx(apart, rel=1e-5)
        assert sums_to_one(one.predict_proba(X))


@pytest.mark.parametrize("index", ["faiss-flat-l2", "faiss-flat-ip", "hnsw", "ivf-flat"])
def test_faiss_refuses_manhattan_and_says_what_to_do(index):
    assert isinstance(make_index("auto", "manhattan", n_rows=10**7), ExactIndex)
    with pytest.raises(ValueError, match=r'does not support metric="manhattan".*index="exact"'):
        fitted(metric="manhattan", index=index)
    pytest.importorskip("faiss")
    with pytest.raises(ValueError, match=r"does not support metric=.manhattan."):
        make_index(index, "manhattan")
