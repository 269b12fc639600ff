"""One loop that trains embedders, with its settings and small pieces."""

from nearwise.training.attention import (
    HeadConfig,
    HeadRows,
    held_out_nll,
    predict_with_head,
    train_head,
)
from nearwise.training.augment import Augmentation, augment
from nearwise.training.config import TrainConfig
from nearwise.training.embedding_cache import cached_backbone, cached_encode, cached_stages
from nearwise.training.encode import (
    BackboneFeatures,
    encode,
    encode_backbone,
    encode_stages,
    keys_of_features,
    predict_head,
    predict_neighbors,
)
from nearwise.training.engine import EngineConfig, EngineResult, train_epochs
from nearwise.training.loop import TrainingResult, train_embedder
from nearwise.training.rows import TrainingRows

__all__ = [
    "Augmentation",
    "BackboneFeatures",
    "EngineConfig",
    "EngineResult",
    "HeadConfig",
    "HeadRows",
    "TrainConfig",
    "TrainingResult",
    "TrainingRows",
    "augment",
    "cached_backbone",
    "cached_encode",
    "cached_stages",
    "encode",
    "encode_backbone",
    "encode_stages",
    "held_out_nll",
    "keys_of_features",
    "predict_head",
    "predict_neighbors",
    "predict_with_head",
    "train_embedder",
    "train_epochs",
    "train_head",
]
