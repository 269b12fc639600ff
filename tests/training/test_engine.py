"""The general training loop: any module, any loss, the same result after a break."""

import math

import pytest
import torch
from torch import nn

from nearwise.training import BatchLoss, EngineConfig, engine, objective, train_epochs
from nearwise.training.schedule import Lookahead, rate_factor
from tests.training.cases import same_weights, weights_of
from tests.training.engine_cases import N, make_model, make_rows, run, without_times


@pytest.fixture(autouse=True)
def checkpoint_of_every_epoch(monkeypatch):
    monkeypatch.setattr(objective, "_CHECKPOINT_SECONDS", 0.0)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_training_lowers_the_loss(optimizer, precision):
    _, result = run(optimizer=optimizer, precision=precision, epochs=8, lr=3e-2)
    losses = [record["train"]["loss"] for record in result.history]
    assert losses[-1] < 0.75 * losses[0]
    assert [record["epoch"] for record in result.history] == list(range(1, 9))
    assert result.history[0]["train"]["half"] == pytest.approx(losses[0] / 2)


def test_the_same_seed_gives_the_same_run_and_leaves_torch_s_random_state():
    before = torch.get_rng_state()
    first, one = run(seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    second, other = run(seed=3)
    assert same_weights(weights_of(first), weights_of(second))
    assert without_times(one.history) == without_times(other.history)
    assert not same_weights(weights_of(first), weights_of(run(seed=4)[0]))


@pytest.mark.parametrize(
    "settings",
    [
        {"monitor": "-accuracy"},
        {"precision": "float16", "optimizer": "sgd"},
        {"optimizer": "lookahead", "warmup_epochs": 2.0},
    ],
    ids=["monitored", "scaled", "looking-ahead"],
)
def test_a_broken_run_goes_on_to_the_result_of_an_unbroken_one(settings, tmp_path):
    unbroken, expected = run(**settings)

    def break_off(record):
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted in epoch 4 of 6"):
        _, part = run(**settings, checkpoint=tmp_path / "c", progress=break_off)
    assert part.interrupted and len(part.history) == 3
    resumed, result = run(**settings, checkpoint=tmp_path / "c")
    assert same_weights(weights_of(resumed), weights_of(unbroken))
    assert without_times(result.history) == without_times(expected.history)
    assert result.best_epoch == expected.best_epoch
    again, _ = run(**settings, checkpoint=tmp_path / "c")
    assert same_weights(weights_of(again), weights_of(unbroken))


def test_short_epochs_do_not_each_write_a_checkpoint(tmp_path, monkeypatch):
    written, save = [], engine.save_checkpoint
    monkeypatch.setattr(
        engine, "save_checkpoint", lambda *args: written.append(args[2].epoch) or save(*args)
    )
    monkeypatch.setattr(objective, "_CHECKPOINT_SECONDS", 3600.0)
    model, _ = run(checkpoint=tmp_path / "c")
    assert written == [0, 6]
    again, _ = run(checkpoint=tmp_path / "c")
    assert written == [0, 6] and same_weights(weights_of(again), weights_of(model))


@pytest.mark.parametrize(("monitor", "best"), [("loss", 3), ("-loss", 5)])
def test_the_monitored_epoch_is_kept(monitor, best):
    seen = []
    model = make_model()
    _, result = run(
        model,
        evaluated=[0.5, 0.4, 0.1, math.nan, 0.9, 0.2],
        monitor=monitor,
        progress=lambda record: seen.append(weights_of(model)),
    )
    assert result.best_epoch == best
    assert same_weights(weights_of(model), seen[best - 1])
    assert not model.training


def test_a_loss_that_is_not_finite_says_where_and_keeps_the_last_checkpoint(tmp_path):
    good, _ = run(epochs=2, last_rate=1.0, monitor="-loss", evaluated=[0.0, 1.0])
    broken = make_model()
    with pytest.raises(ValueError, match=r"step 2 of 3 of epoch 3.*of epoch 2"):
        run(
            broken,
            spoil=7,
            last_rate=1.0,
            monitor="-loss",
            evaluated=[0.0, 1.0],
            checkpoint=tmp_path / "c",
        )
    assert same_weights(weights_of(broken), weights_of(good))
    _, result = run(checkpoint=tmp_path / "c", last_rate=1.0, monitor="-loss", evaluated=range(6))
    assert len(result.history) == 6


@pytest.mark.parametrize("bad", [{"spoil": 7}, {"blow_up": 7}, {"blow_up": 8}], ids=str)
def test_weights_that_are_not_finite_are_neither_kept_nor_saved(bad, tmp_path):
    options = {"last_rate": 1.0, "jitter": 0}
    good, _ = run(epochs=2, **options)
    broken = make_model()
    with pytest.raises(ValueError, match=r"no longer finite .* of epoch 3\. .*is of epoch 2\."):
        run(broken, **bad, checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(broken), weights_of(good))
    again, result = run(checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(again), weights_of(run(**options)[0]))
    assert len(result.history) == 6


def test_a_run_that_is_broken_off_within_an_epoch_keeps_the_last_whole_one():
    model, seen = make_model(), []
    x, y = make_rows()

    def batch_loss(rows, generator, step):
        if step == 7:
            raise KeyboardInterrupt
        return {"loss": nn.functional.cross_entropy(model(x[rows]), y[rows])}

    config = EngineConfig(epochs=6, batch_size=32)
    with pytest.warns(UserWarning, match="the weights of epoch 2 are kept"):
        noted = BatchLoss(model, batch_loss, N, lambda epoch: seen.append(weights_of(model)) or {})
        result = train_epochs(noted, config, seed=0)
    assert (result.best_epoch, result.interrupted) == (2, True)
    assert same_weights(weights_of(model), seen[-1])


def test_a_run_that_is_broken_off_before_anything_was_noted_leaves_the_model_as_it_was(monkeypatch):
    model = make_model()
    before = weights_of(model)

    def broken_off(*args, **kwargs):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "state_dict", broken_off)
    with pytest.warns(UserWarning, match="interrupted in epoch 1 of 6"):
        _, result = run(model)
    assert (result.interrupted, result.history) == (True, [])
    assert same_weights(weights_of(model), before) and not model.training


def test_rates_follow_warm_up_and_schedule():
    def rates(floor=0.0, **settings):
        config = EngineConfig(lr=1.0, epochs=8, **settings)
        return [rate_factor(config, step, 2, floor) for step in range(16)]

    assert rates(1.0, warmup_epochs=1.5) == [0.25, 0.5, 0.75] + [1.0] * 13
    cosine = rates(0.1)
    assert cosine[0] == 1.0 and cosine[-1] > 0.1
    assert [cosine[4], cosine[8]] == pytest.approx([0.1 + 0.45 * (1 + 0.5**0.5), 0.55])
    linear = rates(optimizer="lookahead", warmup_epochs=1.5)
    assert linear[:4] == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert linear[4:] == pytest.approx([1 - 0.93 / 13 * step for step in range(1, 13)])


@pytest.mark.parametrize(
    ("name", "momentum", "factors", "clips"),
    [("lookahead", 0.85, {1.0, 64.0}, 0), ("sgd", 0.9, {1.0}, 18), ("adamw", None, {1.0}, 18)],
)
def test_lookahead_is_the_optimizer_of_the_publication(name, momentum, factors, clips, monkeypatch):
    norms, clip = [], nn.utils.clip_grad_norm_
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda p, n: norms.append(n) or clip(p, n))
    model, _ = run(optimizer=name)
    assert norms == [1.0] * clips
    objective, config = BatchLoss(model, dict, 1), EngineConfig(optimizer=name)
    groups = objective.make_optimizer(config).param_groups
    assert {group.get("momentum") for group in groups} == {momentum}
    assert {group["lr_factor"] for group in groups} == factors
    assert (objective.average(config, 10) is None) == (name != "lookahead")


def test_lookahead_goes_back_to_the_average_every_five_steps_and_ends_there():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    lookahead, average, total = Lookahead(model, 0.8, 12), 0.0, 12
    for step in range(total):
        with torch.no_grad():
            model.weight += 1.0
        before = float(model.weight.detach())
        lookahead.update(step)
        if step + 1 in (5, 10, 12):
            decay = 0.8 * ((step + 1) / total) ** 3
            average = decay * average + (1 - decay) * before
            before = average
        assert float(model.weight.detach()) == pytest.approx(before, rel=1e-5)


def test_wrong_arguments_say_what_to_do():
    with pytest.raises(ValueError, match="Evaluated: nothing"):
        run(monitor="loss", evaluate=None)
    with pytest.raises(ValueError, match="Evaluated: loss, accuracy"):
        run(monitor="nll")
    with pytest.raises(ValueError, match="leaves nothing"):
        train_epochs(BatchLoss(make_model(), dict, 0), EngineConfig(), seed=0)
