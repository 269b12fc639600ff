"""Encoders with weights, and encoders by their text."""

import numpy as np
import pytest
import torch

from nearwise.nn import ImageEmbedder
from nearwise.nn.field import make_perceiver
from nearwise.probes import (
    EmbedderEncoder,
    Patches,
    RandomInit,
    StoredFeatures,
    TransformersEncoder,
    extract_features,
    load_encoder,
)
from tests.probes.cases import images

transformers = pytest.importorskip("transformers")


def saved_vit(folder):
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8,
    )  # fmt: skip
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    return str(folder)


def saved_resnet(folder):
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic"
    )
    transformers.ResNetModel(config).save_pretrained(folder)
    return str(folder)


def test_a_transformer_gives_all_its_tokens_and_the_one_of_the_image(tmp_path):
    encoder = TransformersEncoder(saved_vit(tmp_path / "vit"))
    assert (encoder.num_tokens, encoder.token_dim, encoder.has_cls) == (5, 12, True)
    x = images(3, side=16, channels=3)
    whole = extract_features(encoder, x, pool=None).X
    assert whole.shape == (3, 5, 12)
    assert np.allclose(extract_features(encoder, x, pool="cls").X, whole[:, 0], atol=1e-5)
    assert extract_features(encoder, images(2, side=9)).X.shape == (2, 12)  # grey, another size


def test_a_residual_network_gives_its_map_row_by_row(tmp_path):
    encoder = TransformersEncoder(saved_resnet(tmp_path / "resnet"), image_size=(32, 32))
    assert (encoder.token_dim, encoder.has_cls) == (6, False)
    x = torch.rand(1, 3, 32, 32)
    tokens = encoder.encode(x)
    last = encoder.backbone.model((x - encoder.mean) / encoder.std).last_hidden_state
    assert torch.allclose(tokens[0, 1], last[0, :, 0, 1], atol=1e-5)


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
    assert isinstance(load_encoder("patches:4", (8, 8), 1), Patches)
    random = load_encoder("random:digits", (8, 8), 1, seed=3)
    assert isinstance(random, RandomInit)
    field = make_perceiver("digits", random_state=0)
    field.save(tmp_path / "field")
    loaded = load_encoder(str(tmp_path / "field"), (8, 8), 1)
    x = images(2, side=8)
    assert np.array_equal(extract_features(loaded, x).X, extract_features(field, x).X)
    vit = load_encoder(saved_vit(tmp_path / "vit"), (8, 8), 1)
    assert isinstance(vit, TransformersEncoder)


def test_points_of_a_context_reach_a_neural_field():
    field = make_perceiver("digits", random_state=0)
    x = images(6, side=8)
    whole, some, other = (
        extract_features(field, x, context=c, draw=d).X
        for c, d in (("full", 0), ("0.2", 0), ("0.2", 1))
    )
    assert not np.allclose(whole, some) and not np.allclose(some, other)


def test_folders_that_hold_no_encoder_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no config\.json"):
        load_encoder(str(tmp_path), (8, 8), 1)
    with pytest.raises(ValueError, match="There is no file of features"):
        load_encoder(str(tmp_path / "x.npz"), (8, 8), 1)
    with pytest.raises(ValueError, match="'random:digit' names none of the presets original"):
        load_encoder("random:digit", (8, 8), 1)
    with pytest.raises(ValueError, match="'patches:-1' names no size"):
        load_encoder("patches:-1", (8, 8), 1)


def test_files_that_hold_no_features_are_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", X=np.zeros((50, 3)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:400])
    (tmp_path / "text.npz").write_text("hello")
    for name in ("cut.npz", "text.npz"):
        with pytest.raises(ValueError, match=r"no npy or npz file of numbers, or was cut short"):
            StoredFeatures.read(tmp_path / name)
    with pytest.raises(ValueError, match=r"Stored features are <U1, no numbers"):
        StoredFeatures([["a", "b"]])
