"""Any encoder by its text, models that nearwise itself trained among them."""

from importlib.metadata import entry_points
from pathlib import Path

from nearwise.data.images.seen import kept_digests
from nearwise.memory.store import MANIFEST
from nearwise.nn.field import PerceiverAutoencoder
from nearwise.probes.features.encoder import Encoder
from nearwise.probes.features.pretrained import EmbedderEncoder, load_encoder
from nearwise.probes.features.stored import StoredFeatures


def open_encoder(
    text: str, image_size: tuple[int, int], channels: int, *, seed: int = 0
) -> Encoder | StoredFeatures:
    """Make the encoder that a text names.

    Parameters
    ----------
    text : str
        The folder of a classifier fitted on images, or one that an installed package knows by an
        entry point of the group ``nearwise.encoders`` (the lab: a run of ``nearwise vit train``);
        or what `load_encoder` knows.
    image_size, channels, seed
        As for `load_encoder`.

    Raises
    ------
    ValueError
        If the text names none of these, or what it names cannot be read.
    """
    folder = Path(text)
    opened = _opened_by_plugin(folder) if folder.is_dir() else None
    if opened is not None:
        return opened
    if (folder / MANIFEST).is_file():
        from nearwise.classifier import AttnKNNClassifier
        from nearwise.classifier.inputs.images import image_embedders

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


def _opened_by_plugin(folder: Path) -> Encoder | None:
    """Ask every installed package; each has a function from a folder to an encoder or None."""
    for plugin in entry_points(group="nearwise.encoders"):
        found: Encoder | None = plugin.load()(folder)
        if found is not None:
            return found
    return None
