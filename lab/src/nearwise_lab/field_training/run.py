"""Train a neural field on images, without labels."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from nearwise.data.contexts import Context
from nearwise.data.images.pixels import as_images, as_unit_floats
from nearwise.functional.devices import choose_device
from nearwise.training import train_epochs
from nearwise.training.rows import count_batches
from nearwise_lab.field_training.config import FieldConfig
from nearwise_lab.field_training.learner import FieldLearner
from nearwise_lab.nn.field import PerceiverAutoencoder
from nearwise_lab.training.runs import RunLoss, compiled

_MOST_EVALUATED = 1000  # validation images evaluated after an epoch
_EVALUATED_AT_ONCE = 250
_SEEDS_APART = 10_007
_NCE_RAMP = 0.125  # share of the steps in which the contrastive term rises


def train_field(
    images: NDArray[Any] | Tensor,
    config: FieldConfig,
    *,
    validation: NDArray[Any] | Tensor | None = None,
    start_from: PerceiverAutoencoder | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    checkpoint: str | Path | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> tuple[PerceiverAutoencoder, list[dict[str, Any]]]:
    """Train a Perceiver autoencoder.

    Every objective takes the same steps for the same settings, so that arms can be compared: a
    run with the contrastive term and its control without it differ in nothing else.

    Parameters
    ----------
    images : array of shape (n, C, H, W), (n, H, W, C) or (n, H, W)
        uint8, or floating in [0, 1].
    config : FieldConfig
    validation : array like `images`, optional
        Images to follow the error on; nothing is chosen by them.
    start_from : PerceiverAutoencoder, optional
        Model to go on from; it stays as it is. Default: random weights.
    seed : int, default=0
        Decides first weights, batches, contexts and views; those of a run that goes on from
        another one are not the same again.
    device : torch.device or str, default="cpu"
        "auto" is a GPU where there is one.
    checkpoint : path of a folder, optional
        Written after epochs; where it exists the run goes on from it, to the same result.
    progress : callable, optional
        Called with the record of each epoch.
    on_step : callable, optional
        Called at every step with its number, from 0, and with how many there are.

    Returns
    -------
    model : PerceiverAutoencoder
        In eval mode. Its `run` holds objective, settings, seed, steps, whether all of them were
        done, and the same of each run before.
    history : list of dict
        See `TrainingResult`; "train" holds loss, mse and nce, "evaluation" what
        `reconstruction_errors` returns.

    Raises
    ------
    ValueError
        If images are of a wrong shape or range, `start_from` has other sizes than the settings
        (the message names which), or the loss is no longer finite.
    """
    pixels = as_images(images)
    held_out = None if validation is None else as_images(validation, "validation")
    model = _starting_model(pixels, config, start_from, seed)
    # a run that goes on from one of the same seed must not repeat its batches and contexts
    own_seed = seed + _SEEDS_APART * len(model.run.get("stages", []))
    learner = FieldLearner(model, config, own_seed)
    device = choose_device(device)
    fingerprint = _fingerprint([pixels, held_out], config)
    pixels = pixels.to(device)
    held_out = None if held_out is None else held_out[:_MOST_EVALUATED].to(device)
    n_steps = config.epochs * count_batches(len(pixels), config.batch_size)

    def batch_loss(rows: Tensor, generator: torch.Generator, step: int) -> dict[str, Tensor]:
        if on_step is not None:
            on_step(step, n_steps)
        rows = rows.to(device)
        batch = as_unit_floats(pixels[rows])
        shown, queried = learner.shown(rows, 2 * step), learner.queried(rows, step)
        if not config.has_nce:
            losses = learner(batch, shown, queried)
            return {"loss": losses["mse"], **losses}
        second = learner.second_view(batch, learner.shown(rows, 2 * step + 1), generator)
        losses = learner(batch, shown, queried, second)
        weight = config.nce_weight * min(1.0, (step + 1) / max(1.0, _NCE_RAMP * n_steps))
        return {"loss": losses["mse"] + weight * losses["nce"], **losses}

    def evaluate(epoch: int) -> dict[str, float]:
        assert held_out is not None  # else it is not passed on
        return reconstruction_errors(model, held_out, Context("per-image", config.context))

    settings, judge = config.engine(), None if held_out is None else evaluate
    with compiled(learner, settings):
        result = train_epochs(
            RunLoss(learner, batch_loss, len(pixels), judge, settings),
            settings,
            seed=own_seed,
            device=device,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
            progress=progress,
        )
    model.run = _describe(config, seed, model.run, len(pixels), result.best_epoch, fingerprint)
    return model.eval(), result.history


@torch.no_grad()
def reconstruction_errors(
    model: PerceiverAutoencoder, images: NDArray[Any] | Tensor, sparse: Context
) -> dict[str, float]:
    """Mean squared errors of reconstructions, from all pixels and from some.

    Parameters
    ----------
    model : PerceiverAutoencoder
    images : array of shape (n, C, H, W), (n, H, W, C) or (n, H, W)
        uint8, or floating in [0, 1].
    sparse : Context
        Which pixels the second error is from.

    Returns
    -------
    errors : dict
        mse and psnr (dB, of a range of 1) from all pixels; sparse_mse and sparse_psnr from some,
        over all pixels; hidden_mse over those that were not shown.
    """
    pixels = as_images(images)
    device = model.fourier.frequencies.device
    height, width = pixels.shape[2:]
    totals = torch.zeros(4, dtype=torch.float64)
    for rows in torch.arange(len(pixels)).split(_EVALUATED_AT_ONCE):
        batch = as_unit_floats(pixels[rows.to(pixels.device)].to(device))
        shown = sparse.indices(height * width, rows.to(device), draw=-1)
        full, some = (
            (model.reconstruct(batch, context).float() - batch).square().mean(1).flatten(1)
            for context in (None, shown)
        )
        hidden = torch.ones_like(some)
        if shown is not None:
            hidden = hidden.scatter(1, shown, 0.0)
        sums = (full.sum(), some.sum(), (some * hidden).sum(), hidden.sum())
        totals += torch.stack(sums).double().cpu()
    n = len(pixels) * height * width
    mse, sparse_mse = (float(total) / n for total in totals[:2])
    return {
        "mse": mse,
        "psnr": -10 * math.log10(max(mse, 1e-12)),
        "sparse_mse": sparse_mse,
        "sparse_psnr": -10 * math.log10(max(sparse_mse, 1e-12)),
        "hidden_mse": float(totals[2] / totals[3].clamp_min(1)),
    }


def _starting_model(
    pixels: Tensor, config: FieldConfig, start: PerceiverAutoencoder | None, seed: int
) -> PerceiverAutoencoder:
    """Return a new model, or a copy of the starting model."""
    sizes = config.perceiver((pixels.shape[2], pixels.shape[3]), pixels.shape[1])
    model = PerceiverAutoencoder(sizes, random_state=seed)
    if start is not None:
        if differences := start.config.differences(sizes):
            raise ValueError(
                f"The model to start from is not that of the settings: {'; '.join(differences)}. "
                "Change preset or model, or start from another."
            )
        model.load_state_dict(start.state_dict())
        model.run = dict(start.run)
    return model


def _describe(
    config: FieldConfig, seed: int, before: dict[str, Any], n_rows: int, epochs: int, data: str
) -> dict[str, Any]:
    """Return the origin of weights."""
    steps = epochs * count_batches(n_rows, config.batch_size)
    stages = [*before.get("stages", []), f"{config.objective}:{epochs}"]
    return {
        "objective": config.objective,
        "stages": stages,
        "step": before.get("step", 0) + steps,
        "seed": seed,
        "epochs": epochs,
        "finished": epochs == config.epochs,
        "n_images": n_rows,
        "fingerprint": data,
        "settings": config.model_dump(mode="json"),
        "before": {k: v for k, v in before.items() if k != "before"} or None,
    }


def _fingerprint(parts: list[Tensor | None], config: FieldConfig) -> str:
    """Hash of images and settings."""
    digest = hashlib.sha256(config.model_dump_json(exclude=config.free).encode())
    for part in parts:
        if part is not None:
            digest.update(str(tuple(part.shape)).encode())
            digest.update(part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
