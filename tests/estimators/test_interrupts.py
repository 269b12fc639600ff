"""Ctrl-C keeps what there is; kill -9 loses nothing; a killed fit goes on from its checkpoints."""

import numpy as np
import pytest

from nearwise.estimators.fit import networks as fitting
from tests.estimators.cases import CHEAP, attn_knn, blobs, fitted, logistic, same, sums_to_one

EMBEDDED = {
    **CHEAP, "estimator": logistic(), "cv": 3, "embedder": "deep",
    "train": {"epochs": 4},
}  # fmt: skip
HEADS = {"head": {"epochs": 1}}


def interrupt(monkeypatch, member, epoch, error=KeyboardInterrupt):
    """Raise an error at the end of one epoch of one member's embedder."""
    original, calls = fitting.train_member, []

    def train(*args, progress, **kwargs):
        calls.append(None)
        mine = len(calls) - 1

        def watched(record):
            progress(record)
            if (mine, record["epoch"]) == (member, epoch):
                raise error

        return original(*args, progress=watched, **kwargs)

    monkeypatch.setattr(fitting, "train_member", train)
    return calls


def test_ctrl_c_before_every_member_has_an_embedder_goes_on_without(monkeypatch, capsys):
    X, y = blobs()
    calls = interrupt(monkeypatch, member=1, epoch=2)
    with pytest.warns(UserWarning, match="interrupted in epoch"):
        model = attn_knn(**EMBEDDED).fit(X, y)
    assert "networks are left out and the fit goes on" in " ".join(capsys.readouterr().err.split())
    assert len(calls) == 2 and model.report_.choice["embedder"] == "identity (interrupted)"
    assert sums_to_one(model.predict_proba(X))
    without = fitted(X, y, **EMBEDDED | {"embedder": "identity"})
    assert same(model.predict_proba(X), without.predict_proba(X))


def test_ctrl_c_in_the_last_member_keeps_its_best_epoch(monkeypatch):
    X, y = blobs()
    interrupt(monkeypatch, member=2, epoch=2)
    with pytest.warns(UserWarning, match="best weights so far"):
        model = attn_knn(**EMBEDDED).fit(X, y)
    assert model.report_.choice["embedder"] == "deep"
    epochs = [r["epoch"] for r in model.report_.history if r["stage"] == "embedder deep"]
    assert epochs[-2:] == [1, 2]


def test_ctrl_c_before_the_first_epoch_goes_on_too(monkeypatch):
    X, y = blobs()

    def stop(*args, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("nearwise.training.embedder.fit_start_scale", stop)
    held_out = {"embedder": "table", "cv": 0.3}
    model = attn_knn(**EMBEDDED | held_out).fit(X, y)
    assert sums_to_one(model.predict_proba(X))


def test_a_fit_that_died_goes_on_from_its_checkpoints_to_the_same_result(monkeypatch, tmp_path):
    monkeypatch.setattr("nearwise.training.objective._CHECKPOINT_SECONDS", 0.0)
    X, y = blobs()
    unbroken = fitted(X, y, **EMBEDDED)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        interrupt(patch, member=1, epoch=3, error=RuntimeError("power cut"))
        attn_knn(**EMBEDDED, checkpoint_dir=tmp_path).fit(X, y)
    seen = []
    monkeypatch.setattr(
        "nearwise.estimators.progress.Progress.epoch",
        lambda self, name, record, total: seen.append((name, record["epoch"])),
    )
    resumed = attn_knn(**EMBEDDED, checkpoint_dir=tmp_path).fit(X, y)
    again = [epoch for name, epoch in seen if name == "embedder deep, member 2"]
    assert again[0] == 4 and "embedder deep, member 1" not in dict(seen)
    assert same(resumed.predict_proba(X), unbroken.predict_proba(X))
    assert same(resumed.predict_proba(None), unbroken.predict_proba(None))
    assert resumed.report_.history == unbroken.report_.history


@pytest.mark.parametrize("change", ["rows", "labels", "weights", "seed"])
def test_another_fit_never_goes_on_from_these_checkpoints(change, tmp_path):
    X, y = blobs()
    settings = {**EMBEDDED, "cv": 2, "train": {"epochs": 1}}
    settings["checkpoint_dir"] = tmp_path
    attn_knn(**settings).fit(X, y)
    weight = np.ones(90)
    if change == "rows":
        X = X + np.eye(90, 4)
    elif change == "labels":
        y = np.where(np.arange(90) == 3, 1, y)
    elif change == "weights":
        weight[0] = 2
    else:
        settings["random_state"] = 1
    model = attn_knn(**settings).fit(X, y, sample_weight=weight)
    fresh = attn_knn(**{**settings, "checkpoint_dir": None}).fit(X, y, weight)
    assert same(model.predict_proba(X), fresh.predict_proba(X))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_fit_that_differs_in_its_heads_alone_trains_no_network_again(monkeypatch, tmp_path):
    X, y = blobs()
    settings = {**EMBEDDED, "checkpoint_dir": tmp_path}
    attn_knn(**settings).fit(X, y)
    fresh = attn_knn(**EMBEDDED | HEADS).fit(X, y)
    monkeypatch.setattr("nearwise.training.embedder.EmbedderObjective.batches", pytest.fail)
    again = attn_knn(**settings | HEADS).fit(X, y)
    assert same(again.predict_proba(X), fresh.predict_proba(X))


def test_silence_is_the_default(capfd):
    fitted()
    out, err = capfd.readouterr()
    assert out == "" and err == ""
