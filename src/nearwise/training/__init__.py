"""One loop that trains embedders, with its settings and small pieces."""

from nearwise.training.config import TrainConfig
from nearwise.training.encode import encode, predict_head, predict_neighbors
from nearwise.training.loop import TrainingResult, train_embedder
from nearwise.training.rows import TrainingRows

__all__ = [
    "TrainConfig",
    "TrainingResult",
    "TrainingRows",
    "encode",
    "predict_head",
    "predict_neighbors",
    "train_embedder",
]
