"""The fast convolutional network: whitened patches, any small image, rebuilt without its data."""

import pytest
import torch
from torch.nn import functional as F

from nearwise.nn import FastCNN, ImageEmbedder, NeighborNetwork, build_network, network_config

WIDTHS = (8, 12, 16)


def images(n=6, channels=3, height=32, width=None, seed=0):
    """Images whose neighboring pixels are alike, as in photographs."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 6, 6, generator=generator)
    smooth = F.interpolate(coarse, (height, width or height), mode="bilinear")
    noise = 0.1 * torch.rand(smooth.shape, generator=generator)
    return (255 * (0.9 * smooth + noise)).to(torch.uint8)


def small(**options):
    settings = {"backbone": "fast-cnn", "widths": WIDTHS, "normalize": False, **options}
    return ImageEmbedder(**settings).eval()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(9, 9), (17, 40), (28, 28), (32, 32), (64, 64)])
def test_keys_have_the_last_width_and_stages_those_of_the_blocks(size, channels):
    embedder = small(image_size=size, channels=channels)
    given = images(channels=channels, height=size[0], width=size[1])
    embedder.fit_inputs(given)
    vector, stages = embedder.vector_and_stages(given)
    assert {name: values.shape for name, values in stages.items()} == {
        f"block{number}": (len(given), width) for number, width in enumerate(WIDTHS, start=1)
    }
    keys = embedder(given)
    assert keys.shape == (len(given), embedder.dim) == (len(given), WIDTHS[-1])
    torch.testing.assert_close(keys, embedder.key_of_vector(vector))
    assert torch.isfinite(keys).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_layer_whitens_patches_of_training_images(channels):
    embedder = small(image_size=16, channels=channels)
    given = images(60, channels, 16)
    embedder.fit_inputs(given)
    layer = embedder.backbone.whiten
    with torch.no_grad():
        seen = layer(embedder.embed(given)).transpose(0, 1).flatten(1)
    half = len(seen) // 2
    torch.testing.assert_close(seen[:half], -seen[half:])
    second_moment = seen[:half] @ seen[:half].T / seen.shape[1]
    # 5e-4 is added to each variance, so that faint components stay faint
    expected = torch.diagonal(second_moment)
    torch.testing.assert_close(second_moment, torch.diag(expected), atol=2e-3, rtol=0)
    assert expected.max() <= 1.001 and expected[0] > 0.99
    assert not layer.weight.requires_grad


def test_the_first_layer_is_the_same_for_any_number_of_threads():
    pixels, threads, found = torch.randn(2_000, 3, 16, 16), torch.get_num_threads(), []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            network = FastCNN(3)
            network.fit_inputs(pixels)
            assert torch.get_num_threads() == number
            found.append(network.whiten.weight)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_the_bias_of_the_first_layer_is_trained_at_first_alone():
    embedder = small(image_size=16)
    bias = embedder.backbone.whiten.bias
    for epoch, expected in ((1, True), (3, True), (4, False), (1, True)):
        embedder.begin_epoch(epoch)
        assert bias.requires_grad is expected


def test_a_network_is_rebuilt_from_its_description_without_images():
    network = NeighborNetwork(small(image_size=16), 3, head=True).eval()
    network.embedder.fit_inputs(images(height=16))
    again = build_network(network_config(network)).eval()
    again.load_state_dict(network.state_dict())
    given = images(height=16, seed=1)
    assert torch.equal(network(given).logits, again(given).logits)


def test_a_wanted_width_of_the_key_brings_a_projection():
    assert small(image_size=16, dim=5)(images(height=16)).shape == (6, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 8}, "at least 9 pixels per side, got 8 x 8"),
        ({"widths": ()}, "one positive number of channels per block"),
        ({"widths": (8, 0)}, "one positive number of channels per block"),
        ({"pretrained": True}, "no ImageNet weights for 'fast-cnn'"),
        ({"backbone": "resnet-small"}, r"widths=.* Leave them out for 'resnet-small'"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_it_needs_no_other_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert FastCNN(1, WIDTHS)(torch.zeros(2, 1, 28, 28)).shape == (2, 16)
    assert small(image_size=28)(images(height=28)).shape == (6, 16)
