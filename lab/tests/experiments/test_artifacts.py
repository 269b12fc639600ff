"""What is kept beside the records."""

import numpy as np
import pandas as pd
import pytest
from fakes import FakeAttention, blobs
from nearwise_lab.data import load_dataset
from nearwise_lab.experiments import Record
from nearwise_lab.experiments.artifacts import (
    load_json,
    load_predictions,
    record_path,
    save_json,
    save_predictions,
)
from nearwise_lab.results.gallery import choose_gallery_rows, image_shape, make_gallery
from nearwise_lab.results.measures import Predictions

from nearwise.data import Dataset


@pytest.mark.parametrize(("n", "tolerance"), [(100, 1e-6), (300_000, 2e-3)])
def test_predictions_come_back(tmp_path, n, tolerance):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), size=n)
    kept = Predictions(rng.integers(0, 4, n), proba, np.arange(n), list("abcd"))
    save_predictions(tmp_path / "deep" / "p.npz", kept)
    back = load_predictions(tmp_path / "deep" / "p.npz")
    np.testing.assert_array_equal(back.y, kept.y)
    np.testing.assert_allclose(back.proba, proba, atol=tolerance)
    np.testing.assert_allclose(back.proba.sum(axis=1), 1, atol=1e-12)
    assert back.classes == list("abcd")


def test_what_was_not_kept_is_none(tmp_path):
    assert load_predictions(tmp_path / "no.npz") is None
    assert load_json(tmp_path / "no.json") is None


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "p.npz"
    save_predictions(path, Predictions(np.zeros(9, int), np.ones((9, 1)), np.arange(9), ["a"]))
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-40], b"", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"p\.npz is damaged: .*delete it"):
            load_predictions(path)
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(ValueError, match=r"x\.json is damaged"):
        load_json(tmp_path / "x.json")


def test_json_without_infinities(tmp_path):
    save_json(tmp_path / "x.json", {"a": np.float32("inf"), "b": (np.int64(1), np.arange(2))})
    assert load_json(tmp_path / "x.json") == {"a": None, "b": [1, [0, 1]]}


def test_names_cannot_leave_the_folder(tmp_path):
    path = record_path(tmp_path, Record("../../etc", "a/b:c", 0), "curves", "json")
    assert path.resolve().is_relative_to(tmp_path.resolve())
    assert path.name == "a_b_c-seed0.json"


def test_digits_are_images_and_tables_are_not():
    assert image_shape(load_dataset("digits")) == (8, 8)
    assert image_shape(load_dataset("iris")) is None
    embeddings = np.zeros((4, 64), dtype=np.float32)
    data = Dataset("e", embeddings, np.array([0, 1, 0, 1]), "y", "embeddings", "made here")
    assert image_shape(data) is None


def test_the_gallery_shows_sure_mistakes_and_unsure_answers():
    y = np.array([0, 0, 1, 1, 0, 1])
    proba = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.45, 0.55], [0.51, 0.49], [0.01, 0.99]])
    chosen = choose_gallery_rows(y, proba)
    assert chosen == [
        (1, "wrong"),
        (2, "wrong"),
        (4, "uncertain"),
        (3, "uncertain"),
        (0, "uncertain"),
    ]


def test_a_gallery_holds_rows_and_neighbors_as_json(tmp_path):
    data = blobs(n=60, spread=4.0)
    model = FakeAttention().fit(data.X[:40], data.y[:40])
    test = np.arange(40, 60)
    y = np.searchsorted(data.classes, data.y[test])
    predictions = Predictions(y, model.predict_proba(data.X[40:]), test, list(data.classes))
    save_json(tmp_path / "g.json", make_gallery(model, data, test, predictions))
    gallery = load_json(tmp_path / "g.json")
    shown = gallery["rows"][0]
    assert gallery["columns"] == ["a", "b", "c", "d"]
    assert shown["row"] == pytest.approx(data.X.iloc[shown["test_row"]].tolist(), rel=1e-5)
    assert [n["id"] for n in shown["neighbors"]] == [0, 1, 2]
    assert shown["neighbors"][1]["row"] == pytest.approx(data.X.iloc[1].tolist(), rel=1e-5)


def test_a_gallery_without_rows_is_empty():
    predictions = Predictions(np.array([], int), np.empty((0, 2)), np.array([], int), ["a", "b"])
    data = blobs(n=10)
    assert make_gallery(FakeAttention(), data, np.array([], int), predictions)["rows"] == []


def test_missing_values_stay_readable():
    data = blobs(n=30, spread=5.0)
    frame = data.X.assign(a=np.nan, b=pd.Series([None] * 30, dtype=object))
    odd = Dataset("odd", frame, data.y, "y", "table", "made here")
    model = FakeAttention().fit(data.X, data.y)
    model.explain = lambda X: FakeAttention.explain(model, data.X[: len(X)])
    y = np.searchsorted(data.classes, data.y)
    proba = np.full((30, 3), 1 / 3)
    gallery = make_gallery(
        model, odd, np.arange(30), Predictions(y, proba, np.arange(30), list(data.classes))
    )
    assert gallery["rows"][0]["row"][1] in ("None", "nan")
