"""What a frozen backbone gives, on disk: found again by content, and made anew if torn."""

import pytest
import torch

from nearwise.training import (
    TrainingRows,
    cached_backbone,
    encode_backbone,
)
from tests.training.image_cases import digits, image_network

pytest.importorskip("transformers")


@pytest.fixture
def counted(monkeypatch):
    """How often features were really computed."""
    calls = []

    def spy(*args, **options):
        calls.append(args)
        return encode_backbone(*args, **options)

    monkeypatch.setattr("nearwise.training.encoding.encode_backbone", spy)
    return calls


def rows():
    return digits(0, 40)


def test_second_time_comes_from_the_disk_bit_for_bit(tmp_path, counted):
    network = image_network()
    features = encode_backbone(network, rows())
    for _ in range(2):
        stored = cached_backbone(network, rows(), tmp_path)
        assert torch.equal(stored.vectors, features.vectors)
        assert list(stored.stages) == ["stem", "stage1", "stage2", "stage3"]
        for name, stage in features.stages.items():
            assert torch.equal(stored.stages[name], stage)
    assert len(counted) == 1


def test_labels_ids_and_projection_do_not_matter(tmp_path, counted):
    cached_backbone(image_network(), rows(), tmp_path)
    other = image_network()
    with torch.no_grad():
        next(other.embedder.trunk.projection.parameters()).add_(1.0)
    cached_backbone(other, TrainingRows(rows().x_num, torch.zeros(40).long()), tmp_path)
    assert len(counted) == 1


@pytest.mark.parametrize("change", ["weights", "rows"])
def test_features_of_other_content_are_never_taken(tmp_path, counted, change):
    network, given = image_network(), rows()
    cached_backbone(network, given, tmp_path)
    if change == "weights":
        with torch.no_grad():
            next(network.embedder.backbone.parameters()).flatten()[0].add_(1e-3)
    else:
        given = TrainingRows(given.x_num.flip(3), given.labels)
    found = cached_backbone(network, given, tmp_path)
    assert len(counted) == 2
    assert torch.equal(found.vectors, encode_backbone(network, given).vectors)
