"""Settings of training; unknown ones raise an error with a hint."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearwise.names import did_you_mean

Precision = Literal["float32", "bfloat16", "float16"]

_OF_OPTIMIZERS = (
    "momentum", "schedule", "warmup_start", "min_lr_ratio", "norm_bias_lr", "lookahead",
    "gradient_clip",
)  # fmt: skip


def refuse_unknown(values: Any, model: type[BaseModel], what: str) -> Any:
    """Return `values`, or raise ValueError with the nearest setting of `model` to an unknown one.

    Only a dict is checked; `what` is the kind of settings in the message.
    """
    known = list(model.model_fields)
    for name in values if isinstance(values, dict) else ():
        if name not in known:
            hint = did_you_mean(name, known) or f" Known settings: {', '.join(known)}."
            if name in _OF_OPTIMIZERS and "optimizer" in known:
                hint = ' It comes with the optimizer: "adamw", "sgd" or "lookahead".'
            raise ValueError(f"Unknown {what} setting {str(name)!r}.{hint}")
    return values


class StrictSettings(BaseModel):
    """Immutable settings; `settings_of` is their name in errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    settings_of: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        """Check the settings; the ValueError has no pydantic boilerplate."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(plain_message(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _hint_at_unknown(cls, values: Any) -> Any:
        return refuse_unknown(values, cls, cls.settings_of)


def plain_message(error: Exception) -> str:
    """Return the text of a pydantic error, without codes and links."""
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for part in error.errors():
        where = ".".join(map(str, part["loc"]))
        what = part["msg"].removeprefix("Value error, ")
        checked = part["type"] == "value_error"  # from our own checks, which include the value
        given = f" (got {part['input']!r})" if where and not checked else ""
        lines.append(f"{where}: {what}{given}" if where else what)
    return "; ".join(lines)


class Augmentation(StrictSettings):
    """Random changes of an image, all off by default, applied in the order below.

    Parameters
    ----------
    crop_padding : int, default=0
        Pixels added around the image before a random crop of the original size.
    padding : {"black", "reflect"}, default="black"
        Content of these pixels: black, or the image mirrored at its edge.
    flip : bool or "alternate", default=False
        Horizontal mirroring: half the time, or each image in every other epoch.
    cutout : int, default=0
        Side of a square, at a random centre, filled with the image's mean colour.
    """

    settings_of = "augmentation"

    crop_padding: int = Field(0, ge=0)
    padding: Literal["black", "reflect"] = "black"
    flip: bool | Literal["alternate"] = False
    cutout: int = Field(0, ge=0)


class EngineConfig(StrictSettings):
    """Settings of `train_epochs`.

    Unknown settings raise an error that names the nearest known one.

    Parameters
    ----------
    epochs : int, default=100
        Maximum number of passes over the rows.
    batch_size : int, default=256
        Maximum number of rows per step; an epoch is split into batches of nearly equal size.
    optimizer : {"adamw", "sgd", "lookahead"}, default="adamw"
        Optimizer of the run. "sgd" has Nesterov momentum and needs a larger `lr`, such as 0.1.
        "lookahead" is the SGD of `fast_cnn`: see `nearwise.training.schedule`.
    lr, weight_decay : float
        Learning rate (cosine schedule) and weight decay; biases, scales and norms do not decay.
    warmup_epochs : float, default=0.0
        Epochs (or a fraction of one) of linear warm-up.
    precision : {"float32", "bfloat16", "float16"}, default="float32"
        Precision of the forward pass, through autocast; with "float16" the loss is scaled.
    patience : int or None, default=None
        Evaluations without a better monitored value before stopping; None never stops early.
    """

    settings_of = "training"

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=256, ge=1)

    optimizer: Literal["adamw", "sgd", "lookahead"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_epochs: float = Field(default=0.0, ge=0)

    precision: Precision = "float32"
    patience: int | None = Field(default=None, ge=1)

    def decides(self) -> dict[str, Any]:
        """Return the settings that affect the result."""
        return self.model_dump()


class TrainConfig(EngineConfig):
    """Settings of `train_embedder`: those of `EngineConfig`, and the terms of the loss.

    A term with weight 0 costs nothing.

    Parameters
    ----------
    lr, weight_decay, warmup_epochs, patience : default=3e-3, 1e-4, 1.0, 16
    backbone_lr : float, default=1.0
        Factor on `lr` for the backbone of an image embedder, in (0, 1].
    precision : {"float32", "bfloat16"}, default="float32"
        Precision of the embedder; keys and losses are always float32.
    n_candidates : int or None, default=4096
        Number of memory rows per query and step, including the batch; None takes all.
    cache_momentum : float or None, default=None
        Momentum of a key cache, in [0, 1), or None for no cache. None computes the candidates' keys
        in every step, with gradient. With a cache, keys outside the batch come from it; all are
        recomputed every 5 epochs, and a row of the batch keeps this share of its old key. With
        images and `n_candidates=None` this is the loss over the whole memory: a MixUp batch then
        takes all candidates from the cache, so that its images are encoded once.
    knn_weight, ce_weight : float, default=1.0, 0.0
        Weights of the leave-one-out neighbor NLL and of the head's cross-entropy. The NLL of
        held-out rows is that of the head if `ce_weight` is positive, else of the neighbors.
    label_smoothing : float, default=0.0
    mixup_alpha : float, default=0.0
        Parameter of MixUp's Beta distribution; 0 switches it off.
    mixup_probability : float, default=0.5
        Share of mixed batches.
    augment : Augmentation or dict, optional
        Random changes of the queries' images, never of held-out rows. Their keys update the cache.
    """

    batch_size: int = Field(256, ge=2)
    lr: float = Field(3e-3, gt=0)
    backbone_lr: float = Field(1.0, gt=0, le=1)
    weight_decay: float = Field(1e-4, ge=0)
    warmup_epochs: float = Field(1.0, ge=0)
    patience: int | None = Field(16, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"

    n_candidates: int | None = Field(4096, ge=2)
    cache_momentum: float | None = Field(None, ge=0, lt=1)

    knn_weight: float = Field(1.0, ge=0)
    ce_weight: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    mixup_alpha: float = Field(0.0, ge=0)
    mixup_probability: float = Field(0.5, ge=0, le=1)
    augment: Augmentation | None = None

    @model_validator(mode="after")
    def _check_terms(self) -> "TrainConfig":
        if not (self.knn_weight or self.ce_weight):
            raise ValueError(
                "knn_weight and ce_weight are both 0, so there is nothing to train. Give one of "
                "them a positive weight."
            )
        return self
