"""Settings of training, which refuse unknown ones with a hint."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nearwise.names import did_you_mean

Precision = Literal["float32", "bfloat16", "float16"]

FREE_SETTINGS = {"compile", "compile_mode", "checkpoint_every", "checkpoint_seconds"}
"""They decide how fast a run is or how often it writes, and not its result."""


def refuse_unknown(values: Any, model: type[BaseModel], what: str) -> Any:
    """Return `values`, or raise ValueError naming the setting of `model` nearest to an unknown one.

    Only a dict is checked; `what` is the kind of settings in the message.
    """
    known = list(model.model_fields)
    for name in values if isinstance(values, dict) else ():
        if name not in known:
            hint = did_you_mean(name, known) or f" Known settings: {', '.join(known)}."
            raise ValueError(f"Unknown {what} setting {str(name)!r}.{hint}")
    return values


class StrictSettings(BaseModel):
    """Settings that cannot be changed; `settings_of` names them where one is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    settings_of: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        """Check the settings; the ValueError has no words of pydantic's own around it."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(plain_message(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _hint_at_unknown(cls, values: Any) -> Any:
        return refuse_unknown(values, cls, cls.settings_of)


def plain_message(error: Exception) -> str:
    """Return the text of a pydantic error, without its codes and links."""
    if not isinstance(error, ValidationError):
        return str(error)
    lines = []
    for part in error.errors():
        where = ".".join(map(str, part["loc"]))
        what = part["msg"].removeprefix("Value error, ")
        checked = part["type"] == "value_error"  # by us, who say what was given
        given = f" (got {part['input']!r})" if where and not checked else ""
        lines.append(f"{where}: {what}{given}" if where else what)
    return "; ".join(lines)


class Augmentation(StrictSettings):
    """Random changes of an image, all off by default; in the order rotation to cutout below.

    Parameters
    ----------
    rotation : float, default=0.0
        Largest angle in degrees, either way; bilinear, black outside.
    crop_padding : int, default=0
        Pixels put around the image before a crop of the former size is taken from it.
    padding : {"black", "reflect"}, default="black"
        What these pixels are: black, or the image mirrored at its edge.
    flip : bool or "alternate", default=False
        Mirror left and right: half the time, or each image in every other epoch.
    color_jitter : float, default=0.0
        Brightness, contrast and saturation are each multiplied by a factor from 1 - this to
        1 + this.
    cutout : int, default=0
        Side of a square, at a random centre, filled with the image's mean colour.
    """

    settings_of = "augmentation"

    rotation: float = Field(0.0, ge=0, le=180)
    crop_padding: int = Field(0, ge=0)
    padding: Literal["black", "reflect"] = "black"
    flip: bool | Literal["alternate"] = False
    color_jitter: float = Field(0.0, ge=0, le=1)
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
    optimizer : {"adamw", "adam", "sgd"}, default="adamw"
    lr, weight_decay : float
        Biases, scales and normalisation layers are not decayed, unless `decay_all`.
    momentum : float, default=0.9
        Of "sgd", in [0, 1).
    nesterov : bool, default=False
        Whether that momentum is Nesterov's.
    schedule : {"constant", "cosine", "linear", "step", "plateau"}, default="cosine"
        "cosine" and "linear" fall to `min_lr_ratio` at the last step; "step" multiplies by
        `lr_gamma` every `lr_step` epochs; "plateau" after `plateau_patience` evaluations in a row
        without a better monitored value.
    warmup_epochs : float, default=0.0
        Epochs (or a part of one) of linear warm-up, before any of them.
    warmup_start : float, default=0.0
        Share of `lr` that the warm-up starts from, in [0, 1].
    lr_step : int, default=20
    lr_gamma : float, default=0.1
        In (0, 1].
    plateau_patience : int, default=10
    min_lr_ratio : float, default=0.0
        Share of `lr` that no scheduler goes below.
    gradient_clip : float or None, default=1.0
        Largest L2 norm of the gradient.
    precision : {"float32", "bfloat16", "float16"}, default="float32"
        Of the forward pass, through autocast; with "float16" the loss is scaled.
    compile : bool, default=False
        Compile the module's call with `torch.compile`.
    compile_mode : {"default", "reduce-overhead", "max-autotune"}, default="default"
    ema_decay : float or None, default=None
        Keep an exponential moving average of the weights with this decay, in (0, 1); it is what
        is evaluated and kept.
    lookahead : float or None, default=None
        Every 5 steps the weights go back to a moving average of themselves, which the last step
        leaves. Its decay grows with the cube of the steps taken to this value, in (0, 1).
    patience : int or None, default=None
        Evaluations without a better monitored value before stopping; None never stops early.
    min_gain : float, default=0.0
        A value is better where it is lower than the best one by more than this.
    evaluate_every : int, default=1
        Epochs between evaluations; the last epoch is always evaluated.
    checkpoint_every : int, default=1
        Epochs between checkpoints, where a checkpoint folder is given.
    checkpoint_seconds : float, default=0.0
        Seconds that pass between two of them at least, so that short epochs do not spend their time
        on writing; the last epoch always has one.
    """

    settings_of = "training"

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=256, ge=1)

    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    lr: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    decay_all: bool = False
    momentum: float = Field(default=0.9, ge=0, lt=1)
    nesterov: bool = False

    schedule: Literal["constant", "cosine", "linear", "step", "plateau"] = "cosine"
    warmup_epochs: float = Field(default=0.0, ge=0)
    warmup_start: float = Field(default=0.0, ge=0, le=1)
    lr_step: int = Field(default=20, ge=1)
    lr_gamma: float = Field(default=0.1, gt=0, le=1)
    plateau_patience: int = Field(default=10, ge=0)
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)

    gradient_clip: float | None = Field(default=1.0, gt=0)
    precision: Precision = "float32"
    compile: bool = False
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    lookahead: float | None = Field(default=None, gt=0, lt=1)
    patience: int | None = Field(default=None, ge=1)
    min_gain: float = Field(default=0.0, ge=0)
    evaluate_every: int = Field(default=1, ge=1)
    checkpoint_every: int = Field(default=1, ge=1)
    checkpoint_seconds: float = Field(default=0.0, ge=0)

    def decides(self) -> dict[str, Any]:
        """Return the settings on which the result depends."""
        later = set() if self.decay_all else {"decay_all"}  # earlier checkpoints stay good
        return self.model_dump(exclude=FREE_SETTINGS | later)


class TrainConfig(EngineConfig):
    """Settings of `train_embedder`: those of `EngineConfig`, and what is minimised.

    A term with weight 0 costs nothing.

    Parameters
    ----------
    lr, weight_decay, warmup_epochs, patience : default=3e-3, 1e-4, 1.0, 16
    optimizer : {"adamw", "adam", "sgd"}, default="adamw"
        "sgd" has Nesterov momentum and needs a larger `lr`, such as 0.1.
    backbone_lr : float, default=1.0
        Factor on `lr` for the backbone of an image embedder, in (0, 1].
    norm_bias_lr : float, default=1.0
        Factor on `lr` for biases of batch normalisation; where it is not 1, they decay as weights.
    precision : {"float32", "bfloat16"}, default="float32"
        Of the embedder; keys and losses are float32 in any case.
    n_candidates : int or None, default=4096
        Memory rows that a query is compared with in a step, the batch included; None takes all.
    candidate_keys : {"fresh", "cached"}, default="fresh"
        "fresh" computes the candidates' keys in every step, with gradient; "cached" takes keys
        outside the batch from a cache, refreshed for seen rows and fully every `refresh_every`.
        With images and `n_candidates=None` this is the loss over the whole memory: a MixUp batch
        then takes all candidates from the cache, so that its images are encoded once.
    refresh_every : int, default=5
        Epochs between full refreshes of the cache.
    cache_momentum : float, default=0.0
        Share of the old key that stays when a seen row is refreshed, in [0, 1).
    knn_weight, ce_weight, contrastive_weight, entropy_weight : float
        Weights of the leave-one-out neighbor NLL, the head's cross-entropy, the contrastive term
        and the negative entropy of the neighbor weights.
    contrastive_kind : {"supervised", "margin"}, default="supervised"
    contrastive_temperature, contrastive_margin : float
    label_smoothing : float, default=0.0
    fit_scale : bool, default=True
        Start the scale of the neighbor weights at its best value for the untrained keys.
    mixup_alpha : float, default=0.0
        Parameter of MixUp's Beta distribution; 0 switches it off.
    mixup_probability : float, default=0.5
        Share of the batches that are mixed.
    hard_negative_weight : float, default=1.0
        How much more often hard rows are drawn; 1 switches hard-negative selection off.
    hard_negative_fraction : float, default=0.3
        Share of the rows that counts as hard.
    hard_negative_neighbors : int, default=10
        Neighbors whose disagreement makes a row hard.
    hard_negative_every : int, default=5
        Epochs between selections.
    query_balance, candidate_balance : float, default=0.0
        In [0, 1]: rows are drawn as queries, or as candidates, in proportion to the size of their
        class to the power of minus this; 1 draws every class equally often.
    monitor : {"auto", "neighbors", "head"}, default="auto"
        Whose held-out NLL counts; "auto" takes the neighbors where `knn_weight` is positive.
    held_out_candidates : int or None, default=None
        Training rows that held-out rows are scored against; None takes all.
    augment : Augmentation or dict, optional
        Random changes of the queries' images, whose keys refresh the cache; never of held-out rows.
    channels_last : bool, default=False
        Keep images and convolutions in this memory format, which is often faster.
    """

    batch_size: int = Field(256, ge=2)
    lr: float = Field(3e-3, gt=0)
    backbone_lr: float = Field(1.0, gt=0, le=1)
    norm_bias_lr: float = Field(1.0, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    nesterov: bool = True
    warmup_epochs: float = Field(1.0, ge=0)
    patience: int | None = Field(16, ge=1)
    precision: Literal["float32", "bfloat16"] = "float32"

    n_candidates: int | None = Field(4096, ge=2)
    candidate_keys: Literal["fresh", "cached"] = "fresh"
    refresh_every: int = Field(5, ge=1)
    cache_momentum: float = Field(0.0, ge=0, lt=1)

    knn_weight: float = Field(1.0, ge=0)
    ce_weight: float = Field(0.0, ge=0)
    contrastive_weight: float = Field(0.0, ge=0)
    contrastive_kind: Literal["supervised", "margin"] = "supervised"
    contrastive_temperature: float = Field(0.1, gt=0)
    contrastive_margin: float = Field(0.5, ge=0)
    entropy_weight: float = Field(0.0, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    fit_scale: bool = True

    mixup_alpha: float = Field(0.0, ge=0)
    mixup_probability: float = Field(0.5, ge=0, le=1)
    hard_negative_weight: float = Field(1.0, ge=1)
    hard_negative_fraction: float = Field(0.3, gt=0, le=1)
    hard_negative_neighbors: int = Field(10, ge=1)
    hard_negative_every: int = Field(5, ge=1)

    query_balance: float = Field(0.0, ge=0, le=1)
    candidate_balance: float = Field(0.0, ge=0, le=1)

    monitor: Literal["auto", "neighbors", "head"] = "auto"
    held_out_candidates: int | None = Field(None, ge=1)

    augment: Augmentation | None = None
    channels_last: bool = False

    @model_validator(mode="after")
    def _check_terms(self) -> "TrainConfig":
        if not (self.knn_weight or self.ce_weight or self.contrastive_weight):
            raise ValueError(
                "knn_weight, ce_weight and contrastive_weight are all 0, so there is nothing to "
                "train. Give one of them a positive weight."
            )
        if self.entropy_weight and not self.knn_weight:
            raise ValueError(
                "entropy_weight acts on the neighbor weights and needs a positive knn_weight."
            )
        return self

    @property
    def monitored(self) -> Literal["neighbors", "head"]:
        """Whose held-out NLL decides on the best epoch."""
        if self.monitor != "auto":
            return self.monitor
        return "head" if self.knn_weight == 0 and self.ce_weight > 0 else "neighbors"
