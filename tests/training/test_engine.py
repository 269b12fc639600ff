"""The general training loop: any module, any loss, the same result after a break."""

import math

import pytest
import torch
from torch import nn

from nearwise.training import BatchLoss, EngineConfig, engine, train_epochs
from nearwise.training.schedule import Lookahead, WeightAverage, count_plateaus, rate_factor
from tests.training.cases import same_weights, weights_of

N = 90


def make_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def make_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))


def run(model=None, spoil=None, blow_up=None, jitter=0.1, evaluated=None, **options):
    """Train on two classes; `spoil` turns the loss of a step into NaN, `blow_up` its gradient."""
    model = make_model() if model is None else model
    x, y = make_rows()

    def batch_loss(rows, generator, step):
        noise = jitter * torch.randn(len(rows), 4, generator=generator)
        loss = nn.functional.cross_entropy(model(x[rows] + noise), y[rows])
        if step == spoil:
            loss = loss * math.nan
        if step == blow_up:
            loss.register_hook(lambda gradient: gradient * math.nan)
        return {"loss": loss, "half": loss / 2}

    def evaluate(epoch):
        if evaluated is not None:
            return {"loss": evaluated[epoch - 1]}
        logits = model(x)
        accuracy = (logits.argmax(1) == y).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, y), "accuracy": accuracy}

    settings = {"epochs": 6, "batch_size": 32, "lr": 1e-2}
    settings |= {name: options.pop(name) for name in list(options) if name in known_settings()}
    options = {"seed": 0, "evaluate": evaluate, **options}
    objective = BatchLoss(model, batch_loss, N, options.pop("evaluate"))
    result = train_epochs(objective, EngineConfig(**settings), **options)
    return model, result


def known_settings():
    return EngineConfig.model_fields


def without_times(history):
    return [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in history
    ]


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
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
        {"monitor": "-accuracy", "ema_decay": 0.9, "schedule": "plateau", "plateau_patience": 0},
        {"precision": "float16", "optimizer": "sgd", "schedule": "step", "lr_step": 2},
        {"lookahead": 0.9, "optimizer": "sgd", "schedule": "linear", "warmup_epochs": 2.0},
    ],
    ids=["averaged", "scaled", "looking-ahead"],
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
    model, _ = run(checkpoint=tmp_path / "c", checkpoint_seconds=3600.0)
    assert written == [0, 6]
    again, _ = run(checkpoint=tmp_path / "c")
    assert written == [0, 6] and same_weights(weights_of(again), weights_of(model))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(checkpoint=tmp_path / "c", epochs=1)
    for other in ({"lr": 1e-3}, {"seed": 1}, {"fingerprint": "other data"}):
        with pytest.raises(ValueError, match="belongs to another run"):
            run(**{"checkpoint": tmp_path / "c", "epochs": 1, **other})


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
    good, _ = run(epochs=2, schedule="constant", monitor="-loss", evaluated=[0.0, 1.0])
    broken = make_model()
    with pytest.raises(ValueError, match=r"step 2 of 3 of epoch 3.*of epoch 2"):
        run(
            broken,
            spoil=7,
            schedule="constant",
            monitor="-loss",
            evaluated=[0.0, 1.0],
            checkpoint=tmp_path / "c",
        )
    assert same_weights(weights_of(broken), weights_of(good))
    _, result = run(
        checkpoint=tmp_path / "c", schedule="constant", monitor="-loss", evaluated=range(6)
    )
    assert len(result.history) == 6


@pytest.mark.parametrize("ema_decay", [None, 0.5])
@pytest.mark.parametrize("bad", [{"spoil": 7}, {"blow_up": 7}, {"blow_up": 8}], ids=str)
def test_weights_that_are_not_finite_are_neither_kept_nor_saved(bad, ema_decay, tmp_path):
    options = {"schedule": "constant", "ema_decay": ema_decay, "jitter": 0}
    good, _ = run(epochs=2, **options)
    broken = make_model()
    with pytest.raises(ValueError, match=r"no longer finite .* of epoch 3\. .*is of epoch 2\."):
        run(broken, **bad, checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(broken), weights_of(good))
    again, result = run(checkpoint=tmp_path / "c", **options)
    assert same_weights(weights_of(again), weights_of(run(**options)[0]))
    assert len(result.history) == 6


def test_the_message_names_the_epoch_of_the_last_checkpoint(tmp_path):
    with pytest.raises(ValueError, match=r"of epoch 4\. .*is of epoch 2\."):
        run(spoil=10, checkpoint=tmp_path / "c", checkpoint_every=2)


@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_a_run_that_is_broken_off_within_an_epoch_keeps_the_last_whole_one(ema_decay):
    model, seen = make_model(), []
    x, y = make_rows()

    def batch_loss(rows, generator, step):
        if step == 7:
            raise KeyboardInterrupt
        return {"loss": nn.functional.cross_entropy(model(x[rows]), y[rows])}

    config = EngineConfig(epochs=6, batch_size=32, ema_decay=ema_decay)
    with pytest.warns(UserWarning, match="the weights of epoch 2 are kept"):
        objective = BatchLoss(
            model, batch_loss, N, lambda epoch: seen.append(weights_of(model)) or {}
        )
        result = train_epochs(objective, config, seed=0)
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
    def rates(**settings):
        config = EngineConfig(lr=1.0, epochs=8, **settings)
        return [rate_factor(config, step, 2, [1.0] * (step // 2)) for step in range(16)]

    assert rates(schedule="constant") == [1.0] * 16
    warm = rates(schedule="constant", warmup_epochs=1.5)
    assert warm == [0.25, 0.5, 0.75] + [1.0] * 13
    stepped = rates(schedule="step", lr_step=3, lr_gamma=0.5)
    assert stepped == [1.0] * 6 + [0.5] * 6 + [0.25] * 4
    cosine = rates(schedule="cosine", min_lr_ratio=0.1)
    assert cosine[0] == 1.0 and cosine[8] == pytest.approx(0.55) and cosine[-1] > 0.1
    linear = rates(schedule="linear", warmup_epochs=1.5, warmup_start=0.2, min_lr_ratio=0.35)
    assert linear[:4] == pytest.approx([0.4, 0.6, 0.8, 1.0])
    assert linear[4:] == pytest.approx([1 - 0.05 * step for step in range(1, 13)])
    assert rates(schedule="plateau", plateau_patience=1, lr_gamma=0.5, min_lr_ratio=0.3) == (
        [1.0] * 6 + [0.5] * 4 + [0.3] * 6
    )


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
    average, expected = WeightAverage(model, 0.5), 0.0
    for step in range(20):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
    with average.applied():
        assert float(model.weight.detach()) == pytest.approx(expected, rel=1e-5)
    assert float(model.weight.detach()) == 19.0


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
    with pytest.raises(ValueError, match="Did you mean 'optimizer'"):
        EngineConfig(optimiser="sgd")
    with pytest.raises(ValueError, match="Evaluated: nothing"):
        run(monitor="loss", evaluate=None)
    with pytest.raises(ValueError, match="name one with monitor"):
        run(schedule="plateau")
    with pytest.raises(ValueError, match="Evaluated: loss, accuracy"):
        run(monitor="nll")
    with pytest.raises(ValueError, match="leaves nothing"):
        train_epochs(BatchLoss(make_model(), dict, 0), EngineConfig(), seed=0)
