"""What is shown with a row comes back with this row, whatever happens to the memory."""

import numpy as np
import pandas as pd
import pytest

from nearwise import AttnKNNClassifier, AttnKNNRegressor, LiveModel, review
from nearwise.estimators import ColumnReport, Settings, move_memory, report_columns
from nearwise.estimators.opening import load_any
from nearwise.html import make_card
from tests.estimators.cases import attn_knn, blobs
from tests.estimators.image_cases import BRIEF, named_folder

N = 40
KINDS = [AttnKNNClassifier, AttnKNNRegressor]
WAYS = ["column", "array of a table", "array"]


def made(kind, **settings):
    return kind(preset="instant", estimator=None, random_state=0, settings=Settings(**settings))


def texts_of(X):
    """The text that belongs to each row of values; every fourth has none."""
    return [f"{abs(x):.6f}.png" if int(abs(x) * 1e6) % 4 else None for x in np.asarray(X)[:, 0]]


def rows_of(way, start, stop):
    """Rows, and how what is shown with them is given to `fit` and `add`."""
    X, y = blobs(3 * N, 2)
    X, y = X[start:stop], y[start:stop]
    if way == "array":
        return X, y, {"show": texts_of(X)}
    frame = pd.DataFrame(X, columns=list("abcd"))
    if way == "column":
        return frame.assign(photo=texts_of(X)), y, {}
    return frame, y, {"show": texts_of(X)}


def fitted(kind, way, **settings):
    X, y, given = rows_of(way, 0, N)
    return made(kind, **settings).fit(X, y, **(given or {"show": "photo"}))


def all_stay(model):
    """Whether every remembered row has its own text."""
    found = model.fitted_.look_up(model.memory_.ids.tolist())
    expected = texts_of([[*one.row.values()] for one in found])
    assert [one.show for one in found] == expected and any(expected) and not all(expected)
    return len(found)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_stays_with_its_row_through_every_change(kind, way, tmp_path):
    model = fitted(kind, way)
    assert all_stay(model) == N
    X, y, given = rows_of(way, N, N + 10)
    model.add(X, y, **given)
    model.remove([0, 5, N + 2])
    model.relabel([1, N + 1], y[:2])
    assert all_stay(model) == N + 7
    model.refresh()
    assert all_stay(model) == N + 7
    model.save(tmp_path / "m")
    assert all_stay(kind.load(tmp_path / "m")) == N + 7
    X, y, given = rows_of(way, N + 10, 2 * N)
    model.partial_fit(X, y, **given)
    assert all_stay(model) == 2 * N - 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_in_the_journal_and_comes_back_by_undo(kind, way, tmp_path):
    fitted(kind, way).save(tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        X, y, given = rows_of(way, N, N + 10)
        live.add(X, y, **given)
        X, y, given = rows_of(way, N + 10, N + 20)
        live.feedback(X, y, **given)
        removed = live.remove([2, 3, N + 3])
        live.undo(removed.version)
        assert all_stay(live.model) == N + 20
        assert all_stay(load_any(tmp_path / "m")) == N + 20  # replayed
        live.compact()
        assert all_stay(load_any(tmp_path / "m")) == N + 20
        live.refresh()
        assert all_stay(load_any(tmp_path / "m")) == N + 20


@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_with_evicted_rows(kind):
    model = fitted(kind, "array", capacity=N - 10)
    assert all_stay(model) == N - 10
    X, y, given = rows_of("array", N, 2 * N)
    model.add(X, y, **given)
    assert all_stay(model) == N - 10


@pytest.mark.parametrize("way", WAYS)
def test_it_moves_to_a_store(way, tmp_path):
    move_memory(fitted(AttnKNNClassifier, way), tmp_path / "m")
    with LiveModel(tmp_path / "m") as live:
        expected = texts_of(rows_of(way, 0, N + 5)[0])
        X, y, given = rows_of(way, N, N + 5)
        live.add(X, y, **given)
        live.undo(live.remove([4]).version)
        ids = [*range(4), N + 5, *range(5, N + 5)]
        assert [one.show for one in live.model.fitted_.look_up(ids)] == expected
        (why,) = live.model.explain(X[:1], 5)
        assert [one.show for one in why.neighbors if one.id < N] == [
            expected[one.id] for one in why.neighbors if one.id < N
        ]
        (later,) = live.add(X[:1].drop(columns="photo") if way == "column" else X[:1], y[:1]).ids
        assert [one.show for one in live.model.fitted_.look_up([later, 0])] == [None, expected[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_shown_column_is_no_feature_and_may_be_missing(kind):
    X, y, _ = rows_of("column", 0, N)
    model, without = fitted(kind, "column"), fitted(kind, "array of a table")
    report = model.report_.column_report[-1]
    assert (report.name, report.use, report.reason) == ("photo", "left out", "shown with each row")
    assert isinstance(report, ColumnReport) and report_columns(X, show="photo")[-1] == report
    bare = X.drop(columns="photo")
    for rows in (X, bare):
        assert np.array_equal(model.predict(rows), without.predict(rows[bare.columns]))
    (why,) = model.explain(bare[:1], 3)
    assert [one.show for one in why.neighbors] == [
        one.show for one in without.explain(bare[:1], 3)[0].neighbors
    ]
    model.add(bare[:2], y[:2])
    assert model.fitted_.row_names[-2:].tolist() == ["", ""]
    model.add(bare[:2], y[:2], show=["one", None])
    assert model.fitted_.row_names[-2:].tolist() == ["one", ""]
    model.refresh()
    assert model.report_.column_report[-1] == ColumnReport(
        "photo", report.type, report.missing + 2 + 2, report.distinct, "left out",
        reason="shown with each row",
    )  # fmt: skip


def test_a_column_of_few_values_or_numbers_as_text_is_left_out_too():
    X, y, _ = rows_of("array of a table", 0, N)
    X["kind"] = np.where(y == 1, "5", "7")  # would tell the classes apart
    model = made(AttnKNNClassifier).fit(X, y, show="kind")
    assert model.report_.columns["kind"] == "left out"
    assert {one.show for one in model.fitted_.look_up(list(range(N)))} == {"5", "7"}


@pytest.mark.parametrize("kind", KINDS)
def test_it_comes_back_wherever_a_row_is_shown(kind):
    model = fitted(kind, "array")
    X = rows_of("array", 0, N)[0]
    expected = texts_of(X)
    for why in model.explain(X[:5], 6):
        shows = [expected[one.id] for one in why.neighbors]
        assert [one.show for one in why.neighbors] == shows
        assert [one.face.show or None for one in make_card(why).neighbors] == shows
        frame, record = why.to_frame(), why.to_dict()
        assert frame["show"].fillna("").tolist() == [text or "" for text in shows]
        assert [one.get("show") for one in record["neighbors"]] == shows
        assert all(one.keys() >= {"show"} for one in record["neighbors"] if one.get("show"))
    model.add(X[:1], [1], show=["a copy"])
    rows, found = review(model).rows(), review(model).findings()
    expected = [text or "" for text in [*expected, "a copy"]]
    assert rows["show"].tolist() == expected
    single = found[found["id"].notna()]
    assert single["show"].tolist() == [expected[i] for i in single["id"]]
    assert "a copy" in single["show"].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_with_nothing_to_show_has_no_trace_of_it(kind):
    X, y, _ = rows_of("array", 0, N)
    model = made(kind).fit(X, y, show=[None] * N)
    assert model.fitted_.row_names is None and model.fitted_.look_up([0])[0].show is None
    (why,) = model.explain(X[:1], 3)
    assert "show" not in why.to_frame() and "show" not in why.to_dict()["neighbors"][0]
    assert "show" not in review(model).rows() and "show" not in review(model).findings()
    model.add(X[:2], y[:2], show=["late", None])  # a model may get its first text later
    assert [one.show for one in model.fitted_.look_up([0, N, N + 1])] == [None, "late", None]


def test_images_show_their_files_unless_something_else_is_given(tmp_path):
    model = attn_knn(**BRIEF).fit(named_folder(tmp_path / "first"))
    (found,) = model.fitted_.look_up([3])
    assert found.show == found.row["file"] and found.show.startswith("first/")
    pixels = np.array([found.row["image"]])
    (new,) = model.add(pixels, [found.label], show=["https://example.org/1.png"])
    assert model.fitted_.look_up([new])[0].show == "https://example.org/1.png"
    with pytest.raises(ValueError, match="X has no names of columns"):
        model.add(pixels, [found.label], show="file")


@pytest.mark.parametrize(
    ("way", "show", "message"),
    [
        ("column", "foto", "show='foto' names no column of X. Did you mean 'photo'?"),
        ("array", "photo", "show='photo' names a column, and X has no names of columns"),
        ("column", "a", r"the column 'a' holds .* \(float\) in row 0"),
        ("array", ["a"], "X has 40 rows but show has 1"),
        ("array", [1] * N, r"show holds 1 \(int\) in row 0"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_shown_is_refused_before_anything_is_fitted(kind, way, show, message):
    X, y, _ = rows_of(way, 0, N)
    for fit in (made(kind).fit, made(kind).partial_fit):
        with pytest.raises(ValueError, match=message):
            fit(X, y, show=show)


def test_what_cannot_be_shown_is_not_added(tmp_path):
    model = fitted(AttnKNNClassifier, "column")
    model.save(tmp_path / "m")
    X, y, _ = rows_of("column", N, N + 3)
    with LiveModel(tmp_path / "m") as live:
        for add in (model.add, live.add, live.feedback, model.partial_fit):
            with pytest.raises(ValueError, match=r"but show has 1\. Give one text per row"):
                add(X, y, show=["a"])
            with pytest.raises(ValueError, match=r"the model shows the column 'photo'. Give the"):
                add(X, y, show="a")
            with pytest.raises(ValueError, match=r"the column 'photo' holds 1 \(int\) in row 0"):
                add(X.assign(photo=[1, 2, 3]), y)
        assert live.version == 0
    assert len(model.memory_) == N


def test_a_column_cannot_be_shown_and_used():
    X, y, _ = rows_of("column", 0, N)
    for wish in ("category", "keep"):
        with pytest.raises(ValueError, match=r"a column that is shown .* is no feature"):
            made(AttnKNNClassifier).set_params(columns={"photo": wish}).fit(X, y, show="photo")
    both = made(AttnKNNClassifier).set_params(columns={"photo": "category"})
    both.fit(X, y, show=X["photo"])
    assert both.report_.columns["photo"] == "category" and both.fitted_.look_up([1])[0].show
