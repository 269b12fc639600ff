"""Layers of the lab: neural fields, the study's attention, published layers, counted FLOPs."""

from nearwise_lab.nn.convnn import ConvNNAttention
from nearwise_lab.nn.dense import KvtAttention, MultiHeadAttention
from nearwise_lab.nn.field import PerceiverAutoencoder, coordinate_grid, make_perceiver
from nearwise_lab.nn.flops import FLOP_FORMULAS, FLOP_KINDS, FlopCount, count_flops
from nearwise_lab.nn.layers import TOKEN_LAYERS, token_layer
from nearwise_lab.nn.multi_head import MultiHeadNeighborAttention
from nearwise_lab.nn.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D
from nearwise_lab.nn.reference import load_reference_layer
from nearwise_lab.nn.reference_vit import load_reference_vit
from nearwise_lab.nn.vit import VisionTransformer

__all__ = [
    "FLOP_FORMULAS",
    "FLOP_KINDS",
    "TOKEN_LAYERS",
    "ConvNNAttention",
    "FlopCount",
    "KvtAttention",
    "MultiHeadAttention",
    "MultiHeadNeighborAttention",
    "NeighborhoodAttention1D",
    "NeighborhoodAttention2D",
    "PerceiverAutoencoder",
    "VisionTransformer",
    "coordinate_grid",
    "count_flops",
    "load_reference_layer",
    "load_reference_vit",
    "make_perceiver",
    "token_layer",
]
