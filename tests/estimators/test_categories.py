"""A category is the same whatever type a table gives it; what is not the same is unknown."""

import warnings

import numpy as np
import pandas as pd
import pytest

from nearwise.data.tables.files import read_table
from nearwise.estimators.inputs.table import TableEncoder
from tests.estimators.cases import CHEAP, attn_knn, reopened, same


def codes(known, asked):
    """Codes of `asked` for an encoder that knows `known`, the first of which has code 1."""
    often = [value for place, value in enumerate(known) for _ in range(len(known) - place)]
    encoder = TableEncoder()
    encoder.fit(pd.DataFrame({"c": pd.Categorical(often)}))
    assert [str(value) for value in encoder.categories["c"]] == [str(value) for value in known]
    encoder = TableEncoder.from_json(encoder.to_json())
    return encoder.transform(pd.DataFrame({"c": asked})).codes[:, 0].tolist()


CASES = {
    "text met by integers": (["A7", "1", "2"], [2, 1, 3], [3, 2, 0]),
    "text met by floats": (["A7", "1", "1.5"], [1.0, np.nan, 1.5, 2.5], [2, 0, 3, 0]),
    "text with zeros met by integers": (["A7", "0123", "2.50"], [123, 2.5], [2, 3]),
    "text met by truth values": (["maybe", "True", "False"], [True, False], [2, 3]),
    "other spelling of truth": (["maybe", "true", "FALSE"], [True, False], [2, 3]),
    "integers met by text": ([1, 2], ["2", "01", "A7", None], [2, 1, 0, 0]),
    "integers met by floats": ([1, 2], [2.0, np.nan, 1.0, 1.5], [2, 0, 1, 0]),
    "integers met by a mix": ([1, 2], [2.0, "1", 1, "A7"], [2, 1, 1, 0]),
    "floats met by text": ([0.5, 2.0], ["2", "0.50", "2.0"], [2, 1, 2]),
    "several fit": (["A7", "01", "001"], [1], [0]),
    "the text itself comes first": (["A7", "01", "1"], [1, 1.0], [3, 3]),
    "two texts are never the same": (["A7", "1", "true"], ["01", "True", " 1", "1"], [0, 0, 0, 2]),
    "words that look like numbers": (["A7", "1_0", "inf", "1e2"], [10, 100], [0, 4]),
    "integers too large for floats": ([2**53, 2**53 + 1], [2.0**53, "9007199254740993"], [1, 2]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_category_is_found_by_its_text_where_one_fits(case):
    known, asked, expected = CASES[case]
    assert codes(known, pd.Series(asked)) == expected


def parts(n=80):
    """A zip column that a CSV reads as text, and rows of it that a CSV reads as numbers."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    zips = np.where(rng.random(n) < 0.2, "A7", np.where(y == 1, "1", "2"))
    frame = pd.DataFrame({"x": rng.normal(size=n), "zip": zips, "sure": zips == "1"})
    frame["sure"] = frame["sure"].astype(str).where(rng.random(n) < 0.8, "perhaps")
    return frame, y, frame[(frame["zip"] != "A7") & (frame["sure"] != "perhaps")]


def test_what_a_csv_makes_numbers_and_truth_values_is_predicted_as_the_text_it_was(tmp_path):
    frame, y, asked = parts()
    frame.to_csv(tmp_path / "train.csv", index=False)
    asked.to_csv(tmp_path / "asked.csv", index=False)
    train, read = read_table(tmp_path / "train.csv"), read_table(tmp_path / "asked.csv")
    assert [str(read[name].dtype) for name in ("zip", "sure")] == ["int64", "bool"]
    model = attn_knn(**CHEAP).fit(train, y)
    expected = model.predict_proba(asked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(model.predict_proba(read), expected)
        loaded = reopened(model, tmp_path / "model")
        assert same(loaded.predict_proba(read), expected)
        # added in one type and in the other, the rows are the same
        loaded.add(read, y[asked.index])
        model.add(asked, y[asked.index])
        assert same(loaded.predict_proba(read), model.predict_proba(asked))
        again = reopened(loaded, tmp_path / "grown")
    assert same(again.predict_proba(read), model.predict_proba(asked))


def test_gaps_in_categories_that_had_none_are_counted_in_a_warning():
    frame, y, _ = parts()
    frame.loc[0, "sure"] = None
    model = attn_knn(**CHEAP).fit(frame, y)
    frame.loc[:4, ["zip", "sure"]] = None
    with pytest.warns(UserWarning, match=r"categories that had none in training: zip \(5\)\.$"):
        model.predict_proba(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict_proba(frame.drop(columns="zip").assign(zip="A7")[frame.columns])
