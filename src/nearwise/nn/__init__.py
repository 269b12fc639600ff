"""Modules that learn: embedders, neighbor attention and their losses."""

from nearwise.nn.calibration_losses import brier_loss, soft_binned_ece
from nearwise.nn.cluster_attention import ClusterAttention, cluster_features, cluster_ids
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
from nearwise.nn.neighbor_attention import NeighborAttention
from nearwise.nn.neighbor_head import HeadOutput, NeighborHead
from nearwise.nn.neighborhood import Neighborhood, describe_neighborhood
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
    "ClusterAttention",
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
    "brier_loss",
    "build_network",
    "cluster_features",
    "cluster_ids",
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
    "soft_binned_ece",
    "soft_cross_entropy",
    "soft_targets",
    "supervised_contrastive",
    "vote_nll",
    "weight_entropy",
]
