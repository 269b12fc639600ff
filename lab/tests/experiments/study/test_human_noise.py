"""CIFAR-10N with the corrected method: the labels of people, in all training rows."""

import numpy as np
import pytest
from nearwise_lab.data.sets import CIFAR10_CLASSES
from nearwise_lab.experiments.study import corrected
from nearwise_lab.experiments.study.arms import human_labels

from nearwise.data import Dataset

N_TRAIN, N_TEST = 240, 60
pytestmark = pytest.mark.filterwarnings("ignore:The CIFAR-10N:UserWarning")


def codes(n=50000):
    """True classes of the training rows, the first ones in each class's turn."""
    return np.arange(n) % 10


@pytest.fixture
def root(tmp_path):
    """Give a folder with labels of which every fifth ("worse") or tenth is the next class."""
    folder = tmp_path / "data" / "cifar10-extras"
    folder.mkdir(parents=True)
    rows = np.arange(50000)
    worse, aggregate = ((codes() + (rows % step == 0)) % 10 for step in (5, 10))
    np.savez(folder / "cifar10n_human.npz", worse_label=worse, aggre_label=aggregate)
    return tmp_path / "data"


@pytest.fixture
def features():
    """Give what cifar10-features is: embeddings, classes by number, an official test part."""
    rng = np.random.default_rng(0)
    y = np.concatenate([codes(N_TRAIN), codes(N_TEST)])
    X = (np.eye(10)[y] + rng.normal(scale=0.3, size=(len(y), 10))).astype(np.float32)
    return Dataset("cifar10-features", X, y, "class", "embeddings", "made for a test",
                   test_index=np.arange(N_TRAIN, N_TRAIN + N_TEST))  # fmt: skip


@pytest.fixture
def run(run, tmp_path):
    """Give a function that runs the experiment on label noise; further arguments are settings."""

    def call(dataset, root, **changes):
        config = {
            "noise_rates": [0.0],
            "estimator": None,
            "cv": 2,
            "head": {"epochs": 1},
            **changes,
        }
        where = {"out": tmp_path / "out", "data_root": root, "small": True}
        return run("label-noise", dataset, "v1", config=config, **where)

    return call


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_each_set_of_human_labels_is_a_row_of_every_method(run, features, root, monkeypatch):
    cheap = ("uniform", "attention")  # the bag of MLPs takes its time
    monkeypatch.setitem(corrected.BESIDE, "label-noise", ((), cheap[:1]))
    records = run(features, root, human_labels=["worse", "aggregate"])
    assert not [r.reason for r in records if r.status != "ok"]
    noise = {(r.noise_kind, r.noise) for r in records}
    assert noise == {("symmetric", 0.0), ("human-worse", 0.2), ("human-aggregate", 0.1)}
    for kind in ("human-worse", "human-aggregate"):
        methods = {r.method for r in records if r.noise_kind == kind and not r.part_of}
        assert methods == {*cheap, "attention+noise-model"}


def test_labels_follow_the_rows_and_the_share_of_wrong_ones_is_measured(features, root):
    rows = np.array([5, 3, 0, 7])
    with pytest.warns(UserWarning, match="worse labels"):
        labels, wrong = human_labels("worse", features, rows, root)
    assert labels.tolist() == [6, 3, 1, 7] and wrong == 0.5


@pytest.mark.filterwarnings("ignore")
def test_rows_in_another_order_are_refused(features, root):
    features.y[:] = (features.y + 3) % 10
    with pytest.raises(ValueError, match="not in the order of CIFAR-10"):
        human_labels("aggregate", features, np.arange(100), root)


def test_without_the_file_the_run_does_not_start_and_names_the_places(
    run, features, tmp_path, monkeypatch
):
    monkeypatch.setenv("NEARWISE_CACHE", str(tmp_path / "cache"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match=r"cifar10n_human\.npz") as caught:
        run(features, empty, human_labels=["worse"])
    assert str(empty) in str(caught.value) and "--set human_labels=[]" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_human_labels_of_other_sets_are_refused(run, digits, root):
    with pytest.raises(ValueError, match="are of CIFAR-10; 'digits-images' has none"):
        run(digits, root, human_labels=["worse"], cv="auto")


def test_cifar_10_classes_are_in_alphabetical_order():
    assert list(CIFAR10_CLASSES) == sorted(CIFAR10_CLASSES)
