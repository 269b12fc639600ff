"""Attention layers of transformers: tokens that attend to their nearest tokens, and their peers."""

from nearwise.nn.tokens.convnn import ConvNNAttention
from nearwise.nn.tokens.dense import MultiHeadAttention
from nearwise.nn.tokens.for_transformers import (
    restore_transformers_attention,
    transformers_attention,
)
from nearwise.nn.tokens.knn import KNNAttention, KvtAttention
from nearwise.nn.tokens.memory import MemoryAttention
from nearwise.nn.tokens.multihead import KNNMultiheadAttention
from nearwise.nn.tokens.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise.nn.tokens.registry import TOKEN_LAYERS, token_layer
from nearwise.nn.tokens.sampling import Sampling

__all__ = [
    "TOKEN_LAYERS",
    "ConvNNAttention",
    "KNNAttention",
    "KNNMultiheadAttention",
    "KvtAttention",
    "MemoryAttention",
    "MultiHeadAttention",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "Sampling",
    "restore_transformers_attention",
    "token_layer",
    "transformers_attention",
]
