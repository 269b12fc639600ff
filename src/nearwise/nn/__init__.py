"""Modules that learn: embedders, neighbor attention and their losses."""

from nearwise.nn.embedders import (
    CategoricalEmbedding,
    Embedder,
    IdentityEmbedder,
    TableEmbedder,
    TabularMLP,
)
from nearwise.nn.fast_cnn import FastCNN
from nearwise.nn.fused import fused_leave_one_out_nll, neighbor_vote
from nearwise.nn.losses import (
    contrastive,
    leave_self_out,
    margin_contrastive,
    soft_cross_entropy,
    soft_targets,
    supervised_contrastive,
    vote_nll,
    weight_entropy,
)
from nearwise.nn.neighbor_set import NeighborSet, RememberedSpace, pair_reliability
from nearwise.nn.network import (
    NeighborNetwork,
    NetworkOutput,
    build_network,
    euclidean,
    network_config,
)
from nearwise.nn.numeric import PBLDEmbedding, PiecewiseLinearEncoding, PLRLiteEmbedding
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
    "IdentityEmbedder",
    "ImageEmbedder",
    "KNNAttention",
    "KNNMultiheadAttention",
    "MemoryAttention",
    "NeighborNetwork",
    "NeighborSet",
    "NetworkOutput",
    "PBLDEmbedding",
    "PLRLiteEmbedding",
    "PiecewiseLinearEncoding",
    "PretrainedNeighborHead",
    "RememberedSpace",
    "Sampling",
    "TableEmbedder",
    "TabularMLP",
    "build_network",
    "contrastive",
    "euclidean",
    "fused_leave_one_out_nll",
    "leave_self_out",
    "margin_contrastive",
    "neighbor_vote",
    "network_config",
    "pair_reliability",
    "restore_transformers_attention",
    "shared_head",
    "soft_cross_entropy",
    "soft_targets",
    "supervised_contrastive",
    "transformers_attention",
    "vote_nll",
    "weight_entropy",
]
