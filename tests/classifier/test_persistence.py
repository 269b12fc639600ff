"""A saved classifier predicts bit for bit the same, or is refused with a reason."""

import errno
import json
import os
import sys

import numpy as np
import pandas as pd
import pytest

from nearwise.classifier import AttnKNNClassifier
from nearwise.classifier.storage.persistence import KIND, VERSION
from nearwise.classifier.storage.stored_parts import InvalidPartError, part_of_folder
from nearwise.memory import StoreError, read_folder, write_folder
from nearwise.memory.store import MANIFEST
from tests.classifier.cases import (
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
    "capped": {**BASED, "max_per_class": 20},
    "cosine": {**CHEAP, "metric": "cosine"},
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
    model = attn_knn(**{**CHEAP, "estimator": logistic()}).fit(frame, pd.Series(y, name="buys"))
    again = reopened(model, tmp_path / "model")
    assert_same_model(model, again, frame)
    assert again.fitted_.target_name == "buys" and again.report_ == model.report_
    assert again.feature_names_in_.tolist() == frame.columns.tolist()
    assert_same_model(model, reopened(again, tmp_path / "twice"), frame)


@pytest.mark.parametrize(
    "labels",
    [[5, -1, 3], ["ä", "b c", ""], [1.0, 2.0, 3.0], pd.Series(["x", "y", "z"])],
    ids=["int", "text", "float", "series"],
)
def test_classes_keep_their_kind(labels, tmp_path):
    X, y = blobs()
    model = fitted(X, np.asarray(labels)[y])
    assert_same_model(model, reopened(model, tmp_path / "model"), X)


def test_truth_values_keep_their_kind(tmp_path):
    X, y = blobs(n_classes=2)
    model = fitted(X, y == 0)
    assert_same_model(model, reopened(model, tmp_path / "model"), X)


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


def write_again(folder, content):
    parts = {"tensors": content.tensors, "meta": content.meta, "blobs": content.blobs}
    write_folder(folder, kind=KIND, format_version=VERSION, **parts)


def test_nothing_at_the_path(tmp_path):
    with pytest.raises(StoreError, match="There is nothing at") as error:
        AttnKNNClassifier.load(tmp_path / "nowhere")
    assert error.value.reason == "missing"


@pytest.mark.parametrize("harm", ["cut", "flip", "lose"])
def test_a_torn_folder_is_refused(tmp_path, harm):
    saved(tmp_path / "model")
    victim = max((tmp_path / "model").glob("tensors-*"))
    content = victim.read_bytes()
    if harm == "lose":
        victim.unlink()
    else:
        half = len(content) // 2
        victim.write_bytes(
            content[:half]
            + (b"" if harm == "cut" else bytes([content[half] ^ 1]) + content[half + 1 :])
        )
    with pytest.raises(StoreError, match=r"torn.*Restore it from a copy") as error:
        AttnKNNClassifier.load(tmp_path / "model")
    assert error.value.reason == "torn"


def edit_manifest(folder, **changes):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | changes))


def test_a_newer_folder_is_refused(tmp_path):
    saved(tmp_path / "model")
    edit_manifest(tmp_path / "model", version=99)
    with pytest.raises(StoreError, match=r"format version 99.*Upgrade nearwise") as error:
        AttnKNNClassifier.load(tmp_path / "model")
    assert error.value.reason == "newer"


def test_a_folder_of_another_kind_is_refused_and_never_written_over(tmp_path):
    model = fitted()
    model.memory_.save(tmp_path / "bank")
    with pytest.raises(StoreError, match="was expected"):
        AttnKNNClassifier.load(tmp_path / "bank")
    with pytest.raises(StoreError, match="was expected"):
        model.save(tmp_path / "bank")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="files that are not ours"):
        model.save(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_base_of_an_unknown_type_is_refused_until_it_is_trusted(tmp_path):
    X, _ = blobs()
    model = saved(tmp_path / "model", estimator=OwnLogistic())
    with pytest.raises(ValueError, match=r"OwnLogistic.*not trusted.*trusted=\[") as error:
        AttnKNNClassifier.load(tmp_path / "model")
    assert not isinstance(error.value, StoreError)
    name = f"{OwnLogistic.__module__}.OwnLogistic"
    again = AttnKNNClassifier.load(tmp_path / "model", trusted=[name])
    assert same(again.predict_proba(X), model.predict_proba(X))


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


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=os.strerror)
@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_disk_that_fails_keeps_the_old_model(tmp_path, monkeypatch, error, after):
    X, _ = blobs()
    model = saved(tmp_path / "model")
    before = model.predict_proba(X)
    model.add(X + 30, np.zeros(90, dtype=int))
    calls = []

    def fail(handle):
        calls.append(handle)
        if len(calls) > after:
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr("nearwise.memory.store.os.fsync", fail)
    with pytest.raises(OSError, match="What was there before is unchanged") as caught:
        model.save(tmp_path / "model")
    assert caught.value.errno == error
    monkeypatch.undo()
    assert same(AttnKNNClassifier.load(tmp_path / "model").predict_proba(X), before)
    assert len(reopened(model, tmp_path / "model").memory_) == 180


def test_saving_twice_leaves_one_generation(tmp_path):
    model = saved(tmp_path / "model")
    first = {path.name for path in (tmp_path / "model").iterdir()}
    model.save(tmp_path / "model")
    second = {path.name for path in (tmp_path / "model").iterdir()}
    assert len(first) == len(second) and first & second == {MANIFEST}


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
    write_again(folder, saved)
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
    loaded._fitted.predictor.encoder.durations.clear()  # as in folders up to version 4
    assert same(loaded.predict_proba(frame), expected)
