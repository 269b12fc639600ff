"""Parameters and FLOPs on the command line."""

import pytest

SMALL = ("--resize", 32, "--patch-size", 8, "--num-layers", 2)


def test_a_model_part_by_part(nearwise):
    result = nearwise("vit", "summary", "--layer", "KNNAttention", *SMALL)
    assert result.exit_code == 0
    header = next(line for line in result.out.splitlines() if "\tpatches" in line)
    parts = ["patches", "attention", "MLP", "norms", "and", "branches", "head", "whole"]
    assert header.split() == parts
    assert "17 tokens" in result.out
    assert "GFLOPs (a multiply-add is two)" in result.err


def test_the_published_model_with_its_convolution(nearwise):
    result = nearwise(
        "vit", "summary", "--layer", "ConvNNAttention", "--convolution_type", "standard",
        "--num_heads", 1, "--num_layers", 1,
    )  # fmt: skip
    # 2 * 192 * 192 * 9 * 197 a layer, and four projections
    linear = next(line for line in result.out.splitlines() if line.startswith("linear\t"))
    assert linear.split()[2] == "188.82"  # after its name and the patches


def test_layers_side_by_side(nearwise):
    result = nearwise("vit", "summary", "--layer", "Attention,KvtAttention", *SMALL)
    assert result.exit_code == 0
    assert "\nAttention\t" in result.out
    assert "\nKvtAttention\t" in result.out
    result = nearwise("vit", "summary", "--layer", "all", *SMALL)
    assert result.exit_code == 0
    assert "\nTokenConvolution\t" in result.out
    # 9 x 9 patches do not fit 4 x 4: said, not hidden.
    assert "NeighborhoodAttention2D is left out" in result.err


def test_training_counts_the_candidates_that_are_drawn(nearwise):
    drawn = ("--layer", "ConvNNAttention", "--sampling-type", "random", "--num-samples", 9)
    rows = []
    for more in ((), ("--training",)):
        lines = nearwise("vit", "summary", *drawn, *SMALL, *more).out.splitlines()
        rows.append(next(line for line in lines if line.startswith("attention\t") and "." in line))
    assert rows[0] != rows[1]


def test_mistakes_are_named(nearwise):
    for arguments, message in (
        (("--layer", "Atention"), "Did you mean 'Attention'"),
        (("--layer", "NeighborhoodAttention2D", *SMALL), "spans 9 tokens"),
        (("--classes", 0), "--classes 0 must be at least 1"),
        (("--resize", 0), "--resize 0 must be at least 1"),
        (("--K", 0), "greater than or equal to 1"),
        (("--patch-size", 9), "does not divide"),
        (("--similarity_type", "x"), "it is --magnitude_type"),
    ):
        result = nearwise("vit", "summary", *arguments)
        assert result.exit_code == 2
        assert message in result.err


@pytest.mark.parametrize("layers", ["ConvNNAttention", "Attention,KNNAttention"])
def test_no_number_is_cut_in_a_narrow_pipe(nearwise, monkeypatch, layers):
    monkeypatch.setenv("COLUMNS", "60")
    result = nearwise("vit", "summary", "--layer", layers, *SMALL)
    assert "…" not in result.out
