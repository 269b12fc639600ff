"""A trained vision transformer as an encoder, to be probed."""

import os
from pathlib import Path

from nearwise_lab.experiments.vit.model import rebuilt
from nearwise_lab.experiments.vit.outputs import load_model
from nearwise_lab.experiments.vit.settings import HOW, OF_DATA, VitSettings
from nearwise_lab.probing import VisionTransformerEncoder


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
