"""Coordinates and views: one convention, checked by what the pictures show."""

import math

import pytest
import torch
import torch.nn.functional as F
from nearwise_lab.field_training.views import AffineWarp, dense_info_nce, random_warps
from nearwise_lab.nn.field import coordinate_grid, sample_images


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def smooth_images(n: int, generator: torch.Generator) -> torch.Tensor:
    """Random images (n, 3, 32, 32) of a few broad waves; unlike in rows and columns."""
    coarse = torch.randn(n, 3, 5, 5, generator=generator)
    return F.interpolate(coarse, size=(32, 32), mode="bicubic", align_corners=True)


def test_the_grid_is_rows_of_y_and_x_from_corner_to_corner():
    grid = coordinate_grid(3, 2)
    assert grid.tolist() == [[-1, -1], [-1, 1], [0, -1], [0, 1], [1, -1], [1, 1]]
    assert coordinate_grid(1, 3).tolist() == [[0, -1], [0, 0], [0, 1]]


@pytest.mark.parametrize(("height", "width"), [(5, 7), (8, 8), (1, 4)])
def test_sampling_at_the_grid_gives_the_pixels_row_by_row(height, width):
    images = torch.rand(2, 3, height, width)
    found = sample_images(images, coordinate_grid(height, width))
    torch.testing.assert_close(found, images.flatten(2).transpose(1, 2))


def test_sampling_goes_by_y_first():
    image = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert sample_images(image, torch.tensor([[-1.0, 1.0]])).item() == 2
    assert sample_images(image, torch.tensor([[1.0, -1.0]])).item() == 3
    assert sample_images(image, torch.tensor([[0.0, -0.5]])).item() == 2


def test_a_point_has_the_same_value_in_the_image_and_where_it_lies_in_the_view(generator):
    """The check that shows a swapped axis: the original's convention fails it by far."""
    images = smooth_images(64, generator)
    warps = random_warps(64, generator)
    views = warps.images(images)
    points = 2 * torch.rand(64, 256, 2, generator=generator) - 1
    places = warps.points(points)
    inside = (places.abs() <= 1).all(-1)
    here, there = sample_images(images, points), sample_images(views, places)
    error = (here - there).square()[inside].mean() / images.var()
    assert error < 1e-3
    # the same with the axes of the map swapped, and with no map at all
    swapped = AffineWarp(warps.matrix.flip(1, 2), warps.shift.flip(1))
    for wrong in (swapped.points(points), points):
        kept = (wrong.abs() <= 1).all(-1)
        assert (here - sample_images(views, wrong)).square()[kept].mean() / images.var() > 0.05


def test_origins_undo_points(generator):
    warps = random_warps(9, generator, angle=40, smallest=0.5, shift=0.4)
    points = torch.randn(9, 11, 2, generator=generator)
    torch.testing.assert_close(warps.origins(warps.points(points)), points, atol=1e-5, rtol=0)


def test_no_turn_no_scale_and_no_shift_leave_the_image(generator):
    images = torch.rand(4, 3, 9, 12, generator=generator)
    warps = random_warps(4, generator, angle=0, smallest=1, shift=0)
    torch.testing.assert_close(warps.images(images), images, atol=1e-5, rtol=0)


def test_warps_stay_within_their_bounds(generator):
    warps = random_warps(2000, generator, angle=12, smallest=0.85, shift=0.1)
    scale = warps.matrix.det().sqrt()
    assert 0.85 <= scale.min() < 0.86 and 0.99 < scale.max() <= 1.0001
    degrees = torch.atan2(warps.matrix[:, 1, 0], warps.matrix[:, 0, 0]).rad2deg()
    assert 11.8 < degrees.abs().max() <= 12.001
    assert 0.099 < warps.shift.abs().max() <= 0.1


def test_the_loss_is_the_cross_entropy_written_out(generator):
    a, b = (F.normalize(torch.randn(2, n, 6, generator=generator), dim=-1) for n in (3, 5))
    places, others = (2 * torch.rand(2, n, 2, generator=generator) - 1 for n in (3, 5))
    places[0, 1] = torch.tensor([1.2, 0.0])  # left the view: must not count
    total, count = 0.0, 0
    for i in range(2):
        for j in range(3):
            if places[i, j].abs().max() > 1:
                continue
            squared = (places[i, j] - others[i]).square().sum(-1)
            weights = torch.exp(-squared / 0.08).tolist()
            logits = torch.stack([a[i, j] @ b[i, c] / 0.1 for c in range(5)])
            logs = logits - logits.exp().sum().log()
            total -= sum(w / sum(weights) * float(lp) for w, lp in zip(weights, logs, strict=True))
            count += 1
    loss = dense_info_nce(a, b, places, others, temperature=0.1, sigma=0.2)
    assert loss.item() == pytest.approx(total / count, abs=1e-5)


def test_an_anchor_far_from_every_candidate_has_a_target_that_sums_to_one():
    features, others = torch.ones(1, 4, 1), -torch.ones(1, 4, 2)
    loss = dense_info_nce(features[:, :1], features, -0.9 * others[:, :1], others, sigma=0.01)
    assert loss.item() == pytest.approx(math.log(4))


def test_a_view_that_no_anchor_stays_in_gives_no_loss():
    features = torch.ones(1, 2, 3, requires_grad=True)
    loss = dense_info_nce(features, features, torch.full((1, 2, 2), 3.0), torch.zeros(1, 2, 2))
    loss.backward()
    assert loss.item() == 0 and not features.grad.any()


def test_right_matches_cost_less_than_wrong_ones(generator):
    places = 2 * torch.rand(1, 40, 2, generator=generator) - 1
    features = F.normalize(torch.randn(1, 40, 64, generator=generator), dim=-1)
    right = dense_info_nce(features, features, places, places, sigma=0.02)
    wrong = dense_info_nce(features, features.roll(1, 1), places, places, sigma=0.02)
    assert right < 0.5 < wrong
