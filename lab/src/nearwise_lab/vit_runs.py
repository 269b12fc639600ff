"""Runs of ``nearwise vit train``, recognized by their files, as encoders for ``nearwise probe``."""

from pathlib import Path
from typing import TYPE_CHECKING

from nearwise_lab.vit_files import ARGS, MODEL

if TYPE_CHECKING:
    from nearwise_lab.probing import VisionTransformerEncoder


def open_run(folder: Path) -> "VisionTransformerEncoder | None":
    """Open a run of `train_vit`, or the model in it; None for any other folder."""
    run = folder.parent if folder.name == MODEL else folder
    if not (run / ARGS).is_file():
        return None
    from nearwise_lab.data.trained_on import kept_digests
    from nearwise_lab.experiments.vit import load_vit_encoder

    encoder = load_vit_encoder(run)
    encoder.trained_on = kept_digests(run)
    return encoder
