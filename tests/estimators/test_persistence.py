"""A saved classifier predicts bit for bit the same, or is refused with a reason."""

import errno
import sys
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest

from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.storage.class_parts import KIND
from nearwise.estimators.storage.persistence import VERSION
from nearwise.estimators.storage.stored_parts import InvalidPartError, part_of_folder
from nearwise.memory import StoreError, read_folder, write_folder
from tests.estimators.cases import (
    CHEAP,
    QUICK,
    OwnLogistic,
    attn_knn,
    blobs,
    fitted,
    logistic,
    reopened,
    same,
    table,
)

BASED = {**CHEAP, "estimator": "auto"}
CONFIGURATIONS = {
    "no-base": CHEAP,
    "a base": {"cv": 2, **QUICK},
    "logistic": {**CHEAP, "estimator": logistic()},
    "sizes": {**CHEAP, "n_neighbors": np.int64(9)},
    "deep": {**BASED, "embedder": "deep", "train": {"epochs": 1}},
    "trained keys": {**CHEAP, "embedder": "table", "train": {"epochs": 1}},
    "capped": {**BASED, "max_per_class": 20},
    "cosine": {**CHEAP, "metric": "cosine"},
    "wrong labels": {**CHEAP, "label_noise": 0.2},
}


def assert_same_model(first, second, X):
    assert same(first.predict_proba(X), second.predict_proba(X))
    assert same(first.predict_proba(None), second.predict_proba(None))
    assert same(first.classes_, second.classes_)
    assert first.classes_.dtype == second.classes_.dtype
    pairs = zip(first.explain(X[:3]), second.explain(X[:3]), strict=True)
    for one, two in pairs:
        assert [(n.id, n.weight, n.label) for n in one.neighbors] == [
            (n.id, n.weight, n.label) for n in two.neighbors
        ]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_round_trip_predicts_the_same_and_goes_on_the_same(name, tmp_path):
    X, y = blobs()
    model = attn_knn(**CONFIGURATIONS[name]).fit(X, y)
    again = reopened(model, tmp_path / "model")
    assert_same_model(model, again, X)
    for one in (model, again):
        one.add(X[:2] + 30, [9, 9])
        one.remove([5])
        one.relabel([6], [1])
    assert_same_model(model, again, X)
    assert again.report_ == model.report_


def test_round_trip_of_a_table(tmp_path):
    frame, y = table()
    frame["whole"] = pd.array(np.arange(120) % 5, dtype="Int64")
    frame["many"] = [f"t{i % 30}" for i in range(120)]
    before = datetime.now(UTC).replace(microsecond=0)
    model = attn_knn(**{**CHEAP, "estimator": logistic()}).fit(frame, pd.Series(y, name="buys"))
    again = reopened(model, tmp_path / "model")
    assert_same_model(model, again, frame)
    fitted_at = again.fitted_.fitted_at
    assert before <= datetime.fromisoformat(fitted_at) <= datetime.now(UTC)
    assert again.fitted_.target_name == "buys" and again.report_ == model.report_
    assert again.feature_names_in_.tolist() == frame.columns.tolist()
    kinds = again.report_.columns
    assert (kinds["age"], kinds["town"], kinds["grade"]) == ("number", "category", "category")
    assert_same_model(model, reopened(again, tmp_path / "twice"), frame)


LABELS = [
    [5, -1, 3],
    ["ä", "b c", ""],
    [2.0, -1e15, 3.0],
    [True, False],
    np.array(["a", "b"], dtype=object),
    *[np.array([20_001, 20_000]).astype(f"{unit}") for unit in ("M8[D]", "M8[us]", "m8[D]")],
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(np.asarray(labels).dtype))
def test_classes_keep_their_kind(labels, tmp_path):
    X, y = blobs(n_classes=len(labels))
    y = np.asarray(labels)[y]
    model = fitted(X, y)
    assert same(model.classes_, np.unique(y)) and model.classes_.dtype == y.dtype
    codes = fitted(X, np.unique(y, return_inverse=True)[1]).predict(X)
    assert model.predict(X).dtype == y.dtype and same(model.predict(X), model.classes_[codes])
    assert_same_model(model, reopened(model, tmp_path / "model"), X)


def test_a_folder_of_another_kind_is_refused_and_never_written_over(tmp_path):
    model = fitted()
    model.memory_.save(tmp_path / "bank")
    for use in (AttnKNNClassifier.load, model.save):
        with pytest.raises(StoreError, match="was expected"):
            use(tmp_path / "bank")


def test_parameters_come_back_and_fit_the_same(tmp_path):
    X, y = blobs()
    model = fitted(X, y, estimator=logistic(), n_neighbors=np.int64(7), max_per_class=np.int64(50))
    again = reopened(model, tmp_path / "model")
    assert again.n_neighbors == 7 and again.settings.max_per_class == 50
    assert again.estimator.max_iter == 200
    assert same(again.fit(X, y).predict_proba(X), model.predict_proba(X))


def saved(folder, **settings):
    model = fitted(**settings)
    model.save(folder)
    return model


def test_without_skops_a_base_of_ones_own_names_the_extra(tmp_path, monkeypatch):
    model = saved(tmp_path / "model", estimator=OwnLogistic())
    monkeypatch.setitem(sys.modules, "skops", None)
    told = r'base of your own needs the extra "own-base": pip install nearwise\[own-base\]'
    with pytest.raises(ImportError, match=told):
        AttnKNNClassifier.load(tmp_path / "model")
    with pytest.raises(ImportError, match=told):
        model.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    saved(tmp_path / "without")  # and any other model needs no skops


def test_nothing_saved_is_a_pickle(tmp_path):
    saved(tmp_path / "model", estimator=logistic())
    names = {path.suffix for path in (tmp_path / "model").iterdir()}
    assert names <= {".json", ".safetensors", ".bin"}
    for path in (tmp_path / "model").glob("*.bin"):
        assert path.read_bytes()[:2] == b"PK"  # a skops archive


def test_a_model_from_a_machine_with_another_device_loads_and_says_so(tmp_path):
    X, y = blobs()
    model = fitted(X, y)
    folder = tmp_path / "model"
    model.save(folder)
    saved = read_folder(folder, kind=KIND, newest_version=VERSION)
    saved.meta["params"]["settings"] |= {"device": "cuda:99"}
    parts = {"tensors": saved.tensors, "meta": saved.meta, "blobs": saved.blobs}
    write_folder(folder, kind=KIND, format_version=VERSION, **parts)
    with pytest.warns(UserWarning, match="is not here.*cuda.*is not available"):
        loaded = AttnKNNClassifier.load(folder)
    assert loaded.settings.device == "auto"
    np.testing.assert_allclose(loaded.predict_proba(X), model.predict_proba(X), atol=1e-5)


def test_a_full_disk_is_no_fault_of_a_part():
    with pytest.raises(OSError, match="No space left"), part_of_folder("predictions"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(InvalidPartError, match="Input/output error"), part_of_folder("predictions"):
        raise OSError(errno.EIO, "Input/output error")


def test_durations_are_read_from_text_by_a_loaded_model(tmp_path):
    rng = np.random.default_rng(0)
    hours = rng.integers(0, 200, size=80)
    frame = pd.DataFrame({"took": pd.to_timedelta(hours, unit="h"), "x": rng.normal(size=80)})
    model = attn_knn(**CHEAP).fit(frame, np.where(hours > 100, "long", "short"))
    loaded = reopened(model, tmp_path / "m")
    expected = model.predict_proba(frame)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert same(loaded.predict_proba(pd.read_csv(tmp_path / "rows.csv")), expected)
    assert same(loaded.predict_proba(frame.assign(took=hours / 24)), expected)
    with pytest.raises(ValueError, match=r"'took' held durations.*'long ago' in row 0"):
        loaded.predict(frame.assign(took="long ago"))
    with pytest.raises(ValueError, match=r"'took' held durations.*holds True in row 0"):
        loaded.predict(frame.assign(took=[True, *["1 days"] * 79]))
    loaded._fitted.predictor.encoder.durations.clear()  # as in folders up to version 4
    assert same(loaded.predict_proba(frame), expected)
