"""``fit --show COLUMN``: what is shown with rows on the command line."""

import numpy as np
import pandas as pd

from nearwise.estimators.opening import load_any
from tests.cli.conftest import make_table


def fit(nearwise, data, out, *options):
    basic = ["--target", "label", "--preset", "instant", "--estimator", "none"]
    return nearwise("fit", data, "--out", out, *basic, *options)


def table_of_photos(path, n_rows=60, seed=0):
    frame = make_table(n_rows, seed).drop(columns="row")
    frame["photo"] = [f"photos/{seed}-{i}.png" if i else None for i in range(n_rows)]
    frame.to_csv(path, index=False)
    return frame["photo"].fillna("").tolist()


def test_a_column_is_shown_by_fit_and_kept_by_add(nearwise, tmp_path):
    data, more, model = tmp_path / "train.csv", tmp_path / "more.csv", tmp_path / "m"
    expected = table_of_photos(data)
    result = fit(nearwise, data, model, "--show", "photo")
    assert result.exit_code == 0, result.err
    assert "shown with each row" in result.err
    expected += table_of_photos(more, 8, seed=3)
    assert nearwise("add", model, more).exit_code == 0
    pd.read_csv(more).drop(columns="photo").to_csv(more, index=False)
    assert nearwise("add", model, more).exit_code == 0
    assert load_any(model).fitted_.row_names.tolist() == [*expected, *[""] * 8]
    rows = nearwise("inspect", model, "--rows", "0,1", "--json").json()
    assert [row["show"] for row in rows] == [None, expected[1]]  # also where there is none
    assert list(rows[0]) == list(rows[1])  # cells stand below their names
    assert nearwise("inspect", model, "--json").json()["shown"] == sum(map(bool, expected))
    shown = nearwise("inspect", model, "--rows", "0,1")
    assert shown.exit_code == 0 and expected[1] in shown.out
    why = nearwise("predict", model, more, "--explain", "--out", "-").table()
    assert set(why["neighbor_1_show"].dropna()) & set(expected)


def test_an_array_of_text_of_an_npz_is_shown(nearwise, tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 5))
    files = np.array([f"a/{i}.png" for i in range(40)])
    np.savez(tmp_path / "e.npz", X=X, label=X[:, 0] > 0, files=files)
    result = fit(nearwise, tmp_path / "e.npz", tmp_path / "m", "--show", "files")
    assert result.exit_code == 0, result.err
    model = load_any(tmp_path / "m")
    assert model.fitted_.row_names.tolist() == files.tolist()
    assert model.report_.columns["files"] == "left out"


def test_no_column_is_shown_without_the_option(nearwise, tmp_path):
    table_of_photos(tmp_path / "train.csv")
    assert fit(nearwise, tmp_path / "train.csv", tmp_path / "m").exit_code == 0
    assert load_any(tmp_path / "m").fitted_.row_names is None


def test_a_wrong_column_is_refused_before_the_fit(nearwise, tmp_path):
    data, out = tmp_path / "train.csv", tmp_path / "m"
    table_of_photos(data)
    cases = [
        (["--show", "foto"], "Did you mean 'photo'?"),
        (["--show", "label"], "--show name different columns"),
        (["--show", "width"], "the column 'width' holds"),
        (["--show", "photo", "--category", "photo"], "is no feature"),
    ]
    for options, message in cases:
        result = fit(nearwise, data, out, *options)
        assert result.exit_code == 2 and message in " ".join(result.err.split()), result.err
        assert not out.exists()
