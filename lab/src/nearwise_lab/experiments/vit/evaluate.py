"""Trained models of a run: evaluation on test images, and use as an encoder."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nearwise.functional.devices import choose_device
from nearwise_lab.experiments.vit.data import load_vit_data
from nearwise_lab.experiments.vit.learner import SupervisedImages
from nearwise_lab.experiments.vit.model import rebuilt
from nearwise_lab.experiments.vit.outputs import load_model
from nearwise_lab.experiments.vit.settings import HOW, OF_DATA, VitSettings
from nearwise_lab.probing import VisionTransformerEncoder

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
    test = data.test.to(device)
    return SupervisedImages(model.to(device), test, scale, len(data.classes), merged).measure(test)


def load_vit_encoder(folder: str | os.PathLike[str]) -> VisionTransformerEncoder:
    """Load the encoder that a run of `train_vit` left.

    Random candidates are drawn in no evaluation (`sample_in_eval` is off): what an image gives
    depends on the image alone.

    Parameters
    ----------
    folder : path
        The run's `output_dir`.

    Raises
    ------
    ValueError
        If there is no model, or it is damaged or newer than this version.
    """
    state, meta = load_model(Path(folder))
    settings = VitSettings(**{**meta["settings"], "sample_in_eval": False})
    model, scale = rebuilt(settings, state, meta)
    config = settings.model_dump(mode="json", exclude={*HOW, *OF_DATA})
    return VisionTransformerEncoder(model, scale, config)
