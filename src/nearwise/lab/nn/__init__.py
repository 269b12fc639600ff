"""Layers and estimates of the lab: the study's attention, published layers, counted operations."""

from nearwise.lab.nn.multi_head import (
    DistanceAttention,
    LearnedDistanceAttention,
    MultiHeadNeighborAttention,
    UniformAttention,
)
from nearwise.lab.nn.operations import OPERATION_KINDS, OperationCount, count_operations
from nearwise.lab.nn.race import LazyGumbelOutput, lazy_gumbel_attention
from nearwise.lab.nn.reference import load_reference_layer
from nearwise.lab.nn.reference_vit import load_reference_vit

__all__ = [
    "OPERATION_KINDS",
    "DistanceAttention",
    "LazyGumbelOutput",
    "LearnedDistanceAttention",
    "MultiHeadNeighborAttention",
    "OperationCount",
    "UniformAttention",
    "count_operations",
    "lazy_gumbel_attention",
    "load_reference_layer",
    "load_reference_vit",
]
