"""Settings of a neural field, and the folder that a field is saved in."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from nearwise.names import did_you_mean
from nearwise.safe_files import write_aside
from nearwise_lab.nn.field.layers import default_scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearwise_lab.nn.field.model import PerceiverAutoencoder


@dataclass(frozen=True)
class PerceiverConfig:
    """What a `PerceiverAutoencoder` is made of; saved with its weights.

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
        If a size is not positive or sizes do not fit each other.
    """

    image_size: tuple[int, int] = (32, 32)
    channels: int = 3
    latent_dims: tuple[int, ...] = (256, 384, 512)
    num_latents: int = 256
    cross_heads: int = 4
    self_heads: int = 8
    head_dim: int = 128
    num_process_layers: int = 4
    fourier_features: int = 96
    fourier_scale: float | None = None
    pixel_mean: float = 0.5
    pixel_std: float = 0.5

    def __post_init__(self) -> None:
        for name in ("image_size", "latent_dims"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in (
            "channels", "num_latents", "cross_heads", "self_heads", "head_dim", "fourier_features",
            "pixel_std",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive.")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise ValueError(f"image_size={self.image_size} must be (height, width).")
        if self.num_process_layers < 0:
            raise ValueError(f"num_process_layers={self.num_process_layers} must not be negative.")
        if self.fourier_scale is not None and not self.fourier_scale > 0:
            raise ValueError(f"fourier_scale={self.fourier_scale} must be positive, or None.")
        if not self.latent_dims or any(dim < 2 or dim % 2 for dim in self.latent_dims):
            raise ValueError(
                f"latent_dims={self.latent_dims} must name an even width for each stage."
            )

    @property
    def scales(self) -> tuple[float, float]:
        """Deviations of the frequencies along y and x."""
        height, width = self.image_size
        if self.fourier_scale is not None:
            return self.fourier_scale, self.fourier_scale
        return default_scale(height), default_scale(width)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Make a config of settings as JSON has them.

        Raises
        ------
        ValueError
            If a setting is not known.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f" Known: {', '.join(known)}."
                raise ValueError(f"Unknown setting {name!r} of a Perceiver.{hint}")
        return cls(**values)

    def differences(self, other: "PerceiverConfig") -> list[str]:
        """Report, setting by setting, how another config differs."""
        mine, theirs = self.as_dict(), other.as_dict()
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
    usual = ((8, 8), 1) if preset == "digits" else ((32, 32), 3)
    size = usual[0] if image_size is None else image_size
    return PerceiverConfig.from_dict(
        {
            **PRESETS[preset],
            "image_size": (size, size) if isinstance(size, int) else size,
            "channels": usual[1] if channels is None else channels,
            **changes,
        }
    )


WEIGHTS = "model.safetensors"
_KIND = "nearwise-perceiver-autoencoder"
_VERSION = 1


@dataclass(frozen=True)
class FieldFile:
    """A saved neural field, before its weights are read.

    Attributes
    ----------
    folder : Path
    config : PerceiverConfig
    run : dict
        As in `PerceiverAutoencoder`.
    """

    folder: Path
    config: PerceiverConfig
    run: dict[str, Any]


def save_model(model: "PerceiverAutoencoder", folder: str | Path) -> None:
    """Write a model; a process killed at any moment leaves the old or the new one.

    Raises OSError if the folder cannot be written to. Raises ValueError if `model.run` is not JSON.
    """
    path = Path(folder)
    try:
        header = json.dumps(
            {
                "kind": _KIND,
                "version": _VERSION,
                "model": model.config.as_dict(),
                "run": model.run,
            },
            indent=1,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"model.run cannot be written as JSON: {error}.") from error
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    write_aside(path / WEIGHTS, save(weights, metadata={"nearwise": header}))


def describe_model(folder: str | Path) -> FieldFile:
    """Read what a saved model is, without its weights.

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
    if kind != _KIND:
        raise ValueError(f"{file} holds a {kind}, not a neural field.")
    if version > _VERSION:
        raise ValueError(
            f"{file} has version {version} and this nearwise reads up to {_VERSION}. Upgrade "
            "nearwise: pip install -U nearwise."
        )
    return FieldFile(path, PerceiverConfig.from_dict(header["model"]), dict(header["run"]))


def load_model(
    make: "Callable[[PerceiverConfig], PerceiverAutoencoder]",
    folder: str | Path,
    *,
    expected: PerceiverConfig | None = None,
) -> "PerceiverAutoencoder":
    """Read a model with its weights into what `make` builds.

    Raises ValueError if it cannot be read, differs from `expected` (the message says in what), or
    weights are missing, strange or of another shape.
    """
    found = describe_model(folder)
    if expected is not None and (differences := found.config.differences(expected)):
        raise ValueError(
            f"The model in {found.folder} is another one than asked for: "
            f"{'; '.join(differences)}. Give its sizes, or name another folder."
        )
    model = make(found.config)
    try:
        model.load_state_dict(load_file(found.folder / WEIGHTS))
    except RuntimeError as error:
        raise ValueError(f"{found.folder / WEIGHTS} does not fit its sizes: {error}") from error
    model.run = found.run
    return model.eval()
