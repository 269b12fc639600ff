"""Encoders with weights: transformers models, embedders, neural fields; and any by its text."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearwise.data.images.pixels import kept_digests
from nearwise.memory.store import MANIFEST
from nearwise.nn import ImageEmbedder, VisionTransformer
from nearwise.nn.backbones import pretrained_backbone
from nearwise.nn.field import PRESETS, PerceiverAutoencoder, make_perceiver
from nearwise.nn.vit import PixelScale
from nearwise.probes.encoders import (
    Encoder,
    FunctionEncoder,
    Patches,
    Pixels,
    RandomInit,
    SparsePoints,
    module_fingerprint,
    seen_only,
)
from nearwise.probes.stored import StoredFeatures

KNOWN = (
    "pixels, patches:SIZE, points, random:PRESET, hf:NAME[@REVISION], the folder of a model that "
    "transformers or nearwise saved, an npy or npz file of features, or MODULE:FUNCTION"
)


class TransformersEncoder(nn.Module):
    """A vision model of transformers: its last tokens, or the map of a residual network.

    Pixels are resized and normalised inside, as the model's own files say.

    Parameters
    ----------
    source : str
        A name on the hub, NAME or NAME@REVISION, or the path of a folder.
    image_size : (int, int), optional
        Height and width that the model sees; default its own.

    Attributes
    ----------
    has_cls : bool
        Whether the first token stands for the whole image.

    Raises
    ------
    ValueError
        If no vision model can be loaded.
    ImportError
        If the extra "vision" is not installed.
    """

    ordered = True
    mean: Tensor
    std: Tensor

    def __init__(self, source: str, image_size: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.backbone, self._spec = pretrained_backbone(source, image_size)
        self.config = self._spec.to_dict()
        for name, values in (("mean", self._spec.mean), ("std", self._spec.std)):
            column = torch.tensor(values or (0.0 if name == "mean" else 1.0,)).reshape(-1, 1, 1)
            self.register_buffer(name, column)
        self.requires_grad_(False).eval()
        example = torch.zeros(1, self._spec.channels, *self._spec.image_size)
        with torch.no_grad():
            tokens = self.backbone.tokens(example)
            raw = self.backbone.model.config
        self.num_tokens: int | None = int(tokens.shape[1])
        self.token_dim = int(tokens.shape[2])
        self.has_cls = not hasattr(raw, "hidden_sizes") and hasattr(raw, "num_attention_heads")

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of images in [0, 1]; pixels outside the context are black."""
        x = in_channels(seen_only(x, context), self._spec.channels)
        if x.shape[-2:] != self._spec.image_size:
            x = F.interpolate(
                x,
                size=self._spec.image_size,
                mode=self._spec.resample,
                align_corners=False,
                antialias=True,
            )
        return self.backbone.tokens((x - self.mean) / self.std)

    def fingerprint(self) -> str:
        """Hash of settings and weights."""
        return module_fingerprint(self)


class VisionTransformerEncoder(nn.Module):
    """A vision transformer with any attention layer: its last tokens, behind the last norm.

    The token of the whole image comes first where the model has one, then those of the patches,
    row by row; registers are left out.

    Parameters
    ----------
    model : VisionTransformer
    scale : PixelScale
        What its training made of pixels.
    config : mapping, optional
        What decides the model beside its weights and its repr, for the cache of features.
    """

    ordered = True
    trained_on: Any = None

    def __init__(
        self,
        model: VisionTransformer,
        scale: PixelScale,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.scale = model, scale
        self.config = {"mean": scale.mean, "std": scale.std, "model": dict(config or {})}
        self.has_cls = model.pooling == "token"
        self.token_dim: int = model.head.in_features
        patches = model.grid_size[0] * model.grid_size[1]
        self.num_tokens: int | None = patches + self.has_cls

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Tokens of images in [0, 1]; pixels outside the context are black."""
        x = in_channels(seen_only(x, context), self.model.in_channels)
        tokens = self.model.forward_features(self.scale.of_unit(x))
        patches = tokens[:, self.model.num_prefix_tokens :]
        return torch.cat([tokens[:, :1], patches], dim=1) if self.has_cls else patches


class EmbedderEncoder(nn.Module):
    """An embedder of the classifier: one token an image, its key.

    Parameters
    ----------
    embedder : ImageEmbedder
    """

    ordered, num_tokens = True, 1

    def __init__(self, embedder: ImageEmbedder) -> None:
        super().__init__()
        self.embedder = embedder
        self.config = embedder.config
        self.token_dim = embedder.dim

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Keys (B, 1, dim) of images in [0, 1]; pixels outside the context are black."""
        pixels = (255 * seen_only(x, context)).round().to(torch.uint8)
        keys: Tensor = self.embedder(pixels, None)
        return keys[:, None]


def in_channels(x: Tensor, channels: int) -> Tensor:
    """Images (B, C, H, W) with the channels of a model; grey ones are repeated.

    Raises ValueError if they have colours and the model takes none.
    """
    if x.shape[1] not in (1, channels):
        raise ValueError(
            f"The model takes {channels} channels and the images have {x.shape[1]}. Convert them, "
            "or take another model."
        )
    return x.expand(-1, channels, -1, -1)


def load_encoder(
    text: str, image_size: tuple[int, int], channels: int, *, seed: int = 0
) -> Encoder | StoredFeatures:
    """Make the encoder that a text names.

    Parameters
    ----------
    text : str
        "pixels"; "patches:4"; "points"; "random:digits" (or another preset of the neural field,
        with untrained weights); "hf:NAME" or "hf:NAME@REVISION"; the folder of a transformers
        model or of a trained `PerceiverAutoencoder`; an npy or npz file with a row of features for
        each row of the data set; or "package.module:name", an encoder, or a function of images (see
        `FunctionEncoder`), or a function without arguments that makes one of them.
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
        return RandomInit(_field_maker(rest, image_size, channels), seed)
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
    raise ValueError(f"Encoder {text!r} is none of {KNOWN}.")


def _field_maker(
    preset: str, image_size: tuple[int, int], channels: int
) -> Callable[[], PerceiverAutoencoder]:
    return lambda: make_perceiver(preset, image_size=image_size, channels=channels)


def _from_folder(path: Path) -> Encoder:
    config = path / "config.json"
    if config.is_file():
        fields = json.loads(config.read_text(encoding="utf-8"))
        if "model_type" in fields:
            return TransformersEncoder(str(path))
        return PerceiverAutoencoder.load(path)
    raise ValueError(
        f"{path} holds no config.json: it is neither a transformers model nor a trained neural "
        "field. Give the folder that the model was saved to; classifiers and vision transformers "
        "that nearwise trained are opened by nearwise.probes.open_encoder."
    )


def _from_module(module: str, name: str, example: Tensor) -> Encoder:
    if "" not in sys.path:  # a module beside the user, where a command does not look
        sys.path.insert(0, "")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Encoder {module}:{name} cannot be had: {error}.") from error
    if hasattr(found, "encode") and not isinstance(found, type):
        return _announced(found, f"{module}:{name}")
    if not callable(found):
        raise ValueError(f"{module}:{name} is no function and has no encode method.")
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
    import inspect

    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


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
