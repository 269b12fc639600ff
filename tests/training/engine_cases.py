"""A small run of the training loop: two classes, with what may go wrong on the way."""

import math

import torch
from torch import nn

from nearwise.training import BatchLoss, EngineConfig, train_epochs

N = 90


def make_rows():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 4, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def make_model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))


def run(
    model=None,
    spoil=None,
    blow_up=None,
    jitter=0.1,
    evaluated=None,
    kind=EngineConfig,
    make_objective=lambda config, *loss: BatchLoss(*loss),
    last_rate=0.0,
    **options,
):
    """Train on two classes; `spoil` turns the loss of a step into NaN, `blow_up` its gradient.

    Settings are of `kind`; `make_objective` is given them and what a BatchLoss takes.
    """
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
    settings |= {name: options.pop(name) for name in list(options) if name in kind.model_fields}
    options = {"seed": 0, "evaluate": evaluate, **options}
    config = kind(**settings)
    objective = make_objective(config, model, batch_loss, N, options.pop("evaluate"))
    objective.last_rate = last_rate
    return model, train_epochs(objective, config, **options)


def without_times(history):
    return [
        {name: value for name, value in record.items() if "seconds" not in name}
        for record in history
    ]
