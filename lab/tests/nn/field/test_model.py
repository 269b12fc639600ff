"""The Perceiver autoencoder: sizes of the study, sets of points, coordinates, bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from nearwise_lab.nn.field import PRESETS, PerceiverAutoencoder, coordinate_grid, make_perceiver
from nearwise_lab.nn.field.layers import Attention

from nearwise.data import Context


@pytest.fixture(scope="module")
def model() -> PerceiverAutoencoder:
    return make_perceiver("digits", random_state=0).eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def n_parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_the_original_has_the_parameters_of_the_study_without_its_unused_modules():
    with torch.device("meta"):
        model = make_perceiver("original")
    latents = sum(stage.table.numel() for stage in model.stages)
    assert latents == 294_912
    # 34,995,797 there: these, the latents, and 17,664 in two modules that nothing calls
    assert n_parameters(model) + latents == 34_995_797 - 17_664
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("preset", "millions", "tokens"),
    [("original", 34.68, (256, 512)), ("S", 7.58, (128, 256)), ("S64", 7.58, (64, 256)),
     ("XS", 1.72, (32, 128)), ("digits", 0.27, (16, 64))],
)  # fmt: skip
def test_presets_have_the_sizes_they_say(preset, millions, tokens):
    with torch.device("meta"):
        model = make_perceiver(preset)
    assert round(n_parameters(model) / 1e6, 2) == millions
    assert (model.num_tokens, model.token_dim) == tokens


def test_the_original_gives_tokens_of_the_shape_of_the_study():
    model = make_perceiver("original", random_state=0)
    with torch.inference_mode():
        tokens = model.encode(torch.rand(1, 3, 32, 32))
        assert tokens.shape == (1, 256, 512)
        assert model.decode(tokens, coordinate_grid(3, 3)).shape == (1, 9, 3)


def test_the_order_of_the_points_does_not_matter(model, images):
    context = Context.parse("0.4").indices(64, torch.arange(5))
    shuffled = context[:, torch.randperm(context.shape[1])]
    torch.testing.assert_close(
        model.encode(images, context), model.encode(images, shuffled), atol=1e-5, rtol=0
    )


def test_all_points_by_name_are_the_full_context(model, images):
    everything = torch.arange(64).expand(5, -1)
    torch.testing.assert_close(model.encode(images, everything), model.encode(images))


def test_an_image_is_encoded_alike_in_any_batch(model, images):
    alone = torch.cat([model.encode(images[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(alone, model.encode(images), atol=1e-5, rtol=0)


def test_a_point_is_decoded_alike_in_any_company(model, images):
    tokens, grid = model.encode(images), coordinate_grid(8, 8)
    whole = model.decode(tokens, grid)
    own = torch.stack([grid[torch.randperm(64)] for _ in range(5)])
    back = model.decode(tokens, own)
    order = ((own[:, :, None] - grid).abs().sum(-1)).argmin(-1)
    torch.testing.assert_close(back, whole.gather(1, order[..., None]), atol=1e-5, rtol=0)


def test_an_image_may_be_decoded_at_another_resolution(model, images):
    fine = model.reconstruct(images, size=(15, 15))
    assert fine.shape == (5, 1, 15, 15)
    # every other point of the finer grid is a pixel of the coarser
    torch.testing.assert_close(fine[..., ::2, ::2], model.reconstruct(images), atol=1e-5, rtol=0)


def test_attention_is_softmax_of_scaled_dot_products():
    layer = Attention(12, 3, 8, context_dim=10)
    x, context = torch.randn(1, 5, 12), torch.randn(2, 7, 10)
    queries = layer.to_query(layer.norm(x)).expand(2, -1, -1).reshape(2, 5, 3, 8)
    key, value = layer.to_pair(layer.context_norm(context)).reshape(2, 7, 2, 3, 8).unbind(2)
    scores = torch.einsum("bnhd,bmhd->bhnm", queries, key) / math.sqrt(8)
    weights = scores.softmax(-1)
    read = torch.einsum("bhnm,bmhd->bnhd", weights, value).flatten(2)
    torch.testing.assert_close(layer(x, context), layer.out(read), atol=1e-5, rtol=0)


def test_presets_start_with_the_weights_of_the_study():
    for preset, width in (("original", 256), ("digits", 32)):
        weight = make_perceiver(preset, random_state=0).stages[0].read.to_query.weight
        # torch's: uniform of deviation 1 / sqrt(3 * width)
        assert weight.std().item() == pytest.approx((3 * width) ** -0.5, rel=0.1)


def test_a_stage_is_what_the_study_says_it_is(model, images):
    """The cascade written out: table, read, add the former stage, attend, think."""
    values = images.flatten(2).transpose(1, 2) * 2 - 1
    where = model.fourier(coordinate_grid(8, 8)).expand(5, -1, -1)
    points, former = torch.cat([values, where], -1), None
    for stage in model.stages:
        z = stage.table.expand(5, -1, -1)
        z = z + stage.read(z, points)
        if former is not None:
            z = z + F.linear(former, stage.from_former.weight, stage.from_former.bias)
        z = z + stage.process.attend(z)
        former = z + stage.process.think(z)
    torch.testing.assert_close(model.processor(former), model.encode(images), atol=1e-5, rtol=0)


def test_the_fourier_features_of_neighbors_differ_by_about_a_radian():
    for side in (8, 32, 100):
        fourier = make_perceiver("S64", image_size=side, random_state=0).fourier
        step = fourier.frequencies.std().item() * 2 / (side - 1)
        assert 0.8 < step < 1.15


def test_first_weights_follow_the_seed_and_leave_the_random_state():
    state = torch.get_rng_state()
    one, two = (make_perceiver("digits", random_state=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert torch.equal(one.fourier.frequencies, two.fourier.frequencies)


def test_bfloat16_autocast_keeps_phases_exact(model):
    grid = coordinate_grid(8, 8)
    exact = model.fourier(grid)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.fourier(grid), exact)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, x: m.encode(x * 255), r"lie in \[0, 1\]; these reach from .* pass pixels / 255"),
        (lambda m, x: m.encode(x * 2 - 1), r"lie in \[0, 1\]"),
        (lambda m, x: m.encode((x * 255).byte()), "Divide bytes by 255"),
        (lambda m, x: m.encode(x.expand(-1, 3, -1, -1)), r"\(batch, 1, height, width\)"),
        (lambda m, x: m.encode(x * torch.nan), r"lie in \[0, 1\]"),
        (lambda m, x: m.encode(x, torch.full((5, 2), 64)), "from 64 to 64.* 8 x 8 has 0 to 63"),
        (lambda m, x: m.encode(x, torch.zeros(5, 0, dtype=torch.long)), "names no point"),
        (lambda m, x: m.encode(x, torch.zeros(4, 3, dtype=torch.long)), r"\(5, points\)"),
        (lambda m, x: m.decode(m.encode(x), torch.tensor([[0, 1.2]])), "largest magnitude is 1.2"),
        (lambda m, x: m.decode(m.encode(x), torch.tensor([[0, torch.nan]])), "finite"),
        (lambda m, x: m.decode(m.encode(x), torch.zeros(3, 4)), r"\(points, 2\)"),
        (lambda m, x: m.decode(torch.zeros(5, 3, 64), torch.zeros(3, 2)), "as encode returns them"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_reason(model, images, call, said):
    with pytest.raises(ValueError, match=said):
        call(model, images)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_latent": 3}, "Did you mean 'num_latents'"),
        ({"latent_dims": (32, 33)}, "an even width for each stage"),
        ({"pixel_std": 0}, "pixel_std: Input should be greater than 0"),
        ({"image_size": (0, 8)}, "image_size: .* each at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        make_perceiver("digits", **changes)


def test_a_preset_that_is_not_known_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=f"known: {', '.join(PRESETS)}. Did you mean 'digits'"):
        make_perceiver("digit")
