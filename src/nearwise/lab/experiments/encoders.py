"""Any encoder by its text: those of the probes, and models that nearwise itself trained."""

from pathlib import Path

from nearwise.data.images.seen import kept_digests
from nearwise.estimators import AttnKNNClassifier
from nearwise.estimators.images import image_embedders
from nearwise.lab.experiments.vit import load_vit_encoder
from nearwise.lab.experiments.vit.outputs import ARGS, MODEL
from nearwise.memory.store import MANIFEST
from nearwise.nn.field import PerceiverAutoencoder
from nearwise.probes import EmbedderEncoder, Encoder, StoredFeatures, load_encoder


def open_encoder(
    text: str, image_size: tuple[int, int], channels: int, *, seed: int = 0
) -> Encoder | StoredFeatures:
    """Make the encoder that a text names.

    Parameters
    ----------
    text : str
        The folder of a classifier fitted on images, or of a run of ``nearwise vit train``; or
        what `nearwise.probes.load_encoder` knows.
    image_size, channels, seed
        As for `load_encoder`.

    Raises
    ------
    ValueError
        If the text names none of these, or what it names cannot be read.
    """
    folder = Path(text)
    run = folder.parent if folder.name == MODEL else folder
    if (run / ARGS).is_file():
        vit = load_vit_encoder(run)
        vit.trained_on = kept_digests(run)
        return vit
    if (folder / MANIFEST).is_file():
        return EmbedderEncoder(image_embedders(AttnKNNClassifier.load(folder))[0])
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} holds no model: neither one of transformers nor a neural field, vision "
            "transformer or classifier that nearwise trained. Give the folder that it was saved to."
        )
    made = load_encoder(text, image_size, channels, seed=seed)
    if isinstance(made, PerceiverAutoencoder):
        made.trained_on = kept_digests(folder)
    return made
