"""Contexts: seeded subsets of points that depend on the image alone."""

import pytest
import torch

from nearwise.data import Context

SPARSE = ["0.2", "0.2:fixed", "0.2:batch"]


def shown(text: str, rows: torch.Tensor, n_points: int = 64, draw: int = 0) -> torch.Tensor:
    positions = Context.parse(text).indices(n_points, rows, draw)
    assert positions is not None
    return positions


@pytest.mark.parametrize("text", ["full", *SPARSE, "0.05:fixed@3", "full@2", "0.125@17"])
def test_a_context_says_its_text_back(text):
    assert str(Context.parse(text)) == text
    assert Context.parse(str(Context("per-image", 1 / 3))) == Context("per-image", 1 / 3)


def test_a_full_context_names_no_points():
    assert Context().indices(64, torch.arange(3)) is None


def test_an_image_sees_the_same_points_in_any_batch_and_order():
    whole = shown("0.2", torch.arange(100))
    order = torch.randperm(100)
    parts = torch.cat([shown("0.2", piece) for piece in order.split(7)])
    assert torch.equal(parts, whole[order])


def test_a_fixed_layout_is_one_for_all_images_and_another_for_another_draw():
    first = shown("0.2:fixed", torch.tensor([5, 900, 31]))
    assert (first == first[0]).all()
    assert torch.equal(first[:1], shown("0.2:fixed", torch.tensor([44])))
    assert not torch.equal(first, shown("0.2:fixed", torch.tensor([5, 900, 31]), draw=1))


def test_a_layout_of_the_batch_is_shared_and_changes_with_the_batch():
    first = shown("0.2:batch", torch.arange(8))
    assert (first == first[0]).all()
    assert torch.equal(first, shown("0.2:batch", torch.arange(8)))
    others = [torch.arange(8, 16), torch.arange(7), torch.arange(8).flip(0)]
    assert all(not torch.equal(first[0], shown("0.2:batch", rows)[0]) for rows in others)


def test_points_are_chosen_by_the_published_generator():
    """The subset of an image, by integers without a width, as SplitMix64 is written down."""

    def mixed(x: int, step: int = 0x9E3779B97F4A7C15) -> int:
        x = (x + step) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    for seed, draw, row in ((0, 0, 0), (3, 2, 1234), (3, 2, 5), (3, 0, 5)):
        name = mixed(mixed(mixed(seed) + draw) + row, step=0)
        keys = [mixed(name, step=0x9E3779B97F4A7C15 * (p + 1)) >> 1 for p in range(64)]
        largest = sorted(sorted(range(64), key=lambda p: keys[p])[-13:])
        assert shown(f"0.2@{seed}", torch.tensor([row]), draw=draw)[0].tolist() == largest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("half", "is not one of"),
        ("0.2:random", "is not one of"),
        ("0.2:", "is not one of"),
        ("0", "leaves no point"),
        ("1.5", "more than there are"),
        ("nan", "is not one of"),
        ("0.2@x", "not a whole number"),
    ],
)
def test_a_text_that_says_no_context_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        Context.parse(text)


def test_a_context_of_no_points_or_of_all_and_some_is_refused():
    with pytest.raises(ValueError, match=r"0\.001 of 64 points leaves no point.*at least 0\.0078"):
        Context.parse("0.001").indices(64, torch.arange(2))
    with pytest.raises(ValueError, match="every point"):
        Context("full", 0.5)
