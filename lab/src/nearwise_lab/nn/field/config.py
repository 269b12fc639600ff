"""Settings of a neural field, and the folder that a field is saved in."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, field_validator
from safetensors import SafetensorError, safe_open

from nearwise.names import did_you_mean
from nearwise.training.settings import StrictSettings
from nearwise_lab.nn.field.layers import default_scale


class PerceiverConfig(StrictSettings):
    """Settings of a `PerceiverAutoencoder`; saved with its weights.

    Parameters
    ----------
    image_size : (int, int), default=(32, 32)
        Height and width that the scale of the Fourier features is meant for.
    channels : int, default=3
    latent_dims : tuple of int, default=(256, 384, 512)
        Width of the latent tokens in each cascaded stage; even.
    num_latents : int, default=256
        Tokens in each stage.
    cross_heads, self_heads, head_dim : int, default=4, 8, 128
        Heads of the attention to the image (and of the decoder) and among tokens, and the width of
        each. Heads times their width need not be the width of the tokens.
    num_process_layers : int, default=4
        Layers after the stages.
    fourier_features : int, default=96
        Frequencies of the coordinates.
    fourier_scale : float or None, default=None
        Their deviation; None makes neighboring pixels differ by about a radian in each axis.
    pixel_mean, pixel_std : float, default=0.5, 0.5
        Images in [0, 1] are normalised by these inside the model.

    Raises
    ------
    ValueError
        If a setting is not known, a size is not positive or sizes do not fit each other.
    """

    settings_of = "neural field's size"

    image_size: tuple[int, int] = (32, 32)
    channels: int = Field(3, ge=1)
    latent_dims: tuple[int, ...] = (256, 384, 512)
    num_latents: int = Field(256, ge=1)
    cross_heads: int = Field(4, ge=1)
    self_heads: int = Field(8, ge=1)
    head_dim: int = Field(128, ge=1)
    num_process_layers: int = Field(4, ge=0)
    fourier_features: int = Field(96, ge=1)
    fourier_scale: float | None = Field(None, gt=0)
    pixel_mean: float = 0.5
    pixel_std: float = Field(0.5, gt=0)

    @field_validator("image_size")
    @classmethod
    def _has_sides(cls, size: tuple[int, int]) -> tuple[int, int]:
        if min(size) < 1:
            raise ValueError(f"{size} must be (height, width), each at least 1.")
        return size

    @field_validator("latent_dims")
    @classmethod
    def _even(cls, dims: tuple[int, ...]) -> tuple[int, ...]:
        if not dims or any(dim < 2 or dim % 2 for dim in dims):
            raise ValueError(f"{dims} must name an even width for each stage.")
        return dims

    def __str__(self) -> str:
        """Write the settings as fingerprints of encoders hash them."""
        return repr(self)

    @property
    def scales(self) -> tuple[float, float]:
        """Deviations of the frequencies along y and x."""
        height, width = self.image_size
        if self.fourier_scale is not None:
            return self.fourier_scale, self.fourier_scale
        return default_scale(height), default_scale(width)

    def differences(self, other: "PerceiverConfig") -> list[str]:
        """Report, setting by setting, how another config differs."""
        mine, theirs = self.model_dump(mode="json"), other.model_dump(mode="json")
        return [f"{k} is {mine[k]}, not {theirs[k]}" for k in mine if mine[k] != theirs[k]]


_SMALL: dict[str, Any] = {
    "latent_dims": (128, 192, 256), "cross_heads": 4, "self_heads": 4, "head_dim": 64,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "original": {"fourier_scale": 15.0},
    "S": {**_SMALL, "num_latents": 128},
    "S64": {**_SMALL, "num_latents": 64},
    "XS": {
        "latent_dims": (64, 96, 128), "num_latents": 32, "cross_heads": 2, "self_heads": 4,
        "head_dim": 32, "fourier_features": 32,
    },
    "digits": {
        "latent_dims": (32, 48, 64), "num_latents": 16, "cross_heads": 2, "self_heads": 2,
        "head_dim": 16, "num_process_layers": 2, "fourier_features": 16,
    },
}  # fmt: skip


def perceiver_config(
    preset: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    **changes: Any,
) -> PerceiverConfig:
    """Return a preset for some images; see `make_perceiver`."""
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        raise ValueError(f"Unknown preset {preset!r}; known: {', '.join(PRESETS)}.{hint}")
    small, usual_channels = ((8, 8), 1) if preset == "digits" else ((32, 32), 3)
    size = small if image_size is None else image_size
    given = {
        "image_size": (size, size) if isinstance(size, int) else size,
        "channels": usual_channels if channels is None else channels,
    }
    return PerceiverConfig(**{**PRESETS[preset], **given, **changes})


WEIGHTS = "model.safetensors"
KIND, VERSION = "nearwise-perceiver-autoencoder", 1


class FieldFile(NamedTuple):
    """A saved neural field before its weights are read: folder, sizes, and how it came about."""

    folder: Path
    config: PerceiverConfig
    run: dict[str, Any]


def describe_model(folder: str | Path) -> FieldFile:
    """Read the description of a saved model, without its weights.

    Raises
    ------
    ValueError
        If there is no such model, it is damaged, or was written by a newer version.
    """
    path = Path(folder)
    file = path / WEIGHTS
    if not file.is_file():
        raise ValueError(
            f"There is no neural field in {path}: {WEIGHTS} is missing. Give a folder that "
            "'nearwise field train' or save() wrote."
        )
    try:
        with safe_open(file, framework="pt") as opened:
            header = json.loads((opened.metadata() or {})["nearwise"])
        kind, version = header["kind"], header["version"]
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged, or not a model of nearwise ({error!r}).") from error
    if kind != KIND:
        raise ValueError(f"{file} holds a {kind}, not a neural field.")
    if version > VERSION:
        raise ValueError(
            f"{file} has version {version} and this nearwise reads up to {VERSION}. Upgrade "
            "nearwise: pip install -U nearwise."
        )
    return FieldFile(path, PerceiverConfig(**header["model"]), dict(header["run"]))


def find_models(folder: str | Path, wanted: Mapping[str, Any]) -> list[FieldFile]:
    """Find saved models below a folder, by entries of `run`.

    Names of files and folders play no role.

    Parameters
    ----------
    folder : path
        Searched with all folders in it; need not exist.
    wanted : mapping
        Entries that `run` must have, such as ``{"objective": "sparse", "seed": 0}``.

    Returns
    -------
    found : list of FieldFile
        Those with the most steps first, then by path. Damaged ones are left out.
    """
    found = []
    # os.walk passes over what another process removes meanwhile
    places = sorted(Path(directory) for directory, _, names in os.walk(folder) if WEIGHTS in names)
    for directory in places:
        try:
            one = describe_model(directory)
        except ValueError:
            continue
        if all(name in one.run and one.run[name] == value for name, value in wanted.items()):
            found.append(one)
    return sorted(found, key=lambda one: -int(one.run.get("step", 0)))
