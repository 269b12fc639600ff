"""Contexts: seeded subsets of points that depend on the image alone."""

import pytest
import torch

from nearwise.data import Context

SPARSE = ["0.2", "0.2:fixed", "0.2:batch"]


def shown(text: str, rows: torch.Tensor, n_points: int = 64, draw: int = 0) -> torch.Tensor:
    positions = Context.parse(text).indices(n_points, rows, draw)
    assert positions is not None
    return positions


def test_a_fraction_with_many_digits_comes_back_exactly():
    assert Context.parse(str(Context("per-image", 1 / 3))) == Context("per-image", 1 / 3)


@pytest.mark.parametrize("text", ["full", *SPARSE, "0.05:fixed@3", "full@2", "0.125@17"])
def test_a_context_says_its_text_back(text):
    assert str(Context.parse(text)) == text


def test_a_full_context_names_no_points():
    assert Context().indices(64, torch.arange(3)) is None


@pytest.mark.parametrize("text", SPARSE)
@pytest.mark.parametrize("n_points", [1, 2, 64, 1024])
def test_points_are_distinct_ascending_and_within_the_image(text, n_points):
    context = Context(Context.parse(text).kind, 0.5)
    positions = context.indices(n_points, torch.arange(40))
    assert positions.shape == (40, max(1, n_points // 2))
    assert (positions.diff(dim=1) > 0).all()
    assert positions.min() >= 0 and positions.max() < n_points


def test_an_image_sees_the_same_points_in_any_batch_and_order():
    whole = shown("0.2", torch.arange(100))
    order = torch.randperm(100)
    parts = torch.cat([shown("0.2", piece) for piece in order.split(7)])
    assert torch.equal(parts, whole[order])


def test_images_draws_and_seeds_see_other_points():
    rows = torch.arange(50)
    first = shown("0.2", rows, 1024)
    assert len({tuple(row) for row in first.tolist()}) == 50
    assert not (shown("0.2", rows, 1024, draw=1) == first).all(1).any()
    assert not (shown("0.2@1", rows, 1024) == first).all(1).any()


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


def test_every_point_is_shown_equally_often():
    counts = torch.bincount(shown("0.25", torch.arange(40_000)).flatten(), minlength=64)
    expected = 40_000 * 0.25
    # standard deviation of a count is sqrt(40,000 * .25 * .75) = 87; 5 of them for 64 counts
    assert (counts - expected).abs().max() < 5 * 87


def test_points_are_chosen_by_the_published_generator():
    """The subset of one image, by integers without a width, as SplitMix64 is written down."""

    def mixed(x: int, step: int = 0x9E3779B97F4A7C15) -> int:
        x = (x + step) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    name = mixed(mixed(mixed(3) + 2) + 1234, step=0)
    keys = [mixed(name, step=0x9E3779B97F4A7C15 * (p + 1)) >> 1 for p in range(64)]
    largest = sorted(sorted(range(64), key=lambda p: keys[p])[-13:])
    assert shown("0.2@3", torch.tensor([1234]), draw=2)[0].tolist() == largest


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


def test_a_fraction_that_leaves_no_point_is_refused_with_one_that_does():
    with pytest.raises(ValueError, match=r"0\.001 of 64 points leaves no point.*at least 0\.0078"):
        Context.parse("0.001").indices(64, torch.arange(2))


def test_a_full_context_with_a_fraction_is_refused():
    with pytest.raises(ValueError, match="every point"):
        Context("full", 0.5)
