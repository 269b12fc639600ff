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
from nearwise.nn.field import PerceiverAutoencoder, coordinate_grid, make_perceiver
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
from nearwise.nn.neighbor_attention import NeighborAttention
from nearwise.nn.neighbor_head import HeadOutput, NeighborHead
from nearwise.nn.neighborhood import Neighborhood, describe_neighborhood, pair_reliability
from nearwise.nn.network import (
    NeighborNetwork,
    NetworkOutput,
    build_network,
    euclidean,
    network_config,
)
from nearwise.nn.numeric import PBLDEmbedding, PiecewiseLinearEncoding, PLRLiteEmbedding
from nearwise.nn.tokens import (
    TOKEN_LAYERS,
    BranchingAttention,
    BranchingConv,
    ConvNNAttention,
    KNNAttention,
    KNNMultiheadAttention,
    KvtAttention,
    LocalAttention,
    MemoryAttention,
    MultiHeadAttention,
    NeighborhoodAttention1D,
    NeighborhoodAttention2D,
    Sampling,
    SparseAttention,
    TokenConvolution,
    token_layer,
    transformers_attention,
)
from nearwise.nn.vision import ImageEmbedder
from nearwise.nn.vit import VisionTransformer

__all__ = [
    "TOKEN_LAYERS",
    "BranchingAttention",
    "BranchingConv",
    "CategoricalEmbedding",
    "ClusterAttention",
    "ConvNNAttention",
    "Embedder",
    "HeadOutput",
    "IdentityEmbedder",
    "ImageEmbedder",
    "KNNAttention",
    "KNNMultiheadAttention",
    "KvtAttention",
    "LocalAttention",
    "MemoryAttention",
    "MultiHeadAttention",
    "NeighborAttention",
    "NeighborHead",
    "NeighborNetwork",
    "Neighborhood",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "NetworkOutput",
    "PBLDEmbedding",
    "PLRLiteEmbedding",
    "PerceiverAutoencoder",
    "PiecewiseLinearEncoding",
    "Sampling",
    "SparseAttention",
    "TableEmbedder",
    "TabularMLP",
    "TokenConvolution",
    "VisionTransformer",
    "brier_loss",
    "build_network",
    "cluster_features",
    "cluster_ids",
    "contrastive",
    "coordinate_grid",
    "describe_neighborhood",
    "euclidean",
    "fused_leave_one_out_nll",
    "leave_one_out_nll",
    "leave_self_out",
    "make_perceiver",
    "margin_contrastive",
    "neighbor_probabilities",
    "neighbor_vote",
    "network_config",
    "pair_reliability",
    "soft_binned_ece",
    "soft_cross_entropy",
    "soft_targets",
    "supervised_contrastive",
    "token_layer",
    "transformers_attention",
    "vote_nll",
    "weight_entropy",
]
