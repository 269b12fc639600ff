"""The one loop on images: it learns with every switch, repeats, resumes, and never cheats."""

import warnings
from itertools import pairwise

import pytest
import torch

from nearwise.nn import build_network
from nearwise.training import TrainingRows, encode, encode_backbone, predict_head, train_embedder
from nearwise.training import embedder as embedder_module
from nearwise.training import steps as steps_module
from nearwise.training.embedder import EmbedderObjective
from nearwise.training.rows import Batch
from nearwise.training.schedule import parameter_groups
from tests.training.cases import blobs, same_weights, small_network, timeless, weights_of
from tests.training.image_cases import MEMORY, digits, few, image_network

pytest.importorskip("transformers")
AUGMENT = {"crop_padding": 1, "cutout": 2}
# What images alone have; the others are seen on tables, in test_loop.py.
SWITCHES = {
    "whole memory": {},
    "augmentation": {"augment": AUGMENT},
    "slow backbone": {"backbone_lr": 0.1},
    "bfloat16": {"precision": "bfloat16"},
}


def trained(**settings):
    network = image_network()
    result = train_embedder(
        network, digits(0, 160), digits(256, 304), few(**{"batch_size": 40, **settings}), seed=3
    )
    return network, result


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_learns_and_repeats_on_images(switch):
    network, result = trained(**SWITCHES[switch])
    again, repeated = trained(**SWITCHES[switch])
    assert same_weights(weights_of(network), weights_of(again))
    assert timeless(result.history) == timeless(repeated.history)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert result.best_value < 2.3026  # the NLL of ten equal classes


def test_only_the_batch_is_encoded_with_gradient_and_the_cache_follows_it(monkeypatch):
    network, rows = image_network(), digits()
    caches, with_gradient = [], []
    real = steps_module.compute_keys

    def spy(network, rows, batch, config, generator, cache, **options):
        step = real(network, rows, batch, config, generator, cache, **options)
        caches.append((cache.keys.clone(), batch.queries))
        return step

    monkeypatch.setattr("nearwise.training.embedder.compute_keys", spy)
    network.embedder.trunk.register_forward_hook(
        lambda module, given, out: with_gradient.append(len(out)) if out.requires_grad else None
    )
    train_embedder(network, rows, None, few(epochs=1), seed=0)
    assert sum(with_gradient) == len(rows)
    for (before, _), (after, queries) in pairwise(caches):
        changed = (before != after).any(dim=1).nonzero().flatten()
        assert torch.equal(changed, queries.sort().values)
        torch.testing.assert_close(after.norm(dim=1), torch.ones(len(rows)))


def test_augmentation_touches_queries_only(monkeypatch):
    given = []
    real = embedder_module.augment

    def spy(images, *rest, **options):
        given.append(len(images))
        return real(images, *rest, **options)

    monkeypatch.setattr(embedder_module, "augment", spy)
    config = few(epochs=1, cache_momentum=None, n_candidates=96, augment=AUGMENT)
    train_embedder(image_network(), digits(), digits(256, 304), config, seed=0)
    assert given == [64] * 4


def test_rows_keep_images_as_bytes_and_move_and_take():
    rows = digits()
    assert rows.are_images
    assert rows.x_num.dtype == torch.uint8
    taken = rows.take(torch.tensor([3, 1]))
    assert torch.equal(taken.x_num, rows.x_num[[3, 1]])
    assert rows.to("cpu").x_num.dtype == torch.uint8
    with pytest.raises(ValueError, match=r"uint8 images of shape \(n, c, h, w\)"):
        TrainingRows(rows.x_num.float(), rows.labels)
    with pytest.raises(ValueError, match="second_x_num has shape"):
        TrainingRows(rows.x_num, rows.labels, second_x_num=rows.x_num[:, :, :4])


def test_rows_of_the_other_kind_and_large_augmentation_are_named():
    with pytest.raises(ValueError, match="rows are images, but TableEmbedder takes columns"):
        columns = build_network({"embedder": small_network().embedder.config, "n_classes": 10})
        train_embedder(columns, digits(), None, few(), seed=0)
    with pytest.raises(ValueError, match="rows are columns, but ImageEmbedder takes images"):
        train_embedder(image_network(), blobs(), None, few(), seed=0)
    with pytest.raises(ValueError, match="cutout=8, but images have a side of 8"):
        train_embedder(image_network(), digits(), None, few(augment={"cutout": 8}), seed=0)


def test_head_and_stages_of_image_rows():
    network, rows = image_network(), digits()
    torch.testing.assert_close(predict_head(network, rows).exp().sum(dim=1), torch.ones(256))
    stages = encode_backbone(network, rows).stages
    assert list(stages) == ["stem", "stage1", "stage2", "stage3"]
    with pytest.raises(ValueError, match="Only an ImageEmbedder has stages"):
        encode_backbone(small_network(), blobs())


def test_half_precision_gives_nearly_the_same_keys_in_float32():
    network, rows = image_network(), digits()
    half = encode(network, rows, precision="bfloat16")
    assert half.dtype == torch.float32
    assert (half * encode(network, rows)).sum(dim=1).min() > 0.98


def test_a_fast_cnn_trains_with_channels_last_and_ends_without():
    options = {"backbone": "fast-cnn", "image_size": 16, "widths": [4, 8, 8], "dim": None}
    network, formats = image_network(**options), []
    network.embedder.backbone.blocks[0].conv1.register_forward_hook(
        lambda layer, *call: formats.append(
            layer.weight.is_contiguous(memory_format=torch.channels_last)
        )
    )
    train_embedder(network, digits(), None, few(epochs=1), seed=0)
    assert all(formats) and not network.embedder.backbone.blocks[0].conv1.training
    assert all(parameter.is_contiguous() for parameter in network.parameters())


def test_biases_of_batch_normalisation_train_at_their_own_rate_and_decay_as_weights():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 2)
    )
    groups = parameter_groups(model, 0.1, norm_bias_lr=64.0)
    found = {
        id(parameter): (group["lr_factor"], group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    assert found.pop(id(model[1].bias)) == (64.0, 0.1 / 64)
    assert found.pop(id(model[0].weight)) == found.pop(id(model[3].weight)) == (1.0, 0.1)
    assert set(found.values()) == {(1.0, 0.0)}


def test_backbone_trains_at_its_own_rate():
    network = image_network()
    groups = parameter_groups(network, 1e-4, 0.1)
    slow = {id(p) for group in groups if group["lr_factor"] == 0.1 for p in group["params"]}
    assert slow == {id(parameter) for parameter in network.embedder.backbone.parameters()}
    counted = sum(len(group["params"]) for group in groups)
    assert counted == len(list(network.parameters()))


def fail_above(module, limit, error):
    """Let a module fail as an accelerator does for more than `limit` images at a time."""

    def hook(_, given):
        if len(given[0]) > limit:
            raise error

    return module.register_forward_pre_hook(hook)


OUT_OF_MEMORY = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "mps": RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate"),
}


@pytest.mark.parametrize("device", OUT_OF_MEMORY)
def test_encoding_goes_on_in_smaller_chunks(device):
    network, rows = image_network(), digits()
    expected = encode(network, rows)
    handle = fail_above(network.embedder.trunk, 40, OUT_OF_MEMORY[device])
    with pytest.warns(UserWarning, match="encoding 256 rows at a time; went on with 32"):
        keys = encode(network, rows, chunk_size=256)
    torch.testing.assert_close(keys, expected)
    handle.remove()
    fail_above(network.embedder.trunk, 0, OUT_OF_MEMORY[device])
    with pytest.raises(type(OUT_OF_MEMORY[device])):
        encode(network, rows)


def test_other_errors_while_encoding_are_not_taken_for_memory():
    network = image_network()
    fail_above(network.embedder.trunk, 40, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        encode(network, digits())


@pytest.mark.usefixtures("plain_start")
@pytest.mark.filterwarnings("ignore:Out of memory")
def test_training_goes_on_in_pieces_and_says_so():
    network = image_network()
    fail_above(network.embedder.trunk, 20, OUT_OF_MEMORY["cuda"])
    with pytest.warns(UserWarning, match="step of 64 rows; batches go on in 4 pieces"):
        result = train_embedder(network, digits(), None, few(), seed=0)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fail_above(network.embedder.trunk, 1, OUT_OF_MEMORY["cuda"])
        with pytest.raises(torch.OutOfMemoryError):
            train_embedder(network, digits(), None, few(epochs=1), seed=0)


def test_gradients_of_pieces_add_up_to_those_of_the_batch():
    rows, weight = digits(), torch.rand(256)
    rows = TrainingRows(rows.x_num, rows.labels, sample_weight=weight)
    batch = Batch(torch.arange(64), torch.arange(64, 256))
    gradients, parts = [], []
    for n_pieces in (1, 4):
        network = image_network(projection_norm="layer").eval()  # no statistics of the batch
        config = few(ce_weight=1.0, **{**MEMORY, "cache_momentum": None})
        objective = EmbedderObjective(network, rows, None, config)
        objective.n_pieces = n_pieces
        parts.append(objective.gradients(batch, torch.Generator(), 0, torch.Tensor.backward))
        gradients.append([parameter.grad for parameter in network.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
    for name in ("loss", "knn", "ce"):
        torch.testing.assert_close(parts[0][name], parts[1][name])
