"""Encoders with weights."""

import numpy as np
import torch
import transformers

from nearwise.probes import TransformersEncoder, extract_features
from tests.probes.cases import images


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
