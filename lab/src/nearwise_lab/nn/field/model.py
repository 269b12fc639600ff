"""Neural fields: an image read into tokens, and read out of them at any coordinate."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from nearwise.safe_files import write_aside
from nearwise_lab.nn.field.config import (
    KIND,
    VERSION,
    WEIGHTS,
    PerceiverConfig,
    describe_model,
    perceiver_config,
)
from nearwise_lab.nn.field.layers import (
    Decoder,
    GaussianFourierFeatures,
    ProcessLayer,
    Stage,
    check_coords,
    coordinate_grid,
)
from nearwise_lab.nn.vit import waves


class PerceiverAutoencoder(nn.Module):
    """Encode an image, or some of its pixels, as tokens; decode it at any coordinates.

    Every stage of the cascade reads all the points it is given with tokens of its own and adds
    what the stage before found. The order of the points does not matter.

    Parameters
    ----------
    config : PerceiverConfig
    random_state : int, optional
        Seed of the first weights; torch's random state stays as it was. Default: drawn from it.

    Attributes
    ----------
    token_dim, num_tokens : int
        Of the tokens that `encode` returns.
    run : dict
        How the weights came about: objective, settings, steps. Empty before training; saved and
        loaded with the weights.
    trained_on : uint64 array or None
        Digests of the training images, where a probe opened the model's folder and found them.

    References
    ----------
    Jaegle et al., "Perceiver IO: A General Architecture for Structured Inputs and Outputs",
    ICLR 2022.

    Examples
    --------
    >>> model = make_perceiver("digits")
    >>> tokens = model.encode(torch.rand(2, 1, 8, 8))
    >>> tokens.shape
    torch.Size([2, 16, 64])
    >>> model.decode(tokens, coordinate_grid(20, 20)).shape
    torch.Size([2, 400, 1])
    """

    trained_on: Any = None

    def __init__(self, config: PerceiverConfig, *, random_state: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.run: dict[str, Any] = {}
        self.token_dim, self.num_tokens = config.latent_dims[-1], config.num_latents
        width, dims = 2 * config.fourier_features, config.latent_dims
        heads = (config.cross_heads, config.self_heads, config.head_dim)
        with torch.random.fork_rng(devices=[], enabled=random_state is not None):
            if random_state is not None:
                torch.manual_seed(random_state)
            self.fourier = GaussianFourierFeatures(config.fourier_features, config.scales)
            self.stages = nn.ModuleList(
                Stage(_table(config, dim), config.channels + width, former, *heads)
                for former, dim in zip((None, *dims), dims, strict=False)
            )
            self.processor = nn.Sequential(
                *(
                    ProcessLayer(self.token_dim, config.self_heads, config.head_dim)
                    for _ in range(config.num_process_layers)
                )
            )
            self.decoder = Decoder(
                width, self.token_dim, config.channels, config.cross_heads, config.head_dim
            )

    def encode(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Encode images as tokens.

        Parameters
        ----------
        x : float Tensor of shape (B, channels, H, W)
            In [0, 1]; normalised inside. The size may differ from `config.image_size`.
        context : int64 Tensor of shape (B, n), optional
            Row-major positions of the pixels to read; default all. See `nearwise.data.Context`.

        Returns
        -------
        tokens : Tensor of shape (B, num_tokens, token_dim)

        Raises
        ------
        ValueError
            If shapes or ranges do not fit, or the context is empty.
        """
        self._check_images(x)
        if context is not None:
            self._check_context(x, context)
        return self.encode_points(*self._points(x, context))

    def encode_points(self, points: Tensor, where: Tensor) -> Tensor:
        """Encode points at any positions as tokens; nothing is checked.

        Parameters
        ----------
        points : Tensor of shape (B, n, channels)
            Values in [0, 1].
        where : Tensor of shape (B, n, 2 * fourier_features)
            Fourier features of their coordinates.
        """
        values = (points - self.config.pixel_mean) / self.config.pixel_std
        points = torch.cat([values, where], dim=-1)
        tokens: Tensor | None = None
        for stage in self.stages:
            tokens = stage(points, tokens)
        processed: Tensor = self.processor(tokens)
        return processed

    def decode(self, tokens: Tensor, coords: Tensor) -> Tensor:
        """Decode values of images at some coordinates.

        Parameters
        ----------
        tokens : Tensor of shape (B, num_tokens, token_dim)
        coords : Tensor of shape (Q, 2) or (B, Q, 2)
            (y, x) in [-1, 1], see `coordinate_grid`.

        Returns
        -------
        values : Tensor of shape (B, Q, channels)
            In the unit of the images, [0, 1], but not clipped to it.

        Raises
        ------
        ValueError
            If shapes do not fit or coordinates lie outside the image.
        """
        if tokens.ndim != 3 or tokens.shape[1:] != (self.num_tokens, self.token_dim):
            raise ValueError(
                f"tokens must be (batch, {self.num_tokens}, {self.token_dim}), as encode returns "
                f"them; got {tuple(tokens.shape)}."
            )
        check_coords(coords, len(tokens))
        return self.pixels(self.features(tokens, coords))

    def features(self, tokens: Tensor, coords: Tensor) -> Tensor:
        """Return the decoder's last features, (B, Q, 2 * fourier_features); nothing is checked."""
        coords = coords if coords.ndim == 3 else coords[None]
        return self.decoder.features(self.fourier(coords), tokens)

    def pixels(self, features: Tensor) -> Tensor:
        """Turn features (..., 2 * fourier_features) into values (..., channels) in [0, 1]."""
        values = self.decoder.to_pixel(features)
        return values * self.config.pixel_std + self.config.pixel_mean

    def reconstruct(
        self, x: Tensor, context: Tensor | None = None, *, size: tuple[int, int] | None = None
    ) -> Tensor:
        """Encode images and decode them at every pixel.

        Parameters
        ----------
        x, context
            As in `encode`.
        size : (int, int), optional
            Height and width to decode at; default those of `x`.

        Returns
        -------
        images : Tensor of shape (B, channels, height, width)
        """
        height, width = size or (x.shape[2], x.shape[3])
        grid = coordinate_grid(height, width, device=x.device)
        values = self.decode(self.encode(x, context), grid)
        return values.transpose(1, 2).unflatten(2, (height, width))

    def forward(self, x: Tensor, coords: Tensor, context: Tensor | None = None) -> Tensor:
        """Encode images and decode them at `coords`; see `encode` and `decode`."""
        return self.decode(self.encode(x, context), coords)

    def save(self, folder: str | Path) -> None:
        """Write weights, settings and `run`; a process killed meanwhile leaves the former model.

        Raises OSError if the folder cannot be written to, ValueError if `run` is not JSON.
        """
        header = {
            "kind": KIND,
            "version": VERSION,
            "model": self.config.model_dump(mode="json"),
            "run": self.run,
        }
        try:
            text = json.dumps(header, indent=1)
        except (TypeError, ValueError) as error:
            raise ValueError(f"model.run cannot be written as JSON: {error}.") from error
        weights = {name: t.detach().cpu().contiguous() for name, t in self.state_dict().items()}
        write_aside(Path(folder) / WEIGHTS, save(weights, metadata={"nearwise": text}))

    @classmethod
    def load(cls, folder: str | Path) -> "PerceiverAutoencoder":
        """Read a model that `save` wrote, in eval mode.

        Raises ValueError if it cannot be read, or weights are missing, strange or of another shape.
        """
        found = describe_model(folder)
        model = cls(found.config, random_state=0)
        try:
            model.load_state_dict(load_file(found.folder / WEIGHTS))
        except RuntimeError as error:
            raise ValueError(f"{found.folder / WEIGHTS} does not fit its sizes: {error}") from error
        model.run = found.run
        return model.eval()

    def _points(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Values and Fourier features of the points of images."""
        values = x.flatten(2).transpose(1, 2)
        where = self.fourier(coordinate_grid(x.shape[2], x.shape[3], device=x.device))
        if context is None:
            return values, where.expand(len(x), -1, -1)
        index = context[..., None].expand(-1, -1, values.shape[2])
        return values.gather(1, index), where[context]

    def _check_images(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.config.channels or not x.is_floating_point():
            raise ValueError(
                f"Images must be floating and of shape (batch, {self.config.channels}, height, "
                f"width); got {tuple(x.shape)} of {x.dtype}. Divide bytes by 255."
            )
        if torch.compiler.is_compiling() or not x.numel():
            return
        low, high = (bound.item() for bound in x.aminmax())
        if not (low >= -1e-3 and high <= 1 + 1e-3):  # also where it is NaN
            raise ValueError(
                f"Images must lie in [0, 1]; these reach from {low:.4g} to {high:.4g}. The model "
                "normalises by itself: pass pixels / 255."
            )

    def _check_context(self, x: Tensor, context: Tensor) -> None:
        n_pixels = x.shape[2] * x.shape[3]
        if context.ndim != 2 or len(context) != len(x) or context.dtype != torch.int64:
            raise ValueError(
                f"context must be int64 positions of shape ({len(x)}, points); got "
                f"{tuple(context.shape)} of {context.dtype}."
            )
        if not context.shape[1]:
            raise ValueError("context names no point. Show each image at least one.")
        if torch.compiler.is_compiling() or not len(x):
            return
        if context.min() < 0 or context.max() >= n_pixels:
            raise ValueError(
                f"context names positions from {context.min()} to {context.max()}; an image of "
                f"{x.shape[2]} x {x.shape[3]} has 0 to {n_pixels - 1}."
            )


def make_perceiver(
    preset: str = "S64",
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    random_state: int | None = None,
    **changes: Any,
) -> PerceiverAutoencoder:
    """Make a Perceiver autoencoder by the name of its sizes.

    Parameters
    ----------
    preset : {"original", "S", "S64", "XS", "digits"}, default="S64"
        "original": 256 tokens of 512, 34.7 million parameters. "S" and "S64": 128 and 64 tokens
        of 256, 7.6 million. "XS": 32 of 128, 1.7 million, for a CPU. "digits": 16 of 64, 0.27
        million.
    image_size : int or (int, int), optional
        Default 32, for "digits" 8.
    channels : int, optional
        Default 3, for "digits" 1.
    random_state : int, optional
        Seed of the first weights.
    **changes
        Settings of `PerceiverConfig` to change.

    Raises
    ------
    ValueError
        If a preset or setting is not known, or settings do not fit each other.
    """
    config = perceiver_config(preset, image_size=image_size, channels=channels, **changes)
    return PerceiverAutoencoder(config, random_state=random_state)


def _table(config: PerceiverConfig, dim: int) -> Tensor:
    """Tokens (num_latents, dim) before they have read anything: waves of their number."""
    return waves(torch.arange(config.num_latents, dtype=torch.float), dim, interleave=True)
