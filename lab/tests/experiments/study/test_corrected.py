"""The corrected method on images; a stand-in for the classifier where only the rows matter."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nearwise_lab.experiments.artifacts import record_path
from nearwise_lab.experiments.study import corrected, settings
from nearwise_lab.experiments.study.key_space import KeySpace
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.neighbors import KNeighborsClassifier

import nearwise.estimators
from nearwise.estimators import Parts
from nearwise.memory import MemoryBank
from nearwise.training.embedder import EmbedderObjective

HELD_OUT = 50  # of the remembered rows; plain neighbors are not sought among them


class FakeImageClassifier(ClassifierMixin, BaseEstimator):
    """k-NN on pixels with the methods of AttnKNNClassifier."""

    def __init__(
        self, n_neighbors="auto", estimator="auto", class_prior="train", label_noise=None,
        settings=None, random_state=None,
    ):  # fmt: skip
        for name, value in list(locals().items()):
            if name != "self":
                setattr(self, name, value)

    def fit(self, images, y):
        assert images.dtype == np.uint8
        assert images.shape[1:] == (8, 8, 1)
        self.inner_ = KNeighborsClassifier(5).fit(images.reshape(len(images), -1), y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self.rows_ = images.reshape(len(images), -1)
        self.memory_ = MemoryBank(np.zeros((len(y), 2), np.float32), torch.from_numpy(codes))
        judged = torch.arange(len(y)) < HELD_OUT
        self.fitted_ = SimpleNamespace(predictor=SimpleNamespace(judged=judged))
        self.report_ = SimpleNamespace(choice={"space": "pixels"}, history=[], temperature=1.2)
        return self

    def predict_proba(self, images):
        return self.inner_.predict_proba(images.reshape(len(images), -1))

    def query(self, images):
        proba, null_mass = self.predict_proba(images), np.full(len(images), 0.5)
        return SimpleNamespace(
            parts=Parts(proba, base_proba=proba, neighbor_proba=proba, null_mass=null_mass)
        )

    def relabel(self, ids, y):
        self.inner_ = KNeighborsClassifier(5).fit(self.rows_[ids], y)

    def kneighbors(self, images, n_neighbors):
        return self.inner_.kneighbors(images.reshape(len(images), -1), n_neighbors)


@pytest.fixture
def run(run, digits, quick):
    """Give a function that runs an experiment with the corrected method on digits."""
    known = ("max_rows", "max_test_rows", "noise_rates", "tail_ratios")
    config = {name: quick[name] for name in known} | {"sweep_k": [1, 5], "train": {"epochs": 2}}
    return lambda name: run(name, digits, "v1", config=config)


@pytest.fixture
def stand_in(monkeypatch):
    """Put a k-NN on pixels in the classifier's place, with a network that answers evenly."""

    def view(model, images):
        keys, labels = torch.from_numpy(model.rows_).float(), model.memory_.labels
        held_out, labels_held_out = keys[:HELD_OUT], labels[:HELD_OUT]
        even = np.full((len(images), 10), 0.1)
        test = torch.from_numpy(images.reshape(len(images), -1)).float()
        head = even[:HELD_OUT], even
        return KeySpace(
            keys[HELD_OUT:],
            labels[HELD_OUT:],
            held_out,
            labels_held_out,
            test,
            model.classes_,
            head,
        )

    monkeypatch.setattr(nearwise.estimators, "AttnKNNClassifier", FakeImageClassifier)
    monkeypatch.setattr(settings, "check_parameters", lambda parameters, dataset: None)
    monkeypatch.setattr(corrected, "key_space", view)


@pytest.mark.slow
def test_main_stands_beside_its_own_network_and_trains_it_once(run, monkeypatch, tmp_path):
    epochs = []
    batches = EmbedderObjective.batches
    monkeypatch.setattr(
        EmbedderObjective, "batches", lambda *given: epochs.append(1) or batches(*given)
    )
    rows = {r.method: r for r in run("main")}
    assert not [r.reason for r in rows.values() if r.status != "ok"]
    assert set(rows) == {
        "cnn", "cnn+temperature", "uniform", "distance", "distance-tuned",
        *(
            f"attention{form}{half}"
            for form in ("", "+tta")
            for half in ("", ":base-alone", ":neighbors-alone")
        ),
    }  # fmt: skip
    assert 0 <= rows["attention"].null_mass <= 1
    path = record_path(tmp_path, rows["attention"], "maps", "json")
    drawn = json.loads(path.read_text())
    assert drawn["space"] == "trained" and np.shape(drawn["test"]) == (150, 2)
    assert len(drawn["memory"]) == len(drawn["memory_label"]) == 400  # those held out too
    assert rows["attention"].n_train == rows["cnn"].n_train == 400
    assert len(epochs) == 2  # one network for both forms
    cnn, base = rows["cnn+temperature"], rows["attention:base-alone"]
    assert cnn.accuracy == base.accuracy
    assert cnn.nll == pytest.approx(base.nll, rel=0.02)  # each has its own temperature


@pytest.mark.parametrize(
    ("name", "conditions"),
    [
        ("k-sweep", {"k=1", "k=5"}),
        ("label-noise", {"where=memory", "where=everywhere"}),
        ("long-tail", {"ratio=1", "ratio=0.1"}),
        ("theory", {"error-against-k", "collapse", "temperatures"}),
        ("ablation", {"full", "without=base", "without=calibration"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("stand_in")
def test_every_experiment_has_its_rows(run, name, conditions):
    rows = run(name)
    assert all(r.status == "ok" for r in rows), rows
    assert {r.condition for r in rows} == conditions
    assert {r.preset for r in rows} == {"v1"}


@pytest.mark.usefixtures("stand_in")
def test_wrong_labels_come_in_the_memory_alone_and_in_all_rows(run):
    rows = {(r.condition, r.noise_kind, r.noise, r.method): r for r in run("label-noise")}
    methods = {method for where, _, _, method in rows if where == "where=everywhere"}
    assert {"cnn", "cnn+temperature", "uniform", "attention"} <= methods
    assert {"attention+noise-model", "attention+noise-model+tta"} <= methods
    methods = {method for where, _, _, method in rows if where == "where=memory"}
    assert "cnn" not in methods  # the network was trained on the right labels
    for method in ("uniform", "attention"):
        right = rows["where=memory", "symmetric", 0.0, method]
        assert right.accuracy > 0.8
        assert rows["where=memory", "symmetric", 0.3, method].nll > right.nll
        # the right labels again, after the wrong ones: a new draw starts from them
        assert rows["where=memory", "asymmetric", 0.3, method].nll > right.nll


def test_tuned_distance_weighting_is_no_worse_on_the_rows_it_was_tuned_on():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    keys = torch.nn.functional.one_hot(labels, 4) + 0.6 * torch.randn(120, 4, generator=generator)
    keys = torch.nn.functional.normalize(keys, dim=1)
    # the test rows are the held-out rows: what was tuned there must win there
    space = KeySpace(keys[:80], labels[:80], keys[80:], labels[80:], keys[80:], np.arange(3))
    y = labels[80:].numpy()
    losses = {
        p.method: -np.log(np.maximum(p.proba[np.arange(40), y], 1e-7)).mean()
        for p in map(space.predict, corrected.PLAIN)
    }
    assert losses["distance-tuned"] <= min(losses["uniform"], losses["distance"]) + 1e-3
