"""Image backbones from transformers: named residual networks and pretrained vision models."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from nearwise.nn.fast_cnn import FAST_CNN_WIDTHS, FastCNN
from nearwise.warn import warn_user

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_FAST_CNN = "fast-cnn"  # model_type of its specification
_RESAMPLE = {2: "bilinear", 3: "bicubic"}


def load_weights(loader: Any, source: str, **options: Any) -> nn.Module:
    """Load a transformers model from a folder or the hub; ValueError if weights are missing.

    Weights are read only from safetensors: a pickle (.bin) can run code.
    """
    # Always float32: autocast handles half precision.
    model: nn.Module
    model, found = cached_first(
        loader.from_pretrained,
        source,
        dtype=torch.float32,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    missing = sorted(name for name in found["missing_keys"] if not name.startswith("pooler"))
    if missing:
        raise ValueError(f"its file lacks the weights {', '.join(missing[:3])}.")
    return model


def at_commit(source: str) -> tuple[str, dict[str, str]]:
    """Find the commit of a model on the hub, so that all of its files match.

    `source` is a folder, NAME (the present "main") or NAME@REVISION. Returns the name without
    its revision, and loader options with the commit as "revision"; no options for a folder.
    """
    from transformers.utils import cached_file

    if Path(source).is_dir():
        return source, {}
    name, _, revision = source.partition("@")
    found = cached_first(
        partial(cached_file, filename="config.json"), name, revision=revision or None
    )
    return name, {"revision": Path(found).parent.name}


def origin(name: str, options: Mapping[str, str]) -> str | None:
    """Return NAME@COMMIT for the result of `at_commit`, None for a folder."""
    return f"{name}@{options['revision']}" if options else None


def cached_first(load: Callable[..., Any], source: str, **options: Any) -> Any:
    """Call a transformers loader on the local cache, then on the hub."""
    # Without a network the hub costs half a minute of retries, so the local cache comes first.
    try:
        return load(source, local_files_only=True, **options)
    except OSError:
        return load(source, **options)


def pair(size: Any) -> tuple[int, int]:
    """Return (height, width) from one number or a pair."""
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return int(height), int(width)


def preprocessor(source: str, **options: str) -> dict[str, Any]:
    """Return pixel statistics from preprocessor_config.json, without an image library."""
    from transformers.utils import cached_file

    name = "preprocessor_config.json"
    quietly = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    found = cached_file(source, name, local_files_only=True, **quietly, **options)
    found = found or cached_file(source, name, **quietly, **options)
    fields = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
    normalizes = fields.get("do_normalize", True)
    mean = fields.get("image_mean", IMAGENET[0]) if normalizes else (0.0, 0.0, 0.0)
    std = fields.get("image_std", IMAGENET[1]) if normalizes else (1.0, 1.0, 1.0)
    return {
        "image_size": _processed_size(fields),
        "mean": tuple(float(value) for value in mean),
        "std": tuple(float(value) for value in std),
        "resample": _RESAMPLE.get(fields.get("resample", 2), "bilinear"),
    }


def _processed_size(fields: Mapping[str, Any]) -> tuple[int, int] | None:
    size = fields.get("crop_size") if fields.get("do_center_crop") else None
    size = size or fields.get("size")
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        return pair((size["height"], size["width"]) if "height" in size else edge)
    return None if size is None else pair(size)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text as a sentence."""
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    return text if text.endswith(".") else f"{text}."


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and load reports of transformers."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def transformers_module() -> ModuleType:
    """Import transformers; ImportError names the extra to install."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            'image embedders need the extra "vision": pip install nearwise[vision]'
        ) from error
    return transformers


Stem = Literal["auto", "cifar", "strided", "imagenet"]

NAMED: dict[str, dict[str, Any]] = {
    "resnet18": {
        "layer_type": "basic",
        "depths": (2, 2, 2, 2),
        "hidden_sizes": (64, 128, 256, 512),
    },
    "resnet50": {
        "layer_type": "bottleneck",
        "depths": (3, 4, 6, 3),
        "hidden_sizes": (256, 512, 1024, 2048),
    },
    "resnet-small": {
        "layer_type": "basic",
        "depths": (1, 1, 1),
        "hidden_sizes": (32, 64, 128),
        "embedding_size": 32,
    },
}
NAMES = (*FAST_CNN_WIDTHS, *NAMED)
IMAGENET_MODELS = {"resnet18": "microsoft/resnet-18", "resnet50": "microsoft/resnet-50"}


@dataclass(frozen=True)
class BackboneSpec:
    """Description of a backbone without its weights, in plain numbers and strings."""

    model: dict[str, Any]  # the configuration of the transformers model, or widths of a FastCNN
    image_size: tuple[int, int]  # height and width of the backbone's input
    channels: int
    # The first layers of a residual network; "imagenet" for every other model.
    stem: Literal["cifar", "strided", "imagenet"] = "imagenet"
    # Per channel, for pixels in [0, 1]; None if fitted on training images.
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resample: str = "bilinear"  # or "bicubic": resize method
    source: str | None = None  # source of the weights on the hub, NAME@COMMIT

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values for `from_dict`."""
        ready: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return ready

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "BackboneSpec":
        """Return the specification that `to_dict` described."""
        ready: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        return cls(**ready)


class Backbone(nn.Module):
    """A transformers vision model: maps images of `image_size` to one vector each."""

    def __init__(self, model: nn.Module, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.model = model
        self.width, self._options = _width(model), {}
        own = _own_size(model.config)
        accepted = signature(model.forward).parameters
        if own not in (None, image_size) and "interpolate_pos_encoding" in accepted:
            self._options["interpolate_pos_encoding"] = True

    def forward(self, pixels: Tensor) -> Tensor:
        """Features (B, width) of normalised pixels (B, c, h, w)."""
        return _vector(self.model(pixel_values=pixels, **self._options))

    def tokens(self, pixels: Tensor) -> Tensor:
        """Last features (B, L, width): transformer tokens, or the map of a residual network.

        A map is flattened row by row; class and register tokens of a transformer come first.
        """
        last: Tensor = self.model(pixel_values=pixels, **self._options).last_hidden_state
        return last.flatten(2).transpose(1, 2) if last.ndim == 4 else last

    def vector_and_stages(self, pixels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the vector of `forward`, and features of each depth averaged over the image.

        A residual network gives "stem" and one entry per stage; a transformer its layers at each
        quarter of the depth, averaged over tokens, and its "output".
        """
        output = self.model(pixel_values=pixels, output_hidden_states=True, **self._options)
        return _vector(output), _stages(output)


def _vector(output: Any) -> Tensor:
    last: Tensor = output.last_hidden_state
    if last.ndim == 4:
        return _pool(last)
    pooled: Tensor | None = getattr(output, "pooler_output", None)
    return last[:, 0] if pooled is None else pooled


def _stages(output: Any) -> dict[str, Tensor]:
    hidden = output.hidden_states
    if hidden[0].ndim == 4:
        names = ["stem", *(f"stage{depth}" for depth in range(1, len(hidden)))]
        return {name: _pool(h) for name, h in zip(names, hidden, strict=True)}
    last = len(hidden) - 1
    depths = sorted({max(1, round(last * quarter / 4)) for quarter in (1, 2, 3, 4)})
    layers = {f"layer{depth}": hidden[depth].mean(dim=1) for depth in depths}
    return {**layers, "output": output.last_hidden_state[:, 0]}


def named_backbone(
    name: str,
    image_size: tuple[int, int],
    channels: int,
    stem: Stem,
    pretrained: bool,
    widths: Sequence[int] | None = None,
) -> tuple[Backbone | FastCNN, BackboneSpec]:
    """Build one of `NAMES`, optionally with ImageNet weights.

    A pretrained network always takes 3 channels. `stem` "auto" depends on the larger side:
    "imagenet" above 64 pixels, else "cifar"; for "resnet-small" "strided" above 16 pixels, else
    "cifar". Warns UserWarning if the weights cannot be loaded: the network then starts from
    scratch.
    """
    if name in FAST_CNN_WIDTHS and not pretrained:
        widths = FAST_CNN_WIDTHS[name] if widths is None else widths
        fields = {"model_type": _FAST_CNN, "widths": [int(width) for width in widths]}
        spec = BackboneSpec(fields, image_size, channels)
        return build_backbone(spec), spec
    if widths is not None and name not in FAST_CNN_WIDTHS:
        raise ValueError(f"widths={widths!r} are those of a fast-cnn. Leave them out for {name!r}.")
    resolved = _resolve_stem(stem, name, max(image_size))
    if pretrained:
        model, source = _imagenet_model(name)
        if model is not None:
            fields = _config_dict(model.config)
            spec = BackboneSpec(fields, image_size, 3, resolved, *IMAGENET, source=source)
            _replace_stem(model, spec)
            return Backbone(model, image_size), spec
    config = transformers_module().ResNetConfig(num_channels=channels, **NAMED[name])
    spec = BackboneSpec(_config_dict(config), image_size, channels, resolved)
    return build_backbone(spec), spec


def pretrained_backbone(
    source: str, image_size: tuple[int, int] | None
) -> tuple[Backbone, BackboneSpec]:
    """Load a transformers vision model and its pixel statistics from the hub or a folder.

    `source` is NAME or NAME@REVISION, or a folder. Weights must be safetensors; pickles and code
    of the repository are never read. `image_size` None takes the model's own. Raises ValueError if
    the model cannot be found or read, or is not a vision model.
    """
    transformers = transformers_module()
    try:
        with quiet():
            name, options = at_commit(source)
            config = cached_first(
                transformers.AutoConfig.from_pretrained, name, trust_remote_code=False, **options
            )
            config = getattr(config, "vision_config", config)  # CLIP: the vision tower
            model = load_weights(
                transformers.AutoModel, name, config=config, trust_remote_code=False, **options
            )
            pixels = preprocessor(name, **options)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(
            f"No vision model could be loaded from {source!r}: {first_line(error)} Give a local "
            "folder with config.json and model.safetensors, or the name of a model on the hub, "
            "NAME or NAME@REVISION. Pickled weights (.bin) can run code and are not read: save "
            "such a model again with transformers."
        ) from error
    if model.main_input_name != "pixel_values":
        raise ValueError(
            f"The model {source!r} takes {model.main_input_name!r}, not images. Give a vision "
            "model, such as a ResNet, ViT, DINOv2, DINOv3 or CLIP."
        )
    _drop_untrained_pooler(model)
    own = pixels.pop("image_size") or _own_size(config) or (224, 224)
    size = image_size or own
    channels = int(getattr(config, "num_channels", 3))
    fields = _config_dict(model.config)
    spec = BackboneSpec(fields, size, channels, **pixels, source=origin(name, options))
    return Backbone(model, size), spec


def build_backbone(spec: BackboneSpec) -> Backbone | FastCNN:
    """Build the backbone of `spec` with random weights, without any download."""
    fields = dict(spec.model)
    if fields["model_type"] == _FAST_CNN:
        return FastCNN(spec.channels, fields["widths"])
    transformers = transformers_module()
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModel.from_config(config)
    _drop_untrained_pooler(model)
    _replace_stem(model, spec)
    return Backbone(model, spec.image_size)


def _imagenet_model(name: str) -> tuple[Any, str | None]:
    """Return a network with ImageNet weights, or None, and its source on the hub."""
    if name not in IMAGENET_MODELS:
        raise ValueError(
            f"There are no ImageNet weights for {name!r}. Pass pretrained=False, or take "
            f"{' or '.join(map(repr, IMAGENET_MODELS))}."
        )
    try:
        with quiet():
            hub_name, options = at_commit(IMAGENET_MODELS[name])
            model = load_weights(transformers_module().ResNetModel, hub_name, **options)
            return model, origin(hub_name, options)
    except ImportError:
        raise
    except Exception as error:  # the hub client has many errors for a missing network
        warn_user(
            f"ImageNet weights for {name!r} ({IMAGENET_MODELS[name]!r}) could not be loaded: "
            f"{first_line(error)} The backbone starts from scratch. Save the model with "
            "transformers on a machine that is online and give its folder as the backbone instead."
        )
        return None, None


def _replace_stem(model: Any, spec: BackboneSpec) -> None:
    if spec.stem == "imagenet":
        return
    first = model.embedder.embedder
    old = first.convolution
    first.convolution = nn.Conv2d(
        old.in_channels,
        old.out_channels,
        kernel_size=3,
        stride=2 if spec.stem == "strided" else 1,
        padding=1,
        bias=False,
    )
    nn.init.kaiming_normal_(first.convolution.weight, mode="fan_out", nonlinearity="relu")
    model.embedder.pooler = nn.Identity()


def _resolve_stem(stem: Stem, name: str, side: int) -> Literal["cifar", "strided", "imagenet"]:
    if stem != "auto":
        return stem
    if name == "resnet-small":
        return "strided" if side > 16 else "cifar"
    return "imagenet" if side > 64 else "cifar"


def _drop_untrained_pooler(model: Any) -> None:
    """Remove a pooler without pretrained weights; the class token is used instead."""
    if model.config.model_type in ("vit", "deit", "beit", "data2vec-vision"):
        model.pooler = None


def _width(model: Any) -> int:
    config = model.config
    sizes = getattr(config, "hidden_sizes", None)
    return int(sizes[-1] if sizes else config.hidden_size)


def _own_size(config: Any) -> tuple[int, int] | None:
    size = getattr(config, "image_size", None)
    return None if size is None else pair(size)


def _config_dict(config: Any) -> dict[str, Any]:
    # Differences from the defaults are enough, and independent of library versions.
    left_out = ("transformers_version", "dtype", "architectures")
    fields = {k: v for k, v in config.to_diff_dict().items() if k not in left_out}
    return {**fields, "model_type": config.model_type}


def _pool(features: Tensor) -> Tensor:
    return features.mean(dim=(2, 3))
