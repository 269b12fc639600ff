"""Encoders opened by a text, as the command line names them."""

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nearwise.memory.store import MANIFEST
from nearwise.nn.lite0 import NAME as LITE0
from nearwise.nn.lite0 import EfficientNetLite0
from nearwise.probes import Encoder, FunctionEncoder, TransformersEncoder
from nearwise_lab.data.trained_on import kept_digests
from nearwise_lab.nn.field import PRESETS, PerceiverAutoencoder, make_perceiver
from nearwise_lab.nn.field.config import WEIGHTS
from nearwise_lab.probing.encoders import (
    EmbedderEncoder,
    Patches,
    PhotographEncoder,
    Pixels,
    RandomInit,
    SparsePoints,
)
from nearwise_lab.probing.stored import StoredFeatures

KNOWN = (
    "pixels, patches:SIZE, points, random:PRESET, efficientnet-lite0, hf:NAME[@REVISION], the "
    "folder of a model that transformers or nearwise saved, an npy or npz file of features, or "
    "MODULE:FUNCTION"
)


def open_encoder(
    text: str, image_size: tuple[int, int], channels: int, *, seed: int = 0
) -> Encoder | StoredFeatures:
    """Make the encoder that a text names.

    Parameters
    ----------
    text : str
        "pixels"; "patches:4"; "points"; "random:digits" (or another preset of the neural field,
        with untrained weights); "efficientnet-lite0" (extra "images"); "hf:NAME" or
        "hf:NAME@REVISION"; the folder of a transformers model, of a trained `PerceiverAutoencoder`,
        of a classifier fitted on images, or one that an installed package offers by an entry point
        of the group ``nearwise.encoders`` (the lab: a run of ``nearwise vit train``); an npy or npz
        file with a row of features for each row of the data set; or "package.module:name", an
        encoder, or a function of images (see `FunctionEncoder`), or a function without arguments
        that makes one of them.
    image_size : (int, int)
        Height and width of the images to come.
    channels : int
    seed : int, default=0
        Of random weights.

    Raises
    ------
    ValueError
        If the text names none of these, or what it names cannot be read.
    """
    kind, _, rest = text.partition(":")
    path = Path(text)
    if text == "pixels":
        return Pixels(image_size, channels)
    if text == "points":
        return SparsePoints(image_size, channels)
    if kind == "patches" and not rest.isidentifier():  # else a module of that name is meant
        if not rest.isdecimal():
            raise ValueError(f"Encoder {text!r} names no size. Write patches:4.")
        return Patches(int(rest), image_size, channels)
    if kind == "random":
        if rest not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(f"Encoder {text!r} names none of the presets {known}.")
        make = partial(make_perceiver, rest, image_size=image_size, channels=channels)
        return RandomInit(make, seed)
    if text == LITE0:
        return PhotographEncoder()
    if kind == "hf":
        return TransformersEncoder(rest)
    if path.is_dir():
        return _from_folder(path)
    if path.suffix in (".npy", ".npz"):
        if not path.is_file():
            raise ValueError(f"There is no file of features at {path}.")
        return StoredFeatures.read(path)
    if kind and rest and not path.exists() and "/" not in text:
        return _from_module(kind, rest, torch.zeros(2, channels, *image_size))
    raise ValueError(f"Encoder {text!r} is not one of {KNOWN}.")


def _from_folder(folder: Path) -> Encoder:
    # every installed package may have a function from a folder to an encoder or None
    for plugin in entry_points(group="nearwise.encoders"):
        opened: Encoder | None = plugin.load()(folder)
        if opened is not None:
            return opened
    if (folder / MANIFEST).is_file():
        from nearwise.estimators import AttnKNNClassifier
        from nearwise.nn import ImageEmbedder

        row_models = AttnKNNClassifier.load(folder)._predictor.row_models
        for network in row_models.networks:
            if isinstance(network, EfficientNetLite0):
                return PhotographEncoder()
            if isinstance(network.embedder, ImageEmbedder):
                return EmbedderEncoder(network.embedder)
        raise ValueError(
            f"The classifier in {folder} was not fitted on images: it has no image embedder to "
            "probe."
        )
    if (folder / "config.json").is_file():
        return TransformersEncoder(str(folder))
    if not (folder / WEIGHTS).is_file():
        raise ValueError(
            f"{folder} holds no model: neither one of transformers nor a neural field, vision "
            "transformer or classifier that nearwise trained. Give the folder that it was saved to."
        )
    field = PerceiverAutoencoder.load(folder)
    field.trained_on = kept_digests(folder)
    return field


def _from_module(module: str, name: str, example: Tensor) -> Encoder:
    if "" not in sys.path:  # a module beside the user, where a command does not search
        sys.path.insert(0, "")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Encoder {module}:{name} cannot be loaded: {error}.") from error
    if hasattr(found, "encode") and not isinstance(found, type):
        return _announced(found, f"{module}:{name}")
    if not callable(found):
        raise ValueError(f"{module}:{name} is not a function and has no encode method.")
    if not isinstance(found, nn.Module) and _needs_nothing(found):
        made = found()
        if hasattr(made, "encode"):
            return _announced(made, f"{module}:{name}()")
        found = made
    return FunctionEncoder(found, example)


def _announced(encoder: Any, what: str) -> Encoder:
    missing = [name for name in ("token_dim", "num_tokens") if not hasattr(encoder, name)]
    if missing:
        raise ValueError(f"{what} has encode but no {' and no '.join(missing)}. Add them.")
    checked: Encoder = encoder
    return checked


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True
