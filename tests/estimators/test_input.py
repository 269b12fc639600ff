"""What a table holds that is new, missing or cannot be used is told, and what is done with it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

from nearwise.estimators import AttnKNNClassifier, report_columns
from tests.estimators.cases import CHEAP, attn_knn, blobs, reopened, same, sums_to_one, table


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
    with pytest.raises(ValueError, match="To read its words: columns="):
        attn_knn(**CHEAP).fit(frame[["text"]], [0, 1] * 15)


def test_the_default_gives_no_warning_of_what_it_is_made_of():
    """Of 60 rows a fold has fewer than a batch of scikit-learn's perceptron, which warns of it."""
    X, y = load_wine(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:60]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AttnKNNClassifier(random_state=0).fit(X[some], y[some])
