"""Trainable modules: embedders, neighbor attention and their losses."""

from nearwise.nn.embedders import (
    CategoricalEmbedding,
    Embedder,
    TableEmbedder,
)
from nearwise.nn.fast_cnn import FastCNN
from nearwise.nn.fused import fused_leave_one_out_nll, neighbor_vote
from nearwise.nn.losses import (
    soft_cross_entropy,
    soft_targets,
    vote_nll,
)
from nearwise.nn.neighbor_set import NeighborSet, RememberedSpace, pair_reliability
from nearwise.nn.network import (
    NeighborNetwork,
    NetworkOutput,
    build_network,
    euclidean,
    network_config,
)
from nearwise.nn.number_head import NumberOutput, PretrainedNumberHead, shared_number_head
from nearwise.nn.number_set import NumberSet, RememberedNumbers
from nearwise.nn.numeric import PLRLiteEmbedding
from nearwise.nn.pretrained_head import HeadOutput, PretrainedNeighborHead, shared_head
from nearwise.nn.tokens import (
    KNNAttention,
    KNNMultiheadAttention,
    MemoryAttention,
    Sampling,
    restore_transformers_attention,
    transformers_attention,
)
from nearwise.nn.vision import ImageEmbedder

__all__ = [
    "CategoricalEmbedding",
    "Embedder",
    "FastCNN",
    "HeadOutput",
    "ImageEmbedder",
    "KNNAttention",
    "KNNMultiheadAttention",
    "MemoryAttention",
    "NeighborNetwork",
    "NeighborSet",
    "NetworkOutput",
    "NumberOutput",
    "NumberSet",
    "PLRLiteEmbedding",
    "PretrainedNeighborHead",
    "PretrainedNumberHead",
    "RememberedNumbers",
    "RememberedSpace",
    "Sampling",
    "TableEmbedder",
    "build_network",
    "euclidean",
    "fused_leave_one_out_nll",
    "neighbor_vote",
    "network_config",
    "pair_reliability",
    "restore_transformers_attention",
    "shared_head",
    "shared_number_head",
    "soft_cross_entropy",
    "soft_targets",
    "transformers_attention",
    "vote_nll",
]
