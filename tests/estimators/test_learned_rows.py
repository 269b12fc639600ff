"""Rows that were learned from are known again by content, and predicted as if they were new."""

import io

import numpy as np
import pandas as pd
import pytest

from nearwise import review
from tests.estimators.cases import blobs, fitted, reopened, same, table


@pytest.fixture(scope="module")
def learned():
    X, y = table()
    return X, y, fitted(X, pd.Series(y, name="label"))


def through_csv(frame, **options):
    return pd.read_csv(io.StringIO(frame.to_csv(index=False, **options)))


def test_every_training_row_is_known_and_predicted_as_without_itself(learned):
    X, y, model = learned
    found = review(model).learned(X, y)
    assert same(found.ids, np.arange(len(X))) and not found.new.any()
    rows, parts = review(model).predict_learned(found)
    assert same(rows, np.arange(len(X)))
    assert same(parts.proba, model.predict_proba(None))
    everything = model.query(None).parts
    assert all(same(one, other) for one, other in zip(parts, everything, strict=True))


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda X: X.sample(frac=1, random_state=1), id="another order"),
        pytest.param(lambda X: X.head(7), id="a few rows"),
        pytest.param(lambda X: pd.concat([X, X.head(3)]), id="rows twice"),
        pytest.param(through_csv, id="CSV"),
        pytest.param(lambda X: through_csv(X, float_format="%.6g"), id="six digits"),
        pytest.param(lambda X: through_csv(X, float_format="%.9e"), id="exponents"),
        pytest.param(lambda X: X.astype({"age": "float32"}), id="float32"),
        pytest.param(lambda X: X.assign(member=X["member"].astype(int)), id="0 and 1"),
        pytest.param(lambda X: X.assign(age=X["age"] * (1 - 1e-9)), id="last bits"),
    ],
)
def test_the_form_of_a_file_does_not_matter(learned, changed):
    X, _, model = learned
    found = review(model).learned(changed(X.assign(grade=X["grade"].astype(str))))
    assert not found.new.any()


@pytest.mark.parametrize(
    ("column", "other"),
    [
        ("age", lambda values: values + 0.01),
        ("town", lambda values: values.replace("Rome", "Oslo")),
        ("member", lambda values: ~values),
        ("income", lambda values: values.fillna(0.0)),
    ],
)
def test_a_row_that_differs_in_one_column_is_new(learned, column, other):
    X, y, model = learned
    given = X.assign(**{column: other(X[column])})
    changed = (given[column] != X[column]) & given[column].notna()
    assert changed.sum() > 10
    assert same(review(model).learned(given, y).new, changed)


def test_new_rows_are_new(learned):
    _, _, model = learned
    found = review(model).learned(table(seed=5)[0])
    assert found.new.all()
    rows, parts = review(model).predict_learned(found)
    assert len(rows) == 0 and parts.proba.shape == (0, 2)


def test_among_equal_rows_each_gets_its_own_and_the_label_decides():
    X = np.repeat(np.arange(12.0)[:, None], 5, axis=0)
    y = np.tile([0, 1, 1, 0, 1], 12)
    model = fitted(X, y)
    assert same(review(model).learned(X, y).ids, np.arange(60))
    assert same(review(model).learned(X[:1], [1]).ids, [1])
    assert same(y[review(model).learned(X[:2], [0, 0]).ids], [0, 0])


def test_large_numbers_apart_by_one_are_other_rows():
    X = np.arange(1_600_000_000, 1_600_000_000 + 120.0)[:, None]
    model = fitted(X[::2], np.tile([0, 1], 30))
    assert same(review(model).learned(X).new, np.arange(120) % 2 == 1)


def test_one_value_far_from_all_others_does_not_make_these_one():
    X = np.arange(60.0)[:, None]
    X[-1] = 1e12
    model = fitted(X, np.tile([0, 1], 30))
    assert review(model).learned(X[:-1] + 0.5).new.all()
    assert not review(model).learned(X).new.any()


def test_a_table_of_categories_alone_works():
    X = pd.DataFrame({"a": list("abcd") * 15, "b": list("xyz") * 20})
    model = fitted(X, np.tile([0, 1], 30))
    asked = pd.DataFrame({"a": ["a", "d"], "b": ["x", "q"]})
    assert same(review(model).learned(asked).new, [False, True])


def test_rows_that_were_added_are_known_and_rows_that_went_are_counted(learned):
    X, y, _ = learned
    model = fitted(X, y)
    new, labels = table(20, seed=9)
    ids = model.add(new, labels)
    assert same(review(model).learned(new, labels).ids, ids)
    model.remove(ids[:5])
    found = review(model).learned(new)
    assert found.new.sum() == found.n_forgotten == 5


def test_rows_held_out_once_are_known_and_predicted_by_what_never_saw_them(tmp_path):
    X, y = blobs(150)
    settings = {
        "embedder": "identity",
        "cv": 0.2,
        "estimator": "auto",
    }  # its base learns the others
    model = reopened(fitted(X, y, **settings), tmp_path / "m")
    found = review(model).learned(X, y)
    assert not found.new.any() and found.n_forgotten == 0
    assert same(found.ids, np.arange(150))
    rows, parts = review(model).predict_learned(found)
    assert len(rows) == len(parts.proba) == 30
    assert same(rows, np.flatnonzero(model._predictor.judged.numpy()))
    assert review(model).learned(X + 0.5).new.all()


def test_a_gap_and_a_negative_zero_have_one_form():
    from nearwise.estimators.inputs.table import Encoded

    codes = np.zeros((2, 1), dtype=np.int64)
    signed = np.array([[np.nan, -0.0], [-np.nan, 0.0]])
    assert len(np.unique(Encoded(signed, codes).digests())) == 1


@pytest.fixture(scope="module")
def with_ids():
    """A table in which every row is there five times, under ids of its own."""
    X = pd.DataFrame({"a": np.repeat(np.arange(12.0), 5), "b": list("uvwxyz") * 10})
    X["visit_id"] = np.arange(1_000, 1_060)
    return X, fitted(X, np.tile([0, 1, 1], 20))


@pytest.mark.parametrize(
    ("ids", "new"),
    [
        pytest.param(lambda ids: ids, False, id="the same"),
        pytest.param(lambda ids: ids.astype(str), False, id="as text"),
        pytest.param(lambda ids: ids.astype(float), False, id="as floats"),
        pytest.param(lambda ids: ids + 500, True, id="others"),
        pytest.param(lambda ids: ids.astype(float) * np.nan, False, id="missing"),
    ],
)
def test_an_id_that_differs_makes_another_row(with_ids, ids, new):
    X, model = with_ids
    found = review(model).learned(X.assign(visit_id=ids(X["visit_id"])))
    assert (found.new == new).all()
    if not new:
        assert same(np.sort(found.ids), np.arange(60))


def test_a_missing_id_decides_nothing_and_the_column_is_named_where_it_decides(with_ids):
    X, model = with_ids
    other = X.assign(visit_id=np.where(X.index % 2, np.nan, X["visit_id"] + 500))
    found = review(model).learned(other)
    assert same(found.new, X.index % 2 == 0) and found.compared == ("visit_id",)
    assert review(model).learned(X.drop(columns="visit_id")).compared == ()


def test_an_id_beside_each_equal_row_picks_that_row(with_ids):
    X, model = with_ids
    shuffled = X.sample(frac=1, random_state=3)
    assert same(review(model).learned(shuffled).ids, shuffled.index)


def test_numbers_that_count_the_rows_of_a_file_do_not_make_a_row_new():
    X = pd.DataFrame({"row": np.arange(40), "a": np.arange(40.0) ** 2, "b": list("uv") * 20})
    model = fitted(X, np.tile([0, 1], 20))
    assert model.report_.columns["row"] == "left out"
    part = X.iloc[10:30]
    assert not review(model).learned(part).new.any()
    assert not review(model).learned(part.assign(row=np.arange(20))).new.any()
    assert review(model).learned(part.assign(row=part["row"] + 100)).new.all()
