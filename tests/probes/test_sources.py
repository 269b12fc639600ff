"""What `extract_features` takes: modules, models of transformers, and functions."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from nearwise import progress_bar
from nearwise.probes import FunctionEncoder, extract_features
from tests.probes.cases import images


class Network(nn.Module):
    """Vectors of width 5 from images of one channel, with parts that training mode changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))
        self.dropout = nn.Dropout(0.5)
        self.calls = []

    def forward(self, x):
        modes = {part.training for part in self.modules()}
        self.calls.append((modes, torch.is_grad_enabled(), x.device, x.dtype))
        return self.dropout(self.layers(x))

    def tokens(self, x):
        return self(x)[:, :, None]


def test_a_bare_module_runs_in_eval_mode_without_gradient_and_gets_its_modes_back():
    network = Network().train()
    network.layers.eval()  # frozen statistics inside a module that trains
    modes = [part.training for part in network.modules()]
    x = images(9, side=8)
    found = extract_features(network, x, np.arange(9), batch_size=4)
    assert {tuple(call[0]) for call in network.calls} == {(False,)}
    assert not any(call[1] for call in network.calls)
    assert [part.training for part in network.modules()] == modes
    with torch.no_grad():
        wanted = network.eval()(torch.from_numpy(x).movedim(3, 1) / 255)
    assert np.allclose(found.X, wanted.numpy(), atol=1e-6)
    assert found.y.tolist() == list(range(9))
    assert found.meta["tokens"] == 1 and found.meta["token_dim"] == 5


def test_modes_come_back_after_an_error():
    network = Network().train()
    with pytest.raises(ValueError, match=r"Network raised RuntimeError.*batch of shape \(2, 1, 9"):
        extract_features(network, images(3, side=9))
    assert all(part.training for part in network.modules())


def test_a_method_brings_its_module():
    network = Network().train()
    X = extract_features(network.tokens, images(3, side=8), pool=None).X
    assert X.shape == (3, 5, 1)
    assert {tuple(call[0]) for call in network.calls} == {(False,)}
    assert all(part.training for part in network.modules())


def test_batches_go_where_the_weights_are_or_where_they_are_wanted():
    network = Network()
    with pytest.raises(ValueError, match="device='nowhere' is not known"):
        extract_features(network, images(3, side=8), device="nowhere")
    moves = []
    network.to = moves.append
    extract_features(network, images(3, side=8))
    assert moves == []
    extract_features(network, images(3, side=8), device="cpu")
    assert moves == [torch.device("cpu")]
    elsewhere = Network().to("meta")  # a device that every machine has, without values
    assert FunctionEncoder(elsewhere, torch.zeros(2, 1, 8, 8)).token_dim == 5
    assert elsewhere.calls[-1][2].type == "meta"


def test_a_function_gets_floats_of_pixels_and_all_else_as_it_is():
    seen = []

    def function(x):
        seen.append((x.dtype, tuple(x.shape[1:])))
        return x.float().flatten(1)

    pixels = images(4, side=6)
    X = extract_features(function, pixels).X
    assert seen[-1] == (torch.float32, (1, 6, 6))
    assert np.allclose(X, pixels.reshape(4, -1) / 255)
    normalized = np.random.default_rng(0).normal(size=(4, 3, 6, 6))  # no pixels in [0, 1]
    assert np.allclose(extract_features(function, normalized).X, normalized.reshape(4, -1))
    assert seen[-1] == (torch.float32, (3, 6, 6))
    ids = np.arange(12).reshape(4, 3)
    assert np.array_equal(extract_features(function, ids).X, ids)
    assert seen[-1] == (torch.int64, (3,))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        extract_features(function, normalized, context="0.5")  # contexts hide pixels
    with pytest.raises(ValueError, match="dtype <U1"):
        extract_features(function, ["a", "b"])


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (lambda x: x, r"returned shape \(2, 1, 6, 6\) for a batch of shape \(2, 1, 6, 6\)"),
        (lambda x: x.sum(), r"returned shape \(\) for a batch"),
        (lambda x: x[:1].flatten(1), r"returned shape \(1, 36\) for a batch of shape \(2, "),
        (lambda x: (x, x), "returned a tuple"),
        (lambda x: {"logits": x, "loss": x}, "returned a dict of logits, loss"),
    ],
)
def test_another_shape_is_named(output, message):
    with pytest.raises(ValueError, match=message):
        extract_features(output, images(5))


@pytest.mark.parametrize("source", ["facebook/dinov2-small", 3, nn.Identity])
def test_what_is_no_encoder_is_refused(source):
    source = source() if isinstance(source, type) else source
    if isinstance(source, nn.Module):
        source.encode = lambda x: x  # no token_dim
    with pytest.raises(ValueError, match=r"is not an encoder\. Pass an encoder"):
        extract_features(source, images(3))


def vit(transformers):
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        image_size=16, patch_size=8, hidden_dropout_prob=0.5,
    )  # fmt: skip
    return transformers.ViTModel(config)


def test_of_a_transformers_model_the_last_hidden_state_is_taken():
    transformers = pytest.importorskip("transformers")
    model = vit(transformers).train()
    pixels = np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float32)
    X = extract_features(model, pixels, pool=None).X
    assert model.training
    with torch.no_grad():
        output = model.eval()(torch.from_numpy(pixels))
    assert np.allclose(X, output.last_hidden_state.numpy(), atol=1e-5)
    assert np.allclose(extract_features(model, pixels, pool="cls").X, X[:, 0], atol=1e-6)
    assert np.allclose(extract_features(model, pixels).X, X.mean(axis=1), atol=1e-6)
    pooled = extract_features(lambda x: model(x).pooler_output, pixels).X
    assert np.allclose(pooled, output.pooler_output.numpy(), atol=1e-5)


def test_a_map_of_a_transformers_model_is_read_row_by_row_and_has_no_first_token():
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=4, hidden_sizes=[4, 6], depths=[1, 1], layer_type="basic"
    )
    model = transformers.ResNetModel(config).eval()
    x = images(3, side=32, channels=3)
    X = extract_features(model, x, pool=None).X
    with torch.no_grad():
        last = model(torch.from_numpy(x).movedim(3, 1) / 255).last_hidden_state
    assert np.allclose(X, last.flatten(2).transpose(1, 2).numpy(), atol=1e-5)
    with pytest.raises(ValueError, match='no token of the whole image for pool="cls"'):
        extract_features(model, x, pool="cls")


def test_an_output_without_tokens_is_named_with_its_fields():
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTForImageClassification(vit(transformers).config)
    with pytest.raises(ValueError, match="returned a ImageClassifierOutput of logits"):
        extract_features(model, images(3, side=16, channels=3))


def test_a_module_is_cached_by_what_it_gives(tmp_path):
    x = images(5, side=8)
    network = Network()
    first = extract_features(network, x, cache=tmp_path).X
    calls = len(network.calls)
    assert np.array_equal(extract_features(network, x, cache=tmp_path).X, first)
    assert len(network.calls) == calls + 2  # its example and its fingerprint, no batch
    extract_features(Network(), x, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("silent_seconds", "progress", "shown"), [(0.0, True, True), (60, True, False), (0, False, 0)]
)
def test_a_bar_is_shown_on_a_terminal_once_it_takes_long(
    monkeypatch, silent_seconds, progress, shown
):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_bar, "_SILENT_SECONDS", silent_seconds)
    extract_features(lambda x: x.flatten(1), images(6), batch_size=2, progress=progress)
    assert ("extracting features" in terminal.getvalue()) == bool(shown)
