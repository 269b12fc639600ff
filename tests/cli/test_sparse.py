"""Sparse files on the command line: fit, predict, evaluate, explain, add, clean."""

import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from nearwise.estimators.opening import load_any
from tests.estimators.test_sparse import TEST, TRAIN, WIDE, X, Y, instant


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Give sparse files, and a model fitted on the rows of one of them; read them only."""
    root = tmp_path_factory.mktemp("sparse")
    dump_svmlight_file(X[TRAIN], Y[TRAIN], str(root / "train.svmlight"))
    dump_svmlight_file(X[TEST], Y[TEST], str(root / "new.svm"))
    sparse.save_npz(root / "new.npz", X[TEST])
    sparse.save_npz(root / "narrow.npz", X[TEST][:, :50])
    (root / "t.csv").write_text("a,b\n1,2\n")
    instant().fit(X[TRAIN], Y[TRAIN]).save(root / "model")
    return root


def test_a_svmlight_file_is_fitted_as_its_matrix_in_python(nearwise, files, tmp_path):
    options = ("--preset", "instant", "--estimator", "none")
    done = nearwise("fit", files / "train.svmlight", "--out", tmp_path / "model", *options)
    assert done.exit_code == 0, done.err
    assert f"200 rows of {WIDE} sparse columns, as 128 components," in done.err
    model, other = load_any(tmp_path / "model"), load_any(files / "model")
    np.testing.assert_array_equal(model.predict_proba(X[TEST]), other.predict_proba(X[TEST]))


@pytest.mark.parametrize("name", ["new.svm", "new.npz"])
def test_rows_of_both_kinds_of_files_are_predicted(nearwise, files, name):
    done = nearwise("predict", files / "model", files / name, "--proba", "--explain")
    assert done.exit_code == 0, done.err
    expected = load_any(files / "model").predict_proba(X[TEST])
    np.testing.assert_allclose(done.table()["proba_1"], expected[:, 1], atol=1e-6)
    assert nearwise("explain", files / "model", files / name, "--rows", 0).exit_code == 0


def test_labelled_rows_are_measured_and_added(nearwise, files, tmp_path):
    ask = ("evaluate", files / "model", files / "new.svm", "--json", "-", "--resamples", 20)
    assert nearwise(*ask).json()["n"] == 60
    again = nearwise("evaluate", files / "model", files / "train.svmlight", "--resamples", 20)
    assert "200 of 200 rows equal training rows, in every column" in again.out
    model = shutil.copytree(files / "model", tmp_path / "model")
    assert "now holds 260 rows" in nearwise("add", model, files / "new.svm").err


def test_labels_that_look_wrong_are_ranked(nearwise, files, tmp_path):
    out = tmp_path / "suspects.csv"
    assert nearwise("clean", files / "train.svmlight", "--out", out).exit_code == 0
    assert len(pd.read_csv(out)) == 200


def test_numbers_are_learned_from_svmlight(nearwise, tmp_path):
    target = np.asarray(X[:, :300].sum(axis=1)).ravel() + 0.5
    dump_svmlight_file(X, target, str(tmp_path / "n.svm"))
    done = nearwise("fit", tmp_path / "n.svm", "--out", tmp_path / "m", "--preset", "instant")
    assert done.exit_code == 0, done.err
    assert "Task: regression" in done.err
    done = nearwise(
        "evaluate", tmp_path / "m", tmp_path / "n.svm", "--json", "-", "--resamples", 20
    )
    assert done.exit_code == 0, done.err


def test_fewer_columns_are_padded_and_further_ones_named_and_ignored(nearwise, files, tmp_path):
    further = sparse.hstack([X[TEST], np.ones((60, 2))]).tocsr()
    dump_svmlight_file(further, Y[TEST], str(tmp_path / "wide.svm"))
    wide = nearwise("predict", files / "model", tmp_path / "wide.svm", "--proba")
    assert f"columns 0 to {WIDE - 1}; 120 values of others are ignored" in wide.err
    assert f"first of column {WIDE}" in wide.err
    expected = load_any(files / "model").predict_proba(X[TEST])
    np.testing.assert_allclose(wide.table()["proba_1"], expected[:, 1], atol=1e-6)
    dump_svmlight_file(X[TEST][:, :50], Y[TEST], str(tmp_path / "narrow.svm"))
    narrow = nearwise("predict", files / "model", tmp_path / "narrow.svm")
    assert narrow.exit_code == 0 and "note" not in narrow.err


def test_files_that_count_from_one_and_from_zero_are_told_apart(nearwise, files, tmp_path):
    often = sparse.hstack([np.arange(260)[:, None] % 2, X[:, 1:]]).tocsr()
    shifted = sparse.hstack([sparse.csr_matrix((260, 1)), often]).tocsr()
    instant().fit(shifted[TRAIN], Y[TRAIN]).save(tmp_path / "one")
    dump_svmlight_file(often[TEST], Y[TEST], str(tmp_path / "one.svm"), zero_based=False)
    dump_svmlight_file(often[TEST], Y[TEST], str(tmp_path / "zero.svm"))
    ask = ("predict", tmp_path / "one", tmp_path / "one.svm", "--proba")
    assert "column 0" not in nearwise(*ask).err
    noted = nearwise("predict", tmp_path / "one", tmp_path / "zero.svm")
    assert "column 0 was empty in the fit, and has values in 30 of 60 rows here" in noted.err
    refused = nearwise("predict", tmp_path / "one", files / "new.npz")
    assert refused.exit_code == 2 and "counts from 1 has an empty column 0" in refused.err


def test_a_column_0_that_few_rows_fill_is_no_other_way_to_count(nearwise, files, tmp_path):
    rare = sparse.lil_matrix(X)
    rare[:, [0, WIDE - 1]] = 0
    instant().fit(rare[TRAIN].tocsr(), Y[TRAIN]).save(tmp_path / "rare")
    some = rare[TEST]
    some[:4, 0] = 1  # of 60 rows, and of none of 200: rare, not unlikely
    every = rare[TEST]
    every[:, 0] = 1
    both = every.copy()
    both[0, WIDE - 1] = 1  # not shifted: the last column is there
    for name, rows, noted in (("some", some, False), ("every", every, True), ("both", both, False)):
        dump_svmlight_file(rows.tocsr(), Y[TEST], str(tmp_path / f"{name}.svm"))
        done = nearwise("predict", tmp_path / "rare", tmp_path / f"{name}.svm")
        assert done.exit_code == 0, done.err
        assert ("column 0 was empty" in done.err) == noted, name


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("fit", "new.npz", "-o", "m"), "without labels. Write svmlight: sklearn.datasets.dump_"),
        (("evaluate", "model", "new.npz"), "holds a sparse matrix without labels"),
        (("fit", "new.svm", "-o", "m", "-t", "y"), "--target is about a table with names"),
        (("fit", "new.svm", "-o", "m", "--category", "a"), "--category is about a table with"),
        (("fit", "new.svm", "-o", "m", "--no-header"), "new.svm is a sparse file"),
        (("fit", "new.svm", "-o", "m", "--color", "rgb"), "--color is for images"),
        (("predict", "model", "new.svm", "--copy", "id"), "--copy is about a table"),
        (("predict", "model", "t.csv"), "fitted on columns without names: give a sparse file"),
        (("predict", "model", "narrow.npz"), "has 50 columns, and the model was fitted on 600"),
        (("add", "model", "new.npz"), "without labels"),
        (("fit", "none.svm", "-o", "m"), "No file none.svm"),
    ],
)
def test_what_does_not_fit_sparse_rows_is_explained(nearwise, files, monkeypatch, command, message):
    monkeypatch.chdir(files)
    result = nearwise(*command)
    assert result.exit_code == 2
    assert message in result.err


def test_a_model_of_named_columns_refuses_a_sparse_file(nearwise, files, trained):
    refused = nearwise("predict", trained, files / "new.svm")
    assert refused.exit_code == 2 and "whose columns have names" in refused.err
