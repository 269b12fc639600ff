"""Encoders that experiments compare, encoders by their text, and stored features."""

import numpy as np
import pytest
import torch
from nearwise_lab.nn.field import make_perceiver
from nearwise_lab.probing import (
    EmbedderEncoder,
    Patches,
    Pixels,
    RandomInit,
    SparsePoints,
    StoredFeatures,
    make_probe,
    open_encoder,
)

from nearwise.estimators import AttnKNNClassifier
from nearwise.nn import ImageEmbedder, lite0
from nearwise.probes import TransformersEncoder, extract_features
from tests.estimators.photograph_cases import install_weights, photographs
from tests.probes.cases import Convolution, images
from tests.probes.test_features import (
    test_what_an_image_gives_depends_on_neither_batch_nor_order,
)
from tests.probes.test_pretrained import saved_vit

__all__ = ["test_what_an_image_gives_depends_on_neither_batch_nor_order"]
ENCODERS = {
    "pixels": Pixels((8, 8), 1),
    "patches": Patches(4, (8, 8), 1),
    "points": SparsePoints((8, 8), 1),
    "random": RandomInit(Convolution),
}


@pytest.fixture(params=ENCODERS)
def encoder(request, context):
    if request.param == "random" and context != "full":
        pytest.skip("a convolution sees no context")
    return ENCODERS[request.param]


def test_pixels_and_patches_hold_the_image_and_points_their_places():
    x = torch.rand(2, 3, 6, 4)
    pixels = Pixels((6, 4), 3).encode(x)
    assert torch.equal(pixels.transpose(1, 2).reshape(2, 3, 6, 4), x)
    patches = Patches(2, (6, 4), 3).encode(x)
    assert torch.equal(patches[1, 3].reshape(3, 2, 2), x[1, :, 2:4, 2:4])  # second row, second
    points = SparsePoints((6, 4), 3).encode(x)
    assert points[0, 0, :2].tolist() == [-1, -1]
    assert points[0, 3, :2].tolist() == [1, -1]  # x first: the end of the first row
    assert torch.equal(points[0, 4 * 2 + 1, 2:], x[0, :, 2, 1])


def test_points_of_a_context_are_those_pixels_and_unseen_pixels_are_black():
    x = torch.rand(1, 1, 3, 3) + 0.5
    context = torch.tensor([[1, 5]])
    assert torch.equal(SparsePoints((3, 3), 1).encode(x, context)[0, :, 2], x.flatten()[context[0]])
    seen = Pixels((3, 3), 1).encode(x, context)[0, :, 0]
    assert (seen > 0).nonzero().flatten().tolist() == [1, 5]


def test_random_init_is_decided_by_its_seed_and_leaves_torch_as_it_was():
    before = torch.get_rng_state()
    one, same, other = (RandomInit(Convolution, seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


def test_features_in_another_order_than_the_data_set_are_refused(tmp_path):
    X, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
    np.savez(tmp_path / "right.npz", X=X, y=y)
    np.savez(tmp_path / "rolled.npz", X=X, labels=np.roll(y, 1))
    StoredFeatures.read(tmp_path / "right.npz").take(np.arange(30), y)
    with pytest.raises(ValueError, match=r"30 of 30 labels .* first that of row 0: 2 and 0"):
        StoredFeatures.read(tmp_path / "rolled.npz").take(np.arange(30), y)


def test_stored_features_are_read_from_files(tmp_path):
    X = np.arange(12.0).reshape(6, 2)
    np.save(tmp_path / "whole.npy", X)
    np.savez(tmp_path / "parts.npz", train=X[:4], test=X[4:])
    np.savez(tmp_path / "strange.npz", a=X)
    for name in ("whole.npy", "parts.npz"):
        stored = StoredFeatures.read(tmp_path / name)
        assert stored.take([5, 0], np.array([1, 2])).X.tolist() == [[10, 11], [0, 1]]
    with pytest.raises(ValueError, match="Name the array of all rows X"):
        StoredFeatures.read(tmp_path / "strange.npz")
    with pytest.raises(ValueError, match="6 rows of stored features, and the data set has row 9"):
        stored.take([9], np.array([1]))


def test_an_embedder_gives_its_keys():
    pytest.importorskip("transformers")
    embedder = ImageEmbedder("resnet-small", dim=7, image_size=8, channels=1)
    x = images(5, side=8)
    X = extract_features(EmbedderEncoder(embedder), x).X
    embedder.eval()
    with torch.no_grad():
        keys = embedder(torch.from_numpy(x).movedim(3, 1), None)
    assert np.allclose(X, keys.numpy(), atol=1e-5)


def test_texts_name_encoders(tmp_path):
    assert isinstance(open_encoder("patches:4", (8, 8), 1), Patches)
    random = open_encoder("random:digits", (8, 8), 1, seed=3)
    assert isinstance(random, RandomInit)
    field = make_perceiver("digits", random_state=0)
    field.save(tmp_path / "field")
    loaded = open_encoder(str(tmp_path / "field"), (8, 8), 1)
    x = images(2, side=8)
    assert np.array_equal(extract_features(loaded, x).X, extract_features(field, x).X)
    vit = open_encoder(saved_vit(tmp_path / "vit"), (8, 8), 1)
    assert isinstance(vit, TransformersEncoder)


def test_the_network_of_photographs_is_an_encoder_by_its_name(tmp_path, monkeypatch):
    install_weights(monkeypatch, tmp_path)
    encoder = open_encoder("efficientnet-lite0", (72, 72), 3)
    X, y = photographs(40)
    found = extract_features(encoder, X)
    pixels = torch.from_numpy(X).movedim(3, 1)
    expected = lite0.lite0()(pixels / 255).mean(dim=(2, 3))
    np.testing.assert_allclose(found.X, expected.numpy(), atol=1e-4)
    assert found.meta["tokens"] == 16
    model = AttnKNNClassifier(preset="instant", random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    of_model = extract_features(open_encoder(str(tmp_path / "model"), (72, 72), 3), X)
    np.testing.assert_array_equal(of_model.X, found.X)


def test_folders_that_hold_no_encoder_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        open_encoder(str(tmp_path), (8, 8), 1)
    with pytest.raises(ValueError, match="There is no file of features"):
        open_encoder(str(tmp_path / "x.npz"), (8, 8), 1)
    with pytest.raises(ValueError, match="'random:digit' names none of the presets original"):
        open_encoder("random:digit", (8, 8), 1)
    with pytest.raises(ValueError, match="do not fill images"):
        open_encoder("patches:4", (6, 6), 1)
    with pytest.raises(ValueError, match="'patches:-1' names no size"):
        open_encoder("patches:-1", (8, 8), 1)


def test_files_that_hold_no_features_are_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", X=np.zeros((50, 3)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:400])
    (tmp_path / "text.npz").write_text("hello")
    for name in ("cut.npz", "text.npz"):
        with pytest.raises(ValueError, match=r"not an npy or npz file of numbers, or was cut"):
            StoredFeatures.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"Stored features are <U1, no numbers"):
        StoredFeatures([["a", "b"]])


def test_unordered_tokens_get_no_positions():
    assert make_probe("transformer", ordered=False).positions is False
    assert make_probe("transformer").positions is True


def test_points_of_a_context_reach_a_neural_field():
    field = make_perceiver("digits", random_state=0)
    x = images(6, side=8)
    whole, some, other = (
        extract_features(field, x, context=c, draw=d).X
        for c, d in (("full", 0), ("0.2", 0), ("0.2", 1))
    )
    assert not np.allclose(whole, some) and not np.allclose(some, other)
