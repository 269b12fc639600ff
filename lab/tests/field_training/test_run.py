"""Training of neural fields: what is shown and asked, equal steps, going on, refusals."""

import math

import pytest
import torch
from nearwise_lab.field_training import FieldConfig, reconstruction_errors, train_field
from nearwise_lab.field_training.learner import FieldLearner
from nearwise_lab.nn.field import PerceiverAutoencoder, make_perceiver

from nearwise.data import Context

OBJECTIVES = ["reconstruction", "sparse", "nce", "sparse-nce"]
TINY = {
    "model": {"latent_dims": (8, 8), "num_latents": 4, "head_dim": 4, "num_process_layers": 1},
    "epochs": 2, "batch_size": 16, "n_anchors": 4, "n_candidates": 8, "nce_dim": 4,
}  # fmt: skip


def config(**changes) -> FieldConfig:
    return FieldConfig(**{**TINY, **changes})


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    """A bright square somewhere in each image."""
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    for i, (row, column) in enumerate(torch.randint(0, 5, (40, 2), generator=generator)):
        images[i, 0, row : row + 3, column : column + 3] = 255
    return images


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_lowers_the_error_under_every_objective(images, objective):
    settings = config(objective=objective, epochs=12, lr=5e-3)
    model, history = train_field(images, settings, validation=images[:10])
    assert history[-1]["train"]["mse"] < 0.8 * history[0]["train"]["mse"]
    assert ("nce" in history[0]["train"]) == settings.has_nce
    assert set(history[-1]["evaluation"]) == {
        "mse", "psnr", "sparse_mse", "sparse_psnr", "hidden_mse"
    }  # fmt: skip
    assert model.run["objective"] == objective and not model.training


def test_every_arm_takes_the_same_steps(images):
    base, _ = train_field(images, config(objective="sparse"))
    arms = [
        train_field(images, config(objective=objective), start_from=base)[0]
        for objective in ("sparse", "sparse-nce")
    ]
    # 40 images in batches of 16 at most: 3 steps an epoch
    assert [arm.run["step"] for arm in arms] == [12, 12]
    assert [arm.run["stages"] for arm in arms] == [
        ["sparse:2", "sparse:2"], ["sparse:2", "sparse-nce:2"]
    ]  # fmt: skip
    assert not same(arms[0], arms[1])
    assert base.run["step"] == 6  # the start stays as it is


@pytest.mark.parametrize("objective", ["reconstruction", "sparse-nce"])
def test_a_run_stopped_after_an_epoch_goes_on_to_the_same_weights(images, objective, tmp_path):
    settings = config(objective=objective, epochs=3)

    def stop(record):
        if record["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted"):
        broken, _ = train_field(images, settings, checkpoint=tmp_path / "c", progress=stop)
    assert (broken.run["finished"], broken.run["epochs"]) == (False, 1)
    resumed, history = train_field(images, settings, checkpoint=tmp_path / "c")
    unbroken, _ = train_field(images, settings)
    assert same(resumed, unbroken) and not same(broken, unbroken)
    assert resumed.run == unbroken.run and resumed.run["finished"]
    assert [record["epoch"] for record in history] == [1, 2, 3]


def test_a_checkpoint_of_other_settings_or_images_is_refused(images, tmp_path):
    train_field(images, config(epochs=1), checkpoint=tmp_path / "c")
    for pixels, changes in (
        (images, {"lr": 0.1}),
        (images, {"compile": True}),  # its sums are rounded otherwise
        (images.flip(0), {}),
    ):
        with pytest.raises(ValueError, match="belongs to another run"):
            train_field(pixels, config(epochs=1, **changes), checkpoint=tmp_path / "c")


def test_the_seed_decides_the_run(images):
    one, again, other = (train_field(images, config(), seed=s)[0] for s in (0, 0, 1))
    assert same(one, again) and not same(one, other)


def test_a_run_that_goes_on_draws_other_batches_and_contexts(images):
    seen = []

    class Noting(FieldLearner):
        def shown(self, rows, draw):
            seen.append((rows.tolist(), super().shown(rows, draw).tolist()))
            return super().shown(rows, draw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nearwise_lab.field_training.run.FieldLearner", Noting)
        base, _ = train_field(images, config(objective="sparse", epochs=1))
        first, seen = seen, []
        train_field(images, config(objective="sparse", epochs=1), start_from=base)
    assert not any(batch in first for batch in seen)


def test_every_step_is_told(images):
    told = []
    train_field(images, config(), on_step=lambda step, total: told.append((step, total)))
    assert told == [(step, 6) for step in range(6)]


def test_a_saved_model_says_how_it_was_made_and_can_be_gone_on_from(images, tmp_path):
    model, _ = train_field(images, config(), seed=3)
    model.save(tmp_path / "base")
    back = PerceiverAutoencoder.load(tmp_path / "base")
    assert back.run["settings"]["preset"] == "digits" and back.run["seed"] == 3
    on, _ = train_field(images, config(objective="nce"), start_from=back)
    assert on.run["before"]["objective"] == "reconstruction"
    assert on.run["step"] == 2 * model.run["step"]


def test_a_start_of_other_sizes_is_refused_with_what_differs(images):
    with pytest.raises(ValueError, match="num_latents is 16, not 4"):
        train_field(images, config(), start_from=make_perceiver("digits", random_state=0))


def learner(**changes) -> FieldLearner:
    settings = config(**changes)
    return FieldLearner(PerceiverAutoencoder(settings.perceiver((8, 8), 1)), settings, 0)


def test_a_sparse_objective_shows_other_pixels_each_time_and_a_fixed_layout_the_same():
    rows = torch.arange(6)
    moving, fixed = learner(objective="sparse"), learner(objective="sparse", layout="fixed")
    assert moving.shown(rows, 0).shape == (6, 13)
    assert not torch.equal(moving.shown(rows, 0), moving.shown(rows, 1))
    assert torch.equal(fixed.shown(rows, 0), fixed.shown(rows[:1], 5).expand(6, -1))
    # the layout that probes show as "0.2:fixed", whatever the seed and stage
    probed = Context.parse("0.2:fixed").indices(64, rows)
    assert torch.equal(fixed.shown(rows, 3), probed)
    assert learner().shown(rows, 0) is None


def test_queries_are_other_pixels_than_those_shown_would_tell():
    rows, model = torch.arange(50), learner(objective="sparse", n_queries=13)
    shown, queried = model.shown(rows, 0), model.queried(rows, 0)
    overlap = (shown[:, :, None] == queried[:, None]).any(-1).float().mean()
    assert 0.1 < overlap < 0.3  # 13 of 64 by chance
    assert learner(n_queries=64).queried(rows, 0) is None


def test_a_masked_loss_ignores_the_pixels_that_were_shown(images):
    model = learner(objective="sparse", loss_on="masked")
    batch = images[:5].float() / 255
    shown = model.shown(torch.arange(5), 0)
    decoded = model.model.reconstruct(batch, shown).flatten(1)
    hidden = torch.ones(5, 64, dtype=torch.bool).scatter(1, shown, False)
    expected = (decoded - batch.flatten(1)).square()[hidden].mean()
    for queries in (None, torch.arange(64).expand(5, -1)):
        torch.testing.assert_close(model(batch, shown, queries)["mse"], expected)


def test_the_contrast_looks_at_images_encoded_from_other_points_each(images):
    model = learner(objective="sparse-nce")
    batch, rows = images[:6].float() / 255, torch.arange(6)
    second = model.second_view(batch, model.shown(rows, 1), torch.Generator().manual_seed(0))
    losses = model(batch, model.shown(rows, 0), None, second)
    (losses["mse"] + losses["nce"]).backward()
    assert model.head.weight.grad.abs().sum() > 0
    assert not torch.equal(model.shown(rows, 0), second.shown)


def test_the_blur_of_a_match_is_a_pixel_wide_whatever_the_resolution():
    assert FieldConfig(preset="S64").sigma((32, 32)) == pytest.approx(0.08)
    assert FieldConfig(preset="S64").sigma((63, 32)) == pytest.approx(0.04)
    assert FieldConfig().sigma((8, 8)) == 0.2


def test_errors_of_a_reconstruction_are_means_over_pixels(images):
    model = learner().model.eval()
    found = reconstruction_errors(model, images, Context("per-image", 0.5))
    batch = images.float() / 255
    shown = Context("per-image", 0.5).indices(64, torch.arange(40), draw=-1)
    with torch.no_grad():
        errors = (model.reconstruct(batch, shown) - batch).square().flatten(1)
    hidden = torch.ones(40, 64, dtype=torch.bool).scatter(1, shown, False)
    assert found["sparse_mse"] == pytest.approx(errors.mean().item(), rel=1e-5)
    assert found["hidden_mse"] == pytest.approx(errors[hidden].mean().item(), rel=1e-5)
    assert found["psnr"] == pytest.approx(-10 * torch.tensor(found["mse"]).log10().item(), rel=1e-5)


def test_the_psnr_of_colors_is_of_the_mean_over_channels():
    model = make_perceiver("digits", channels=3, random_state=0).eval()
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        error = (model.reconstruct(x) - x).square().mean().item()
    found = reconstruction_errors(model, x, Context("per-image", 0.5))
    assert found["mse"] == pytest.approx(error, rel=1e-5)
    assert found["psnr"] == pytest.approx(-10 * math.log10(error), rel=1e-5)


def test_a_preset_brings_its_recipe_and_a_setting_overrides_it():
    assert FieldConfig(preset="S64").batch_size == 256
    assert FieldConfig(preset="S64", batch_size=32).batch_size == 32
    assert FieldConfig(preset="original").lr == 2e-4


def test_images_as_data_sets_hold_them_train_the_same_field(images):
    settings = config(epochs=1)
    first, _ = train_field(images, settings)
    as_held = images.movedim(1, 3).contiguous().numpy()
    floats = images.float().div(255).numpy()
    for given in (as_held, as_held[..., 0], images.numpy(), floats, images.double() / 255):
        assert same(train_field(given, settings)[0], first)
    assert not same(train_field(images.flip(0), settings)[0], first)


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (torch.full((4, 1, 8, 8), 2.0), r"lie in \[0, 1\]"),
        (torch.full((4, 1, 8, 8), torch.nan), r"lie in \[0, 1\]"),
        (torch.zeros(4, 2, 8, 8), r"images have shape \(4, 2, 8, 8\)"),
        (torch.zeros(0, 1, 8, 8), "at least one"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.int64), "uint8 in"),
    ],
)
def test_images_that_do_not_fit_are_refused(pixels, said):
    with pytest.raises(ValueError, match=said):
        train_field(pixels, config())


def test_a_setting_that_is_not_known_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'n_anchors'"):
        config(n_anchor=3)
    with pytest.raises(ValueError, match="context"):
        config(context=1.0)


def test_a_loss_that_is_no_longer_finite_says_where_and_keeps_the_checkpoint(images, tmp_path):
    with pytest.raises(ValueError, match=r"no longer finite in step .* epoch"):
        train_field(images, config(lr=1e30, warmup=0), checkpoint=tmp_path / "c")
    assert (tmp_path / "c" / "manifest.json").exists()
