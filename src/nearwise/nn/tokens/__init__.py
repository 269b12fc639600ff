"""Attention layers for transformers: k nearest tokens, and memories of earlier tokens."""

from nearwise.nn.tokens.for_transformers import (
    restore_transformers_attention,
    transformers_attention,
)
from nearwise.nn.tokens.knn import KNNAttention
from nearwise.nn.tokens.memory import MemoryAttention
from nearwise.nn.tokens.multihead import KNNMultiheadAttention
from nearwise.nn.tokens.sampling import Sampling

__all__ = [
    "KNNAttention",
    "KNNMultiheadAttention",
    "MemoryAttention",
    "Sampling",
    "restore_transformers_attention",
    "transformers_attention",
]
