"""Modules that learn: embedders, neighbor attention and their losses."""

from nearwise.nn.embedders import (
    CategoricalEmbedding,
    Embedder,
    IdentityEmbedder,
    TableEmbedder,
    TabularMLP,
)
from nearwise.nn.episodes import EpisodeAttention
from nearwise.nn.fused import fused_leave_one_out_nll, neighbor_vote
from nearwise.nn.losses import (
    contrastive,
    leave_one_out_nll,
    leave_self_out,
    margin_contrastive,
    neighbor_probabilities,
    soft_cross_entropy,
    soft_targets,
    supervised_contrastive,
    vote_nll,
    weight_entropy,
)
from nearwise.nn.multi_head import (
    DistanceAttention,
    LearnedDistanceAttention,
    MultiHeadNeighborAttention,
    UniformAttention,
)
from nearwise.nn.neighbor_attention import (
    HeadOutput,
    NeighborAttention,
    NeighborHead,
    Neighborhood,
    describe_neighborhood,
)
from nearwise.nn.network import (
    NeighborNetwork,
    NetworkOutput,
    build_network,
    euclidean,
    network_config,
)
from nearwise.nn.numeric import PBLDEmbedding, PiecewiseLinearEncoding, PLRLiteEmbedding
from nearwise.nn.vision import ImageEmbedder

__all__ = [
    "CategoricalEmbedding",
    "DistanceAttention",
    "Embedder",
    "EpisodeAttention",
    "HeadOutput",
    "IdentityEmbedder",
    "ImageEmbedder",
    "LearnedDistanceAttention",
    "MultiHeadNeighborAttention",
    "NeighborAttention",
    "NeighborHead",
    "NeighborNetwork",
    "Neighborhood",
    "NetworkOutput",
    "PBLDEmbedding",
    "PLRLiteEmbedding",
    "PiecewiseLinearEncoding",
    "TableEmbedder",
    "TabularMLP",
    "UniformAttention",
    "build_network",
    "contrastive",
    "describe_neighborhood",
    "euclidean",
    "fused_leave_one_out_nll",
    "leave_one_out_nll",
    "leave_self_out",
    "margin_contrastive",
    "neighbor_probabilities",
    "neighbor_vote",
    "network_config",
    "soft_cross_entropy",
    "soft_targets",
    "supervised_contrastive",
    "vote_nll",
    "weight_entropy",
]
