"""Attention of tokens to their k nearest tokens."""

from nearwise.functional.tokens.attention import KNNAttentionOutput, attend, knn_attention
from nearwise.functional.tokens.implementation import (
    attention_implementation,
    set_attention_implementation,
)

__all__ = [
    "KNNAttentionOutput",
    "attend",
    "attention_implementation",
    "knn_attention",
    "set_attention_implementation",
]
