"""Layers of the lab: neural fields, the study's attention, published layers, counted FLOPs."""

from nearwise.lab.nn.calibrated_training import CalibratedTraining
from nearwise.lab.nn.convnn import ConvNNAttention
from nearwise.lab.nn.dense import MultiHeadAttention
from nearwise.lab.nn.field import PerceiverAutoencoder, coordinate_grid, make_perceiver
from nearwise.lab.nn.flops import FLOP_FORMULAS, FLOP_KINDS, FlopCount, count_flops
from nearwise.lab.nn.kvt import KvtAttention
from nearwise.lab.nn.multi_head import (
    DistanceAttention,
    LearnedDistanceAttention,
    MultiHeadNeighborAttention,
    UniformAttention,
)
from nearwise.lab.nn.neighbor_head import (
    NeighborAttention,
    NeighborHead,
    Neighborhood,
    describe_neighborhood,
)
from nearwise.lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise.lab.nn.race import LazyGumbelOutput, lazy_gumbel_attention
from nearwise.lab.nn.reference import load_reference_layer
from nearwise.lab.nn.reference_vit import load_reference_vit
from nearwise.lab.nn.registry import TOKEN_LAYERS, token_layer
from nearwise.lab.nn.vit import VisionTransformer

__all__ = [
    "FLOP_FORMULAS",
    "FLOP_KINDS",
    "TOKEN_LAYERS",
    "CalibratedTraining",
    "ConvNNAttention",
    "DistanceAttention",
    "FlopCount",
    "KvtAttention",
    "LazyGumbelOutput",
    "LearnedDistanceAttention",
    "MultiHeadAttention",
    "MultiHeadNeighborAttention",
    "NeighborAttention",
    "NeighborHead",
    "Neighborhood",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "PerceiverAutoencoder",
    "UniformAttention",
    "VisionTransformer",
    "coordinate_grid",
    "count_flops",
    "describe_neighborhood",
    "lazy_gumbel_attention",
    "load_reference_layer",
    "load_reference_vit",
    "make_perceiver",
    "token_layer",
]
