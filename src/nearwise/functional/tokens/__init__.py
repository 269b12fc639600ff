"""Attention of tokens to their k nearest tokens."""

from nearwise.functional.tokens.attention import KNNAttentionOutput, attend, knn_attention
from nearwise.functional.tokens.implementation import attention_implementation
from nearwise.functional.tokens.tail import TailCorrectedOutput, tail_corrected_attention

__all__ = [
    "KNNAttentionOutput",
    "TailCorrectedOutput",
    "attend",
    "attention_implementation",
    "knn_attention",
    "tail_corrected_attention",
]
