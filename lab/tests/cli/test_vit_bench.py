"""Time and memory of layers on the command line."""

import re

import pytest
import torch

FEW = ("--tokens", 26, "--layers", "KNNAttention", "--repeats", 2, "--batch", 1, "--device", "cpu")


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_layers_are_timed_against_torchs_own_attention(nearwise):
    result = nearwise("vit", "bench", *FEW, "--no-memory")
    assert result.exit_code == 0
    assert "B=1 N=26" in result.out
    dense, knn = (
        re.findall(r"[\d.]+", result.out.partition(name)[2].splitlines()[0])
        for name in ("MultiHeadAttention", "KNNAttention")
    )
    assert dense[2] == dense[5] == "1.00"
    assert len(knn) == 6 and all(float(number) >= 0 for number in knn)


@pytest.mark.slow
def test_memory_stands_beside_the_times(nearwise):
    result = nearwise("vit", "bench", *FEW)
    assert result.exit_code == 0
    assert "both MiB" in result.out


def test_mistakes_are_named(nearwise):
    for arguments, message in (
        (("--layers", "KNAttention"), "Did you mean 'KNNAttention'"),
        (("--tokens", "8,x"), "must be positive numbers"),
        (("--tokens", "5"), "n_neighbors=9 must lie between 1 and the 5 tokens"),
        (("--tokens", "16", "--heads", 5), "does not divide --dim 192"),
        (("--tokens", "16", "--repeats", 1), "--repeats 1 must be at least 2"),
        (("--threads", 0), "--threads 0 must be at least 1"),
    ):
        result = nearwise("vit", "bench", "--device", "cpu", *arguments)
        assert result.exit_code == 2
        assert message in result.err
