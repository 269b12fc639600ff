"""Evaluate a trained vision transformer on its test images."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from nearwise.functional.devices import choose_device
from nearwise.metrics import evaluate_probabilities
from nearwise_lab.experiments.vit.data import VitData, load_vit_data
from nearwise_lab.experiments.vit.image_rows import ImageRows
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.experiments.vit.model import rebuilt
from nearwise_lab.experiments.vit.outputs import load_model
from nearwise_lab.experiments.vit.recipe import engine_config, make_recipe
from nearwise_lab.experiments.vit.settings import HOW, OF_DATA, VitSettings

# What a trained model may be evaluated with in another way than it was trained.
AT_TEST = (*OF_DATA, *HOW, "noise", "noise_on", "batch_size", "sample_in_eval", "use_amp")


def evaluate_vit(settings: VitSettings, given: Iterable[str] = ()) -> dict[str, Any]:
    """Evaluate the trained model of a folder on its test part.

    Parameters
    ----------
    settings : VitSettings
        `output_dir` gives where the model is.
    given : iterable of str, optional
        Names of settings that were given; the others are those of the model's training. Only
        data, noise, batch size, device, use_amp and sample_in_eval may differ.

    Returns
    -------
    metrics : dict
        Metrics of `evaluate_probabilities`, top1 and top5 in percent, loss, n_test, dataset, noise.

    Raises
    ------
    ValueError
        If there is no model, a setting contradicts it, or the data have other classes.
    """
    device = choose_device(settings.device)
    state, meta = load_model(Path(settings.folder))
    asked = {name: getattr(settings, name) for name in set(given)}
    for name, value in asked.items():
        trained = meta["settings"].get(name)
        if name not in AT_TEST and trained != value:
            raise ValueError(
                f"The model in {settings.folder} was trained with {name}={trained!r}, not "
                f"{value!r}. Leave {name} out, or train another one."
            )
    merged = VitSettings(**{**meta["settings"], **asked, "output_dir": settings.output_dir})
    data = load_vit_data(merged)
    if data.classes != meta["classes"]:
        raise ValueError(
            f"{merged.dataset} has other classes than {meta['settings']['dataset']}, which the "
            "model was trained on."
        )
    model, scale = rebuilt(merged, state, meta)
    model.to(device)
    parts = SupervisedImages(
        model,
        data.test.to(device),
        scale,
        data.n_classes,
        make_recipe(merged, data),
        engine_config(merged).precision,
    )
    return measure_test(parts, data, data.test.to(device), merged)


def measure_test(
    parts: SupervisedImages, data: VitData, rows: ImageRows, settings: VitSettings
) -> dict[str, Any]:
    """All metrics of a model on test images."""
    started = time.perf_counter()
    logits = parts.predict(rows, seed=settings.seed).cpu()  # no float64 on some devices
    seconds = time.perf_counter() - started
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("The model's logits are not all finite; it cannot be evaluated.")
    labels = rows.labels.cpu()
    proba = F.softmax(logits.double(), dim=1).numpy()
    five = logits.topk(min(5, data.n_classes), dim=1).indices == labels[:, None]
    metrics = evaluate_probabilities(labels.numpy(), proba)
    return {
        "dataset": data.name,
        "n_test": len(labels),
        "noise": parts.recipe.noise_in(training=False),
        "top1": 100 * metrics["accuracy"],
        "top5": 100 * float(five.any(1).float().mean()),
        **metrics,
        "test_seconds": seconds,
    }
