"""Pure tensor functions: distances, exact search, neighbor weights and label aggregation."""

from nearwise.functional.distances import METRICS, Metric, paired_distances, pairwise_distances
from nearwise.functional.search import DEFAULT_MEMORY_BUDGET, Neighbors, topk_neighbors
from nearwise.functional.tokens import attention_implementation, knn_attention
from nearwise.functional.transition import (
    believed_proba,
    given_log_proba,
    posterior_log_proba,
    true_log_proba,
)
from nearwise.functional.weights import (
    aggregate_labels,
    distance_weights,
    uniform_weights,
)

__all__ = [
    "DEFAULT_MEMORY_BUDGET",
    "METRICS",
    "Metric",
    "Neighbors",
    "aggregate_labels",
    "attention_implementation",
    "believed_proba",
    "distance_weights",
    "given_log_proba",
    "knn_attention",
    "paired_distances",
    "pairwise_distances",
    "posterior_log_proba",
    "topk_neighbors",
    "true_log_proba",
    "uniform_weights",
]
