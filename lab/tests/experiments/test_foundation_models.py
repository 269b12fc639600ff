"""Foundation models from checkpoints on this machine, behind modules of the published interface."""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
from fakes import blobs, mixed_table
from nearwise_lab.experiments import METHODS, RecordsError, compare, read_records
from nearwise_lab.experiments.methods import FOUNDATION_MODELS
from nearwise_lab.experiments.peers.foundation import CLASSES, Checkpoint, find_checkpoints

BUILT = []


class InContext:
    """Says the shares of the classes of its context; notes how it was built."""

    def fit(self, X, y):
        BUILT.append((self.path, self.device, len(X)))
        self.classes_, counts = np.unique(y, return_counts=True)
        self.shares_ = counts / counts.sum()
        return self

    def predict_proba(self, X):
        return np.tile(self.shares_, (len(X), 1)).astype(np.float32)


class TabICLClassifier(InContext):  # tabicl 2.2
    def __init__(self, *, model_path, allow_auto_download, device, random_state, n_jobs):
        assert allow_auto_download is False
        self.path, self.device = model_path, device


class TabPFNClassifier(InContext):  # tabpfn 9.2
    def __init__(self, *, model_path, device, random_state, ignore_pretraining_limits):
        self.path, self.device = model_path, device


class LightPFNClassifier(InContext):  # lightpfn 1.1
    def __init__(self, *, checkpoint, device, random_state, n_threads):
        self.path, self.device = checkpoint, device


@pytest.fixture
def packages(monkeypatch):
    BUILT.clear()
    for name, title in CLASSES.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        setattr(module, title, globals()[title])
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def weights(tmp_path):
    folder = tmp_path / "weights"
    (folder / "LightPFN").mkdir(parents=True)
    for name in (
        "tabicl-classifier-v2.ckpt", "TabPFN-v2-classifier.ckpt", "tabpfn-v2-regressor.ckpt",
        "LightPFN/model.safetensors", "LightPFN/config.json", "README.md",
    ):  # fmt: skip
        (folder / name).write_bytes(name.encode() * 100)
    return folder


def test_a_folder_gives_one_checkpoint_for_each_model(weights):
    found = find_checkpoints([str(weights)])
    assert {name: one.path.name for name, one in found.items()} == {
        "tabicl": "tabicl-classifier-v2.ckpt",
        "tabpfn": "TabPFN-v2-classifier.ckpt",
        "lightpfn": "LightPFN",
    }
    assert found["tabicl"].mb == pytest.approx(0.0025)
    other = weights / "TabPFN-v2-classifier.ckpt"
    given = find_checkpoints([str(weights), f"tabicl={other}"])
    assert given["tabicl"].path == other
    assert given["tabicl"].sha256 == given["tabpfn"].sha256 != found["tabicl"].sha256


def test_what_cannot_be_read_says_what_to_pass(weights, tmp_path):
    (weights / "tabicl-classifier-v1.ckpt").write_bytes(b"1")
    (tmp_path / "empty").mkdir()
    for given, message in (
        (str(weights), "several checkpoints of tabicl: .* Pass tabicl=PATH"),
        (f"tabfm={weights}", "'tabfm' is not one of tabicl, tabpfn, lightpfn"),
        (f"tabicl={tmp_path}/none.ckpt", "no checkpoint at .* never downloaded"),
        (str(tmp_path / "none"), "not a folder"),
        (str(tmp_path / "empty"), "Pass NAME=PATH"),
    ):
        with pytest.raises(ValueError, match=message):
            find_checkpoints([given])


@pytest.mark.parametrize("name", FOUNDATION_MODELS)
def test_a_model_reads_its_local_weights_and_all_rows_are_its_context(name, packages, weights):
    data = mixed_table(60)
    checkpoint = find_checkpoints([str(weights)])[name]
    model = METHODS[name](0, 60, 2, weights=checkpoint).fit(data.X, data.y)
    proba = model.predict_proba(data.X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert list(model.classes_) == ["no", "yes"]
    assert {path for path, _, _ in BUILT} == {str(checkpoint.path)}
    assert {device for _, device, _ in BUILT} == {"cpu"}
    assert [n for _, _, n in BUILT] == [40, 40, 40, 60]  # three folds for the temperature
    assert model[-1].choice_["checkpoint_sha256"] == [checkpoint.sha256]


def test_without_weights_or_package_a_line_says_what_is_wanted(packages, weights, monkeypatch):
    with pytest.raises(ValueError, match=r"--peer-weights tabpfn=PATH"):
        METHODS["tabpfn"](0, 10)
    monkeypatch.setitem(sys.modules, "tabpfn", None)
    with pytest.raises(ImportError, match=r"needs the package tabpfn: pip install tabpfn"):
        METHODS["tabpfn"](0, 10, weights=find_checkpoints([str(weights)])["tabpfn"])


def test_weights_that_went_away_are_not_fetched(packages, weights):
    checkpoint = find_checkpoints([str(weights)])["tabicl"]
    checkpoint.path.unlink()
    data = blobs(30)
    with pytest.raises(FileNotFoundError, match="is gone"):
        METHODS["tabicl"](0, 30, 3, weights=checkpoint).fit(data.X, data.y)


def test_compare_keeps_which_weights_made_a_row_and_mixes_none(packages, weights, tmp_path):
    options = {"progress": False, "seeds": [0], "out": tmp_path / "rows"}
    path = weights / "tabicl-classifier-v2.ckpt"
    compare([blobs()], ["tabicl"], peer_weights={"tabicl": path}, **options)
    (record,) = read_records(tmp_path / "rows")
    assert record.status == "ok"
    assert record.choice["checkpoint_sha256"] == [Checkpoint.of(path).sha256]
    path.write_bytes(b"other weights")
    with pytest.raises(RecordsError, match="other weights of tabicl"):
        compare([blobs()], ["tabicl"], peer_weights={"tabicl": path}, **options)
    with pytest.raises(ValueError, match="peer_weights has tabfm; known: tabicl"):
        compare([blobs()], ["tabicl"], peer_weights={"tabfm": path}, **options)
