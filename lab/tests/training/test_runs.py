"""What the runs of the lab add to the training loop: schedules, averaged weights, turns."""

import pytest
import torch
from nearwise_lab.training.runs import (
    MovingAverage,
    RunConfig,
    RunLoss,
    compiled,
    count_plateaus,
)
from torch import nn

from nearwise.training import engine
from tests.training.cases import same_weights, weights_of
from tests.training.engine_cases import make_model, without_times
from tests.training.engine_cases import run as run_engine


def run(*args, **options):
    """Train by the settings and the objective of the lab's runs."""
    return run_engine(
        *args,
        kind=RunConfig,
        make_objective=lambda config, *loss: RunLoss(*loss, config),
        **options,
    )


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_training_lowers_the_loss(optimizer):
    _, result = run(optimizer=optimizer, epochs=8, lr=3e-2)
    losses = [record["train"]["loss"] for record in result.history]
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"monitor": "-accuracy", "ema_decay": 0.9, "schedule": "plateau", "plateau_patience": 0},
        {"precision": "float16", "optimizer": "sgd", "schedule": "step", "lr_step": 2},
    ],
    ids=["averaged", "scaled"],
)
def test_a_broken_run_goes_on_to_the_result_of_an_unbroken_one(settings, tmp_path):
    unbroken, expected = run(**settings)

    def break_off(record):
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.warns(UserWarning, match="interrupted in epoch 4 of 6"):
        run(**settings, checkpoint=tmp_path / "c", progress=break_off)
    resumed, result = run(**settings, checkpoint=tmp_path / "c")
    assert same_weights(weights_of(resumed), weights_of(unbroken))
    assert without_times(result.history) == without_times(expected.history)
    assert result.best_epoch == expected.best_epoch


@pytest.mark.parametrize("bad", [{"spoil": 7}, {"blow_up": 7}, {"blow_up": 8}], ids=str)
def test_averaged_weights_that_are_not_finite_are_neither_kept_nor_saved(bad, tmp_path):
    options = {"schedule": "constant", "ema_decay": 0.5, "jitter": 0}
    good, _ = run(epochs=2, **options)
    broken = make_model()
    with pytest.raises(ValueError, match=r"no longer finite .* of epoch 3\. .*is of epoch 2\."):
        run(broken, **bad, checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(broken), weights_of(good))
    again, result = run(checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(again), weights_of(run(**options)[0]))
    assert len(result.history) == 6


def test_the_averaged_weights_are_evaluated_and_kept():
    seen = []
    model = make_model()
    settings = {"schedule": "constant", "ema_decay": 0.5}
    run(
        model,
        evaluate=lambda epoch: seen.append(weights_of(model)) or {},
        **settings,
    )
    assert same_weights(weights_of(model), seen[-1])
    plain, _ = run(schedule="constant", evaluate=None)
    assert not same_weights(weights_of(model), weights_of(plain))


def test_evaluations_and_checkpoints_take_turns_and_the_last_epoch_has_both(tmp_path, monkeypatch):
    written, save = [], engine.save_checkpoint
    monkeypatch.setattr(
        engine, "save_checkpoint", lambda *args: written.append(args[2].epoch) or save(*args)
    )
    turns = {"evaluate_every": 2, "checkpoint_every": 3}
    _, result = run(epochs=5, checkpoint=tmp_path / "c", **turns)
    assert [bool(r["evaluation"]) for r in result.history] == [False, True, False, True, True]
    assert written == [0, 3, 5]


def test_the_message_names_the_epoch_of_the_last_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"of epoch 4\. .*is of epoch 2\."):
        run(spoil=10, checkpoint=tmp_path / "c", checkpoint_every=2)


def test_rates_follow_warm_up_and_schedule():
    def rates(**settings):
        config = RunConfig(lr=1.0, epochs=8, **settings)
        objective = RunLoss(make_model(), dict, 1, None, config)
        return [objective.rate(config, step, 2, [1.0] * (step // 2)) for step in range(16)]

    assert rates(schedule="constant") == [1.0] * 16
    warm = rates(schedule="constant", warmup_epochs=1.5)
    assert warm == [0.25, 0.5, 0.75] + [1.0] * 13
    stepped = rates(schedule="step", lr_step=3, lr_gamma=0.5)
    assert stepped == [1.0] * 6 + [0.5] * 6 + [0.25] * 4
    cosine = rates(schedule="cosine")
    assert cosine[0] == 1.0 and cosine[8] == pytest.approx(0.5) and cosine[-1] > 0
    assert rates(schedule="plateau", plateau_patience=1, lr_gamma=0.5) == (
        [1.0] * 6 + [0.5] * 4 + [0.25] * 4 + [0.125] * 2
    )


def test_all_parameters_decay_only_on_request():
    def decays(**settings):
        config = RunConfig(weight_decay=0.1, **settings)
        optimizer = RunLoss(make_model(), dict, 1, None, config).make_optimizer(config)
        return [group["weight_decay"] for group in optimizer.param_groups]

    assert decays() == [0.1, 0.0]
    assert decays(decay_all=True) == [0.1, 0.1]


def test_a_module_is_compiled_inside_and_no_longer_after(monkeypatch):
    modes = []

    def compile_lightly(module, mode):
        modes.append(mode)
        module._compiled_call_impl = module._call_impl

    monkeypatch.setattr(torch.nn.Module, "compile", compile_lightly)
    model = make_model()
    with compiled(model, RunConfig()):
        assert modes == []
    with compiled(model, RunConfig(compile=True, compile_mode="max-autotune")):
        assert modes == ["max-autotune"] and model._compiled_call_impl is not None
    assert model._compiled_call_impl is None


def test_plateaus_are_counted_as_torch_does():
    generator = torch.Generator().manual_seed(0)
    for patience in (0, 1, 3):
        values = torch.rand(40, generator=generator).tolist()
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.5, patience=patience, eps=0
        )
        for n, value in enumerate(values, 1):
            theirs.step(value)
            expected = optimizer.param_groups[0]["lr"]
            assert 0.5 ** count_plateaus(values[:n], patience) == expected
    # A value below zero that stays is no progress, one that falls is.
    assert count_plateaus([-0.5, -0.5, -0.5], 1) == 1
    assert count_plateaus([-0.5, -0.6, -0.7], 0) == 0


def test_the_average_is_that_of_the_weights_so_far():
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    average, expected = MovingAverage(model, 0.5), 0.0
    for step in range(20):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.applied():
        assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(model.weight.detach()) == 19.0
