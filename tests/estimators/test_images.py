"""Images as rows: what is taken, views, several depths, names of files, and the way through."""

import copy
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from nearwise.data import load_image_folder
from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.inputs.images import (
    EncodedImages,
    ImageEncoder,
    check_images,
    image_augmentation,
    image_backbone,
    image_config,
    image_views,
)
from nearwise.estimators.inputs.rows import KnownColumns, Rows
from nearwise.training import Augmentation
from tests.estimators.cases import CHEAP, attn_knn, reopened
from tests.estimators.image_cases import BRIEF, QUICK, named_folder, patches


@pytest.fixture(scope="module")
def data():
    return patches()


@pytest.fixture(scope="module")
def fitted(data):
    return attn_knn(**QUICK, tta=("shift",)).fit(*data)


def test_a_classifier_of_images_tells_classes_apart_and_shows_the_images(data, fitted):
    images, labels = patches(seed=1)
    assert fitted.score(images, labels) > 0.9
    explanation = fitted.explain(images[:1], 2)[0]
    neighbor = explanation.neighbors[0]
    np.testing.assert_array_equal(neighbor.row["image"], data[0][neighbor.id])
    assert set(fitted.memory_.keys) >= {"features", "trained", "stage1"}
    assert fitted.report_.columns == {"image": "8 x 8 x 1 uint8"}


def test_a_list_of_images_is_their_array(data, fitted):
    images, _ = patches(seed=1)
    expected = fitted.predict_proba(images[:3])
    objects = np.empty(3, dtype=object)
    objects[:] = [*images[:3]]
    for several in ([*images[:3]], objects, tuple(torch.from_numpy(images[:3]))):
        np.testing.assert_array_equal(fitted.predict_proba(several), expected)
    with pytest.raises(ValueError, match="image 0 is 8 x 8 x 1, image 1 is 7 x 8 x 1"):
        fitted.predict([images[0], images[1][1:]])


def test_images_are_fitted_again_to_what_is_remembered(data):
    model = attn_knn(**BRIEF, tta=("flip",)).fit(*data)
    assert {"features"} <= set(model.report_.choice["spaces"]) <= set(model.memory_.keys)
    model.remove(model.memory_.ids[:20])
    model.refresh()
    assert len(model.memory_) == len(data[0]) - 20
    assert int(model._predictor.judged.sum()) == model.report_.choice["held_out"] == 25
    assert model.score(*patches(seed=1)) > 0.8


@pytest.mark.parametrize(
    ("size", "backbone"),
    [
        ((8, 8), "resnet-small"),
        ((16, 16), "resnet-small"),
        ((17, 17), "fast-cnn"),
        ((28, 64), "fast-cnn"),
        ((16, 40), "resnet-small"),
        ((12, 80), "resnet18"),
        ((65, 64), "resnet18"),
    ],
)
def test_the_size_of_images_decides_the_network(size, backbone):
    assert image_backbone(ImageEncoder(*size, 3), "auto") == backbone
    assert image_backbone(ImageEncoder(*size, 3), "resnet50") == "resnet50"


def test_small_photographs_train_the_fast_network_by_default(tmp_path):
    images, labels = patches(160, side=20, channels=3)
    model = attn_knn(random_state=0, train={"epochs": 6}).fit(images, labels)
    assert model.report_.choice["embedder"] == "fast-cnn"
    assert set(model.memory_.keys) == {"features", "block2", "block1", "trained"}
    new, truth = patches(seed=1, side=20, channels=3)
    assert model.score(new, truth) > 0.9
    again = reopened(model, tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(new), model.predict_proba(new))


def test_few_images_of_the_fast_network_are_seen_more_often_in_smaller_batches():
    def settings(n_rows, channels=3, **options):
        encoder = ImageEncoder(32, 32, channels)
        options = {"device": "cpu", **options}
        return image_config(encoder, "fast-cnn", n_rows, **options)

    many, few = settings(45_000), settings(600)
    assert many["epochs"] == 16 and many["batch_size"] == 1000
    assert few["epochs"] > 16 and few["batch_size"] == 32
    for found in (many, few, settings(45_000, epochs=3)):
        assert found["warmup_epochs"] == pytest.approx(0.23 * found["epochs"])
        assert found["lr"] / found["batch_size"] == pytest.approx(many["lr"] / 1000)
    assert many["augment"]["flip"] == "alternate"
    assert "flip" not in settings(600, channels=1)["augment"]  # a mirrored digit is another
    correcting = settings(45_000, correcting=True)
    assert correcting["epochs"] == 48 and settings(600, epochs=5, correcting=True)["epochs"] == 5
    assert correcting["augment"]["crop_padding"] > many["augment"]["crop_padding"]
    assert correcting["augment"]["flip"] == "alternate"


def test_an_explanation_is_of_the_merged_prediction_or_of_one_view(data, fitted):
    for views in (None, []):
        shown = fitted.explain(data[0][:5], None, views=views)
        expected = fitted.predict_proba(data[0][:5], views)
        np.testing.assert_allclose([e.proba for e in shown], expected)
        np.testing.assert_allclose(expected.sum(axis=1), 1)
        for explanation in shown:
            total = sum(n.weight for n in explanation.neighbors) + explanation.null_mass
            assert total == pytest.approx(1, abs=1e-5)


def test_settings_given_as_models_are_saved(data, tmp_path):
    settings = {**BRIEF, "train": {"epochs": 1, "augment": Augmentation(crop_padding=1)}}
    again = reopened(attn_knn(**settings).fit(*data), tmp_path / "model")
    assert again.settings.train["augment"]["crop_padding"] == 1


def test_the_memory_takes_new_images_of_a_new_class(fitted):
    model = copy.deepcopy(fitted)
    novel = np.full((12, 8, 8, 1), 250, dtype=np.uint8)
    novel[:, ::2, ::2] = 0
    before = len(model.memory_)
    model.add(novel, np.full(12, "grid"))
    assert len(model.memory_) == before + 12
    assert model.predict_proba(novel)[:, model.classes_ == "grid"].mean() > 0.3


def test_without_a_base_the_class_shares_stand_in_for_the_network(data, tmp_path):
    model = attn_knn(**BRIEF, estimator=None).fit(*data)
    base = model.query(data[0][:4]).parts.base_proba
    np.testing.assert_allclose(base, base[:1].repeat(4, axis=0))
    again = reopened(model, tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(data[0]), model.predict_proba(data[0]))


def test_colour_images_and_tensors_and_grey_without_a_channel_axis_are_taken():
    model = attn_knn(**QUICK, tta=["flip"]).fit(*patches(80, channels=3))
    images, labels = patches(80, channels=3, seed=1)
    assert model.score(torch.from_numpy(images), labels) > 0.9
    grey = np.zeros((3, 5, 6), dtype=np.uint8)
    assert check_images(grey).shape == (3, 5, 6, 1)


def test_a_folder_of_class_folders_is_read_with_its_labels(tmp_path, data):
    model = attn_knn(**QUICK).fit(named_folder(tmp_path / "known", len(data[0])))
    assert model.classes_.tolist() == ["down", "up"]
    new = named_folder(tmp_path / "new", 120, seed=1)
    assert (model.predict(new) == np.repeat(["down", "up"], 60)).mean() > 0.9
    with pytest.raises(ValueError, match="has its own labels"):
        model.fit(new, data[1])


def test_the_test_part_of_a_folder_is_not_trained_on(tmp_path):
    named_folder(tmp_path / "train")
    named_folder(tmp_path / "test", 20)
    model = attn_knn(**BRIEF).fit(tmp_path)
    assert len(model.memory_) == 100
    with pytest.raises(ValueError, match="is not a folder of images"):
        model.fit("cifar10")


def test_more_than_a_tenth_of_few_images_is_held_out_unless_told_otherwise():
    settings = {**BRIEF, "cv": "auto"}
    model = attn_knn(**settings).fit(*patches(50))
    assert model.report_.choice["held_out"] == 20  # as many are needed for head and temperatures


def test_images_and_tables_are_not_mixed_up(data, fitted):
    with pytest.raises(ValueError, match="was fitted on images; X holds none"):
        fitted.predict(np.zeros((3, 64)))
    table = attn_knn(**CHEAP, embedder="identity").fit(data[0].reshape(120, 64), data[1])
    with pytest.raises(ValueError, match="was fitted on a table; X holds images"):
        table.predict(data[0])


def test_views_stay_those_of_the_fit(data, fitted):
    before = fitted.predict_proba(data[0][:9])
    fitted.set_params(settings__tta=())
    np.testing.assert_array_equal(fitted.predict_proba(data[0][:9]), before)
    fitted.set_params(settings__tta=("shift",))


def test_a_hub_data_set_is_read_with_its_labels(data):
    datasets = pytest.importorskip("datasets")
    hub = datasets.Dataset.from_dict(
        {"picture": [Image.fromarray(image[..., 0]) for image in data[0]], "kind": data[1]},
        features=datasets.Features(
            {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["up", "down"])}
        ),
    )
    assert attn_knn(**QUICK).fit(hub).score(*patches(seed=1)) > 0.9


def test_flipping_twice_gives_the_image_back_and_shifts_move_by_a_sixteenth():
    pixels = np.random.default_rng(0).integers(0, 255, (2, 3, 32, 32), dtype=np.uint8)
    (once,) = image_views(EncodedImages(pixels), ("flip",))
    (twice,) = image_views(once, ("flip",))
    np.testing.assert_array_equal(twice.pixels, pixels)
    assert not np.array_equal(once.pixels, pixels)
    shifted = image_views(EncodedImages(pixels), ("shift",))
    assert len(shifted) == 4
    np.testing.assert_array_equal(shifted[0].pixels[..., 2:, 2:], pixels[..., :-2, :-2])
    np.testing.assert_array_equal(shifted[3].pixels[..., :-2, :-2], pixels[..., 2:, 2:])


def test_grey_images_are_never_mirrored_in_training():
    assert "flip" not in image_augmentation(ImageEncoder(28, 28, 1))
    assert image_augmentation(ImageEncoder(32, 32, 3))["flip"]


def test_images_of_another_size_are_refused(fitted):
    with pytest.raises(ValueError, match="9 x 8 x 1, the classifier was fitted on 8 x 8 x 1"):
        fitted.predict_proba(np.zeros((2, 9, 8, 1), dtype=np.uint8))


def test_only_arrays_of_three_or_four_axes_are_images():
    images = np.zeros((2, 3, 4, 1), dtype=np.uint8)
    given = [images, torch.from_numpy(images[..., 0]), np.zeros((2, 3)), [[1, 2]]]
    kinds = [Rows.given(one, KnownColumns()).encoder.kind for one in given]
    assert kinds == ["images", "images", "table", "table"]


def test_one_pass_of_the_backbone_gives_keys_and_depths(fitted):
    images, _ = patches(12, seed=1)
    (network,) = fitted._predictor.row_models.embedding.networks
    model = network.embedder.backbone.model
    passes = []
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    fitted.predict_proba(images, [])
    hook.remove()
    assert len(passes) == 1


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A small vision transformer in a folder of its own."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = transformers.ViTConfig(**sizes, intermediate_size=16, image_size=8, patch_size=4)
    folder = tmp_path_factory.mktemp("vit")
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    return folder


def test_what_a_frozen_backbone_makes_of_images_is_kept_and_predicts_the_same(vit, tmp_path):
    images, labels = patches(90)
    new, _ = patches(10, seed=1)
    settings = {**BRIEF, "embedder": str(vit)}
    settings["embedder_options"] = {"dim": 8, "frozen": True}
    plain = attn_knn(**settings).fit(images, labels).predict_proba(new)
    settings |= {"checkpoint_dir": tmp_path}
    folder = tmp_path / "frozen-backbones"
    kept = attn_knn(**settings).fit(images, labels)
    np.testing.assert_array_equal(kept.predict_proba(new), plain)

    passes = []
    for network in kept._predictor.row_models.embedding.networks:
        network.embedder.backbone.model.register_forward_hook(lambda *_: passes.append(1))
    n_kept = len(list(folder.iterdir()))
    np.testing.assert_array_equal(kept.predict_proba(new), plain)
    assert not passes
    # Another projection over the same backbone takes what is there.
    other = attn_knn(**{**settings, "random_state": 0, "calibration": None})
    other.fit(images, labels).predict_proba(new)
    assert len(list(folder.iterdir())) == n_kept


@pytest.mark.slow
def test_images_are_judged_by_the_ones_held_out_in_all_views_or_one(fitted, tmp_path):
    images, labels = patches(seed=1)
    noise = np.random.default_rng(0).integers(0, 256, images[:8].shape, dtype=np.uint8)
    held = int(fitted._predictor.judged.sum())
    for views in (None, []):
        chosen = fitted.predict_selective(images, coverage=0.9, views=views)
        assert chosen.n_calibration == held
        assert chosen.accepted.mean() > 0.5
        sets = fitted.predict_set(images, 0.8, views=views)
        assert sets[np.arange(len(labels)), np.searchsorted(fitted.classes_, labels)].mean() > 0.6
        odd, usual = (fitted.novelty_p_value(x, "distance", views=views) for x in (noise, images))
        assert odd.mean() < usual.mean()
    again = reopened(fitted, tmp_path / "model")
    np.testing.assert_array_equal(again.predict_set(images, 0.8), fitted.predict_set(images, 0.8))
    np.testing.assert_array_equal(again.novelty_score(noise), fitted.novelty_score(noise))


@pytest.fixture
def files(tmp_path):
    """Give a folder with twelve images without labels, and the images."""
    images, _ = patches(12, seed=1)
    folder = tmp_path / "new"
    folder.mkdir()
    for place, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(folder / f"{place:02}.png")
    return folder, images


def test_files_and_a_flat_folder_are_predicted_as_their_pixels_are(fitted, files):
    folder, images = files
    want = fitted.predict_proba(images)
    np.testing.assert_array_equal(fitted.predict_proba(folder), want)
    np.testing.assert_array_equal(fitted.predict_proba(str(folder)), want)
    some = [folder / "03.png", str(folder / "00.png")]
    np.testing.assert_allclose(fitted.predict_proba(some), want[[3, 0]], atol=1e-6)
    assert fitted.predict(folder / "02.png").tolist() == fitted.predict(images[2:3]).tolist()
    colored = folder / "color.png"
    Image.fromarray(images[0].repeat(3, axis=2)).save(colored)
    np.testing.assert_allclose(fitted.predict_proba([colored]), want[:1], atol=1e-6)


def test_files_that_cannot_be_predicted_are_named(fitted, files):
    folder, _ = files
    large = folder.parent / "large.png"
    Image.new("L", (9, 8)).save(large)
    with pytest.raises(ValueError, match=r"large\.png is 8 x 9.*data\.read_images"):
        fitted.predict([large])
    (folder / "05.png").write_bytes((folder / "05.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"05\.png"):
        fitted.predict(folder)
    with pytest.raises(FileNotFoundError, match="There is no image"):
        fitted.predict([folder / "none.png"])
    with pytest.raises(ValueError, match=r"notes\.txt is not an image"):
        fitted.predict([folder / "notes.txt"])
    with pytest.raises(ValueError, match="Image files alone have no labels"):
        AttnKNNClassifier().fit([folder / "00.png", folder / "01.png"])


def test_keys_are_those_that_neighbors_are_sought_with(fitted):
    images, _ = patches(5, seed=1)
    _, ids = fitted.kneighbors(images, 1)
    bank = fitted.memory_
    distance = torch.cdist(torch.from_numpy(fitted.keys(images)), bank.keys["features"])
    assert torch.equal(bank.ids[distance.argmin(dim=1)], torch.from_numpy(ids[:, 0]))
    assert fitted.keys(images, "trained").shape == (5, bank.keys["trained"].shape[1])
    with pytest.raises(ValueError, match="There is no space 'traned'"):
        fitted.keys(images, "traned")


def test_a_few_images_that_are_all_right_do_not_make_predictions_certain():
    model = attn_knn(**QUICK | {"cv": 0.4}).fit(*patches(60))
    assert model.predict(patches(60)[0]).tolist() == patches(60)[1].tolist()
    assert model.report_.temperature > 0.25  # the NLL alone has its minimum at e^-3


def pixels_of(name, root):
    with Image.open(root.parent / name) as image:
        return np.asarray(image)[..., None]


def test_a_neighbor_is_named_by_its_file_after_add_remove_save_and_load(tmp_path):
    first, more = named_folder(tmp_path / "first"), named_folder(tmp_path / "more", 6, seed=1)
    model = attn_knn(**BRIEF).fit(first)
    assert model.fitted_.target_name == "class"
    model.add(more)
    model.remove(model.memory_.ids[:3])
    model.add(*patches(2, seed=2))  # an array, whose rows have no name
    loaded = reopened(model, tmp_path / "model")
    assert len(loaded.fitted_.row_names) == len(loaded.memory_) == 100 + 6 - 3 + 2
    assert loaded.fitted_.row_names[-2:].tolist() == ["", ""]
    assert sum(name.startswith("more/") for name in loaded.fitted_.row_names) == 6
    seen = set()
    for why in loaded.explain(more, None):
        for neighbor in why.neighbors:
            name = neighbor.row.get("file")
            seen.add(name and name.partition("/")[0])
            if name is not None:
                np.testing.assert_array_equal(neighbor.row["image"], pixels_of(name, first))
                assert name.split("/")[1] == neighbor.label
    assert {"first", "more"} <= seen


def test_arrays_that_must_not_be_written_to_are_taken_without_a_warning():
    X, y = patches(100)
    X.flags.writeable = False
    model = attn_knn(**BRIEF)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not writable")
        model.fit(X, y).add(X[:3], y[:3])
        assert len(model.predict(X[:5])) == 5


def test_a_stream_of_data_sets_keeps_their_names(tmp_path):
    first, more = named_folder(tmp_path / "first"), named_folder(tmp_path / "more", 6, seed=1)
    model = attn_knn(**BRIEF).partial_fit(load_image_folder(first, image_size=8))
    assert all(name.startswith("first/") for name in model.fitted_.row_names)
    model.partial_fit(load_image_folder(more))
    assert model.fitted_.row_names[-6:].tolist() == sorted(load_image_folder(more).row_names)
    assert attn_knn(**BRIEF).fit(*patches(100)).fitted_.row_names is None
