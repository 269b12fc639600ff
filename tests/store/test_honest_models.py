"""Models that a careful user may fit and change, which checks must not refuse to save or open."""

import datetime
import os

import numpy as np
import pandas as pd
import pytest
import torch

from nearwise.estimators import AttnKNNClassifier
from nearwise.memory import read_folder, write_folder
from nearwise.memory.store import MANIFEST
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, reopened, same
from tests.store.folders import small_table

LEAN = {**CHEAP, "embedder": "identity"}


def round_trip(model, folder):
    again = reopened(model, folder)
    assert same(again.predict_proba(again._fitted.rows), model.predict_proba(model._fitted.rows))
    return again


@pytest.mark.parametrize(
    "settings",
    [
        {"max_per_class": np.int64(9), "capacity": np.int64(10**6)},
        {"device": torch.device("cpu")},
        {"label_noise": 0.0},
    ],
    ids=str,
)
def test_settings_of_numpy_and_torch_are_kept(settings, tmp_path):
    X, y = blobs()
    round_trip(fitted(X, y, **settings), tmp_path / "m")


def test_a_rate_is_a_share_for_every_draw_of_labels():
    from nearwise.estimators.noise.transition import known_transition

    rng = np.random.default_rng(0)
    for _ in range(200):
        labels = rng.integers(0, 3, 60)
        assert 0 <= known_transition(np.eye(3), labels).rate <= 1


def test_a_class_of_ones_own_without_annotations_is_saved(tmp_path):
    class Quiet(AttnKNNClassifier):
        def __init__(self, estimator=None, cv=2, settings=None, random_state=0):
            super().__init__(
                estimator=estimator, cv=cv, settings=settings, random_state=random_state
            )

    X, y = blobs()
    model = Quiet(settings={"head": {"epochs": 2}}).fit(X, y)
    model.save(tmp_path / "m")
    assert same(Quiet.load(tmp_path / "m").predict_proba(X), model.predict_proba(X))


def columns_of(n):
    day = datetime.date(2020, 1, 1)
    hour = datetime.timedelta(hours=7)
    moments = [datetime.datetime(2020, 1, 1) + i * hour for i in range(n - 1)]
    return {
        "days and moments": [day, *moments],
        "nested": [{"a": i, "b": 2} for i in range(n)],
        "spans": [datetime.timedelta(days=i % 9) for i in range(n)],
        "large ids": np.arange(n, dtype=np.uint64) + 2**63,
        "zone without a name": pd.Series(moments[:1] * n, dtype="datetime64[ns]").dt.tz_localize(
            datetime.timezone(hour, "HERE")
        ),
    }


@pytest.mark.parametrize("name", columns_of(9))
def test_odd_columns_are_kept_and_rows_without_them_added(name, tmp_path):
    frame, y = small_table(60)
    frame["odd"] = columns_of(60)[name]
    left_out = {"columns": {"odd": "left out"}} if name in ("nested", "large ids") else {}
    model = attn_knn(**LEAN, **left_out).fit(frame, y)
    again = round_trip(model, tmp_path / "m")
    if left_out:
        again.add(frame.drop(columns="odd").iloc[:2], y[:2])
        assert len(again.memory_) == len(again._fitted.rows) == 62
        round_trip(again, tmp_path / "m")


def test_rows_that_cannot_be_kept_leave_the_memory_as_it_is(monkeypatch):
    frame, y = small_table(60)
    model = attn_knn(**LEAN).fit(frame, y)
    before = model.predict_proba(frame)

    def refuse(*_):
        raise TypeError("no such column")

    monkeypatch.setattr("nearwise.estimators.online.changes.append_frame", refuse)
    with pytest.raises(TypeError):
        model.add(frame[:3], y[:3])
    assert len(model.memory_) == 60 and same(model.predict_proba(frame), before)


def test_an_interrupt_as_the_manifest_is_replaced_leaves_a_whole_folder(tmp_path, monkeypatch):
    def write(value):
        tensors = {"x": torch.full((3,), value)}
        write_folder(tmp_path / "m", kind="k", format_version=1, tensors=tensors, meta={})

    write(1)
    replace = os.replace

    def late(source, target):
        replace(source, target)
        if str(target).endswith(MANIFEST):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(KeyboardInterrupt):
        write(2)
    assert read_folder(tmp_path / "m", kind="k", newest_version=1).tensors["x"][0] == 2
