"""Settings of the training of a neural field."""

from typing import Any, Literal

from pydantic import Field, model_validator

from nearwise.training.settings import Precision, StrictSettings
from nearwise_lab.nn.field import PerceiverConfig
from nearwise_lab.nn.field.config import perceiver_config
from nearwise_lab.training.runs import RunConfig

Objective = Literal["reconstruction", "sparse", "nce", "sparse-nce"]
Preset = Literal["original", "S", "S64", "XS", "digits"]
# what a preset is trained with unless a setting changes it
_RECIPES: dict[str, dict[str, Any]] = {
    "original": {"epochs": 50, "batch_size": 64, "lr": 2e-4},
    "S": {"epochs": 20, "batch_size": 256, "lr": 1e-3, "n_queries": 256},
    "S64": {"epochs": 20, "batch_size": 256, "lr": 1e-3, "n_queries": 256},
    "XS": {"epochs": 20, "batch_size": 128, "lr": 2e-3, "n_queries": 128},
    "digits": {"n_anchors": 32, "n_candidates": 64},
}
_NCE_PIXELS = 1.24  # deviation of the contrastive target, in pixels
_NCE_WIDEST = 0.2


class FieldConfig(StrictSettings):
    """Settings of `train_field`.

    Unknown settings raise an error that names the nearest known one. Where none is given, epochs,
    batch size, rate, points and positions are the preset's own.

    Parameters
    ----------
    objective : {"reconstruction", "sparse", "nce", "sparse-nce"}, default="reconstruction"
        Reconstruct the image from all its pixels, or ("sparse") from `context` of them; with
        "nce" two views are also to be matched position by position.
    preset : {"original", "S", "S64", "XS", "digits"}, default="digits"
        Sizes of the model, see `make_perceiver`.
    model : dict
        Settings of `PerceiverConfig` to change, such as ``{"num_latents": 32}``.
    context : float in (0, 1), default=0.2
        Share of the pixels that the sparse objectives show.
    layout : {"per-image", "fixed"}, default="per-image"
        Whether these are other pixels for each image and step, or always the same.
    n_queries : int or None, default=None
        Pixels of each image that are decoded in a step, drawn again each time; None is all.
    loss_on : {"all", "masked"}, default="all"
        Whether the sparse objectives also count the pixels they were shown.
    epochs, batch_size, lr : default=30, 64, 2e-3
    weight_decay : float, default=0.01
    warmup : float in [0, 1), default=0.05
        Share of the steps in which the rate rises; then it falls as a cosine.
    precision, compile
        As in `RunConfig`; a compiled run is another one.
    nce_weight : float, default=0.1
        Weight of the contrastive term; it rises from 0 within an eighth of the steps.
    nce_dim : int, default=128
        Width of what is compared.
    n_anchors, n_candidates : int, default=64, 256
        Positions in the first and in the second view, drawn again each time.
    """

    settings_of = "neural field"

    objective: Objective = "reconstruction"
    preset: Preset = "digits"
    model: dict[str, Any] = Field(default_factory=dict)

    context: float = Field(0.2, gt=0, lt=1)
    layout: Literal["per-image", "fixed"] = "per-image"
    n_queries: int | None = Field(None, ge=1)
    loss_on: Literal["all", "masked"] = "all"

    epochs: int = Field(30, ge=1)
    batch_size: int = Field(64, ge=1)
    lr: float = Field(2e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup: float = Field(0.05, ge=0, lt=1)
    precision: Precision = "float32"
    compile: bool = False

    nce_weight: float = Field(0.1, ge=0)
    nce_dim: int = Field(128, ge=1)
    n_anchors: int = Field(64, ge=1)
    n_candidates: int = Field(256, ge=2)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return {**_RECIPES.get(values.get("preset", "digits"), {}), **values}

    @property
    def is_sparse(self) -> bool:
        """Whether the model is trained on a share of the pixels."""
        return self.objective in ("sparse", "sparse-nce")

    @property
    def has_nce(self) -> bool:
        """Whether there is a contrastive term."""
        return self.objective in ("nce", "sparse-nce")

    def perceiver(self, image_size: tuple[int, int], channels: int) -> PerceiverConfig:
        """Sizes of the model for some images."""
        return perceiver_config(self.preset, image_size=image_size, channels=channels, **self.model)

    @property
    def free(self) -> set[str]:
        """Settings that do not change the weights.

        Compiled sums are rounded otherwise; runs from before this counted were not compiled.
        """
        return set() if self.compile else {"compile"}

    def engine(self) -> RunConfig:
        """Return the settings of the loop."""
        names = ("epochs", "batch_size", "lr", "weight_decay", "precision", "compile")
        return RunConfig(
            optimizer="adamw",
            schedule="cosine",
            warmup_epochs=self.warmup * self.epochs,
            gradient_clip=1.0,
            **{name: getattr(self, name) for name in names},
        )

    def sigma(self, image_size: tuple[int, int]) -> float:
        """Deviation of the contrastive target for images of a size."""
        return min(_NCE_WIDEST, 2 * _NCE_PIXELS / max(1, max(image_size) - 1))
