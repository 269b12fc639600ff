"""Embeddings on disk: found again by content, never those of other weights, made anew if torn."""

import warnings

import pytest
import torch

from nearwise.training import (
    TrainingRows,
    cached_backbone,
    cached_encode,
    encode,
    encode_backbone,
    keys_of_features,
)
from tests.training.cases import blobs, small_network
from tests.training.image_cases import digits, image_network


@pytest.fixture
def counted(monkeypatch):
    """How often keys were really computed."""
    calls = []

    def spy(*args, **options):
        calls.append(args)
        return encode(*args, **options)

    monkeypatch.setattr("nearwise.training.encoding.encode", spy)
    return calls


def test_second_time_comes_from_the_disk_bit_for_bit(tmp_path, counted):
    network, rows = small_network(categories=True), blobs(categories=True)
    first = cached_encode(network, rows, tmp_path)
    again = cached_encode(network, rows, tmp_path)
    assert len(counted) == 1
    assert torch.equal(first, again)
    assert torch.equal(first, encode(network, rows))


def test_labels_and_ids_do_not_matter(tmp_path, counted):
    network, rows = small_network(), blobs()
    cached_encode(network, rows, tmp_path)
    cached_encode(network, TrainingRows(rows.x_num, 1 - rows.labels.clamp(max=1)), tmp_path)
    assert len(counted) == 1


@pytest.mark.parametrize("change", ["weights", "rows", "categories", "precision"])
def test_keys_of_other_content_are_never_taken(tmp_path, counted, change):
    network, rows = small_network(categories=True), blobs(categories=True)
    cached_encode(network, rows, tmp_path)
    precision = "float32"
    if change == "weights":
        with torch.no_grad():
            next(network.embedder.parameters()).flatten()[0].add_(1e-3)
    elif change == "rows":
        rows = TrainingRows(rows.x_num + 1e-3, rows.labels, rows.x_cat)
    elif change == "categories":
        rows = TrainingRows(rows.x_num, rows.labels, rows.x_cat.flip(0))
    else:
        precision = "bfloat16"
    keys = cached_encode(network, rows, tmp_path, precision=precision)
    assert len(counted) == 2
    assert torch.equal(keys, encode(network, rows, precision=precision))


@pytest.mark.parametrize("damage", ["tensors", "manifest", "foreign"])
def test_damaged_entry_is_made_anew_with_a_warning(tmp_path, counted, damage):
    network, rows = small_network(), blobs()
    keys = cached_encode(network, rows, tmp_path)
    (entry,) = tmp_path.iterdir()
    if damage == "tensors":
        (file,) = entry.glob("tensors-*")
        file.write_bytes(file.read_bytes()[:-1])
    else:
        (entry / "manifest.json").write_text("{" if damage == "manifest" else "{}")
    with pytest.warns(UserWarning, match="cannot be used and are computed again"):
        assert torch.equal(cached_encode(network, rows, tmp_path), keys)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(cached_encode(network, rows, tmp_path), keys)
    assert len(counted) == 2


def test_folder_that_cannot_be_written_costs_a_warning_only(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nearwise.memory.computed.write_folder", full)
    network, rows = small_network(), blobs()
    with pytest.warns(UserWarning, match="Embeddings are not kept"):
        assert torch.equal(cached_encode(network, rows, tmp_path), encode(network, rows))


def test_keys_of_images_and_what_their_backbone_gives_are_kept_apart(tmp_path):
    pytest.importorskip("transformers")
    network, rows = image_network(), digits(0, 40)
    keys, features = cached_encode(network, rows, tmp_path), encode_backbone(network, rows)
    for _ in range(2):
        stored = cached_backbone(network, rows, tmp_path)
        assert torch.equal(stored.vectors, features.vectors)
        for name, stage in features.stages.items():
            assert torch.equal(stored.stages[name], stage)
    assert list(stored.stages) == ["stem", "stage1", "stage2", "stage3"]
    assert torch.equal(cached_encode(network, rows, tmp_path), keys)
    assert len(list(tmp_path.iterdir())) == 2


def test_one_pass_gives_the_keys_and_the_stages_of_two():
    network, rows = image_network(), digits()
    features = encode_backbone(network, rows)
    assert torch.equal(keys_of_features(network, features, rows), encode(network, rows))
    with torch.no_grad():
        stages = network.eval().embedder.vector_and_stages(rows.x_num)[1]
    assert features.stages.keys() == stages.keys()
    for name in stages:
        torch.testing.assert_close(features.stages[name], stages[name])
