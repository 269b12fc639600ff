"""Settings of a training run."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nearwise.training.augment import Augmentation
from nearwise.training.settings import refuse_unknown


class TrainConfig(BaseModel):
    """Settings of `train_embedder`; a term with weight 0 costs nothing.

    Unknown settings raise an error that names the nearest known one.

    Parameters
    ----------
    epochs : int, default=100
        Most passes over the training rows.
    batch_size : int, default=256
        Queries a step.
    n_candidates : int or None, default=4096
        Memory rows a query is compared with in a step, the batch included; None takes all.
    candidate_keys : {"fresh", "cached"}, default="fresh"
        "fresh" computes the candidates' keys in every step, with gradient; "cached" takes keys
        outside the batch from a cache, refreshed for seen rows and fully every `refresh_every`.
        With images and `n_candidates=None` this is the loss over the whole memory: a MixUp batch
        then takes all candidates from the cache, so that its images are encoded once.
    refresh_every : int, default=5
        Epochs between full refreshes of the cache.
    cache_momentum : float, default=0.0
        Share of the old key that stays when a seen row is refreshed, in [0, 1).
    optimizer : {"adamw", "sgd"}, default="adamw"
        "sgd" has Nesterov momentum 0.9 and wants a larger `lr`, such as 0.1.
    lr, weight_decay : float
        Of the optimizer; biases, scales and normalisation layers are not decayed.
    backbone_lr : float, default=1.0
        Factor on `lr` for the backbone of an image embedder, in (0, 1].
    warmup_epochs : float, default=1.0
        Epochs (or a part of one) of linear warm-up.
    schedule : {"cosine", "constant"}, default="cosine"
    min_lr_ratio : float, default=0.0
        Share of `lr` that the cosine ends at.
    gradient_clip : float or None, default=1.0
        Largest L2 norm of the gradient.
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
    patience : int or None, default=16
        Evaluations without a better held-out NLL before stopping; None never stops early.
    evaluate_every : int, default=1
        Epochs between evaluations on the held-out rows.
    monitor : {"auto", "neighbors", "head"}, default="auto"
        Whose held-out NLL counts; "auto" takes the neighbors where `knn_weight` is positive.
    held_out_candidates : int or None, default=None
        Training rows that held-out rows are scored against; None takes all.
    checkpoint_every : int, default=1
        Epochs between checkpoints, where a checkpoint folder is given.
    augment : Augmentation or dict, optional
        Random changes of the queries' images, whose keys refresh the cache; never of held-out rows.
    precision : {"float32", "bfloat16"}, default="float32"
        Of the embedder, through autocast; keys and losses are float32 in any case.
    channels_last : bool, default=False
        Keep images and convolutions in this memory format, which is often faster.
    compile : bool, default=False
        Compile the embedder with `torch.compile`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: int = Field(100, ge=1)
    batch_size: int = Field(256, ge=2)
    n_candidates: int | None = Field(4096, ge=2)
    candidate_keys: Literal["fresh", "cached"] = "fresh"
    refresh_every: int = Field(5, ge=1)
    cache_momentum: float = Field(0.0, ge=0, lt=1)

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = Field(3e-3, gt=0)
    backbone_lr: float = Field(1.0, gt=0, le=1)
    weight_decay: float = Field(1e-4, ge=0)
    warmup_epochs: float = Field(1.0, ge=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    gradient_clip: float | None = Field(1.0, gt=0)

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

    patience: int | None = Field(16, ge=1)
    evaluate_every: int = Field(1, ge=1)
    monitor: Literal["auto", "neighbors", "head"] = "auto"
    held_out_candidates: int | None = Field(None, ge=1)
    checkpoint_every: int = Field(1, ge=1)

    augment: Augmentation | None = None
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False
    compile: bool = False

    @model_validator(mode="before")
    @classmethod
    def _hint_at_unknown(cls, values: Any) -> Any:
        return refuse_unknown(values, cls, "training")

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
