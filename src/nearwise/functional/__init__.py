"""Pure tensor functions: distances, exact search, neighbor weights and label aggregation."""

from nearwise.functional.distances import METRICS, Metric, paired_distances, pairwise_distances
from nearwise.functional.search import DEFAULT_MEMORY_BUDGET, Neighbors, topk_neighbors
from nearwise.functional.tokens import (
    attention_implementation,
    knn_attention,
    set_attention_implementation,
)
from nearwise.functional.weights import aggregate_labels, distance_weights, uniform_weights

__all__ = [
    "DEFAULT_MEMORY_BUDGET",
    "METRICS",
    "Metric",
    "Neighbors",
    "aggregate_labels",
    "attention_implementation",
    "distance_weights",
    "knn_attention",
    "paired_distances",
    "pairwise_distances",
    "set_attention_implementation",
    "topk_neighbors",
    "uniform_weights",
]
