"""Token layers by name."""

from collections.abc import Callable

from torch import nn

from nearwise.names import did_you_mean
from nearwise.nn.tokens.branching import BranchingAttention, BranchingConv, TokenConvolution
from nearwise.nn.tokens.convnn import ConvNNAttention
from nearwise.nn.tokens.dense import MultiHeadAttention, SparseAttention
from nearwise.nn.tokens.knn import KNNAttention, KvtAttention
from nearwise.nn.tokens.local import LocalAttention
from nearwise.nn.tokens.neighborhood import NeighborhoodAttention1D, NeighborhoodAttention2D

LayerFactory = Callable[..., nn.Module]

TOKEN_LAYERS: dict[str, LayerFactory] = {
    "MultiHeadAttention": MultiHeadAttention,
    "KNNAttention": KNNAttention,
    "KvtAttention": KvtAttention,
    "ConvNNAttention": ConvNNAttention,
    "LocalAttention": LocalAttention,
    "NeighborhoodAttention1D": NeighborhoodAttention1D,
    "NeighborhoodAttention2D": NeighborhoodAttention2D,
    "SparseAttention": SparseAttention,
    "BranchingAttention": BranchingAttention,
    "BranchingConv": BranchingConv,
    "TokenConvolution": TokenConvolution,
}
# Names of the published command line.
LAYER_ALIASES = {
    "Attention": "MultiHeadAttention",
    "BranchAttention": "BranchingAttention",
    "BranchConv": "BranchingConv",
    "NeighborhoodAttention": "NeighborhoodAttention1D",
}


def token_layer(layer: str | LayerFactory) -> LayerFactory:
    """Return the class of a token layer.

    Parameters
    ----------
    layer : str or callable
        A name, or what makes a layer from ``dim``, ``num_heads`` and options.

    Raises
    ------
    ValueError
        If the name is not known; it suggests the nearest.
    """
    if not isinstance(layer, str):
        return layer
    name = LAYER_ALIASES.get(layer, layer)
    if name not in TOKEN_LAYERS:
        names = [*TOKEN_LAYERS, *LAYER_ALIASES]
        hint = did_you_mean(layer, names)
        raise ValueError(f"Layer {layer!r} is not known.{hint} There are {', '.join(names)}.")
    return TOKEN_LAYERS[name]
