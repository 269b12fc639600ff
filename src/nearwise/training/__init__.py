"""Training loop, its objectives, and their parts."""

from nearwise.training.augment import augment
from nearwise.training.embedder import train_embedder
from nearwise.training.encoding import (
    BackboneFeatures,
    cached_backbone,
    encode,
    encode_backbone,
    keys_of_features,
    predict_head,
    predict_neighbors,
)
from nearwise.training.engine import NotFiniteError, TrainingResult, minimize, train_epochs
from nearwise.training.heads import HeadConfig, HeadRows, held_out_nll, train_head
from nearwise.training.objective import BatchLoss, Objective
from nearwise.training.rows import TrainingRows
from nearwise.training.self_correction import SelfCorrection
from nearwise.training.settings import Augmentation, EngineConfig, TrainConfig

__all__ = [
    "Augmentation",
    "BackboneFeatures",
    "BatchLoss",
    "EngineConfig",
    "HeadConfig",
    "HeadRows",
    "NotFiniteError",
    "Objective",
    "SelfCorrection",
    "TrainConfig",
    "TrainingResult",
    "TrainingRows",
    "augment",
    "cached_backbone",
    "encode",
    "encode_backbone",
    "held_out_nll",
    "keys_of_features",
    "minimize",
    "predict_head",
    "predict_neighbors",
    "train_embedder",
    "train_epochs",
    "train_head",
]
